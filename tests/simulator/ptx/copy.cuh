/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/copy.cuh. */
#pragma once
#include "../machine.h"

static inline void tensor_map_prefetch(const void *map)
{
    sim_tensor_map_check(map);
}
static inline void tensor_map_acquire(const void *)
{
}
static inline void copy_box_in(uint32_t target, const void *map, int32_t x, int32_t y,
                               uint32_t barrier)
{
    sim_copy_box_in(target, map, x, y, barrier, 0);
}
static inline void copy_box_in_multicast(uint32_t target, const void *map, int32_t x, int32_t y,
                                         uint32_t barrier, uint16_t cta_mask)
{
    sim_copy_box_in(target, map, x, y, barrier, cta_mask);
}
static inline void copy_box_out(const void *map, int32_t x, int32_t y, uint32_t source)
{
    sim_copy_box_out(map, x, y, source);
}
static inline void copy_nothing_out()
{
    sim_copy_nothing_out();
}
template <int Pending> static inline void copy_out_wait_read()
{
    sim_copy_out_wait(Pending);
}
static inline void copy_out_wait()
{
    sim_copy_out_wait(0);
}
