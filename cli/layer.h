/* SPDX-License-Identifier: MIT */
/*
 * One linear layer in 16 bits and in FP8: what `demo` and `compare` both need. All memory is the
 * host's; everything dies with a message when a call fails.
 */
#ifndef CLI_LAYER_H
#define CLI_LAYER_H

#include "cli.h"
#include "peers/peer.h"

/* A contiguous F32 matrix of zeros, and a contiguous F32 copy. Free the data. */
dg_matrix layer_new(int64_t rows, int64_t cols);
dg_matrix layer_widen(const dg_matrix *matrix);

/*
 * How large the features of generated activations are: 1, and for about one in a hundred, drawn
 * from the seed, layer_outlier_gain. Real models have such outliers, and they are what FP8 is
 * tried by.
 */
extern const float layer_outlier_gain;
void layer_fill_gains(float *gains, int64_t features, uint64_t seed);

/* An E4M3 matrix with F32 scales of some granularity. */
typedef struct layer_codes {
    dg_matrix codes;
    dg_scale scale;
} layer_codes;

layer_codes layer_codes_new(int64_t rows, int64_t cols, int32_t block_rows, int32_t block_cols);
void layer_codes_free(layer_codes *matrix);
/* Quantises a matrix of that shape with dynamic scales. */
void layer_quantize(dg_context *context, const dg_matrix *wide, const layer_codes *quantized);

/* How a layer's activations get their scales. */
typedef struct layer_activations {
    float fixed;  /* above 0: one for all of them; otherwise each token has its own, dynamic ones */
    int32_t cols; /* features that share one; 0: all */
    bool pow2;    /* rounded up to powers of two, as UE8M0 holds */
} layer_activations;

/* `counts` may be NULL. */
layer_codes layer_quantize_activations(dg_context *context, const layer_activations *how,
                                       const dg_matrix *x, dg_quantize_counts *counts);

/* A contiguous F32 copy of rows of codes: scale * code. Free the data. */
dg_matrix layer_dequantize(dg_context *context, const dg_matrix *codes, const dg_scale *scale);

/* Who multiplies in 16 bits, with the context's threads: OpenBLAS where it opens, or else a plain
 * loop. */
const bench_peer *layer_wide_peer(const dg_context *context);
/* y = x . w^T, all F32 and contiguous, by that peer. */
void layer_multiply_wide(const bench_peer *peer, const dg_matrix *x, const dg_matrix *w,
                         const dg_matrix *y);
/* The same, also timed for about so many seconds: the median of a call. */
double layer_time_wide(const bench_peer *peer, const dg_matrix *x, const dg_matrix *w,
                       const dg_matrix *y, double seconds);

/* sums[m * N + n] = x . w^T in double precision, on all cores; both F32 and contiguous. */
void layer_multiply_exact(const dg_matrix *x, const dg_matrix *w, double *sums);

/* Adds a comparison's metrics and counts to a JSON object. */
void layer_add_metrics(cJSON *object, const dg_comparison *comparison);
/* Adds what a quantisation met: "saturated", "underflow" and "non_finite", in elements. */
void layer_add_counts(cJSON *object, const dg_quantize_counts *counts);

#endif
