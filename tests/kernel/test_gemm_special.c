/* SPDX-License-Identifier: MIT */
/*
 * NaN, infinities and extreme scales: they reach the results that they belong to and no other, for
 * every instruction set, packed or not, and whatever padding the kernels add.
 */
#include "core/formats.h"
#include "gemm_case.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { M = 9, N = 35 };

typedef struct problem {
    uint8_t a[M * 300], b[N * 300];
    float scale_a[M * 300], scale_b[N * 300], d[M * N];
    dg_gemm gemm;
} problem;

/* All ones: every result is K. */
static problem *ones(dg_dtype type, int64_t k, int32_t a_cols, int32_t b_cols)
{
    const uint8_t one = dgi_fp8_from_f32(type, 1.0f, DG_SATURATE);
    problem *p = malloc(sizeof *p);
    memset(p->a, one, sizeof p->a);
    memset(p->b, one, sizeof p->b);
    for (size_t i = 0; i < sizeof p->scale_a / sizeof p->scale_a[0]; i++)
        p->scale_a[i] = 1.0f;
    for (size_t i = 0; i < sizeof p->scale_b / sizeof p->scale_b[0]; i++)
        p->scale_b[i] = 1.0f;
    p->gemm = (dg_gemm)DG_GEMM_INIT;
    p->gemm.a = dg_matrix_of(p->a, type, M, k);
    p->gemm.b = dg_matrix_of(p->b, type, N, k);
    p->gemm.d = dg_matrix_of(p->d, DG_F32, M, N);
    p->gemm.scale_a = dg_scale_of(p->scale_a, DG_F32, M, k, 1, a_cols);
    p->gemm.scale_b = dg_scale_of(p->scale_b, DG_F32, N, k, 1, b_cols);
    return p;
}

/* Runs the GEMM, whose operands lie in `p`, on the device under test. */
static dg_status run(dg_context *context, problem *p, dg_gemm g, bool packed)
{
    dg_weights *weights = NULL;
    void *device = test_to_device(context, p, sizeof *p);
    const ptrdiff_t moved = (char *)device - (char *)p;
    void **const operands[] = {&g.a.data, &g.b.data, &g.d.data, &g.scale_a.data, &g.scale_b.data};
    for (size_t i = 0; i < sizeof operands / sizeof operands[0]; i++)
        *operands[i] = (char *)*operands[i] + moved;
    dg_status status = DG_OK;
    if (packed) {
        status = dg_weights_pack(context, &g.b, &g.scale_b, NULL, 0, NULL, &weights);
        g.weights = weights;
        g.b = (dg_matrix){0};
        g.scale_b = (dg_scale){0};
    }
    if (status == DG_OK)
        status = dg_gemm_run(context, &g, NULL);
    test_from_device(context, device, p, sizeof *p);
    dg_weights_destroy(weights);
    return status;
}

/* Runs the problem in every way; result (m, n) must be the one that `expected` gives. */
static void check(problem *p, float (*expected)(int64_t m, int64_t n, int64_t k))
{
    const char *const caps[] = {"generic", "avx2", "avx512", "avx512_bf16"};
    const int ways = test_device() == DG_CPU ? 8 : 2;
    for (int way = 0; way < ways; way++) {
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.isa = caps[way / 2];
        dg_context *context = test_context(&options);
        dg_gemm g = p->gemm;
        for (int64_t rows = 1; rows <= M; rows += M - 1) {
            g.a.rows = g.d.rows = g.scale_a.rows = rows;
            memset(p->d, 0x55, sizeof p->d);
            dg_status status = run(context, p, g, way % 2 == 1);
            if (test_device() != DG_CPU &&
                (status == DG_UNSUPPORTED_SCALE || status == DG_UNSUPPORTED_DEVICE))
                continue; /* these blocks, or these weights packed, are not for a GPU */
            assert_status(status, DG_OK);
            for (int64_t i = 0; i < rows * N; i++) {
                float want = expected(i / N, i % N, g.a.cols);
                if (isnan(want) ? !isnan(p->d[i]) : p->d[i] != want)
                    fail_msg("%s, way %d, rows %d: (%d,%d) is %g, not %g", options.isa, way,
                             (int)rows, (int)(i / N), (int)(i % N), (double)p->d[i], (double)want);
            }
        }
        dg_destroy(context);
    }
    free(p);
}

static float nan_in_row_0_and_column_17(int64_t m, int64_t n, int64_t k)
{
    return m == 0 || n == 17 ? NAN : (float)k;
}

static void nan_codes_and_scales(void **state)
{
    (void)state;
    const dg_dtype types[] = {DG_E4M3, DG_E5M2};
    for (int i = 0; i < 2; i++) {
        problem *p = ones(types[i], 129, 32, 0);
        p->a[7] = 0x7F;
        p->b[17 * 129 + 128] = 0xFF;
        check(p, nan_in_row_0_and_column_17);
        p = ones(types[i], 129, 32, 0);
        p->scale_a[3] = NAN;
        p->scale_b[17] = NAN;
        check(p, nan_in_row_0_and_column_17);
    }
}

/* The last element of K, just before the padding, and one next to a change of scale. */
static float infinite_column_34(int64_t m, int64_t n, int64_t k)
{
    (void)m;
    return n == 34 ? -INFINITY : (float)k;
}

static void infinities_beside_padding(void **state)
{
    (void)state;
    const int64_t sizes[] = {1, 2, 3, 5, 6, 7, 129, 131, 257};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        problem *p = ones(DG_E5M2, sizes[i], 0, 0);
        p->b[34 * sizes[i] + sizes[i] - 1] = 0xFC;
        check(p, infinite_column_34);
    }
    for (int32_t block = 1; block <= 7; block++) { /* segments that cut the packed lines */
        problem *p = ones(DG_E5M2, 50, block, 0);
        p->b[34 * 50 + 13] = 0xFC;
        check(p, infinite_column_34);
        p = ones(DG_E5M2, 50, 5, block);
        p->b[34 * 50 + 14] = 0xFC;
        check(p, infinite_column_34);
    }
}

static float nan_at_zero_times_infinity(int64_t m, int64_t n, int64_t k)
{
    if (n != 20)
        return (float)(m == 0 ? k - 1 : k);
    return m == 0 ? NAN : INFINITY;
}

static void zero_times_infinity(void **state)
{
    (void)state;
    problem *p = ones(DG_E5M2, 64, 0, 0);
    p->a[40] = 0;
    p->b[20 * 64 + 40] = 0x7C;
    check(p, nan_at_zero_times_infinity);
}

static float without_the_first_block(int64_t m, int64_t n, int64_t k)
{
    (void)m, (void)n;
    return (float)(k - 32);
}

/*
 * The scale of a block of zeros has no influence, even where the scales' product overflows: on the
 * CPU. A GPU's kernels multiply the two scales first.
 */
static void scales_of_zeros(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    problem *p = ones(DG_E4M3, 96, 32, 32);
    for (int64_t m = 0; m < M; m++) {
        memset(p->a + 96 * m, 0, 32);
        p->scale_a[3 * m] = 3e38f;
    }
    for (int64_t n = 0; n < N; n++)
        p->scale_b[3 * n] = 3e38f;
    check(p, without_the_first_block);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_codes_and_scales),
        cmocka_unit_test(infinities_beside_padding),
        cmocka_unit_test(zero_times_infinity),
        cmocka_unit_test(scales_of_zeros),
    };
    return test_run(argc, argv, tests);
}
