/* SPDX-License-Identifier: MIT */
/* The AVX2 micro-kernel (needs AVX2, FMA and F16C). */
#include <immintrin.h>

#define VECTOR_FLOATS         8
#define BROADCAST(x)          _mm256_set1_ps(x)
#define MULTIPLY_ADD(x, y, z) _mm256_fmadd_ps(x, y, z)
#define WIDEN_F16(halves)     _mm256_cvtph_ps((__m128i)(halves))
#define NARROW_F16(value, to)                                                                      \
    _mm_storeu_si128(to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT))
#define TILE_ROWS   6
#define TILE_PANELS 1
#define KERNEL      dgi_gemm_avx2
#include "cpu/finish.h"
#include "cpu/pack.h"

#include "cpu/gemm_f32.h"
