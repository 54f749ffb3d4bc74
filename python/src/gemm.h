/* SPDX-License-Identifier: MIT */
/* The arguments of _C.gemm, for gemm.c and grouped.c. */
#ifndef DGP_GEMM_H
#define DGP_GEMM_H

#include "extension.h"

/* The array operands. A comes first: it says which library makes the result. */
enum { A, B, SCALE_A, SCALE_B, OUT, C, BIAS, SCALE_OUT, WORKSPACE, OPERANDS };
_Static_assert((int)OPERANDS == (int)DGP_GEMM_OPERANDS, "the size of dgp_gemm_call.operands");

/* The other arguments, behind them. */
enum {
    GRANULARITY = OPERANDS, /* ((rows, cols) of A, (rows, cols) of B) */
    PHASE_A,
    PHASE_B,
    OUT_GRANULARITY,
    OUT_DTYPE,
    ALPHA,
    BETA,
    ACCUMULATION,
    CONTEXT,
    STREAM,
    ARGUMENTS,          /* so many describe one product */
    GROUPS = ARGUMENTS, /* None or a deepgemm.Groups */
    B_IS_CONSTANT,
    MODE, /* one of the following */
    GEMM_ARGUMENTS
};
_Static_assert((int)ARGUMENTS == (int)DGP_GEMM_ARGUMENTS, "what dgp_gemm_begin() takes");
enum { RUN, PREPARE, EXPLAIN, WORKSPACE_BYTES };

/* What one scale of each operand covers, and where in its block an operand begins. */
typedef struct dgp_blocks {
    int32_t a[2], b[2], out[2], phase_a[2], phase_b[2];
} dgp_blocks;
int dgp_gemm_blocks(PyObject *const *args, dgp_blocks *blocks);
/* Alpha, beta and the accumulation. */
int dgp_gemm_options(PyObject *const *args, dg_gemm *gemm);

/* The products of GROUPS. */
PyObject *dgp_grouped(PyObject *const *args, long mode);

#endif
