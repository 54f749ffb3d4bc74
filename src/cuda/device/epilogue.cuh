/* SPDX-License-Identifier: MIT */
/*
 * From accumulators to D: D = accumulator * row factor * column factor + beta * C + bias, narrowed
 * to D's type. Called by the math warpgroups of every GEMM kernel.
 *
 * 16-bit results that the copy engine can address go through shared memory, where stmatrix puts
 * them in the 128-byte swizzle, and are written while the next tile is computed. All others are
 * stored element by element.
 */
#pragma once
#include "../../core/swizzle.h"
#include "gemm_args.h"
#include "ptx/copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/stmatrix.cuh"
#include "scales.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* Columns of a panel: what one box of the D map covers, 128 bytes of 16-bit elements. */
constexpr int PANEL_COLS = 64;

/* Factors of the tile's rows and columns, and the bias of its columns, in shared memory. */
struct tile_factors {
    const float *row, *col, *bias;
};

/*
 * The part of a tile that one thread holds: see wgmma.cuh. (row, col) is its first element's place
 * in the tile, (m0, n0) the tile's in D.
 */
struct fragment_place {
    int32_t row, col, m0, n0;

    __device__ __forceinline__ int32_t m(int element) const
    {
        return m0 + row + element / 2 % 2 * 8;
    }
    __device__ __forceinline__ int32_t n(int element) const
    {
        return n0 + col + element / 4 * 8 + element % 2;
    }
    __device__ __forceinline__ bool inside(int element, const dgi_gemm_args &args) const
    {
        return m(element) < args.m && n(element) < args.n;
    }
};

__device__ __forceinline__ float to_float(float value)
{
    return value;
}
__device__ __forceinline__ float to_float(__half value)
{
    return __half2float(value);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 value)
{
    return __bfloat162float(value);
}

template <typename T, int COUNT>
__device__ __forceinline__ void bias_gather_as(const void *bias, const int32_t (&cols)[COUNT],
                                               float (&values)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        values[i] = to_float(((const T *)bias)[cols[i]]);
}

/* The bias of some columns, 0 where there is none. */
template <int COUNT>
__device__ __forceinline__ void bias_gather(const dgi_device_matrix &bias,
                                            const int32_t (&cols)[COUNT], float (&values)[COUNT])
{
    if (bias.dtype == DGI_DEVICE_F32)
        return bias_gather_as<float>(bias.data, cols, values);
    if (bias.dtype == DGI_DEVICE_F16)
        return bias_gather_as<__half>(bias.data, cols, values);
    if (bias.dtype == DGI_DEVICE_BF16)
        return bias_gather_as<__nv_bfloat16>(bias.data, cols, values);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        values[i] = 0.0f;
}

template <typename T, int COUNT>
__device__ __forceinline__ void add_c(float (&value)[COUNT], const dgi_gemm_args &args,
                                      const fragment_place &place)
{
    const T *c = (const T *)args.c.data;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (place.inside(i, args))
            value[i] += args.beta * to_float(c[place.m(i) * args.c.ld + place.n(i)]);
}

template <int COUNT>
__device__ __forceinline__ void scale_and_add(float (&value)[COUNT], const dgi_gemm_args &args,
                                              const tile_factors &factors,
                                              const fragment_place &place)
{
    const float row[2] = {factors.row[place.row], factors.row[place.row + 8]};
#pragma unroll
    for (int j = 0; j < COUNT; j += 4) {
        const float2 col = *(const float2 *)(factors.col + place.col + 2 * j);
        const float2 bias = *(const float2 *)(factors.bias + place.col + 2 * j);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            value[j + 2 * half] = value[j + 2 * half] * (row[half] * col.x) + bias.x;
            value[j + 2 * half + 1] = value[j + 2 * half + 1] * (row[half] * col.y) + bias.y;
        }
    }
    if (args.beta == 0.0f)
        return;
    if (args.c.dtype == DGI_DEVICE_F32)
        add_c<float>(value, args, place);
    else if (args.c.dtype == DGI_DEVICE_F16)
        add_c<__half>(value, args, place);
    else
        add_c<__nv_bfloat16>(value, args, place);
}

/* ---- element by element -------------------------------------------------------------- */

__device__ __forceinline__ void narrow(float *target, float value)
{
    *target = value;
}
__device__ __forceinline__ void narrow(__half *target, float value)
{
    *target = __float2half_rn(value);
}
__device__ __forceinline__ void narrow(__nv_bfloat16 *target, float value)
{
    *target = __float2bfloat16_rn(value);
}

template <typename T, int COUNT>
__device__ __forceinline__ void
store_elements(const float (&value)[COUNT], const dgi_gemm_args &args, const fragment_place &place)
{
    T *d = (T *)args.d.data;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (place.inside(i, args))
            narrow(d + place.m(i) * args.d.ld + place.n(i), value[i]);
}

/* FP8 results: code = round(value * (1 / scale)), saturating. */
template <int COUNT>
__device__ __forceinline__ void store_codes(const float (&value)[COUNT], const dgi_gemm_args &args,
                                            const fragment_place &place)
{
    const dgi_device_scale &scale = args.scale_d;
    uint8_t *d = (uint8_t *)args.d.data;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (place.inside(i, args)) {
            const scale_rows<1> row(scale, place.m(i), 0, place.m(i));
            float factor[1];
            row.load(scale, scale_index(place.n(i), scale.block_cols, scale.col_phase), factor);
            d[place.m(i) * args.d.ld + place.n(i)] =
                __nv_cvt_float_to_fp8(__fmul_rn(value[i], __frcp_rn(factor[0])), __NV_SATFINITE,
                                      args.d.dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2);
        }
}

/* ---- through shared memory ----------------------------------------------------------- */

__device__ __forceinline__ uint32_t pack_pair(float low, float high, bool f16)
{
    uint32_t pair;
    if (f16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/*
 * 64 rows of 16-bit results, panel by panel. `panels` are `PANELS` buffers of DGI_PANEL_BYTES of
 * this warpgroup's own, used in turn; `barrier` is a named barrier of its own.
 */
template <int PANELS, int COUNT>
__device__ __forceinline__ void store_panels(const float (&value)[COUNT], const dgi_gemm_args &args,
                                             int32_t m, int32_t n, uint32_t panels,
                                             uint32_t barrier)
{
    constexpr int PANEL_VALUES = PANEL_COLS / 2; /* of one thread */
    const int thread = threadIdx.x % 128;
    const bool f16 = args.d.dtype == DGI_DEVICE_F16;
    /* Lane i addresses row i % 16 of the warp's 16 and the left or right of two column groups. */
    const int row = thread / 32 * 16 + thread % 16, side = thread / 16 % 2;
#pragma unroll
    for (int panel = 0; panel < COUNT / PANEL_VALUES; panel++) {
        const uint32_t buffer = panels + panel % PANELS * DGI_PANEL_BYTES;
        if (thread == 0)
            copy_out_wait_read<PANELS - 1>();
        named_barrier(barrier, 128);
#pragma unroll
        for (int j = 0; j < PANEL_VALUES; j += 8) {
            const float *v = value + panel * PANEL_VALUES + j;
            const uint32_t packed[4] = {pack_pair(v[0], v[1], f16), pack_pair(v[2], v[3], f16),
                                        pack_pair(v[4], v[5], f16), pack_pair(v[6], v[7], f16)};
            stmatrix_x4(buffer + dgi_swizzle(row, j / 4 + side), packed);
        }
        fence_async_proxy();
        named_barrier(barrier, 128);
        if (thread == 0)
            copy_box_out(&args.d_map, n + panel * PANEL_COLS, m, buffer);
    }
}

/*
 * Turns the accumulators of one warpgroup, 64 rows of the tile at (m0, n0) that begin at its row
 * `first_row`, into D.
 */
template <int PANELS, int COUNT>
__device__ __forceinline__ void
store_rows(float (&value)[COUNT], const dgi_gemm_args &args, const tile_factors &factors,
           int32_t first_row, int32_t m0, int32_t n0, uint32_t panels, uint32_t barrier)
{
    const int thread = threadIdx.x % 128;
    const fragment_place place = {first_row + thread / 32 * 16 + thread % 32 / 4, thread % 4 * 2,
                                  m0, n0};
    scale_and_add(value, args, factors, place);
    if (args.copy_out)
        store_panels<PANELS>(value, args, m0 + first_row, n0, panels, barrier);
    else if (args.d.dtype == DGI_DEVICE_F32)
        store_elements<float>(value, args, place);
    else if (args.d.dtype == DGI_DEVICE_F16)
        store_elements<__half>(value, args, place);
    else if (args.d.dtype == DGI_DEVICE_BF16)
        store_elements<__nv_bfloat16>(value, args, place);
    else
        store_codes(value, args, place);
}
