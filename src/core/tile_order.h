/* SPDX-License-Identifier: MIT */
/*
 * The order in which a persistent GPU kernel visits the tiles of D. Plain C that the kernels, the
 * planner and its tests all compile, so what is tested on the CPU is what runs on the GPU.
 *
 * Tiles are visited in bands of `band` rows of tiles, a band column by column. CTAs that run at the
 * same time then work on a block of D that is nearly square, and share most of their A and B in L2.
 */
#ifndef DGI_TILE_ORDER_H
#define DGI_TILE_ORDER_H

#include "host_device.h"

#include <stdint.h>

typedef struct dgi_tile {
    int32_t row, col; /* counted in tiles */
} dgi_tile;

/* The place of tile `index`, 0 <= index < rows * cols, in a grid of rows x cols tiles. */
static DGI_HOST_DEVICE dgi_tile dgi_tile_at(int32_t index, int32_t rows, int32_t cols, int32_t band)
{
    int32_t first = index / (band * cols) * band;
    int32_t height = rows - first < band ? rows - first : band;
    int32_t inside = index - first * cols;
    dgi_tile tile = {first + inside % height, inside / height};
    return tile;
}

#endif
