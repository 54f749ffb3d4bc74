/* SPDX-License-Identifier: MIT */
/* Gathers rows of codes, of C or of scales by an index, so that a product finds them in a row. */
#include "small_args.h"

template <typename T>
__device__ __forceinline__ void copy_element(const uint8_t *from, uint8_t *to)
{
    *(T *)to = *(const T *)from;
}

/* A thread to an element; rows whose index is outside the source are left as they are. */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    gather(const __grid_constant__ dgi_gather_args args)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < args.rows * args.cols;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / args.cols, col = i % args.cols;
        const int32_t index = args.index == nullptr ? (int32_t)row : args.index[row];
        if ((uint32_t)index >= (uint32_t)args.source_rows)
            continue;
        const int64_t at = args.block == 0 ? 0 : ((int64_t)index + args.phase) / args.block;
        const uint8_t *from = args.source + at * args.row_stride + col * args.col_stride;
        uint8_t *to = args.target + row * args.target_pitch + col * args.element;
        if (args.element == 16)
            copy_element<uint4>(from, to);
        else if (args.element == 4)
            copy_element<uint32_t>(from, to);
        else if (args.element == 2)
            copy_element<uint16_t>(from, to);
        else
            copy_element<uint8_t>(from, to);
    }
}
