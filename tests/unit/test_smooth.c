/* SPDX-License-Identifier: MIT */
/* dg_smooth_choose: what it gains on outliers, that it never loses, and that it rounds nothing. */
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 40, K = 96, N = 50 };

typedef struct problem {
    float x[TOKENS * K], w[2][N * K];
    dg_matrix weights[2];
    dg_smooth smooth;
} problem;

/* Two weights; some features of x are `outlier` times as large. */
static void fill(rng *r, problem *p, double outlier)
{
    rng_fill_normal(r, p->x, DG_F32, TOKENS * K, 1.0);
    for (int i = 0; i < TOKENS * K; i++)
        p->x[i] *= i % K % 30 == 7 ? (float)outlier : 1.0f;
    for (int i = 0; i < 2; i++) {
        rng_fill_normal(r, p->w[i], DG_F32, N * K, 0.1);
        p->weights[i] = dg_matrix_of(p->w[i], DG_F32, N - i, K);
    }
    p->smooth = (dg_smooth)DG_SMOOTH_INIT;
    p->smooth.x = dg_matrix_of(p->x, DG_F32, TOKENS, K);
    p->smooth.weights = p->weights;
    p->smooth.weight_count = 2;
    p->smooth.weight_block_rows = 1; /* x: one scale for all; weights: one for each row */
}

/* Features `step` apart are outliers of x by 2^20, and so small in the weights that all features
 * matter alike: smoothing must help. */
static void fill_balanced(rng *r, problem *p, int step)
{
    fill(r, p, 1.0);
    for (int i = 7; i < K; i += step) {
        for (int t = 0; t < TOKENS; t++)
            p->x[t * K + i] *= 0x1p20f;
        for (int n = 0; n < 2 * N; n++)
            p->w[n / N][n % N * K + i] *= 0x1p-20f;
    }
}

static dg_smooth_report choose(dg_context *context, const problem *p, float *factors)
{
    dg_smooth_report report = DG_SMOOTH_REPORT_INIT;
    assert_ok(dg_smooth_choose(context, &p->smooth, factors, &report));
    return report;
}

/* Outliers 2^20 times as large push everything else below FP8's smallest; smoothing brings it back.
 */
static void test_outliers_are_moved(void **state)
{
    (void)state;
    static problem p;
    float factors[K];
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    fill_balanced(&r, &p, 30);
    dg_smooth_report report = choose(context, &p, factors);
    assert_true(report.error_before > 0.5);
    assert_true(report.error_after < 0.06);
    assert_true(report.strength >= 0.0);
    for (int i = 0; i < K; i++)
        assert_true(i % 30 == 7 ? factors[i] >= 256.0f : factors[i] <= 8.0f);
    dg_destroy(context);
}

/* Whatever the data: factors are powers of two, no product changes by a bit, no error grows. */
static void test_nothing_is_rounded_or_lost(void **state)
{
    (void)state;
    static problem p;
    float factors[K];
    rng r = rng_new(2);
    dg_context *context = test_context(NULL);
    for (int round = 0; round < 12; round++) {
        fill(&r, &p, exp2((double)rng_range(&r, 0, 14)));
        p.smooth.x_block_rows = (int32_t)rng_range(&r, 0, 1);
        p.smooth.x_block_cols = rng_chance(&r, 0.5) ? 32 : 0;
        dg_smooth_report report = choose(context, &p, factors);
        assert_true(report.error_after <= report.error_before);
        assert_true((report.strength < 0.0) == (report.error_after == report.error_before));
        for (int i = 0; i < K; i++) {
            int exponent;
            assert_true(frexpf(factors[i], &exponent) == 0.5f);
            for (int t = 0; t < TOKENS; t++)
                for (int n = 0; n < N; n++) {
                    float a = p.x[t * K + i], b = p.w[0][n * K + i];
                    assert_true((a / factors[i]) * (b * factors[i]) == a * b);
                }
        }
    }
    dg_destroy(context);
}

/* The errors reported are those of quantising and multiplying by hand. */
static void test_errors_are_measured(void **state)
{
    (void)state;
    static problem p;
    static uint8_t x_codes[TOKENS * K], w_codes[N * K];
    static float x[TOKENS * K], w[N * K], y[TOKENS * N];
    float factors[K], x_scale, w_scales[N];
    rng r = rng_new(3);
    dg_context *context = test_context(NULL);
    fill(&r, &p, 3000.0);
    dg_smooth_report report = choose(context, &p, factors);
    for (int smoothed = 0; smoothed < 2; smoothed++) {
        double error = 0.0, squares = 0.0;
        for (int i = 0; i < TOKENS * K; i++)
            x[i] = smoothed ? p.x[i] / factors[i % K] : p.x[i];
        for (int which = 0; which < 2; which++) {
            int64_t n = p.weights[which].rows;
            for (int i = 0; i < n * K; i++)
                w[i] = smoothed ? p.w[which][i] * factors[i % K] : p.w[which][i];
            dg_quantize q = DG_QUANTIZE_INIT, v = q;
            q.input = dg_matrix_of(x, DG_F32, TOKENS, K);
            q.output = dg_matrix_of(x_codes, DG_E4M3, TOKENS, K);
            q.scale = dg_scale_of(&x_scale, DG_F32, TOKENS, K, 0, 0);
            v.input = dg_matrix_of(w, DG_F32, n, K);
            v.output = dg_matrix_of(w_codes, DG_E4M3, n, K);
            v.scale = dg_scale_of(w_scales, DG_F32, n, K, 1, 0);
            assert_ok(dg_quantize_run(context, &q, NULL));
            assert_ok(dg_quantize_run(context, &v, NULL));
            dg_gemm gemm = DG_GEMM_INIT;
            gemm.a = q.output;
            gemm.scale_a = q.scale;
            gemm.b = v.output;
            gemm.scale_b = v.scale;
            gemm.d = dg_matrix_of(y, DG_F32, TOKENS, n);
            assert_ok(dg_gemm_run(context, &gemm, NULL));
            for (int t = 0; t < TOKENS; t++)
                for (int64_t row = 0; row < n; row++) {
                    double exact = 0.0;
                    for (int i = 0; i < K; i++)
                        exact += (double)p.x[t * K + i] * (double)p.w[which][row * K + i];
                    double off = (double)y[t * n + row] - exact;
                    error += off * off;
                    squares += exact * exact;
                }
        }
        double expected = sqrt(error / squares);
        double reported = smoothed ? report.error_after : report.error_before;
        assert_true(fabs(reported - expected) <= 1e-3 * expected);
    }
    dg_destroy(context);
}

/* Features of one channel share a factor; features that say nothing get 1. */
static void test_channels_and_dead_features(void **state)
{
    (void)state;
    static problem p;
    float factors[K], amaxes[K];
    int32_t channels[K];
    rng r = rng_new(4);
    dg_context *context = test_context(NULL);
    fill_balanced(&r, &p, K / 3);
    for (int i = 0; i < K; i++)
        channels[i] = i % (K / 3);
    p.smooth.channels = channels;
    dg_smooth_report report = choose(context, &p, factors);
    assert_true(report.strength >= 0.0);
    for (int i = 0; i < K; i++)
        assert_true(factors[i] == factors[i % (K / 3)]);

    p.smooth.channels = NULL;
    for (int t = 0; t < TOKENS; t++)
        p.x[t * K + 4] = 0.0f;
    for (int i = 0; i < 2 * N; i++)
        p.w[i / N][i % N * K + 5] = 0.0f;
    report = choose(context, &p, factors);
    assert_true(report.strength >= 0.0 && factors[4] == 1.0f && factors[5] == 1.0f);
    /* Given amaxes stand in for those of the sample. */
    float others[K];
    memset(amaxes, 0, sizeof amaxes);
    for (int i = 0; i < TOKENS * K; i++)
        amaxes[i % K] = fmaxf(amaxes[i % K], fabsf(p.x[i]));
    p.smooth.amaxes = amaxes;
    choose(context, &p, others);
    assert_memory_equal(others, factors, sizeof factors);
    amaxes[7] = 0.0f;
    choose(context, &p, others);
    assert_true(factors[7] >= 256.0f && others[7] == 1.0f);
    dg_destroy(context);
}

static void test_refusals(void **state)
{
    (void)state;
    static problem p;
    float factors[K] = {-1.0f};
    rng r = rng_new(5);
    dg_context *context = test_context(NULL);
    fill(&r, &p, 1.0);
    const dg_smooth good = p.smooth;
    int32_t channels[K] = {K};
#define REFUSED(status, text)                                                                      \
    do {                                                                                           \
        assert_refused(dg_smooth_choose(context, &p.smooth, factors, NULL), status, text);         \
        p.smooth = good;                                                                           \
    } while (0)
    assert_refused(dg_smooth_choose(NULL, &good, factors, NULL), DG_INVALID_ARGUMENT, "context");
    assert_refused(dg_smooth_choose(context, NULL, factors, NULL), DG_INVALID_ARGUMENT, "smooth");
    assert_refused(dg_smooth_choose(context, &good, NULL, NULL), DG_INVALID_ARGUMENT, "factors");
    p.smooth.x.rows = 0;
    REFUSED(DG_INVALID_ARGUMENT, "x is 0 x 96");
    p.smooth.x.dtype = DG_E4M3;
    REFUSED(DG_UNSUPPORTED_TYPE, "x.dtype");
    p.smooth.weight_count = 0;
    REFUSED(DG_INVALID_ARGUMENT, "weights");
    p.smooth.x.cols = K - 1;
    REFUSED(DG_INVALID_ARGUMENT, "same K");
    p.smooth.channels = channels;
    REFUSED(DG_INVALID_ARGUMENT, "channels[0]");
    p.smooth.weight_block_cols = -1;
    REFUSED(DG_UNSUPPORTED_SCALE, "weight_block_rows");
    p.smooth.x_block_rows = -128;
    REFUSED(DG_UNSUPPORTED_SCALE, "x_block_rows");
#undef REFUSED
    assert_true(factors[0] == -1.0f);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outliers_are_moved),
        cmocka_unit_test(test_nothing_is_rounded_or_lost),
        cmocka_unit_test(test_errors_are_measured),
        cmocka_unit_test(test_channels_and_dead_features),
        cmocka_unit_test(test_refusals),
    };
    return test_run(argc, argv, tests);
}
