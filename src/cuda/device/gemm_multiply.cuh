/* SPDX-License-Identifier: MIT */
/* The math warpgroups of the GEMM kernel: wgmma, promotion to FP32, and the way to the epilogue. */
#pragma once
#include "gemm_parts.cuh"
#include "ptx/copy.cuh"
#include "ptx/wgmma.cuh"

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
    static constexpr int COLS = SPAN == 0                 ? 0
                                : SPAN == 1               ? TILE_N / 4
                                : SPANS == 1 && ROWS == 1 ? 0
                                                          : SPANS;
    float rows[2];
    alignas(16) float cols[COLS + 1];

    /* `common`: B's scale when the whole tile has one. */
    __device__ __forceinline__ void load(const float *a, const float *b, float common, int row)
    {
        if (SPAN == 0)
            return;
        if (ROWS > 1) {
#pragma unroll
            for (int j = 0; j < SPANS; j += 4)
                *(float4 *)&cols[j] = *(const float4 *)(a + row / ROWS * SPANS + j);
            return;
        }
        rows[0] = SPANS == 1 ? a[row] * common : a[row];
        rows[1] = SPANS == 1 ? a[row + 8] * common : a[row + 8];
#pragma unroll
        for (int j = 0; SPAN != 1 && j < COLS; j++)
            cols[j] = b[j];
#pragma unroll
        for (int j = 0; SPAN == 1 && j < COLS; j += 4) /* see scales_b() */
            *(float4 *)&cols[j] = *(const float4 *)(b + 4 * j + threadIdx.x % 4 * 4);
    }
    __device__ __forceinline__ float of(int element) const
    {
        const float row = rows[element / 2 % 2];
        const int col =
            SPAN == 1 ? element / 4 * 2 + element % 2 : element / 4 * 8 / (SPAN + !SPAN);
        return COLS == 0 ? row : ROWS > 1 ? cols[col] : row * cols[col];
    }
};

/*
 * Registers lie in two banks, even and odd, and an FFMA whose three operands come from one bank
 * takes a cycle more. wgmma puts element i of a partial sum into a register of i's parity. The
 * epilogue's store_pair() wants two registers, the first of them even: it is given elements i + 1
 * and i, so the sum of element i is in a register of the other parity, and no FFMA reads one bank
 * three times.
 */
__device__ __forceinline__ void promote(accumulators &sum, const accumulators &partial,
                                        const part_scales &scales)
{
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i++)
        sum[i] += SPAN == 0 ? partial[i] : scales.of(i) * partial[i];
}

/*
 * One stage with promotion, of a warpgroup's first `Waves` blocks of 64 rows. The stage is a
 * sequence of units, each 64 rows times one part of K; with two partial sums, a unit is promoted
 * while the tensor cores work on the next one. All are finished on return: partial sums in flight
 * across a loop's back edge make the compiler wait after every wgmma (its message C7514). Returns
 * whether the stage at `next` is full already, which costs nothing to ask while the last wgmmas
 * run.
 */
template <int Waves>
__device__ __forceinline__ bool
multiply_promoted(accumulators (&sum)[WAVES], const shared_memory &shared, const operands &first,
                  int stage, const stage_place &next, int first_row)
{
    constexpr int UNITS = Waves * PARTS;
    const uint64_t a = first.a + (uint32_t)(stage * (STAGE_BYTES / 16));
    const uint64_t b = first.b + (uint32_t)(stage * (STAGE_BYTES / 16));
    const int row = first_row + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    accumulators partial[PARTIALS];
    part_scales scales[PARTIALS];
    bool next_full = false;
    float common = 1.0f;
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
            if (SPANS == 1 && SPAN != 0 && (PARTS > 1 || wave == 0))
                common = *shared.scales_b(stage, part);
            scales[issue % PARTIALS].load(shared.scales_a(stage, part),
                                          shared.scales_b(stage, part), common, row + wave * 64);
        }
        const int unit = issue - (PARTIALS - 1);
        if (unit < 0)
            continue;
        const bool last = unit == UNITS - 1;
        if (last)
            next_full = mbarrier_test(shared.full(next.at), next.parity);
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

/* All stages with promotion. */
template <int Waves>
__device__ __forceinline__ void
multiply_promoting(accumulators (&sum)[WAVES], const shared_memory &shared, const operands &first,
                   stage_place &place, int32_t stages, int first_row)
{
    bool full = false;
    for (int32_t i = 0; i < stages; i++) {
        if (!full)
            mbarrier_wait(shared.full(place.at), place.parity);
        const int stage = place.at;
        place.advance();
        full = multiply_promoted<Waves>(sum, shared, first, stage, place, first_row);
    }
}

/* All stages without promotion: the next stage's wgmmas are issued before this one's have ended. */
__device__ __forceinline__ void multiply_straight(accumulators (&sum)[WAVES],
                                                  const shared_memory &shared,
                                                  const operands &first, stage_place &place,
                                                  int32_t stages)
{
    int previous = 0;
    for (int32_t i = 0; i < stages; i++, place.advance()) {
        const uint64_t a = first.a + (uint32_t)(place.at * (STAGE_BYTES / 16));
        const uint64_t b = first.b + (uint32_t)(place.at * (STAGE_BYTES / 16));
        mbarrier_wait(shared.full(place.at), place.parity);
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
        previous = place.at;
    }
    wgmma_wait<0>();
    if (stages > 0)
        release_stage(shared, previous);
#pragma unroll
    for (int wave = 0; wave < WAVES; wave++)
        wgmma_pin(sum[wave]);
}

/* The warp has no more use for the epilogue's factors of a tile. */
__device__ __forceinline__ void release_factors(const shared_memory &shared, factor_place &set)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        mbarrier_arrive(shared.factors_empty(set.at));
    set.advance();
}

/*
 * A warpgroup whose rows of a tile all lie behind the last row of D computes nothing, and leaves
 * the tensor cores to the others. It passes on what it does not read.
 */
__device__ __forceinline__ void skip_tile(const dgi_gemm_args &args, const shared_memory &shared,
                                          int32_t stages, stage_place &place, factor_place &set)
{
    for (int32_t i = 0; i < stages; i++, place.advance()) {
        mbarrier_wait(shared.full(place.at), place.parity);
        __syncwarp(); /* no lane may fall behind by a round of the ring */
        release_stage(shared, place.at);
    }
    if (!args.factors)
        return;
    mbarrier_wait(shared.factors_full(set.at), set.parity);
    release_factors(shared, set);
}

/*
 * One warpgroup: its rows of each tile, from the first stage to the result in D. RAGGED: tiles are
 * so often cut off below that rows which do not exist are worth a test; D's map may go on there;
 * and of a tile this may be a part of K, whose sums go to `parts`.
 */
template <bool RAGGED>
__device__ __forceinline__ void
multiply_tiles(const dgi_gemm_maps &maps, const dgi_gemm_args &args, const shared_memory &shared,
               int group, stage_place &place, factor_place &set, const part_memory &parts)
{
    const int first_row = group * WAVES * 64;
    const operands first = {wgmma_descriptor(shared.a(0) + first_row * TILE_K),
                            wgmma_descriptor(shared.b(0))};
    const int warp_row = first_row + threadIdx.x % 128 / 32 * 16;
    const uint32_t panels = shared.panels + threadIdx.x / 32 * PANELS * DGI_PANEL_BYTES;
    for (tile_walk<RAGGED> tile(args); tile.next();) {
        const int32_t stages = tile.end - tile.begin;
        if (RAGGED && GROUPS > 1 && tile.m0 + first_row >= args.m) {
            skip_tile(args, shared, stages, place, set);
            continue;
        }
        accumulators sum[WAVES];
#pragma unroll
        for (int wave = 0; wave < WAVES; wave++)
#pragma unroll
            for (int i = 0; i < TILE_N / 2; i++)
                sum[wave][i] = 0.0f;
        if (PROMOTE_K == 0)
            multiply_straight(sum, shared, first, place, stages);
        else if (RAGGED && WAVES > 1 && tile.m0 + first_row + 64 >= args.m)
            multiply_promoting<1>(sum, shared, first, place, stages, first_row);
        else
            multiply_promoting<WAVES>(sum, shared, first, place, stages, first_row);
        const float *row_factors = shared.factors + set.at * FACTORS;
        const tile_factors factors = {row_factors, row_factors + TILE_M,
                                      row_factors + TILE_M + TILE_N};
        if (args.factors)
            mbarrier_wait(shared.factors_full(set.at), set.parity);
        if (!tile.is_part() || join_parts(sum, tile.part(), parts)) {
#pragma unroll
            for (int wave = 0; wave < WAVES; wave++) {
                if (args.factors)
                    scale_and_add(sum[wave], factors, warp_row + wave * 64);
                store_rows<PANELS, WAVES, RAGGED>(
                    sum[wave], maps.d, args, tile.m0 + warp_row + wave * 64, tile.n0, wave, panels);
            }
        }
        if (args.factors)
            release_factors(shared, set);
    }
}
