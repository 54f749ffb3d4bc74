/* SPDX-License-Identifier: MIT */
/*
 * What a grouped call with padding, gather or scatter does behind its products, a warp to a row:
 * results that stand in scratch memory go to their rows of D, padding rows become zero if asked.
 */
#include "grouped_args.h"
#include "small_args.h"

/* Whether row `row` of the rows that the groups share belongs to one of them. */
__device__ __forceinline__ bool belongs(const dgi_grouped_finish_args &args, int32_t row)
{
    if (args.gather != nullptr && (uint32_t)args.gather[row] >= (uint32_t)args.gather_rows)
        return false;
    if (args.grouping == DGI_DEVICE_BY_ROW)
        return args.sizes[row] >= 0 && args.sizes[row] < args.count;
    int32_t low = 0, high = args.count; /* the groups' ranges are in order: the last that begins */
    while (low < high) {                /* at or before the row */
        const int32_t middle = (low + high) / 2;
        if (args.ranges[2 * middle] <= row)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && row < args.ranges[2 * low - 1];
}

/* One row by one warp: a copy, or zeros where there is no source. */
__device__ __forceinline__ void write_row(uint8_t *to, const uint8_t *from, int64_t bytes)
{
    const int lane = threadIdx.x % 32;
    if (((uintptr_t)to | (uintptr_t)from | (uintptr_t)bytes) % 16 == 0) {
        for (int64_t i = lane; i < bytes / 16; i += 32)
            ((uint4 *)to)[i] = from == nullptr ? make_uint4(0, 0, 0, 0) : ((const uint4 *)from)[i];
    } else {
        for (int64_t i = lane; i < bytes; i += 32)
            to[i] = from == nullptr ? 0 : from[i];
    }
}

extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    grouped_finish(const __grid_constant__ dgi_grouped_finish_args args)
{
    const bool masked = args.grouping == DGI_DEVICE_MASKED;
    const int64_t rows = (int64_t)args.rows * (masked ? args.count : 1);
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) / 32; i < rows;
         i += (int64_t)gridDim.x * blockDim.x / 32) {
        const int32_t group = masked ? (int32_t)(i / args.rows) : 0;
        const int32_t row = masked ? (int32_t)(i % args.rows) : (int32_t)i;
        const bool used = masked ? row < args.sizes[group] : belongs(args, row);
        const int32_t target = args.scatter == nullptr ? row : args.scatter[row];
        if (args.scatter != nullptr && (uint32_t)target >= (uint32_t)args.d_rows)
            continue;
        uint8_t *to = args.d + group * args.stride + target * args.pitch;
        if (used && args.staged != nullptr)
            write_row(to, args.staged + row * args.staged_pitch, args.row_bytes);
        else if (!used && args.zero)
            write_row(to, nullptr, args.row_bytes);
    }
}
