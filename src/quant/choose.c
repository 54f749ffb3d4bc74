/* SPDX-License-Identifier: MIT */
/* Choosing a scale: see choose.h. */
#include "quant/choose.h"

#include "core/formats.h"

#include <math.h>

/* ---- what a scale does to a magnitude ------------------------------------------------ */

float dgi_quantized(float value, float scale, float reciprocal, dg_dtype code)
{
    uint32_t bits = dgi_fp8_from_f32(code, value * reciprocal, DG_SATURATE);
    float result = scale * dgi_f32_from_fp8(code, (uint8_t)bits);
    return fminf(fmaxf(result, -FLT_MAX), FLT_MAX); /* a code next to FLT_MAX may lie beyond it */
}

bool dgi_clips(float value, float reciprocal, dg_dtype code)
{
    const uint32_t largest = code == DG_E4M3 ? 0x7E : 0x7B;
    return (dgi_fp8_from_f32(code, value * reciprocal, DG_OVERFLOW_IEEE) & 0x7F) > largest;
}

void dgi_damage_add(dgi_damage *damage, const dgi_histogram *histogram, float scale, dg_dtype code)
{
    float reciprocal = dgi_scale_reciprocal(scale);
    damage->elements += histogram->zeros + histogram->tiny;
    damage->underflow += histogram->tiny;
    for (int32_t i = 0; i < dgi_histogram_bins(histogram); i++) {
        double weight = histogram->bins[i];
        if (weight == 0.0)
            continue;
        float value = dgi_histogram_value(histogram, i);
        float result = dgi_quantized(value, scale, reciprocal, code);
        double error = (double)value - (double)result;
        damage->elements += weight;
        damage->clipped += dgi_clips(value, reciprocal, code) ? weight : 0.0;
        damage->underflow += result == 0.0f ? weight : 0.0;
        damage->squares += weight * (double)value * (double)value;
        damage->error_squares += weight * error * error;
    }
}

void dgi_damage_report(const dgi_damage *damage, dg_scale_quality *quality)
{
    double elements = damage->elements > 0.0 ? damage->elements : 1.0;
    quality->elements = damage->elements;
    quality->clipped = damage->clipped / elements;
    quality->underflow = damage->underflow / elements;
    quality->relative_error =
        damage->squares > 0.0 ? sqrt(damage->error_squares / damage->squares) : 0.0;
}

/* ---- the occupied bins --------------------------------------------------------------- */

static void take_bins(dgi_chooser *chooser, const dgi_histogram *histogram)
{
    chooser->count = 0;
    for (int32_t i = 0; i < dgi_histogram_bins(histogram); i++) {
        float value = dgi_histogram_value(histogram, i);
        if (histogram->bins[i] <= 0.0 || value == 0.0f)
            continue;
        chooser->values[chooser->count] = value;
        chooser->widths[chooser->count] = dgi_histogram_value(histogram, i + 1) - value;
        chooser->weights[chooser->count++] = histogram->bins[i];
    }
}

/* ---- percentile ---------------------------------------------------------------------- */

/*
 * The smallest magnitude that is not exceeded by `percentile` of the weight of all that are not
 * zero (nearest rank, no interpolation).
 */
static float percentile_of(const dgi_chooser *chooser, const dgi_histogram *histogram, float amax,
                           double percentile)
{
    double wanted = percentile / 100.0 * dgi_histogram_total(histogram), seen = histogram->tiny;
    for (int32_t i = 0; i < chooser->count; i++) {
        seen += chooser->weights[i];
        if (seen >= wanted && i + 1 < chooser->count)
            return chooser->values[i];
    }
    return amax;
}

/* ---- mean squared error -------------------------------------------------------------- */

/*
 * Sum of squared errors. `clip` becomes the part of it that comes from magnitudes which clip: it
 * never falls when the scale falls.
 */
static double squared_error(const dgi_chooser *chooser, float scale, dg_dtype code, double *clip)
{
    float reciprocal = dgi_scale_reciprocal(scale), largest = scale * dgi_fp8_max(code);
    double sum = 0.0, beyond = 0.0;
    for (int32_t i = 0; i < chooser->count; i++) {
        float value = chooser->values[i];
        double error = (double)value - (double)dgi_quantized(value, scale, reciprocal, code);
        double square = chooser->weights[i] * error * error;
        sum += square;
        beyond += value > largest ? square : 0.0;
    }
    *clip = beyond;
    return sum;
}

/* How a search walks: `steps_down` scales from `first` down, each 2^(1/per_octave) below the last.
 */
typedef struct walk {
    double first;
    int32_t per_octave, steps;
} walk;

/* The grid: from one octave above the scale of amax to `octaves_down` below it, then, around the
 * best, 1/8 of a step at a time. */
enum { GRID = 16, FINER = 8, OCTAVES_UP = 1, OCTAVES_DOWN = 8 };

typedef double objective(dgi_chooser *chooser, float scale, dg_dtype code, bool *stop, double best);

static double mse_objective(dgi_chooser *chooser, float scale, dg_dtype code, bool *stop,
                            double best)
{
    double clip, error = squared_error(chooser, scale, code, &clip);
    *stop = clip >= best;
    return error;
}

static float smallest_scale(void)
{
    return dgi_f32_from_bits(1u << 23); /* 2^-126, as for dynamic scales */
}

/* Tries the walk's scales; a better one replaces *scale and *best. */
static void try_scales(dgi_chooser *chooser, walk w, dg_dtype code, objective *judge, float *scale,
                       double *best)
{
    bool stop = false;
    for (int32_t i = 0; i < w.steps && !stop; i++) {
        double candidate = w.first * exp2(-(double)i / w.per_octave);
        if (!(candidate >= (double)smallest_scale() && candidate < (double)FLT_MAX))
            continue;
        double value = judge(chooser, (float)candidate, code, &stop, *best);
        if (value < *best) {
            *best = value;
            *scale = (float)candidate;
        }
    }
}

/* The scale of the least objective. `whole` is that of amax; it wins a tie. */
static float search(dgi_chooser *chooser, float whole, const dg_scale_choice *choice, int32_t up,
                    objective *judge)
{
    bool stop;
    float scale = whole;
    double best = judge(chooser, whole, choice->code, &stop, INFINITY);
    int32_t per_octave = choice->rounding == DG_SCALE_EXACT ? GRID : 1;
    walk coarse = {ldexp(whole, up), per_octave, (up + OCTAVES_DOWN) * per_octave + 1};
    try_scales(chooser, coarse, choice->code, judge, &scale, &best);
    if (choice->rounding != DG_SCALE_EXACT)
        return scale;
    walk fine = {(double)scale * exp2(1.0 / GRID), GRID * FINER, 2 * FINER + 1};
    try_scales(chooser, fine, choice->code, judge, &scale, &best);
    return scale;
}

/* ---- Kullback-Leibler divergence ----------------------------------------------------- */

/*
 * Of what FP8 tells about the magnitudes from the magnitudes themselves. P: the bins, with what
 * clips added to the last bin that does not. Q: the bins that do not clip; the weight of all bins
 * with the same code is spread over them in proportion to their width, since the code says no more.
 * Both are shares of all there is: Q lacks what clips, so that a share c that clips costs
 * -log(1 - c) at least, and nothing can be gained by having little left to tell apart.
 */
static double kl_objective(dgi_chooser *chooser, float scale, dg_dtype code, bool *stop,
                           double best)
{
    float reciprocal = dgi_scale_reciprocal(scale);
    int32_t within = 0;
    double inside = 0.0, all = 0.0;
    for (int32_t i = 0; i < chooser->count; i++) {
        all += chooser->weights[i];
        if (dgi_clips(chooser->values[i], reciprocal, code))
            continue;
        within = i + 1;
        inside += chooser->weights[i];
        chooser->codes[i] =
            (uint8_t)dgi_fp8_from_f32(code, chooser->values[i] * reciprocal, DG_SATURATE);
    }
    *stop = inside == 0.0 || log(all / inside) > best;
    if (*stop)
        return INFINITY;
    double divergence = 0.0;
    for (int32_t first = 0, last; first < within; first = last) {
        double weight = 0.0, width = 0.0;
        for (last = first; last < within && chooser->codes[last] == chooser->codes[first]; last++) {
            weight += chooser->weights[last];
            width += (double)chooser->widths[last];
        }
        for (int32_t i = first; i < last; i++) {
            double p = chooser->weights[i] + (i + 1 == within ? all - inside : 0.0);
            double q = weight * ((double)chooser->widths[i] / width);
            divergence += p / all * log(p / q);
        }
    }
    return divergence;
}

/* ---- the whole ----------------------------------------------------------------------- */

float dgi_choose_scale(const dgi_histogram *histogram, float amax, const dg_scale_choice *choice,
                       dgi_chooser *chooser)
{
    float whole = dgi_dynamic_scale(amax, 0.0f, choice->code, choice->rounding);
    if (amax == 0.0f || choice->method == DG_METHOD_AMAX)
        return whole;
    take_bins(chooser, histogram);
    if (chooser->count == 0)
        return whole;
    switch (choice->method) {
    case DG_METHOD_PERCENTILE:
        return dgi_dynamic_scale(percentile_of(chooser, histogram, amax, choice->percentile), 0.0f,
                                 choice->code, choice->rounding);
    case DG_METHOD_MSE:
        return search(chooser, whole, choice, OCTAVES_UP, mse_objective);
    case DG_METHOD_KL:
        return search(chooser, whole, choice, choice->rounding == DG_SCALE_POW2_DOWN, kl_objective);
    case DG_METHOD_AMAX:
        break;
    }
    return whole;
}
