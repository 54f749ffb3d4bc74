/* SPDX-License-Identifier: MIT */
/*
 * Choosing a Hopper kernel for a GEMM: pure C, no CUDA. Used by the CUDA backend and tested on the
 * CPU.
 */
#ifndef DGI_PLAN_SM90_H
#define DGI_PLAN_SM90_H

#include "deepgemm.h"

/* A row of kernels_sm90.def. What each constant does is described in cuda/device/gemm_dense.cu. */
typedef struct dgi_sm90_kernel {
    const char *name;
    dg_dtype a, b;
    int32_t tile_m, tile_n, groups, cluster, stages, promote_k, span, rows;
    int32_t cycles; /* of one stage of one tile, measured: see tuning_sm90.h */
} dgi_sm90_kernel;

extern const dgi_sm90_kernel dgi_sm90_kernels[];
extern const int32_t dgi_sm90_kernel_count;

typedef struct dgi_sm90_plan {
    int32_t kernel;               /* index in dgi_sm90_kernels             */
    int32_t tile_rows, tile_cols; /* see gemm_args.h                       */
    int32_t band;                 /* see tile_order.h                      */
    int32_t ctas;                 /* launched, a multiple of the cluster   */
    double cycles;                /* predicted                             */
} dgi_sm90_plan;

/*
 * Plans the GEMM on a GPU of `units` multiprocessors with the kernel that the cost model finds
 * fastest; when `invariant`, of those that add up like the kernels for few tokens, where there are
 * any. M and N are not 0. Fails with DG_UNSUPPORTED_... when no kernel can run it.
 */
dg_status dgi_sm90_choose(const dg_gemm *gemm, int32_t units, bool invariant, dgi_sm90_plan *plan);

/* The plan with one kernel. DG_OK, or why that kernel cannot run the GEMM. */
dg_status dgi_sm90_plan_with(const dg_gemm *gemm, int32_t units, int32_t kernel,
                             dgi_sm90_plan *plan);

/* DG_OK, or why the kernel cannot take these types, scales and sizes. */
dg_status dgi_sm90_accepts(const dgi_sm90_kernel *kernel, const dg_gemm *gemm);
/* The same without words, for a search. */
bool dgi_sm90_can_run(const dgi_sm90_kernel *kernel, const dg_gemm *gemm);

/*
 * Whether the kernel adds up in the order that all kernels for these scales keep to in
 * batch-invariant mode: those for few tokens promote each 128 of K, or each 32 where scales change
 * within, and scales act in the epilogue only where they are constant along K. Types that have no
 * such kernel have only one for all scales.
 */
bool dgi_sm90_is_invariant(const dgi_sm90_kernel *kernel, const dg_gemm *gemm);

/* The row of that name, or -1. */
int32_t dgi_sm90_find(const char *name);

#endif
