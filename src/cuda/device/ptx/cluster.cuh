/* SPDX-License-Identifier: MIT */
/* Clusters of CTAs, and moving registers between the warpgroups of one CTA. */
#pragma once
#include <stdint.h>

__device__ __forceinline__ uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* All threads of all CTAs of the cluster. */
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Every warp of a warpgroup gives registers up, or waits until it can have that many. */
template <int Registers> __device__ __forceinline__ void registers_release()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

template <int Registers> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
