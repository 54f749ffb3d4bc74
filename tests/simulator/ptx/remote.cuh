/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/remote.cuh. */
#pragma once
#include "../machine.h"

#include <string.h>

static inline uint32_t remote_address(uint32_t address, uint32_t rank)
{
    return sim_remote_address(address, rank);
}
template <int Count>
static inline void remote_store(uint32_t address, const float (&value)[Count], uint32_t barrier)
{
    sim_remote_store(address, value, Count, barrier);
}
static inline void shared_store(uint32_t address, float value)
{
    memcpy(sim_shared_memory(address, sizeof value), &value, sizeof value);
}
template <int Count> static inline void shared_store(uint32_t address, const float (&value)[Count])
{
    memcpy(sim_shared_memory(address, sizeof value), value, sizeof value);
}
template <int Count> static inline void shared_load(uint32_t address, float (&value)[Count])
{
    memcpy(value, sim_shared_memory(address, sizeof value), sizeof value);
}
static inline void mbarrier_wait_cluster(uint32_t barrier, uint32_t parity)
{
    sim_barrier_wait(barrier, parity);
}
static inline void cluster_arrive()
{
    sim_cluster_arrive();
}
static inline void cluster_wait()
{
    sim_cluster_wait();
}
