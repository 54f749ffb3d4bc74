/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to the small kernels, those beside the GEMM; both sides compile this.
 */
#ifndef DGI_SMALL_ARGS_H
#define DGI_SMALL_ARGS_H

#include "device_types.h"

/* Files of small kernels, FILE.cu each, and the kernels in them: X(kernel, file). */
#define DGI_SMALL_FILES(X)                                                                         \
    X(realign)                                                                                     \
    X(quantize) X(dequantize) X(weights) X(grouped_setup) X(grouped_finish) X(gather) X(addresses)
#define DGI_SMALL_KERNELS(X)                                                                       \
    X(realign, realign)                                                                            \
    X(quantize, quantize)                                                                          \
    X(quantize_block_16_1, quantize)                                                               \
    X(quantize_block_16_2, quantize)                                                               \
    X(quantize_block_16_4, quantize)                                                               \
    X(quantize_block_32_1, quantize)                                                               \
    X(quantize_block_32_2, quantize)                                                               \
    X(quantize_block_32_4, quantize)                                                               \
    X(quantize_amax_16, quantize)                                                                  \
    X(quantize_amax_32, quantize)                                                                  \
    X(quantize_encode_16, quantize)                                                                \
    X(quantize_encode_32, quantize)                                                                \
    X(dequantize, dequantize)                                                                      \
    X(dequantize_pieces, dequantize)                                                               \
    X(weights, weights)                                                                            \
    X(grouped_setup, grouped_setup)                                                                \
    X(grouped_finish, grouped_finish)                                                              \
    X(gather, gather)                                                                              \
    X(addresses, addresses)
#define DGI_SMALL_THREADS 256

typedef struct dgi_realign_args {
    const uint8_t *source;
    uint8_t *target;
    int64_t rows, row_bytes, source_pitch, target_pitch;
} dgi_realign_args;

/* Rows index[i] (or i) of `source_rows` become row i; a row of scales serves `block` of them. */
typedef struct dgi_gather_args {
    const uint8_t *source;
    uint8_t *target;
    const int32_t *index;
    int64_t rows, cols, source_rows;
    int64_t row_stride, col_stride, target_pitch; /* bytes */
    int32_t block, phase, element;
} dgi_gather_args;

enum { DGI_ADDRESSES = 256 }; /* of a launch: 2 KB of arguments */

typedef struct dgi_addresses_args {
    const uint8_t *values[DGI_ADDRESSES];
    const uint8_t **target;
    uint32_t count;
} dgi_addresses_args;

/* dg_scale_rounding. */
typedef enum dgi_rounding { DGI_ROUND_EXACT = 0, DGI_ROUND_UP, DGI_ROUND_DOWN } dgi_rounding;

/* dg_quantize_counts. */
typedef struct dgi_device_counts {
    unsigned long long saturated, underflow, non_finite;
} dgi_device_counts;

#define DGI_QUANTIZE_PIECE   16 /* elements that a thread loads and stores at a time          */
#define DGI_DEQUANTIZE_PIECE 8
#define DGI_QUANTIZE_THREADS 512  /* of a CTA of quantize_block_*, at most                      */
#define DGI_QUANTIZE_PART    1024 /* pieces of which a CTA of quantize_amax finds the largest   */

typedef struct dgi_quantize_args {
    const void *input;
    uint8_t *output;
    int64_t rows, cols, input_ld, output_ld;
    int32_t input_dtype, output_dtype;
    dgi_device_scale scale; /* written when `dynamic` */
    int64_t scale_rows, scale_cols;
    int32_t dynamic, saturate, rounding;
    float amax_floor, largest; /* `largest` finite code of the output type */
    dgi_device_counts *counts;
    int32_t group;     /* threads of a scale's block                                           */
    int32_t lanes_x;   /* `quantize`: how many of them side by side                            */
    uint32_t pieces_x; /* pieces side by side in a block                                       */
    uint32_t parts;    /* quantize_amax: parts of a block                                      */
    uint32_t *amax;    /* quantize_amax, quantize_encode: one for each scale, as FP32 bits     */
} dgi_quantize_args;

typedef struct dgi_dequantize_args {
    const uint8_t *input;
    void *output;
    int64_t rows, cols, input_ld, output_ld;
    int32_t input_dtype, output_dtype;
    dgi_device_scale scale;
} dgi_dequantize_args;

typedef struct dgi_weights_args {
    uint8_t *plain, *packed;
    int64_t rows, cols, ld;
    int32_t unpack;      /* from packed to plain          */
    int32_t scale_bytes; /* of one scale: 1 or 4          */
    const void *from;    /* the scales, and where they go */
    void *to;
    int64_t scale_rows, scale_cols;
    int64_t from_row_stride, from_col_stride, to_row_stride, to_col_stride;
} dgi_weights_args;

#endif
