/* SPDX-License-Identifier: MIT */
/*
 * The epilogue, in plain C that compilers vectorise; each gemm_<isa>.c includes it and compiles it
 * for its own instructions. A file may define FINISH_F16_X16(const float *, uint16_t *) first.
 */
#include "core/formats.h"
#include "cpu/kernel.h"

static inline __attribute__((always_inline)) void finish_load(const void *data, dg_dtype dtype,
                                                              int64_t first, int count, float *out)
{
    switch (dtype) {
    case DG_F32:
        memcpy(out, (const char *)data + 4 * first, 4 * (size_t)count);
        break;
    case DG_BF16:
        for (int i = 0; i < count; i++) {
            uint16_t half;
            memcpy(&half, (const char *)data + 2 * (first + i), sizeof half);
            out[i] = dgi_f32_from_bf16(half);
        }
        break;
    default:
        for (int i = 0; i < count; i++)
            out[i] = dgi_load_f32(data, dtype, first + i);
    }
}

static inline __attribute__((always_inline)) void
finish_store(void *data, dg_dtype dtype, int64_t first, int count, const float *values)
{
    uint16_t halves[DGI_PANEL];
    switch (dtype) {
    case DG_F32:
        memcpy((char *)data + 4 * first, values, 4 * (size_t)count);
        return;
    case DG_BF16:
        for (int i = 0; i < count; i++)
            halves[i] = dgi_bf16_from_f32(values[i]);
        memcpy((char *)data + 2 * first, halves, 2 * (size_t)count);
        return;
#ifdef FINISH_F16_X16
    case DG_F16:
        FINISH_F16_X16(values, halves);
        memcpy((char *)data + 2 * first, halves, 2 * (size_t)count);
        return;
#endif
    default:
        for (int i = 0; i < count; i++)
            dgi_store_f32(data, dtype, first + i, values[i], DG_SATURATE);
    }
}

/* `count` (<= 16) elements of row `row` of D from column `col`. */
static inline __attribute__((always_inline)) void
finish_piece(const dg_gemm *g, int64_t row, int64_t col, int count, const float *sums)
{
    float values[DGI_PANEL] = {0}, addends[DGI_PANEL];
    for (int i = 0; i < count; i++)
        values[i] = g->alpha * sums[i];
    if (g->beta != 0.0f) {
        finish_load(g->c.data, g->c.dtype, row * g->c.ld + col, count, addends);
        for (int i = 0; i < count; i++)
            values[i] += g->beta * addends[i];
    }
    if (g->bias.dtype != DG_NONE) {
        finish_load(g->bias.data, g->bias.dtype, col, count, addends);
        for (int i = 0; i < count; i++)
            values[i] += addends[i];
    }
    if (g->scale_d.dtype != DG_NONE) {
        const dg_scale *s = &g->scale_d;
        int64_t scale_row = dgi_scale_index(row, s->block_rows, s->row_phase);
        for (int i = 0; i < count; i++)
            values[i] *= 1.0f / dgi_scale_at(s, scale_row,
                                             dgi_scale_index(col + i, s->block_cols, s->col_phase));
    }
    finish_store(g->d.data, g->d.dtype, row * g->d.ld + col, count, values);
}

static void finish(const dgi_cpu_result *result)
{
    for (int64_t r = 0; r < result->rows; r++) {
        const float *sums = result->sums + r * result->sums_stride;
        int64_t c = 0;
        for (; c + DGI_PANEL <= result->cols; c += DGI_PANEL)
            finish_piece(result->gemm, result->row + r, result->col + c, DGI_PANEL, sums + c);
        if (c < result->cols)
            finish_piece(result->gemm, result->row + r, result->col + c, (int)(result->cols - c),
                         sums + c);
    }
}
