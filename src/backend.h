/* SPDX-License-Identifier: MIT */
/*
 * The seam between the front (src/api/) and the backends.
 *
 * The front checks every argument once and knows no backend's details; a backend trusts what the
 * front has checked. What a backend may rely on:
 *
 *  - every struct is complete (fields that an older caller did not have are zero);
 *  - types and shapes agree, scale arrays have exactly the needed shape, phases are in range,
 *    sizes in bytes fit an int64_t, D overlaps nothing but an identical C;
 *  - M and N are not 0 (the front returns at once); K may be 0;
 *  - pointers of non-empty operands are not NULL; UE8M0 dynamic scales come with a rounding mode.
 *
 * A backend reports failures through dgi_fail() and leaves the caller's outputs alone when it does.
 */
#ifndef DGI_BACKEND_H
#define DGI_BACKEND_H

#include "core/status.h"
#include "deepgemm.h"

#include <stdio.h>

typedef struct dgi_backend {
    const char *name; /* "cpu", "cuda" */

    /* Fills context->state. `options` is complete, never NULL. */
    dg_status (*open)(dg_context *context, const dg_context_options *options);
    void (*close)(dg_context *context);
    void (*device_info)(const dg_context *context, dg_device_info *info);
    dg_status (*kernel_usable)(const dg_context *context, const char *name);

    dg_status (*memory_alloc)(dg_context *context, size_t bytes, void **memory);
    dg_status (*memory_free)(dg_context *context, void *memory);
    dg_status (*memory_copy)(dg_context *context, void *target, const void *source, size_t bytes,
                             dg_copy_kind kind, void *stream);
    dg_status (*synchronize)(dg_context *context, void *stream);

    dg_status (*gemm)(dg_context *context, const dg_gemm *gemm, void *stream);
    dg_status (*gemm_workspace)(dg_context *context, const dg_gemm *gemm, size_t *bytes);
    dg_status (*gemm_prepare)(dg_context *context, const dg_gemm *gemm);
    /* The lines of dg_gemm_explain. */
    dg_status (*gemm_explain)(dg_context *context, const dg_gemm *gemm, FILE *text);

    dg_status (*quantize)(dg_context *context, const dg_quantize *quantize, void *stream);
    dg_status (*dequantize)(dg_context *context, const dg_dequantize *dequantize, void *stream);

    dg_status (*weights_bytes)(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                               size_t *bytes);
    /* `weights` has its public facts filled in and weights->data pointing at enough memory. */
    dg_status (*weights_pack)(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                              dg_weights *weights, void *stream);
    dg_status (*weights_unpack)(dg_context *context, const dg_weights *weights, const dg_matrix *b,
                                const dg_scale *scale_b, void *stream);

    /* Grouped products: N is not 0, there are groups or padding rows to zero. */
    dg_status (*grouped)(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                         void *stream);
    dg_status (*grouped_prepare)(dg_context *context, const dg_gemm *gemm, const dg_groups *groups);
    /* The lines of dg_grouped_explain; `sizes` is host memory or NULL. */
    dg_status (*grouped_explain)(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                                 const int32_t *sizes, FILE *text);
    /* Fills table->state; all else of the table is complete. */
    dg_status (*table_open)(dg_table *table);
    void (*table_close)(dg_table *table);
    dg_status (*table_update)(dg_table *table, void *stream);
    dg_status (*table_update_device)(dg_table *table, const dg_table_values *values, void *stream);
    dg_status (*table_run)(dg_table *table, void *stream);
    dg_status (*table_explain)(dg_table *table, FILE *text);
} dgi_backend;

extern const dgi_backend dgi_backend_cpu;
extern const dgi_backend dgi_backend_cuda; /* only in builds with DGI_WITH_CUDA */

struct dg_context {
    const dgi_backend *backend;
    dg_device device;
    void *state; /* the backend's own */
};

/*
 * Packed weights. The front fills in everything but the contents of `data`. `b.data` is NULL;
 * `scale` describes the granularity and phase, its data is NULL.
 */
struct dg_weights {
    const dgi_backend *backend;
    dg_device device;
    dg_matrix b;
    dg_scale scale;
    void *data; /* packed codes and scales, device memory, 256-byte aligned */
    size_t data_bytes;
    dg_context *owner; /* who frees data; NULL when the caller owns it */
};

/*
 * A table of problems: as they were set, each checked; all fields of one never set are zero.
 */
struct dg_table {
    dg_context *context;
    dg_gemm largest;
    int32_t problems;
    dg_gemm *set;
    void *state; /* the backend's own: what the device has */
};

#endif
