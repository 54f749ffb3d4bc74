/* SPDX-License-Identifier: MIT */
/*
 * Scratch memory of calls, in stream order: calls on different streams cannot meet in it, and a
 * captured call gets its own. It comes from a pool of the context, which keeps what it has; the
 * device's default pool gives its memory back to the system at every synchronisation, and the next
 * call waits until it has some again.
 */
#include "cuda/context.h"

void dgi_cuda_scratch_open(dgi_cuda *cuda)
{
    const CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->device},
    };
    cuuint64_t keep = UINT64_MAX;
    if (cuda->driver.cuMemPoolCreate(&cuda->pool, &props) != CUDA_SUCCESS)
        cuda->pool = NULL; /* some virtual GPUs have none, and most calls need none */
    else
        cuda->driver.cuMemPoolSetAttribute(cuda->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
}

void dgi_cuda_scratch_close(dgi_cuda *cuda)
{
    if (cuda->pool != NULL)
        cuda->driver.cuMemPoolDestroy(cuda->pool);
}

dg_status dgi_cuda_scratch_take(dgi_cuda *cuda, size_t bytes, CUstream stream, void **memory)
{
    CUdeviceptr address = 0;
    if (cuda->pool == NULL)
        return dgi_fail(DG_UNSUPPORTED_DEVICE,
                        "this call needs %zu bytes of scratch memory, but CUDA device %d has no "
                        "memory pools: give gemm.workspace",
                        bytes, cuda->device);
    CUresult result = cuda->driver.cuMemAllocFromPoolAsync(&address, bytes, cuda->pool, stream);
    *memory = (void *)(uintptr_t)address;
    return dgi_driver_check(&cuda->driver, result, "allocating scratch memory");
}

dg_status dgi_cuda_scratch_give(dgi_cuda *cuda, void *memory, CUstream stream, dg_status status)
{
    CUresult result = cuda->driver.cuMemFreeAsync((CUdeviceptr)(uintptr_t)memory, stream);
    return status != DG_OK ? status
                           : dgi_driver_check(&cuda->driver, result, "releasing scratch memory");
}

/* The pool keeps what it takes. The thread's own stream has no part in captures of others. */
dg_status dgi_cuda_scratch_grow(dgi_cuda *cuda, size_t bytes)
{
    void *memory = NULL;
    DGI_TRY(dgi_cuda_scratch_take(cuda, bytes, CU_STREAM_PER_THREAD, &memory));
    return dgi_cuda_scratch_give(cuda, memory, CU_STREAM_PER_THREAD, DG_OK);
}
