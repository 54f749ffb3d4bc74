/* SPDX-License-Identifier: MIT */
/*
 * What the host hands to the small kernels, those beside the GEMM; both sides compile this. Each is
 * a file of that name with one kernel of that name.
 */
#ifndef DGI_SMALL_ARGS_H
#define DGI_SMALL_ARGS_H

#include "device_types.h"

#define DGI_SMALL_KERNELS(X) X(realign) X(quantize) X(dequantize)
#define DGI_SMALL_THREADS    256

typedef struct dgi_realign_args {
    const uint8_t *source;
    uint8_t *target;
    int64_t rows, row_bytes, source_pitch, target_pitch;
} dgi_realign_args;

/* dg_scale_rounding. */
typedef enum dgi_rounding { DGI_ROUND_EXACT = 0, DGI_ROUND_UP, DGI_ROUND_DOWN } dgi_rounding;

/* dg_quantize_counts. */
typedef struct dgi_device_counts {
    unsigned long long saturated, underflow, non_finite;
} dgi_device_counts;

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
    int32_t group, lanes_x; /* threads of a scale's block, and how many of them side by side */
} dgi_quantize_args;

typedef struct dgi_dequantize_args {
    const uint8_t *input;
    void *output;
    int64_t rows, cols, input_ld, output_ld;
    int32_t input_dtype, output_dtype;
    dgi_device_scale scale;
} dgi_dequantize_args;

#endif
