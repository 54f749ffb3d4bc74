/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to a kernel for groups with few rows (gemm_grouped_few.cu), by value, and
 * what that kernel has in shared memory beside what gemm_decode.cu has; both sides compile this.
 */
#ifndef DGI_GROUPED_FEW_ARGS_H
#define DGI_GROUPED_FEW_ARGS_H

#include "decode_layout.h"
#include "grouped_args.h"

/* Groups whose packed weights' addresses travel with the other arguments, of which a kernel has 4
 * KB. */
#define DGI_FEW_ADDRESSES 256

/* Rows of a box of A: what no group has rows for is not loaded. */
#define DGI_FEW_BOX 8

typedef struct dgi_grouped_few_args {
    dgi_gemm_product like; /* the first group at its largest, with the maps of all; tile_cols:
                              tiles of 128 rows of B */
    dgi_device_groups groups;
    int32_t split; /* CTAs of a cluster, which share a tile's K: a power of two up to 16 */
    const uint8_t *packed[DGI_FEW_ADDRESSES]; /* each group's, where groups.packed is NULL  */
} dgi_grouped_few_args;

/* What a CTA computes next: a tile of D, whose rows are all that `args` has. */
typedef struct dgi_few_unit {
    dgi_gemm_args args;
    int32_t tile; /* of 128 rows of B; negative behind the last */
} dgi_few_unit;

/* How many of them the feeding warp may be ahead. */
enum { DGI_FEW_UNITS = 4 };

#define DGI_GROUPED_FEW_SHARED_BYTES(tokens, stages, scale_k)                                      \
    (DGI_DECODE_SHARED_BYTES(tokens, stages, scale_k) +                                            \
     DGI_FEW_UNITS * ((int)sizeof(dgi_few_unit) + 2 * 8))

#endif
