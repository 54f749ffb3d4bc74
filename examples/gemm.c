/* SPDX-License-Identifier: MIT */
/*
 * The shortest way from FP32 data to an FP8 product: quantise both operands, multiply, compare
 * with the FP32 result.
 *
 *     cc gemm.c $(pkg-config --cflags --libs deepgemm) -lm && ./a.out
 */
#include <deepgemm.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the library's message when a call fails. */
static void check(dg_status status)
{
    if (status == DG_OK)
        return;
    fprintf(stderr, "%s: %s\n", dg_status_name(status), dg_last_error());
    exit(1);
}

/* Something like a layer's values: uniform in -1..1. */
static void fill(float *values, int count)
{
    for (int i = 0; i < count; i++)
        values[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

int main(void)
{
    enum { M = 32, N = 256, K = 512 }; /* tokens, output features, input features */
    static float a[M * K], b[N * K], d[M * N];
    static unsigned char a_codes[M * K], b_codes[N * K];
    static float a_scales[M * (K / 128)], b_scales[(N / 128) * (K / 128)];
    fill(a, M * K);
    fill(b, N * K);

    dg_context *context;
    check(dg_create(&context, DG_CPU, NULL));

    /* Activations: a scale for each token and 128 features. */
    dg_quantize activations = DG_QUANTIZE_INIT;
    activations.input = dg_matrix_of(a, DG_F32, M, K);
    activations.output = dg_matrix_of(a_codes, DG_E4M3, M, K);
    activations.scale = dg_scale_of(a_scales, DG_F32, M, K, 1, 128);
    check(dg_quantize_run(context, &activations, NULL));

    /* Weights: a scale for each square of 128 x 128. */
    dg_quantize weights = DG_QUANTIZE_INIT;
    weights.input = dg_matrix_of(b, DG_F32, N, K);
    weights.output = dg_matrix_of(b_codes, DG_E4M3, N, K);
    weights.scale = dg_scale_of(b_scales, DG_F32, N, K, 128, 128);
    check(dg_quantize_run(context, &weights, NULL));

    /* D = A B^T, with the scales applied inside. */
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = activations.output;
    gemm.scale_a = activations.scale;
    gemm.b = weights.output;
    gemm.scale_b = weights.scale;
    gemm.d = dg_matrix_of(d, DG_F32, M, N);
    check(dg_gemm_run(context, &gemm, NULL));

    double error = 0.0, norm = 0.0;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double exact = 0.0;
            for (int k = 0; k < K; k++)
                exact += (double)a[i * K + k] * b[j * K + k];
            error += (d[i * N + j] - exact) * (d[i * N + j] - exact);
            norm += exact * exact;
        }
    double relative = sqrt(error / norm);
    printf("%d x %d x %d in FP8: relative error %.4f against FP32\n", M, N, K, relative);
    dg_destroy(context);
    return relative < 0.05 ? 0 : 1;
}
