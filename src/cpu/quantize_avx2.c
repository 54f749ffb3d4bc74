/* SPDX-License-Identifier: MIT */
/* The inner loops of quantisation for AVX2: see quantize_body.h. */
#define ROW_KERNELS dgi_rows_avx2
#include "cpu/quantize_body.h"
