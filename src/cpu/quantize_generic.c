/* SPDX-License-Identifier: MIT */
/* The inner loops of quantisation for any processor: see quantize_body.h. */
#define ROW_KERNELS dgi_rows_generic
#include "cpu/quantize_body.h"
