/* SPDX-License-Identifier: MIT */
/* Storing accumulator fragments to shared memory, four 8x8 matrices of 16-bit elements at once. */
#pragma once
#include <stdint.h>

/* Lane i gives the address of row i % 8 of matrix i / 8. */
__device__ __forceinline__ void stmatrix_x4(uint32_t address, const uint32_t (&value)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
                 : "memory");
}
