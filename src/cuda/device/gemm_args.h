/* SPDX-License-Identifier: MIT */
/*
 * One product as a GEMM kernel computes it. Host and kernels both compile this.
 */
#ifndef DGI_GEMM_ARGS_H
#define DGI_GEMM_ARGS_H

#include "device_types.h"
#include "gemm_layout.h"

#include <cuda.h>

/* A row-major matrix of any type; DGI_DEVICE_NONE when absent. */
typedef struct dgi_device_matrix {
    void *data;
    int64_t ld;
    int32_t dtype;
} dgi_device_matrix;

/* What the copy engine moves boxes of. A map may be of more rows than the product's own. */
typedef struct dgi_gemm_maps {
    CUtensorMap a, b;    /* boxes of one stage; unused when k is 0         */
    CUtensorMap d;       /* boxes of a panel; only when copy_out is set    */
    CUtensorMap scale_a; /* boxes of a stage; only when copy_scales is set */
} dgi_gemm_maps;

/* A part of a tile's K: which of how many, and where the sums of the first one lie. */
typedef struct dgi_tile_part {
    int32_t index, count, slot;
} dgi_tile_part;

/*
 * In grouped kernels, what a cluster computes of a product: tiles `first`, `first` + `step`, ...
 * before `end`. The first one's K may begin at another stage than 0, and that of tile `end` - 1 end
 * at another than the last.
 */
typedef struct dgi_tile_range {
    int32_t first, end, step;
    int32_t begin_stage, end_stage;
    dgi_tile_part head, tail; /* which parts these are */
} dgi_tile_range;

typedef struct dgi_gemm_args {
    dgi_device_matrix c, d, bias;
    dgi_device_scale scale_a, scale_b, scale_d;
    int32_t m, n, k;
    /* Where it begins, 0 in dense kernels: */
    int32_t first_k;              /* column of A's and B's maps               */
    int32_t a_row, b_row, d_row;  /* row of each one's map                    */
    int32_t tile_rows, tile_cols; /* D in tiles; a cluster's tiles count as one */
    int32_t band;                 /* see tile_order.h                            */
    float alpha, beta;
    int32_t factors;       /* the epilogue multiplies by something or adds a bias */
    int32_t copy_scales;   /* the copy engine can read the scales of A            */
    int32_t copy_out;      /* the copy engine can write D, and there is no C      */
    const uint8_t *packed; /* B as in packed_sm90.h instead of its map, or NULL   */
    dgi_tile_range range;  /* of this warp's cluster; unused in dense kernels     */
} dgi_gemm_args;

/* All of it: a dense kernel gets one by value, a grouped kernel reads them in device memory. */
typedef struct dgi_gemm_product {
    dgi_gemm_maps maps;
    dgi_gemm_args args;
} dgi_gemm_product;

#endif
