/* SPDX-License-Identifier: MIT */
/* What the micro-kernels read, brought into the form that they want. See operands.h. */
#include "cpu/operands.h"

#include "core/formats.h"
#include "cpu/cpu.h"

void dgi_cpu_decode_rows(const dgi_cpu_job *job, int64_t first, int64_t last)
{
    const dg_matrix *a = &job->gemm->a;
    const dg_scale *scale = &job->gemm->scale_a;
    const int64_t bytes = job->kernel->element_bytes;
    float *scale_a = job->scale_a;
    dgi_k_walk walk = dgi_k_begin(a->cols, scale, &job->scale_b);
    for (dgi_k_block block; dgi_k_next(&walk, &block);) {
        for (int64_t r = first; r < last; r++) {
            int64_t row = job->first_row + r;
            if (job->gather != NULL)
                row = job->gather[row];
            const uint8_t *codes = (const uint8_t *)a->data + row * a->ld;
            char *out = job->a + (block.position * job->rows + r * block.depth) * bytes;
            int64_t scale_row = dgi_scale_index(row, scale->block_rows, scale->row_phase);
            const uint8_t *next = codes + block.segments[0].k + DGI_DEPTH;
            for (int byte = 0; byte < DGI_DEPTH; byte += DGI_LINE_BYTES)
                __builtin_prefetch(next + byte);
            for (int i = 0; i < block.count; i++) {
                const dgi_k_segment *s = &block.segments[i];
                job->kernel->decode_a(codes + s->k, a->dtype, s->length, out);
                out += s->quads * DGI_QUAD * bytes;
                scale_a[i * job->rows + r] = dgi_scale_at(scale, scale_row, s->scale_a);
            }
        }
        scale_a += block.count * job->rows;
    }
}

void dgi_cpu_spread_scales(const dg_scale *scale, int64_t first, int64_t last, int64_t column,
                           float *out)
{
    const int64_t count = last - first, block = scale->block_rows == 0 ? last : scale->block_rows;
    int64_t row = dgi_scale_index(first, scale->block_rows, scale->row_phase);
    if (block == 1 && scale->row_stride == 1) { /* as in packed weights */
        const int64_t at = row + column * scale->col_stride;
        if (scale->dtype == DG_F32)
            memcpy(out, (const char *)scale->data + at * (int64_t)sizeof *out,
                   (size_t)count * sizeof *out);
        else
            for (int64_t n = 0; n < count; n++)
                out[n] = dgi_f32_from_ue8m0(((const uint8_t *)scale->data)[at + n]);
        return;
    }
    int64_t end = (row + 1) * block - scale->row_phase - first;
    for (int64_t n = 0; n < count; row++, end += block) {
        const float value = dgi_scale_at(scale, row, column);
        const int64_t stop = end < count ? end : count;
        for (; n < stop; n++)
            out[n] = value;
    }
}

/* With small blocks and scales for each row these are an eighth of all bytes. */
void dgi_cpu_prefetch_scales(const dg_scale *scale, int64_t first, int64_t last,
                             const dgi_k_block *block)
{
    const int64_t bytes = (int64_t)dg_dtype_bytes(scale->dtype);
    if (scale->block_rows != 1 || scale->row_stride != 1)
        return;
    for (int i = 0; i < block->count; i++) {
        const char *from = (const char *)scale->data +
                           (first + block->segments[i].scale_b * scale->col_stride) * bytes;
        for (int64_t byte = 0; byte < (last - first) * bytes; byte += DGI_LINE_BYTES)
            __builtin_prefetch(from + byte);
    }
}

static const uint8_t *packed_line(const dgi_cpu_job *job, int64_t panel,
                                  const dgi_k_segment *segment, int64_t *stride)
{
    return job->b +
           dgi_packed_offset(job->plan.panels, job->lines, panel, segment->packed_line, stride);
}

dgi_cpu_stripes dgi_cpu_stripes_of(const dgi_cpu_job *job, int64_t panel, int32_t panels,
                                   const dgi_k_block *block)
{
    const dgi_k_segment *first = &block->segments[0];
    dgi_cpu_stripes s = {.count = 0};
    if (panels == 0)
        return s;
    if (job->packed) {
        s.from = packed_line(job, panel, first, &s.stride);
        s.count = block->depth / DGI_QUAD;
        s.bytes = panels * DGI_LINE_BYTES;
    } else {
        int64_t row = panel * DGI_PANEL, left = job->plan.n - row;
        s.from = job->b + row * job->ldb + first->k;
        s.stride = job->ldb;
        s.count = left < panels * DGI_PANEL ? left : panels * DGI_PANEL;
        s.bytes = block->depth;
    }
    return s;
}

void dgi_cpu_prefetch(const dgi_cpu_stripes *s, int64_t shares, int64_t index)
{
    const int64_t end = dgi_share(s->count, shares, index + 1);
    for (int64_t i = dgi_share(s->count, shares, index); i < end; i++)
        for (int64_t byte = 0; byte < s->bytes; byte += DGI_LINE_BYTES)
            __builtin_prefetch(s->from + i * s->stride + byte);
}

static bool is_whole(const dgi_k_block *block)
{
    for (int i = 0; i < block->count; i++)
        if (!block->segments[i].whole)
            return false;
    return true;
}

/* Packs one block of K of `panels` panels into `lines`, a quad's lines side by side. */
static void pack(const dgi_cpu_job *job, int64_t panel, int32_t panels, const dgi_k_block *block,
                 uint8_t *lines)
{
    const int64_t stride = panels * DGI_LINE_BYTES;
    for (int32_t p = 0; p < panels; p++) {
        int64_t row = (panel + p) * DGI_PANEL;
        int64_t rows = job->plan.n - row < DGI_PANEL ? job->plan.n - row : DGI_PANEL;
        uint8_t *to = lines + p * DGI_LINE_BYTES;
        for (int i = 0; i < block->count; i++) {
            const dgi_k_segment *s = &block->segments[i];
            uint8_t unpacked[DGI_PANEL * DGI_DEPTH];
            const uint8_t *from = unpacked;
            int64_t ld = DGI_DEPTH;
            if (job->packed) {
                int64_t packed_stride;
                const uint8_t *packed = packed_line(job, panel + p, s, &packed_stride);
                dgi_cpu_unpack(packed, packed_stride, s->packed_skip, s->length, rows, unpacked,
                               ld);
            } else {
                from = job->b + row * job->ldb + s->k;
                ld = job->ldb;
            }
            job->kernel->pack(from, ld, rows, s->length, to, stride);
            to += s->quads * stride;
        }
    }
}

const uint8_t *dgi_cpu_fetch(const dgi_cpu_job *job, int64_t panel, int32_t panels,
                             const dgi_k_block *block, uint8_t *lines, int64_t *stride)
{
    if (job->packed && is_whole(block))
        return packed_line(job, panel, &block->segments[0], stride);
    pack(job, panel, panels, block, lines);
    *stride = panels * DGI_LINE_BYTES;
    return lines;
}
