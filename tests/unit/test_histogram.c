/* SPDX-License-Identifier: MIT */
/* Histograms of magnitudes: what they keep, how they grow, and that order and splits do not matter.
 */
#include "quant/histogram.h"

#include "core/formats.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct held {
    dgi_histogram h;
    double bins[DGI_MAX_BINS];
} held;

static void clear(held *x, int32_t bits)
{
    memset(x->bins, 0, sizeof x->bins);
    x->h = dgi_histogram_of(bits, x->bins);
}

static void assert_same(const held *x, const held *y)
{
    assert_int_equal(x->h.top, y->h.top);
    assert_true(x->h.zeros == y->h.zeros && x->h.tiny == y->h.tiny);
    assert_memory_equal(x->bins, y->bins, sizeof x->bins);
}

/* Values of any magnitude that FP32 has, both signs, some zeros. */
static void fill_wild(rng *r, float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)rng_next(r);
        float value = dgi_f32_from_bits(bits);
        values[i] = rng_chance(r, 0.05) || !isfinite(value) ? 0.0f : value;
    }
}

/* With 7 bits each BF16 magnitude has its own bin. */
static void test_bf16_is_kept_exactly(void **state)
{
    (void)state;
    enum { COUNT = 4000 };
    static held x;
    static float values[COUNT];
    static int expected[1 << 15];
    rng r = rng_new(1);
    clear(&x, 7);
    memset(expected, 0, sizeof expected);
    for (int i = 0; i < COUNT; i++) {
        uint16_t code = dgi_bf16_from_f32((float)(rng_normal(&r) * exp2(rng_normal(&r) * 4.0)));
        values[i] = dgi_f32_from_bf16(code);
        expected[code & 0x7FFF]++;
    }
    dgi_histogram_add(&x.h, values, NULL, COUNT);
    double seen = x.h.zeros + x.h.tiny;
    for (int32_t i = 0; i < dgi_histogram_bins(&x.h); i++) {
        if (x.bins[i] == 0.0)
            continue;
        uint32_t bits = dgi_f32_to_bits(dgi_histogram_value(&x.h, i));
        assert_int_equal(bits & 0xFFFF, 0);
        assert_true(x.bins[i] == expected[bits >> 16]);
        seen += x.bins[i];
    }
    assert_true(seen == COUNT);
}

/* Each magnitude is in the bin whose value is nearest; FP32's ends too. */
static void test_bins_are_nearest(void **state)
{
    (void)state;
    static held x;
    rng r = rng_new(2);
    const float ends[] = {FLT_MAX, -FLT_MAX, 1e-45f, FLT_MIN, 1.0f};
    for (int i = 0; i < 2000; i++) {
        int32_t bits = (int32_t)rng_range(&r, 4, DGI_MAX_BITS);
        float value;
        if (i < 5)
            value = ends[i];
        else
            fill_wild(&r, &value, 1);
        clear(&x, bits);
        dgi_histogram_add(&x.h, &value, NULL, 1);
        if (value == 0.0f) {
            assert_true(x.h.zeros == 1.0 && dgi_histogram_total(&x.h) == 0.0);
            continue;
        }
        int32_t bin = 0;
        while (x.bins[bin] == 0.0)
            bin++;
        double at = dgi_histogram_value(&x.h, bin), error = fabs(fabs((double)value) - at);
        double half_step = fmax(ldexp(fabs(value), -bits - 1), ldexp(1.0, -126 - bits - 1));
        /* beyond the last bin, magnitudes below 2^128 belong to it */
        assert_true(error <= half_step || (fabsf(value) > (float)at && at >= 0x1p127));
        assert_true(dgi_histogram_total(&x.h) == 1.0);
    }
}

/* Growing moves counts and loses none; what is 32 octaves below the largest is `tiny`. */
static void test_growth_conserves_counts(void **state)
{
    (void)state;
    static held x;
    clear(&x, 5);
    for (int e = -40; e <= 60; e++) {
        const float values[] = {ldexpf(1.0f, e), 1.5f * ldexpf(1.0f, e), 0.0f};
        dgi_histogram_add(&x.h, values, NULL, 3);
        double added = 2.0 * (e + 41);
        assert_true(x.h.zeros == e + 41);
        assert_true(dgi_histogram_total(&x.h) == added);
        assert_true(x.h.tiny == fmax(0.0, added - 2.0 * DGI_OCTAVES));
    }
    for (int32_t i = 0; i < dgi_histogram_bins(&x.h); i++) {
        int within =
            i % 32; /* 1.0 is the first bin of an octave of 32, 1.5 the one in the middle */
        assert_true(x.bins[i] == (within == 0 || within == 16 ? 1.0 : 0.0));
    }
}

static void test_order_and_splits_do_not_matter(void **state)
{
    (void)state;
    enum { COUNT = 3000 };
    static float values[COUNT];
    static held whole, sum, part;
    rng r = rng_new(3);
    for (int round = 0; round < 50; round++) {
        int32_t bits = (int32_t)rng_range(&r, 4, DGI_MAX_BITS);
        int64_t count = rng_range(&r, 1, COUNT);
        fill_wild(&r, values, count);
        clear(&whole, bits);
        clear(&sum, bits);
        dgi_histogram_add(&whole.h, values, NULL, count);
        for (int64_t i = count - 1; i > 0; i--) { /* shuffled */
            int64_t j = rng_range(&r, 0, i);
            float value = values[i];
            values[i] = values[j];
            values[j] = value;
        }
        for (int64_t first = 0, n; first < count; first += n) {
            n = rng_range(&r, 0, count - first);
            clear(&part, bits);
            dgi_histogram_add(&part.h, values + first, NULL, n);
            if (rng_chance(&r, 0.5))
                dgi_histogram_merge(&sum.h, &part.h);
            else
                dgi_histogram_add(&sum.h, values + first, NULL, n);
        }
        assert_same(&sum, &whole);
        dgi_histogram_merge(&part.h, &whole.h); /* a smaller one takes a larger one */
        assert_int_equal(part.h.top, whole.h.top);
    }
}

static void test_weights(void **state)
{
    (void)state;
    static held x;
    clear(&x, 7);
    const float values[] = {1.0f, -1.0f, 2.0f, 0.0f};
    const double weights[] = {0.25, 0.5, 3.0, 7.0};
    dgi_histogram_add(&x.h, values, weights, 4);
    assert_true(x.h.zeros == 7.0 && dgi_histogram_total(&x.h) == 3.75);
    for (int32_t i = 0; i < dgi_histogram_bins(&x.h); i++) {
        float value = dgi_histogram_value(&x.h, i);
        assert_true(x.bins[i] == (value == 1.0f ? 0.75 : value == 2.0f ? 3.0 : 0.0));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_is_kept_exactly),
        cmocka_unit_test(test_bins_are_nearest),
        cmocka_unit_test(test_growth_conserves_counts),
        cmocka_unit_test(test_order_and_splits_do_not_matter),
        cmocka_unit_test(test_weights),
    };
    return test_run(argc, argv, tests);
}
