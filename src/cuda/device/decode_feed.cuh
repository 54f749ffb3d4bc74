/* SPDX-License-Identifier: MIT */
/*
 * The feeding warps of the decode kernel: tiles and scales.
 *
 * What the kernels before this one may still be writing is read only after they have ended. B is
 * fetched before that: to shared memory where the host says that it does not change, and to L2,
 * which everybody's writes go through, where it might.
 */
#pragma once
#include "../../core/packed_sm90.h"
#include "decode_common.cuh"
#include "ptx/bulk.cuh"
#include "ptx/copy.cuh"
#include "scales.cuh"

/* Walks over the tiles of B that this CTA's stages hold. */
struct weight_walk {
    const dgi_decode_args &args;
    const share_of_work &work;
    stage_walk at;
    const uint8_t *packed; /* the tile, when B is packed */
    uint32_t bytes;        /* of it; a box counts in full, also where it passes the end of B */
    int64_t step;          /* from one part of K to the next */

    __device__ __forceinline__ weight_walk(const dgi_decode_args &arguments,
                                           const share_of_work &share)
        : args(arguments), work(share), at(share), step(dgi_packed_row(0, 1, arguments.n))
    {
        begin_tile();
    }
    __device__ __forceinline__ void begin_tile()
    {
        const int32_t row = at.tile * ROWS;
        packed = args.packed + dgi_packed_row(row, at.part, args.n);
        bytes = STAGE_K * ROWS;
        if (args.packed != 0 && args.n - row <= ROWS / 2)
            bytes /= 2;
    }
    __device__ __forceinline__ void advance()
    {
        packed += step;
        if (at.advance(work))
            begin_tile();
    }
    /* To shared memory; the stage also waits for its tile of A. */
    __device__ __forceinline__ void copy(uint32_t target, uint32_t barrier, uint64_t policy) const
    {
        mbarrier_arrive_expect(barrier, TOKENS * STAGE_K + bytes);
        if (args.packed != 0)
            copy_bytes_in(target, packed, bytes, barrier, policy);
        else
            copy_box_in(target, &args.b_map, at.part * STAGE_K, at.tile * ROWS, barrier);
    }
    /* To L2. */
    __device__ __forceinline__ void fetch() const
    {
        if (args.packed != 0)
            fetch_bytes(packed, bytes);
        else
            fetch_box(&args.b_map, at.part * STAGE_K, at.tile * ROWS);
    }
};

/* One thread: fills the stages with tiles of B and of A. */
__device__ __forceinline__ void feed_tiles(const dgi_decode_args &args, const shared_memory &shared,
                                           const share_of_work &work)
{
    if (work.stages == 0)
        return;
    const uint64_t policy = read_once_policy();
    const int32_t first = min(STAGES, work.stages);
    const int32_t fetched = min(STAGES + args.ahead, work.stages);
    tensor_map_prefetch(&args.a_map);
    if (args.packed == 0)
        tensor_map_prefetch(&args.b_map);

    weight_walk ahead(args, work), weights(args, work);
    stage_walk tokens(work);
    ring_place place;
    for (int32_t i = 0; i < fetched; i++, ahead.advance()) {
        if (i >= first || !args.early) {
            ahead.fetch();
            continue;
        }
        ahead.copy(shared.weights(i), shared.full(i), policy);
        weights.advance();
    }
    wait_for_earlier_kernels();
    for (int32_t i = 0; i < first; i++, tokens.advance(work)) {
        if (!args.early) {
            weights.copy(shared.weights(i), shared.full(i), policy);
            weights.advance();
        }
        copy_box_in(shared.tokens(i), &args.a_map, tokens.part * STAGE_K, 0, shared.full(i));
    }
    place.advance_by_ring();
    for (int32_t i = first; i < work.stages; i++, weights.advance(), place.advance()) {
        const uint32_t full = shared.full(place.stage);
        mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
        weights.copy(shared.weights(place.stage), full, policy);
        copy_box_in(shared.tokens(place.stage), &args.a_map, weights.at.part * STAGE_K, 0, full);
        if (i - first + fetched < work.stages) {
            ahead.fetch();
            ahead.advance();
        }
    }
}

/*
 * One warp: gathers the scales of a stage. Tokens, rows and parts of K outside the operands get the
 * nearest scale that exists; their codes are 0.
 */
struct scale_feed {
    static constexpr int A_COUNT = (TOKENS + 31) / 32; /* scales of a lane */
    struct values {
        float a[PARTS][A_COUNT], b[PARTS][4];
    };
    const dgi_device_scale &a, &b;
    const scale_rows<A_COUNT> a_rows; /* every 32nd */
    const int32_t lane, last_row, last_part;
    const bool uniform; /* a tile's rows share their scale */

    __device__ __forceinline__ explicit scale_feed(const dgi_decode_args &args)
        : a(args.scale_a), b(args.scale_b), a_rows(args.scale_a, threadIdx.x % 32, 32, args.m - 1),
          lane(threadIdx.x % 32), last_row(args.n - 1), last_part((args.k - 1) / PART_K),
          uniform(b.block_rows == 0 || (b.block_rows % ROWS == 0 && b.row_phase % ROWS == 0))
    {
    }
    /* Four neighbouring rows of a tile. */
    __device__ __forceinline__ scale_rows<4> rows_of(int32_t tile) const
    {
        return scale_rows<4>(b, tile * ROWS + lane * 4, 1, last_row);
    }
    __device__ __forceinline__ int32_t col(const dgi_device_scale &scale, int32_t part) const
    {
        part = min(part, last_part);
        return scale.block_cols <= 1 ? part * scale.block_cols
                                     : scale_index(part, scale.block_cols, scale.col_phase);
    }
    __device__ __forceinline__ void load_a(int32_t stage, values &values) const
    {
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            a_rows.load(a, col(a, stage * PARTS + j), values.a[j]);
    }
    __device__ __forceinline__ void load_b(const scale_rows<4> &rows, int32_t stage,
                                           values &values) const
    {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            const int32_t at = col(b, stage * PARTS + j);
            if (!uniform) {
                rows.load(b, at, values.b[j]);
                continue;
            }
            const float scale = rows.load_first(b, at);
#pragma unroll
            for (int row = 0; row < 4; row++)
                values.b[j][row] = scale;
        }
    }
    __device__ __forceinline__ void store(float *target, const values &values) const
    {
#pragma unroll
        for (int j = 0; j < PARTS; j++, target += PART_SCALES) {
#pragma unroll
            for (int token = 0; token < A_COUNT; token++)
                if (lane + 32 * token < TOKENS)
                    target[lane + 32 * token] = values.a[j][token];
            *(float4 *)(target + TOKENS + 4 * lane) =
                make_float4(values.b[j][0], values.b[j][1], values.b[j][2], values.b[j][3]);
        }
    }
    /* Brings B's scales of a stage to L2. */
    __device__ __forceinline__ void fetch(const stage_walk &at) const
    {
        if (uniform && lane > 0)
            return;
        const scale_rows<4> rows = rows_of(at.tile);
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            rows.fetch(b, col(b, at.part * PARTS + j));
    }
};

__device__ __forceinline__ void feed_scales(const dgi_decode_args &args,
                                            const shared_memory &shared, const share_of_work &work)
{
    constexpr int TOGETHER = PARTS > 1 ? 1 : TOKENS > 32 ? 2 : STAGES; /* loaded at once */
    const scale_feed scales(args);
    stage_walk at(work);
    ring_place place;
    stage_walk ahead(work); /* B's scales are fetched to L2 two rings ahead */
    int32_t fetched = 0;
    for (; fetched < 2 * STAGES && fetched < work.stages; fetched++, ahead.advance(work))
        scales.fetch(ahead);
    scale_rows<4> rows = scales.rows_of(at.tile);
    if (!args.early)
        wait_for_earlier_kernels();
    for (int32_t i = 0; i < work.stages; i += TOGETHER) {
        scale_feed::values values[TOGETHER];
        stage_walk tokens = at;
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) { /* behind the last stage: the last one's */
            scales.load_b(rows, at.part, values[j]);
            if (at.advance(work))
                rows = scales.rows_of(at.tile);
        }
        wait_for_earlier_kernels();
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            scales.load_a(tokens.part, values[j]);
            tokens.advance(work);
        }
        for (int j = 0; j < TOGETHER && fetched < work.stages; j++, fetched++, ahead.advance(work))
            scales.fetch(ahead);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            if (i + j >= work.stages)
                break;
            mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
            scales.store(shared.scales + place.stage * STAGE_SCALES, values[j]);
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                mbarrier_arrive(shared.full(place.stage));
            place.advance();
        }
    }
}
