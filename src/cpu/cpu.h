/* SPDX-License-Identifier: MIT */
/* What the files of the CPU backend share. */
#ifndef DGI_CPU_H
#define DGI_CPU_H

#include "backend.h"
#include "core/kernels.h"
#include "cpu/kernel.h"
#include "cpu/workspace.h"

#include <stdio.h>

/* The instruction sets in the order in which each includes the ones before it. */
typedef enum dgi_isa {
    DGI_ISA_GENERIC = 0,
    DGI_ISA_AVX2,
    DGI_ISA_AVX512,
    DGI_ISA_AVX512_BF16
} dgi_isa;

typedef struct dgi_cpu {
    int threads;
    dgi_isa isa; /* the widest that the machine has and the options allow */
    const dg_kernel_info *info;
    const dgi_cpu_kernel *kernel;
    dgi_workspaces workspaces;
    char name[64]; /* the processor's */
} dgi_cpu;

/* dispatch.c: which instructions and which kernel a context uses. */
dg_status dgi_cpu_choose(dgi_cpu *cpu, const dg_context_options *options);
dg_status dgi_cpu_kernel_usable(const dg_context *context, const char *name);
const char *dgi_isa_name(dgi_isa isa);
/* Prints the chosen kernel, and why each one before it in the table was refused. */
void dgi_cpu_explain_choice(const dgi_cpu *cpu, FILE *text);

/* gemm.c */
dg_status dgi_cpu_gemm(dg_context *context, const dg_gemm *gemm, void *stream);
dg_status dgi_cpu_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes);
dg_status dgi_cpu_gemm_prepare(dg_context *context, const dg_gemm *gemm);
dg_status dgi_cpu_gemm_explain(dg_context *context, const dg_gemm *gemm, FILE *text);

/* grouped.c */
dg_status dgi_cpu_grouped(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                          void *stream);
dg_status dgi_cpu_grouped_prepare(dg_context *context, const dg_gemm *gemm,
                                  const dg_groups *groups);
dg_status dgi_cpu_grouped_explain(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                                  const int32_t *sizes, FILE *text);
/* Computes `count` GEMMs as one call; those without a D are none. */
dg_status dgi_cpu_many(dgi_cpu *cpu, const dg_gemm *gemms, int32_t count);
dg_status dgi_cpu_explain_many(dgi_cpu *cpu, const dg_gemm *gemms, int32_t count, FILE *text);

/* table.c */
dg_status dgi_cpu_table_open(dg_table *table);
void dgi_cpu_table_close(dg_table *table);
dg_status dgi_cpu_table_update(dg_table *table, void *stream);
dg_status dgi_cpu_table_update_device(dg_table *table, const dg_table_values *values, void *stream);
dg_status dgi_cpu_table_run(dg_table *table, void *stream);
dg_status dgi_cpu_table_explain(dg_table *table, FILE *text);

/* quantize.c */
dg_status dgi_cpu_quantize(dg_context *context, const dg_quantize *quantize, void *stream);
dg_status dgi_cpu_dequantize(dg_context *context, const dg_dequantize *dequantize, void *stream);

/* weights.c */
dg_status dgi_cpu_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                size_t *bytes);
dg_status dgi_cpu_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                               dg_weights *weights, void *stream);
dg_status dgi_cpu_weights_unpack(dg_context *context, const dg_weights *weights, const dg_matrix *b,
                                 const dg_scale *scale_b, void *stream);
/* Where packed scales lie: a view of them that reads like any other scale. */
dg_scale dgi_cpu_packed_scale(const dg_weights *weights);
/* The inverse of dgi_cpu_kernel.pack for elements first to first + length of a panel's lines. */
void dgi_cpu_unpack(const uint8_t *lines, int64_t stride, int64_t first, int64_t length,
                    int64_t rows, uint8_t *codes, int64_t ld);

#endif
