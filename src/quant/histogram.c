/* SPDX-License-Identifier: MIT */
/* Histograms of magnitudes: see histogram.h. */
#include "quant/histogram.h"

#include "core/formats.h"

#define MANTISSA_BITS 23

/* A magnitude's place among the FP32 values of `bits` mantissa bits: rounded to nearest even, and
 * never up to infinity. */
static uint32_t place_of(float value, int32_t bits)
{
    int32_t shift = MANTISSA_BITS - bits;
    uint32_t magnitude = dgi_f32_to_bits(value) & 0x7FFFFFFFu;
    uint32_t rounded = magnitude + ((1u << (shift - 1)) - 1) + (magnitude >> shift & 1);
    uint32_t last = (DGI_F32_INFINITY >> shift) - 1;
    uint32_t place = rounded >> shift;
    return place < last ? place : last;
}

/* The place of the lowest bin. Negative where the window reaches below FP32's zero. */
static int32_t lowest_place(const dgi_histogram *h)
{
    return (h->top + 1 - DGI_OCTAVES) * (1 << h->bits);
}

dgi_histogram dgi_histogram_of(int32_t bits, double *bins)
{
    return (dgi_histogram){.bits = bits, .top = -1, .bins = bins};
}

void dgi_histogram_clear(dgi_histogram *h)
{
    memset(h->bins, 0, (size_t)dgi_histogram_bins(h) * sizeof *h->bins);
    *h = dgi_histogram_of(h->bits, h->bins);
}

/* Moves the window up so that its highest octave is `top`. */
static void grow(dgi_histogram *h, int32_t top)
{
    if (top <= h->top)
        return;
    int32_t bins = dgi_histogram_bins(h);
    int32_t octaves = top - h->top < DGI_OCTAVES ? top - h->top : DGI_OCTAVES;
    int32_t out = h->top < 0 ? 0 : octaves << h->bits; /* bins that fall out */
    for (int32_t i = 0; i < out; i++)
        h->tiny += h->bins[i];
    memmove(h->bins, h->bins + out, (size_t)(bins - out) * sizeof *h->bins);
    memset(h->bins + (bins - out), 0, (size_t)out * sizeof *h->bins);
    h->top = top;
}

void dgi_histogram_add(dgi_histogram *h, const float *values, const double *weights, int64_t count)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t magnitude = dgi_f32_to_bits(values[i]) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest > 0)
        grow(h, (int32_t)(place_of(dgi_f32_from_bits(largest), h->bits) >> h->bits));
    int32_t lowest = lowest_place(h);
    for (int64_t i = 0; i < count; i++) {
        double weight = weights == NULL ? 1.0 : weights[i];
        int32_t bin = (int32_t)place_of(values[i], h->bits) - lowest;
        if (values[i] == 0.0f)
            h->zeros += weight;
        else if (bin < 0)
            h->tiny += weight;
        else
            h->bins[bin] += weight;
    }
}

void dgi_histogram_merge(dgi_histogram *h, const dgi_histogram *other)
{
    h->zeros += other->zeros;
    h->tiny += other->tiny;
    if (other->top < 0)
        return;
    grow(h, other->top);
    int32_t shift = lowest_place(other) - lowest_place(h); /* never above 0 */
    for (int32_t i = 0; i < dgi_histogram_bins(other); i++) {
        if (i + shift < 0)
            h->tiny += other->bins[i];
        else
            h->bins[i + shift] += other->bins[i];
    }
}

float dgi_histogram_value(const dgi_histogram *h, int32_t index)
{
    int32_t place = lowest_place(h) + index;
    return place < 0 ? 0.0f : dgi_f32_from_bits((uint32_t)place << (MANTISSA_BITS - h->bits));
}

double dgi_histogram_total(const dgi_histogram *h)
{
    double total = h->tiny;
    for (int32_t i = 0; i < dgi_histogram_bins(h); i++)
        total += h->bins[i];
    return total;
}
