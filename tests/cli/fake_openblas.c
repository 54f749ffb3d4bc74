/* SPDX-License-Identifier: MIT */
/*
 * Stands in for OpenBLAS in test_bench.c: sgemv is right, sgemm writes nothing, and the core's name
 * is what the environment forces.
 */
#include <stdlib.h>

void cblas_sgemm(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                 const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc)
{
    (void)order, (void)trans_a, (void)trans_b, (void)m, (void)n, (void)k, (void)alpha, (void)a;
    (void)lda, (void)b, (void)ldb, (void)beta, (void)c, (void)ldc;
}

void cblas_sgemv(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                 const float *x, int incx, float beta, float *y, int incy)
{
    (void)order, (void)trans, (void)beta;
    for (int i = 0; i < m; i++) {
        float sum = 0;
        for (int j = 0; j < n; j++)
            sum += a[(size_t)i * (size_t)lda + (size_t)j] * x[j * incx];
        y[i * incy] = alpha * sum;
    }
}

void openblas_set_num_threads(int threads)
{
    (void)threads;
}

char *openblas_get_config(void)
{
    return "OpenBLAS 1.2.3 FAKE";
}

char *openblas_get_corename(void)
{
    char *forced = getenv("OPENBLAS_CORETYPE");
    return forced != NULL ? forced : "own choice";
}
