/* SPDX-License-Identifier: MIT */
/*
 * The body of dgi_row_kernels, written as plain loops over the scalar conversions of
 * core/formats.h. quantize_generic.c, quantize_avx2.c and quantize_avx512.c include it, each
 * compiled for its instruction set; the compiler turns the loops into vector code, and since every
 * element goes through the same operations in FP32, the bits are the same everywhere.
 *
 * Parameters: ROW_KERNELS, the name of the table to define, and optionally
 * ENCODE_BF16(input, codes, code_dtype, count, multipliers, overflow), which encodes BF16 elements
 * with a multiplier for each two and returns how many of them (an even number) it did.
 *
 * Types are constants at each place where a loop is expanded: the functions with a `dg_dtype`
 * argument are inlined into the switches at the end.
 */
#include "core/formats.h"
#include "cpu/quantize_rows.h"

#define INLINE static inline __attribute__((always_inline))

/* Steps through the blocks: `i` is a block's first element, `n` its size, `j` its index. */
#define FOR_EACH_BLOCK(blocks, i, n, j)                                                            \
    for (int64_t i = 0, j = 0, n = (blocks).head; i < (blocks).count; i += n, j++,                 \
                 n = (blocks).block < (blocks).count - i ? (blocks).block : (blocks).count - i)

/* The address of element `index`. */
INLINE const void *element(const void *data, dg_dtype dtype, int64_t index)
{
    return (const char *)data + index * (dtype == DG_F32 ? 4 : 2);
}

INLINE uint32_t magnitude_of(float value)
{
    return dgi_f32_to_bits(value) & 0x7FFFFFFFu;
}

INLINE uint32_t finite_magnitude(float value)
{
    uint32_t magnitude = magnitude_of(value);
    return magnitude < DGI_F32_INFINITY ? magnitude : 0;
}

/* ---- amax ---------------------------------------------------------------------------- */

INLINE uint32_t run_amax_f32(const void *input, int64_t count)
{
    uint32_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t magnitude = magnitude_of(dgi_load_f32(input, DG_F32, i));
        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

/* 16-bit types are compared as they are; only the result is widened. */
INLINE uint32_t run_amax_16(const void *input, dg_dtype dtype, int64_t count)
{
    uint16_t amax = 0;
    for (int64_t i = 0; i < count; i++) {
        uint16_t magnitude;
        memcpy(&magnitude, (const char *)input + 2 * i, sizeof magnitude);
        magnitude &= 0x7FFF;
        amax = magnitude > amax ? magnitude : amax;
    }
    return magnitude_of(dgi_load_f32(&amax, dtype, 0));
}

/* The rare run with a NaN or an infinity in it is read again without them. */
INLINE uint32_t run_amax(const void *input, dg_dtype dtype, int64_t count)
{
    uint32_t amax = dtype == DG_F32 ? run_amax_f32(input, count) : run_amax_16(input, dtype, count);
    if (amax < DGI_F32_INFINITY)
        return amax;
    amax = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t magnitude = finite_magnitude(dgi_load_f32(input, dtype, i));
        if (magnitude > amax)
            amax = magnitude;
    }
    return amax;
}

INLINE void amax_of(const void *restrict input, dg_dtype dtype, dgi_blocks blocks,
                    uint32_t *restrict amax)
{
    if (blocks.block == 1) { /* blocks are columns */
        for (int64_t i = 0; i < blocks.count; i++) {
            uint32_t magnitude = finite_magnitude(dgi_load_f32(input, dtype, i));
            amax[i] = magnitude > amax[i] ? magnitude : amax[i];
        }
        return;
    }
    FOR_EACH_BLOCK(blocks, i, n, j)
    {
        uint32_t magnitude = run_amax(element(input, dtype, i), dtype, n);
        amax[j] = magnitude > amax[j] ? magnitude : amax[j];
    }
}

/* ---- spread, encode, count, decode ---------------------------------------------------- */

static void spread(dgi_blocks blocks, const float *restrict values, int unit, float *restrict each)
{
    const int shift = unit - 1; /* a division by 1 or 2 */
    FOR_EACH_BLOCK(blocks, i, n, j)
    {
        const float value = values[j];
        const int64_t last = (i + n + shift) >> shift;
        for (int64_t e = i >> shift; e < last; e++)
            each[e] = value;
    }
}

INLINE uint32_t encode_one(float value, float multiplier, dg_dtype code_dtype, dg_overflow overflow)
{
    return dgi_fp8_from_f32(code_dtype, value * multiplier, overflow);
}

/* The first and the second of two 16-bit elements that were loaded as one word. */
INLINE float first_of(uint32_t word, dg_dtype dtype)
{
    return dtype == DG_BF16 ? dgi_f32_from_bits(word << 16) : dgi_f32_from_f16((uint16_t)word);
}

INLINE float second_of(uint32_t word, dg_dtype dtype)
{
    return dtype == DG_BF16 ? dgi_f32_from_bits(word & 0xFFFF0000u)
                            : dgi_f32_from_f16((uint16_t)(word >> 16));
}

/*
 * 16-bit elements are taken two at a time, as the halves of a 32-bit word: that is what vector code
 * widens and narrows with the fewest instructions, fewer still when both have one multiplier.
 */
INLINE void encode_pairs(const void *restrict input, dg_dtype dtype, uint8_t *restrict codes,
                         dg_dtype code_dtype, int64_t pairs, const float *restrict multipliers,
                         int unit, dg_overflow overflow)
{
    for (int64_t i = 0; i < pairs; i++) {
        float first_multiplier = multipliers[unit == 2 ? i : 2 * i];
        float second_multiplier = multipliers[unit == 2 ? i : 2 * i + 1];
        uint32_t word;
        memcpy(&word, (const char *)input + 4 * i, sizeof word);
        uint32_t first = encode_one(first_of(word, dtype), first_multiplier, code_dtype, overflow);
        uint32_t second =
            encode_one(second_of(word, dtype), second_multiplier, code_dtype, overflow);
        uint16_t pair = (uint16_t)(first | second << 8);
        memcpy(codes + 2 * i, &pair, sizeof pair);
    }
}

INLINE void encode_of(const void *restrict input, dg_dtype dtype, uint8_t *restrict codes,
                      dg_dtype code_dtype, int64_t count, const float *restrict multipliers,
                      int unit, dg_overflow overflow)
{
#ifdef ENCODE_BF16
    if (dtype == DG_BF16 && unit == 2) {
        int64_t done = ENCODE_BF16(input, codes, code_dtype, count, multipliers, overflow);
        input = element(input, dtype, done);
        codes += done, count -= done, multipliers += done / 2;
    }
#endif
    int64_t pairs = dtype == DG_F32 ? 0 : count / 2;
    if (unit == 2) {
        encode_pairs(input, dtype, codes, code_dtype, pairs, multipliers, 2, overflow);
    } else {
        encode_pairs(input, dtype, codes, code_dtype, pairs, multipliers, 1, overflow);
    }
    multipliers += unit == 2 ? pairs : 2 * pairs;
    for (int64_t i = 2 * pairs; i < count; i++) /* all of FP32, or the last of an odd count */
        codes[i] = (uint8_t)encode_one(dgi_load_f32(input, dtype, i), multipliers[i - 2 * pairs],
                                       code_dtype, overflow);
}

INLINE void count_of(const void *restrict input, dg_dtype dtype, dg_dtype code_dtype, int64_t count,
                     const float *restrict multipliers, dg_quantize_counts *counts)
{
    const uint32_t largest = code_dtype == DG_E4M3 ? 0x7E : 0x7B;
    int32_t saturated = 0, underflow = 0, non_finite = 0;
    for (int64_t i = 0; i < count; i++) {
        float x = dgi_load_f32(input, dtype, i);
        uint32_t magnitude = magnitude_of(x);
        uint32_t code = encode_one(x, multipliers[i], code_dtype, DG_OVERFLOW_IEEE) & 0x7F;
        saturated += (magnitude <= DGI_F32_INFINITY) & (code > largest);
        underflow += (magnitude != 0) & (code == 0);
        non_finite += magnitude >= DGI_F32_INFINITY;
    }
    counts->saturated += saturated;
    counts->underflow += underflow;
    counts->non_finite += non_finite;
}

INLINE void decode_of(const uint8_t *restrict codes, dg_dtype code_dtype, void *restrict output,
                      dg_dtype dtype, int64_t count, const float *restrict multipliers)
{
    for (int64_t i = 0; i < count; i++)
        dgi_store_f32(output, dtype, i, multipliers[i] * dgi_f32_from_fp8(code_dtype, codes[i]),
                      DG_SATURATE);
}

/* ---- the table: each pair of types is a case of its own -------------------------------- */

static void amax(const void *input, dg_dtype dtype, dgi_blocks blocks, uint32_t *amax)
{
    switch (dtype) {
    case DG_F32:
        amax_of(input, DG_F32, blocks, amax);
        break;
    case DG_F16:
        amax_of(input, DG_F16, blocks, amax);
        break;
    default:
        amax_of(input, DG_BF16, blocks, amax);
    }
}

/* Expands `call` for each pair of a 16-bit or FP32 type `WIDE` and an FP8 type `CODE`. */
#define SWITCH_CODE(code_dtype, call)                                                              \
    if ((code_dtype) == DG_E4M3) {                                                                 \
        const dg_dtype CODE = DG_E4M3;                                                             \
        call;                                                                                      \
    } else {                                                                                       \
        const dg_dtype CODE = DG_E5M2;                                                             \
        call;                                                                                      \
    }
#define SWITCH_TYPES(dtype, code_dtype, call)                                                      \
    if ((dtype) == DG_F32) {                                                                       \
        const dg_dtype WIDE = DG_F32;                                                              \
        SWITCH_CODE(code_dtype, call)                                                              \
    } else if ((dtype) == DG_F16) {                                                                \
        const dg_dtype WIDE = DG_F16;                                                              \
        SWITCH_CODE(code_dtype, call)                                                              \
    } else {                                                                                       \
        const dg_dtype WIDE = DG_BF16;                                                             \
        SWITCH_CODE(code_dtype, call)                                                              \
    }

static void encode(const void *input, dg_dtype dtype, uint8_t *codes, dg_dtype code_dtype,
                   int64_t count, const float *multipliers, int unit, dg_overflow overflow)
{
    SWITCH_TYPES(dtype, code_dtype,
                 encode_of(input, WIDE, codes, CODE, count, multipliers, unit, overflow));
}

static void count(const void *input, dg_dtype dtype, dg_dtype code_dtype, int64_t count,
                  const float *multipliers, dg_quantize_counts *counts)
{
    SWITCH_TYPES(dtype, code_dtype, count_of(input, WIDE, CODE, count, multipliers, counts));
}

static void decode(const uint8_t *codes, dg_dtype code_dtype, void *output, dg_dtype dtype,
                   int64_t count, const float *multipliers)
{
    SWITCH_TYPES(dtype, code_dtype, decode_of(codes, CODE, output, WIDE, count, multipliers));
}

const dgi_row_kernels ROW_KERNELS = {amax, spread, encode, count, decode};
