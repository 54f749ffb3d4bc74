/* SPDX-License-Identifier: MIT */
/*
 * The CUDA driver, opened at run time: the library links to nothing of CUDA. Only the files of
 * src/cuda/ use it.
 */
#ifndef DGI_CUDA_DRIVER_H
#define DGI_CUDA_DRIVER_H

#include "core/status.h"

#include <cuda.h>

/* The entry points in use. <cuda.h> renames some to their current version: cuMemAlloc_v2. */
#define DGI_DRIVER_FUNCTIONS(X)                                                                    \
    X(cuInit)                                                                                      \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxGetCurrent)                                                                             \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleGetFunction)                                                                         \
    X(cuModuleUnload)                                                                              \
    X(cuFuncSetAttribute)                                                                          \
    X(cuLaunchKernelEx)                                                                            \
    X(cuTensorMapEncodeTiled)                                                                      \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemPoolCreate)                                                                             \
    X(cuMemPoolSetAttribute)                                                                       \
    X(cuMemPoolDestroy)                                                                            \
    X(cuMemAllocFromPoolAsync)                                                                     \
    X(cuMemFreeAsync)                                                                              \
    X(cuMemsetD8Async)                                                                             \
    X(cuMemcpyAsync)                                                                               \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamIsCapturing)                                                                         \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuPointerGetAttribute)

typedef struct dgi_driver {
    void *library;
#define DGI_DRIVER_MEMBER(function) __typeof__(function) *function;
    DGI_DRIVER_FUNCTIONS(DGI_DRIVER_MEMBER)
#undef DGI_DRIVER_MEMBER
} dgi_driver;

/* Opens and initialises the driver; DG_UNSUPPORTED_DEVICE where there is none. `device` is what the
 * caller asked for, for the message. */
dg_status dgi_driver_open(dgi_driver *driver, dg_device device);
void dgi_driver_close(dgi_driver *driver);

/* DG_OK, or a failure that names the driver's error: `what` says what was being done. */
dg_status dgi_driver_check(const dgi_driver *driver, CUresult result, const char *what);

#endif
