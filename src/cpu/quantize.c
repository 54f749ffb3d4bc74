/* SPDX-License-Identifier: MIT */
/* Quantise and dequantise on the CPU. */
#include "core/formats.h"
#include "cpu/cpu.h"

#include <math.h>

/* The matrix rows or columns that scale `index` covers: [first, last). */
static void block_range(int64_t index, int32_t block, int32_t phase, int64_t size, int64_t *first,
                        int64_t *last)
{
    if (block == 0) {
        *first = 0, *last = size;
        return;
    }
    int64_t start = index * block - phase;
    *first = start < 0 ? 0 : start;
    *last = start + block < size ? start + block : size;
}

dg_status dgi_cpu_quantize(dg_context *context, const dg_quantize *q, void *stream)
{
    (void)context, (void)stream;
    const dg_matrix *in = &q->input, *out = &q->output;
    const dg_scale *s = &q->scale;
    dg_quantize_counts counts = {0, 0, 0};
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->cols; j++) {
            int64_t r0, r1, c0, c1;
            block_range(i, s->block_rows, s->row_phase, in->rows, &r0, &r1);
            block_range(j, s->block_cols, s->col_phase, in->cols, &c0, &c1);
            float scale;
            if (q->source == DG_SCALE_GIVEN) {
                scale = dgi_scale_at(s, i, j);
            } else {
                float amax = 0.0f;
                for (int64_t r = r0; r < r1; r++)
                    for (int64_t c = c0; c < c1; c++) {
                        float x = fabsf(dgi_load_f32(in->data, in->dtype, r * in->ld + c));
                        if (dgi_f32_is_finite(x) && x > amax)
                            amax = x;
                    }
                scale = dgi_dynamic_scale(amax, q->amax_floor, out->dtype, q->rounding);
                dgi_store_f32(s->data, s->dtype, i * s->row_stride + j * s->col_stride, scale,
                              DG_SATURATE);
            }
            float inverse = 1.0f / scale;
            for (int64_t r = r0; r < r1; r++)
                for (int64_t c = c0; c < c1; c++) {
                    float x = dgi_load_f32(in->data, in->dtype, r * in->ld + c);
                    float y = x * inverse;
                    uint8_t code = dgi_fp8_from_f32(out->dtype, y, q->overflow);
                    ((uint8_t *)out->data)[r * out->ld + c] = code;
                    bool nan = x != x;
                    bool over = !nan && !dgi_f32_is_finite(dgi_f32_from_fp8(
                                            out->dtype, dgi_fp8_from_f32(out->dtype, y,
                                                                         DG_OVERFLOW_IEEE)));
                    counts.saturated += over;
                    counts.underflow += x != 0.0f && (code & 0x7F) == 0;
                    counts.non_finite += !dgi_f32_is_finite(x);
                }
        }
    if (q->counts != NULL)
        *q->counts = counts;
    return DG_OK;
}

dg_status dgi_cpu_dequantize(dg_context *context, const dg_dequantize *q, void *stream)
{
    (void)context, (void)stream;
    const dg_matrix *in = &q->input, *out = &q->output;
    for (int64_t r = 0; r < in->rows; r++)
        for (int64_t c = 0; c < in->cols; c++) {
            float scale =
                dgi_scale_at(&q->scale, dgi_scale_index(r, q->scale.block_rows, q->scale.row_phase),
                             dgi_scale_index(c, q->scale.block_cols, q->scale.col_phase));
            dgi_store_f32(out->data, out->dtype, r * out->ld + c,
                          scale * dgi_load_f32(in->data, in->dtype, r * in->ld + c), DG_SATURATE);
        }
    return DG_OK;
}
