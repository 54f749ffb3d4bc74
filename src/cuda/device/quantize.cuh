/* SPDX-License-Identifier: MIT */
/*
 * Quantising to FP8, bit for bit as core/formats.h defines it: what the kernels of quantize.cu
 * share. Most of them work on pieces, 16 neighbouring elements of a row, which are one aligned
 * 16-byte store of codes; the host has checked that rows and scale blocks fall into whole pieces,
 * but for the end of a row.
 */
#pragma once
#include "scales.cuh"
#include "small_args.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <float.h>

constexpr uint32_t MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000;
constexpr int PIECE = DGI_QUANTIZE_PIECE;

/* Two elements of 16 bits as FP32. The conversion of FP16 would lose a NaN's sign. */
__device__ __forceinline__ float2 unpack(uint32_t pair, int32_t dtype)
{
    if (dtype == DGI_DEVICE_BF16)
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF0000));
    const float2 values = __half22float2(*(const __half2 *)&pair);
    const uint32_t low = __float_as_uint(values.x) & MAGNITUDE;
    const uint32_t high = __float_as_uint(values.y) & MAGNITUDE;
    return make_float2(__uint_as_float(low | (pair << 16 & ~MAGNITUDE)),
                       __uint_as_float(high | (pair & ~MAGNITUDE)));
}

__device__ __forceinline__ float input_at(const dgi_quantize_args &args, int64_t place)
{
    if (args.input_dtype == DGI_DEVICE_F32)
        return ((const float *)args.input)[place];
    return unpack(((const uint16_t *)args.input)[place], args.input_dtype).x;
}

/* A scale block's rows or columns: [first, last). */
struct range {
    int64_t first, last;

    __device__ __forceinline__ range(int64_t index, int32_t block, int32_t phase, int64_t size)
    {
        first = block == 0 ? 0 : max(index * block - phase, (int64_t)0);
        last = block == 0 ? size : min((index + 1) * block - phase, size);
    }
};

/* The rows and columns of the scale at (row, col) of the array. */
struct scale_block {
    range rows, cols;

    __device__ __forceinline__ scale_block(const dgi_quantize_args &args, int64_t row, int64_t col)
        : rows(row, args.scale.block_rows, args.scale.row_phase, args.rows),
          cols(col, args.scale.block_cols, args.scale.col_phase, args.cols)
    {
    }
};

/* ---- scales -------------------------------------------------------------------------- */

/* dgi_dynamic_scale() of core/formats.h; `amax` as FP32 bits. */
__device__ __forceinline__ float dynamic_scale(uint32_t amax_bits, const dgi_quantize_args &args)
{
    const float amax = fmaxf(__uint_as_float(amax_bits), args.amax_floor);
    if (amax == 0.0f)
        return 1.0f;
    uint32_t bits = __float_as_uint(__fdiv_rn(amax, args.largest));
    bits = max(bits, 1u << 23); /* 2^-126 */
    if (args.rounding == DGI_ROUND_EXACT)
        return __uint_as_float(bits);
    if (args.rounding == DGI_ROUND_UP)
        bits += 0x7FFFFF;
    return __uint_as_float(bits & INFINITE);
}

/* dgi_scale_reciprocal() of core/formats.h. */
__device__ __forceinline__ float scale_reciprocal(float scale)
{
    const float reciprocal = __frcp_rn(scale);
    return reciprocal < FLT_MAX ? reciprocal : FLT_MAX;
}

__device__ __forceinline__ int64_t scale_place(const dgi_quantize_args &args, int64_t row,
                                               int64_t col)
{
    return row * args.scale.row_stride + col * args.scale.col_stride;
}

__device__ __forceinline__ float read_scale(const dgi_quantize_args &args, int64_t place)
{
    return args.scale.dtype == DGI_DEVICE_F32
               ? ((const float *)args.scale.data)[place]
               : scale_from_ue8m0(((const uint8_t *)args.scale.data)[place]);
}

__device__ __forceinline__ void write_scale(const dgi_quantize_args &args, int64_t place,
                                            float scale)
{
    if (args.scale.dtype == DGI_DEVICE_F32)
        ((float *)args.scale.data)[place] = scale;
    else
        ((uint8_t *)args.scale.data)[place] = (uint8_t)(__float_as_uint(scale) >> 23);
}

/* ---- elements ------------------------------------------------------------------------ */

struct tally {
    uint32_t saturated, underflow, non_finite;
};

/* The code of x, scaled by `inverse`. Zeros count as nothing. */
__device__ __forceinline__ uint8_t code_of(float x, float inverse, const dgi_quantize_args &args,
                                           tally &counts)
{
    const bool e4m3 = args.output_dtype == DGI_DEVICE_E4M3;
    const float y = __fmul_rn(x, inverse), magnitude = fabsf(y);
    const uint8_t sign = __float_as_uint(x) >> 24 & 0x80;
    const bool nan = magnitude != magnitude;
    /* What would round beyond the largest code: 464 is halfway, and ties to 448; 61440 ties up. */
    const bool over = e4m3 ? magnitude > 464.0f : magnitude >= 61440.0f;
    counts.saturated += over;
    /* Up to half of the smallest code, which is 2^-9 or 2^-16, rounds to zero. */
    counts.underflow += x != 0.0f && magnitude <= (e4m3 ? 0x1p-10f : 0x1p-17f);
    counts.non_finite += (__float_as_uint(x) & MAGNITUDE) >= INFINITE;
    if (nan)
        return sign | 0x7F;
    if (over && !args.saturate)
        return sign | (e4m3 ? 0x7F : 0x7C);
    return __nv_cvt_float_to_fp8(y, __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
}

__device__ __forceinline__ void add_count(unsigned long long *total, uint32_t count)
{
    count = __reduce_add_sync(0xFFFFFFFF, count);
    if (threadIdx.x % 32 == 0 && count != 0)
        atomicAdd(total, (unsigned long long)count);
}

__device__ __forceinline__ void add_counts(const dgi_quantize_args &args, const tally &counts)
{
    if (args.counts == 0)
        return;
    add_count(&args.counts->saturated, counts.saturated);
    add_count(&args.counts->underflow, counts.underflow);
    add_count(&args.counts->non_finite, counts.non_finite);
}

/* ---- pieces -------------------------------------------------------------------------- */

/* Where a piece lies; `count` of its elements exist, 0 when it lies outside the block. */
struct piece_place {
    int64_t row, col;
    int count;
};

/* Piece `index` of a block whose full rows have args.pieces_x of them. */
__device__ __forceinline__ piece_place piece_of(const dgi_quantize_args &args,
                                                const scale_block &block, uint32_t index)
{
    const uint32_t y = index / args.pieces_x, x = index % args.pieces_x;
    piece_place place = {block.rows.first + y, block.cols.first + x * PIECE, 0};
    if (place.row < block.rows.last)
        place.count = (int)max((int64_t)0, min((int64_t)PIECE, block.cols.last - place.col));
    return place;
}

/*
 * A piece as it lies in memory, elements of BITS: 16 (FP16 or BF16) or 32. Elements that do not
 * exist are 0. Words are picked with constant indices only, or they would not be registers.
 */
template <int BITS> struct piece {
    static constexpr int WORDS = PIECE * BITS / 32;
    uint32_t word[WORDS];

    __device__ __forceinline__ void load(const dgi_quantize_args &args, const piece_place &place)
    {
        const char *from =
            (const char *)args.input + (place.row * args.input_ld + place.col) * (BITS / 8);
#pragma unroll
        for (int i = 0; i < WORDS; i += 4)
            *(uint4 *)&word[i] = place.count == PIECE ? __ldg((const uint4 *)(from + 4 * i))
                                                      : make_uint4(0, 0, 0, 0);
    }

    /* Of a piece at the end of a row, which load() leaves empty. */
    __device__ __forceinline__ void load_end(const dgi_quantize_args &args,
                                             const piece_place &place)
    {
        const int64_t first = place.row * args.input_ld + place.col;
#pragma unroll 1
        for (int i = 0; i < place.count; i++) {
            const uint32_t bits = BITS == 32 ? ((const uint32_t *)args.input)[first + i]
                                             : (uint32_t)((const uint16_t *)args.input)[first + i]
                                                   << i % 2 * 16;
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                word[w] |= w == i * BITS / 32 ? bits : 0;
        }
    }

    /* Elements 2 i and 2 i + 1. */
    __device__ __forceinline__ float2 pair(int i, const dgi_quantize_args &args) const
    {
        if (BITS == 16)
            return unpack(word[i], args.input_dtype);
        return make_float2(__uint_as_float(word[2 * i % WORDS]),
                           __uint_as_float(word[(2 * i + 1) % WORDS]));
    }

    /* The largest magnitude as FP32 bits, of all elements: a NaN counts as more than infinity. */
    __device__ __forceinline__ uint32_t largest(const dgi_quantize_args &args) const
    {
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            most = BITS == 32 ? max(most, word[i] & MAGNITUDE)
                              : __vmaxu2(most, word[i] & 0x7FFF7FFF);
        return BITS == 32
                   ? most
                   : __float_as_uint(unpack(max(most & 0xFFFF, most >> 16), args.input_dtype).x);
    }

    /* The largest finite magnitude; `most` is largest(). */
    __device__ __forceinline__ uint32_t finite_amax(const dgi_quantize_args &args,
                                                    uint32_t most) const
    {
        if (most < INFINITE)
            return most;
        uint32_t amax = 0;
#pragma unroll
        for (int i = 0; i < PIECE / 2; i++) {
            const float2 two = pair(i, args);
            const uint32_t x = __float_as_uint(two.x) & MAGNITUDE;
            const uint32_t y = __float_as_uint(two.y) & MAGNITUDE;
            amax = max(amax, max(x < INFINITE ? x : 0, y < INFINITE ? y : 0));
        }
        return amax;
    }

    /* Four codes of finite elements and infinities, saturating. */
    __device__ __forceinline__ uint32_t codes(int i, const dgi_quantize_args &args,
                                              float inverse) const
    {
        const __nv_fp8_interpretation_t kind =
            args.output_dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2;
        float2 low = pair(2 * i, args), high = pair(2 * i + 1, args);
        low = make_float2(__fmul_rn(low.x, inverse), __fmul_rn(low.y, inverse));
        high = make_float2(__fmul_rn(high.x, inverse), __fmul_rn(high.y, inverse));
        return __nv_cvt_float2_to_fp8x2(low, __NV_SATFINITE, kind) |
               (uint32_t)__nv_cvt_float2_to_fp8x2(high, __NV_SATFINITE, kind) << 16;
    }

    /* Four codes of any elements, counted. */
    __device__ __forceinline__ uint32_t codes_counted(int i, const dgi_quantize_args &args,
                                                      float inverse, tally &counts) const
    {
        const float2 low = pair(2 * i, args), high = pair(2 * i + 1, args);
        const float x[4] = {low.x, low.y, high.x, high.y};
        uint32_t codes = 0;
#pragma unroll
        for (int j = 0; j < 4; j++)
            codes |= (uint32_t)code_of(x[j], inverse, args, counts) << 8 * j;
        return codes;
    }

    /* Writes the codes. */
    __device__ __forceinline__ void store(const dgi_quantize_args &args, const piece_place &place,
                                          uint32_t most, float inverse, tally &counts) const
    {
        uint8_t *target = args.output + place.row * args.output_ld + place.col;
        uint32_t code[PIECE / 4];
        if (most <= INFINITE && args.saturate && args.counts == 0)
#pragma unroll
            for (int i = 0; i < PIECE / 4; i++)
                code[i] = codes(i, args, inverse);
        else
#pragma unroll
            for (int i = 0; i < PIECE / 4; i++)
                code[i] = codes_counted(i, args, inverse, counts);
        if (place.count == PIECE)
            *(uint4 *)target = make_uint4(code[0], code[1], code[2], code[3]);
        else
#pragma unroll
            for (int i = 0; i < PIECE; i++)
                if (i < place.count)
                    target[i] = (uint8_t)(code[i / 4] >> i % 4 * 8);
    }
};
