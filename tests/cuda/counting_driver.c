/* SPDX-License-Identifier: MIT */
/* The driver of counting_driver.h: one function for each entry point that the backend uses. */
#include "counting_driver.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static const CUmemoryPool scratch_pool = (CUmemoryPool)80;

counting_driver fake;

static CUresult get_current(CUcontext *context)
{
    fake.count.get_current++;
    *context = fake.current;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    fake.count.push++;
    assert_ptr_equal(fake.current, callers); /* a push while ours is current is not needed */
    fake.current = context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
    fake.count.pop++;
    *context = fake.current;
    fake.current = callers;
    return CUDA_SUCCESS;
}

static CUresult pointer(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    fake.count.pointers++;
    assert_int_equal(attribute, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    if (address < ours || address >= memory_end)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)data = address >= other;
    return CUDA_SUCCESS;
}

/* A map that shows what it was made of. */
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                       const cuuint64_t *sizes, const cuuint64_t *pitch, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill)
{
    (void)rank, (void)steps, (void)interleave, (void)promotion, (void)fill;
    fake.count.maps++;
    *map = (CUtensorMap){.opaque = {(uintptr_t)data, sizes[0], sizes[1], *pitch, box[0], box[1],
                                    (cuuint64_t)type, (cuuint64_t)swizzle}};
    return CUDA_SUCCESS;
}

static CUresult load(CUmodule *module, const void *image)
{
    (void)image;
    fake.count.loads++;
    assert_int_equal(fake.capture_mode, CU_STREAM_CAPTURE_MODE_RELAXED);
    *module = (CUmodule)48;
    return CUDA_SUCCESS;
}

static CUresult unload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

static CUresult find(CUfunction *function, CUmodule module, const char *name)
{
    (void)module, (void)name;
    *function = (CUfunction)64;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    const CUstreamCaptureMode before = fake.capture_mode;
    fake.capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    assert_non_null(stream);
    *status = fake.capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters,
                       void **extra)
{
    (void)extra;
    fake.count.launches++;
    assert_true(config->gridDimX > 0 && config->blockDimX > 0);
    assert_ptr_equal(fake.current, primary);
    assert_ptr_equal(function, (CUfunction)64);
    if (config->blockDimX % 128 == 0) /* else it is a kernel for few tokens */
        memcpy(&fake.launched, parameters[0], sizeof fake.launched);
    else
        memcpy(&fake.launched_few, parameters[0], sizeof fake.launched_few);
    return fake.launch_result;
}

static CUresult allocate(CUdeviceptr *memory, size_t bytes)
{
    assert_true(bytes > 0);
    *memory = ours + ((uintptr_t)99 << 32);
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr memory)
{
    (void)memory;
    return CUDA_SUCCESS;
}

static CUresult set_bytes(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream)
{
    (void)memory, (void)value, (void)bytes, (void)stream;
    return CUDA_SUCCESS;
}

/* The pool keeps all of its memory. */
static CUresult create_pool(CUmemoryPool *pool, const CUmemPoolProps *props)
{
    assert_int_equal(props->location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    assert_int_equal(props->location.id, 0);
    *pool = scratch_pool;
    return fake.pools_exist ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult set_pool(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    assert_ptr_equal(pool, scratch_pool);
    assert_int_equal(attribute, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
    assert_int_equal(*(cuuint64_t *)value, UINT64_MAX);
    return CUDA_SUCCESS;
}

static CUresult take(CUdeviceptr *memory, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    fake.count.taken++;
    assert_ptr_equal(pool, scratch_pool);
    fake.scratch_stream = stream;
    return allocate(memory, bytes);
}

static CUresult give(CUdeviceptr memory, CUstream stream)
{
    (void)memory;
    fake.count.given++;
    assert_ptr_equal(stream, fake.scratch_stream);
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    (void)target, (void)source, (void)bytes, (void)stream;
    assert_false(fake.capturing);
    return CUDA_SUCCESS;
}

static CUresult wait_for(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult name_error(CUresult result, const char **text)
{
    (void)result;
    *text = "CUDA_ERROR_OF_TEST";
    return CUDA_SUCCESS;
}

/* A context on that driver, whose caller has another one current. */
int counting_open(void **state)
{
    dgi_cuda *cuda = calloc(1, sizeof *cuda);
    dg_context *context = calloc(1, sizeof *context);
    *context = (dg_context){.backend = &dgi_backend_cuda, .device = 0, .state = cuda};
    cuda->driver = (dgi_driver){
        .cuCtxGetCurrent = get_current,
        .cuCtxPushCurrent = push,
        .cuCtxPopCurrent = pop,
        .cuPointerGetAttribute = pointer,
        .cuTensorMapEncodeTiled = encode,
        .cuModuleLoadData = load,
        .cuModuleUnload = unload,
        .cuModuleGetFunction = find,
        .cuFuncSetAttribute = set_attribute,
        .cuStreamIsCapturing = is_capturing,
        .cuThreadExchangeStreamCaptureMode = exchange_mode,
        .cuMemPoolCreate = create_pool,
        .cuMemPoolSetAttribute = set_pool,
        .cuMemAllocFromPoolAsync = take,
        .cuMemFreeAsync = give,
        .cuLaunchKernelEx = launch,
        .cuMemAlloc = allocate,
        .cuMemFree = release,
        .cuMemsetD8Async = set_bytes,
        .cuMemcpyAsync = copy,
        .cuStreamSynchronize = wait_for,
        .cuGetErrorName = name_error,
        .cuGetErrorString = name_error,
    };
    cuda->primary = primary;
    cuda->units = 132;
    cuda->forced_many = cuda->forced_few = cuda->forced_grouped = cuda->forced_grouped_few = -1;
    pthread_mutex_init(&cuda->lock, NULL);
    fake.pools_exist = true;
    dgi_cuda_scratch_open(cuda);
    fake.current = callers;
    fake.capturing = false;
    fake.capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    fake.launch_result = CUDA_SUCCESS;
    memset(&fake.count, 0, sizeof fake.count);
    *state = context;
    return 0;
}

int counting_close(void **state)
{
    dg_context *context = *state;
    dgi_cuda *cuda = context->state;
    pthread_mutex_destroy(&cuda->lock);
    free(cuda);
    free(context);
    return 0;
}
