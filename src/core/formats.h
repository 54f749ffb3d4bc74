/* SPDX-License-Identifier: MIT */
/*
 * The number formats, one scalar function for each conversion. These define the library's results:
 * every vector and GPU version must give the same bits. They are inline and free of branches,
 * so that a plain loop over them becomes vector code in a file compiled for an instruction set.
 *
 * Formats: E4M3FN and E5M2 after "FP8 Formats for Deep Learning" (Micikevicius et al., 2022), UE8M0
 * after the OCP Microscaling specification 1.0, BF16 as the upper half of FP32, FP16 as IEEE 754
 * binary16. Narrowing rounds to nearest, ties to even.
 */
#ifndef DGI_FORMATS_H
#define DGI_FORMATS_H

#include "deepgemm.h"

#include <float.h>
#include <string.h>

#define DGI_E4M3_MAX 448.0f
#define DGI_E5M2_MAX 57344.0f

/* Bit patterns of FP32. */
#define DGI_F32_INFINITY 0x7F800000u
#define DGI_F32_NAN      0x7FC00000u

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

/* `condition ? yes : no` by a mask: compilers make no vectors of a choice that skips FP operations.
 */
static inline uint32_t dgi_choose(bool condition, uint32_t yes, uint32_t no)
{
    uint32_t mask = -(uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline bool dgi_f32_is_finite(float value)
{
    return (dgi_f32_to_bits(value) & DGI_F32_INFINITY) != DGI_F32_INFINITY;
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
 * The bits of a small float of `mantissa` bits and exponent bias `bias`, without sign and special
 * values, as FP32. A subnormal gets the leading one of the smallest normal, which is subtracted
 * again.
 */
static inline uint32_t dgi_f32_bits_from_small(uint32_t magnitude, int mantissa, int bias)
{
    uint32_t rebias = (uint32_t)(127 - bias) << 23;
    uint32_t normal = (magnitude << (23 - mantissa)) + rebias;
    uint32_t one = rebias + (1u << 23);
    uint32_t subnormal =
        dgi_f32_to_bits(dgi_f32_from_bits(normal + (1u << 23)) - dgi_f32_from_bits(one));
    return dgi_choose(normal < one, subnormal, normal);
}

static inline float dgi_f32_from_f16(uint16_t code)
{
    uint32_t magnitude = code & 0x7FFF, sign = (uint32_t)(code & 0x8000) << 16;
    uint32_t finite = dgi_f32_bits_from_small(magnitude, 10, 15);
    uint32_t special = 0x7F800000u | (magnitude & 0x3FF) << 13; /* infinity and NaN payloads */
    return dgi_f32_from_bits(sign | dgi_choose(magnitude >= 0x7C00, special, finite));
}

static inline float dgi_f32_from_e4m3(uint8_t code)
{
    uint32_t magnitude = code & 0x7F, sign = (uint32_t)(code & 0x80) << 24;
    uint32_t finite = dgi_f32_bits_from_small(magnitude, 3, 7);
    return dgi_f32_from_bits(sign | dgi_choose(magnitude == 0x7F, DGI_F32_NAN, finite));
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
        return dgi_f32_from_bits(DGI_F32_NAN);
    return code == 0 ? dgi_f32_from_bits(0x00400000u) /* 2^-127, a subnormal */
                     : dgi_f32_from_bits((uint32_t)code << 23);
}

/* ---- narrowing: round to nearest even ------------------------------------------------ */

static inline uint16_t dgi_bf16_from_f32(float value)
{
    uint32_t bits = dgi_f32_to_bits(value);
    uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
    uint32_t quiet = bits | 0x400000; /* NaN stays NaN, made quiet */
    return (uint16_t)(dgi_choose((bits & 0x7FFFFFFFu) > DGI_F32_INFINITY, quiet, rounded) >> 16);
}

/*
 * The code without sign of a magnitude (given as FP32 bits) in a small float. Adding an anchor that
 * is 2^(23 - mantissa) times the magnitude's power of two (at least the smallest normal's) makes
 * the FP32 addition round to the small float's step; what the sum exceeds the anchor by counts
 * steps. Codes of positive values are consecutive, so a count that reaches the next power of two
 * carries by itself. `limit` (FP32 bits) replaces what is larger, NaN included.
 */
static inline uint32_t dgi_small_from_f32(uint32_t magnitude, uint32_t limit, int mantissa,
                                          int bias)
{
    uint32_t smallest = (uint32_t)(127 + 1 - bias) << 23;
    uint32_t clamped = magnitude < limit ? magnitude : limit;
    uint32_t power = clamped & DGI_F32_INFINITY;
    power = power > smallest ? power : smallest;
    uint32_t anchor = power + ((uint32_t)(23 - mantissa) << 23);
    float sum = dgi_f32_from_bits(clamped) + dgi_f32_from_bits(anchor);
    return dgi_f32_to_bits(sum) - anchor + ((power - smallest) >> (23 - mantissa));
}

static inline uint16_t dgi_f16_from_f32(float value)
{
    uint32_t bits = dgi_f32_to_bits(value), magnitude = bits & 0x7FFFFFFFu;
    const uint32_t overflow = (127 + 16) << 23; /* 2^16, one step above 65504, is infinity's code */
    uint32_t code = dgi_small_from_f32(magnitude, overflow, 10, 15);
    uint32_t nan = 0x7E00 | (magnitude >> 13 & 0x3FF);
    return (uint16_t)((bits >> 16 & 0x8000) | dgi_choose(magnitude > DGI_F32_INFINITY, nan, code));
}

/*
 * FP8 from FP32. `limit` is the largest magnitude that can result: under DG_OVERFLOW_IEEE one step
 * above the largest finite value, where E4M3 has its NaN and E5M2 its infinity. NaN becomes all
 * ones behind its sign. Written for compilers: a mask in place of a choice keeps the loop a vector
 * loop, and a minimum as the last step, like the result of 32 bits, keeps them from narrowing each
 * step.
 */
static inline uint32_t dgi_fp8_from_f32_as(float value, float limit, int mantissa, int bias)
{
    uint32_t bits = dgi_f32_to_bits(value), magnitude = bits & 0x7FFFFFFFu;
    uint32_t code = dgi_small_from_f32(magnitude, dgi_f32_to_bits(limit), mantissa, bias);
    code |= -(uint32_t)(magnitude > DGI_F32_INFINITY);
    code = code < 0x7F ? code : 0x7F;
    return code | (bits >> 24 & 0x80);
}

static inline uint32_t dgi_e4m3_from_f32(float value, dg_overflow overflow)
{
    return dgi_fp8_from_f32_as(value, overflow == DG_SATURATE ? DGI_E4M3_MAX : 480.0f, 3, 7);
}

static inline uint32_t dgi_e5m2_from_f32(float value, dg_overflow overflow)
{
    return dgi_fp8_from_f32_as(value, overflow == DG_SATURATE ? DGI_E5M2_MAX : 65536.0f, 2, 15);
}

static inline uint32_t dgi_fp8_from_f32(dg_dtype dtype, float value, dg_overflow overflow)
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
        ((uint8_t *)data)[index] = (uint8_t)dgi_e4m3_from_f32(value, overflow);
        break;
    case DG_E5M2:
        ((uint8_t *)data)[index] = (uint8_t)dgi_e5m2_from_f32(value, overflow);
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
    return dgi_f32_from_bits(bits & DGI_F32_INFINITY);
}

/*
 * What quantisation multiplies by: 1 / scale, kept finite, so that no zero becomes NaN when the
 * scale is so small (below 2^-128) that FP32 cannot hold its reciprocal.
 */
static inline float dgi_scale_reciprocal(float scale)
{
    float reciprocal = 1.0f / scale;
    return reciprocal < FLT_MAX ? reciprocal : FLT_MAX;
}

/* ---- scale arrays -------------------------------------------------------------------- */

/* The scale at (row, col) of the scale array (not of the matrix). */
static inline float dgi_scale_at(const dg_scale *scale, int64_t row, int64_t col)
{
    return dgi_load_f32(scale->data, scale->dtype,
                        row * scale->row_stride + col * scale->col_stride);
}

/* Which scale row or column serves matrix row or column `index`. */
static inline int64_t dgi_scale_index(int64_t index, int32_t block, int32_t phase)
{
    return block == 0 ? 0 : (index + phase) / block;
}

#endif
