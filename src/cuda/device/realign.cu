/* SPDX-License-Identifier: MIT */
/*
 * Copies a byte matrix of any address and row pitch to one that the copy engine can read: rows that
 * begin at multiples of 16 bytes. Launched by src/cuda/gemm.c before a GEMM whose operands need it.
 */
#include "small_args.h"

/* Four bytes at an aligned address, of which only those in [begin, end) are read. */
__device__ __forceinline__ uint32_t load_word(const uint8_t *address, const uint8_t *begin,
                                              const uint8_t *end)
{
    if (address >= begin && address + 4 <= end)
        return *(const uint32_t *)address;
    uint32_t word = 0;
    for (int i = 0; i < 4; i++)
        if (address + i >= begin && address + i < end)
            word |= (uint32_t)address[i] << (8 * i);
    return word;
}

/* Each thread writes 16 bytes; bytes of the target behind a row's end are undefined. */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    realign(const __grid_constant__ dgi_realign_args args)
{
    const int64_t pieces = args.target_pitch / 16;
    const uint8_t *end = args.source + (args.rows - 1) * args.source_pitch + args.row_bytes;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < args.rows * pieces;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / pieces, piece = i % pieces;
        const uint8_t *from = args.source + row * args.source_pitch + piece * 16;
        const uint32_t shift = (uint32_t)(uintptr_t)from % 4 * 8;
        const uint8_t *aligned = from - shift / 8;
        uint32_t word[5];
#pragma unroll
        for (int j = 0; j < 5; j++)
            word[j] = load_word(aligned + 4 * j, args.source, end);
        uint4 out;
        out.x = __funnelshift_r(word[0], word[1], shift);
        out.y = __funnelshift_r(word[1], word[2], shift);
        out.z = __funnelshift_r(word[2], word[3], shift);
        out.w = __funnelshift_r(word[3], word[4], shift);
        *(uint4 *)(args.target + row * args.target_pitch + piece * 16) = out;
    }
}
