/* SPDX-License-Identifier: MIT */
/*
 * Packed weights: B as panels (the layout in kernel.h), each of its scale blocks along K padded to
 * whole lines, then the scales in their own type, transposed so that a panel's lie together.
 */
#include "core/formats.h"
#include "cpu/cpu.h"

/* No scale changes along K because of A when weights are packed. */
static const dg_scale no_scale = {.dtype = DG_NONE};

static int64_t scales_offset(const dg_matrix *b, const dg_scale *scale)
{
    return dgi_ceil_div(b->rows, DGI_PANEL) * dgi_packed_lines(b->cols, scale) * DGI_LINE_BYTES;
}

dg_status dgi_cpu_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                size_t *bytes)
{
    (void)context;
    *bytes = (size_t)scales_offset(b, scale_b) +
             (size_t)(scale_b->rows * scale_b->cols) * dg_dtype_bytes(scale_b->dtype);
    return DG_OK;
}

dg_scale dgi_cpu_packed_scale(const dg_weights *weights)
{
    dg_scale scale = weights->scale;
    scale.data = (char *)weights->data + scales_offset(&weights->b, &scale);
    scale.row_stride = 1;
    scale.col_stride = scale.rows;
    return scale;
}

static void copy_scales(const dg_scale *from, const dg_scale *to)
{
    size_t bytes = dg_dtype_bytes(from->dtype);
    for (int64_t c = 0; c < from->cols; c++)
        for (int64_t r = 0; r < from->rows; r++)
            memcpy((char *)to->data + (r * to->row_stride + c * to->col_stride) * (int64_t)bytes,
                   (char *)from->data +
                       (r * from->row_stride + c * from->col_stride) * (int64_t)bytes,
                   bytes);
}

dg_status dgi_cpu_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                               dg_weights *weights, void *stream)
{
    (void)stream;
    const dgi_cpu *cpu = context->state;
    const int64_t panels = dgi_ceil_div(b->rows, DGI_PANEL);
    const int64_t lines = dgi_packed_lines(b->cols, scale_b);
#pragma omp parallel for num_threads(cpu->threads)
    for (int64_t p = 0; p < panels; p++) {
        const uint8_t *codes = (const uint8_t *)b->data + p * DGI_PANEL * b->ld;
        int64_t rows = b->rows - p * DGI_PANEL < DGI_PANEL ? b->rows - p * DGI_PANEL : DGI_PANEL;
        dgi_k_walk walk = dgi_k_begin(b->cols, &no_scale, scale_b);
        for (dgi_k_block block; dgi_k_next(&walk, &block);)
            for (int i = 0; i < block.count; i++) {
                const dgi_k_segment *s = &block.segments[i];
                int64_t stride, at = dgi_packed_offset(panels, lines, p, s->packed_line, &stride);
                cpu->kernel->pack(codes + s->k, b->ld, rows, s->length,
                                  (uint8_t *)weights->data + at, stride);
            }
    }
    dg_scale packed = dgi_cpu_packed_scale(weights);
    copy_scales(scale_b, &packed);
    return DG_OK;
}

void dgi_cpu_unpack(const uint8_t *lines, int64_t stride, int64_t first, int64_t length,
                    int64_t rows, uint8_t *codes, int64_t ld)
{
    for (int64_t i = 0; i < length; i++) {
        int64_t k = first + i;
        const uint8_t *line = lines + k / DGI_QUAD * stride;
        int64_t place = 8 * (k % DGI_QUAD / 2) + k % 2;
        for (int64_t n = 0; n < rows; n++)
            codes[n * ld + i] = line[16 * (n / 4) + 2 * (n % 4) + place];
    }
}

dg_status dgi_cpu_weights_unpack(dg_context *context, const dg_weights *weights, const dg_matrix *b,
                                 const dg_scale *scale_b, void *stream)
{
    (void)stream;
    const dgi_cpu *cpu = context->state;
    const int64_t panels = dgi_ceil_div(b->rows, DGI_PANEL);
    const int64_t lines = dgi_packed_lines(b->cols, scale_b);
#pragma omp parallel for num_threads(cpu->threads)
    for (int64_t p = 0; p < panels; p++) {
        uint8_t *codes = (uint8_t *)b->data + p * DGI_PANEL * b->ld;
        int64_t rows = b->rows - p * DGI_PANEL < DGI_PANEL ? b->rows - p * DGI_PANEL : DGI_PANEL;
        dgi_k_walk walk = dgi_k_begin(b->cols, &no_scale, scale_b);
        for (dgi_k_block block; dgi_k_next(&walk, &block);)
            for (int i = 0; i < block.count; i++) {
                const dgi_k_segment *s = &block.segments[i];
                int64_t stride, at = dgi_packed_offset(panels, lines, p, s->packed_line, &stride);
                dgi_cpu_unpack((const uint8_t *)weights->data + at, stride, 0, s->length, rows,
                               codes + s->k, b->ld);
            }
    }
    dg_scale packed = dgi_cpu_packed_scale(weights);
    copy_scales(&packed, scale_b);
    return DG_OK;
}
