/* SPDX-License-Identifier: MIT */
/*
 * Tiles whose K is cut into parts, each computed by another cluster (core/grouped_schedule.h). Each
 * warp leaves the sums of its rows in memory and counts itself in. The last one to come adds up all
 * parts in the order of K and goes on to the epilogue, so the bits do not depend on who that is,
 * and nobody waits.
 */
#pragma once
#include "gemm_common.cuh"

/* The sums of 64 rows of a tile, as wgmma leaves them in the threads of a warpgroup. */
using accumulators = float[TILE_N / 2];

/* Of dgi_device_schedule. */
struct part_memory {
    uint32_t *arrivals;
    float4 *slots;
};

/* Neighbours swapped, as fill_panel_f32() has them: so that the sums keep their registers. */
__device__ __forceinline__ void put_sums(const accumulators &sum, float4 *target)
{
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i += 4)
        __stcg(target + i / 4 * 32, make_float4(sum[i + 1], sum[i], sum[i + 3], sum[i + 2]));
}
__device__ __forceinline__ void add_sums(accumulators &sum, const float4 *source)
{
#pragma unroll
    for (int i = 0; i < TILE_N / 2; i += 4) {
        const float4 value = __ldcg(source + i / 4 * 32);
        sum[i + 1] += value.x;
        sum[i] += value.y;
        sum[i + 3] += value.z;
        sum[i + 2] += value.w;
    }
}

/* Whether this warp is the last one of its rows; `sum` is then that of all parts. */
__device__ __forceinline__ bool join_parts(accumulators (&sum)[WAVES], const dgi_tile_part &part,
                                           const part_memory &memory)
{
    constexpr int EACH = TILE_N / 8 * 32; /* float4 of a warp's 16 rows */
    constexpr int WARPS = MATH_THREADS / 32 * CLUSTER;
    const int lane = threadIdx.x % 32;
    const uint32_t count = part.count;
    const int warp = (CLUSTER == 1 ? 0 : cluster_rank() * (MATH_THREADS / 32)) + threadIdx.x / 32;
    float4 *first = memory.slots + ((int64_t)part.slot * WARPS + warp) * (WAVES * EACH) + lane;
    uint32_t earlier = 0;
#pragma unroll
    for (int wave = 0; wave < WAVES; wave++)
        put_sums(sum[wave], first + (int64_t)part.index * (WARPS * WAVES * EACH) + wave * EACH);
    __threadfence();
    __syncwarp();
    if (lane == 0) /* the last one leaves 0 to the next launch */
        earlier = atomicInc(&memory.arrivals[part.slot / 2 * WARPS + warp], count - 1);
    if (__shfl_sync(0xFFFFFFFF, earlier, 0) != count - 1)
        return false;
    __threadfence();
#pragma unroll
    for (int wave = 0; wave < WAVES; wave++) {
#pragma unroll
        for (int i = 0; i < TILE_N / 2; i++)
            sum[wave][i] = 0.0f;
#pragma unroll 1
        for (uint32_t i = 0; i < count; i++)
            add_sums(sum[wave], first + (int64_t)i * (WARPS * WAVES * EACH) + wave * EACH);
    }
    return true;
}
