/* SPDX-License-Identifier: MIT */
/* The AVX2 micro-kernel (needs AVX2, FMA and F16C). */
#include "cpu/finish_x86.h"
#include "cpu/pack.h"

#define VECTOR_FLOATS         8
#define BROADCAST(x)          _mm256_set1_ps(x)
#define MULTIPLY_ADD(x, y, z) _mm256_fmadd_ps(x, y, z)
#define TILE_ROWS             6
#define TILE_PANELS           1
#define KERNEL                dgi_gemm_avx2
#include "cpu/gemm_f32.h"
