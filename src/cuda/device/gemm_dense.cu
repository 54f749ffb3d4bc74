/* SPDX-License-Identifier: MIT */
/*
 * The dense GEMM for Hopper, D = epilogue(A B^T), one kernel for each row of the kernel table. The
 * build compiles this file once a row and sets:
 *
 *   DGI_KERNEL               the kernel's name
 *   DGI_A_TYPE, DGI_B_TYPE   "e4m3" or "e5m2"
 *   DGI_TILE_M, DGI_TILE_N   the tile of D that a CTA computes
 *   DGI_GROUPS               math warpgroups; each computes TILE_M / GROUPS rows, 64 at a time
 *   DGI_CLUSTER              CTAs side by side along N, which share the loading of A
 *   DGI_STAGES               depth of the ring of A and B tiles, each 128 of K
 *   DGI_PANELS               buffers that a warpgroup's epilogue uses in turn
 *   DGI_PROMOTE_K            K after which partial sums are added up in FP32; 0: never
 *   DGI_SPAN                 neighbouring columns that share one scale of B inside the main loop;
 *                            0: scales act only in the epilogue
 *
 * A CTA is persistent and its warps have fixed roles. One warpgroup feeds: warp 0 drives the copy
 * engine, warp 1 gathers the epilogue's factors, warps 2 and 3 gather scales. The others multiply.
 * They meet at mbarriers in shared memory: `full` and `empty` for each stage, and one pair for the
 * factors.
 */
#include "../../core/tile_order.h"
#include "epilogue.cuh"
#include "gemm_args.h"
#include "ptx/cluster.cuh"
#include "ptx/copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/wgmma.cuh"
#include "scales.cuh"

constexpr int TILE_M = DGI_TILE_M, TILE_N = DGI_TILE_N, TILE_K = 128;
constexpr int GROUPS = DGI_GROUPS, CLUSTER = DGI_CLUSTER, STAGES = DGI_STAGES, PANELS = DGI_PANELS;
constexpr int PROMOTE_K = DGI_PROMOTE_K, SPAN = DGI_SPAN;

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
constexpr int MATH_REGISTERS =
    (LAUNCH_REGISTERS * THREADS - FEED_REGISTERS * 128) / MATH_THREADS / 8 * 8;

constexpr int STAGE_BYTES = DGI_STAGE_BYTES(TILE_M, TILE_N);
constexpr int STAGE_SCALES = DGI_STAGE_SCALES(TILE_M, TILE_N, PROMOTE_K, SPAN);
constexpr int PART_SCALES = STAGE_SCALES / PARTS;

static_assert(WAVES * GROUPS * 64 == TILE_M, "each warpgroup computes whole blocks of 64 rows");
static_assert(TILE_N / PANEL_COLS % PANELS == 0, "panels are used in turn, tile after tile");

/* ---- shared memory: the layout of gemm_args.h ---------------------------------------- */

struct shared_memory {
    uint32_t stages, panels, barriers;
    float *scales, *factors;

    __device__ __forceinline__ explicit shared_memory(uint8_t *base)
    {
        uint8_t *panels_at = base + STAGES * STAGE_BYTES;
        scales = (float *)(panels_at + GROUPS * PANELS * DGI_PANEL_BYTES);
        factors = scales + STAGES * STAGE_SCALES;
        stages = shared_address(base);
        panels = shared_address(panels_at);
        barriers = shared_address(factors + DGI_FACTORS(TILE_M, TILE_N));
    }
    __device__ __forceinline__ uint32_t a(int stage) const
    {
        return stages + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t b(int stage) const
    {
        return a(stage) + TILE_M * TILE_K;
    }
    __device__ __forceinline__ uint32_t full(int stage) const
    {
        return barriers + 8 * stage;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return full(STAGES + stage);
    }
    __device__ __forceinline__ uint32_t factors_full() const
    {
        return full(2 * STAGES);
    }
    __device__ __forceinline__ uint32_t factors_empty() const
    {
        return full(2 * STAGES + 1);
    }
};

/* A place in the ring of stages, and the parity of its current phase. */
struct ring_place {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* ---- the tiles of this CTA ----------------------------------------------------------- */

/* Walks over the tiles of D that this CTA computes, in the same order for every role. */
struct tile_walk {
    const dgi_gemm_args &args;
    int32_t index, m0 = 0, n0 = 0;

    __device__ __forceinline__ explicit tile_walk(const dgi_gemm_args &arguments)
        : args(arguments), index(blockIdx.x / CLUSTER)
    {
    }
    __device__ __forceinline__ bool next()
    {
        if (index >= args.tile_rows * args.tile_cols)
            return false;
        dgi_tile tile = dgi_tile_at(index, args.tile_rows, args.tile_cols, args.band);
        m0 = tile.row * TILE_M;
        n0 = (tile.col * CLUSTER + (CLUSTER == 1 ? 0 : cluster_rank())) * TILE_N;
        index += gridDim.x / CLUSTER;
        return true;
    }
};

__device__ __forceinline__ int32_t stage_count(const dgi_gemm_args &args)
{
    return (args.k + TILE_K - 1) / TILE_K;
}

/* ---- feeding ------------------------------------------------------------------------- */

/* One warp, of which one lane fills the stages with tiles of A and B. */
__device__ __forceinline__ void feed_tiles(const dgi_gemm_args &args, const shared_memory &shared)
{
    constexpr int SHARE = TILE_M / CLUSTER; /* rows of A that this CTA loads for its cluster */
    const int32_t stages = stage_count(args);
    ring_place place;
    if (stages > 0) {
        tensor_map_prefetch(&args.a_map);
        tensor_map_prefetch(&args.b_map);
    }
    for (tile_walk tile(args); tile.next();)
        for (int32_t i = 0; i < stages; i++, place.advance()) {
            const uint32_t full = shared.full(place.stage), a = shared.a(place.stage);
            mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
            if (threadIdx.x % 32 != 0)
                continue;
            mbarrier_arrive_expect(full, STAGE_BYTES);
            if (CLUSTER == 1) {
                copy_box_in(a, &args.a_map, i * TILE_K, tile.m0, full);
            } else {
                const int first = cluster_rank() * SHARE;
                copy_box_in_multicast(a + first * TILE_K, &args.a_map, i * TILE_K, tile.m0 + first,
                                      full, (1 << CLUSTER) - 1);
            }
            copy_box_in(shared.b(place.stage), &args.b_map, i * TILE_K, tile.n0, full);
        }
}

/*
 * One warp of two, which take the stages in turn: gathers the scales of a stage. Rows, columns and
 * parts of K outside the operands get the nearest scale that exists; their codes are 0.
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
    ring_place place;
    uint32_t turn = warp;
    for (tile_walk tile(args); tile.next();) {
        const scale_rows<A_COUNT> a_rows(a, tile.m0 + lane, 32, args.m - 1);
        const scale_rows<B_COUNT> b_rows(b, tile.n0 + lane % SPANS * SPAN, 32 * SPAN, args.n - 1);
        for (int32_t i = 0; i < stages; i++, place.advance()) {
            if (turn++ % 2 != 0)
                continue;
            float *target = shared.scales + place.stage * STAGE_SCALES + lane;
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
                    a_rows.load(a, a_col, a_values[j]);
                    b_rows.load(b, b_col, b_values[j]);
                }
                /* Only now wait for the stage: the loads are under way meanwhile. */
                if (chunk == 0)
                    mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
#pragma unroll
                for (int j = 0; j < CHUNK; j++, target += PART_SCALES) {
#pragma unroll
                    for (int row = 0; row < A_COUNT; row++)
                        target[32 * row] = a_values[j][row] * (SPANS == 1 ? b_values[j][0] : 1.0f);
#pragma unroll
                    for (int span = 0; span < B_COUNT; span++)
                        if (SPANS > 1 && lane + 32 * span < SPANS)
                            target[TILE_M + 32 * span] = b_values[j][span];
                }
            }
            __syncwarp();
            if (lane == 0)
                mbarrier_arrive(shared.full(place.stage));
        }
    }
}

/* One warp: gathers what the epilogue of each tile multiplies by and adds. */
__device__ __forceinline__ void feed_factors(const dgi_gemm_args &args, const shared_memory &shared)
{
    constexpr int A_COUNT = TILE_M / 32, B_COUNT = TILE_N / 32; /* rows and columns of a lane */
    const dgi_device_scale &a = args.scale_a, &b = args.scale_b;
    const int lane = threadIdx.x % 32;
    const bool scaled = SPAN == 0 && args.k > 0; /* without K there may be no scales */
    uint32_t parity = 1;
    for (tile_walk tile(args); tile.next(); parity ^= 1) {
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
        mbarrier_wait(shared.factors_empty(), parity);
        float *target = shared.factors + lane;
#pragma unroll
        for (int j = 0; j < A_COUNT; j++)
            target[32 * j] = row_factors[j];
#pragma unroll
        for (int j = 0; j < B_COUNT; j++) {
            target[TILE_M + 32 * j] = col_factors[j] * args.alpha;
            target[TILE_M + TILE_N + 32 * j] = bias[j];
        }
        __syncwarp();
        if (lane == 0)
            mbarrier_arrive(shared.factors_full());
    }
}

/* ---- multiplying --------------------------------------------------------------------- */

/*
 * One thread of each math warp: this CTA, and those that load for it, may refill the stage. The
 * warp is converged here: all its lanes have just waited for the stage's wgmmas together.
 */
__device__ __forceinline__ void release_stage(const shared_memory &shared, int stage)
{
    const int lane = threadIdx.x % 32;
    if (CLUSTER == 1) {
        if (lane == 0)
            mbarrier_arrive(shared.empty(stage));
    } else if (lane < CLUSTER) {
        mbarrier_arrive_cluster(shared.empty(stage), lane);
    }
}

using accumulators = float[TILE_N / 2];

/* A warpgroup's first rows of A, and all of B, in stage 0. */
struct operands {
    uint64_t a, b;
};

/* Issues the wgmmas of 64 rows and one part of a stage: (+)= into `sum`. */
__device__ __forceinline__ void multiply(accumulators &sum, uint64_t a, uint64_t b, bool accumulate)
{
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        wgmma<TILE_N>::run(sum, a + 2 * step, b + 2 * step, accumulate || step > 0);
}

/*
 * What this thread multiplies a partial sum by: a scale for each of its two rows, and those of its
 * columns. Read before the wgmmas are waited for, so that reading them costs nothing.
 */
struct part_scales {
    static constexpr int COLS = SPAN == 0 || SPANS == 1 ? 0 : SPAN == 1 ? TILE_N / 4 : SPANS;
    float rows[2], cols[COLS + 1];

    __device__ __forceinline__ void load(const float *scales, int row)
    {
        if (SPAN == 0)
            return;
        rows[0] = scales[row];
        rows[1] = scales[row + 8];
#pragma unroll
        for (int j = 0; j < COLS; j++)
            cols[j] = scales[TILE_M + (SPAN == 1 ? j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2 : j)];
    }
    __device__ __forceinline__ float of(int element) const
    {
        const float row = rows[element / 2 % 2];
        if (COLS == 0)
            return row;
        return row *
               cols[SPAN == 1 ? element / 4 * 2 + element % 2 : element / 4 * 8 / (SPAN + !SPAN)];
    }
};

__device__ __forceinline__ void promote(accumulators &sum, const accumulators &partial,
                                        const part_scales &scales)
{
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i++)
        sum[i] = SPAN == 0 ? sum[i] + partial[i] : sum[i] + scales.of(i) * partial[i];
}

/*
 * One stage with promotion. The stage is a sequence of units, each 64 rows times one part of K;
 * with two partial sums, a unit is promoted while the tensor cores work on the next one. All are
 * finished on return: partial sums in flight across a loop's back edge make the compiler wait
 * after every wgmma (its message C7514). Returns whether the stage at `next` is full already, which
 * costs nothing to ask while the last wgmmas run.
 */
__device__ __forceinline__ bool multiply_promoted(accumulators (&sum)[WAVES],
                                                  const shared_memory &shared,
                                                  const operands &first, int stage,
                                                  const ring_place &next, int first_row)
{
    constexpr int UNITS = WAVES * PARTS;
    const uint64_t a = first.a + (uint32_t)(stage * (STAGE_BYTES / 16));
    const uint64_t b = first.b + (uint32_t)(stage * (STAGE_BYTES / 16));
    const float *stage_scales = shared.scales + stage * STAGE_SCALES;
    const int row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    accumulators partial[PARTIALS];
    part_scales scales[PARTIALS];
    bool next_full = false;
#pragma unroll
    for (int issue = 0; issue < UNITS + PARTIALS - 1; issue++) {
        if (issue < UNITS) {
            const int wave = issue / PARTS, part = issue % PARTS;
            accumulators &target = partial[issue % PARTIALS];
            wgmma_pin(target);
            wgmma_fence();
            multiply(target, a + wave * (64 * TILE_K / 16) + part * 2 * STEPS, b + part * 2 * STEPS,
                     false);
            wgmma_commit();
            scales[issue % PARTIALS].load(stage_scales + part * PART_SCALES, row + wave * 64);
        }
        const int unit = issue - (PARTIALS - 1);
        if (unit < 0)
            continue;
        const bool last = unit == UNITS - 1;
        if (last)
            next_full = mbarrier_test(shared.full(next.stage), next.parity);
        if (PARTIALS == 2 && !last)
            wgmma_wait<1>();
        else
            wgmma_wait<0>();
        wgmma_pin(partial[unit % PARTIALS]);
        if (last)
            release_stage(shared, stage);
        promote(sum[unit / PARTS], partial[unit % PARTIALS], scales[unit % PARTIALS]);
    }
    return next_full;
}

/* All stages without promotion: the next stage's wgmmas are issued before this one's have ended. */
__device__ __forceinline__ void multiply_straight(accumulators (&sum)[WAVES],
                                                  const shared_memory &shared,
                                                  const operands &first, ring_place &place,
                                                  int32_t stages)
{
    int previous = 0;
    for (int32_t i = 0; i < stages; i++, place.advance()) {
        const uint64_t a = first.a + (uint32_t)(place.stage * (STAGE_BYTES / 16));
        const uint64_t b = first.b + (uint32_t)(place.stage * (STAGE_BYTES / 16));
        mbarrier_wait(shared.full(place.stage), place.parity);
#pragma unroll
        for (int wave = 0; wave < WAVES; wave++)
            wgmma_pin(sum[wave]);
        wgmma_fence();
#pragma unroll
        for (int wave = 0; wave < WAVES; wave++)
            multiply(sum[wave], a + wave * (64 * TILE_K / 16), b, true);
        wgmma_commit();
        if (i > 0) {
            wgmma_wait<1>();
            release_stage(shared, previous);
        }
        previous = place.stage;
    }
    wgmma_wait<0>();
    if (stages > 0)
        release_stage(shared, previous);
#pragma unroll
    for (int wave = 0; wave < WAVES; wave++)
        wgmma_pin(sum[wave]);
}

/* One warpgroup: its rows of each tile, from the first stage to the result in D. */
__device__ __forceinline__ void multiply_tiles(const dgi_gemm_args &args,
                                               const shared_memory &shared, int group)
{
    const int first_row = group * WAVES * 64;
    const int32_t stages = stage_count(args);
    const tile_factors factors = {shared.factors, shared.factors + TILE_M,
                                  shared.factors + TILE_M + TILE_N};
    const operands first = {wgmma_descriptor(shared.a(0) + first_row * TILE_K),
                            wgmma_descriptor(shared.b(0))};
    ring_place place;
    uint32_t parity = 0;
    for (tile_walk tile(args); tile.next(); parity ^= 1) {
        accumulators sum[WAVES];
#pragma unroll
        for (int wave = 0; wave < WAVES; wave++)
#pragma unroll
            for (int i = 0; i < TILE_N / 2; i++)
                sum[wave][i] = 0.0f;
        if (PROMOTE_K == 0) {
            multiply_straight(sum, shared, first, place, stages);
        } else {
            bool full = false;
            for (int32_t i = 0; i < stages; i++) {
                if (!full)
                    mbarrier_wait(shared.full(place.stage), place.parity);
                const int stage = place.stage;
                place.advance();
                full = multiply_promoted(sum, shared, first, stage, place, first_row);
            }
        }
        mbarrier_wait(shared.factors_full(), parity);
#pragma unroll
        for (int wave = 0; wave < WAVES; wave++)
            store_rows<PANELS>(sum[wave], args, factors, first_row + wave * 64, tile.m0, tile.n0,
                               shared.panels + group * PANELS * DGI_PANEL_BYTES, 1 + group);
        mbarrier_arrive(shared.factors_empty());
    }
    if (threadIdx.x % 128 == 0)
        copy_out_wait();
}

/* ---- the kernel ---------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    DGI_KERNEL(const __grid_constant__ dgi_gemm_args args)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const shared_memory shared(memory);
    /* The same for all threads of a warp, which the compiler cannot know of threadIdx.x / 32. */
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(shared.full(stage), SPAN == 0 ? 1 : 2);
            mbarrier_init(shared.empty(stage), MATH_THREADS / 32 * CLUSTER);
        }
        mbarrier_init(shared.factors_full(), 1);
        mbarrier_init(shared.factors_empty(), MATH_THREADS);
        mbarrier_init_fence();
    }
    if (CLUSTER == 1)
        __syncthreads();
    else
        cluster_sync();

    if (warp >= MATH_THREADS / 32) {
        registers_release<FEED_REGISTERS>();
        const int role = warp - MATH_THREADS / 32;
        if (role == 0)
            feed_tiles(args, shared);
        else if (role == 1)
            feed_factors(args, shared);
        else if (role >= 2 && SPAN != 0)
            feed_scales(args, shared, role % 2);
    } else {
        registers_take<MATH_REGISTERS>();
        multiply_tiles(args, shared, warp / 4);
    }
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync(); /* a CTA's shared memory must outlive what the others send to it */
    }
}
