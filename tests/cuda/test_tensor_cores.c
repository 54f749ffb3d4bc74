/* SPDX-License-Identifier: MIT */
/*
 * support/tensor_cores is what the hardware does: products of random codes of every kind, summed by
 * the kernel that never leaves the tensor cores' own accumulation, have exactly the bits of the
 * model. Run it with --device cuda:0; without a GPU only the model itself is tested.
 */
#include "core/formats.h"
#include "core/plan_sm90.h"
#include "random.h"
#include "tensor_cores.h"
#include "test.h"

#include <stdlib.h>

enum { M = 96, N = 64 };

/* A kernel for these types whose sums are `segment` of K long (0: all of it), or NULL. */
static const char *kernel_with(dg_dtype a, dg_dtype b, int32_t segment)
{
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++)
        if (dgi_sm90_kernels[i].a == a && dgi_sm90_kernels[i].b == b &&
            dgi_sm90_kernels[i].promote_k == segment)
            return dgi_sm90_kernels[i].name;
    return NULL;
}

/* Codes of any size, of normal values, or of positive ones, with some zeros. */
static void fill(rng *r, uint8_t *codes, dg_dtype dtype, int64_t count, int kind)
{
    if (kind == 0)
        rng_fill_codes(r, codes, dtype, count);
    else
        rng_fill_normal(r, codes, dtype, count, 30.0);
    for (int64_t i = 0; i < count; i++)
        codes[i] = rng_chance(r, 0.05) ? 0 : kind == 2 ? codes[i] & 0x7F : codes[i];
}

static void same_bits(rng *r, dg_dtype a_dtype, dg_dtype b_dtype, int64_t k, int kind,
                      const char *kernel, int64_t segment)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.kernel = kernel;
    dg_context *context = test_context(&options);
    struct {
        uint8_t a[M * 512], b[N * 512];
        float d[M * N], one;
    } *p = calloc(1, sizeof *p);
    assert_non_null(p);
    fill(r, p->a, a_dtype, M * k, kind);
    fill(r, p->b, b_dtype, N * k, kind);
    p->one = 1.0f;
    char *device = test_to_device(context, p, sizeof *p);
    const ptrdiff_t moved = device - (char *)p;
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(p->a + moved, a_dtype, M, k);
    g.b = dg_matrix_of(p->b + moved, b_dtype, N, k);
    g.d = dg_matrix_of((char *)p->d + moved, DG_F32, M, N);
    g.scale_a = dg_scale_of((char *)&p->one + moved, DG_F32, M, k, 0, 0);
    g.scale_b = dg_scale_of((char *)&p->one + moved, DG_F32, N, k, 0, 0);
    g.accumulation = DG_ACCUMULATE_FAST;
    assert_ok(dg_gemm_run(context, &g, NULL));
    test_from_device(context, device, p, sizeof *p);

    for (int i = 0; i < M * N; i++) {
        const uint8_t *a = p->a + i / N * k, *b = p->b + i % N * k;
        float modelled = 0.0f; /* sums of segments are added up in FP32 */
        for (int64_t first = 0; first < k; first += segment) {
            const int64_t end = first + segment < k ? first + segment : k;
            double sum = 0.0;
            for (int64_t l = first; l < end; l += 32)
                sum = tensor_core_sum(sum, a + l, a_dtype, b + l, b_dtype,
                                      end - l < 32 ? end - l : 32);
            modelled += (float)sum;
        }
        if (p->d[i] != modelled)
            fail_msg("%s, K = %lld, data %d: D[%d,%d] is %.9g, not %.9g", kernel, (long long)k,
                     kind, i / N, i % N, (double)p->d[i], (double)modelled);
    }
    free(p);
    dg_destroy(context);
}

static void hardware_is_as_modelled(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    static const int64_t depths[] = {7, 32, 64, 128, 512};
    static const dg_dtype types[] = {DG_E4M3, DG_E5M2};
    static const int32_t segments[] = {0, 128, 32};
    rng r = rng_new(1);
    int kernels = 0;
    for (int pair = 0; pair < 4; pair++)
        for (int s = 0; s < 3; s++) {
            const dg_dtype a = types[pair / 2], b = types[pair % 2];
            const char *kernel = kernel_with(a, b, segments[s]);
            kernels += kernel != NULL;
            for (int d = 0; kernel != NULL && d < 5; d++)
                for (int kind = 0; kind < 3; kind++)
                    same_bits(&r, a, b, depths[d], kind, kernel,
                              segments[s] == 0 ? depths[d] : segments[s]);
        }
    assert_true(kernels >= 4);
}

/* What was measured with single products; 0x38 is 1.0, 0x01 is 2^-9, 0x3F is 1.875 in E4M3. */
static void model_keeps_13_bits(void **state)
{
    (void)state;
    const struct {
        uint8_t a[3], b[3];
        double sum, expected;
    } cases[] = {
        {{0x38, 0x08}, {0x38, 0x00}, 0.0, 1.0},
        {{0x38, 0x08}, {0x38, 0x04}, 0.0, 1.0 + 0x1p-13},   /* 2^-6 x 2^-7 stays        */
        {{0x38, 0x08}, {0x38, 0x02}, 0.0, 1.0},             /* 2^-6 x 2^-8 does not     */
        {{0x38, 0x0C}, {0x38, 0x04}, 0.0, 1.0 + 0x1p-13},   /* 1.5 x 2^-13 is cut       */
        {{0x38, 0x8C}, {0x38, 0x04}, 0.0, 1.0 - 0x1p-13},   /* towards zero             */
        {{0x3F, 0x08}, {0x3F, 0x04}, 0.0, 3.515625},        /* the result is cut, too   */
        {{0x38, 0xB8, 0x08}, {0x38, 0x38, 0x02}, 0.0, 0.0}, /* 1 - 1 + 2^-14            */
        {{0x01, 0x08}, {0x78, 0x08}, 0.0, 0.5},             /* 2^-9 counts as 2^-6      */
        {{0x01, 0x0C}, {0x78, 0x10}, 0.0, 0.5 + 0x1p-11},   /* 1.5 x 2^-6 x 2^-5        */
        {{0x08}, {0x04}, 1.0, 1.0 + 0x1p-13},               /* the sum so far takes part */
        {{0x08}, {0x02}, 1.0, 1.0},
        {{0x38}, {0x38}, 0x1p-14, 1.0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double sum = tensor_core_sum(cases[i].sum, cases[i].a, DG_E4M3, cases[i].b, DG_E4M3, 3);
        if (sum != cases[i].expected)
            fail_msg("case %zu gives %.12g, not %.12g", i, sum, cases[i].expected);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_keeps_13_bits),
        cmocka_unit_test(hardware_is_as_modelled),
    };
    return test_run(argc, argv, tests);
}
