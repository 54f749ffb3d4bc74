/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/panel.cuh. */
#pragma once
#include "../machine.h"

#include <string.h>

static inline uint32_t pack_pair(float low, float high, bool f16)
{
    const uint16_t pair[2] = {f16 ? __half_as_ushort(__float2half_rn(low))
                                  : __bfloat16_as_ushort(__float2bfloat16_rn(low)),
                              f16 ? __half_as_ushort(__float2half_rn(high))
                                  : __bfloat16_as_ushort(__float2bfloat16_rn(high))};
    return (uint32_t)pair[1] << 16 | pair[0];
}
/* Lane l holds elements 2 (l % 4) and the next of row l / 4 of each matrix. */
static inline void stmatrix_x4(uint32_t address, const uint32_t (&value)[4])
{
    uint64_t addresses[SIM_WARP];
    memcpy(addresses, sim_exchange(address), sizeof addresses);
    const int lane = (int)(sim_here->thread.x % SIM_WARP);
    for (int matrix = 0; matrix < 4; matrix++) {
        uint8_t *row = sim_shared_memory((uint32_t)addresses[matrix * 8 + lane / 4], 16);
        memcpy(row + lane % 4 * 4, &value[matrix], 4);
    }
    sim_sync_warp();
}
static inline void stmatrix_x4_turned(uint32_t address, const uint32_t (&value)[4])
{
    uint64_t addresses[SIM_WARP];
    memcpy(addresses, sim_exchange(address), sizeof addresses);
    const int lane = (int)(sim_here->thread.x % SIM_WARP);
    for (int matrix = 0; matrix < 4; matrix++)
        for (int i = 0; i < 2; i++) {
            const uint32_t row = (uint32_t)addresses[matrix * 8 + lane % 4 * 2 + i];
            memcpy(sim_shared_memory(row, 16) + lane / 4 * 2, (const uint16_t *)&value[matrix] + i,
                   2);
        }
    sim_sync_warp();
}
static inline void store_pair(uint32_t address, float first, float second)
{
    const float pair[2] = {first, second};
    memcpy(sim_shared_memory(address, sizeof pair), pair, sizeof pair);
}
static inline uint4 load_chunk(uint32_t address)
{
    uint4 value;
    memcpy(&value, sim_shared_memory(address, sizeof value), sizeof value);
    return value;
}
static inline float load_float(uint32_t address)
{
    float value;
    memcpy(&value, sim_shared_memory(address, sizeof value), sizeof value);
    return value;
}
