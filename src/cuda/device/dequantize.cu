/* SPDX-License-Identifier: MIT */
/*
 * FP8 codes to 16 or 32 bits: scale * code, bit for bit as on the CPU. Launched by
 * src/cuda/quantize.c: `dequantize_pieces` where rows and scale blocks fall into aligned pieces of
 * DGI_DEQUANTIZE_PIECE elements, `dequantize` anywhere.
 */
#include "scales.cuh"
#include "small_args.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr int PIECE = DGI_DEQUANTIZE_PIECE;

/* The scale of element (row, col). */
__device__ __forceinline__ float scale_at(const dgi_device_scale &scale, int64_t row, int64_t col)
{
    const scale_rows<1> scales(scale, (int32_t)row, 0, (int32_t)row);
    float value[1];
    scales.load(scale, scale_index((int32_t)col, scale.block_cols, scale.col_phase), value);
    return value[0];
}

/* ---- one element: any code ----------------------------------------------------------- */

/* scale * code in FP32. Multiplying would lose a NaN's sign and payload here; the CPU keeps both. */
__device__ __forceinline__ float value_of(const dgi_dequantize_args &args, uint32_t code,
                                          float scale)
{
    const bool e4m3 = args.input_dtype == DGI_DEVICE_E4M3;
    const uint32_t magnitude = code & 0x7F;
    if (e4m3 ? magnitude == 0x7F : magnitude > 0x7C)
        return __uint_as_float((code & 0x80) << 24 | 0x7FC00000 |
                               (e4m3 ? 0 : (magnitude & 3) << 21));
    return __fmul_rn(scale, __half2float(__half(__nv_cvt_fp8_to_halfraw(
                                (__nv_fp8_storage_t)code, e4m3 ? __NV_E4M3 : __NV_E5M2))));
}

/* As dgi_f16_from_f32() and dgi_bf16_from_f32() of core/formats.h, which keep a NaN's payload. */
__device__ __forceinline__ void store(const dgi_dequantize_args &args, int64_t place, float value)
{
    const uint32_t bits = __float_as_uint(value), sign = bits >> 16 & 0x8000;
    const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
    if (args.output_dtype == DGI_DEVICE_F32)
        ((float *)args.output)[place] = value;
    else if (args.output_dtype == DGI_DEVICE_F16)
        ((uint16_t *)args.output)[place] = nan ? sign | 0x7E00 | (bits >> 13 & 0x3FF)
                                               : __half_as_ushort(__float2half_rn(value));
    else
        ((uint16_t *)args.output)[place] =
            nan ? bits >> 16 | 0x40 : __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

/* A thread for each element, in turns. */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    dequantize(const __grid_constant__ dgi_dequantize_args args)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.rows * args.cols;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / args.cols, col = i % args.cols;
        store(args, row * args.output_ld + col,
              value_of(args, args.input[row * args.input_ld + col],
                       scale_at(args.scale, row, col)));
    }
}

/* ---- pieces -------------------------------------------------------------------------- */

/* Whether one of four codes is a NaN: 0x7F in E4M3, above 0x7C in E5M2. */
__device__ __forceinline__ bool has_nan(uint32_t word, int32_t dtype)
{
    const uint32_t above = dtype == DGI_DEVICE_E4M3 ? 0x01010101 : 0x03030303;
    return ((word & 0x7F7F7F7F) + above) & 0x80808080;
}

/* scale * code of two codes that are not NaN. */
__device__ __forceinline__ float2 two_values(const dgi_dequantize_args &args, uint32_t codes,
                                             float scale)
{
    const __half2 halves = __half2(__nv_cvt_fp8x2_to_halfraw2(
        (__nv_fp8x2_storage_t)codes,
        args.input_dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2));
    const float2 values = __half22float2(halves);
    return make_float2(__fmul_rn(scale, values.x), __fmul_rn(scale, values.y));
}

__device__ __forceinline__ uint32_t narrow_two(const dgi_dequantize_args &args, float2 values)
{
    if (args.output_dtype == DGI_DEVICE_F16) {
        const __half2 halves = __float22half2_rn(values);
        return *(const uint32_t *)&halves;
    }
    const __nv_bfloat162 halves = __float22bfloat162_rn(values);
    return *(const uint32_t *)&halves;
}

/* A thread for each piece. */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    dequantize_pieces(const __grid_constant__ dgi_dequantize_args args)
{
    const uint32_t pieces_x = (uint32_t)((args.cols + PIECE - 1) / PIECE);
    const int64_t index = (int64_t)blockIdx.x * DGI_SMALL_THREADS + threadIdx.x;
    if (index >= args.rows * pieces_x)
        return;
    const uint32_t row = (uint32_t)index / pieces_x, col = (uint32_t)index % pieces_x * PIECE;
    const uint8_t *input = args.input + row * args.input_ld + col;
    const int64_t place = row * args.output_ld + col, count = min(args.cols - col, (int64_t)PIECE);
    uint2 codes = make_uint2(0, 0);
    if (count == PIECE)
        codes = __ldg((const uint2 *)input);
    const float scale = scale_at(args.scale, row, col);
    if (count < PIECE || has_nan(codes.x, args.input_dtype) || has_nan(codes.y, args.input_dtype)) {
#pragma unroll 1
        for (int64_t i = 0; i < count; i++)
            store(args, place + i, value_of(args, input[i], scale));
        return;
    }
    const float2 a = two_values(args, codes.x & 0xFFFF, scale);
    const float2 b = two_values(args, codes.x >> 16, scale);
    const float2 c = two_values(args, codes.y & 0xFFFF, scale);
    const float2 d = two_values(args, codes.y >> 16, scale);
    if (args.output_dtype == DGI_DEVICE_F32) {
        float4 *target = (float4 *)((float *)args.output + place);
        target[0] = make_float4(a.x, a.y, b.x, b.y);
        target[1] = make_float4(c.x, c.y, d.x, d.y);
    } else {
        *(uint4 *)((uint16_t *)args.output + place) =
            make_uint4(narrow_two(args, a), narrow_two(args, b), narrow_two(args, c),
                       narrow_two(args, d));
    }
}
