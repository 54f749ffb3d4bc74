/* SPDX-License-Identifier: MIT */
/*
 * The CUDA backend's GEMM against the oracle, recipe by recipe and kernel by kernel. Run it with
 * --device cuda:0; without a GPU its tests are skipped. (api/test_gemm_random runs any GEMM that
 * the header allows on either backend.)
 */
#include "core/plan_sm90.h"
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>

static void need_gpu(void)
{
    if (test_device() == DG_CPU)
        skip();
}

static void check(dg_context *context, rng *r, const dg_gemm *shape, gemm_case_options options)
{
    gemm_case *c = gemm_case_new(r, shape, options);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    void *first = gemm_case_copy_d(c);
    assert_ok(gemm_case_run(c, context));
    assert_memory_equal(first, c->d.data, c->d.bytes);
    free(first);
    gemm_case_free(c);
}

/* Each recipe over shapes with ragged edges, several tiles, several stages, and none. */
static void recipes_and_shapes(void **state)
{
    (void)state;
    need_gpu();
    static const int64_t shapes[][3] = {
        {1, 1, 1},       {5, 7, 3},       {64, 64, 128},    {128, 128, 512},  {256, 256, 128},
        {257, 129, 192}, {300, 520, 640}, {17, 1000, 1100}, {700, 264, 2000}, {16, 16, 0},
    };
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    for (int i = 0; i < recipe_count; i++)
        for (int j = 0; j < test_rounds(sizeof shapes / sizeof shapes[0], 7); j++) {
            dg_gemm g = gemm_of(&recipes[i], shapes[j][0], shapes[j][1], shapes[j][2], DG_BF16);
            check(context, &r, &g, CASE_PLAIN);
        }
    dg_destroy(context);
}

/* Each kernel of the table by name, on random problems that it accepts. */
static void every_kernel(void **state)
{
    (void)state;
    need_gpu();
    rng r = rng_new(2);
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[i];
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.kernel = kernel->name;
        dg_context *context = test_context(&options);
        int runs = 0;
        for (int attempt = 0; attempt < 3000 && runs < test_rounds(6, 2); attempt++) {
            dg_gemm g = gemm_random(&r, test_rounds(600, 1200));
            dgi_sm90_plan plan;
            g.a.dtype = kernel->a;
            g.b.dtype = kernel->b;
            if (kernel->promote_k == 0)
                g.accumulation = DG_ACCUMULATE_FAST;
            if (g.d.rows == 0 || g.d.cols == 0 || dgi_sm90_plan_with(&g, 132, i, &plan) != DG_OK)
                continue;
            gemm_case *c = gemm_case_new(&r, &g, CASE_PLAIN);
            assert_ok(gemm_case_run(c, context));
            gemm_case_check(c);
            runs++;
            gemm_case_free(c);
        }
        print_message("%s: %d problems\n", kernel->name, runs);
        assert_true(runs > 0);
        dg_destroy(context);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_and_shapes),
        cmocka_unit_test(every_kernel),
    };
    return test_run(argc, argv, tests);
}
