/* SPDX-License-Identifier: MIT */
/* The simulated driver's memory, streams, graphs and events. Work runs when it is enqueued. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, ALIGNMENT = 256 };

/* ---- memory ---------------------------------------------------------------------------- */

/* An allocation ends less than ALIGNMENT bytes in front of a page that cannot be touched. */
typedef struct memory {
    struct memory *next;
    CUdevice device;
    uintptr_t address;
    size_t bytes, mapping_bytes;
    void *mapping;
} memory;
static memory *memories;

static memory **find_memory(CUdeviceptr address)
{
    memory **m = &memories;
    while (*m != NULL && (address < (*m)->address || address >= (*m)->address + (*m)->bytes))
        m = &(*m)->next;
    return m;
}

static CUresult allocate_memory(CUdeviceptr *address, size_t bytes)
{
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)4 << 30)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory *m = sim_allocate(sizeof *m);
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t pages = (rounded + PAGE - 1) / PAGE * PAGE;
    m->mapping_bytes = pages + PAGE;
    m->mapping =
        mmap(NULL, m->mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m->mapping == MAP_FAILED || mprotect((char *)m->mapping + pages, PAGE, PROT_NONE) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->device = sim_current_device();
    m->address = (uintptr_t)m->mapping + pages - rounded;
    m->bytes = bytes;
    m->next = memories;
    memories = m;
    memset((void *)m->address, 0xFF, rounded);
    *address = m->address;
    return CUDA_SUCCESS;
}

static CUresult free_memory(CUdeviceptr address)
{
    memory **place = find_memory(address), *m = *place;
    if (address == 0)
        return CUDA_SUCCESS;
    if (m == NULL || m->address != address)
        return CUDA_ERROR_INVALID_VALUE;
    *place = m->next;
    munmap(m->mapping, m->mapping_bytes);
    free(m);
    return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    SIM_ENTER();
    const memory *m = *find_memory(address);
    if (m == NULL || attribute != CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    *(int *)value = m->device;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    SIM_ENTER();
    const memory *m = *find_memory(address);
    if (m == NULL)
        return sim_leave(CUDA_ERROR_NOT_FOUND);
    if (base != NULL)
        *base = m->address;
    if (bytes != NULL)
        *bytes = m->bytes;
    return sim_leave(CUDA_SUCCESS);
}

/* ---- streams and graphs ---------------------------------------------------------------- */

struct CUgraph_st {
    sim_work *first, **end;
};
struct CUstream_st {
    CUgraph capture; /* NULL: not captured */
    CUstreamCaptureMode mode;
};
struct CUevent_st {
    struct timespec time;
};
static _Thread_local int strict_captures;

static _Thread_local CUstreamCaptureMode thread_mode;

bool sim_captures(void)
{
    return strict_captures > 0 && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    const CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* The default streams are small numbers. */
static CUgraph capture_of(CUstream stream)
{
    return (uintptr_t)stream < 16 ? NULL : stream->capture;
}

static void perform(const sim_work *w)
{
    if (w->kind == SIM_LAUNCH)
        sim_run(&w->launch);
    else if (w->kind == SIM_COPY)
        memmove(w->target, w->source, w->bytes);
    else
        memset(w->target, w->value, w->bytes);
}

CUresult sim_enqueue(const sim_work *w, CUstream stream)
{
    CUgraph graph = capture_of(stream);
    if (graph == NULL) {
        perform(w);
        return CUDA_SUCCESS;
    }
    sim_work *copy = sim_allocate(sizeof *copy);
    *copy = *w;
    *graph->end = copy;
    graph->end = &copy->next;
    return CUDA_SUCCESS;
}

/* Either side may be memory of the host, but what is inside of an allocation must fit into it. */
static CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    const CUdeviceptr sides[2] = {target, source};
    for (int i = 0; i < 2; i++) {
        const memory *m = *find_memory(sides[i]);
        if (m != NULL && sides[i] + bytes > m->address + m->bytes)
            return CUDA_ERROR_INVALID_VALUE;
    }
    const sim_work w = {.kind = SIM_COPY,
                        .target = (void *)(uintptr_t)target,
                        .source = (const void *)(uintptr_t)source,
                        .bytes = bytes};
    return sim_enqueue(&w, stream);
}

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    SIM_ENTER();
    return sim_leave(copy(target, source, bytes, stream));
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    SIM_ENTER();
    return sim_leave(copy(target, source, bytes, stream));
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void *source, size_t bytes, CUstream stream)
{
    SIM_ENTER();
    return sim_leave(copy(target, (uintptr_t)source, bytes, stream));
}

CUresult cuMemcpyDtoH(void *target, CUdeviceptr source, size_t bytes)
{
    SIM_ENTER();
    return sim_leave(copy((uintptr_t)target, source, bytes, NULL));
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream)
{
    SIM_ENTER();
    const memory *m = *find_memory(target);
    if (bytes > 0 && (m == NULL || target + bytes > m->address + m->bytes))
        return sim_leave(CUDA_ERROR_INVALID_VALUE);
    const sim_work w = {
        .kind = SIM_SET, .target = (void *)(uintptr_t)target, .value = value, .bytes = bytes};
    return sim_leave(sim_enqueue(&w, stream));
}

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    SIM_ENTER();
    return sim_leave(sim_captures() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                    : allocate_memory(address, bytes));
}

CUresult cuMemFree(CUdeviceptr address)
{
    SIM_ENTER();
    return sim_leave(sim_captures() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : free_memory(address));
}

/* Pools take from all memory, and give back to it at once. */
struct CUmemPoolHandle_st {
    CUdevice device;
};

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    SIM_ENTER();
    *pool = sim_allocate(sizeof **pool);
    (*pool)->device = props->location.id;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    (void)pool, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    free(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                 CUstream stream)
{
    (void)stream;
    SIM_ENTER();
    return sim_leave(pool->device != sim_current_device() ? CUDA_ERROR_INVALID_VALUE
                                                          : allocate_memory(address, bytes));
}

/* What a captured call frees, its graph goes on using. */
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    SIM_ENTER();
    return sim_leave(capture_of(stream) != NULL ? CUDA_SUCCESS : free_memory(address));
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    SIM_ENTER();
    *stream = sim_allocate(sizeof **stream);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream)
{
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    SIM_ENTER();
    return sim_leave(capture_of(stream) != NULL ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                                : CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    SIM_ENTER();
    *status = capture_of(stream) != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                         : CU_STREAM_CAPTURE_STATUS_NONE;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    SIM_ENTER();
    if ((uintptr_t)stream < 16 || stream->capture != NULL)
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    stream->capture = sim_allocate(sizeof *stream->capture);
    stream->capture->end = &stream->capture->first;
    stream->mode = mode;
    strict_captures += mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    SIM_ENTER();
    if (capture_of(stream) == NULL)
        return sim_leave(CUDA_ERROR_ILLEGAL_STATE);
    strict_captures -= stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    *graph = stream->capture;
    stream->capture = NULL;
    return sim_leave(CUDA_SUCCESS);
}

/* A graph that can be launched is a copy, which outlives the graph. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    SIM_ENTER();
    CUgraph copied = sim_allocate(sizeof *copied);
    copied->end = &copied->first;
    for (const sim_work *w = graph->first; w != NULL; w = w->next) {
        *copied->end = sim_allocate(sizeof *w);
        **copied->end = *w;
        copied->end = &(*copied->end)->next;
    }
    *exec = (CUgraphExec)copied;
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    SIM_ENTER();
    if (capture_of(stream) != NULL)
        return sim_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    for (const sim_work *w = ((CUgraph)exec)->first; w != NULL; w = w->next)
        perform(w);
    return sim_leave(CUDA_SUCCESS);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    for (sim_work *w = graph->first, *next; w != NULL; w = next) {
        next = w->next;
        free(w);
    }
    free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    return cuGraphDestroy((CUgraph)exec);
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = sim_allocate(sizeof **event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    (void)stream;
    clock_gettime(CLOCK_MONOTONIC, &event->time);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
    *milliseconds = (float)((double)(end->time.tv_sec - begin->time.tv_sec) * 1e3 +
                            (double)(end->time.tv_nsec - begin->time.tv_nsec) * 1e-6);
    return CUDA_SUCCESS;
}
