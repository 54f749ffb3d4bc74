/* SPDX-License-Identifier: MIT */
/* The copy engine (TMA): two-dimensional boxes of a tensor map between global and shared memory. */
#pragma once
#include <stdint.h>

__device__ __forceinline__ void tensor_map_prefetch(const void *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Before a map that other kernels rewrite is used: what they wrote is what the copy engine sees. */
__device__ __forceinline__ void tensor_map_acquire(const void *map)
{
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/* Box at column x, row y to shared memory; completes on `barrier`. Outside the matrix: zeros. */
__device__ __forceinline__ void copy_box_in(uint32_t target, const void *map, int32_t x, int32_t y,
                                            uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(target),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

/* The same, to the same address in every CTA of `cta_mask`, completing on each one's barrier. */
__device__ __forceinline__ void copy_box_in_multicast(uint32_t target, const void *map, int32_t x,
                                                      int32_t y, uint32_t barrier,
                                                      uint16_t cta_mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(target),
                 "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(cta_mask)
                 : "memory");
}

/* Shared memory to the box at column x, row y. What lies outside the matrix is not written. */
__device__ __forceinline__ void copy_box_out(const void *map, int32_t x, int32_t y, uint32_t source)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(x), "r"(y), "r"(source)
                 : "memory");
}

/* For the order in which boxes are waited for: one that is there at once. */
__device__ __forceinline__ void copy_nothing_out()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most `Pending` of this thread's outgoing boxes still read shared memory. */
template <int Pending> __device__ __forceinline__ void copy_out_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}

/* Waits until all of this thread's outgoing boxes have been written. */
__device__ __forceinline__ void copy_out_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
