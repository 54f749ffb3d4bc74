/* SPDX-License-Identifier: MIT */
/* What the files of the CUDA backend share: the state of a context. */
#ifndef DGI_CUDA_CONTEXT_H
#define DGI_CUDA_CONTEXT_H

#include "backend.h"
#include "core/plan_sm90.h"
#include "cuda/device/small_args.h"
#include "cuda/driver.h"

#include <pthread.h>

/* The kernels beside the GEMMs. */
typedef enum dgi_small_kernel {
#define DGI_SMALL_ID(kernel, file) DGI_SMALL_##kernel,
    DGI_SMALL_KERNELS(DGI_SMALL_ID)
#undef DGI_SMALL_ID
        DGI_SMALL_COUNT
} dgi_small_kernel;

/* A kernel's code, loaded on its first use. */
typedef struct dgi_loaded_kernel {
    CUmodule module;
    CUfunction function; /* NULL until it is loaded */
} dgi_loaded_kernel;

typedef struct dgi_cuda {
    dgi_driver driver;
    CUdevice device;
    CUcontext primary; /* the device's primary context, retained */
    char name[96];
    int32_t units;
    char *forced_kernel;        /* dg_context_options.kernel, or NULL */
    pthread_mutex_t lock;       /* guards what follows */
    dgi_loaded_kernel *kernels; /* one for each row of kernels_sm90.def */
    dgi_loaded_kernel small[DGI_SMALL_COUNT];
} dgi_cuda;

/*
 * Makes the primary context current for this thread, and restores the caller's. Every use of the
 * driver lies between the two: DGI_TRY(dgi_cuda_enter(cuda)); ... return dgi_cuda_leave(cuda, s);
 */
dg_status dgi_cuda_enter(dgi_cuda *cuda);
/* Returns `status`, or the failure to restore. */
dg_status dgi_cuda_leave(dgi_cuda *cuda, dg_status status);

/*
 * The function of row `index` of the kernel table, or of a small kernel, loaded now when need be.
 * During a capture of `stream` nothing is loaded: DG_NOT_PREPARED.
 */
dg_status dgi_cuda_kernel(dgi_cuda *cuda, int32_t index, CUstream stream, CUfunction *function);
dg_status dgi_cuda_small_kernel(dgi_cuda *cuda, dgi_small_kernel kernel, CUstream stream,
                                CUfunction *function);
void dgi_cuda_unload(dgi_cuda *cuda);

/* Launches a small kernel. */
dg_status dgi_cuda_launch_blocks(dgi_cuda *cuda, dgi_small_kernel kernel, void *args,
                                 int64_t blocks, int32_t threads, CUstream stream);
/* The same with about one thread for each of `items`; what is left the kernel does in turns. */
dg_status dgi_cuda_launch_small(dgi_cuda *cuda, dgi_small_kernel kernel, void *args, int64_t items,
                                CUstream stream);

/* The scale for device code, which counts `unit` matrix columns as one. */
dgi_device_scale dgi_device_scale_of(const dg_scale *scale, int32_t unit);
/* Device code reads scales with 32-bit offsets; refuses an array that is too large for that. */
dg_status dgi_cuda_check_scale(const dg_scale *scale, const char *name);

dg_status dgi_cuda_quantize(dg_context *context, const dg_quantize *quantize, void *stream);
dg_status dgi_cuda_dequantize(dg_context *context, const dg_dequantize *dequantize, void *stream);
dg_status dgi_cuda_gemm(dg_context *context, const dg_gemm *gemm, void *stream);
dg_status dgi_cuda_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes);
dg_status dgi_cuda_gemm_prepare(dg_context *context, const dg_gemm *gemm);
dg_status dgi_cuda_gemm_explain(dg_context *context, const dg_gemm *gemm, char *text,
                                size_t *text_bytes);

/* grouped.c */
dg_status dgi_cuda_grouped(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                           void *stream);
dg_status dgi_cuda_grouped_prepare(dg_context *context, const dg_gemm *gemm,
                                   const dg_groups *groups);
dg_status dgi_cuda_table_open(dg_table *table);
void dgi_cuda_table_close(dg_table *table);
dg_status dgi_cuda_table_update(dg_table *table, void *stream);
dg_status dgi_cuda_table_update_device(dg_table *table, const dg_table_values *values,
                                       void *stream);
dg_status dgi_cuda_table_run(dg_table *table, void *stream);

#endif
