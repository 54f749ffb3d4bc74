/* SPDX-License-Identifier: MIT */
/*
 * What the roles of the GEMM kernel share: its constants, the layout of its shared memory, the ring
 * of stages, and the walk over the tiles of D. gemm_dense.cu says what the build sets.
 */
#pragma once
#include "../../core/tile_order.h"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"

constexpr int TILE_M = DGI_TILE_M, TILE_N = DGI_TILE_N, TILE_K = 128;
constexpr int GROUPS = DGI_GROUPS, CLUSTER = DGI_CLUSTER, STAGES = DGI_STAGES;
constexpr int PROMOTE_K = DGI_PROMOTE_K, SPAN = DGI_SPAN, ROWS = DGI_ROWS;

constexpr int WAVES = TILE_M / GROUPS / 64; /* blocks of 64 rows of a warpgroup */
constexpr int PARTS = PROMOTE_K == 0 ? 1 : TILE_K / PROMOTE_K;
constexpr int PART_K = TILE_K / PARTS, STEPS = PART_K / 32; /* wgmmas of one part */
/*
 * Promoting each 32 of K hides the promotion of one partial sum behind the next one's wgmma. With a
 * scale for each column there are not enough registers for that.
 */
constexpr int PARTIALS = PARTS > 1 && SPAN != 1 ? 2 : 1;
constexpr int SPANS = SPAN == 0 ? 1 : TILE_N / SPAN;
constexpr int MATH_THREADS = GROUPS * 128, THREADS = MATH_THREADS + 128;
/* Registers of a thread: at launch, and after the feeding warps have given some to the others. */
constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int FEED_REGISTERS = SPAN == 1 ? 72 : 56; /* more scales, more registers */
constexpr int SHARED_OUT_REGISTERS =
    (LAUNCH_REGISTERS * THREADS - FEED_REGISTERS * 128) / MATH_THREADS / 8 * 8;
constexpr int MATH_REGISTERS = SHARED_OUT_REGISTERS > 240 ? 240 : SHARED_OUT_REGISTERS;

constexpr int STAGE_BYTES = DGI_STAGE_BYTES(TILE_M, TILE_N);
constexpr int STAGE_SCALES = DGI_STAGE_SCALES(TILE_M, TILE_N, PROMOTE_K, SPAN, ROWS);
constexpr int PANELS = DGI_PANELS(TILE_M, TILE_N, GROUPS); /* of a warp */
constexpr int FACTORS = DGI_FACTORS(TILE_M, TILE_N);

static_assert(WAVES * GROUPS * 64 == TILE_M, "each warpgroup computes whole blocks of 64 rows");
static_assert(STAGES * STAGE_SCALES % 2 == 0 && FACTORS % 2 == 0,
              "factors are read in pairs, and barriers lie at multiples of 8 bytes");

/* ---- shared memory: the layout of gemm_layout.h ---------------------------------------- */

struct shared_memory {
    uint32_t stages, panels, barriers;
    float *scales, *factors;

    __device__ __forceinline__ explicit shared_memory(uint8_t *base)
    {
        uint8_t *panels_at = base + STAGES * STAGE_BYTES;
        scales = (float *)(panels_at + MATH_THREADS / 32 * PANELS * DGI_PANEL_BYTES);
        factors = scales + STAGES * STAGE_SCALES;
        stages = shared_address(base);
        panels = shared_address(panels_at);
        barriers = shared_address(factors + DGI_FACTOR_SETS * FACTORS);
    }
    __device__ __forceinline__ uint32_t a(int stage) const
    {
        return stages + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t b(int stage) const
    {
        return a(stage) + TILE_M * TILE_K;
    }
    /* The scales of A's rows and of B's spans for one part of a stage; when ROWS > 1, those of
     * each block of rows with each span, a block's side by side. */
    __device__ __forceinline__ float *scales_a(int stage, int part) const
    {
        return scales + (stage * PARTS + part) * (ROWS == 1 ? TILE_M : TILE_M / ROWS * SPANS);
    }
    /* When each column has one, those of 16 columns are in the order in which four lanes read four
     * each: columns 0, 1, 8, 9 first. */
    __device__ __forceinline__ float *scales_b(int stage, int part) const
    {
        return scales + STAGES * PARTS * TILE_M + (stage * PARTS + part) * SPANS;
    }
    __device__ __forceinline__ uint32_t full(int stage) const
    {
        return barriers + 8 * stage;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return full(STAGES + stage);
    }
    __device__ __forceinline__ uint32_t factors_full(int set) const
    {
        return full(2 * STAGES + set);
    }
    __device__ __forceinline__ uint32_t factors_empty(int set) const
    {
        return full(2 * STAGES + DGI_FACTOR_SETS + set);
    }
};

/* Where among scales_b() a span's scale lies. */
__device__ __forceinline__ int span_place(int span)
{
    return SPAN == 1 ? span / 16 * 16 + span % 8 / 2 * 4 + span / 8 % 2 * 2 + span % 2 : span;
}

/* Called by all threads of a kernel, first of all. */
__device__ __forceinline__ void start_barriers(const shared_memory &shared)
{
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(shared.full(stage), SPAN == 0 ? 1 : 2);
            mbarrier_init(shared.empty(stage), MATH_THREADS / 32 * CLUSTER);
        }
        for (int set = 0; set < DGI_FACTOR_SETS; set++) {
            mbarrier_init(shared.factors_full(set), 1);
            mbarrier_init(shared.factors_empty(set), MATH_THREADS / 32);
        }
        mbarrier_init_fence();
    }
    if (CLUSTER == 1)
        __syncthreads();
    else
        cluster_sync();
}

/* A place in a ring of buffers, and the parity of its current phase. */
template <int Length> struct ring_place {
    int at = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++at == Length) {
            at = 0;
            parity ^= 1;
        }
    }
};
using stage_place = ring_place<STAGES>;
using factor_place = ring_place<DGI_FACTOR_SETS>;

/* ---- the tiles of this CTA ----------------------------------------------------------- */

__device__ __forceinline__ int32_t stage_count(const dgi_gemm_args &args)
{
    return (args.k + TILE_K - 1) / TILE_K;
}

/*
 * Walks over the tiles of D that this CTA computes, in the same order for every role. RAGGED, in
 * grouped kernels: those of args.range, of each the stages from `begin` to `end`.
 */
template <bool RAGGED> struct tile_walk {
    const dgi_gemm_args &args;
    int32_t index, m0 = 0, n0 = 0, begin = 0, end;

    __device__ __forceinline__ explicit tile_walk(const dgi_gemm_args &arguments)
        : args(arguments), index(RAGGED ? arguments.range.first : blockIdx.x / CLUSTER),
          end(stage_count(arguments))
    {
    }
    __device__ __forceinline__ bool next()
    {
        if (index >= (RAGGED ? args.range.end : args.tile_rows * args.tile_cols))
            return false;
        dgi_tile tile = dgi_tile_at(index, args.tile_rows, args.tile_cols, args.band);
        m0 = tile.row * TILE_M;
        n0 = (tile.col * CLUSTER + (CLUSTER == 1 ? 0 : cluster_rank())) * TILE_N;
        if (RAGGED) {
            begin = index == args.range.first ? args.range.begin_stage : 0;
            end = min(stage_count(args),
                      index == args.range.end - 1 ? args.range.end_stage : INT32_MAX);
        }
        index += RAGGED ? args.range.step : gridDim.x / CLUSTER;
        return true;
    }
    /* Whether only a part of the tile's K is computed here. */
    __device__ __forceinline__ bool is_part() const
    {
        return RAGGED && (begin > 0 || end < stage_count(args));
    }
    __device__ __forceinline__ const dgi_tile_part &part() const
    {
        return begin > 0 ? args.range.head : args.range.tail;
    }
};
