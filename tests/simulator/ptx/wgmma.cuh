/* SPDX-License-Identifier: MIT */
/* The simulated machine's version of src/cuda/device/ptx/wgmma.cuh. */
#pragma once
#include "../machine.h"

static inline uint64_t wgmma_descriptor(uint32_t address)
{
    return (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62 | (uint64_t)(address >> 4);
}
static inline void wgmma_fence()
{
}
static inline void wgmma_commit()
{
    sim_wgmma_commit();
}
template <int Pending> static inline void wgmma_wait()
{
    sim_wgmma_wait(Pending);
}
template <int Count> static inline void wgmma_pin(float (&)[Count])
{
}

template <int N> struct wgmma {
    static inline void run(float (&d)[N / 2], uint64_t a, uint64_t b, int accumulate)
    {
        constexpr bool A_IS_E5M2 = DGI_A_TYPE[1] == '5', B_IS_E5M2 = DGI_B_TYPE[1] == '5';
        sim_wgmma(d, N, a, b, A_IS_E5M2 ? SIM_E5M2 : SIM_E4M3, B_IS_E5M2 ? SIM_E5M2 : SIM_E4M3,
                  accumulate != 0);
    }
};
