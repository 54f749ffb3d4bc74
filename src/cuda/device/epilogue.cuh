/* SPDX-License-Identifier: MIT */
/*
 * From accumulators to D: D = accumulator * row factor * column factor + bias + beta * C, narrowed
 * to D's type. Called by the math warpgroups of every GEMM kernel.
 *
 * Accumulators lie scattered over a warp's lanes, so each warp assembles its 16 rows in panels of
 * shared memory of its own, 128 bytes of each row, in the 128-byte swizzle, so that no bank is met
 * twice. The copy engine writes usual results to D while the next tile is computed. What is left -
 * FP8, rows that do not begin at multiples of 16 bytes, a C to add - is written element by element,
 * a lane to a column.
 */
#pragma once
#include "../../core/swizzle.h"
#include "gemm_args.h"
#include "ptx/copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/panel.cuh"
#include "scales.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

/* Factors of the tile's rows and columns, and the bias of its columns, in shared memory. */
struct tile_factors {
    const float *row, *col, *bias;
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

/* Multiplies a warp's 16 rows by their factors and adds the bias; `row` is the first in the tile.
 */
template <int COUNT>
__device__ __forceinline__ void scale_and_add(float (&value)[COUNT], const tile_factors &factors,
                                              int row)
{
    const int lane = threadIdx.x % 32;
    const float upper = factors.row[row + lane / 4], lower = factors.row[row + lane / 4 + 8];
#pragma unroll
    for (int j = 0; j < COUNT; j += 4) {
        const float2 col = *(const float2 *)(factors.col + 2 * j + lane % 4 * 2);
        const float2 bias = *(const float2 *)(factors.bias + 2 * j + lane % 4 * 2);
        value[j] = value[j] * (upper * col.x) + bias.x;
        value[j + 1] = value[j + 1] * (upper * col.y) + bias.y;
        value[j + 2] = value[j + 2] * (lower * col.x) + bias.x;
        value[j + 3] = value[j + 3] * (lower * col.y) + bias.y;
    }
}

/* ---- panels: 16 rows of 128 bytes ------------------------------------------------------ */

/* 64 columns as 16-bit elements. */
__device__ __forceinline__ void fill_panel_16bit(const float *value, bool f16, uint32_t panel)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < 32; j += 8) {
        const float *v = value + j;
        const uint32_t packed[4] = {pack_pair(v[0], v[1], f16), pack_pair(v[2], v[3], f16),
                                    pack_pair(v[4], v[5], f16), pack_pair(v[6], v[7], f16)};
        /* Lane i addresses row i % 16 and the left or right half of 16 columns. */
        stmatrix_x4(panel + dgi_swizzle(lane % 16, j / 4 + lane / 16), packed);
    }
}

/*
 * 32 columns, or fewer at a tile's end, as they are, but neighbours swapped: promote() in
 * gemm_multiply.cuh says why.
 */
template <int COUNT>
__device__ __forceinline__ void fill_panel_f32(const float *value, uint32_t panel)
{
    const int lane = threadIdx.x % 32, pair = lane % 4;
#pragma unroll
    for (int j = 0; j < COUNT; j += 2)
        store_pair(panel + dgi_swizzle(lane / 4 + j % 4 * 4, j / 4 * 2 + pair / 2) + pair % 2 * 8,
                   value[j + 1], value[j]);
}

/* ---- writing ------------------------------------------------------------------------- */

/* FP8 results: code = round(value * (1 / scale)), saturating. */
__device__ __forceinline__ uint8_t code_of(float value, const dgi_gemm_args &args, int32_t m,
                                           int32_t n)
{
    const dgi_device_scale &scale = args.scale_d;
    float factor[1];
    scale_rows<1>(scale, m, 0, m)
        .load(scale, scale_index(n, scale.block_cols, scale.col_phase), factor);
    return __nv_cvt_float_to_fp8(__fmul_rn(value, __frcp_rn(factor[0])), __NV_SATFINITE,
                                 args.d.dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

__device__ __forceinline__ float c_at(const dgi_device_matrix &c, int32_t m, int32_t n)
{
    const int64_t at = m * c.ld + n;
    if (c.dtype == DGI_DEVICE_F32)
        return ((const float *)c.data)[at];
    if (c.dtype == DGI_DEVICE_F16)
        return __half2float(((const __half *)c.data)[at]);
    return __bfloat162float(((const __nv_bfloat16 *)c.data)[at]);
}

/* A panel of FP32 to D at row m, column n; `width` columns: any type, any address, and C. */
__device__ __forceinline__ void write_elements(const dgi_gemm_args &args, int32_t m, int32_t n,
                                               int width, uint32_t panel)
{
    const int lane = threadIdx.x % 32, rows = min(16, args.m - m);
    n += lane;
    if (lane >= width || n >= args.n)
        return;
#pragma unroll 1
    for (int row = 0; row < rows; row++, m++) {
        const int64_t at = m * args.d.ld + n;
        float value = load_float(panel + dgi_swizzle(row, lane / 4) + (lane ^ 1) % 4 * 4);
        if (args.beta != 0.0f)
            value += args.beta * c_at(args.c, m, n);
        if (args.d.dtype == DGI_DEVICE_F32)
            ((float *)args.d.data)[at] = value;
        else if (args.d.dtype == DGI_DEVICE_F16)
            ((__half *)args.d.data)[at] = __float2half_rn(value);
        else if (args.d.dtype == DGI_DEVICE_BF16)
            ((__nv_bfloat16 *)args.d.data)[at] = __float2bfloat16_rn(value);
        else
            ((uint8_t *)args.d.data)[at] = code_of(value, args, m, n);
    }
}

/* A panel of 16-bit elements to D at row m, column n, but only the rows that there are. */
__device__ __forceinline__ void write_rows(const dgi_gemm_args &args, int32_t m, int32_t n,
                                           uint32_t panel)
{
    const int chunk = threadIdx.x % 8, rows = min(16, args.m - m);
    n += chunk * 8;
    if (n >= args.n)
        return;
#pragma unroll 1
    for (int row = threadIdx.x % 32 / 8; row < rows; row += 4)
        *(uint4 *)((uint16_t *)args.d.data + (m + row) * args.d.ld + n) =
            load_chunk(panel + dgi_swizzle(row, chunk));
}

/*
 * The accumulators of one warp, 16 rows that begin at row m of D, from column n on: its block
 * number `wave` of `WAVES` in the tile. `panels` are `PANELS` buffers of DGI_PANEL_BYTES of the
 * warp's own. RAGGED: the map does not end with D's rows.
 */
template <int PANELS, int WAVES, bool RAGGED, int COUNT>
__device__ __forceinline__ void store_rows(const float (&value)[COUNT], const CUtensorMap &map,
                                           const dgi_gemm_args &args, int32_t m, int32_t n,
                                           int wave, uint32_t panels)
{
    constexpr int COLS = COUNT * 2, NARROW = 32, WIDE = 64;
    constexpr int COPIES = COLS / WIDE, REST = COLS % WIDE; /* a rest is written by elements */
    static_assert(REST <= NARROW && COPIES * WAVES + (REST > 0) <= PANELS, "panels for everything");
    const bool leader = threadIdx.x % 32 == 0, f16 = args.d.dtype == DGI_DEVICE_F16;
    if (args.copy_out) {
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint32_t panel = panels + (wave * COPIES + i) * DGI_PANEL_BYTES;
            if (leader)
                copy_out_wait_read<COPIES * WAVES - 1>(); /* what it held a tile before */
            __syncwarp();
            fill_panel_16bit(value + i * (WIDE / 2), f16, panel);
            fence_async_proxy();
            __syncwarp();
            if (RAGGED && m + 16 > args.m) {
                write_rows(args, m, n + i * WIDE, panel);
                if (leader)
                    copy_nothing_out(); /* counts as the panel's box */
            } else if (leader) {
                copy_box_out(&map, n + i * WIDE, args.d_row + m, panel);
            }
        }
        if (REST > 0) {
            const uint32_t last = panels + (PANELS - 1) * DGI_PANEL_BYTES;
            fill_panel_f32<REST / 2>(value + COPIES * (WIDE / 2), last);
            __syncwarp();
            write_elements(args, m, n + COPIES * WIDE, REST, last);
        }
        return;
    }
#pragma unroll
    for (int col = 0; col < COLS; col += NARROW) {
        constexpr int LAST = COLS % NARROW / 2;
        __syncwarp();
        if (col + NARROW <= COLS)
            fill_panel_f32<NARROW / 2>(value + col / 2, panels);
        else
            fill_panel_f32<LAST>(value + col / 2, panels);
        __syncwarp();
        write_elements(args, m, n + col, min(NARROW, COLS - col), panels);
    }
}
