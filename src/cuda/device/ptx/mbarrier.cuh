/* SPDX-License-Identifier: MIT */
/*
 * Barriers in shared memory (mbarrier), and the fences and named barriers that go with them.
 * Addresses are shared-memory addresses as 32-bit integers, see shared_address().
 */
#pragma once
#include <stdint.h>

/* Declares the shared memory that the host has asked for at launch. Not a function: the compiler
 * makes other code of an address that it has from one. */
#define DYNAMIC_SHARED(name) extern __shared__ __align__(1024) uint8_t name[]

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* Makes the initialised barriers visible to the copy engine and to the other CTAs of the cluster.
 */
__device__ __forceinline__ void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives on the barrier at the same address in CTA `rank` of the cluster. */
__device__ __forceinline__ void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* Arrives, and lets the phase wait for `bytes` from the copy engine as well. */
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits until the phase with that parity has completed. */
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished%=;\n"
                 "bra again%=;\n"
                 "finished%=:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Whether the phase with that parity has completed. */
__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return done != 0;
}

/* Orders this thread's ordinary writes to shared memory before later reads by the copy engine. */
__device__ __forceinline__ void fence_async_proxy()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier among `threads` threads that name the same `id` (1 to 15; 0 is __syncthreads). */
__device__ __forceinline__ void named_barrier(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
