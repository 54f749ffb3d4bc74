/* SPDX-License-Identifier: MIT */
/* The AVX-512 micro-kernel for processors without BF16 products (needs F, BW, DQ and VL). */
#include "cpu/avx512.h"

#define BROADCAST(x)          _mm512_set1_ps(x)
#define MULTIPLY_ADD(x, y, z) _mm512_fmadd_ps(x, y, z)
#define TILE_ROWS             12
#define TILE_PANELS           2
#define KERNEL                dgi_gemm_avx512
#include "cpu/gemm_f32.h"
