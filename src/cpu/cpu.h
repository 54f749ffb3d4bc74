/* SPDX-License-Identifier: MIT */
/* What the files of the CPU backend share. */
#ifndef DGI_CPU_H
#define DGI_CPU_H

#include "backend.h"

typedef struct dgi_cpu {
    int threads;
} dgi_cpu;

dg_status dgi_cpu_gemm(dg_context *context, const dg_gemm *gemm, void *stream);
dg_status dgi_cpu_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes);
dg_status dgi_cpu_gemm_prepare(dg_context *context, const dg_gemm *gemm);
dg_status dgi_cpu_gemm_explain(dg_context *context, const dg_gemm *gemm, char *text,
                               size_t *text_bytes);
dg_status dgi_cpu_quantize(dg_context *context, const dg_quantize *quantize, void *stream);
dg_status dgi_cpu_dequantize(dg_context *context, const dg_dequantize *dequantize, void *stream);
dg_status dgi_cpu_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                size_t *bytes);
dg_status dgi_cpu_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                               dg_weights *weights, void *stream);
dg_status dgi_cpu_weights_unpack(dg_context *context, const dg_weights *weights, const dg_matrix *b,
                                 const dg_scale *scale_b, void *stream);

#endif
