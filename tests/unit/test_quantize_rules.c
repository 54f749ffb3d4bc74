/* SPDX-License-Identifier: MIT */
/*
 * The rules of quantisation on inputs that people got hurt by: zero blocks, NaN and infinities,
 * static scales that are too small, powers of two in both directions, empty tensors, offsets beyond
 * 32 bits, and scales that must be refused.
 */
#include "core/formats.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* These rules look at results element by element, so they run where memory is the host's. */
static dg_context *cpu_context(void)
{
    dg_context *context = NULL;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    return context;
}

static dg_quantize quantize_of(const void *input, dg_dtype dtype, uint8_t *codes, void *scales,
                               dg_dtype scale_dtype, int64_t rows, int64_t cols, int32_t block_rows,
                               int32_t block_cols)
{
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of((void *)input, dtype, rows, cols);
    q.output = dg_matrix_of(codes, DG_E4M3, rows, cols);
    q.scale = dg_scale_of(scales, scale_dtype, rows, cols, block_rows, block_cols);
    return q;
}

static void quantize_f32(const dg_quantize *q)
{
    dg_context *context = cpu_context();
    assert_ok(dg_quantize_run(context, q, NULL));
    dg_destroy(context);
}

/* What the codes of `q` stand for. */
static void dequantize_f32(const dg_quantize *q, float *values)
{
    dg_context *context = cpu_context();
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    d.input = q->output;
    d.scale = q->scale;
    d.output = dg_matrix_of(values, DG_F32, q->output.rows, q->output.cols);
    assert_ok(dg_dequantize_run(context, &d, NULL));
    dg_destroy(context);
}

/* G10: for every type of input, code and scale. */
static void zero_blocks_get_a_usable_scale(void **state)
{
    (void)state;
    enum { N = 256 };
    static float values[N * N];
    static uint32_t input[N * N];
    static uint8_t codes[N * N], scales[N * 2 * sizeof(float)];
    static const int32_t blocks[][2] = {{128, 128}, {1, 128}, {1, 0}, {0, 0}};
    static const dg_dtype inputs[] = {DG_F32, DG_BF16, DG_F16};
    static const struct {
        dg_dtype code, scale;
        float of_one; /* the scale of a block whose largest value is 1 */
        uint8_t one;
    } kinds[] = {{DG_E4M3, DG_F32, 1.0f / 448.0f, 0x7E},
                 {DG_E5M2, DG_F32, 1.0f / 57344.0f, 0x7B},
                 {DG_E4M3, DG_UE8M0, 0x1p-8f, 0x78},
                 {DG_E5M2, DG_UE8M0, 0x1p-15f, 0x78}};
    for (int b = 0; b < 4; b++)
        for (int t = 0; t < 3; t++)
            for (int i = 0; i < 8; i++) {
                const int kind = i / 2, one = i % 2; /* all zero, and all zero but one */
                memset(input, 0, sizeof input);
                dgi_store_f32(input, inputs[t], 0, (float)one, DG_SATURATE);
                dg_quantize q = quantize_of(input, inputs[t], codes, scales, kinds[kind].scale, N,
                                            N, blocks[b][0], blocks[b][1]);
                q.output.dtype = kinds[kind].code;
                q.rounding = kinds[kind].scale == DG_UE8M0 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;
                quantize_f32(&q);
                dequantize_f32(&q, values);
                for (int64_t j = 0; j < q.scale.rows * q.scale.cols; j++)
                    assert_true(dgi_load_f32(scales, kinds[kind].scale, j) ==
                                (one && j == 0 ? kinds[kind].of_one : 1.0f));
                for (int j = one; j < N * N; j++)
                    assert_true(codes[j] == 0 && values[j] == 0.0f);
                if (one) {
                    assert_int_equal(codes[0], kinds[kind].one);
                    assert_true(fabsf(values[0] - 1.0f) <= 0x1p-23f);
                }
            }
}

/* G11 */
static void static_scales_saturate_and_count(void **state)
{
    (void)state;
    const float input[] = {10, 500, -1000};
    float one = 1.0f;
    uint8_t codes[3];
    dg_quantize_counts counts;
    dg_quantize q = quantize_of(input, DG_F32, codes, &one, DG_F32, 1, 3, 0, 0);
    q.source = DG_SCALE_GIVEN;
    q.counts = &counts;
    quantize_f32(&q);
    assert_memory_equal(codes, ((uint8_t[]){0x52, 0x7E, 0xFE}), 3);
    assert_int_equal(counts.saturated, 2);
    assert_int_equal(counts.underflow, 0);
    assert_int_equal(counts.non_finite, 0);
    q.overflow = DG_OVERFLOW_IEEE;
    quantize_f32(&q);
    assert_memory_equal(codes, ((uint8_t[]){0x52, 0x7F, 0xFF}), 3);
}

/* G11: a scale whose reciprocal FP32 cannot hold must not turn zeros into NaN. */
static void tiny_scales_make_no_nan(void **state)
{
    (void)state;
    const float input[] = {0.0f, 1e-40f, -2.0f};
    float scale = 1e-45f;
    uint8_t codes[3];
    dg_quantize q = quantize_of(input, DG_F32, codes, &scale, DG_F32, 1, 3, 0, 0);
    q.source = DG_SCALE_GIVEN;
    quantize_f32(&q);
    assert_int_equal(codes[0], 0x00);
    assert_int_equal(codes[2], 0xFE);
    assert_true((codes[1] & 0x7F) != 0x7F);
}

/* G13 */
static void nan_and_infinity_stay_alone(void **state)
{
    (void)state;
    float input[2 * 128], values[2 * 128], scales[2];
    uint8_t codes[2 * 128];
    for (int i = 0; i < 2 * 128; i++)
        input[i] = 1.0f;
    input[5] = NAN;
    input[128 + 9] = INFINITY;
    dg_quantize_counts counts;
    dg_quantize q = quantize_of(input, DG_F32, codes, scales, DG_F32, 2, 128, 1, 128);
    q.counts = &counts;
    quantize_f32(&q);
    dequantize_f32(&q, values);
    for (int i = 0; i < 2 * 128; i++)
        if (i == 5)
            assert_true(isnan(values[i]));
        else
            assert_int_equal(codes[i], 0x7E); /* the infinity saturates, its neighbours are 1.0 */
    assert_true(scales[0] == 1.0f / 448.0f && scales[1] == scales[0]);
    assert_int_equal(counts.non_finite, 2);
    assert_int_equal(counts.saturated, 1);
}

/* G17 */
static void powers_of_two_round_as_told(void **state)
{
    (void)state;
    float input[32] = {957.0f}, value[32];
    uint8_t codes[32], byte;
    dg_quantize q = quantize_of(input, DG_F32, codes, &byte, DG_UE8M0, 1, 32, 1, 32);
    q.rounding = DG_SCALE_POW2_UP;
    quantize_f32(&q);
    dequantize_f32(&q, value);
    assert_true(byte == 129 && codes[0] == 0x77 && value[0] == 960.0f);
    q.rounding = DG_SCALE_POW2_DOWN;
    quantize_f32(&q);
    dequantize_f32(&q, value);
    assert_true(byte == 128 && codes[0] == 0x7E && value[0] == 896.0f);
    q.rounding = DG_SCALE_EXACT;
    dg_context *context = cpu_context();
    assert_refused(dg_quantize_run(context, &q, NULL), DG_UNSUPPORTED_SCALE, "rounding");
    dg_destroy(context);
}

/* G17: rounding up, nothing saturates, however close amax is to a power of two times 448. */
static void rounding_up_never_saturates(void **state)
{
    (void)state;
    rng r = rng_new(1);
    static float input[4096 * 32];
    static uint8_t codes[4096 * 32], bytes[4096];
    for (int i = 0; i < 4096 * 32; i++) {
        float edge = ldexpf(448.0f, (int)rng_range(&r, -120, 100));
        input[i] = dgi_f32_from_bits(dgi_f32_to_bits(edge) + (uint32_t)rng_range(&r, -2, 2));
    }
    dg_quantize_counts counts;
    dg_quantize q = quantize_of(input, DG_F32, codes, bytes, DG_UE8M0, 4096, 32, 1, 32);
    q.rounding = DG_SCALE_POW2_UP;
    q.counts = &counts;
    quantize_f32(&q);
    assert_int_equal(counts.saturated, 0);
}

static void a_floor_replaces_a_smaller_amax(void **state)
{
    (void)state;
    const float input[] = {0.5f, 0.0f, 2.0f};
    float scales[3];
    uint8_t codes[3];
    dg_quantize q = quantize_of(input, DG_F32, codes, scales, DG_F32, 3, 1, 1, 0);
    q.amax_floor = 1.0f;
    quantize_f32(&q);
    assert_true(scales[0] == 1.0f / 448.0f && scales[1] == scales[0]);
    assert_true(scales[2] == 2.0f / 448.0f);
}

/* G06 */
static void empty_tensors(void **state)
{
    (void)state;
    dg_context *context = cpu_context();
    float scales[2] = {7.0f, 7.0f};
    dg_quantize_counts counts = {7, 7, 7};
    for (int32_t rows = 0; rows < 2; rows++) {
        scales[0] = 7.0f;
        dg_quantize q =
            quantize_of(NULL, DG_BF16, NULL, scales, DG_F32, rows ? 256 : 0, rows ? 0 : 256, 0, 0);
        q.counts = &counts;
        assert_ok(dg_quantize_run(context, &q, NULL));
        assert_true(scales[0] == 1.0f && scales[1] == 7.0f);
        assert_true(counts.saturated == 0 && counts.underflow == 0 && counts.non_finite == 0);
        dg_dequantize d = DG_DEQUANTIZE_INIT;
        d.input = q.output, d.scale = q.scale, d.output = q.input;
        assert_ok(dg_dequantize_run(context, &d, NULL));
    }
    /* Without a single scale, whatever the strides of the empty array. */
    dg_quantize q = quantize_of(NULL, DG_BF16, NULL, NULL, DG_F32, 0, 256, 1, 128);
    assert_ok(dg_quantize_run(context, &q, NULL));
    q = quantize_of(NULL, DG_BF16, NULL, NULL, DG_F32, 2, 0, 1, 1);
    assert_int_equal(q.scale.rows, 2);
    assert_int_equal(q.scale.cols, 0);
    assert_ok(dg_quantize_run(context, &q, NULL));
    dg_destroy(context);
}

/* G03: row pitches that carry offsets past 2^31 elements; only the touched pages take memory. */
static void offsets_pass_31_bits(void **state)
{
    (void)state;
    enum { ROWS = 65600, COLS = 16, PITCH = 32784 };
    size_t bytes = (size_t)ROWS * PITCH;
    uint16_t *input = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint8_t *codes = calloc(ROWS, COLS);
    float *scales = malloc(sizeof *scales * ROWS);
    assert_true(input != MAP_FAILED && codes != NULL && scales != NULL);
    for (int64_t r = ROWS - 40; r < ROWS; r++)
        for (int64_t c = 0; c < COLS; c++)
            input[r * PITCH + c] = dgi_bf16_from_f32((float)(r % 40 + 1) * (float)(c + 1));
    dg_quantize q = quantize_of(input, DG_BF16, codes, scales, DG_F32, ROWS, COLS, 1, 128);
    q.input.ld = PITCH;
    quantize_f32(&q);

    float alone_scales[40];
    uint8_t alone[40 * COLS];
    dg_quantize last = q;
    last.input.data = input + (int64_t)(ROWS - 40) * PITCH;
    last.output = dg_matrix_of(alone, DG_E4M3, 40, COLS);
    last.input.rows = 40;
    last.scale = dg_scale_of(alone_scales, DG_F32, 40, COLS, 1, 128);
    quantize_f32(&last);
    assert_memory_equal(alone, codes + (int64_t)(ROWS - 40) * COLS, sizeof alone);
    assert_memory_equal(alone_scales, scales + ROWS - 40, sizeof alone_scales);
    assert_true(alone[0] != 0);
    munmap(input, 2 * bytes);
    free(codes), free(scales);
}

/* The same for results: rows of codes and of dequantised values far apart equal those side by side.
 */
static void far_apart_results(void **state)
{
    (void)state;
    enum { ROWS = 70, COLS = 33 };
    const int64_t pitch = (int64_t)1 << 25; /* 69 rows down: 2.3e9 elements */
    const size_t bytes = (size_t)(ROWS * pitch) * sizeof(float);
    float input[ROWS * COLS], scales[ROWS], values[ROWS * COLS];
    uint8_t codes[ROWS * COLS];
    rng r = rng_new(2);
    rng_fill_normal(&r, input, DG_F32, (int64_t)ROWS * COLS, 1.0);
    dg_quantize q = quantize_of(input, DG_F32, codes, scales, DG_F32, ROWS, COLS, 1, 0);
    quantize_f32(&q);
    dequantize_f32(&q, values);

    char *far = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(far != MAP_FAILED);
    q.output.data = far;
    q.output.ld = pitch;
    quantize_f32(&q);
    for (int64_t row = 0; row < ROWS; row++)
        assert_memory_equal(far + row * pitch, codes + row * COLS, COLS);

    dg_dequantize d = DG_DEQUANTIZE_INIT;
    d.input = dg_matrix_of(codes, DG_E4M3, ROWS, COLS);
    d.scale = q.scale;
    d.output = dg_matrix_of(far, DG_F32, ROWS, COLS);
    d.output.ld = pitch;
    dg_context *context = cpu_context();
    assert_ok(dg_dequantize_run(context, &d, NULL));
    dg_destroy(context);
    for (int64_t row = 0; row < ROWS; row++)
        assert_memory_equal((float *)far + row * pitch, values + row * COLS, COLS * sizeof(float));
    munmap(far, bytes);
}

static void bad_given_scales_are_refused(void **state)
{
    (void)state;
    dg_context *context = cpu_context();
    const float bad[] = {0.0f, -1.0f, NAN, INFINITY};
    const float input[256] = {1.0f};
    uint8_t codes[256];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float scales[2] = {1.0f, bad[i]};
        memset(codes, 0xA5, sizeof codes);
        dg_quantize q = quantize_of(input, DG_F32, codes, scales, DG_F32, 1, 256, 1, 128);
        q.source = DG_SCALE_GIVEN;
        assert_refused(dg_quantize_run(context, &q, NULL), DG_UNSUPPORTED_SCALE, "scale (0, 1)");
        for (size_t c = 0; c < sizeof codes; c++)
            assert_int_equal(codes[c], 0xA5);
    }
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_blocks_get_a_usable_scale),
        cmocka_unit_test(static_scales_saturate_and_count),
        cmocka_unit_test(tiny_scales_make_no_nan),
        cmocka_unit_test(nan_and_infinity_stay_alone),
        cmocka_unit_test(powers_of_two_round_as_told),
        cmocka_unit_test(rounding_up_never_saturates),
        cmocka_unit_test(a_floor_replaces_a_smaller_amax),
        cmocka_unit_test(empty_tensors),
        cmocka_unit_test(offsets_pass_31_bits),
        cmocka_unit_test(far_apart_results),
        cmocka_unit_test(bad_given_scales_are_refused),
    };
    return test_run(argc, argv, tests);
}
