/* SPDX-License-Identifier: MIT */
/* What the epilogue needs to assemble rows of D from accumulator fragments in shared memory. */
#pragma once
#include <stdint.h>

/* Two floats rounded to 16 bits, FP16 or BF16. */
__device__ __forceinline__ uint32_t pack_pair(float low, float high, bool f16)
{
    uint32_t pair;
    if (f16)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&value)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
                 : "memory");
}

/* The same of the matrices turned: what lane i gives is where column i % 8 goes. */
__device__ __forceinline__ void stmatrix_x4_turned(uint32_t address, const uint32_t (&value)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                     address),
                 "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
                 : "memory");
}

__device__ __forceinline__ void store_pair(uint32_t address, float first, float second)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(first), "f"(second)
                 : "memory");
}

__device__ __forceinline__ uint4 load_chunk(uint32_t address)
{
    uint4 value;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}

__device__ __forceinline__ float load_float(uint32_t address)
{
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}
