/* SPDX-License-Identifier: MIT */
/*
 * The kernels' machine code: cubins that the build compiled, embedded here, and loaded into a
 * context when they are first used.
 */
#include "cuda/context.h"

#include "cuda/device/decode_args.h"
#include "cuda/device/grouped_few_args.h"

/* DGI_CUBIN_DIR is where the build put them, set by the build. */
#define EMBED(kernel)                                                                              \
    __asm__(".pushsection .rodata\n"                                                               \
            ".balign 64\n"                                                                         \
            ".hidden dgi_cubin_" #kernel "\n"                                                      \
            ".global dgi_cubin_" #kernel "\n"                                                      \
            "dgi_cubin_" #kernel ":\n"                                                             \
            ".incbin \"" DGI_CUBIN_DIR "/" #kernel ".cubin\"\n"                                    \
            ".popsection\n");                                                                      \
    extern const unsigned char dgi_cubin_##kernel[];

#define DGI_SM90(kernel, ...) EMBED(kernel)
#include "core/kernels_sm90.def"
#include "core/kernels_sm90_grouped.def"
#undef DGI_SM90
#define DGI_SM90_DECODE(kernel, ...) EMBED(kernel)
#include "core/kernels_sm90_decode.def"
#include "core/kernels_sm90_grouped_few.def"
#undef DGI_SM90_DECODE
DGI_SMALL_FILES(EMBED)

/* In the order of their numbers, see context.h. */
#define CUBIN(kernel, file)          dgi_cubin_##file,
#define NAME(kernel, file)           #kernel,
#define DGI_SM90(kernel, ...)        CUBIN(kernel, kernel)
#define DGI_SM90_DECODE(kernel, ...) CUBIN(kernel, kernel)
static const unsigned char *const cubins[DGI_ALL_KERNELS] = {
#include "core/kernels_sm90.def"
#include "core/kernels_sm90_decode.def"
#include "core/kernels_sm90_grouped.def"
#include "core/kernels_sm90_grouped_few.def"
    DGI_SMALL_KERNELS(CUBIN)};
static const char *const small_names[] = {DGI_SMALL_KERNELS(NAME)};

/*
 * Another thread may be capturing a stream in a mode in which no thread may load code; for this
 * thread the ban is lifted meanwhile, since loading has no part in what is captured.
 */
static CUresult load_module(const dgi_driver *driver, const unsigned char *cubin, CUmodule *module)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    const CUresult result = driver->cuModuleLoadData(module, cubin);
    driver->cuThreadExchangeStreamCaptureMode(&mode);
    return result;
}

static dg_status load(dgi_cuda *cuda, dgi_loaded_kernel *kernel, const unsigned char *cubin,
                      const char *name, int shared_bytes)
{
    dgi_loaded_kernel loaded;
    CUresult result = load_module(&cuda->driver, cubin, &loaded.module);
    if (result == CUDA_ERROR_INVALID_IMAGE || result == CUDA_ERROR_NO_BINARY_FOR_GPU)
        return dgi_fail(DG_UNSUPPORTED_DEVICE,
                        "the CUDA driver cannot load %s: its code is for drivers of CUDA %d.0 or "
                        "newer",
                        name, CUDA_VERSION / 1000);
    DGI_TRY(dgi_driver_check(&cuda->driver, result, name));
    result = cuda->driver.cuModuleGetFunction(&loaded.function, loaded.module, name);
    if (result == CUDA_SUCCESS && shared_bytes > 0)
        result = cuda->driver.cuFuncSetAttribute(
            loaded.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes);
    if (result == CUDA_SUCCESS && shared_bytes > 0) /* clusters of 16 */
        result = cuda->driver.cuFuncSetAttribute(
            loaded.function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
    if (result == CUDA_SUCCESS && shared_bytes > 0) /* two kernels on one multiprocessor */
        result = cuda->driver.cuFuncSetAttribute(loaded.function,
                                                 CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                                                 CU_SHAREDMEM_CARVEOUT_MAX_SHARED);
    if (result != CUDA_SUCCESS) {
        cuda->driver.cuModuleUnload(loaded.module);
        return dgi_driver_check(&cuda->driver, result, name);
    }
    kernel->module = loaded.module;
    __atomic_store_n(&kernel->function, loaded.function, __ATOMIC_RELEASE); /* see find() */
    return DG_OK;
}

dg_status dgi_cuda_is_captured(dgi_cuda *cuda, CUstream stream, bool *captured)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (stream != NULL) /* the default stream never is */
        DGI_TRY(dgi_driver_check(&cuda->driver, cuda->driver.cuStreamIsCapturing(stream, &status),
                                 "asking whether the stream is captured"));
    *captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
    return DG_OK;
}

/* Loads the kernel of that number unless it is loaded already. */
static dg_status find(dgi_cuda *cuda, int32_t number, const char *name, int shared_bytes,
                      CUstream stream, CUfunction *function)
{
    dgi_loaded_kernel *kernel = &cuda->kernels[number];
    dg_status status = DG_OK;
    *function = __atomic_load_n(&kernel->function, __ATOMIC_ACQUIRE);
    if (*function != NULL) /* the usual case takes no lock */
        return DG_OK;
    pthread_mutex_lock(&cuda->lock);
    if (kernel->function == NULL) {
        bool captured;
        status = dgi_cuda_is_captured(cuda, stream, &captured);
        if (status == DG_OK && captured)
            status = dgi_fail(DG_NOT_PREPARED,
                              "%s is not loaded, and cannot be while the stream is captured: call "
                              "dg_gemm_prepare() or dg_grouped_prepare(), or make the same call "
                              "once, before the capture",
                              name);
        if (status == DG_OK)
            status = load(cuda, kernel, cubins[number], name, shared_bytes);
    }
    *function = kernel->function;
    pthread_mutex_unlock(&cuda->lock);
    return status;
}

int dgi_cuda_shared_bytes(const dgi_sm90_kernel *row)
{
    return DGI_SHARED_BYTES(row->tile_m, row->tile_n, row->groups, row->stages, row->promote_k,
                            row->span, row->rows);
}

int dgi_cuda_grouped_shared_bytes(const dgi_sm90_kernel *row)
{
    return dgi_cuda_shared_bytes(row) + DGI_WARP_WALKS_BYTES(row->groups);
}

dg_status dgi_cuda_kernel(dgi_cuda *cuda, int32_t index, CUstream stream, CUfunction *function)
{
    const dgi_sm90_kernel *row = &dgi_sm90_kernels[index];
    return find(cuda, DGI_FIRST_MANY + index, row->name, dgi_cuda_shared_bytes(row), stream,
                function);
}

dg_status dgi_cuda_grouped_kernel(dgi_cuda *cuda, int32_t index, CUstream stream,
                                  CUfunction *function)
{
    const dgi_sm90_kernel *row = &dgi_sm90_grouped_kernels[index];
    return find(cuda, DGI_FIRST_GROUPED + index, row->name, dgi_cuda_grouped_shared_bytes(row),
                stream, function);
}

dg_status dgi_cuda_decode_kernel(dgi_cuda *cuda, int32_t index, CUstream stream,
                                 CUfunction *function)
{
    const dgi_decode_kernel *row = &dgi_decode_kernels[index];
    int bytes = DGI_DECODE_SHARED_BYTES(row->tokens, row->stages, row->scale_k);
    return find(cuda, DGI_FIRST_FEW + index, row->name, bytes, stream, function);
}

dg_status dgi_cuda_grouped_few_kernel(dgi_cuda *cuda, int32_t index, CUstream stream,
                                      CUfunction *function)
{
    const dgi_decode_kernel *row = &dgi_grouped_few_kernels[index];
    int bytes = DGI_GROUPED_FEW_SHARED_BYTES(row->tokens, row->stages, row->scale_k);
    return find(cuda, DGI_FIRST_GROUPED_FEW + index, row->name, bytes, stream, function);
}

dg_status dgi_cuda_small_kernel(dgi_cuda *cuda, dgi_small_kernel kernel, CUstream stream,
                                CUfunction *function)
{
    return find(cuda, DGI_FIRST_SMALL + (int32_t)kernel, small_names[kernel], 0, stream, function);
}

dg_status dgi_cuda_launch(dgi_cuda *cuda, const char *name, CUfunction function,
                          const CUlaunchConfig *config, void *args)
{
    if (config->gridDimX == 0) /* nothing to do, which the driver calls an error */
        return DG_OK;
    void *parameters[] = {args};
    CUresult result = cuda->driver.cuLaunchKernelEx(config, function, parameters, NULL);
    if (result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_CONTEXT)
        return dgi_fail(DG_DEVICE_MISMATCH, "the stream at %p is not one of CUDA device %d",
                        (void *)config->hStream, cuda->device);
    return dgi_driver_check(&cuda->driver, result, name);
}

dg_status dgi_cuda_launch_blocks(dgi_cuda *cuda, dgi_small_kernel kernel, void *args,
                                 int64_t blocks, int32_t threads, CUstream stream)
{
    CUfunction function;
    DGI_TRY(dgi_cuda_small_kernel(cuda, kernel, stream, &function));
    CUlaunchConfig config = {
        .gridDimX = (unsigned)blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = (unsigned)threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .hStream = stream,
    };
    return dgi_cuda_launch(cuda, small_names[kernel], function, &config, args);
}

dg_status dgi_cuda_launch_small(dgi_cuda *cuda, dgi_small_kernel kernel, void *args, int64_t items,
                                CUstream stream)
{
    const int64_t most = (int64_t)cuda->units * 16; /* blocks; a kernel loops over what is left */
    const int64_t blocks = (items + DGI_SMALL_THREADS - 1) / DGI_SMALL_THREADS;
    return dgi_cuda_launch_blocks(cuda, kernel, args, blocks < most ? blocks : most,
                                  DGI_SMALL_THREADS, stream);
}

void dgi_cuda_unload(dgi_cuda *cuda)
{
    for (int32_t i = 0; i < DGI_ALL_KERNELS; i++)
        if (cuda->kernels[i].function != NULL)
            cuda->driver.cuModuleUnload(cuda->kernels[i].module);
}
