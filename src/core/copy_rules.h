/* SPDX-License-Identifier: MIT */
/*
 * What the copy engine (TMA) asks of a matrix in rows. A kernel that breaks one of these rules ends
 * with CUDA_ERROR_ILLEGAL_INSTRUCTION, and with it the context. Plain C for the host, which refuses
 * or copies such operands, for grouped_setup, which leaves such groups out, and for their tests.
 */
#ifndef DGI_COPY_RULES_H
#define DGI_COPY_RULES_H

#include "host_device.h"

#include <stdint.h>

enum { DGI_COPY_UNIT = 16 }; /* bytes */
#define DGI_COPY_PITCH_LIMIT ((int64_t)1 << 40)

/* Whether a tensor map can describe it. A single row has no pitch. */
static DGI_HOST_DEVICE int dgi_can_map(uint64_t address, int64_t rows, int64_t pitch_bytes)
{
    return address % DGI_COPY_UNIT == 0 &&
           (rows <= 1 || (pitch_bytes % DGI_COPY_UNIT == 0 && pitch_bytes < DGI_COPY_PITCH_LIMIT));
}

/* Whether a box can begin in that column: a valid map is not enough. */
static DGI_HOST_DEVICE int dgi_can_begin(int64_t column_bytes)
{
    return column_bytes % DGI_COPY_UNIT == 0;
}

/*
 * Whether a group of columns can be read, K elements of FP8 from column `first` on. Where a group
 * is a matrix of its own, K is its pitch as well.
 */
static DGI_HOST_DEVICE int dgi_can_copy_columns(int64_t first, int64_t k, int own_matrix)
{
    return k == 0 || (dgi_can_begin(first) && (!own_matrix || k % DGI_COPY_UNIT == 0));
}

#endif
