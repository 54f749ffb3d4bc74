/* SPDX-License-Identifier: MIT */
/*
 * Packs weights, or unpacks them: codes between a row-major matrix and the parts of packed_sm90.h,
 * scales between two arrays of different strides. Launched by src/cuda/weights.c.
 */
#include "../../core/packed_sm90.h"
#include "small_args.h"

/* 16 bytes of a row, of which `count` exist: the others are 0. */
__device__ __forceinline__ uint4 load_chunk(const uint8_t *from, int64_t count)
{
    if (count >= 16 && (uintptr_t)from % 16 == 0)
        return *(const uint4 *)from;
    uint32_t word[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < count)
            word[i / 4] |= (uint32_t)from[i] << (i % 4 * 8);
    return make_uint4(word[0], word[1], word[2], word[3]);
}

__device__ __forceinline__ void store_chunk(uint8_t *to, int64_t count, uint4 chunk)
{
    const uint32_t word[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
    for (int i = 0; i < 16; i++)
        if (i < count)
            to[i] = (uint8_t)(word[i / 4] >> (i % 4 * 8));
}

/* Each thread moves 16 bytes of codes, then one scale, until all are done. */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    weights(const __grid_constant__ dgi_weights_args args)
{
    const int64_t first = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    const int64_t rows = dgi_packed_padded(args.rows, DGI_PACKED_ROWS);
    const int64_t chunks = dgi_packed_padded(args.cols, DGI_PACKED_K) / 16;
    for (int64_t i = first; i < rows * chunks; i += step) {
        const int64_t row = i / chunks, chunk = i % chunks;
        uint4 *packed = (uint4 *)(args.packed + dgi_packed_chunk(row, chunk, args.rows));
        uint8_t *plain = args.plain + row * args.ld + chunk * 16;
        const int64_t count = row < args.rows ? args.cols - chunk * 16 : 0;
        if (args.unpack)
            store_chunk(plain, count, *packed);
        else
            *packed = load_chunk(plain, count);
    }
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
