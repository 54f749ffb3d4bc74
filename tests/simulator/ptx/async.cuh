/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/async.cuh. */
#pragma once
#include "../machine.h"

static inline void copy_word_in(uint32_t target, const void *source)
{
    sim_copy_word_in(target, source);
}
static inline void arrive_when_copied(uint32_t barrier)
{
    sim_arrive_when_copied(barrier);
}
