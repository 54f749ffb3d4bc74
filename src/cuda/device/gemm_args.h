/* SPDX-License-Identifier: MIT */
/*
 * One product as a GEMM kernel computes it. The host hands it to a dense kernel by value; for
 * grouped kernels it lies in device memory. Host and kernels both compile this.
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

typedef struct dgi_gemm_args {
    CUtensorMap a_map, b_map; /* boxes of one stage; unused when k is 0       */
    CUtensorMap d_map;        /* boxes of a panel; only when copy_out is set  */
    CUtensorMap scale_a_map;  /* boxes of a stage; only when copy_scales is set */
    dgi_device_matrix c, d, bias;
    dgi_device_scale scale_a, scale_b, scale_d;
    int32_t m, n, k;
    int32_t first_k; /* column of A and B in their maps that is k = 0               */
    int32_t
        first_cluster; /* the cluster of CTAs that computes the first tile; both are 0 in dense */
    int32_t tile_rows, tile_cols; /* D in tiles; a cluster's tiles count as one */
    int32_t band;                 /* see tile_order.h                            */
    float alpha, beta;
    int32_t factors;       /* the epilogue multiplies by something or adds a bias      */
    int32_t copy_scales;   /* the copy engine can read the scales of A            */
    int32_t copy_out;      /* the copy engine can write D, and there is no C       */
    const uint8_t *packed; /* B as in packed_sm90.h instead of b_map, or NULL */
} dgi_gemm_args;

#endif
