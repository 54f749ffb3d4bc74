/* SPDX-License-Identifier: MIT */
/* Checking a product before it is timed: sampled elements against sums in double precision. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>

bench_samples bench_samples_new(const bench_case *item)
{
    bench_samples s = {.k = item->k};
    for (int i = 0; i < bench_sample_count; i++) { /* first, last, and evenly between */
        s.rows[i] = i * (item->m - 1) / (bench_sample_count - 1);
        s.cols[i] = i * (item->n - 1) / (bench_sample_count - 1);
    }
    s.a = cli_alloc((size_t)(bench_sample_count * item->k) * sizeof(double));
    s.b = cli_alloc((size_t)(bench_sample_count * item->k) * sizeof(double));
    return s;
}

void bench_samples_free(bench_samples *s)
{
    free(s->a);
    free(s->b);
}

void bench_sample_values(double *out, const float *const rows[], int64_t k)
{
    for (int i = 0; i < bench_sample_count; i++)
        for (int64_t c = 0; c < k; c++)
            out[i * k + c] = rows[i][c];
}

void bench_sample_codes(double *out, const void *const codes[], dg_dtype type,
                        const dg_scale *scale, const int64_t *rows, int64_t k)
{
    float *row = cli_alloc((size_t)k * sizeof *row);
    for (int i = 0; i < bench_sample_count; i++) {
        cli_check(dg_convert(codes[i], type, row, DG_F32, k, DG_SATURATE), "decoding");
        int64_t scale_row = scale->block_rows == 0 ? 0 : rows[i] / scale->block_rows;
        for (int64_t c = 0; c < k; c++) {
            int64_t scale_col = scale->block_cols == 0 ? 0 : c / scale->block_cols;
            int64_t at = scale_row * scale->row_stride + scale_col * scale->col_stride;
            float factor;
            cli_check(
                dg_convert((const char *)scale->data + (size_t)at * dg_dtype_bytes(scale->dtype),
                           scale->dtype, &factor, DG_F32, 1, DG_SATURATE),
                "decoding a scale");
            out[i * k + c] = (double)factor * row[c];
        }
    }
    free(row);
}

void bench_check_result(const char *who, const bench_samples *s, const void *const d[],
                        dg_dtype type, double tolerance)
{
    const double half_unit = type == DG_F32 ? 0x1p-24 : type == DG_F16 ? 0x1p-11 : 0x1p-8;
    for (int i = 0; i < bench_sample_count; i++)
        for (int j = 0; j < bench_sample_count; j++) {
            double sum = 0, magnitude = 0;
            for (int64_t c = 0; c < s->k; c++) {
                double product = s->a[i * s->k + c] * s->b[j * s->k + c];
                sum += product;
                magnitude += fabs(product);
            }
            float value;
            const char *at = (const char *)d[i] + (size_t)s->cols[j] * dg_dtype_bytes(type);
            cli_check(dg_convert(at, type, &value, DG_F32, 1, DG_SATURATE), "reading a result");
            if (!(fabs(value - sum) <= tolerance * magnitude + half_unit * fabs(sum)))
                cli_die("%s is wrong: D[%lld, %lld] is %g, not %g", who, (long long)s->rows[i],
                        (long long)s->cols[j], value, sum);
        }
}
