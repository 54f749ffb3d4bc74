/* SPDX-License-Identifier: MIT */
/*
 * The number formats against an independent definition: each format is described by its numbers of
 * bits, its values are written with ldexp in double precision, and narrowing searches the nearest
 * of them. Every code, every 16-bit input, and FP32 inputs dense around each value and each tie.
 */
#include "core/formats.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <string.h>

/* ---- the definition -------------------------------------------------------------------- */

typedef struct format {
    dg_dtype dtype;
    int exponent_bits, mantissa_bits;
    uint32_t largest; /* the largest finite code; codes above it are infinity and NaN */
    bool has_infinity;
} format;

static const format formats[] = {{DG_F32, 8, 23, 0x7F7FFFFF, true},
                                 {DG_F16, 5, 10, 0x7BFF, true},
                                 {DG_BF16, 8, 7, 0x7F7F, true},
                                 {DG_E4M3, 4, 3, 0x7E, false},
                                 {DG_E5M2, 5, 2, 0x7B, true}};

static const format *format_of(dg_dtype dtype)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    fail_msg("no such format");
    return NULL;
}

static int code_bits(const format *f)
{
    return 1 + f->exponent_bits + f->mantissa_bits;
}

/* The value of a finite code without sign; beyond the largest, what the code would be if finite. */
static double magnitude_of(const format *f, uint32_t code)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(code >> f->mantissa_bits);
    double fraction = ldexp((double)(code & ((1u << f->mantissa_bits) - 1)), -f->mantissa_bits);
    return exponent == 0 ? ldexp(fraction, 1 - bias) : ldexp(1.0 + fraction, exponent - bias);
}

static double value_of(const format *f, uint32_t code)
{
    uint32_t sign = 1u << (code_bits(f) - 1), magnitude = code & (sign - 1);
    double value = magnitude <= f->largest                          ? magnitude_of(f, magnitude)
                   : f->has_infinity && magnitude == f->largest + 1 ? (double)INFINITY
                                                                    : (double)NAN;
    return code & sign ? -value : value;
}

/* The code without sign whose value is nearest to a magnitude; of two, the even one. */
static uint32_t nearest(const format *f, double magnitude)
{
    uint32_t low = 0, high = f->largest + 1; /* the value sought lies in [low, high] */
    if (magnitude >= magnitude_of(f, high))
        return high;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (magnitude_of(f, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - magnitude_of(f, low), above = magnitude_of(f, high) - magnitude;
    return below < above || (below == above && low % 2 == 0) ? low : high;
}

/* Whether `code` is what narrowing `value` must give. Any NaN will do for NaN, but for its sign. */
static bool narrows_to(const format *f, double value, dg_overflow overflow, uint32_t code)
{
    uint32_t sign = 1u << (code_bits(f) - 1);
    if (!!signbit(value) != !!(code & sign))
        return false;
    code &= sign - 1;
    uint32_t first_nan = f->largest + 1 + f->has_infinity;
    if (isnan(value))
        return code >= first_nan;
    uint32_t expected = nearest(f, fabs(value));
    bool saturates = dgi_is_fp8(f->dtype) && overflow == DG_SATURATE;
    if (expected > f->largest) /* infinity, or E4M3's NaN, which lies in its place */
        expected = saturates ? f->largest : f->largest + 1;
    return code == expected;
}

/* ---- conversions under test ------------------------------------------------------------ */

static uint32_t read_code(const void *data, const format *f, int64_t index)
{
    uint32_t code = 0;
    size_t bytes = dg_dtype_bytes(f->dtype);
    memcpy(&code, (const char *)data + index * (int64_t)bytes, bytes);
    return code;
}

static void check_widening(const format *f, uint32_t code)
{
    float value;
    assert_ok(dg_convert(&code, f->dtype, &value, DG_F32, 1, DG_SATURATE));
    double expected = value_of(f, code);
    if (isnan(expected) ? !isnan(value) || !!signbit(value) != !!signbit(expected)
                        : memcmp(&(double){value}, &expected, sizeof expected) != 0)
        fail_msg("%s code %x widens to %g, not %g", dg_dtype_name(f->dtype), code, (double)value,
                 expected);
}

static void check_narrowing(const void *values, dg_dtype from, int64_t count)
{
    static uint32_t codes[1 << 16];
    assert_true(count <= 1 << 16);
    for (size_t i = 1; i < sizeof formats / sizeof formats[0]; i++)
        for (int overflow = DG_SATURATE; overflow <= DG_OVERFLOW_IEEE; overflow++) {
            const format *f = &formats[i];
            if (f->dtype == from)
                continue;
            assert_ok(dg_convert(values, from, codes, f->dtype, count, (dg_overflow)overflow));
            for (int64_t v = 0; v < count; v++) {
                double value = value_of(format_of(from), read_code(values, format_of(from), v));
                uint32_t code = read_code(codes, f, v);
                if (!narrows_to(f, value, (dg_overflow)overflow, code))
                    fail_msg("%s %a narrows to %s code %x, overflow %d", dg_dtype_name(from), value,
                             dg_dtype_name(f->dtype), code, overflow);
            }
        }
}

/* ---- tests ----------------------------------------------------------------------------- */

static void every_code_widens(void **state)
{
    (void)state;
    for (size_t i = 1; i < sizeof formats / sizeof formats[0]; i++)
        for (uint32_t code = 0; code < 1u << code_bits(&formats[i]); code++)
            check_widening(&formats[i], code);
    for (uint32_t byte = 0; byte < 256; byte++) {
        float value = dgi_f32_from_ue8m0((uint8_t)byte);
        if (byte == 255)
            assert_true(isnan(value));
        else
            assert_true((double)value == ldexp(1.0, (int)byte - 127));
    }
}

static void every_16_bit_input_narrows(void **state)
{
    (void)state;
    static uint16_t inputs[1 << 16];
    for (uint32_t code = 0; code < 1u << 16; code++)
        inputs[code] = (uint16_t)code;
    check_narrowing(inputs, DG_F16, 1 << 16);
    check_narrowing(inputs, DG_BF16, 1 << 16);
}

/* Each value of each format and each tie between two of them, with the FP32 numbers around them. */
static void f32_inputs_near_values_and_ties_narrow(void **state)
{
    (void)state;
    static float inputs[14 * 256];
    for (size_t i = 1; i < sizeof formats / sizeof formats[0]; i++) {
        const format *f = &formats[i];
        int64_t count = 0;
        for (uint32_t code = 0; code <= f->largest + 1; code++) {
            double value = magnitude_of(f, code);
            float centres[] = {(float)value, (float)((value + magnitude_of(f, code + 1)) / 2)};
            for (int c = 0; c < 2; c++)
                for (int step = -3; step <= 3; step++) {
                    uint32_t bits = dgi_f32_to_bits(centres[c]) + (uint32_t)step;
                    inputs[count++] = dgi_f32_from_bits(bits ^ (code % 2 ? 0x80000000u : 0));
                }
            if (count + 14 > (int64_t)(sizeof inputs / sizeof inputs[0]) ||
                code == f->largest + 1) {
                check_narrowing(inputs, DG_F32, count);
                count = 0;
            }
        }
    }
}

static void random_f32_inputs_narrow(void **state)
{
    (void)state;
    static uint32_t inputs[1 << 16];
    rng r = rng_new(1);
    for (int repeat = 0; repeat < 8; repeat++) {
        for (int i = 0; i < 1 << 16; i++)
            inputs[i] = (uint32_t)rng_next(&r);
        check_narrowing(inputs, DG_F32, 1 << 16);
    }
}

/* Requirements G11 and G12: what the formats do at their limits, in numbers that can be looked up.
 */
static void named_values(void **state)
{
    (void)state;
    const float inputs[] = {448, 464, 465, 1000, -1000, INFINITY, -INFINITY, NAN};
    const uint8_t saturated[] = {0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E, 0xFE, 0x7F};
    const uint8_t ieee[] = {0x7E, 0x7E, 0x7F, 0x7F, 0xFF, 0x7F, 0xFF, 0x7F};
    uint8_t codes[8];
    assert_ok(dg_convert(inputs, DG_F32, codes, DG_E4M3, 8, DG_SATURATE));
    assert_memory_equal(codes, saturated, 8);
    assert_ok(dg_convert(inputs, DG_F32, codes, DG_E4M3, 8, DG_OVERFLOW_IEEE));
    assert_memory_equal(codes, ieee, 8);

    const uint8_t bytes[] = {0x80, 0x7F, 0x40};
    float values[3];
    assert_ok(dg_convert(bytes, DG_E4M3, values, DG_F32, 3, DG_SATURATE));
    assert_true(values[0] == 0.0f && signbit(values[0]));
    assert_true(isnan(values[1]));
    assert_true(values[2] == 2.0f);
}

static void scales_convert_exactly_or_not_at_all(void **state)
{
    (void)state;
    uint8_t bytes[256], back[256];
    float values[256];
    for (int i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    assert_ok(dg_convert(bytes, DG_UE8M0, values, DG_F32, 256, DG_SATURATE));
    assert_ok(dg_convert(values, DG_F32, back, DG_UE8M0, 256, DG_SATURATE));
    assert_memory_equal(bytes, back, 256);

    const float refused[] = {0.75f, 0.0f, -1.0f, INFINITY, 0x1p-128f, 0x1.000002p0f};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        float pair[] = {1.0f, refused[i]};
        memset(back, 0xA5, 2);
        assert_refused(dg_convert(pair, DG_F32, back, DG_UE8M0, 2, DG_SATURATE),
                       DG_UNSUPPORTED_SCALE, "source[1]");
        assert_true(back[0] == 0xA5 && back[1] == 0xA5);
    }
}

static void refusals(void **state)
{
    (void)state;
    uint16_t half[4] = {0};
    float wide[4] = {0};
    assert_ok(dg_convert(NULL, DG_F32, NULL, DG_BF16, 0, DG_SATURATE));
    assert_refused(dg_convert(wide, DG_NONE, half, DG_BF16, 1, DG_SATURATE), DG_UNSUPPORTED_TYPE,
                   "source_dtype");
    assert_refused(dg_convert(wide, DG_F32, half, (dg_dtype)99, 1, DG_SATURATE),
                   DG_UNSUPPORTED_TYPE, "target_dtype is 99");
    assert_refused(dg_convert(wide, DG_F32, half, DG_BF16, 1, (dg_overflow)7), DG_INVALID_ARGUMENT,
                   "overflow is 7");
    assert_refused(dg_convert(wide, DG_F32, half, DG_BF16, -1, DG_SATURATE), DG_INVALID_ARGUMENT,
                   "count is -1");
    assert_refused(dg_convert(wide, DG_F32, half, DG_BF16, INT64_MAX, DG_SATURATE),
                   DG_INVALID_ARGUMENT, "count");
    assert_refused(dg_convert(NULL, DG_F32, half, DG_BF16, 1, DG_SATURATE), DG_INVALID_ARGUMENT,
                   "source is NULL");
    assert_refused(dg_convert(wide, DG_F32, NULL, DG_BF16, 1, DG_SATURATE), DG_INVALID_ARGUMENT,
                   "target is NULL");
    assert_refused(dg_convert(wide, DG_F32, (char *)wide + 14, DG_BF16, 4, DG_SATURATE),
                   DG_INVALID_ARGUMENT, "overlap");
}

static void names_and_sizes(void **state)
{
    (void)state;
    assert_int_equal(dg_dtype_bytes(DG_NONE), 0);
    assert_int_equal(dg_dtype_bytes((dg_dtype)-1), 0);
    assert_int_equal(dg_dtype_bytes(DG_F32), 4);
    assert_int_equal(dg_dtype_bytes(DG_UE8M0), 1);
    assert_string_equal(dg_dtype_name(DG_E4M3), "e4m3");
    assert_string_equal(dg_dtype_name((dg_dtype)99), "unknown");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_widens),
        cmocka_unit_test(every_16_bit_input_narrows),
        cmocka_unit_test(f32_inputs_near_values_and_ties_narrow),
        cmocka_unit_test(random_f32_inputs_narrow),
        cmocka_unit_test(named_values),
        cmocka_unit_test(scales_convert_exactly_or_not_at_all),
        cmocka_unit_test(refusals),
        cmocka_unit_test(names_and_sizes),
    };
    return test_run(argc, argv, tests);
}
