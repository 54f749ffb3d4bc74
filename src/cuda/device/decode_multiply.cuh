/* SPDX-License-Identifier: MIT */
/* The math warpgroups of the decode kernel: wgmma, and promotion to FP32. */
#pragma once
#include "decode_common.cuh"
#include "ptx/wgmma.cuh"

using accumulators = float[SUMS];

/*
 * Stages that are multiplied together, and partial sums in flight: while the tensor cores work on
 * one, the one before it is promoted. Registers set the limits.
 */
constexpr int TOGETHER = PARTS > 1 || TOKENS > 32 ? 1 : 2;
constexpr int PARTIALS = TOKENS > 32 || (TOKENS > 16 && PARTS > 1) ? 1
                         : PARTS *TOGETHER > 1                     ? 2
                                                                   : 1;

/* Where this thread's accumulators lie: d[4 j + i] is token 8 j + token + i % 2, row + 8 (i / 2).
 */
struct thread_place {
    int32_t row, token;

    __device__ __forceinline__ thread_place()
        : row(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4), token(threadIdx.x % 4 * 2)
    {
    }
};

/*
 * What this thread multiplies a partial sum by: a scale for each of its two rows, and a pair for
 * each eight tokens. Read while the wgmmas run, unless there are too many to keep in registers.
 */
struct part_scales {
    static constexpr bool KEEP = TOKENS <= 32;
    const float *from;
    float row[2];
    float2 token[KEEP ? TOKENS / 8 : 1];

    __device__ __forceinline__ void load(const float *scales, const thread_place &place)
    {
        if (SCALE_K == 0)
            return;
        from = scales + place.token;
        row[0] = scales[TOKENS + place.row];
        row[1] = scales[TOKENS + place.row + 8];
#pragma unroll
        for (int j = 0; KEEP && j < TOKENS / 8; j++)
            token[j] = *(const float2 *)(from + 8 * j);
    }
    /* Those of accumulators 4 j to 4 j + 3. */
    __device__ __forceinline__ void promote(float *sum, const float *partial, int j) const
    {
        const float2 pair = KEEP ? token[j] : *(const float2 *)(from + 8 * j);
        sum[0] += pair.x * row[0] * partial[0];
        sum[1] += pair.y * row[0] * partial[1];
        sum[2] += pair.x * row[1] * partial[2];
        sum[3] += pair.y * row[1] * partial[3];
    }
};

__device__ __forceinline__ void promote(accumulators &sum, const accumulators &partial,
                                        const part_scales &scales)
{
#pragma unroll
    for (int i = 0; SCALE_K == 0 && i < SUMS; i++)
        sum[i] += partial[i];
#pragma unroll
    for (int j = 0; SCALE_K != 0 && j < TOKENS / 8; j++)
        scales.promote(sum + 4 * j, partial + 4 * j, j);
}

/*
 * Multiplies COUNT stages. A unit is one part of a stage. All are finished on return: see
 * multiply_promoted() of the dense kernel.
 */
template <int COUNT>
__device__ __forceinline__ void multiply_stages(accumulators &sum, const shared_memory &shared,
                                                const thread_place &thread, uint64_t first_weights,
                                                uint64_t first_tokens, ring_place &place)
{
    constexpr int UNITS = COUNT * PARTS, BEHIND = (PARTIALS < UNITS ? PARTIALS : UNITS) - 1;
    accumulators partial[PARTIALS];
    part_scales scales[PARTIALS];
    int stages[COUNT];
#pragma unroll
    for (int issue = 0; issue < UNITS + BEHIND; issue++) {
        if (issue < UNITS) {
            const int part = issue % PARTS;
            accumulators &target = partial[issue % PARTIALS];
            if (part == 0) {
                stages[issue / PARTS] = place.stage;
                mbarrier_wait(shared.full(place.stage), place.parity);
                place.advance();
            }
            const int stage = stages[issue / PARTS];
            const uint32_t step = stage * (STAGE_BYTES / 16) + part * (PART_K / 16);
            wgmma_pin(target);
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < PART_K / 32; k++)
                wgmma<TOKENS>::run(target, first_weights + step + 2 * k,
                                   first_tokens + step + 2 * k, k > 0);
            wgmma_commit();
            scales[issue % PARTIALS].load(shared.scales + stage * STAGE_SCALES + part * PART_SCALES,
                                          thread);
        }
        const int unit = issue - BEHIND;
        if (unit < 0)
            continue;
        if (BEHIND == 1 && unit < UNITS - 1)
            wgmma_wait<1>();
        else
            wgmma_wait<0>();
        wgmma_pin(partial[unit % PARTIALS]);
        promote(sum, partial[unit % PARTIALS], scales[unit % PARTIALS]);
        if (unit % PARTS == PARTS - 1) {
            __syncwarp();
            if (threadIdx.x % 32 == 0)
                mbarrier_arrive(shared.empty(stages[unit / PARTS]));
        }
    }
}

/* The sum of 64 rows of a tile over this CTA's part of K. */
__device__ __forceinline__ void multiply_tile(accumulators &sum, const shared_memory &shared,
                                              const thread_place &thread, int32_t stages, int group,
                                              ring_place &place)
{
    const uint64_t weights = wgmma_descriptor(shared.weights(0) + group * 64 * STAGE_K);
    const uint64_t tokens = wgmma_descriptor(shared.tokens(0));
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sum[i] = 0.0f;
    int32_t i = 0;
#pragma unroll 1
    for (; i + TOGETHER <= stages; i += TOGETHER)
        multiply_stages<TOGETHER>(sum, shared, thread, weights, tokens, place);
    if (TOGETHER > 1)
        for (; i < stages; i++)
            multiply_stages<1>(sum, shared, thread, weights, tokens, place);
}
