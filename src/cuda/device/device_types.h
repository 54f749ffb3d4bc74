/* SPDX-License-Identifier: MIT */
/* Public types as device code sees them; it does not include the public header. */
#ifndef DGI_DEVICE_TYPES_H
#define DGI_DEVICE_TYPES_H

#include <stdint.h>

/* Like dg_dtype, for device code, which does not see the public header. */
typedef enum dgi_device_dtype {
    DGI_DEVICE_NONE = 0,
    DGI_DEVICE_F32,
    DGI_DEVICE_F16,
    DGI_DEVICE_BF16,
    DGI_DEVICE_E4M3,
    DGI_DEVICE_E5M2,
    DGI_DEVICE_UE8M0
} dgi_device_dtype;

/*
 * A dg_scale without its shape. For the scales of A and B, columns are counted in units of the part
 * of K that the kernel promotes at a time.
 */
typedef struct dgi_device_scale {
    void *data;
    int64_t row_stride, col_stride;
    int32_t block_rows, block_cols, row_phase, col_phase;
    int32_t dtype;
} dgi_device_scale;

#endif
