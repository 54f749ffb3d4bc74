/* SPDX-License-Identifier: MIT */
/*
 * Histograms of magnitudes for calibration. A bin holds the magnitudes that round to one FP32 value
 * of `bits` mantissa bits, so the bins are as fine, relative to their value, at the bottom as at
 * the top: FP8 codes are spaced like that too. With 7 bits the bins are the BF16 values, and a
 * histogram of BF16 data loses nothing.
 *
 * The bins cover DGI_OCTAVES octaves below the largest magnitude. A larger one moves the window up;
 * what falls out at the bottom is added to `tiny`. So a histogram depends only on which values it
 * has met, not on their order or on how they were split: histograms that are merged equal the
 * histogram of all the data.
 */
#ifndef DGI_HISTOGRAM_H
#define DGI_HISTOGRAM_H

#include "deepgemm.h"

/* E4M3 has 19 octaves from its largest value to where values become zero, E5M2 33. */
#define DGI_OCTAVES  32
#define DGI_MAX_BITS 7
#define DGI_MAX_BINS (DGI_OCTAVES << DGI_MAX_BITS)

typedef struct dgi_histogram {
    int32_t bits;       /* 2^bits bins an octave */
    int32_t top;        /* exponent field (of FP32) of the highest octave; -1: no magnitude yet */
    double zeros, tiny; /* weights of zeros, and of magnitudes below the window */
    double *bins;       /* weights, DGI_OCTAVES << bits of them */
} dgi_histogram;

static inline int32_t dgi_histogram_bins(const dgi_histogram *h)
{
    return DGI_OCTAVES << h->bits;
}

/* Uses `bins`, which must hold zeros. */
dgi_histogram dgi_histogram_of(int32_t bits, double *bins);
void dgi_histogram_clear(dgi_histogram *h);

/* Adds finite values, each with weights[i], or 1 where weights is NULL. */
void dgi_histogram_add(dgi_histogram *h, const float *values, const double *weights, int64_t count);
/* Adds all that `other`, of the same bits, has met. */
void dgi_histogram_merge(dgi_histogram *h, const dgi_histogram *other);

/* The magnitude that bin `index` stands for. */
float dgi_histogram_value(const dgi_histogram *h, int32_t index);
/* The weight of everything that is not zero. */
double dgi_histogram_total(const dgi_histogram *h);

#endif
