/* SPDX-License-Identifier: MIT */
/*
 * Choosing a scale for magnitudes that are known by their histogram. All errors are those of the
 * library's own FP8 codes and rounding, not of a model of them. docs/calibration.md has the
 * formulas.
 */
#ifndef DGI_CHOOSE_H
#define DGI_CHOOSE_H

#include "quant/histogram.h"

/* Memory for one choice at a time: the occupied bins, in ascending order. Large: allocate it. */
typedef struct dgi_chooser {
    float values[DGI_MAX_BINS];
    float widths[DGI_MAX_BINS]; /* distance to the next bin */
    double weights[DGI_MAX_BINS];
    uint8_t codes[DGI_MAX_BINS];
    int32_t count;
} dgi_chooser;

/*
 * The scale for the magnitudes of `histogram`, the largest of which is `amax` exactly. Positive and
 * finite for every histogram: 1 where there is nothing but zeros.
 */
float dgi_choose_scale(const dgi_histogram *histogram, float amax, const dg_scale_choice *choice,
                       dgi_chooser *chooser);

/* Sums of what a scale does to magnitudes, weights counted. */
typedef struct dgi_damage {
    double elements, clipped, underflow;
    double squares, error_squares;
} dgi_damage;

/* Adds what quantising the histogram's magnitudes with that scale does. */
void dgi_damage_add(dgi_damage *damage, const dgi_histogram *histogram, float scale, dg_dtype code);

/* Brings the sums into the caller's terms. */
void dgi_damage_report(const dgi_damage *damage, dg_scale_quality *quality);

/* What a value is after quantising and back; `reciprocal` is dgi_scale_reciprocal(scale). */
float dgi_quantized(float value, float scale, float reciprocal, dg_dtype code);
/* Whether quantising with 1 / scale = `reciprocal` clips: the rounding does not reach that far. */
bool dgi_clips(float value, float reciprocal, dg_dtype code);

#endif
