/* SPDX-License-Identifier: MIT */
/*
 * The oracle: what a GEMM should give, in double precision over the dequantised operands. It is
 * the only reference of the tests, and slow on purpose: it can be checked by eye.
 */
#ifndef TEST_ORACLE_H
#define TEST_ORACLE_H

#include "deepgemm.h"

/* The multiplier of matrix element (row, col), as the header defines it. */
double oracle_scale(const dg_scale *scale, int64_t row, int64_t col);

/* Dequantises a matrix into a contiguous rows x cols array; no scale (DG_NONE) means 1. */
void oracle_dequantize(const dg_matrix *matrix, const dg_scale *scale, double *values);

/*
 * `reference` and `magnitude` are contiguous M x N arrays. `reference` is the result before it is
 * narrowed to D's type (for an FP8 result after the division by its scale). `magnitude` is the same
 * sum over absolute values: what rounding errors are compared with. The operands are given as a, b
 * and scales in host memory, not as packed weights.
 */
void oracle_gemm(const dg_gemm *gemm, double *reference, double *magnitude);
/* The same for many products with one B, dequantised once: a contiguous N x K array. */
void oracle_gemm_of(const dg_gemm *gemm, const double *b, double *reference, double *magnitude);

/* What becomes of element (row, col)'s sum of scaled products: alpha, beta C, bias, D's scale. */
double oracle_finish(const dg_gemm *gemm, int64_t row, int64_t col, double sum);

/* Half the distance between neighbouring numbers of that type at `value`. */
double oracle_half_ulp(dg_dtype dtype, double value);

/* Whether `out`, read from an array of that type, is `reference` but for an error of `tolerance`
 * before narrowing and the narrowing itself, which may overflow. */
bool oracle_close(double out, dg_dtype dtype, double reference, double tolerance);

#endif
