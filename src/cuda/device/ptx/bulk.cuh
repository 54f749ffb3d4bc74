/* SPDX-License-Identifier: MIT */
/* The copy engine without tensor maps: contiguous bytes, and fetching to the L2 cache only. */
#pragma once
#include <stdint.h>

/* A cache policy for data that is read once. */
__device__ __forceinline__ uint64_t read_once_policy()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Contiguous bytes, a multiple of 16, to shared memory; completes on `barrier`. */
__device__ __forceinline__ void copy_bytes_in(uint32_t target, const void *source, uint32_t bytes,
                                              uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

/* Contiguous bytes, a multiple of 16, to L2. */
__device__ __forceinline__ void fetch_bytes(const void *source, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

/* A box of a tensor map, as in copy_box_in(), to L2. */
__device__ __forceinline__ void fetch_box(const void *map, int32_t x, int32_t y)
{
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(map),
                 "r"(x), "r"(y)
                 : "memory");
}

/* The line of L2 that holds an address. */
__device__ __forceinline__ void fetch_line(const void *address)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}
