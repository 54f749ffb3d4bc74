/* SPDX-License-Identifier: MIT */
/*
 * The vectors of a micro-kernel, VECTOR_FLOATS wide, in the compiler's own terms. Included by what
 * the gemm_<isa>.c files share; they define VECTOR_FLOATS for their instructions.
 */
#ifndef DGI_CPU_VECTOR_H
#define DGI_CPU_VECTOR_H

#include "core/formats.h"
#include "cpu/kernel.h"

#define INLINE            static inline __attribute__((always_inline))
/* A loop over a tile, which must vanish so that accumulators are registers and not an array. */
#define FOR(index, count) _Pragma("GCC unroll 16") for (int index = 0; index < (count); index++)

typedef float vector __attribute__((vector_size(4 * VECTOR_FLOATS)));
typedef uint32_t vector_bits __attribute__((vector_size(4 * VECTOR_FLOATS)));
typedef int32_t vector_ints __attribute__((vector_size(4 * VECTOR_FLOATS)));
typedef uint16_t vector_halves __attribute__((vector_size(2 * VECTOR_FLOATS)));
typedef uint8_t vector_bytes __attribute__((vector_size(VECTOR_FLOATS)));

INLINE vector load(const float *from)
{
    vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

/* Lane by lane, where a comparison gave all ones or all zeros. */
INLINE vector_bits blend(vector_bits mask, vector_bits yes, vector_bits no)
{
    return (mask & yes) | (~mask & no);
}

#endif
