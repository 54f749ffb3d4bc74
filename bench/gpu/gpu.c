/* SPDX-License-Identifier: MIT */
/* The driver, random device memory, and timing by graph replay. See gpu.h. */
#include "gpu.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

void gpu_check(CUresult result, const char *what)
{
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s failed: CUDA error %d\n", what, result);
    exit(1);
}

void gpu_open(gpu *g)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "no CUDA driver: %s\n", dlerror());
        exit(1);
    }
#define GPU_FIND(function) *(void **)&g->function = dlsym(library, TEXT(function));
    GPU_FUNCTIONS(GPU_FIND)
#undef GPU_FIND
    CUdevice device;
    CUcontext context;
    gpu_check(g->cuInit(0), "cuInit");
    gpu_check(g->cuDeviceGet(&device, 0), "cuDeviceGet");
    gpu_check(g->cuDeviceGetName(g->name, sizeof g->name, device), "cuDeviceGetName");
    gpu_check(g->cuDriverGetVersion(&g->driver_version), "cuDriverGetVersion");
    gpu_check(g->cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    gpu_check(g->cuCtxSetCurrent(context), "cuCtxSetCurrent");
    gpu_check(g->cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    gpu_check(g->cuEventCreate(&g->begin, CU_EVENT_DEFAULT), "cuEventCreate");
    gpu_check(g->cuEventCreate(&g->end, CU_EVENT_DEFAULT), "cuEventCreate");
}

void *gpu_alloc(gpu *g, size_t bytes)
{
    CUdeviceptr memory;
    gpu_check(g->cuMemAlloc(&memory, bytes), "cuMemAlloc");
    return (void *)(uintptr_t)memory;
}

void gpu_free(gpu *g, void *memory)
{
    gpu_check(g->cuMemFree((CUdeviceptr)(uintptr_t)memory), "cuMemFree");
}

/* ---- random data --------------------------------------------------------------------- */

static uint64_t random_next(void)
{
    static uint64_t state = 0x9E3779B97F4A7C15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Near enough to a normal distribution: the sum of four uniform values. */
static float random_normal(void)
{
    uint64_t bits = random_next();
    int sum = 0;
    for (int i = 0; i < 4; i++, bits >>= 16)
        sum += (int)(bits & 0xFFFF) - 32768;
    return (float)sum / 37837.0f;
}

/* Truncates; only the distribution matters here. Values are scaled so that 4 sigma is near 448. */
static uint8_t e4m3_of(float value)
{
    int exponent;
    float fraction = frexpf(fabsf(value) * 100.0f, &exponent);
    int code = exponent < -5 ? 0 : (exponent + 6) << 3 | ((int)(fraction * 16.0f) & 7);
    return (uint8_t)((code > 0x7E ? 0x7E : code) | (value < 0.0f ? 0x80 : 0));
}

void *gpu_random(gpu *g, size_t elements, gpu_fill fill)
{
    enum { PIECE = 1 << 20 };
    static float values[PIECE];
    const size_t size = fill == GPU_E4M3 ? 1 : fill == GPU_BF16 ? 2 : 4;
    static unsigned char bytes[PIECE * 4];
    for (int i = 0; i < PIECE; i++)
        values[i] = random_normal();
    for (int i = 0; i < PIECE; i++) {
        if (fill == GPU_E4M3) {
            bytes[i] = e4m3_of(values[i]);
        } else if (fill == GPU_BF16) {
            uint32_t bits;
            memcpy(&bits, &values[i], 4);
            ((uint16_t *)bytes)[i] = (uint16_t)(bits >> 16);
        } else {
            ((float *)bytes)[i] = 0.01f * (1.0f + 0.2f * values[i]);
        }
    }
    char *memory = gpu_alloc(g, elements * size);
    const size_t total = elements * size, piece = PIECE * size;
    CUdeviceptr target = (CUdeviceptr)(uintptr_t)memory;
    size_t filled = total < piece ? total : piece;
    gpu_check(g->cuMemcpyHtoD(target, bytes, filled), "cuMemcpyHtoD");
    while (filled < total) {
        size_t more = total - filled < filled ? total - filled : filled;
        gpu_check(g->cuMemcpyDtoD(target + filled, target, more), "cuMemcpyDtoD");
        filled += more;
    }
    return memory;
}

/* ---- timing -------------------------------------------------------------------------- */

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

static double replay(gpu *g, CUgraphExec graph)
{
    float milliseconds;
    gpu_check(g->cuEventRecord(g->begin, g->stream), "cuEventRecord");
    gpu_check(g->cuGraphLaunch(graph, g->stream), "cuGraphLaunch");
    gpu_check(g->cuEventRecord(g->end, g->stream), "cuEventRecord");
    gpu_check(g->cuStreamSynchronize(g->stream), "cuStreamSynchronize");
    gpu_check(g->cuEventElapsedTime(&milliseconds, g->begin, g->end), "cuEventElapsedTime");
    return milliseconds * 1e3;
}

double gpu_time(gpu *g, gpu_work *work, void *state, int sets, double least_seconds)
{
    enum { REPLAYS = 15 };
    if (!work(state, 0, g->stream))
        return -1.0;
    double first;
    CUgraph graph;
    CUgraphExec executable;
    int calls = sets;
    for (int round = 0;; round++) {
        gpu_check(g->cuStreamBeginCapture(g->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                  "cuStreamBeginCapture");
        bool possible = true;
        for (int i = 0; i < calls; i++)
            possible = possible && work(state, i % sets, g->stream);
        gpu_check(g->cuStreamEndCapture(g->stream, &graph), "cuStreamEndCapture");
        if (!possible)
            return -1.0;
        gpu_check(g->cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiate");
        replay(g, executable);
        first = replay(g, executable);
        if (round == 1)
            break;
        /* The second graph is long enough for the wanted time in all replays together. */
        double wanted = least_seconds * 1e6 / REPLAYS;
        calls = (int)(wanted / (first / calls)) / sets * sets + sets;
        if (calls > 2000)
            calls = 2000 / sets * sets;
        g->cuGraphExecDestroy(executable);
        g->cuGraphDestroy(graph);
    }
    double times[REPLAYS];
    for (int i = 0; i < REPLAYS; i++)
        times[i] = replay(g, executable) / calls;
    g->cuGraphExecDestroy(executable);
    g->cuGraphDestroy(graph);
    qsort(times, REPLAYS, sizeof times[0], by_value);
    return times[REPLAYS / 2];
}
