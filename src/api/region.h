/* SPDX-License-Identifier: MIT */
/* Which memory a call's operands occupy, so that the checks can tell whether two of them meet. */
#ifndef DGI_REGION_H
#define DGI_REGION_H

#include "backend.h"

/* A region of memory: `rows` runs of `run_bytes`, `pitch` apart. */
typedef struct dgi_region {
    uintptr_t start;
    int64_t rows, run_bytes, pitch;
} dgi_region;

/* Bytes from the first to one past the last element; false when they do not fit an int64_t. */
bool dgi_strided_bytes(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                       size_t element, int64_t *bytes);

dgi_region dgi_matrix_region(const dg_matrix *m);
dgi_region dgi_scale_region(const dg_scale *s);
dgi_region dgi_packed_region(const dg_weights *weights);

/*
 * Whether two regions share a byte. Two views into one buffer (same pitch) are compared run by
 * run, so neighbouring column slices are fine; others by their whole extent.
 */
bool dgi_overlap(dgi_region x, dgi_region y);

#endif
