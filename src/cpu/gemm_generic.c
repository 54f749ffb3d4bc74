/* SPDX-License-Identifier: MIT */
/* The micro-kernel for any processor: 128-bit vectors in the compiler's own terms. */
#include "cpu/finish.h"
#include "cpu/pack.h"

#define VECTOR_FLOATS         4
#define BROADCAST(x)          ((vector){(x), (x), (x), (x)})
#define MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#define TILE_ROWS             2
#define TILE_PANELS           1
#define KERNEL                dgi_gemm_generic
#include "cpu/gemm_f32.h"
