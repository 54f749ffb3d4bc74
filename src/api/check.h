/* SPDX-License-Identifier: MIT */
/* The argument checks of the front. Each gives DG_OK or a status with a message; none writes. */
#ifndef DGI_CHECK_H
#define DGI_CHECK_H

#include "backend.h"

/*
 * Completes a caller's struct that begins with `struct_bytes`: copies what an older caller has and
 * leaves the rest of *complete as it is. `complete_bytes` is its size in this library,
 * `least_bytes` its size in the first release.
 */
dg_status dgi_take(void *complete, size_t complete_bytes, size_t least_bytes, const void *given,
                   const char *name);
/* The same of the struct that describes a product, from its defaults on. */
dg_status dgi_take_gemm(dg_gemm *complete, const dg_gemm *given, const char *name);

dg_status dgi_check_context(const dg_context *context);
/* The same for work that only the CPU does; `work`: "scales are chosen". */
dg_status dgi_check_cpu_context(const dg_context *context, const char *work);
dg_status dgi_check_gemm(const dg_gemm *gemm, const dg_context *context);
/* The caller's workspace, of which the call uses `need` bytes. */
dg_status dgi_check_workspace(const dg_gemm *gemm, size_t need);
/*
 * The part of dgi_check_gemm that looks at each operand alone, where D (and C, and scale_d) have
 * `d_rows` rows; without `need_data` addresses are not looked at.
 */
dg_status dgi_check_product(const dg_gemm *gemm, int64_t d_rows, bool need_data,
                            const dg_context *context);
/* check_grouped.c */
dg_status dgi_check_groups(const dg_gemm *gemm, const dg_groups *groups, const dg_context *context);
dg_status dgi_check_table_problem(const dg_gemm *gemm, const dg_gemm *largest,
                                  const dg_context *context);
dg_status dgi_check_table_values(const dg_table_values *values);
dg_status dgi_check_quantize(const dg_quantize *quantize);
dg_status dgi_check_dequantize(const dg_dequantize *dequantize);
/* B and its scales for packing; `need_data` is false where only the size is asked for. */
dg_status dgi_check_weights(const dg_matrix *b, const dg_scale *scale_b, bool need_data);
dg_status dgi_check_comparison(const dg_matrix *reference, const dg_matrix *result);
/* A matrix in F32, F16 or BF16. */
dg_status dgi_check_wide(const dg_matrix *matrix, const char *name);
/* Scales of a matrix of that shape; `written` when each needs a place of its own. */
dg_status dgi_check_scale(const dg_scale *scale, int64_t rows, int64_t cols, bool written);
/* Completes a choice of scales, NULL for the default, that may be written as `scale_dtype`. */
dg_status dgi_take_choice(dg_scale_choice *complete, const dg_scale_choice *given,
                          dg_dtype scale_dtype);
/* The same where they are written, from `weights`. */
dg_status dgi_check_unpack(const dg_context *context, const dg_weights *weights, const dg_matrix *b,
                           const dg_scale *scale_b);

#endif
