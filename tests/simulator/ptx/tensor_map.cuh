/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/tensor_map.cuh. */
#pragma once
#include "../machine.h"

static inline void tensor_map_replace(void *map, const void *data, int32_t cols, int32_t rows,
                                      int64_t pitch)
{
    sim_tensor_map_replace(map, data, cols, rows, pitch);
}
static inline void tensor_map_release()
{
}
