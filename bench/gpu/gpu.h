/* SPDX-License-Identifier: MIT */
/*
 * What the files of the GPU benchmark share: the driver's entry points, device memory with random
 * contents, and timing by graph replay.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_FUNCTIONS(X)                                                                           \
    X(cuInit)                                                                                      \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxSetCurrent)                                                                             \
    X(cuDriverGetVersion)                                                                          \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemcpyHtoD)                                                                                \
    X(cuMemcpyDtoH)                                                                                \
    X(cuMemcpyDtoD)                                                                                \
    X(cuStreamCreate)                                                                              \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamBeginCapture)                                                                        \
    X(cuStreamEndCapture)                                                                          \
    X(cuGraphInstantiateWithFlags)                                                                 \
    X(cuGraphLaunch)                                                                               \
    X(cuGraphExecDestroy)                                                                          \
    X(cuGraphDestroy)                                                                              \
    X(cuEventCreate)                                                                               \
    X(cuEventRecord)                                                                               \
    X(cuEventElapsedTime)

typedef struct gpu {
#define GPU_MEMBER(function) __typeof__(function) *function;
    GPU_FUNCTIONS(GPU_MEMBER)
#undef GPU_MEMBER
    char name[96];
    int driver_version;
    CUstream stream;
    CUevent begin, end;
} gpu;

/* The first GPU, with its primary context current; exits with a message when there is none. */
void gpu_open(gpu *g);
/* Exits when a driver call has failed. */
void gpu_check(CUresult result, const char *what);

void *gpu_alloc(gpu *g, size_t bytes);
void gpu_free(gpu *g, void *memory);
/* Memory that holds normally distributed values as E4M3 or BF16, or FP32 scales around 1. */
typedef enum gpu_fill { GPU_E4M3, GPU_BF16, GPU_SCALES } gpu_fill;
void *gpu_random(gpu *g, size_t elements, gpu_fill fill);

/* Enqueues the work on operand set `set`; false when it is not possible. */
typedef bool gpu_work(void *state, int set, CUstream stream);

/*
 * Median microseconds of one call, replayed from a graph in which the calls rotate over `sets`
 * operand sets. Negative when the work is not possible.
 */
double gpu_time(gpu *g, gpu_work *work, void *state, int sets, double least_seconds);

#endif
