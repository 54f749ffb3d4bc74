/* SPDX-License-Identifier: MIT */
/* The micro-kernel for any processor: 128-bit vectors in the compiler's own terms. */
#define VECTOR_FLOATS         4
#define BROADCAST(x)          ((vector){(x), (x), (x), (x)})
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#define WIDEN_F16(halves)     widen_f16(halves)
#define NARROW_F16(value, to) narrow_f16(value, to)
#define TILE_ROWS             2
#define TILE_PANELS           1
#define KERNEL                dgi_gemm_generic
#include "cpu/vector.h"

INLINE vector widen_f16(vector_halves halves)
{
    vector value;
    for (int i = 0; i < VECTOR_FLOATS; i++)
        value[i] = dgi_f32_from_f16(halves[i]);
    return value;
}

INLINE void narrow_f16(vector value, void *to)
{
    vector_halves halves;
    for (int i = 0; i < VECTOR_FLOATS; i++)
        halves[i] = dgi_f16_from_f32(value[i]);
    memcpy(to, &halves, sizeof halves);
}

#include "cpu/finish.h"
#include "cpu/pack.h"

#include "cpu/gemm_f32.h"
