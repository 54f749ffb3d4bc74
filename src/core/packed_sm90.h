/* SPDX-License-Identifier: MIT */
/*
 * Packed weights on Hopper. Plain C that the host, the kernels and the tests all compile.
 *
 * B is cut into parts of 128 along K. A part holds its rows one after the other, 128 bytes each,
 * with the copy engine's 128-byte swizzle: any rows of it are contiguous, and lie in memory as they
 * will in shared memory. CTAs that read the same part of neighbouring rows at the same time read
 * one piece of memory together. Rows are padded to a multiple of 64; padding holds zeros, whose
 * products add nothing. The scales follow the codes, as an array of their own with strides of its
 * own.
 */
#ifndef DGI_PACKED_SM90_H
#define DGI_PACKED_SM90_H

#include "swizzle.h"

#include <stdint.h>

enum { DGI_PACKED_ROWS = 64, DGI_PACKED_K = 128 }; /* rows come in multiples of this; K of a part */

static DGI_HOST_DEVICE int64_t dgi_packed_padded(int64_t size, int64_t step)
{
    return (size + step - 1) / step * step;
}

/* Where row `row` of part `part` begins; `rows` are those of B. */
static DGI_HOST_DEVICE int64_t dgi_packed_row(int64_t row, int64_t part, int64_t rows)
{
    return (part * dgi_packed_padded(rows, DGI_PACKED_ROWS) + row) * DGI_PACKED_K;
}

/* Bytes of the codes of a B of rows x cols. */
static DGI_HOST_DEVICE int64_t dgi_packed_bytes(int64_t rows, int64_t cols)
{
    return dgi_packed_padded(rows, DGI_PACKED_ROWS) * dgi_packed_padded(cols, DGI_PACKED_K);
}

#endif
