/* SPDX-License-Identifier: MIT */
/*
 * CUDA C for a C++ compiler: what the kernels use of the language and its built-in functions, on
 * the simulated machine. The build includes it in front of each kernel.
 */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "machine.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <string.h>
#include <type_traits>

#undef __align__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __launch_bounds__
#undef __shared__
#define __align__(bytes) alignas(bytes)
#define __device__
#define __forceinline__ inline
#define __global__      SIM_API
#define __grid_constant__
#define __launch_bounds__(...)
/* Such a variable belongs to a CTA. Kernels that have one use no clusters, so one CTA at a time. */
#define __shared__ static

#define threadIdx (sim_here->thread)
#define blockIdx  (sim_here->block)
#define blockDim  (sim_here->block_size)
#define gridDim   (sim_here->grid)

/* ---- arithmetic ------------------------------------------------------------------------ */

template <typename A, typename B> static inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B> static inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    return (T)a < (T)b ? (T)b : (T)a;
}
static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __frcp_rn(float a)
{
    return 1.0f / a;
}
static inline int __ffs(uint32_t bits)
{
    return __builtin_ffs((int)bits);
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift)
{
    return (uint32_t)(((uint64_t)high << 32 | low) >> shift % 32);
}
static inline uint32_t __vmaxu2(uint32_t a, uint32_t b)
{
    return max(a >> 16, b >> 16) << 16 | max(a & 0xFFFF, b & 0xFFFF);
}

/* ---- memory ---------------------------------------------------------------------------- */

template <typename T> static inline T __ldg(const T *address)
{
    return *address;
}
template <typename T> static inline T __ldcg(const T *address)
{
    return *address;
}
template <typename T> static inline void __stcg(T *address, T value)
{
    *address = value;
}
static inline void __threadfence()
{
}
static inline uint32_t atomicInc(uint32_t *address, uint32_t most)
{
    const uint32_t old = *address;
    *address = old >= most ? 0 : old + 1;
    return old;
}
template <typename T> static inline T atomicAdd(T *address, T value)
{
    const T old = *address;
    *address += value;
    return old;
}
template <typename T> static inline T atomicMax(T *address, T value)
{
    const T old = *address;
    *address = max(old, value);
    return old;
}
template <typename T> static inline T atomicMin(T *address, T value)
{
    const T old = *address;
    *address = min(old, value);
    return old;
}

/* ---- threads --------------------------------------------------------------------------- */

static inline void __syncthreads()
{
    sim_sync_block();
}
static inline int __syncthreads_or(int value)
{
    return sim_sync_block_or(value != 0);
}
static inline void __syncwarp()
{
    sim_sync_warp();
}

/* All lanes take part: the kernels name no other mask. */
static inline void sim_check_mask(uint32_t mask)
{
    if (mask != 0xFFFFFFFF)
        sim_fail("a warp function for the lanes %08x: only all of them are simulated", mask);
}
template <typename T> static inline T sim_of_lane(uint32_t mask, T value, int lane)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one word a lane");
    uint64_t word = 0;
    sim_check_mask(mask);
    memcpy(&word, &value, sizeof value);
    word = sim_exchange(word)[lane];
    memcpy(&value, &word, sizeof value);
    return value;
}
static inline int sim_lane()
{
    return (int)(threadIdx.x % SIM_WARP);
}
template <typename T> static inline T __shfl_sync(uint32_t mask, T value, int lane)
{
    return sim_of_lane(mask, value, lane % SIM_WARP);
}
template <typename T> static inline T __shfl_up_sync(uint32_t mask, T value, int distance)
{
    return sim_of_lane(mask, value, sim_lane() < distance ? sim_lane() : sim_lane() - distance);
}
template <typename T> static inline T __shfl_xor_sync(uint32_t mask, T value, int bits)
{
    return sim_of_lane(mask, value, sim_lane() ^ bits);
}
static inline uint32_t __ballot_sync(uint32_t mask, bool value)
{
    uint32_t ballot = 0;
    sim_check_mask(mask);
    const uint64_t *values = sim_exchange(value);
    for (int i = 0; i < SIM_WARP; i++)
        ballot |= (uint32_t)values[i] << i;
    return ballot;
}
static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t value)
{
    uint32_t sum = 0;
    sim_check_mask(mask);
    const uint64_t *values = sim_exchange(value);
    for (int i = 0; i < SIM_WARP; i++)
        sum += (uint32_t)values[i];
    return sum;
}

#endif
