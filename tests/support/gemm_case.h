/* SPDX-License-Identifier: MIT */
/*
 * A GEMM under test. A test describes it as a dg_gemm without data (shapes, types, leading
 * dimensions, scales, alpha, beta); a case adds memory and random data, runs it and compares the
 * result with the oracle.
 *
 * Operands end (or begin) at a guard page. What lies between their rows is filled with NaN in
 * inputs, so that reading it shows, and with a pattern in D, so that writing it shows. D's own
 * elements begin as NaN.
 */
#ifndef TEST_GEMM_CASE_H
#define TEST_GEMM_CASE_H

#include "deepgemm.h"
#include "guard.h"
#include "random.h"

/* The granularities of the formats in use. */
typedef struct recipe {
    const char *name;
    int32_t a_rows, a_cols, b_rows, b_cols;
    dg_dtype scale;
} recipe;
extern const recipe recipes[];
extern const int recipe_count;
/* The recipe of that name; the test fails when there is none. */
const recipe *recipe_named(const char *name);

/* Contiguous E4M3 operands and a result of that type, no data. */
dg_gemm gemm_of(const recipe *recipe, int64_t m, int64_t n, int64_t k, dg_dtype d);
/*
 * Any GEMM: sizes of 1 to `largest`, any types, a recipe or granularities of no recipe, phases,
 * padded and transposed scales, padded rows, alpha, beta, C and bias, no data.
 */
dg_gemm gemm_random(rng *r, int64_t largest);
/* A scale description for a matrix of that shape, contiguous, no data. */
dg_scale scale_of(dg_dtype dtype, int64_t rows, int64_t cols, int32_t block_rows,
                  int32_t block_cols, int32_t row_phase, int32_t col_phase);

/* The part of a GEMM that gives rows x cols of D from (row, col) on, as a GEMM of its own. */
dg_gemm gemm_part(const dg_gemm *whole, int64_t row, int64_t rows, int64_t col, int64_t cols);

typedef struct gemm_case {
    dg_gemm gemm; /* complete, in host memory, with b and scale_b */
    guard a, b, c, d, scale_a, scale_b, scale_d, bias;
    guard d_before;   /* D's memory as it was before the call */
    dg_device device; /* whose rules judge D: those of gemm_case_run's, otherwise the CPU's */
    double *reference, *magnitude;
} gemm_case;

typedef enum gemm_case_options {
    CASE_PLAIN = 0,
    CASE_IN_PLACE = 1 /* C is D itself; the description's c is replaced */
} gemm_case_options;

gemm_case *gemm_case_new(rng *r, const dg_gemm *shape, gemm_case_options options);
void gemm_case_free(gemm_case *c);

/* Runs the case on D as it was before the first call. */
dg_status gemm_case_run(gemm_case *c, dg_context *context);
/*
 * The same for a case of any granularity, which a GPU may refuse: false when it did so, with a
 * reason and without having written anything. Everything else must succeed.
 */
bool gemm_case_run_or_refuse(gemm_case *c, dg_context *context);
/* The same as gemm_case_run() with weights that are packed first. */
dg_status gemm_case_run_packed(gemm_case *c, dg_context *context);

/* The result is right, and nothing but D's elements was written. */
void gemm_case_check(gemm_case *c);
/* Nothing between D's rows was written. */
void gemm_case_check_surroundings(const gemm_case *c);
/* Nothing at all was written. */
void gemm_case_check_untouched(const gemm_case *c);
/* A copy of D's memory, to compare the bits of two runs; free() it. */
void *gemm_case_copy_d(const gemm_case *c);

/* One line that describes the case, for messages. Valid until the next call. */
const char *gemm_text(const dg_gemm *gemm);

#endif
