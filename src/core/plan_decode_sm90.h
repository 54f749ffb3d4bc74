/* SPDX-License-Identifier: MIT */
/*
 * Choosing a Hopper kernel for a GEMM with few tokens, whose time is that of reading B: pure C, no
 * CUDA. Used by the CUDA backend and tested on the CPU.
 */
#ifndef DGI_PLAN_DECODE_SM90_H
#define DGI_PLAN_DECODE_SM90_H

#include "core/plan_sm90.h"

enum { DGI_MOST_FEW = 128 }; /* rows of A that the kernels for few tokens take at most */

/* A row of kernels_sm90_decode.def; see cuda/device/gemm_decode.cu. */
typedef struct dgi_decode_kernel {
    const char *name;
    dg_dtype a, b;
    int32_t tokens;  /* rows of A that a CTA takes at most                       */
    int32_t stages;  /* of the ring                                              */
    int32_t scale_k; /* K that shares a scale: 128, 32, or 0 for all of it       */
} dgi_decode_kernel;

extern const dgi_decode_kernel dgi_decode_kernels[];
extern const int32_t dgi_decode_kernel_count;

typedef struct dgi_decode_plan {
    int32_t kernel;      /* index in dgi_decode_kernels                          */
    int32_t tiles;       /* of 128 rows of B                                     */
    int32_t token_tiles; /* 1 or 2, each computed by as many clusters            */
    int32_t split;       /* CTAs of a cluster, a power of two: each a part of K  */
    int32_t clusters;    /* for each of them: takes tile c, c + clusters, ...    */
    double cycles;       /* predicted                                            */
} dgi_decode_plan;

/*
 * Plans the GEMM on a GPU of `units` multiprocessors, with the kernel that is predicted to be the
 * fastest, of equal ones the first; false when none can run it. M and N are not 0. Without
 * `may_split` K is not split, so that a row of D has the same bits whatever M is. Whether B is
 * packed has no influence.
 */
bool dgi_decode_choose(const dg_gemm *gemm, int32_t units, bool may_split, dgi_decode_plan *plan);

/* The plan with one kernel. DG_OK, or why that kernel cannot run the GEMM. */
dg_status dgi_decode_plan_with(const dg_gemm *gemm, int32_t units, bool may_split, int32_t kernel,
                               dgi_decode_plan *plan);

/* DG_OK, or why the kernel cannot take these types, scales and sizes; and without words. */
dg_status dgi_decode_accepts(const dgi_decode_kernel *kernel, const dg_gemm *gemm);
bool dgi_decode_can_run(const dgi_decode_kernel *kernel, const dg_gemm *gemm);

/* The most CTAs for all of `tokens`, `split` to a cluster, that run at the same time. */
int32_t dgi_decode_most_ctas(int32_t tokens, int32_t units, int32_t split);

/* Whether a plan is faster than one of the kernels for many tokens, as far as is predicted. */
bool dgi_decode_is_faster(const dgi_decode_plan *few, const dgi_sm90_plan *many);

/* The row of that name, or -1. */
int32_t dgi_decode_find(const char *name);

#endif
