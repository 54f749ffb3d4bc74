/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/bulk.cuh. */
#pragma once
#include "../machine.h"

static inline uint64_t read_once_policy()
{
    return 0;
}
static inline void copy_bytes_in(uint32_t target, const void *source, uint32_t bytes,
                                 uint32_t barrier, uint64_t)
{
    sim_copy_bytes_in(target, source, bytes, barrier);
}
static inline void fetch_bytes(const void *source, uint32_t bytes)
{
    if ((uintptr_t)source % 16 != 0 || bytes % 16 != 0)
        sim_fail("fetches %u bytes from %p: both must be multiples of 16", bytes, source);
}
static inline void fetch_box(const void *map, int32_t, int32_t)
{
    sim_tensor_map_check(map);
}
static inline void fetch_line(const void *)
{
}
