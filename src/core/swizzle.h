/* SPDX-License-Identifier: MIT */
/*
 * The 128-byte swizzle of the copy engine and of wgmma: in rows of 128 bytes, the 16-byte chunks of
 * a row are permuted by the row's number, so that neither a row nor a column of chunks meets a bank
 * twice. Used by the GPU kernels' epilogue; its test simulates the banks.
 */
#ifndef DGI_SWIZZLE_H
#define DGI_SWIZZLE_H

#include "host_device.h"

/* The byte offset of chunk 0..7 of a row. The first row begins at a multiple of 1024 bytes. */
static DGI_HOST_DEVICE int dgi_swizzle(int row, int chunk)
{
    return row * 128 + (chunk ^ row % 8) * 16;
}

#endif
