/* SPDX-License-Identifier: MIT */
/* Shared memory of the other CTAs of a cluster. */
#pragma once
#include <stdint.h>

/* The address in CTA `rank` that corresponds to one of this CTA. */
__device__ __forceinline__ uint32_t remote_address(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

/* Stores values there; counts their bytes on the barrier, which lies in the same CTA. */
__device__ __forceinline__ void remote_store(uint32_t address, const float (&value)[2],
                                             uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(address),
                 "f"(value[0]), "f"(value[1]), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void remote_store(uint32_t address, const float (&value)[4],
                                             uint32_t barrier)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], "
                 "{%1, %2, %3, %4}, [%5];" ::"r"(address),
                 "f"(value[0]), "f"(value[1]), "f"(value[2]), "f"(value[3]), "r"(barrier)
                 : "memory");
}

/* The same in this CTA, without a barrier. */
__device__ __forceinline__ void shared_store(uint32_t address, float value)
{
    asm volatile("st.shared::cta.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
__device__ __forceinline__ void shared_store(uint32_t address, const float (&value)[2])
{
    asm volatile("st.shared::cta.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(value[0]),
                 "f"(value[1])
                 : "memory");
}
__device__ __forceinline__ void shared_store(uint32_t address, const float (&value)[4])
{
    asm volatile("st.shared::cta.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]),
                 "f"(value[1]), "f"(value[2]), "f"(value[3])
                 : "memory");
}

__device__ __forceinline__ void shared_load(uint32_t address, float (&value)[2])
{
    asm volatile("ld.shared::cta.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value[0]), "=f"(value[1])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void shared_load(uint32_t address, float (&value)[4])
{
    asm volatile("ld.shared::cta.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
                 : "r"(address)
                 : "memory");
}

/* mbarrier_wait() for what other CTAs of the cluster have stored or released. */
__device__ __forceinline__ void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra finished%=;\n"
                 "bra again%=;\n"
                 "finished%=:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* The two halves of a cluster_sync() that publishes nothing but barriers: mbarrier_init_fence(). */
__device__ __forceinline__ void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
