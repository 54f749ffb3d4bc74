/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/cluster.cuh. */
#pragma once
#include "../machine.h"

static inline uint32_t cluster_rank()
{
    return sim_cluster_rank();
}
static inline void cluster_sync()
{
    sim_cluster_arrive();
    sim_cluster_wait();
}
template <int Registers> static inline void registers_release()
{
}
template <int Registers> static inline void registers_take()
{
}
