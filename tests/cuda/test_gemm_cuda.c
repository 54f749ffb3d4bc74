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
#include <string.h>

static void need_gpu(void)
{
    if (test_device() == DG_CPU)
        skip();
}

/* Right, and the same bits on a second run, with packed weights. */
static void check(dg_context *context, rng *r, const dg_gemm *shape)
{
    gemm_case *c = gemm_case_new(r, shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    void *first = gemm_case_copy_d(c);
    assert_ok(gemm_case_run_packed(c, context));
    if (memcmp(first, c->d.data, c->d.bytes) != 0)
        fail_msg("packed weights give other bits: %s", gemm_text(&c->gemm));
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
            check(context, &r, &g);
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
            dg_gemm g = gemm_random(&r, test_rounds(600, 900));
            dgi_sm90_plan plan;
            g.a.dtype = kernel->a;
            g.b.dtype = kernel->b;
            if (kernel->promote_k == 0)
                g.accumulation = DG_ACCUMULATE_FAST;
            if (g.d.rows == 0 || g.d.cols == 0 || dgi_sm90_plan_with(&g, 132, i, &plan) != DG_OK)
                continue;
            check(context, &r, &g);
            runs++;
        }
        print_message("%s: %d problems\n", kernel->name, runs);
        assert_true(runs > 0);
        dg_destroy(context);
    }
}

/* A problem of any recipe that the kernel takes, with that N. */
static dg_gemm problem_for(const dgi_sm90_kernel *kernel, rng *r, int64_t n)
{
    for (int attempt = 0; attempt < 1000; attempt++) {
        dg_gemm g = gemm_of(&recipes[rng_range(r, 0, recipe_count - 1)], rng_range(r, 1, 300), n,
                            rng_range(r, 1, 1000), DG_BF16);
        g.a.dtype = kernel->a;
        g.b.dtype = kernel->b;
        if (kernel->promote_k == 0)
            g.accumulation = DG_ACCUMULATE_FAST;
        if (dgi_sm90_can_run(kernel, &g))
            return g;
    }
    fail_msg("%s takes no recipe", kernel->name);
    return (dg_gemm){0};
}

/* Packed rows end at a multiple of 64, wherever a tile does: N around the ends of both. */
static void packed_weights_end_anywhere(void **state)
{
    (void)state;
    need_gpu();
    rng r = rng_new(3);
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[i];
        const int64_t tile = kernel->tile_n;
        const int64_t sizes[] = {1, 63, 65, 129, 200, tile - 1, tile + 1, 2 * tile + 1, 4 * tile};
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.kernel = kernel->name;
        dg_context *context = test_context(&options);
        for (int64_t j = rng_range(&r, 0, test_rounds(0, 3));
             j < (int64_t)(sizeof sizes / sizeof sizes[0]); j += test_rounds(1, 4)) {
            dg_gemm g = problem_for(kernel, &r, sizes[j]);
            check(context, &r, &g);
        }
        dg_destroy(context);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recipes_and_shapes),
        cmocka_unit_test(every_kernel),
        cmocka_unit_test(packed_weights_end_anywhere),
    };
    return test_run(argc, argv, tests);
}
