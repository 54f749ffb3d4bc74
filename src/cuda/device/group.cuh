/* SPDX-License-Identifier: MIT */
/* Where the operands of a group begin: for grouped_setup and the grouped GEMM. */
#pragma once
#include "../../core/grouped_schedule.h"
#include "grouped_args.h"
#include "scales.cuh"

__device__ __forceinline__ void *moved(const void *data, int64_t bytes)
{
    return data == nullptr ? nullptr : (uint8_t *)data + bytes;
}

__device__ __forceinline__ int32_t bytes_of(int32_t dtype)
{
    return dtype == DGI_DEVICE_F32                               ? 4
           : dtype == DGI_DEVICE_F16 || dtype == DGI_DEVICE_BF16 ? 2
                                                                 : 1;
}

/* The next multiple of `unit`; sizes are not negative. */
__device__ __forceinline__ int32_t round_up(int32_t value, int32_t unit)
{
    const uint32_t result = ((uint32_t)value + unit - 1) / (uint32_t)unit * unit;
    return (int32_t)min(result, (uint32_t)INT32_MAX);
}

__device__ __forceinline__ void *row_of(const dgi_device_matrix &matrix, int32_t row)
{
    return moved(matrix.data, row * matrix.ld * bytes_of(matrix.dtype));
}

/* A scale array for a matrix that begins `row` rows further down. */
__device__ __forceinline__ void move_scale_rows(dgi_device_scale &scale, const dgi_device_scale &of,
                                                int32_t row)
{
    if (of.block_rows == 0)
        return;
    const int32_t at = row + of.row_phase, index = scale_index(row, of.block_rows, of.row_phase);
    scale.data = moved(of.data, index * of.row_stride * bytes_of(of.dtype));
    scale.row_phase = at - index * of.block_rows;
}

/* The inclusive scan of a warp's values; `join(earlier, later)` must be associative. */
template <typename T, typename Join> __device__ __forceinline__ T scan_warp(T value, Join join)
{
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T earlier = __shfl_up_sync(0xFFFFFFFF, value, distance);
        if (threadIdx.x % 32 >= distance)
            value = join(earlier, value);
    }
    return value;
}

/* One of the 32 groups of rows that a warp looks at together, a lane each. */
struct group_rows {
    int32_t first, rows; /* in the whole A, or its own where it has one */
    int32_t end;         /* of its tiles, counted through all groups    */
};

/*
 * Group `batch` + lane, behind groups whose rows and tiles end at `earlier_rows` and
 * `earlier_tiles`. As in grouped_setup, it begins behind all ends before it, at a multiple.
 */
__device__ __forceinline__ group_rows next_group(const dgi_device_groups &groups,
                                                 const dgi_gemm_args &like, int32_t tile_m,
                                                 int32_t batch, int32_t earlier_rows,
                                                 int32_t earlier_tiles)
{
    const int lane = threadIdx.x % 32;
    const int32_t size = batch + lane < groups.count ? max(groups.sizes[batch + lane], 0) : 0;
    group_rows group = {0, min(size, like.m), 0};
    if (groups.grouping == DGI_DEVICE_BY_END) {
        const int32_t last = scan_warp(group.rows, [](int32_t x, int32_t y) { return max(x, y); });
        const int32_t before = __shfl_up_sync(0xFFFFFFFF, last, 1);
        group.first = round_up(max(earlier_rows, lane == 0 ? 0 : before), groups.alignment);
        group.rows = max(0, group.rows - group.first);
    }
    const int32_t tiles = dgi_tile_rows(group.rows, tile_m) * like.tile_cols;
    group.end = earlier_tiles + scan_warp(tiles, [](int32_t x, int32_t y) { return x + y; });
    return group;
}

/* The rows of a product from `row` on. */
__device__ __forceinline__ void move_rows(const dgi_gemm_args &from, int32_t row, dgi_gemm_args &g)
{
    g.c.data = row_of(from.c, row);
    g.d.data = row_of(from.d, row);
    move_scale_rows(g.scale_a, from.scale_a, row);
    move_scale_rows(g.scale_d, from.scale_d, row);
}

/* Of groups of rows, what differs from the first one, `like`. `first`: the row of the whole. */
__device__ __forceinline__ void move_to_group(const dgi_device_groups &groups,
                                              const dgi_gemm_args &like, int32_t group,
                                              int32_t first, dgi_gemm_args &g)
{
    g.bias.data = moved(like.bias.data, group * groups.bias_stride);
    if (groups.grouping == DGI_DEVICE_BY_END || groups.grouping == DGI_DEVICE_BY_ROW) {
        move_rows(like, first, g);
    } else {
        g.c.data = moved(like.c.data, group * groups.c_stride);
        g.d.data = moved(like.d.data, group * groups.d_stride);
        g.scale_d.data = moved(like.scale_d.data, group * groups.scale_d_stride);
    }
    if (groups.grouping == DGI_DEVICE_MASKED)
        g.scale_a.data = moved(like.scale_a.data, group * groups.scale_a_stride);
    if (groups.packed != nullptr) {
        g.packed = groups.packed[group];
        g.scale_b.data = moved(g.packed, groups.packed_scales);
    } else if (groups.grouping <= DGI_DEVICE_MASKED) {
        g.scale_b.data = moved(like.scale_b.data, group * groups.scale_b_stride);
    }
}
