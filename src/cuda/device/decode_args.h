/* SPDX-License-Identifier: MIT */
/* What the host hands to a decode kernel (gemm_decode.cu), by value; both sides compile this. */
#ifndef DGI_DECODE_ARGS_H
#define DGI_DECODE_ARGS_H

#include "decode_layout.h"
#include "gemm_args.h"

typedef struct dgi_decode_args {
    CUtensorMap a_map; /* boxes of one stage: a tile of tokens, 128 of K; unused when k is 0 */
    CUtensorMap b_map; /* boxes of one stage: 128 rows, 128 of K; unused when packed   */
    dgi_gemm_args product;
    int32_t tiles;       /* of 128 rows of B                                                     */
    int32_t token_tiles; /* 1 or 2, each computed by as many clusters                            */
    int32_t split;       /* CTAs of a cluster, which share a tile's K: a power of two up to 16   */
    int32_t early;       /* B does not change: it may be read before earlier kernels have ended  */
    int32_t last;        /* stages that a CTA has yet to copy when it lets in the next kernel    */
} dgi_decode_args;

#endif
