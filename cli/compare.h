/* SPDX-License-Identifier: MIT */
/* What `deepgemm compare` measures (compare.c, compare_layer.c) and prints (compare_report.c). */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include "layer.h"

/* One tensor of both checkpoints. */
typedef struct compare_row {
    const char *name; /* the checkpoint's */
    int64_t n, k;     /* 1 x elements where it is no matrix */
    dg_comparison weight;
    dg_comparison output; /* of the layer's product; only where has_output */
    bool has_output;
    bool failed; /* beyond a limit */
} compare_row;

/*
 * What a row is ranked and judged by: its weight or its output, whichever is worse. Activations
 * can hide a damaged weight, and a weight says nothing of activations that do not fit FP8.
 */
const dg_comparison *compare_judged(const compare_row *row);

typedef struct compare_job {
    dg_checkpoint *reference, *result;
    dg_checkpoint *inputs; /* activations by the layers' names; NULL: they are sampled */
    dg_context *context;
    const bench_peer *peer; /* computes the reference's products */
    int64_t tokens;         /* to sample for each layer */
    uint64_t seed;
} compare_job;

/* Compares a weight in FP8, and its product with activations, with the reference's. */
compare_row compare_layer(const compare_job *job, const dg_stored_weight *result);

typedef struct compare_report {
    const char *reference, *result, *inputs; /* paths */
    const char *wide_by;                     /* what multiplied in 16 bits */
    int64_t tokens;
    uint64_t seed;
    double limit_cosine, limit_relative;
    compare_row *rows; /* the worst first */
    int row_count, failed_count;
    int layer_count;          /* rows that are FP8 layers */
    int identical_count;      /* tensors that are the same in both and have no row */
    const cli_list *problems; /* what could not be compared, one sentence each */
    int64_t shown;            /* rows to print */
} compare_report;

void compare_print(const compare_report *report);
void compare_print_json(const compare_report *report);

#endif
