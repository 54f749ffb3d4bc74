/* SPDX-License-Identifier: MIT */
/* Choosing a Hopper kernel for grouped products: pure C, no CUDA. */
#ifndef DGI_PLAN_GROUPED_SM90_H
#define DGI_PLAN_GROUPED_SM90_H

#include "core/plan_sm90.h"

extern const dgi_sm90_kernel dgi_sm90_grouped_kernels[];
extern const int32_t dgi_sm90_grouped_kernel_count;

/*
 * The kernel for `products` products of like kind: their types and scales are those of `gemm`,
 * their typical size is M `rows`, and N and K of `gemm`. Fails with DG_UNSUPPORTED_... when none
 * can run.
 */
dg_status dgi_sm90_choose_grouped(const dg_gemm *gemm, int64_t products, int64_t rows,
                                  int32_t units, int32_t *index);

#endif
