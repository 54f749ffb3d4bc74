/* SPDX-License-Identifier: MIT */
/*
 * B's scales in the decode kernel where they are UE8M0 codes that lie four to a word, as they
 * usually do: a word is four rows' (packed B), or one row's for the four parts of a stage.
 */
#pragma once
#include "decode_common.cuh"
#include "scales.cuh"

struct code_feed {
    static constexpr int WORDS = 4; /* of a lane, for a stage */
    using stage_words = uint32_t[WORDS];
    const dgi_device_scale &scale;
    const uint8_t *first[WORDS];
    const bool along_rows;

    /* Whether the codes lie so; `rows` x `k` is the operand. */
    static __device__ __forceinline__ bool fits(const dgi_device_scale &scale, int32_t rows,
                                                int32_t k)
    {
        return PARTS == 4 && scale.dtype == DGI_DEVICE_UE8M0 && scale.block_cols == 1 &&
               scale.col_phase == 0 && k % STAGE_K == 0 && (uint64_t)scale.data % 4 == 0 &&
               (lie_along_rows(scale, rows) ||
                (scale.col_stride == 1 && scale.row_stride % 4 == 0));
    }
    __device__ __forceinline__ code_feed(const dgi_device_scale &from, int32_t row, int32_t rows)
        : scale(from), along_rows(lie_along_rows(from, rows))
    {
        begin_tile(row, rows);
    }
    /* Rows outside the operand get codes that exist; what they scale is 0. */
    __device__ __forceinline__ void begin_tile(int32_t row, int32_t rows)
    {
        const int32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            first[i] = (const uint8_t *)scale.data +
                       (along_rows ? min(row + 4 * lane, rows - 4) + i * scale.col_stride
                                   : scale_index(min(row + lane + 32 * i, rows - 1),
                                                 scale.block_rows, scale.row_phase) *
                                         scale.row_stride);
    }
    /* Of the stage number `stage` of K. */
    __device__ __forceinline__ void load(int32_t stage, stage_words &words) const
    {
        const int64_t step = 4 * stage * scale.col_stride;
#pragma unroll
        for (int i = 0; i < WORDS; i++)
            words[i] = __ldg((const uint32_t *)(first[i] + step));
    }
    __device__ __forceinline__ void store(const stage_words &words, uint32_t target) const
    {
        const int32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < WORDS; i++) {
            float values[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                values[j] = scale_from_ue8m0(words[i] >> 8 * j & 0xFF);
            if (along_rows)
                shared_store(target + (i * PART_SCALES + 4 * lane) * 4, values);
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (!along_rows)
                    shared_store(target + (j * PART_SCALES + lane + 32 * i) * 4, values[j]);
        }
    }

private:
    static __device__ __forceinline__ bool lie_along_rows(const dgi_device_scale &scale,
                                                          int32_t rows)
    {
        return scale.block_rows == 1 && scale.row_phase == 0 && scale.row_stride == 1 &&
               scale.col_stride % 4 == 0 && rows % 4 == 0;
    }
};
