/* SPDX-License-Identifier: MIT */
/* GEMM on the CPU. */
#include "core/formats.h"
#include "cpu/cpu.h"

#include <stdlib.h>
#include <string.h>

static float value_at(const dg_matrix *m, const dg_scale *s, int64_t r, int64_t c)
{
    return dgi_load_f32(m->data, m->dtype, r * m->ld + c) *
           dgi_scale_at(s, dgi_scale_index(r, s->block_rows, s->row_phase),
                        dgi_scale_index(c, s->block_cols, s->col_phase));
}

dg_status dgi_cpu_gemm(dg_context *context, const dg_gemm *g, void *stream)
{
    (void)context, (void)stream;
    dg_matrix b = g->b;
    dg_scale scale_b = g->scale_b;
    if (g->weights != NULL) {
        b = g->weights->b, scale_b = g->weights->scale;
        b.data = g->weights->data, b.ld = b.cols;
        scale_b.data = (char *)g->weights->data + (b.rows * b.cols + 255) / 256 * 256;
        scale_b.row_stride = scale_b.cols, scale_b.col_stride = 1;
    }
    for (int64_t i = 0; i < g->d.rows; i++)
        for (int64_t j = 0; j < g->d.cols; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < g->a.cols; k++)
                sum += value_at(&g->a, &g->scale_a, i, k) * value_at(&b, &scale_b, j, k);
            sum *= g->alpha;
            if (g->beta != 0.0f)
                sum += g->beta * dgi_load_f32(g->c.data, g->c.dtype, i * g->c.ld + j);
            if (g->bias.dtype != DG_NONE)
                sum += dgi_load_f32(g->bias.data, g->bias.dtype, j);
            if (dgi_is_fp8(g->d.dtype))
                sum *= 1.0f / dgi_scale_at(&g->scale_d,
                                           dgi_scale_index(i, g->scale_d.block_rows, g->scale_d.row_phase),
                                           dgi_scale_index(j, g->scale_d.block_cols, g->scale_d.col_phase));
            dgi_store_f32(g->d.data, g->d.dtype, i * g->d.ld + j, sum, DG_SATURATE);
        }
    return DG_OK;
}

dg_status dgi_cpu_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes)
{
    (void)context, (void)gemm;
    *bytes = 0;
    return DG_OK;
}

dg_status dgi_cpu_gemm_prepare(dg_context *context, const dg_gemm *gemm)
{
    (void)context, (void)gemm;
    return DG_OK;
}

dg_status dgi_cpu_gemm_explain(dg_context *context, const dg_gemm *gemm, char *text,
                               size_t *text_bytes)
{
    (void)context, (void)gemm, (void)text;
    *text_bytes = 1;
    return DG_OK;
}

dg_status dgi_cpu_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                size_t *bytes)
{
    (void)context;
    *bytes = (size_t)((b->rows * b->cols + 255) / 256 * 256) +
             (size_t)(scale_b->rows * scale_b->cols) * dg_dtype_bytes(scale_b->dtype);
    return DG_OK;
}

dg_status dgi_cpu_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *s,
                               dg_weights *w, void *stream)
{
    (void)context, (void)stream;
    for (int64_t r = 0; r < b->rows; r++)
        memcpy((char *)w->data + r * b->cols, (char *)b->data + r * b->ld, (size_t)b->cols);
    char *scales = (char *)w->data + (b->rows * b->cols + 255) / 256 * 256;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t c = 0; c < s->cols; c++)
            dgi_store_f32(scales, s->dtype, r * s->cols + c, dgi_scale_at(s, r, c), DG_SATURATE);
    return DG_OK;
}

dg_status dgi_cpu_weights_unpack(dg_context *context, const dg_weights *w, const dg_matrix *b,
                                 const dg_scale *s, void *stream)
{
    (void)context, (void)stream;
    for (int64_t r = 0; r < b->rows; r++)
        memcpy((char *)b->data + r * b->ld, (char *)w->data + r * b->cols, (size_t)b->cols);
    char *scales = (char *)w->data + (b->rows * b->cols + 255) / 256 * 256;
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t c = 0; c < s->cols; c++)
            dgi_store_f32(s->data, s->dtype, r * s->row_stride + c * s->col_stride,
                          dgi_load_f32(scales, s->dtype, r * s->cols + c), DG_SATURATE);
    return DG_OK;
}
