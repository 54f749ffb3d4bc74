/* SPDX-License-Identifier: MIT */
/* Rewriting tensor maps in shared memory: another matrix of the same type, box and swizzle. */
#pragma once
#include <stdint.h>

/* A row-major matrix of `cols` x `rows` elements (not 0), rows `pitch` bytes apart. */
__device__ __forceinline__ void tensor_map_replace(void *map, const void *data, int32_t cols,
                                                   int32_t rows, int64_t pitch)
{
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;\n"
                 "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %2;\n"
                 "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %3;\n"
                 "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %4;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(map)),
                 "l"(data), "r"(cols), "r"(rows), "l"(pitch)
                 : "memory");
}

/* After a map was written to global memory: kernels that acquire it see what was written. */
__device__ __forceinline__ void tensor_map_release()
{
    asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory");
}
