/* SPDX-License-Identifier: MIT */
/* The feeding warps of the GEMM kernel: tiles, scales and the epilogue's factors. */
#pragma once
#include "../../core/packed_sm90.h"
#include "gemm_common.cuh"
#include "ptx/bulk.cuh"
#include "ptx/copy.cuh"
#include "scales.cuh"

/*
 * A CTA's tile of B, stage by stage: boxes of its map, or rows of packed parts, which are padded to
 * a multiple of DGI_PACKED_ROWS, not to whole tiles.
 */
struct weight_tile {
    const CUtensorMap *map;
    const int32_t row, k0; /* in the map: the first ones */
    const uint8_t *packed; /* the first stage, or NULL */
    const int64_t step;    /* from one packed stage to the next */
    uint32_t bytes;        /* of a stage. A box counts in full, also where it passes the end of B */

    __device__ __forceinline__ weight_tile(const dgi_gemm_maps &maps, const dgi_gemm_args &args,
                                           int32_t n0)
        : map(&maps.b), row(args.b_row + n0), k0(args.first_k), packed(args.packed),
          step(dgi_packed_row(0, 1, args.n)), bytes(TILE_N * TILE_K)
    {
        if (packed == nullptr)
            return;
        const int64_t rows = dgi_packed_padded(args.n, DGI_PACKED_ROWS) - n0;
        bytes = (uint32_t)max((int64_t)0, min(rows, (int64_t)TILE_N)) * TILE_K;
        packed += dgi_packed_row(n0, 0, args.n);
    }
    /* To shared memory. */
    __device__ __forceinline__ void copy(int32_t stage, uint32_t target, uint32_t barrier,
                                         uint64_t policy) const
    {
        if (packed == nullptr)
            copy_box_in(target, map, k0 + stage * TILE_K, row, barrier);
        else if (bytes != 0)
            copy_bytes_in(target, packed + stage * step, bytes, barrier, policy);
    }
    /* To L2. */
    __device__ __forceinline__ void fetch(int32_t stage) const
    {
        if (packed == nullptr)
            fetch_box(map, k0 + stage * TILE_K, row);
        else if (bytes != 0)
            fetch_bytes(packed + stage * step, bytes);
    }
};

/*
 * One warp, of which one lane fills the stages with tiles of A and B. The CTAs of a cluster take
 * the boxes of A in turn, each for all. RAGGED: boxes are low, and those without rows not loaded.
 */
template <bool RAGGED>
__device__ __forceinline__ void feed_tiles(const dgi_gemm_maps &maps, const dgi_gemm_args &args,
                                           const shared_memory &shared, stage_place &place)
{
    constexpr int BOX = RAGGED ? DGI_RAGGED_BOX : TILE_M / CLUSTER; /* rows of A */
    const uint32_t scale_bytes = args.copy_scales ? PARTS * TILE_M * 4 : 0;
    const uint64_t policy = read_once_policy(); /* tiles of the same columns run side by side */
    for (tile_walk<RAGGED> tile(args); tile.next();) {
        const weight_tile b(maps, args, tile.n0);
        const int boxes = RAGGED ? (min(TILE_M, args.m - tile.m0) + BOX - 1) / BOX : CLUSTER;
        const int32_t row = args.a_row + tile.m0;
        const uint32_t bytes = boxes * BOX * TILE_K + b.bytes + scale_bytes;
        for (int32_t i = tile.begin; i < tile.end; i++, place.advance()) {
            const uint32_t full = shared.full(place.at), a = shared.a(place.at);
            mbarrier_wait(shared.empty(place.at), place.parity ^ 1);
            if (threadIdx.x % 32 != 0)
                continue;
            const int32_t k = b.k0 + i * TILE_K;
            mbarrier_arrive_expect(full, bytes);
            if (scale_bytes != 0)
                copy_box_in(shared_address(shared.scales_a(place.at, 0)), &maps.scale_a, tile.m0,
                            i * PARTS, full);
            for (int box = CLUSTER == 1 ? 0 : cluster_rank(); box < boxes; box += CLUSTER) {
                const uint32_t target = a + box * BOX * TILE_K;
                if (CLUSTER == 1)
                    copy_box_in(target, &maps.a, k, row + box * BOX, full);
                else
                    copy_box_in_multicast(target, &maps.a, k, row + box * BOX, full,
                                          (1 << CLUSTER) - 1);
            }
            b.copy(i, shared.b(place.at), full, policy);
        }
    }
}

/* The column of a scale array that serves a part of K. Parts past the last are the last. */
__device__ __forceinline__ int32_t scale_column(const dgi_device_scale &scale,
                                                const dgi_gemm_args &args, int32_t part)
{
    part = min(part, (args.k - 1) / PART_K);
    /* Usual, and cheap: each part has a scale of its own, or all share one. */
    if (scale.block_cols <= 1)
        return part * scale.block_cols;
    return scale_index(part, scale.block_cols, scale.col_phase);
}

/*
 * One warp of two, which take the stages in turn, when scales of A are shared by ROWS rows: a lane
 * loads one scale of A or B of the stage, and multiplies two pairs of them.
 */
__device__ __forceinline__ void feed_products(const dgi_gemm_args &args,
                                              const shared_memory &shared, stage_place &place,
                                              uint32_t &turn)
{
    constexpr int BLOCKS = TILE_M / (ROWS > 1 ? ROWS : TILE_M), EACH = 32 / PARTS; /* of a part */
    static_assert(ROWS == 1 || (BLOCKS + SPANS == EACH && BLOCKS * SPANS == 2 * EACH),
                  "a lane loads one scale and makes two products");
    const int lane = threadIdx.x % 32, part = lane / EACH, i = lane % EACH;
    const int block = i * 2 / SPANS,
              span = i * 2 % SPANS; /* its products: this span and the next */
    const int32_t stages = stage_count(args);
    const bool is_a = i < BLOCKS;
    const dgi_device_scale &scale = is_a ? args.scale_a : args.scale_b;
    for (tile_walk<false> tile(args); tile.next();) {
        const scale_rows<1> row(scale, is_a ? tile.m0 + i * ROWS : tile.n0 + (i - BLOCKS) * SPAN, 0,
                                (is_a ? args.m : args.n) - 1);
        for (int32_t stage = 0; stage < stages; stage++, place.advance()) {
            if (turn++ % 2 != 0)
                continue;
            float value[1];
            row.load(scale, scale_column(scale, args, stage * PARTS + part), value);
            mbarrier_wait(shared.empty(place.at), place.parity ^ 1);
            const int first = part * EACH;
            const float a = __shfl_sync(0xFFFFFFFF, value[0], first + block);
            const float left = __shfl_sync(0xFFFFFFFF, value[0], first + BLOCKS + span);
            const float right = __shfl_sync(0xFFFFFFFF, value[0], first + BLOCKS + span + 1);
            *(float2 *)(shared.scales_a(place.at, part) + i * 2) = {a * left, a * right};
            __syncwarp();
            if (lane == 0)
                mbarrier_arrive(shared.full(place.at));
        }
    }
}

/* Scales of B for one stage, and whether a warp loads those of many stages at once. */
constexpr int B_SCALES = SPANS * PARTS;
constexpr bool FEW_B_SCALES = SPAN != 0 && B_SCALES <= 4;

/*
 * One warp, when the copy engine reads the scales of A and those of B are few: each lane loads one
 * scale, the warp those of several stages at once, and the next ones while it hands these out.
 */
__device__ __forceinline__ void feed_scales_b(const dgi_gemm_args &args,
                                              const shared_memory &shared, stage_place &place)
{
    constexpr int AT_ONCE = FEW_B_SCALES ? 32 / B_SCALES : 1; /* stages */
    const dgi_device_scale &b = args.scale_b;
    const int lane = threadIdx.x % 32, ahead = lane / B_SCALES;
    const int part = lane % B_SCALES / SPANS, span = lane % SPANS;
    const int32_t stages = stage_count(args);
    for (tile_walk<false> tile(args); tile.next();) {
        const scale_rows<1> row(b, tile.n0 + span * SPAN, 0, args.n - 1);
        float next[1];
        row.load(b, scale_column(b, args, ahead * PARTS + part), next);
        for (int32_t first = 0; first < stages; first += AT_ONCE) {
            const float value = next[0];
            if (first + AT_ONCE < stages)
                row.load(b, scale_column(b, args, (first + AT_ONCE + ahead) * PARTS + part), next);
            for (int i = 0; i < min(AT_ONCE, stages - first); i++, place.advance()) {
                mbarrier_wait(shared.empty(place.at), place.parity ^ 1);
                if (ahead == i)
                    shared.scales_b(place.at, part)[span] = value;
                __syncwarp();
                if (lane == 0)
                    mbarrier_arrive(shared.full(place.at));
            }
        }
    }
}

/*
 * One warp of two, which take the stages in turn: gathers the scales of a stage, those of A unless
 * the copy engine does. Rows, columns and parts of K outside the operands get the nearest
 * scale that exists; their codes are 0.
 */
template <bool RAGGED>
__device__ __forceinline__ void feed_scales(const dgi_gemm_args &args, const shared_memory &shared,
                                            stage_place &place, uint32_t &turn)
{
    constexpr int A_COUNT = TILE_M / 32, B_COUNT = (SPANS + 31) / 32; /* scales of a lane */
    constexpr int CHUNK = (PARTS + 1) / 2; /* parts loaded at a time: what registers allow */
    const dgi_device_scale &a = args.scale_a, &b = args.scale_b;
    const int lane = threadIdx.x % 32;
    for (tile_walk<RAGGED> tile(args); tile.next();) {
        const scale_rows<A_COUNT> a_rows(a, tile.m0 + lane, 32, args.m - 1);
        const scale_rows<B_COUNT> b_rows(b, tile.n0 + lane % SPANS * SPAN, 32 * SPAN, args.n - 1);
        for (int32_t i = tile.begin; i < tile.end; i++, place.advance()) {
            if (turn++ % 2 != 0)
                continue;
#pragma unroll
            for (int chunk = 0; chunk < PARTS; chunk += CHUNK) {
                float a_values[CHUNK][A_COUNT], b_values[CHUNK][B_COUNT];
#pragma unroll
                for (int j = 0; j < CHUNK; j++) {
                    const int32_t part = i * PARTS + chunk + j;
                    if (!args.copy_scales)
                        a_rows.load(a, scale_column(a, args, part), a_values[j]);
                    b_rows.load(b, scale_column(b, args, part), b_values[j]);
                }
                /* Only now wait for the stage: the loads are under way meanwhile. */
                if (chunk == 0)
                    mbarrier_wait(shared.empty(place.at), place.parity ^ 1);
#pragma unroll
                for (int j = 0; j < CHUNK; j++) {
                    float *a_target = shared.scales_a(place.at, chunk + j) + lane;
                    float *b_target = shared.scales_b(place.at, chunk + j) + span_place(lane);
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
template <bool RAGGED>
__device__ __forceinline__ void feed_factors(const dgi_gemm_args &args, const shared_memory &shared,
                                             factor_place &place)
{
    constexpr int A_COUNT = TILE_M / 32;        /* rows of a lane */
    constexpr int B_COUNT = (TILE_N + 31) / 32; /* columns */
    const dgi_device_scale &a = args.scale_a, &b = args.scale_b;
    const int lane = threadIdx.x % 32;
    const bool scaled = SPAN == 0 && args.k > 0; /* without K there may be no scales */
    if (!args.factors)
        return;
    for (tile_walk<RAGGED> tile(args); tile.next(); place.advance()) {
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
