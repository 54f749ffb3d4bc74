/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/mbarrier.cuh. */
#pragma once
#include "../machine.h"

#define DYNAMIC_SHARED(name) uint8_t *const name = sim_dynamic_shared()

static inline uint32_t shared_address(const void *pointer)
{
    return sim_shared_address(pointer);
}
static inline void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    sim_barrier_init(barrier, arrivals);
}
static inline void mbarrier_init_fence()
{
}
static inline void mbarrier_arrive(uint32_t barrier)
{
    sim_barrier_arrive(barrier, 0);
}
static inline void mbarrier_arrive_cluster(uint32_t barrier, uint32_t rank)
{
    sim_barrier_arrive(sim_remote_address(barrier, rank), 0);
}
static inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    sim_barrier_arrive(barrier, bytes);
}
static inline void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    sim_barrier_wait(barrier, parity);
}
static inline bool mbarrier_test(uint32_t barrier, uint32_t parity)
{
    return sim_barrier_test(barrier, parity);
}
static inline void fence_async_proxy()
{
}
static inline void named_barrier(uint32_t id, uint32_t threads)
{
    sim_named_barrier(id, threads);
}
