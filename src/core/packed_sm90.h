/* SPDX-License-Identifier: MIT */
/*
 * Packed weights on Hopper. Plain C that the host, the kernels and the tests all compile.
 *
 * B is cut into tiles of 128 rows by 128 of K. A tile is contiguous and lies in memory as it will
 * in shared memory: 128 bytes to a row, with the copy engine's 128-byte swizzle. The tiles of the
 * same rows follow each other along K. Rows are padded to a multiple of 64, so the last tiles may
 * have 64 rows only; padding holds zeros, whose products add nothing. The scales follow the tiles,
 * as an array of their own with strides of its own.
 */
#ifndef DGI_PACKED_SM90_H
#define DGI_PACKED_SM90_H

#include "swizzle.h"

#include <stdint.h>

enum { DGI_PACKED_ROWS = 128, DGI_PACKED_K = 128 }; /* of a tile */

static DGI_HOST_DEVICE int64_t dgi_packed_padded(int64_t size, int64_t step)
{
    return (size + step - 1) / step * step;
}

/* Rows of B's tile `tile`: 128, or 64 in the last one when that is enough. */
static DGI_HOST_DEVICE int32_t dgi_packed_height(int64_t tile, int64_t rows)
{
    const int64_t left = dgi_packed_padded(rows, DGI_PACKED_ROWS / 2) - tile * DGI_PACKED_ROWS;
    return left < DGI_PACKED_ROWS ? DGI_PACKED_ROWS / 2 : DGI_PACKED_ROWS;
}

/* Where the tile begins that holds rows from tile * 128 and columns from part * 128 on. */
static DGI_HOST_DEVICE int64_t dgi_packed_tile(int64_t tile, int64_t part, int64_t rows,
                                               int64_t cols)
{
    const int64_t parts = (cols + DGI_PACKED_K - 1) / DGI_PACKED_K;
    return (tile * DGI_PACKED_ROWS * parts + part * dgi_packed_height(tile, rows)) * DGI_PACKED_K;
}

/* Where the 16 bytes with row `row` and columns from 16 * chunk on lie. */
static DGI_HOST_DEVICE int64_t dgi_packed_chunk(int64_t row, int64_t chunk, int64_t rows,
                                                int64_t cols)
{
    return dgi_packed_tile(row / DGI_PACKED_ROWS, chunk / 8, rows, cols) +
           dgi_swizzle((int)(row % DGI_PACKED_ROWS), (int)(chunk % 8));
}

/* Bytes of all tiles of a B of rows x cols. */
static DGI_HOST_DEVICE int64_t dgi_packed_bytes(int64_t rows, int64_t cols)
{
    return dgi_packed_padded(rows, DGI_PACKED_ROWS / 2) * dgi_packed_padded(cols, DGI_PACKED_K);
}

#endif
