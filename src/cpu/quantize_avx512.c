/* SPDX-License-Identifier: MIT */
/* The inner loops of quantisation for AVX-512: see quantize_body.h. */
#define ROW_KERNELS dgi_rows_avx512
#include "cpu/quantize_body.h"
