/* SPDX-License-Identifier: MIT */
/*
 * The FP8 sums of Hopper's tensor cores, bit for bit, as measured on an H200 (docs/numerics.md).
 * With it a GPU's results are compared as sharply as the CPU's.
 */
#ifndef TEST_TENSOR_CORES_H
#define TEST_TENSOR_CORES_H

#include "deepgemm.h"

/* `sum` and the products of up to 32 pairs of finite codes, as one instruction adds them up. */
double tensor_core_sum(double sum, const uint8_t *a, dg_dtype a_dtype, const uint8_t *b,
                       dg_dtype b_dtype, int64_t count);

/*
 * oracle_gemm() of oracle.h with the products of each `segment` of K added up by tensor cores, and
 * everything behind that in double precision. False when a scale changes inside a segment.
 */
bool tensor_core_gemm(const dg_gemm *gemm, int64_t segment, double *reference);

#endif
