/* SPDX-License-Identifier: MIT */
/*
 * What the roles of the decode kernels share: constants, shared memory, the ring of stages, and
 * what a CTA's part of the work is. gemm_decode.cu says what the build sets.
 */
#pragma once
#include "decode_args.h"
#include "ptx/cluster.cuh"
#include "ptx/dependent.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/remote.cuh"

constexpr int TOKENS = DGI_TOKENS, STAGES = DGI_STAGES, SCALE_K = DGI_SCALE_K;
constexpr int ROWS = DGI_DECODE_ROWS, GROUPS = DGI_DECODE_GROUPS, STAGE_K = 128;

constexpr int PARTS = SCALE_K == 0 ? 1 : STAGE_K / SCALE_K; /* of a stage, each promoted */
constexpr int PART_K = STAGE_K / PARTS;
constexpr int MATH_THREADS = GROUPS * 128, THREADS = DGI_DECODE_THREADS(SCALE_K);
constexpr int SUMS = TOKENS / 2; /* accumulators of a thread */
/* Whether the kernel is also run with twice the tokens: most_tokens() of the planner. */
constexpr bool MAY_HAVE_TWO_TILES = TOKENS == 64 && SCALE_K != 32;

constexpr int STAGE_BYTES = DGI_DECODE_STAGE_BYTES(TOKENS);
constexpr int STAGE_SCALES = DGI_DECODE_STAGE_SCALES(TOKENS, SCALE_K);
constexpr int PART_SCALES = STAGE_SCALES / PARTS; /* those of the tokens, then those of the rows */
constexpr int SHARED_BYTES = DGI_DECODE_SHARED_BYTES(TOKENS, STAGES, SCALE_K);
/* Two kernels that follow each other share a multiprocessor where the shared memory allows it. */
constexpr int RESIDENT(int shared_bytes)
{
    return shared_bytes <= DGI_SHARED_HALF ? 2 : 1;
}

struct shared_memory {
    uint32_t stages, received, barriers;
    float *scales, *factors;

    __device__ __forceinline__ explicit shared_memory(uint8_t *base)
    {
        scales = (float *)(base + STAGES * STAGE_BYTES);
        float *sums = scales + STAGES * STAGE_SCALES;
        factors = sums + DGI_DECODE_SUMS(TOKENS);
        stages = shared_address(base);
        received = shared_address(sums);
        barriers = shared_address(factors + 2 * DGI_DECODE_FACTORS(TOKENS));
    }
    __device__ __forceinline__ uint32_t weights(int stage) const
    {
        return stages + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t tokens(int stage) const
    {
        return weights(stage) + ROWS * STAGE_K;
    }
    __device__ __forceinline__ uint32_t full(int stage) const
    {
        return barriers + 8 * stage;
    }
    __device__ __forceinline__ uint32_t empty(int stage) const
    {
        return full(STAGES + stage);
    }
    /* All partial sums for this CTA's share of a tile have come in. */
    __device__ __forceinline__ uint32_t all_received() const
    {
        return full(2 * STAGES);
    }
    /* All CTAs of the cluster can take the partial sums of the next tile. */
    __device__ __forceinline__ uint32_t all_ready() const
    {
        return full(2 * STAGES + 1);
    }
};

/* Called by one thread, before it makes all barriers visible. */
__device__ __forceinline__ void start_barriers(const shared_memory &shared, int32_t split)
{
    for (int stage = 0; stage < STAGES; stage++) {
        mbarrier_init(shared.full(stage), SCALE_K == 0 ? 1 : 1 + 32);
        mbarrier_init(shared.empty(stage), MATH_THREADS / 32);
    }
    mbarrier_init(shared.all_received(), 1);
    mbarrier_init(shared.all_ready(), split);
}

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
    /* Past all stages once. */
    __device__ __forceinline__ void advance_by_ring()
    {
        parity ^= 1;
    }
};

/*
 * A cluster of CTAs shares the K of its tiles: this CTA's part, the same for each of them. With
 * two tiles of tokens, half of the clusters read all of B for one, the others for the other.
 */
struct share_of_work {
    int32_t rank, split;       /* in the cluster, and its CTAs              */
    int32_t cluster, clusters; /* takes tiles cluster, cluster + clusters... */
    int32_t begin, end;        /* of K, in stages                           */
    int32_t first_token;       /* of at most TOKENS                         */

    /* The first copies wait for this, so it does without divisions. */
    __device__ __forceinline__ share_of_work(int32_t k, int32_t cluster_size, bool two_token_tiles)
        : split(cluster_size)
    {
        const int32_t parts = (k + STAGE_K - 1) / STAGE_K, log = __ffs(split) - 1;
        rank = blockIdx.x & (split - 1);
        cluster = blockIdx.x >> log;
        clusters = gridDim.x >> log;
        begin = parts * rank >> log;
        end = parts * (rank + 1) >> log;
        first_token = 0;
        if (MAY_HAVE_TWO_TILES && two_token_tiles) {
            clusters /= 2;
            if (cluster >= clusters) {
                cluster -= clusters;
                first_token = TOKENS;
            }
        }
    }
};
