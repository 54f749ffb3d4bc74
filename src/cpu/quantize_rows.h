/* SPDX-License-Identifier: MIT */
/*
 * The inner loops of quantisation: what they do to one row of a matrix. src/cpu/quantize.c calls
 * them; each instruction set has its own compilation of the same loops (quantize_body.h).
 */
#ifndef DGI_CPU_QUANTIZE_ROWS_H
#define DGI_CPU_QUANTIZE_ROWS_H

#include "deepgemm.h"

/*
 * `count` neighbouring elements of a row and the scale blocks they lie in: the first `head`
 * elements in one block, then `block` in each. Arrays with "one for each block" follow that order.
 */
typedef struct dgi_blocks {
    int64_t count, head, block;
} dgi_blocks;

typedef struct dgi_row_kernels {
    /*
     * Raises amax[] (one for each block) to the largest finite magnitude of the input (F32, F16 or
     * BF16). Magnitudes are FP32 bit patterns, which order like their values.
     */
    void (*amax)(const void *input, dg_dtype dtype, dgi_blocks blocks, uint32_t *amax);

    /* Gives each `unit` (1 or 2) neighbouring elements the value of their block. */
    void (*spread)(dgi_blocks blocks, const float *values, int unit, float *each);

    /*
     * codes = round(input * multiplier), one multiplier for each `unit` elements: 1, or 2 where the
     * input has 16 bits.
     */
    void (*encode)(const void *input, dg_dtype dtype, uint8_t *codes, dg_dtype code_dtype,
                   int64_t count, const float *multipliers, int unit, dg_overflow overflow);

    /* Adds to *counts what `encode` met: see dg_quantize_counts. */
    void (*count)(const void *input, dg_dtype dtype, dg_dtype code_dtype, int64_t count,
                  const float *multipliers, dg_quantize_counts *counts);

    /* output (F32, F16 or BF16) = multiplier * code, one multiplier for each element. */
    void (*decode)(const uint8_t *codes, dg_dtype code_dtype, void *output, dg_dtype dtype,
                   int64_t count, const float *multipliers);
} dgi_row_kernels;

extern const dgi_row_kernels dgi_rows_generic, dgi_rows_avx2, dgi_rows_avx512;

#endif
