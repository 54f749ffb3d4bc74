/* SPDX-License-Identifier: MIT */
/* Hopper's FP8 sums: see tensor_cores.h. */
#include "tensor_cores.h"

#include "core/formats.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>

enum { KEPT_BITS = 13, AT_ONCE = 32 };

/* The exponent by which a code is aligned: a subnormal counts as the smallest normal number. */
static int exponent_of(uint8_t code, dg_dtype dtype)
{
    const int mantissa = dtype == DG_E4M3 ? 3 : 2, bias = dtype == DG_E4M3 ? 7 : 15;
    const int stored = (code & 0x7F) >> mantissa;
    return (stored == 0 ? 1 : stored) - bias;
}

/* Cut to multiples of `unit`, towards zero. */
static double cut(double value, double unit)
{
    return trunc(value / unit) * unit;
}

/*
 * Every product, and the sum so far, is cut to 13 bits behind the largest exponent among them: the
 * sum of its codes' exponents for a product. They are added exactly, and the result is cut to 13
 * bits behind its own leading one.
 */
double tensor_core_sum(double sum, const uint8_t *a, dg_dtype a_dtype, const uint8_t *b,
                       dg_dtype b_dtype, int64_t count)
{
    double products[AT_ONCE];
    int largest = sum == 0.0 ? INT32_MIN : ilogb(sum);
    for (int64_t i = 0; i < count; i++) {
        products[i] = (double)dgi_f32_from_fp8(a_dtype, a[i]) * dgi_f32_from_fp8(b_dtype, b[i]);
        const int exponent = exponent_of(a[i], a_dtype) + exponent_of(b[i], b_dtype);
        if (products[i] != 0.0 && exponent > largest)
            largest = exponent;
    }
    if (largest == INT32_MIN)
        return 0.0;
    const double unit = ldexp(1.0, largest - KEPT_BITS);
    sum = cut(sum, unit);
    for (int64_t i = 0; i < count; i++)
        sum += cut(products[i], unit);
    return sum == 0.0 ? 0.0 : cut(sum, ldexp(1.0, ilogb(sum) - KEPT_BITS));
}

/* Whether the scale changes along K at multiples of `segment` only. */
static bool constant_in_segments(const dg_scale *s, int64_t segment)
{
    return s->cols <= 1 || (s->block_cols % segment == 0 && s->col_phase % segment == 0);
}

bool tensor_core_gemm(const dg_gemm *g, int64_t segment, double *reference)
{
    const int64_t m = g->d.rows, n = g->d.cols, k = g->a.cols;
    if (!constant_in_segments(&g->scale_a, segment) || !constant_in_segments(&g->scale_b, segment))
        return false;
#pragma omp parallel for
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            const uint8_t *a = (const uint8_t *)g->a.data + i * g->a.ld;
            const uint8_t *b = (const uint8_t *)g->b.data + j * g->b.ld;
            double total = 0.0;
            for (int64_t first = 0; first < k; first += segment) {
                const int64_t end = first + segment < k ? first + segment : k;
                double sum = 0.0;
                for (int64_t l = first; l < end; l += AT_ONCE)
                    sum = tensor_core_sum(sum, a + l, g->a.dtype, b + l, g->b.dtype,
                                          end - l < AT_ONCE ? end - l : AT_ONCE);
                total +=
                    sum * oracle_scale(&g->scale_a, i, first) * oracle_scale(&g->scale_b, j, first);
            }
            reference[i * n + j] = oracle_finish(g, i, j, total);
        }
    return true;
}
