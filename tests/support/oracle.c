/* SPDX-License-Identifier: MIT */
/* The oracle: see oracle.h. */
#include "oracle.h"

#include "core/formats.h"

#include <math.h>
#include <stdlib.h>

double oracle_scale(const dg_scale *scale, int64_t row, int64_t col)
{
    int64_t r = scale->block_rows == 0 ? 0 : (row + scale->row_phase) / scale->block_rows;
    int64_t c = scale->block_cols == 0 ? 0 : (col + scale->col_phase) / scale->block_cols;
    return dgi_load_f32(scale->data, scale->dtype, r * scale->row_stride + c * scale->col_stride);
}

void oracle_dequantize(const dg_matrix *matrix, const dg_scale *scale, double *values)
{
    for (int64_t r = 0; r < matrix->rows; r++)
        for (int64_t c = 0; c < matrix->cols; c++) {
            double code = dgi_load_f32(matrix->data, matrix->dtype, r * matrix->ld + c);
            double factor = scale->dtype == DG_NONE ? 1.0 : oracle_scale(scale, r, c);
            values[r * matrix->cols + c] = factor * code;
        }
}

double oracle_finish(const dg_gemm *g, int64_t row, int64_t col, double sum)
{
    sum *= g->alpha;
    if (g->beta != 0.0f)
        sum += (double)g->beta * dgi_load_f32(g->c.data, g->c.dtype, row * g->c.ld + col);
    if (g->bias.dtype != DG_NONE)
        sum += dgi_load_f32(g->bias.data, g->bias.dtype, col);
    return g->scale_d.dtype == DG_NONE ? sum : sum / oracle_scale(&g->scale_d, row, col);
}

void oracle_gemm(const dg_gemm *g, double *reference, double *magnitude)
{
    double *b = malloc(sizeof(double) * (size_t)(g->d.cols * g->a.cols + 1));
    if (b == NULL)
        abort();
    oracle_dequantize(&g->b, &g->scale_b, b);
    oracle_gemm_of(g, b, reference, magnitude);
    free(b);
}

void oracle_gemm_of(const dg_gemm *g, const double *b, double *reference, double *magnitude)
{
    int64_t m = g->d.rows, n = g->d.cols, k = g->a.cols;
    double *a = malloc(sizeof(double) * (size_t)(m * k + 1));
    if (a == NULL)
        abort();
    oracle_dequantize(&g->a, &g->scale_a, a);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0, absolute = 0.0;
            for (int64_t l = 0; l < k; l++) {
                double product = a[i * k + l] * b[j * k + l];
                sum += product;
                absolute += fabs(product);
            }
            reference[i * n + j] = oracle_finish(g, i, j, sum);
            absolute *= fabs(g->alpha);
            if (g->beta != 0.0f)
                absolute +=
                    fabs((double)g->beta * dgi_load_f32(g->c.data, g->c.dtype, i * g->c.ld + j));
            if (g->bias.dtype != DG_NONE)
                absolute += fabs(dgi_load_f32(g->bias.data, g->bias.dtype, j));
            double scale_d = g->scale_d.dtype == DG_NONE ? 1.0 : oracle_scale(&g->scale_d, i, j);
            magnitude[i * n + j] = absolute / fabs(scale_d);
        }
    free(a);
}

/* Mantissa bits, exponent of the smallest normal number, and largest finite number of a type. */
static const struct {
    int mantissa, lowest;
    double largest;
} types[] = {
    [DG_F32] = {23, -126, 0x1.fffffep127}, [DG_F16] = {10, -14, 65504.0},
    [DG_BF16] = {7, -126, 0x1.fep127},     [DG_E4M3] = {3, -6, 448.0},
    [DG_E5M2] = {2, -14, 57344.0},
};

double oracle_half_ulp(dg_dtype dtype, double value)
{
    int exponent = value == 0.0 ? types[dtype].lowest : ilogb(value);
    if (exponent < types[dtype].lowest)
        exponent = types[dtype].lowest;
    return ldexp(0.5, exponent - types[dtype].mantissa);
}

bool oracle_close(double out, dg_dtype dtype, double reference, double tolerance)
{
    if (isnan(reference) || isnan(out))
        return isnan(reference) && isnan(out);
    double largest = types[dtype].largest;
    if (dgi_is_fp8(dtype)) /* saturates */
        reference = fmin(fmax(reference, -largest), largest);
    if (isinf(out) || isinf(reference)) /* overflow: from half a step past the largest on */
        return isinf(out) && (out > 0.0 ? reference : -reference) + tolerance >=
                                 largest + oracle_half_ulp(dtype, largest);
    return fabs(out - reference) <= tolerance + oracle_half_ulp(dtype, reference);
}
