/* SPDX-License-Identifier: MIT */
/*
 * A grouped product under test: its operands, its run, and its comparison with the oracle, row by
 * row of what the header says each call computes. Like gemm_case, operands lie at guard pages. All
 * that no product reads is NaN: rows in no group, their scales, what lies between rows and groups.
 * D begins as NaN bytes, and each byte of it is checked afterwards: a result, a zero, or untouched.
 */
#ifndef TEST_GROUPED_CASE_H
#define TEST_GROUPED_CASE_H

#include "gemm_case.h"

/* What a test wants; sizes are host memory, which the case copies. */
typedef struct grouped_shape {
    dg_gemm gemm; /* without data; see dg_groups for what its operands are  */
    dg_groups groups;
    const int32_t *sizes, *gather, *scatter;
    bool in_place; /* C is D */
} grouped_shape;

typedef struct grouped_row {
    int32_t group; /* -1: padding                          */
    int64_t a, d;  /* rows of the group's A and D; d -1: left out */
} grouped_row;

typedef struct grouped_case {
    dg_gemm gemm; /* in host memory */
    dg_groups groups;
    guard a, b, c, d, scale_a, scale_b, scale_d, bias, sizes, gather, scatter;
    guard d_before;
    grouped_row *rows; /* of the product, of all groups */
    int64_t row_count;
} grouped_case;

/*
 * Tightly packed groups of a recipe: `rows` rows of A (each group's where it has its own). Set
 * sizes, and what else differs, in the result.
 */
grouped_shape grouped_of(const recipe *recipe, dg_grouping grouping, int32_t count, int64_t rows,
                         int64_t n, int64_t k, dg_dtype d);

grouped_case *grouped_case_new(rng *r, const grouped_shape *shape);
/* Any grouped product: forms, sizes, types, strides, gather, scatter, padding; M, N and K up to
 * `largest`. */
grouped_case *grouped_case_random(rng *r, int64_t largest);
void grouped_case_free(grouped_case *c);

/* Runs on D as it was before the first call; `packed`: with weights that are packed first. */
dg_status grouped_case_run(grouped_case *c, dg_context *context, bool packed);
/* Each byte of D is what it should be. */
void grouped_case_check(const grouped_case *c);
void grouped_case_check_untouched(const grouped_case *c);
/* On the CPU: each row has the bits that dg_gemm_run gives it alone. */
void grouped_case_check_bits(const grouped_case *c, dg_context *context);

/* The GEMM of a group, in host memory: its rows are those of the group's A and D. */
dg_gemm grouped_case_group(const grouped_case *c, int32_t group);

#endif
