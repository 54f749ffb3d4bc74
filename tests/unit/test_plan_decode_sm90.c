/* SPDX-License-Identifier: MIT */
/* The planner for few tokens on Hopper, its kernel table and the layout of packed weights. */
#include "core/packed_sm90.h"
#include "core/plan_decode_sm90.h"
#include "cuda/device/decode_layout.h"
#include "gemm_case.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 132 };

/* Each 16 bytes of B have a place of their own, and together they fill the parts. */
static void packing_fills_the_parts(void **state)
{
    (void)state;
    rng r = rng_new(1);
    for (int round = 0; round < 50; round++) {
        const int64_t rows = rng_range(&r, 1, 500), cols = rng_range(&r, 1, 700);
        const int64_t bytes = dgi_packed_bytes(rows, cols);
        const int64_t all_rows = dgi_packed_padded(rows, 64);
        const int64_t chunks = dgi_packed_padded(cols, 128) / 16;
        assert_true(bytes % 8192 == 0 && bytes < (rows + 64) * (cols + 128));
        char *seen = calloc((size_t)(bytes / 16), 1);
        for (int64_t row = 0; row < all_rows; row++)
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                const int64_t place = dgi_packed_row(row - row % 8, chunk / 8, rows) +
                                      dgi_swizzle((int)(row % 8), (int)(chunk % 8));
                assert_true(place % 16 == 0 && place >= 0 && place < bytes);
                assert_int_equal(seen[place / 16]++, 0);
                /* In its tile a chunk lies where the copy engine would have put it. */
                const int64_t tile = dgi_packed_row(row - row % 128, chunk / 8, rows);
                assert_int_equal(place - tile, dgi_swizzle((int)(row % 128), (int)(chunk % 8)));
            }
        assert_null(memchr(seen, 0, (size_t)(bytes / 16)));
        free(seen);
    }
}

/* Names spell what a kernel is; its shared memory fits; its constants go together. */
static void kernel_table(void **state)
{
    (void)state;
    for (int32_t i = 0; i < dgi_decode_kernel_count; i++) {
        const dgi_decode_kernel *k = &dgi_decode_kernels[i];
        char scales[16] = "precise", name[96];
        if (k->scale_k != 0)
            snprintf(scales, sizeof scales, "scaled%d", k->scale_k);
        snprintf(name, sizeof name, "gemm_%s_%s_decode_%s_%dx128__sm90a", dg_dtype_name(k->a),
                 dg_dtype_name(k->b), scales, k->tokens);
        assert_string_equal(k->name, name);
        assert_int_equal(dgi_decode_find(k->name), i);
        assert_true(DGI_DECODE_SHARED_BYTES(k->tokens, k->stages, k->scale_k) <= DGI_SHARED_LIMIT);
        assert_true(k->stages >= 2);
        assert_true(k->scale_k == 0 || k->scale_k == 32 || k->scale_k == 128);
    }
    assert_int_equal(dgi_decode_find("gemm_of_nobody"), -1);
}

/* Every tile and every part of K is computed once, by CTAs that all run at the same time. */
static void plans_cover_the_work(void **state)
{
    (void)state;
    rng r = rng_new(2);
    int planned = 0;
    for (int round = 0; round < 3000; round++) {
        dg_gemm g = gemm_random(&r, rng_chance(&r, 0.5) ? 3000 : 20000);
        if (g.d.rows > 128 || g.d.rows == 0 || g.d.cols == 0)
            continue;
        const bool may_split = rng_chance(&r, 0.8);
        dgi_decode_plan plan;
        if (!dgi_decode_choose(&g, UNITS, may_split, &plan))
            continue;
        planned++;
        const dgi_decode_kernel *k = &dgi_decode_kernels[plan.kernel];
        assert_true(g.a.dtype == k->a && g.b.dtype == k->b);
        assert_int_equal(plan.token_tiles, (g.d.rows + k->tokens - 1) / k->tokens);
        assert_true(plan.token_tiles == 1 || (k->tokens == 64 && k->scale_k != 32));
        assert_true(plan.split >= 1 && plan.split <= 16);
        assert_int_equal(plan.split & (plan.split - 1), 0);
        assert_true(may_split || plan.split == 1);
        assert_true(plan.clusters >= 1 && plan.clusters <= plan.tiles);
        assert_true(plan.clusters * plan.split <= 2 * UNITS);
        assert_true(g.d.rows <= 64 || plan.clusters * plan.split * plan.token_tiles <= UNITS);
        assert_int_equal(plan.tiles, (g.d.cols + 127) / 128);
        /* Each CTA of a cluster has some of K, where there is any. */
        assert_true(plan.split == 1 || plan.split <= (g.a.cols + 127) / 128);
        /* The same weights are dealt out alike, packed or not. */
        g.b.data = NULL;
        dgi_decode_plan again;
        assert_true(dgi_decode_choose(&g, UNITS, may_split, &again));
        assert_int_equal(plan.kernel, again.kernel);
        assert_int_equal(plan.split, again.split);
    }
    assert_true(planned > 100);
}

/* Every recipe has a kernel, and each number of tokens takes the narrowest that holds it. */
static void every_recipe_runs(void **state)
{
    (void)state;
    for (int i = 0; i < recipe_count; i++)
        for (int64_t m = 1; m <= 64; m++) {
            dg_gemm g = gemm_of(&recipes[i], m, 4096, 7168, DG_BF16);
            dgi_decode_plan plan, other;
            assert_true(dgi_decode_choose(&g, UNITS, true, &plan));
            for (int32_t j = 0; j < dgi_decode_kernel_count; j++)
                if (dgi_decode_plan_with(&g, UNITS, true, j, &other) == DG_OK &&
                    dgi_decode_kernels[j].scale_k == dgi_decode_kernels[plan.kernel].scale_k)
                    assert_true(dgi_decode_kernels[j].tokens >=
                                dgi_decode_kernels[plan.kernel].tokens);
        }
}

/* Measured times of splits, from docs/decode-log.md: the one that is chosen is near the best. */
static void measured_splits(void **state)
{
    (void)state;
    static const struct {
        int64_t n, k, m;
        double us[5]; /* of K in 1, 2, 4, 8, 16 parts; 0: not measured */
    } shapes[] = {
        {576, 7168, 1, {0, 0, 5.02, 3, 2.76}},
        {576, 7168, 32, {0, 0, 6.3, 4.58, 3.24}},
        {576, 7168, 64, {0, 0, 7.37, 5.22, 5.22}},
        {576, 7168, 128, {0, 0, 9.37, 6.7, 6.75}},
        {7168, 2048, 1, {6.3, 4.59, 4.93}},
        {7168, 2048, 32, {7.03, 5.49, 6.19}},
        {7168, 2048, 64, {8.02, 7.56, 7.72}},
        {7168, 2048, 128, {9.69, 9.57, 12.4}},
        {2112, 7168, 1, {0, 9.17, 6.32, 5.55}},
        {2112, 7168, 32, {0, 10.89, 7.33, 7.38}},
        {2112, 7168, 64, {0, 12.45, 8.04, 8.35}},
        {2112, 7168, 128, {0, 15.73, 10.21, 13.09}},
        {32768, 512, 1, {4.85, 7.17}},
        {32768, 512, 32, {6.79, 9.69}},
        {32768, 512, 64, {7.89, 13.73}},
        {32768, 512, 128, {10.77, 22.27}},
        {4096, 7168, 1, {0, 10.01, 9.82, 9.53}},
        {4096, 7168, 32, {0, 11.63, 12.13, 12.02}},
        {4096, 7168, 64, {0, 13.26, 13.85, 14.69}},
        {4096, 7168, 128, {0, 16.15, 21.21, 25.61}},
        {24576, 1536, 1, {9.29, 9.55}},
        {24576, 1536, 32, {11.13, 11.12}},
        {24576, 1536, 64, {12.71, 14.94}},
        {24576, 1536, 128, {16.22, 22.3}},
        {8192, 8192, 1, {19.61, 16.99, 23.85}},
        {8192, 8192, 32, {23.34, 17.32, 20.43}},
        {8192, 8192, 64, {25.36, 18.71, 23.75}},
        {8192, 8192, 128, {28.48, 21.63, 42.61}},
        {7168, 16384, 1, {0, 27.91, 27.41}},
        {7168, 16384, 32, {0, 30.38, 29.58}},
        {7168, 16384, 64, {0, 31.73, 31.28}},
        {7168, 16384, 128, {0, 35.33, 37.38}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const double *us = shapes[i].us;
        dg_gemm g =
            gemm_of(recipe_named("token_channel"), shapes[i].m, shapes[i].n, shapes[i].k, DG_BF16);
        char name[96];
        snprintf(name, sizeof name, "gemm_e4m3_e4m3_decode_precise_%dx128__sm90a",
                 shapes[i].m == 1 ? 8 : (int)shapes[i].m);
        dgi_decode_plan plan;
        assert_int_equal(dgi_decode_plan_with(&g, UNITS, true, dgi_decode_find(name), &plan),
                         DG_OK);
        double best = us[4];
        for (int j = 0; j < 4; j++)
            best = us[j] > 0.0 && (best == 0.0 || us[j] < best) ? us[j] : best;
        const double chosen = us[__builtin_ctz((unsigned)plan.split)];
        if (chosen == 0.0 || chosen > 1.05 * best)
            fail_msg("%lld x %lld at M = %lld: in %d parts", (long long)shapes[i].n,
                     (long long)shapes[i].k, (long long)shapes[i].m, plan.split);
    }
}

/* The same at M = 128 of all that may run: the choice of kernel and split is near the best. */
static void measured_tiles_of_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *recipe;
        int64_t n, k;
        double one;    /* us with one tile of tokens, K split by the planner            */
        double two[4]; /* with two, of K in 1, 2, 4, 8 parts; 0: not possible           */
        double many;   /* of the kernels for many tokens; 0: not measured               */
    } shapes[] = {
        {"token_channel", 576, 7168, 6.26, {19.93, 11.74, 7.25, 5.35}, 0},
        {"block128", 576, 7168, 8.09, {26.25, 14.72, 8.65, 6.05}, 0},
        {"token_channel", 2112, 7168, 9.7, {20.36, 12.59, 11.03, 14.27}, 0},
        {"block128", 2112, 7168, 13.29, {26.46, 14.94, 13.96, 16.85}, 0},
        {"token_channel", 7168, 2048, 8.81, {8.99, 9.41, 11.39, 16.76}, 9.71},
        {"block128", 7168, 2048, 10.59, {9.73, 10.58, 13.32, 19.12}, 10.03},
        {"token_channel", 32768, 512, 10.95, {11.04, 17.1, 41.26}, 9.8},
        {"block128", 32768, 512, 12.59, {12.56, 18.79, 43.67}, 9.46},
        {"token_channel", 4096, 7168, 15.11, {21.3, 14.35, 21.1, 24.54}, 0},
        {"block128", 4096, 7168, 21.3, {26.5, 15.54, 22.86, 27.4}, 0},
        {"token_channel", 24576, 1536, 16.21, {20.14, 20.6, 38.55, 70.11}, 14.4},
        {"block128", 24576, 1536, 21.23, {22.69, 23.64, 45.4, 75.14}, 14.04},
        {"token_channel", 8192, 8192, 21.93, {30.66, 25.82, 41.55, 47.31}, 0},
        {"block128", 8192, 8192, 26.01, {30.67, 29.78, 47.57, 56.22}, 26.1},
        {"token_channel", 7168, 16384, 35.15, {57.05, 48.82, 48, 52.72}, 0},
        {"block128", 7168, 16384, 45.7, {58.44, 53.76, 55.88, 62.31}, 0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        dg_gemm g = gemm_of(recipe_named(shapes[i].recipe), 128, shapes[i].n, shapes[i].k, DG_BF16);
        dgi_decode_plan few;
        dgi_sm90_plan many;
        assert_true(dgi_decode_choose(&g, UNITS, true, &few));
        assert_int_equal(dgi_sm90_choose(&g, UNITS, false, &many), DG_OK);
        double best = shapes[i].many > 0.0 ? fmin(shapes[i].one, shapes[i].many) : shapes[i].one;
        for (int j = 0; j < 4; j++)
            best = shapes[i].two[j] > 0.0 ? fmin(best, shapes[i].two[j]) : best;
        const double chosen = !dgi_decode_is_faster(&few, &many) ? shapes[i].many
                              : few.token_tiles == 1
                                  ? shapes[i].one
                                  : shapes[i].two[__builtin_ctz((unsigned)few.split)];
        if (chosen == 0.0 || chosen > 1.05 * best)
            fail_msg("%s %lld x %lld: few %g cycles, %d tiles of tokens, K in %d parts; many %g",
                     shapes[i].recipe, (long long)shapes[i].n, (long long)shapes[i].k, few.cycles,
                     few.token_tiles, few.split, many.cycles);
    }
}

static void refuse(const dg_gemm *g, const char *kernel, dg_status status, const char *part)
{
    dgi_decode_plan plan;
    assert_refused(dgi_decode_plan_with(g, UNITS, true, dgi_decode_find(kernel), &plan), status,
                   part);
}

static void refusals(void **state)
{
    (void)state;
    dgi_decode_plan plan;
    dg_gemm g = gemm_of(recipe_named("block128"), 16, 256, 512, DG_BF16);
    refuse(&g, "gemm_e4m3_e4m3_decode_scaled128_8x128__sm90a", DG_UNSUPPORTED_SHAPE, "M is 16");
    refuse(&g, "gemm_e4m3_e4m3_decode_precise_16x128__sm90a", DG_UNSUPPORTED_SCALE, "constant");
    refuse(&g, "gemm_e4m3_e5m2_decode_scaled32_32x128__sm90a", DG_UNSUPPORTED_TYPE, "e5m2");
    g.scale_a = scale_of(DG_F32, 16, 512, 1, 48, 0, 0);
    refuse(&g, "gemm_e4m3_e4m3_decode_scaled32_32x128__sm90a", DG_UNSUPPORTED_SCALE, "48");
    assert_false(dgi_decode_choose(&g, UNITS, true, &plan));
    g = gemm_of(recipe_named("tensor"), 16, (int64_t)1 << 31, 16, DG_BF16);
    refuse(&g, "gemm_e4m3_e4m3_decode_precise_16x128__sm90a", DG_UNSUPPORTED_SHAPE, "2147483648");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_fills_the_parts),
        cmocka_unit_test(kernel_table),
        cmocka_unit_test(plans_cover_the_work),
        cmocka_unit_test(every_recipe_runs),
        cmocka_unit_test(measured_splits),
        cmocka_unit_test(measured_tiles_of_tokens),
        cmocka_unit_test(refusals),
    };
    return test_run(argc, argv, tests);
}
