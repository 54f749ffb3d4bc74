/* SPDX-License-Identifier: MIT */
/*
 * How many threads and how much shared memory a decode kernel needs, from its constants in the
 * kernel table: for the kernel, the host that launches it, and the test that all of them fit.
 */
#ifndef DGI_DECODE_LAYOUT_H
#define DGI_DECODE_LAYOUT_H

#include "../../core/host_device.h"
#include "gemm_layout.h"

enum { DGI_DECODE_ROWS = 128, DGI_DECODE_GROUPS = 2 };

#define DGI_DECODE_THREADS(scale_k) (DGI_DECODE_GROUPS * 128 + ((scale_k) == 0 ? 32 : 64))

/* The kernel's shared memory, in this order; see gemm_decode.cu for the constants. */
#define DGI_DECODE_STAGE_BYTES(tokens) (((tokens) + DGI_DECODE_ROWS) * 128)
#define DGI_DECODE_STAGE_SCALES(tokens, scale_k)                                                   \
    ((scale_k) == 0 ? 0 : 128 / ((scale_k) + !(scale_k)) * ((tokens) + DGI_DECODE_ROWS))
/* FP32 partial sums of a tile. */
#define DGI_DECODE_SUMS(tokens)    ((tokens)*DGI_DECODE_ROWS)
/* Factors and biases of a tile's rows, and factors of the tokens; two sets of them. */
#define DGI_DECODE_FACTORS(tokens) ((tokens) + 2 * DGI_DECODE_ROWS)
#define DGI_DECODE_SHARED_BYTES(tokens, stages, scale_k)                                           \
    ((stages) * (DGI_DECODE_STAGE_BYTES(tokens) + DGI_DECODE_STAGE_SCALES(tokens, scale_k) * 4) +  \
     (DGI_DECODE_SUMS(tokens) + 2 * DGI_DECODE_FACTORS(tokens)) * 4 + (2 * (stages) + 2) * 8)

/* Where a warp turns its results: 32 bytes for a token, the halves in an order in which neither the
 * eight tokens of a half nor the halves of four tokens meet a bank twice. */
static DGI_HOST_DEVICE int dgi_decode_panel(int token, int half)
{
    return token * 32 + (half ^ token / 4 % 2) * 16;
}

#endif
