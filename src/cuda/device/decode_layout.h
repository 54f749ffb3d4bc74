/* SPDX-License-Identifier: MIT */
/*
 * How many threads and how much shared memory a decode kernel needs, from its constants in the
 * kernel table: for the kernel, the host that launches it, and the test that all of them fit.
 */
#ifndef DGI_DECODE_LAYOUT_H
#define DGI_DECODE_LAYOUT_H

#include "gemm_layout.h"

enum { DGI_DECODE_ROWS = 128, DGI_DECODE_GROUPS = 2 };

#define DGI_DECODE_THREADS(scale_k) (DGI_DECODE_GROUPS * 128 + ((scale_k) == 0 ? 32 : 64))

/* The kernel's shared memory, in this order; see gemm_decode.cu for the constants. */
#define DGI_DECODE_STAGE_BYTES(tokens) (((tokens) + DGI_DECODE_ROWS) * 128)
#define DGI_DECODE_STAGE_SCALES(tokens, scale_k)                                                   \
    ((scale_k) == 0 ? 0 : 128 / ((scale_k) + !(scale_k)) * ((tokens) + DGI_DECODE_ROWS))
/* FP32 partial sums: from one row to the next. */
#define DGI_DECODE_PITCH(tokens)   ((tokens) + 4)
#define DGI_DECODE_FACTORS(tokens) ((tokens) + 2 * DGI_DECODE_ROWS)
#define DGI_DECODE_SHARED_BYTES(tokens, stages, scale_k)                                           \
    ((stages) * (DGI_DECODE_STAGE_BYTES(tokens) + DGI_DECODE_STAGE_SCALES(tokens, scale_k) * 4) +  \
     (DGI_DECODE_ROWS * DGI_DECODE_PITCH(tokens) + DGI_DECODE_FACTORS(tokens)) * 4 +               \
     (2 * (stages) + 2) * 8)

#endif
