/* SPDX-License-Identifier: MIT */
/*
 * Quantising to FP8, bit for bit as core/formats.h defines it. A group of threads, a warp or a
 * whole CTA, takes one block of the scales at a time: it finds the block's largest magnitude, makes
 * the scale, and reads the block again, from cache, to make its codes. Launched by
 * src/cuda/quantize.c.
 */
#include "scales.cuh"
#include "small_args.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr uint32_t MAGNITUDE = 0x7FFFFFFF, INFINITE = 0x7F800000;

__device__ __forceinline__ float input_at(const dgi_quantize_args &args, int64_t place)
{
    switch (args.input_dtype) {
    case DGI_DEVICE_F32:
        return ((const float *)args.input)[place];
    case DGI_DEVICE_F16:
        return __half2float(((const __half *)args.input)[place]);
    default:
        return __bfloat162float(((const __nv_bfloat16 *)args.input)[place]);
    }
}

/* The block's rows or columns: [first, last). */
struct range {
    int64_t first, last;

    __device__ range(int64_t index, int32_t block, int32_t phase, int64_t size)
    {
        first = block == 0 ? 0 : max(index * block - phase, (int64_t)0);
        last = block == 0 ? size : min((index + 1) * block - phase, size);
    }
};

/* The largest of all threads of the group. */
__device__ uint32_t group_max(uint32_t value, int group)
{
    __shared__ uint32_t of_warp[DGI_SMALL_THREADS / 32];
    value = __reduce_max_sync(0xFFFFFFFF, value);
    if (group == 32)
        return value;
    __syncthreads(); /* the last round's values have been read */
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    for (int i = 0; i < DGI_SMALL_THREADS / 32; i++)
        value = max(value, of_warp[i]);
    return value;
}

/* dgi_dynamic_scale() of core/formats.h. */
__device__ float dynamic_scale(float amax, const dgi_quantize_args &args)
{
    amax = fmaxf(amax, args.amax_floor);
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

struct tally {
    uint32_t saturated, underflow, non_finite;
};

/* The code of x, scaled by `inverse`. */
__device__ uint8_t code_of(float x, float inverse, const dgi_quantize_args &args, tally &counts)
{
    const bool e4m3 = args.output_dtype == DGI_DEVICE_E4M3;
    const float y = __fmul_rn(x, inverse);
    const uint32_t magnitude = __float_as_uint(y) & MAGNITUDE;
    const uint8_t sign = __float_as_uint(x) >> 24 & 0x80;
    const bool nan = magnitude > INFINITE;
    /* What would round beyond the largest code: 464 is halfway, and ties to 448; 61440 ties up. */
    const bool over = !nan && (e4m3 ? __uint_as_float(magnitude) > 464.0f
                                    : __uint_as_float(magnitude) >= 61440.0f);
    uint8_t code;
    if (nan)
        code = sign | 0x7F;
    else if (over && !args.saturate)
        code = sign | (e4m3 ? 0x7F : 0x7C);
    else
        code = __nv_cvt_float_to_fp8(y, __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
    counts.saturated += over;
    counts.underflow += x != 0.0f && (code & 0x7F) == 0;
    counts.non_finite += (__float_as_uint(x) & MAGNITUDE) >= INFINITE;
    return code;
}

__device__ void add_count(unsigned long long *total, uint32_t count)
{
    count = __reduce_add_sync(0xFFFFFFFF, count);
    if (threadIdx.x % 32 == 0 && count != 0)
        atomicAdd(total, (unsigned long long)count);
}

extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    quantize(const __grid_constant__ dgi_quantize_args args)
{
    const int group = args.group, lane = threadIdx.x % group;
    const int x_lane = lane % args.lanes_x, y_lane = lane / args.lanes_x;
    const int lanes_x = args.lanes_x, lanes_y = group / args.lanes_x;
    const int groups = DGI_SMALL_THREADS / group;
    tally counts = {0, 0, 0};
    for (int64_t i = (int64_t)blockIdx.x * groups + threadIdx.x / group;
         i < args.scale_rows * args.scale_cols; i += (int64_t)gridDim.x * groups) {
        const int64_t scale_row = i / args.scale_cols, scale_col = i % args.scale_cols;
        const range rows(scale_row, args.scale.block_rows, args.scale.row_phase, args.rows);
        const range cols(scale_col, args.scale.block_cols, args.scale.col_phase, args.cols);
        const int64_t place = scale_row * args.scale.row_stride + scale_col * args.scale.col_stride;
        float scale;
        if (args.dynamic) {
            uint32_t amax = 0;
            for (int64_t r = rows.first + y_lane; r < rows.last; r += lanes_y)
                for (int64_t c = cols.first + x_lane; c < cols.last; c += lanes_x) {
                    const uint32_t bits =
                        __float_as_uint(input_at(args, r * args.input_ld + c)) & MAGNITUDE;
                    amax = bits < INFINITE ? max(amax, bits) : amax;
                }
            scale = dynamic_scale(__uint_as_float(group_max(amax, group)), args);
            if (lane == 0 && args.scale.dtype == DGI_DEVICE_F32)
                ((float *)args.scale.data)[place] = scale;
            else if (lane == 0)
                ((uint8_t *)args.scale.data)[place] = (uint8_t)(__float_as_uint(scale) >> 23);
        } else if (args.scale.dtype == DGI_DEVICE_F32) {
            scale = ((const float *)args.scale.data)[place];
        } else {
            scale = scale_from_ue8m0(((const uint8_t *)args.scale.data)[place]);
        }
        const float inverse = __frcp_rn(scale);
        for (int64_t r = rows.first + y_lane; r < rows.last; r += lanes_y)
            for (int64_t c = cols.first + x_lane; c < cols.last; c += lanes_x)
                args.output[r * args.output_ld + c] =
                    code_of(input_at(args, r * args.input_ld + c), inverse, args, counts);
    }
    if (args.counts != 0) {
        add_count(&args.counts->saturated, counts.saturated);
        add_count(&args.counts->underflow, counts.underflow);
        add_count(&args.counts->non_finite, counts.non_finite);
    }
}
