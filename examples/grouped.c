/* SPDX-License-Identifier: MIT */
/*
 * One layer of a mixture of experts. A router gave each token its experts; one grouped call takes
 * the tokens' rows where they are, multiplies each with its expert's weights, and puts the results
 * back in the tokens' order. No token is moved, nothing is padded, and how many tokens each expert
 * got stays in device memory.
 *
 *     cc grouped.c $(pkg-config --cflags --libs deepgemm) -lm && ./a.out
 */
#include <deepgemm.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { EXPERTS = 8, TOKENS = 50, TOP = 2, N = 192, K = 320, ROWS = TOKENS * TOP };

static void check(dg_status status)
{
    if (status == DG_OK)
        return;
    fprintf(stderr, "%s: %s\n", dg_status_name(status), dg_last_error());
    exit(1);
}

/* Random values as E4M3 codes with scales of that granularity. */
static void quantized(dg_context *context, dg_matrix *codes, dg_scale *scale, int32_t block_rows,
                      int32_t block_cols)
{
    const int64_t count = codes->rows * codes->cols;
    float *values = malloc((size_t)count * sizeof *values);
    void *scales = malloc((size_t)count * sizeof *values);
    codes->data = malloc((size_t)count);
    if (values == NULL || scales == NULL || codes->data == NULL)
        exit(1);
    for (int64_t i = 0; i < count; i++)
        values[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
    *scale = dg_scale_of(scales, DG_F32, codes->rows, codes->cols, block_rows, block_cols);
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(values, DG_F32, codes->rows, codes->cols);
    q.output = *codes;
    q.scale = *scale;
    check(dg_quantize_run(context, &q, NULL));
    free(values);
}

int main(void)
{
    dg_context *context;
    check(dg_create(&context, DG_CPU, NULL));

    /* Tokens with a scale for each 128 features; all experts' weights in one [EXPERTS * N, K]. */
    static float d[ROWS * N];
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = dg_matrix_of(NULL, DG_E4M3, TOKENS, K);
    gemm.b = dg_matrix_of(NULL, DG_E4M3, (int64_t)EXPERTS * N, K);
    quantized(context, &gemm.a, &gemm.scale_a, 1, 128);
    quantized(context, &gemm.b, &gemm.scale_b, 1, 128);
    gemm.d = dg_matrix_of(d, DG_F32, ROWS, N);

    /* The router's choice: pair i is token i / TOP with one of its experts. Sorted by expert. */
    int32_t expert[ROWS], pair_of[ROWS], token_of[ROWS], ends[EXPERTS];
    for (int32_t i = 0; i < ROWS; i++)
        expert[i] = (i * 13 + i / 7) % (EXPERTS - 1); /* the last expert gets nothing */
    for (int32_t e = 0, row = 0; e < EXPERTS; e++) {
        for (int32_t i = 0; i < ROWS; i++)
            if (expert[i] == e) {
                pair_of[row] = i;
                token_of[row++] = i / TOP;
            }
        ends[e] = row;
    }

    /* A group's operands: b and scale_b become those of the first expert, strides lead on. */
    gemm.b.rows = gemm.scale_b.rows = N;
    dg_groups groups = dg_groups_of(DG_GROUPS_BY_END, EXPERTS, ends, &gemm);
    groups.rows = ROWS;
    groups.gather = token_of;
    groups.scatter = pair_of;
    check(dg_grouped_run(context, &gemm, &groups, NULL));

    /* Each pair again, alone: on the CPU the same bits. */
    int different = 0;
    for (int32_t i = 0; i < ROWS; i++) {
        static float alone[N];
        dg_gemm one = gemm;
        one.a.data = (uint8_t *)gemm.a.data + i / TOP * gemm.a.ld;
        one.scale_a.data = (float *)gemm.scale_a.data + i / TOP * gemm.scale_a.row_stride;
        one.b.data = (uint8_t *)gemm.b.data + expert[i] * groups.b_stride;
        one.scale_b.data = (float *)gemm.scale_b.data + expert[i] * groups.scale_b_stride;
        one.d.data = alone;
        one.a.rows = one.scale_a.rows = one.d.rows = 1;
        check(dg_gemm_run(context, &one, NULL));
        for (int j = 0; j < N; j++)
            different += alone[j] != d[i * N + j];
    }
    printf("%d tokens, %d experts each, in one call: %d of %d results differ from single ones\n",
           TOKENS, TOP, different, ROWS * N);
    free(gemm.a.data);
    free(gemm.b.data);
    free(gemm.scale_a.data);
    free(gemm.scale_b.data);
    dg_destroy(context);
    return different == 0 ? 0 : 1;
}
