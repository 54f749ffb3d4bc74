/* SPDX-License-Identifier: MIT */
/* The feeding warps of the GEMM kernel: tiles, scales and the epilogue's factors. */
#pragma once
#include "gemm_common.cuh"
#include "ptx/copy.cuh"
#include "scales.cuh"

/* One warp, of which one lane fills the stages with tiles of A and B. */
__device__ __forceinline__ void feed_tiles(const dgi_gemm_args &args, const shared_memory &shared)
{
    constexpr int SHARE = TILE_M / CLUSTER; /* rows of A that this CTA loads for its cluster */
    constexpr int A_SCALE_BYTES = PARTS * TILE_M * 4;
    const int32_t stages = stage_count(args);
    stage_place place;
    if (stages > 0) {
        tensor_map_prefetch(&args.a_map);
        tensor_map_prefetch(&args.b_map);
    }
    for (tile_walk tile(args); tile.next();)
        for (int32_t i = 0; i < stages; i++, place.advance()) {
            const uint32_t full = shared.full(place.at), a = shared.a(place.at);
            mbarrier_wait(shared.empty(place.at), place.parity ^ 1);
            if (threadIdx.x % 32 != 0)
                continue;
            mbarrier_arrive_expect(full, STAGE_BYTES + (args.copy_scales ? A_SCALE_BYTES : 0));
            if (args.copy_scales)
                copy_box_in(shared_address(shared.scales_a(place.at, 0)), &args.scale_a_map,
                            tile.m0, i * PARTS, full);
            if (CLUSTER == 1) {
                copy_box_in(a, &args.a_map, i * TILE_K, tile.m0, full);
            } else {
                const int first = cluster_rank() * SHARE;
                copy_box_in_multicast(a + first * TILE_K, &args.a_map, i * TILE_K, tile.m0 + first,
                                      full, (1 << CLUSTER) - 1);
            }
            copy_box_in(shared.b(place.at), &args.b_map, i * TILE_K, tile.n0, full);
        }
}

/*
 * One warp of two, which take the stages in turn: gathers the scales of a stage; those of A only
 * when the copy engine cannot. Rows, columns and parts of K outside the operands get the nearest
 * scale that exists; their codes are 0.
 */
__device__ __forceinline__ void feed_scales(const dgi_gemm_args &args, const shared_memory &shared,
                                            int warp)
{
    constexpr int A_COUNT = TILE_M / 32, B_COUNT = (SPANS + 31) / 32; /* scales of a lane */
    constexpr int CHUNK = (PARTS + 1) / 2; /* parts loaded at a time: what registers allow */
    const dgi_device_scale &a = args.scale_a, &b = args.scale_b;
    const int lane = threadIdx.x % 32;
    const int32_t stages = stage_count(args), last_part = (args.k - 1) / PART_K;
    /* Usual, and cheap: each part has a scale of its own, or all share one. */
    const bool simple = a.block_cols <= 1 && b.block_cols <= 1;
    stage_place place;
    uint32_t turn = warp;
    for (tile_walk tile(args); tile.next();) {
        const scale_rows<A_COUNT> a_rows(a, tile.m0 + lane, 32, args.m - 1);
        const scale_rows<B_COUNT> b_rows(b, tile.n0 + lane % SPANS * SPAN, 32 * SPAN, args.n - 1);
        for (int32_t i = 0; i < stages; i++, place.advance()) {
            if (turn++ % 2 != 0)
                continue;
#pragma unroll
            for (int chunk = 0; chunk < PARTS; chunk += CHUNK) {
                float a_values[CHUNK][A_COUNT], b_values[CHUNK][B_COUNT];
#pragma unroll
                for (int j = 0; j < CHUNK; j++) {
                    const int32_t part = min(i * PARTS + chunk + j, last_part);
                    int32_t a_col = part * a.block_cols, b_col = part * b.block_cols;
                    if (!simple) {
                        a_col = scale_index(part, a.block_cols, a.col_phase);
                        b_col = scale_index(part, b.block_cols, b.col_phase);
                    }
                    if (!args.copy_scales)
                        a_rows.load(a, a_col, a_values[j]);
                    b_rows.load(b, b_col, b_values[j]);
                }
                /* Only now wait for the stage: the loads are under way meanwhile. */
                if (chunk == 0)
                    mbarrier_wait(shared.empty(place.at), place.parity ^ 1);
#pragma unroll
                for (int j = 0; j < CHUNK; j++) {
                    float *a_target = shared.scales_a(place.at, chunk + j) + lane;
                    float *b_target = shared.scales_b(place.at, chunk + j) + lane;
                    if (!args.copy_scales)
#pragma unroll
                        for (int row = 0; row < A_COUNT; row++)
                            a_target[32 * row] = a_values[j][row];
#pragma unroll
                    for (int span = 0; span < B_COUNT; span++)
                        if (lane + 32 * span < SPANS)
                            b_target[32 * span] = b_values[j][span];
                }
            }
            __syncwarp();
            if (lane == 0)
                mbarrier_arrive(shared.full(place.at));
        }
    }
}

/* One warp: gathers what the epilogue of each tile multiplies by and adds. */
__device__ __forceinline__ void feed_factors(const dgi_gemm_args &args, const shared_memory &shared)
{
    constexpr int A_COUNT = TILE_M / 32;        /* rows of a lane */
    constexpr int B_COUNT = (TILE_N + 31) / 32; /* columns */
    const dgi_device_scale &a = args.scale_a, &b = args.scale_b;
    const int lane = threadIdx.x % 32;
    const bool scaled = SPAN == 0 && args.k > 0; /* without K there may be no scales */
    factor_place place;
    if (!args.factors)
        return;
    for (tile_walk tile(args); tile.next(); place.advance()) {
        float row_factors[A_COUNT], col_factors[B_COUNT], bias[B_COUNT];
        int32_t cols[B_COUNT];
#pragma unroll
        for (int j = 0; j < A_COUNT; j++)
            row_factors[j] = 1.0f;
#pragma unroll
        for (int j = 0; j < B_COUNT; j++) {
            col_factors[j] = 1.0f;
            cols[j] = min(tile.n0 + lane + 32 * j, args.n - 1);
        }
        if (scaled) {
            scale_rows<A_COUNT>(a, tile.m0 + lane, 32, args.m - 1).load(a, 0, row_factors);
            scale_rows<B_COUNT>(b, tile.n0 + lane, 32, args.n - 1).load(b, 0, col_factors);
        }
        bias_gather(args.bias, cols, bias);
        mbarrier_wait(shared.factors_empty(place.at), place.parity ^ 1);
        float *target = shared.factors + place.at * FACTORS + lane;
#pragma unroll
        for (int j = 0; j < A_COUNT; j++)
            target[32 * j] = row_factors[j];
#pragma unroll
        for (int j = 0; j < B_COUNT; j++) {
            if (lane + 32 * j >= TILE_N)
                continue;
            target[TILE_M + 32 * j] = col_factors[j] * args.alpha;
            target[TILE_M + TILE_N + 32 * j] = bias[j];
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(shared.factors_full(place.at));
    }
}
