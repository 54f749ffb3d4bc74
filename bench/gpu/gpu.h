/* SPDX-License-Identifier: MIT */
/*
 * What the GPU side of the benchmark needs of the machine: the CUDA driver and the clock, both
 * opened at run time, device memory, and timing. A failing driver call ends the program.
 */
#ifndef BENCH_GPU_H
#define BENCH_GPU_H

#include "bench.h"

#include <cuda.h>

#define GPU_FUNCTIONS(X)                                                                           \
    X(cuInit)                                                                                      \
    X(cuGetErrorName)                                                                              \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetPCIBusId)                                                                         \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuCtxSetCurrent)                                                                             \
    X(cuDriverGetVersion)                                                                          \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemcpyDtoH)                                                                                \
    X(cuMemcpyHtoDAsync)                                                                           \
    X(cuMemcpyDtoDAsync)                                                                           \
    X(cuMemsetD8Async)                                                                             \
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

enum { GPU_MOST_REPEATS = 64 };

typedef struct gpu {
#define GPU_MEMBER(function) __typeof__(function) *function;
    GPU_FUNCTIONS(GPU_MEMBER)
#undef GPU_MEMBER
    char name[96];
    int driver_version; /* 13000 for CUDA 13.0 */
    CUstream stream;
    CUevent begin[GPU_MOST_REPEATS], end[GPU_MOST_REPEATS];
    void *clock_device; /* of the clock's library; NULL where there is none */
    int (*clock_read)(void *device, int which, unsigned *mhz);
    bool sustained; /* samples follow each other without a pause */
} gpu;

/* Opens a device and makes its primary context current for this thread. */
void gpu_open(gpu *g, int ordinal, bool sustained);
void gpu_check(const gpu *g, CUresult result, const char *what);

/* Waits for all that was enqueued. */
void gpu_wait(gpu *g);

/* Copies are in the order of the stream of `g`, like all calls that are timed or checked. */
void *gpu_alloc(gpu *g, size_t bytes);
void gpu_free(gpu *g, void *memory);
void gpu_upload(gpu *g, void *target, const void *source, size_t bytes);
void gpu_download(gpu *g, void *target, const void *source, size_t bytes);
void gpu_copy(gpu *g, void *target, const void *source, size_t bytes);
void gpu_set(gpu *g, void *target, uint8_t value, size_t bytes);

/* Enqueues the work on operand set `set`; false when it is not possible. */
typedef bool gpu_work(void *state, int set, CUstream stream);

/*
 * Seconds of one call. A sample replays a graph of some milliseconds whose calls rotate over all
 * operand sets; samples take about `seconds` together. After each of them the GPU rests three times
 * as long, which keeps the average power under its limit; when `sustained` they follow each other,
 * after a warm-up. `*mhz` gets the clock that the driver reports in the middle, 0 when unknown.
 * No repeats when the work is not possible.
 */
bench_time gpu_time(gpu *g, gpu_work *work, void *state, int sets, double seconds, double *mhz);

/* The same calls launched one by one: seconds each for the GPU, and for the host that enqueues. */
void gpu_time_launches(gpu *g, gpu_work *work, void *state, int sets, double *launch, double *host);

#endif
