/* SPDX-License-Identifier: MIT */
/* Rewriting tensor maps in global memory: another matrix of the same type, box and swizzle. */
#pragma once
#include <stdint.h>

/* A row-major matrix of `cols` x `rows` elements (not 0), rows `pitch` bytes apart. */
__device__ __forceinline__ void tensor_map_replace(void *map, const void *data, int32_t cols,
                                                   int32_t rows, int64_t pitch)
{
    asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 0, %2;\n"
                 "tensormap.replace.tile.global_dim.global.b1024.b32 [%0], 1, %3;\n"
                 "tensormap.replace.tile.global_stride.global.b1024.b64 [%0], 0, %4;" ::"l"(map),
                 "l"(data), "r"(cols), "r"(rows), "l"(pitch)
                 : "memory");
}

/* Afterwards kernels that acquire the map see what was written. */
__device__ __forceinline__ void tensor_map_release()
{
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}
