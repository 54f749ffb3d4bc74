/* SPDX-License-Identifier: MIT */
/* The memory of operands: see region.h. */
#include "api/region.h"

bool dgi_strided_bytes(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride,
                       size_t element, int64_t *bytes)
{
    int64_t row_part, col_part, elements;
    if (rows == 0 || cols == 0) {
        *bytes = 0;
        return true;
    }
    return !__builtin_mul_overflow(rows - 1, row_stride, &row_part) &&
           !__builtin_mul_overflow(cols - 1, col_stride, &col_part) &&
           !__builtin_add_overflow(row_part, col_part, &elements) &&
           !__builtin_add_overflow(elements, 1, &elements) &&
           !__builtin_mul_overflow(elements, (int64_t)element, bytes);
}

dgi_region dgi_matrix_region(const dg_matrix *m)
{
    if (m->rows == 0 || m->cols == 0 || m->data == NULL)
        return (dgi_region){0, 0, 0, 0};
    int64_t element = (int64_t)dg_dtype_bytes(m->dtype), run_bytes = m->cols * element;
    int64_t pitch = m->rows > 1 ? m->ld * element : run_bytes;
    return (dgi_region){(uintptr_t)m->data, m->rows, run_bytes, pitch};
}

dgi_region dgi_scale_region(const dg_scale *s)
{
    int64_t bytes = 0;
    dgi_strided_bytes(s->rows, s->cols, s->row_stride, s->col_stride, dg_dtype_bytes(s->dtype),
                      &bytes);
    dgi_region r = {(uintptr_t)s->data, bytes == 0 || s->data == NULL ? 0 : 1, bytes, bytes};
    return r;
}

dgi_region dgi_packed_region(const dg_weights *weights)
{
    return (dgi_region){(uintptr_t)weights->data, 1, (int64_t)weights->data_bytes, 0};
}

bool dgi_overlap(dgi_region x, dgi_region y)
{
    if (x.rows == 0 || y.rows == 0)
        return false;
    uintptr_t x_end = x.start + (uintptr_t)((x.rows - 1) * x.pitch + x.run_bytes);
    uintptr_t y_end = y.start + (uintptr_t)((y.rows - 1) * y.pitch + y.run_bytes);
    if (x_end <= y.start || y_end <= x.start)
        return false;
    if (x.pitch != y.pitch || x.rows == 1 || y.rows == 1)
        return true;
    /* Where y's runs lie in the period that begins with a run of x. */
    int64_t offset = (int64_t)(y.start - x.start) % x.pitch;
    if (offset < 0)
        offset += x.pitch;
    return offset < x.run_bytes || offset + y.run_bytes > x.pitch;
}
