/* SPDX-License-Identifier: MIT */
/* The driver, device memory, the clock, and timing. See gpu.h. */
#include "gpu.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)

void gpu_check(const gpu *g, CUresult result, const char *what)
{
    const char *name = "unknown error";
    if (result == CUDA_SUCCESS)
        return;
    g->cuGetErrorName(result, &name);
    cli_die("%s failed: %s", what, name);
}

/* The clock is read through NVIDIA's management library, where there is one. */
static void open_clock(gpu *g, CUdevice device)
{
    char bus[32];
    int (*init)(void);
    int (*find)(const char *bus, void **device);
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (library == NULL)
        return;
    *(void **)&init = dlsym(library, "nvmlInit_v2");
    *(void **)&find = dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&g->clock_read = dlsym(library, "nvmlDeviceGetClockInfo");
    if (init == NULL || find == NULL || g->clock_read == NULL || init() != 0)
        return;
    gpu_check(g, g->cuDeviceGetPCIBusId(bus, sizeof bus, device), "asking for the bus address");
    if (find(bus, &g->clock_device) != 0)
        g->clock_device = NULL;
}

static double read_clock(const gpu *g)
{
    const int sm = 1; /* of NVML's clocks: that of the multiprocessors */
    unsigned mhz = 0;
    return g->clock_device != NULL && g->clock_read(g->clock_device, sm, &mhz) == 0 ? mhz : 0;
}

void gpu_open(gpu *g, int ordinal, bool sustained)
{
    *g = (gpu){.sustained = sustained};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        cli_die("there is no CUDA driver: %s", dlerror());
#define GPU_FIND(function)                                                                         \
    *(void **)&g->function = dlsym(library, TEXT(function));                                       \
    if (g->function == NULL)                                                                       \
        cli_die("the CUDA driver has no " TEXT(function));
    GPU_FUNCTIONS(GPU_FIND)
#undef GPU_FIND
    CUdevice device;
    CUcontext context;
    gpu_check(g, g->cuInit(0), "starting the CUDA driver");
    gpu_check(g, g->cuDeviceGet(&device, ordinal), "finding the CUDA device");
    gpu_check(g, g->cuDeviceGetName(g->name, sizeof g->name, device), "asking for its name");
    gpu_check(g, g->cuDriverGetVersion(&g->driver_version), "asking for the driver's version");
    gpu_check(g, g->cuDevicePrimaryCtxRetain(&context, device), "opening the device");
    gpu_check(g, g->cuCtxSetCurrent(context), "opening the device");
    gpu_check(g, g->cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING), "making a stream");
    for (int i = 0; i < GPU_MOST_REPEATS; i++) {
        gpu_check(g, g->cuEventCreate(&g->begin[i], CU_EVENT_DEFAULT), "making an event");
        gpu_check(g, g->cuEventCreate(&g->end[i], CU_EVENT_DEFAULT), "making an event");
    }
    open_clock(g, device);
}

/* ---- memory -------------------------------------------------------------------------- */

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

void *gpu_alloc(gpu *g, size_t bytes)
{
    CUdeviceptr memory;
    gpu_check(g, g->cuMemAlloc(&memory, bytes), "allocating device memory");
    return (void *)(uintptr_t)memory;
}

void gpu_free(gpu *g, void *memory)
{
    if (memory != NULL)
        gpu_check(g, g->cuMemFree(address(memory)), "releasing device memory");
}

void gpu_upload(gpu *g, void *target, const void *source, size_t bytes)
{
    gpu_check(g, g->cuMemcpyHtoDAsync(address(target), source, bytes, g->stream),
              "copying to the device");
}

void gpu_download(gpu *g, void *target, const void *source, size_t bytes)
{
    gpu_check(g, g->cuStreamSynchronize(g->stream), "waiting for the device");
    gpu_check(g, g->cuMemcpyDtoH(target, address(source), bytes), "copying from the device");
}

void gpu_copy(gpu *g, void *target, const void *source, size_t bytes)
{
    gpu_check(g, g->cuMemcpyDtoDAsync(address(target), address(source), bytes, g->stream),
              "copying on the device");
}

void gpu_set(gpu *g, void *target, uint8_t value, size_t bytes)
{
    gpu_check(g, g->cuMemsetD8Async(address(target), value, bytes, g->stream),
              "filling device memory");
}

/* ---- timing -------------------------------------------------------------------------- */

static void rest(double seconds)
{
    struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

void gpu_wait(gpu *g)
{
    gpu_check(g, g->cuStreamSynchronize(g->stream), "waiting for the device");
}

/* Seconds between the events of sample `i`. */
static double elapsed(gpu *g, int i)
{
    float milliseconds;
    gpu_check(g, g->cuEventElapsedTime(&milliseconds, g->begin[i], g->end[i]), "timing");
    return milliseconds * 1e-3;
}

static void enqueue_sample(gpu *g, CUgraphExec graph, int i)
{
    gpu_check(g, g->cuEventRecord(g->begin[i], g->stream), "timing");
    gpu_check(g, g->cuGraphLaunch(graph, g->stream), "replaying a graph");
    gpu_check(g, g->cuEventRecord(g->end[i], g->stream), "timing");
}

static double sample(gpu *g, CUgraphExec graph)
{
    enqueue_sample(g, graph, 0);
    gpu_wait(g);
    return elapsed(g, 0);
}

/* A graph of so many calls; NULL when the work is not possible. */
static CUgraphExec capture(gpu *g, gpu_work *work, void *state, int sets, int64_t calls)
{
    CUgraph graph;
    CUgraphExec executable = NULL;
    bool possible = true;
    gpu_check(g, g->cuStreamBeginCapture(g->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              "capturing a graph");
    for (int64_t i = 0; i < calls && possible; i++)
        possible = work(state, (int)(i % sets), g->stream);
    gpu_check(g, g->cuStreamEndCapture(g->stream, &graph), "capturing a graph");
    if (possible)
        gpu_check(g, g->cuGraphInstantiateWithFlags(&executable, graph, 0), "preparing a graph");
    gpu_check(g, g->cuGraphDestroy(graph), "releasing a graph");
    return executable;
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

bench_time gpu_time(gpu *g, gpu_work *work, void *state, int sets, double seconds, double *mhz)
{
    const double sample_seconds = 2.5e-3, rest_share = 3, warm_up = 0.3;
    const int64_t most_calls = 4096;
    if (!work(state, 0, g->stream))
        return (bench_time){0};
    gpu_wait(g);
    CUgraphExec graph = capture(g, work, state, sets, sets);
    if (graph == NULL)
        return (bench_time){0};
    sample(g, graph);
    double length = sample(g, graph);
    int64_t rounds = (int64_t)(sample_seconds / length) + 1;
    if (rounds > most_calls / sets)
        rounds = most_calls / sets > 0 ? most_calls / sets : 1;
    if (rounds > 1) {
        gpu_check(g, g->cuGraphExecDestroy(graph), "releasing a graph");
        graph = capture(g, work, state, sets, rounds * sets);
        if (graph == NULL)
            return (bench_time){0};
        length = sample(g, graph);
    }
    int repeats = (int)(seconds / length);
    repeats = repeats < 9 ? 9 : repeats > GPU_MOST_REPEATS ? GPU_MOST_REPEATS : repeats;
    for (double run = 0; g->sustained && run < warm_up; run += length)
        gpu_check(g, g->cuGraphLaunch(graph, g->stream), "replaying a graph");
    for (int i = 0; i < repeats; i++) {
        if (!g->sustained)
            rest(rest_share * length);
        enqueue_sample(g, graph, i);
        if (!g->sustained && i == repeats / 2)
            *mhz = read_clock(g);
        if (!g->sustained)
            gpu_wait(g);
    }
    if (g->sustained) /* most of the samples are still to run */
        *mhz = read_clock(g);
    gpu_wait(g);

    double times[GPU_MOST_REPEATS];
    for (int i = 0; i < repeats; i++)
        times[i] = elapsed(g, i) / (double)(rounds * sets);
    gpu_check(g, g->cuGraphExecDestroy(graph), "releasing a graph");
    qsort(times, (size_t)repeats, sizeof times[0], by_value);
    return (bench_time){.median = times[repeats / 2],
                        .min = times[0],
                        .p10 = times[repeats / 10],
                        .p90 = times[repeats - 1 - repeats / 10],
                        .repeats = repeats,
                        .calls = rounds * sets};
}

void gpu_time_launches(gpu *g, gpu_work *work, void *state, int sets, double *launch, double *host)
{
    enum { rounds = 5, calls = 64 }; /* fewer than a stream can hold */
    double launches[rounds], hosts[rounds];
    for (int i = 0; i < rounds; i++) {
        gpu_check(g, g->cuEventRecord(g->begin[0], g->stream), "timing");
        const double start = cli_now();
        for (int c = 0; c < calls; c++)
            if (!work(state, c % sets, g->stream))
                return;
        hosts[i] = (cli_now() - start) / calls;
        gpu_check(g, g->cuEventRecord(g->end[0], g->stream), "timing");
        gpu_wait(g);
        launches[i] = elapsed(g, 0) / calls;
        if (!g->sustained)
            rest(3 * launches[i] * calls);
    }
    qsort(launches, rounds, sizeof launches[0], by_value);
    qsort(hosts, rounds, sizeof hosts[0], by_value);
    *launch = launches[rounds / 2];
    *host = hosts[rounds / 2];
}
