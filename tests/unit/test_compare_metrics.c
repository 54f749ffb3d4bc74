/* SPDX-License-Identifier: MIT */
/* dg_compare against values worked out by hand. */
#include "random.h"
#include "test.h"

#include <math.h>
#include <string.h>

static dg_comparison compare_f32(const float *reference, const float *result, int64_t count)
{
    dg_matrix x = dg_matrix_of((void *)reference, DG_F32, 1, count);
    dg_matrix y = dg_matrix_of((void *)result, DG_F32, 1, count);
    dg_comparison c = DG_COMPARISON_INIT;
    assert_ok(dg_compare(&x, &y, &c));
    return c;
}

static void assert_near(double value, double expected)
{
    if (!(fabs(value - expected) <= 1e-12 * fmax(1.0, fabs(expected))))
        fail_msg("%.17g is not %.17g", value, expected);
}

static void test_hand_computed(void **state)
{
    (void)state;
    /* |reference| = 5, error (0, -1, 0, 2): relative sqrt(5)/5, products 9 + 12 = 21 */
    dg_comparison c = compare_f32((float[]){3, 4, 0, 0}, (float[]){3, 3, 0, 2}, 4);
    assert_near(c.relative_error, sqrt(5.0) / 5.0);
    assert_near(c.snr_db, 10.0 * log10(5.0));
    assert_near(c.cosine, 21.0 / (5.0 * sqrt(22.0)));
    assert_near(c.max_error, 2.0);
    assert_near(c.mean_error, 0.75);
    assert_int_equal(c.finite, 4);
}

static void test_equal_zero_and_opposite(void **state)
{
    (void)state;
    const float x[] = {0.1f, -7.0f, 1e30f}, zero[] = {0, 0, 0}, opposite[] = {-0.1f, 7.0f, -1e30f};
    dg_comparison c = compare_f32(x, x, 3);
    assert_true(c.relative_error == 0.0 && isinf(c.snr_db) && c.snr_db > 0 && c.max_error == 0.0);
    assert_near(c.cosine, 1.0);
    c = compare_f32(zero, zero, 3);
    assert_true(c.relative_error == 0.0 && c.cosine == 1.0);
    c = compare_f32(x, zero, 3);
    assert_true(c.relative_error == 1.0 && c.cosine == 0.0 && c.snr_db == 0.0);
    c = compare_f32(zero, x, 3);
    assert_true(isinf(c.relative_error) && c.cosine == 0.0 && isinf(c.snr_db) && c.snr_db < 0);
    c = compare_f32(x, opposite, 3);
    assert_near(c.cosine, -1.0);
    assert_near(c.relative_error, 2.0);
}

/* A cosine of 0.9702 passes a limit of 0.97; rounded to BF16 it would be 0.96875 and fail. */
static void test_cosine_is_not_rounded(void **state)
{
    (void)state;
    const double cosine = 0.9702;
    const float result[] = {(float)cosine, (float)sqrt(1 - cosine * cosine)};
    dg_comparison c = compare_f32((float[]){1, 0}, result, 2);
    assert_true(c.cosine >= 0.97 && fabs(c.cosine - cosine) < 1e-7);
}

/* In FP32 the sum of squares would stop growing at 2^24 and the one wrong element be lost. */
static void test_long_sums(void **state)
{
    (void)state;
    enum { rows = 1 << 10, cols = (1 << 15) + 1 };
    static float row[cols], wrong[cols];
    for (int i = 0; i < cols; i++)
        row[i] = wrong[i] = 1.0f;
    wrong[cols - 1] = 2.0f;
    dg_matrix x = dg_matrix_of(row, DG_F32, 1, cols), y = dg_matrix_of(wrong, DG_F32, 1, cols);
    dg_comparison c = DG_COMPARISON_INIT;
    for (int i = 0; i < rows; i++)
        assert_ok(dg_compare(&x, i == rows - 1 ? &y : &x, &c));
    double count = (double)rows * cols;
    assert_int_equal(c.finite, (int64_t)rows * cols);
    assert_near(c.reference_squares, count);
    assert_near(c.relative_error, 1.0 / sqrt(count));
    assert_near(c.mean_error, 1.0 / count);
}

static void test_non_finite_pairs_are_counted(void **state)
{
    (void)state;
    const float reference[] = {1, NAN, INFINITY, 2, 3, -INFINITY};
    const float result[] = {1, NAN, 4, NAN, -INFINITY, INFINITY};
    dg_comparison c = compare_f32(reference, result, 6);
    assert_int_equal(c.reference_nan, 1);
    assert_int_equal(c.reference_inf, 2);
    assert_int_equal(c.result_nan, 2);
    assert_int_equal(c.result_inf, 2);
    assert_int_equal(c.spoiled, 2); /* 2 -> NaN and 3 -> -infinity */
    assert_int_equal(c.finite, 1);
    assert_true(c.reference_squares == 1.0 && c.error_squares == 0.0);
}

/* No metric of it passes a limit. */
static void assert_spoiled(const dg_comparison *c, int64_t pairs)
{
    assert_int_equal(c->spoiled, pairs);
    assert_true(c->relative_error == INFINITY && c->snr_db == -INFINITY && c->cosine == 0.0);
    assert_true(c->max_error == INFINITY && c->mean_error == INFINITY);
}

static void test_spoiled_results_are_not_perfect(void **state)
{
    (void)state;
    const float reference[] = {1, -2, 3}, good[] = {1, -2, 3};
    dg_comparison c = compare_f32(reference, (float[]){NAN, NAN, NAN}, 3);
    assert_spoiled(&c, 3);
    c = compare_f32(reference, (float[]){1, -2, INFINITY}, 3);
    assert_spoiled(&c, 1);
    /* pieces that are added later do not make up for it */
    dg_matrix x = dg_matrix_of((void *)reference, DG_F32, 1, 3);
    dg_matrix y = dg_matrix_of((void *)good, DG_F32, 1, 3), none = dg_matrix_of(NULL, DG_F32, 0, 3);
    assert_ok(dg_compare(&x, &y, &c));
    assert_ok(dg_compare(&none, &none, &c));
    assert_spoiled(&c, 1);
    assert_int_equal(c.finite, 5);
    /* what the reference itself has of NaN and infinities is no error of the result */
    c = compare_f32((float[]){1, NAN, INFINITY}, (float[]){1, NAN, 4}, 3);
    assert_true(c.relative_error == 0.0 && c.cosine == 1.0 && c.spoiled == 0);
}

static void test_types_and_strides(void **state)
{
    (void)state;
    /* The padding of both is NaN and must not count. */
    uint16_t bf16[] = {0x3F80, 0x4000, 0x7FC0, 0x4040, 0x4080}; /* 1 2 - 3 4 */
    uint16_t f16[] = {0x3C00, 0x4000, 0x4200, 0x4500};          /* 1 2 3 5 */
    dg_matrix x = {bf16, DG_BF16, 2, 2, 3}, y = dg_matrix_of(f16, DG_F16, 2, 2);
    dg_comparison c = DG_COMPARISON_INIT;
    assert_ok(dg_compare(&x, &y, &c));
    assert_int_equal(c.finite, 4);
    assert_int_equal(c.reference_nan, 0);
    assert_near(c.relative_error, sqrt(1.0 / 30.0));
    assert_near(c.max_error, 1.0);
}

/* Added in pieces of any size, a tensor gives what it gives whole, but for rounding. */
static void test_pieces(void **state)
{
    (void)state;
    enum { rows = 57, cols = 31 };
    static float x[rows * cols], y[rows * cols];
    rng r = rng_new(1);
    rng_fill_normal(&r, x, DG_F32, rows * cols, 1.0);
    rng_fill_normal(&r, y, DG_F32, rows * cols, 3.0);
    dg_comparison whole = compare_f32(x, y, rows * cols), pieces = DG_COMPARISON_INIT;
    for (int64_t row = 0, count; row < rows; row += count) {
        count = rng_range(&r, 0, rows - row);
        dg_matrix a = dg_matrix_of(x + row * cols, DG_F32, count, cols);
        dg_matrix b = dg_matrix_of(y + row * cols, DG_F32, count, cols);
        assert_ok(dg_compare(&a, &b, &pieces));
    }
    assert_near(pieces.relative_error, whole.relative_error);
    assert_near(pieces.cosine, whole.cosine);
    assert_near(pieces.mean_error, whole.mean_error);
    assert_true(pieces.max_error == whole.max_error && pieces.finite == whole.finite);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    float data[4] = {0};
    dg_matrix x = dg_matrix_of(data, DG_F32, 2, 2), tall = dg_matrix_of(data, DG_F32, 4, 1);
    dg_matrix codes = dg_matrix_of(data, DG_E4M3, 2, 2), absent = dg_matrix_of(NULL, DG_F32, 2, 2);
    dg_comparison c = DG_COMPARISON_INIT, before = c, old = {.struct_bytes = 8};
    assert_refused(dg_compare(NULL, &x, &c), DG_INVALID_ARGUMENT, "reference");
    assert_refused(dg_compare(&x, NULL, &c), DG_INVALID_ARGUMENT, "result");
    assert_refused(dg_compare(&x, &x, NULL), DG_INVALID_ARGUMENT, "comparison");
    assert_refused(dg_compare(&x, &x, &old), DG_INVALID_ARGUMENT, "struct_bytes");
    assert_refused(dg_compare(&x, &tall, &c), DG_INVALID_ARGUMENT, "result");
    assert_refused(dg_compare(&x, &absent, &c), DG_INVALID_ARGUMENT, "result.data");
    assert_refused(dg_compare(&codes, &x, &c), DG_UNSUPPORTED_TYPE, "reference.dtype");
    assert_memory_equal(&c, &before, sizeof c);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hand_computed),
        cmocka_unit_test(test_equal_zero_and_opposite),
        cmocka_unit_test(test_cosine_is_not_rounded),
        cmocka_unit_test(test_long_sums),
        cmocka_unit_test(test_non_finite_pairs_are_counted),
        cmocka_unit_test(test_spoiled_results_are_not_perfect),
        cmocka_unit_test(test_types_and_strides),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_bad_arguments),
    };
    return test_run(argc, argv, tests);
}
