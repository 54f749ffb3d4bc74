/* SPDX-License-Identifier: MIT */
/*
 * What a server does: lay the weights of a layer out once, then multiply batches of any size with
 * them, each token's activations quantised on the way, and get BF16 results with a bias.
 *
 *     cc weights.c $(pkg-config --cflags --libs deepgemm) -lm && ./a.out
 */
#include <deepgemm.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 300, K = 576, MOST_TOKENS = 64 }; /* no multiple of anything is needed */

static void check(dg_status status)
{
    if (status == DG_OK)
        return;
    fprintf(stderr, "%s: %s\n", dg_status_name(status), dg_last_error());
    exit(1);
}

static void fill(float *values, int count)
{
    for (int i = 0; i < count; i++)
        values[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
}

/* A layer: its weights, laid out for the device, and its bias. */
typedef struct layer {
    dg_weights *weights;
    float bias[N];
} layer;

/* Quantises the weights with a scale for each output feature, and packs them. */
static void layer_load(layer *l, dg_context *context)
{
    static float weights[N * K];
    static uint8_t codes[N * K];
    static float scales[N];
    fill(weights, N * K);
    fill(l->bias, N);
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(weights, DG_F32, N, K);
    q.output = dg_matrix_of(codes, DG_E4M3, N, K);
    q.scale = dg_scale_of(scales, DG_F32, N, K, 1, 0);
    check(dg_quantize_run(context, &q, NULL));
    /* The codes and scales may be released after this call. */
    check(dg_weights_pack(context, &q.output, &q.scale, NULL, 0, NULL, &l->weights));
}

/* y[tokens, N] = x[tokens, K] W^T + bias */
static void layer_run(layer *l, dg_context *context, float *x, int tokens, uint16_t *y)
{
    static uint8_t codes[MOST_TOKENS * K];
    static float scales[MOST_TOKENS];
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(x, DG_F32, tokens, K);
    q.output = dg_matrix_of(codes, DG_E4M3, tokens, K);
    q.scale = dg_scale_of(scales, DG_F32, tokens, K, 1, 0);
    check(dg_quantize_run(context, &q, NULL));

    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = q.output;
    gemm.scale_a = q.scale;
    gemm.weights = l->weights;
    gemm.bias = dg_matrix_of(l->bias, DG_F32, 1, N);
    gemm.d = dg_matrix_of(y, DG_BF16, tokens, N);
    check(dg_gemm_run(context, &gemm, NULL));
}

int main(void)
{
    dg_context *context;
    check(dg_create(&context, DG_CPU, NULL));
    layer l;
    layer_load(&l, context);

    static float x[MOST_TOKENS * K];
    static uint16_t batch[MOST_TOKENS * N], single[N];
    fill(x, MOST_TOKENS * K);
    layer_run(&l, context, x, MOST_TOKENS, batch);

    /* A token alone gets the same bits as in a batch. */
    int different = 0;
    for (int token = 0; token < MOST_TOKENS; token++) {
        layer_run(&l, context, x + token * K, 1, single);
        different += memcmp(single, batch + token * N, sizeof single) != 0;
    }
    printf("%d tokens alone and in a batch: %d differ\n", MOST_TOKENS, different);
    dg_weights_destroy(l.weights);
    dg_destroy(context);
    return different == 0 ? 0 : 1;
}
