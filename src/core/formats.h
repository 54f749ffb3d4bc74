/* SPDX-License-Identifier: MIT */
/*
 * The number formats, one scalar function for each conversion. These define the library's results:
 * every vector and GPU version must give the same bits. They are inline because kernels use them
 * for tails.
 *
 * Formats: E4M3FN and E5M2 after "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), UE8M0
 * after the OCP Microscaling specification 1.0, BF16 as the upper half of FP32, FP16 as IEEE 754
 * binary16. Narrowing rounds to nearest, ties to even.
 */
#ifndef DGI_FORMATS_H
#define DGI_FORMATS_H

#include "deepgemm.h"

#include <string.h>

#define DGI_E4M3_MAX 448.0f
#define DGI_E5M2_MAX 57344.0f

static inline float dgi_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t dgi_f32_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline bool dgi_f32_is_finite(float value)
{
    return (dgi_f32_to_bits(value) & 0x7F800000u) != 0x7F800000u;
}

static inline bool dgi_is_fp8(dg_dtype dtype)
{
    return dtype == DG_E4M3 || dtype == DG_E5M2;
}

static inline float dgi_fp8_max(dg_dtype dtype)
{
    return dtype == DG_E4M3 ? DGI_E4M3_MAX : DGI_E5M2_MAX;
}

/* ---- widening: exact ----------------------------------------------------------------- */

static inline float dgi_f32_from_bf16(uint16_t code)
{
    return dgi_f32_from_bits((uint32_t)code << 16);
}

/*
 * A small float of `mantissa` bits and exponent bias `bias`, without its special values. A
 * subnormal is its mantissa times the smallest step.
 */
static inline float dgi_f32_from_small(uint32_t magnitude, int mantissa, int bias)
{
    uint32_t exponent = magnitude >> mantissa;
    uint32_t fraction = magnitude & ((1u << mantissa) - 1);
    if (exponent == 0)
        return (float)fraction * dgi_f32_from_bits((uint32_t)(127 + 1 - bias - mantissa) << 23);
    return dgi_f32_from_bits((exponent + 127 - (uint32_t)bias) << 23 | fraction << (23 - mantissa));
}

static inline float dgi_f32_with_sign(float magnitude, bool negative)
{
    return dgi_f32_from_bits(dgi_f32_to_bits(magnitude) | (negative ? 0x80000000u : 0));
}

static inline float dgi_f32_from_f16(uint16_t code)
{
    uint32_t magnitude = code & 0x7FFF;
    float value = magnitude >= 0x7C00 /* infinity and NaN keep their payload */
                      ? dgi_f32_from_bits(0x7F800000u | (magnitude & 0x3FF) << 13)
                      : dgi_f32_from_small(magnitude, 10, 15);
    return dgi_f32_with_sign(value, code >> 15);
}

static inline float dgi_f32_from_e4m3(uint8_t code)
{
    uint32_t magnitude = code & 0x7F;
    float value =
        magnitude == 0x7F ? dgi_f32_from_bits(0x7FC00000u) : dgi_f32_from_small(magnitude, 3, 7);
    return dgi_f32_with_sign(value, code >> 7);
}

/* E5M2 is the upper half of FP16. */
static inline float dgi_f32_from_e5m2(uint8_t code)
{
    return dgi_f32_from_f16((uint16_t)(code << 8));
}

static inline float dgi_f32_from_fp8(dg_dtype dtype, uint8_t code)
{
    return dtype == DG_E4M3 ? dgi_f32_from_e4m3(code) : dgi_f32_from_e5m2(code);
}

static inline float dgi_f32_from_ue8m0(uint8_t code)
{
    if (code == 0xFF)
        return dgi_f32_from_bits(0x7FC00000u);
    return code == 0 ? dgi_f32_from_bits(0x00400000u) /* 2^-127, a subnormal */
                     : dgi_f32_from_bits((uint32_t)code << 23);
}

/* ---- narrowing: round to nearest even ------------------------------------------------ */

static inline uint16_t dgi_bf16_from_f32(float value)
{
    uint32_t bits = dgi_f32_to_bits(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN, made quiet */
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/*
 * |value| in steps of a small float, as its code without sign. The code of a finite magnitude is
 * an integer that grows by one with each representable value, so rounding may carry into the
 * exponent and past the largest code; the caller looks at that. `value` is finite and not negative.
 */
static inline uint32_t dgi_small_from_f32(float value, int mantissa, int bias)
{
    uint32_t bits = dgi_f32_to_bits(value);
    if (bits < (uint32_t)(127 + 1 - bias) << 23) {
        /* Below the smallest normal: adding 2^23 steps leaves the rounded count in the low bits. */
        float anchor = dgi_f32_from_bits((uint32_t)(127 + 1 - bias - mantissa + 23) << 23);
        return dgi_f32_to_bits(value + anchor) - dgi_f32_to_bits(anchor);
    }
    int shift = 23 - mantissa;
    uint32_t rounded = bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1);
    return (rounded >> shift) - ((uint32_t)(127 - bias) << mantissa);
}

static inline uint16_t dgi_f16_from_f32(float value)
{
    uint32_t bits = dgi_f32_to_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00 | (magnitude >> 13 & 0x3FF));
    if (magnitude == 0x7F800000u)
        return (uint16_t)(sign | 0x7C00);
    uint32_t code = dgi_small_from_f32(dgi_f32_from_bits(magnitude), 10, 15);
    return (uint16_t)(sign | (code > 0x7C00 ? 0x7C00 : code));
}

/*
 * FP8 from FP32. `largest` is the largest finite code, `infinity` what an overflow becomes under
 * DG_OVERFLOW_IEEE, `nan` the NaN code, all without sign.
 */
static inline uint8_t dgi_fp8_from_f32_as(float value, dg_overflow overflow, int mantissa, int bias,
                                          uint32_t largest, uint32_t infinity, uint32_t nan)
{
    uint32_t bits = dgi_f32_to_bits(value);
    uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint8_t)(sign | nan);
    uint32_t code = magnitude == 0x7F800000u
                        ? largest + 1
                        : dgi_small_from_f32(dgi_f32_from_bits(magnitude), mantissa, bias);
    if (code > largest)
        code = overflow == DG_SATURATE ? largest : infinity;
    return (uint8_t)(sign | code);
}

static inline uint8_t dgi_e4m3_from_f32(float value, dg_overflow overflow)
{
    return dgi_fp8_from_f32_as(value, overflow, 3, 7, 0x7E, 0x7F, 0x7F);
}

static inline uint8_t dgi_e5m2_from_f32(float value, dg_overflow overflow)
{
    return dgi_fp8_from_f32_as(value, overflow, 2, 15, 0x7B, 0x7C, 0x7E);
}

static inline uint8_t dgi_fp8_from_f32(dg_dtype dtype, float value, dg_overflow overflow)
{
    return dtype == DG_E4M3 ? dgi_e4m3_from_f32(value, overflow)
                            : dgi_e5m2_from_f32(value, overflow);
}

/* ---- by type ------------------------------------------------------------------------- */

/* Element `index` of a contiguous array of that type, which may be unaligned. */
static inline float dgi_load_f32(const void *data, dg_dtype dtype, int64_t index)
{
    float value;
    uint16_t half;
    switch (dtype) {
    case DG_F32:
        memcpy(&value, (const char *)data + 4 * index, sizeof value);
        return value;
    case DG_F16:
        memcpy(&half, (const char *)data + 2 * index, sizeof half);
        return dgi_f32_from_f16(half);
    case DG_BF16:
        memcpy(&half, (const char *)data + 2 * index, sizeof half);
        return dgi_f32_from_bf16(half);
    case DG_E4M3:
        return dgi_f32_from_e4m3(((const uint8_t *)data)[index]);
    case DG_E5M2:
        return dgi_f32_from_e5m2(((const uint8_t *)data)[index]);
    case DG_UE8M0:
        return dgi_f32_from_ue8m0(((const uint8_t *)data)[index]);
    case DG_NONE:
        break;
    }
    return 0.0f;
}

/* Stores `value` as element `index`. UE8M0 takes the value's exponent: it must be exact. */
static inline void dgi_store_f32(void *data, dg_dtype dtype, int64_t index, float value,
                                 dg_overflow overflow)
{
    uint16_t half;
    switch (dtype) {
    case DG_F32:
        memcpy((char *)data + 4 * index, &value, sizeof value);
        break;
    case DG_F16:
        half = dgi_f16_from_f32(value);
        memcpy((char *)data + 2 * index, &half, sizeof half);
        break;
    case DG_BF16:
        half = dgi_bf16_from_f32(value);
        memcpy((char *)data + 2 * index, &half, sizeof half);
        break;
    case DG_E4M3:
        ((uint8_t *)data)[index] = dgi_e4m3_from_f32(value, overflow);
        break;
    case DG_E5M2:
        ((uint8_t *)data)[index] = dgi_e5m2_from_f32(value, overflow);
        break;
    case DG_UE8M0:
        ((uint8_t *)data)[index] = (uint8_t)(dgi_f32_to_bits(value) >> 23);
        break;
    case DG_NONE:
        break;
    }
}

/* ---- dynamic scales ------------------------------------------------------------------ */

/*
 * The scale of a block whose largest finite magnitude is `amax`: see dg_quantize. A power of two
 * is the FP32 quotient's exponent, plus one when rounding up and any mantissa bit is set.
 */
static inline float dgi_dynamic_scale(float amax, float floor, dg_dtype code,
                                      dg_scale_rounding rounding)
{
    if (amax < floor)
        amax = floor;
    if (amax == 0.0f)
        return 1.0f;
    float scale = amax / dgi_fp8_max(code);
    const float smallest = dgi_f32_from_bits(1u << 23); /* 2^-126 */
    if (scale < smallest)
        scale = smallest;
    if (rounding == DG_SCALE_EXACT)
        return scale;
    uint32_t bits = dgi_f32_to_bits(scale);
    if (rounding == DG_SCALE_POW2_UP)
        bits += 0x7FFFFF;
    return dgi_f32_from_bits(bits & 0x7F800000u);
}

/* ---- scale arrays -------------------------------------------------------------------- */

/* The scale at (row, col) of the scale array (not of the matrix). */
static inline float dgi_scale_at(const dg_scale *scale, int64_t row, int64_t col)
{
    return dgi_load_f32(scale->data, scale->dtype, row * scale->row_stride + col * scale->col_stride);
}

/* Which scale row or column serves matrix row or column `index`. */
static inline int64_t dgi_scale_index(int64_t index, int32_t block, int32_t phase)
{
    return block == 0 ? 0 : (index + phase) / block;
}

#endif
