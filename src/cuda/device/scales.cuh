/* SPDX-License-Identifier: MIT */
/* Reading scale arrays as they are: any strides, any block size, FP32 or UE8M0. */
#pragma once
#include "device_types.h"
#include "ptx/bulk.cuh"

/* Which scale row or column serves matrix row or column `index`. */
__device__ __forceinline__ int32_t scale_index(int32_t index, int32_t block, int32_t phase)
{
    if (block <= 1) /* 0: one for all; 1: one each */
        return block * index;
    return (int32_t)((uint32_t)(index + phase) / (uint32_t)block);
}

/* UE8M0: 2^(code - 127), 0xFF is NaN. */
__device__ __forceinline__ float scale_from_ue8m0(uint32_t code)
{
    return __uint_as_float(code == 0xFF ? 0x7FC00000u : code == 0 ? 0x00400000u : code << 23);
}

/*
 * Some rows of a scale array, as byte offsets of their first scale: what does not change from stage
 * to stage is computed once. The host has checked that offsets fit 32 bits.
 */
template <int COUNT> struct scale_rows {
    uint32_t first[COUNT];
    bool ue8m0;

    /* The rows that serve matrix rows `row`, `row + step`, ...; rows past the last are the last. */
    __device__ __forceinline__ scale_rows(const dgi_device_scale &scale, int32_t row, int32_t step,
                                          int32_t last)
        : ue8m0(scale.dtype == DGI_DEVICE_UE8M0)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int32_t index =
                scale_index(min(row + i * step, last), scale.block_rows, scale.row_phase);
            first[i] = index * (uint32_t)scale.row_stride * (ue8m0 ? 1 : 4);
        }
    }

    /* Their scales in column `col`. The type is looked at once, so that all loads are under way
     * before the first is waited for. */
    __device__ __forceinline__ void load(const dgi_device_scale &scale, int32_t col,
                                         float (&values)[COUNT]) const
    {
        const uint8_t *data = (const uint8_t *)scale.data;
        const uint32_t place = col * (uint32_t)scale.col_stride;
        if (!ue8m0) {
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                values[i] = __ldg((const float *)(data + (first[i] + place * 4)));
        } else {
            uint32_t codes[COUNT];
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                codes[i] = __ldg(data + (first[i] + place));
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                values[i] = scale_from_ue8m0(codes[i]);
        }
    }

    /* Where row `i`'s scale in column `col` lies. */
    __device__ __forceinline__ const void *place(const dgi_device_scale &scale, int32_t col,
                                                 int i) const
    {
        return (const uint8_t *)scale.data +
               (first[i] + col * (uint32_t)scale.col_stride * (ue8m0 ? 1 : 4));
    }

    /* The first row's scale in column `col`. */
    __device__ __forceinline__ float load_first(const dgi_device_scale &scale, int32_t col) const
    {
        const uint8_t *data = (const uint8_t *)scale.data;
        const uint32_t place = col * (uint32_t)scale.col_stride;
        return ue8m0 ? scale_from_ue8m0(__ldg(data + (first[0] + place)))
                     : __ldg((const float *)(data + (first[0] + place * 4)));
    }

    /* Brings the scales in column `col` to L2. */
    __device__ __forceinline__ void fetch(const dgi_device_scale &scale, int32_t col) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            fetch_line(place(scale, col, i));
    }
};
