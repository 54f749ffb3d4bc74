/* SPDX-License-Identifier: MIT */
/*
 * Packs weights, or unpacks them: codes between a row-major matrix and the parts of packed_sm90.h,
 * scales between two arrays of different strides. Launched by src/cuda/weights.c.
 */
#include "../../core/packed_sm90.h"
#include "small_args.h"

/* 16 columns of 8 rows, from `row` on; threads side by side have those of one part. */
__device__ __forceinline__ void move_codes(const dgi_weights_args &args, int64_t row, int64_t chunk)
{
    uint8_t *plain = args.plain + row * args.ld + chunk / 8 * DGI_PACKED_K;
    uint8_t *packed = args.packed + dgi_packed_row(row, chunk / 8, args.rows);
    const int place = (int)(chunk % 8);
    const int64_t rows = args.rows - row, cols = args.cols - chunk / 8 * DGI_PACKED_K;
    if (rows >= 8 && cols >= DGI_PACKED_K && ((uintptr_t)plain | (uint64_t)args.ld) % 16 == 0) {
        uint4 codes[8]; /* all under way before the first is stored */
        plain += place * 16;
#pragma unroll
        for (int i = 0; i < 8; i++)
            codes[i] = *(const uint4 *)(args.unpack ? packed + dgi_swizzle(i, place)
                                                    : plain + i * args.ld);
#pragma unroll
        for (int i = 0; i < 8; i++)
            *(uint4 *)(args.unpack ? plain + i * args.ld : packed + dgi_swizzle(i, place)) =
                codes[i];
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 8; i++, plain += args.ld) {
        uint8_t codes[16]; /* every eighth column of the part, so that neighbours' bytes meet */
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const bool exists = i < rows && 8 * j + place < cols;
            const uint8_t *from =
                args.unpack ? packed + dgi_swizzle(i, j / 2) + j % 2 * 8 : plain + 8 * j;
            codes[j] = exists ? from[place] : 0;
        }
#pragma unroll
        for (int j = 0; j < 16; j++)
            if (!args.unpack)
                packed[dgi_swizzle(i, j / 2) + j % 2 * 8 + place] = codes[j];
            else if (i < rows && 8 * j + place < cols)
                plain[8 * j + place] = codes[j];
    }
}

/* Each thread moves 128 bytes of codes, then one scale, until all are done. */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    weights(const __grid_constant__ dgi_weights_args args)
{
    const int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    const int64_t rows = dgi_packed_padded(args.rows, DGI_PACKED_ROWS);
    const int64_t chunks = dgi_packed_padded(args.cols, DGI_PACKED_K) / 16;
    for (int64_t i = first; i < rows / 8 * chunks; i += step)
        move_codes(args, i / chunks * 8, i % chunks);
    for (int64_t i = first; i < args.scale_rows * args.scale_cols; i += step) {
        const int64_t row = i / args.scale_cols, col = i % args.scale_cols;
        const int64_t from = row * args.from_row_stride + col * args.from_col_stride;
        const int64_t to = row * args.to_row_stride + col * args.to_col_stride;
        if (args.scale_bytes == 1)
            ((uint8_t *)args.to)[to] = ((const uint8_t *)args.from)[from];
        else
            ((uint32_t *)args.to)[to] = ((const uint32_t *)args.from)[from];
    }
}
