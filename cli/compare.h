/* SPDX-License-Identifier: MIT */
/*
 * `deepgemm compare`: the command (compare.c) measures each layer (compare_layer.c), on activations
 * from a run of the model where there is a text (compare_model.c), and prints (compare_report.c).
 */
#ifndef CLI_COMPARE_H
#define CLI_COMPARE_H

#include "layer.h"
#include "llama.h"
#include "predict.h"

/*
 * What caused the error E = y8 - y16 of a layer's output. With x', w' for the dequantised x and w:
 *
 *     weights        (x + x')/2 . (w' - w)^T
 *     activations    (x' - x) . (w + w')^T / 2
 *     accumulation   y8 - x' . w'^T, the product in double precision
 *
 * The three add up to E. Each one's share is <part, E> / <E, E>, so that shares add up to 1.
 */
typedef enum compare_cause {
    COMPARE_WEIGHTS,
    COMPARE_ACTIVATIONS,
    COMPARE_ACCUMULATION,
    COMPARE_CAUSES
} compare_cause;

extern const char *const compare_cause_names[COMPARE_CAUSES]; /* "weights" and so on */

typedef struct compare_part {
    double squares, along; /* |part|^2 and <part, E> */
} compare_part;

/* One tensor of both checkpoints. */
typedef struct compare_row {
    const char *name; /* the checkpoint's */
    int64_t n, k;     /* 1 x elements where it is no matrix */
    dg_comparison weight;
    dg_comparison output; /* of the layer's product; only where has_output */
    bool is_layer, has_output;
    dg_quantize_counts weight_counts; /* of the reference's weight under the result's scales */
    dg_quantize_counts input_counts;  /* of the activations; only where has_output */
    compare_part causes[COMPARE_CAUSES];
    bool failed; /* beyond a limit */
} compare_row;

/* The size of a cause relative to the output, and its share of the error; 0 where nothing is. */
double compare_cause_error(const compare_row *row, compare_cause cause);
double compare_cause_share(const compare_row *row, compare_cause cause);

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
    int64_t tokens;         /* to sample for each layer, or of each text */
    uint64_t seed;
} compare_job;

/* ---- a layer (compare_layer.c) ------------------------------------------------------- */

/*
 * Compares a weight in FP8, and its product with activations, with the reference's. `x` is
 * [tokens, K], F32; NULL takes the job's. `gains` [K], or NULL, is for a result whose previous norm
 * is not the reference's (scale has moved from activations to weights): by what its activations are
 * larger than x. `y` [tokens, N], or NULL, gets the reference's product.
 */
compare_row compare_layer(const compare_job *job, const dg_stored_weight *result,
                          const dg_matrix *x, const float *gains, const dg_matrix *y);

/* y = x . w^T in FP8 as the result's checkpoint says. */
void compare_multiply(const compare_job *job, const dg_stored_weight *result, const dg_matrix *x,
                      const dg_matrix *y);

/* ---- all layers ---------------------------------------------------------------------- */

typedef struct compare_report {
    const char *reference, *result, *inputs; /* paths; inputs may be NULL */
    const char *text;                        /* path, where the models are run; or NULL */
    const char *wide_by;                     /* what multiplied in 16 bits */
    int64_t tokens;
    uint64_t seed;
    double limit_cosine, limit_relative, limit_top1;
    compare_row *rows; /* the worst first */
    int row_count, failed_count;
    int layer_count;     /* rows that are FP8 layers */
    int identical_count; /* tensors that are the same in both and have no row */
    predict whole;       /* where there is a text */
    bool whole_failed;
    cli_list problems; /* what could not be compared, one sentence each */
    int64_t shown;     /* rows to print */
} compare_report;

void compare_add_row(compare_report *report, compare_row row);

/*
 * Runs both models over the text: the reference, with each FP8 layer beside it on the same
 * activations, and then the result by itself. Adds a row for each layer, and fills in `whole`.
 */
void compare_models(const compare_job *job, const char *reference, const char *result,
                    compare_report *report);

/* ---- output (compare_report.c) ------------------------------------------------------- */

void compare_print(const compare_report *report);
void compare_print_json(const compare_report *report);

#endif
