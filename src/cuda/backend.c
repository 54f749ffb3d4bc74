/* SPDX-License-Identifier: MIT */
/* The CUDA backend: its table of functions, its contexts and device memory. */
#include "core/kernels.h"
#include "cuda/context.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- contexts ------------------------------------------------------------------------ */

dg_status dgi_cuda_enter(dgi_cuda *cuda, bool *pushed)
{
    CUcontext current = NULL;
    DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuCtxGetCurrent(&current),
                             "asking for the current context"));
    *pushed = current != cuda->primary;
    return *pushed ? dgi_driver_check(&cuda->driver, cuda->driver.cuCtxPushCurrent(cuda->primary),
                                      "making the device's context current")
                   : DG_OK;
}

dg_status dgi_cuda_leave(dgi_cuda *cuda, bool pushed, dg_status status)
{
    CUcontext popped;
    CUresult result = pushed ? cuda->driver.cuCtxPopCurrent(&popped) : CUDA_SUCCESS;
    return status != DG_OK
               ? status
               : dgi_driver_check(&cuda->driver, result, "restoring the caller's context");
}

static dg_status find_device(dgi_cuda *cuda, dg_device ordinal)
{
    const dgi_driver *driver = &cuda->driver;
    int count = 0, major = 0, minor = 0;
    DGI_TRY(dgi_driver_check(driver, driver->cuDeviceGetCount(&count), "counting CUDA devices"));
    if (ordinal >= count)
        return dgi_fail(DG_UNSUPPORTED_DEVICE, "device is %d, but this machine has %d CUDA devices",
                        ordinal, count);
    DGI_TRY(dgi_driver_check(driver, driver->cuDeviceGet(&cuda->device, ordinal), "cuDeviceGet"));
    const struct {
        CUdevice_attribute attribute;
        int *value;
    } facts[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &cuda->units},
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
        DGI_TRY(dgi_driver_check(
            driver, driver->cuDeviceGetAttribute(facts[i].value, facts[i].attribute, cuda->device),
            "asking for the device's properties"));
    DGI_TRY(dgi_driver_check(driver,
                             driver->cuDeviceGetName(cuda->name, sizeof cuda->name, cuda->device),
                             "asking for the device's name"));
    if (major != 9 || minor != 0)
        return dgi_fail(DG_UNSUPPORTED_DEVICE,
                        "device %d is a %s of compute capability %d.%d: this build has kernels for "
                        "9.0 (Hopper) only; use DG_CPU (-1)",
                        ordinal, cuda->name, major, minor);
    return DG_OK;
}

/* A context exists only on devices that run every CUDA kernel of the table. */
static dg_status check_usable(const char *name)
{
    if (dgi_sm90_find(name) >= 0 || dgi_decode_find(name) >= 0 ||
        dgi_sm90_grouped_find(name) >= 0 || dgi_grouped_few_find(name) >= 0)
        return DG_OK;
    return dgi_kernel_find(name) == NULL
               ? dgi_fail(DG_NOT_FOUND, "there is no kernel named %s", name)
               : dgi_fail(DG_UNSUPPORTED_DEVICE, "kernel %s is not for CUDA devices", name);
}

static dg_status open_device(dgi_cuda *cuda, dg_device ordinal, const dg_context_options *options)
{
    DGI_TRY(find_device(cuda, ordinal));
    const char *kernel = options->kernel;
    if (kernel != NULL)
        DGI_TRY(check_usable(kernel));
    cuda->forced_many = kernel != NULL ? dgi_sm90_find(kernel) : -1;
    cuda->forced_few = kernel != NULL ? dgi_decode_find(kernel) : -1;
    cuda->forced_grouped = kernel != NULL ? dgi_sm90_grouped_find(kernel) : -1;
    cuda->forced_grouped_few = kernel != NULL ? dgi_grouped_few_find(kernel) : -1;
    cuda->batch_invariant = options->batch_invariant;
    cuda->dependent_launch = !options->serial_launch;
    DGI_TRY(dgi_driver_check(&cuda->driver,
                             cuda->driver.cuDevicePrimaryCtxRetain(&cuda->primary, cuda->device),
                             "opening the device"));
    bool pushed;
    dg_status status = dgi_cuda_enter(cuda, &pushed);
    if (status == DG_OK) {
        dgi_cuda_scratch_open(cuda);
        status = dgi_cuda_leave(cuda, pushed, DG_OK);
    }
    if (status != DG_OK)
        cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    return status;
}

static void release(dgi_cuda *cuda)
{
    pthread_mutex_destroy(&cuda->lock);
    dgi_driver_close(&cuda->driver);
    free(cuda);
}

static dg_status cuda_open(dg_context *context, const dg_context_options *options)
{
    dgi_cuda *cuda = calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for a CUDA context");
    dg_status status = dgi_driver_open(&cuda->driver, context->device);
    if (status != DG_OK) {
        free(cuda);
        return status;
    }
    pthread_mutex_init(&cuda->lock, NULL);
    status = open_device(cuda, context->device, options);
    if (status != DG_OK) {
        release(cuda);
        return status;
    }
    context->state = cuda;
    return DG_OK;
}

static void cuda_close(dg_context *context)
{
    dgi_cuda *cuda = context->state;
    bool pushed;
    if (dgi_cuda_enter(cuda, &pushed) == DG_OK) {
        dgi_cuda_unload(cuda);
        dgi_cuda_scratch_close(cuda);
        dgi_cuda_leave(cuda, pushed, DG_OK);
    }
    cuda->driver.cuDevicePrimaryCtxRelease(cuda->device);
    release(cuda);
}

static void cuda_device_info(const dg_context *context, dg_device_info *info)
{
    const dgi_cuda *cuda = context->state;
    *info = (dg_device_info){cuda->name, "sm_90a", cuda->units};
}

static dg_status cuda_kernel_usable(const dg_context *context, const char *name)
{
    (void)context;
    return check_usable(name);
}

/* ---- memory -------------------------------------------------------------------------- */

static dg_status cuda_memory_alloc(dg_context *context, size_t bytes, void **memory)
{
    dgi_cuda *cuda = context->state;
    CUdeviceptr address = 0;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    char what[64];
    snprintf(what, sizeof what, "allocating %zu bytes of device memory", bytes);
    dg_status status =
        dgi_driver_check(&cuda->driver, cuda->driver.cuMemAlloc(&address, bytes), what);
    *memory = (void *)(uintptr_t)address;
    return dgi_cuda_leave(cuda, pushed, status);
}

static dg_status cuda_memory_free(dg_context *context, void *memory)
{
    dgi_cuda *cuda = context->state;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    dgi_cuda_forget_pointers(cuda);
    dg_status status =
        dgi_driver_check(&cuda->driver, cuda->driver.cuMemFree((CUdeviceptr)(uintptr_t)memory),
                         "releasing device memory");
    return dgi_cuda_leave(cuda, pushed, status);
}

/* The driver finds out from the addresses which way to copy. */
static dg_status cuda_memory_copy(dg_context *context, void *target, const void *source,
                                  size_t bytes, dg_copy_kind kind, void *stream)
{
    (void)kind;
    dgi_cuda *cuda = context->state;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    CUresult result = cuda->driver.cuMemcpyAsync((CUdeviceptr)(uintptr_t)target,
                                                 (CUdeviceptr)(uintptr_t)source, bytes, stream);
    return dgi_cuda_leave(cuda, pushed, dgi_driver_check(&cuda->driver, result, "copying memory"));
}

static dg_status cuda_synchronize(dg_context *context, void *stream)
{
    dgi_cuda *cuda = context->state;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    CUresult result = cuda->driver.cuStreamSynchronize(stream);
    return dgi_cuda_leave(cuda, pushed,
                          dgi_driver_check(&cuda->driver, result, "waiting for the stream"));
}

/* ---- scales ---------------------------------------------------------------------------- */

dgi_device_scale dgi_device_scale_of(const dg_scale *scale, int32_t unit)
{
    const bool varies = scale->cols > 1 && scale->block_cols != 0;
    return (dgi_device_scale){
        .data = scale->data,
        .row_stride = scale->row_stride,
        .col_stride = scale->col_stride,
        .block_rows = scale->block_rows,
        .row_phase = scale->row_phase,
        .block_cols = varies ? scale->block_cols / unit : 0,
        .col_phase = varies ? scale->col_phase / unit : 0,
        .dtype = scale->dtype,
    };
}

dg_status dgi_cuda_check_scale(const dg_scale *scale, const char *name)
{
    const int64_t most = INT32_MAX / 4; /* elements, so that byte offsets fit 32 bits */
    int64_t span = 0;
    if (scale->rows > 1)
        span += (scale->rows - 1) * scale->row_stride;
    if (scale->cols > 1)
        span += (scale->cols - 1) * scale->col_stride;
    if (span > most)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s spans %lld elements: on CUDA devices up to %lld are supported", name,
                        (long long)span, (long long)most);
    return DG_OK;
}

const dgi_backend dgi_backend_cuda = {
    .name = "cuda",
    .open = cuda_open,
    .close = cuda_close,
    .device_info = cuda_device_info,
    .kernel_usable = cuda_kernel_usable,
    .memory_alloc = cuda_memory_alloc,
    .memory_free = cuda_memory_free,
    .memory_copy = cuda_memory_copy,
    .synchronize = cuda_synchronize,
    .gemm = dgi_cuda_gemm,
    .gemm_workspace = dgi_cuda_gemm_workspace,
    .gemm_prepare = dgi_cuda_gemm_prepare,
    .gemm_explain = dgi_cuda_gemm_explain,
    .quantize = dgi_cuda_quantize,
    .dequantize = dgi_cuda_dequantize,
    .weights_bytes = dgi_cuda_weights_bytes,
    .weights_pack = dgi_cuda_weights_pack,
    .weights_unpack = dgi_cuda_weights_unpack,
    .grouped = dgi_cuda_grouped,
    .grouped_prepare = dgi_cuda_grouped_prepare,
    .grouped_explain = dgi_cuda_grouped_explain,
    .table_open = dgi_cuda_table_open,
    .table_close = dgi_cuda_table_close,
    .table_update = dgi_cuda_table_update,
    .table_update_device = dgi_cuda_table_update_device,
    .table_run = dgi_cuda_table_run,
    .table_explain = dgi_cuda_table_explain,
};
