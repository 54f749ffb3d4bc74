/* SPDX-License-Identifier: MIT */
/* The planner of groups with few rows, and how their tiles are dealt to the clusters. */
#include "core/grouped_schedule.h"
#include "core/plan_grouped_few_sm90.h"
#include "core/tile_order.h"
#include "cuda/device/grouped_few_args.h"
#include "gemm_case.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 132, MOST = 40 };

static int32_t ceil_div(int64_t size, int64_t step)
{
    return (int32_t)((size + step - 1) / step);
}

/* As unit_search of the kernel does it: which tile of which group a cluster computes. */
static int32_t walk(const dgi_product_size *sizes, int32_t count, int32_t tokens, int32_t cluster,
                    int32_t clusters, char *const *seen)
{
    int32_t group = 0, before = 0, done = 0;
    for (int32_t next = cluster;; next += clusters, done++) {
        const int32_t cols = ceil_div(sizes[0].n, DGI_DECODE_ROWS);
        while (group < count && before + dgi_tile_rows(sizes[group].m, tokens) * cols <= next)
            before += dgi_tile_rows(sizes[group++].m, tokens) * cols;
        if (group == count)
            return done;
        const int32_t rows = dgi_tile_rows(sizes[group].m, tokens);
        const dgi_tile tile = dgi_tile_at(next - before, rows, cols, rows);
        assert_in_range(tile.row, 0, rows - 1);
        assert_in_range(tile.col, 0, cols - 1);
        assert_int_equal(seen[group][tile.row * cols + tile.col]++, 0);
    }
}

/* Each tile of 10,000 random calls once, no cluster with more than one more than another, and the
 * balance that the explanation gives. */
static void each_tile_once(void **state)
{
    (void)state;
    rng r = rng_new(1);
    for (int i = 0; i < 10000; i++) {
        const int32_t index = (int32_t)rng_range(&r, 0, dgi_grouped_few_kernel_count - 1);
        const int32_t tokens = dgi_grouped_few_kernels[index].tokens;
        const int32_t count = (int32_t)rng_range(&r, 1, MOST), n = (int32_t)rng_range(&r, 1, 3000);
        const dgi_decode_plan plan = {.kernel = index,
                                      .tiles = ceil_div(n, DGI_DECODE_ROWS),
                                      .split = 1 << rng_range(&r, 0, 3),
                                      .clusters = (int32_t)rng_range(&r, 1, 264)};
        dgi_product_size sizes[MOST];
        char *seen[MOST];
        int32_t all = 0, most = 0, fewest = INT32_MAX, sum = 0;
        for (int32_t j = 0; j < count; j++) {
            const int32_t rows = rng_chance(&r, 0.3) ? 0 : (int32_t)rng_range(&r, 1, 150);
            const int32_t tiles = dgi_tile_rows(rows, tokens) * plan.tiles;
            sizes[j] = (dgi_product_size){rows, n, 512};
            seen[j] = calloc((size_t)tiles + 1, 1);
            assert_non_null(seen[j]);
            all += tiles;
        }
        for (int32_t c = 0; c < plan.clusters; c++) {
            const int32_t tiles = walk(sizes, count, tokens, c, plan.clusters, seen);
            most = tiles > most ? tiles : most;
            fewest = tiles < fewest ? tiles : fewest;
            sum += tiles;
        }
        assert_int_equal(sum, all);
        assert_true(most - fewest <= 1);
        char text[200];
        double busiest = 0, idlest = 0;
        FILE *out = fmemopen(text, sizeof text, "w");
        assert_non_null(out);
        dgi_grouped_few_explain_balance(&plan, sizes, count, out);
        fclose(out);
        assert_int_equal(sscanf(strstr(text, "balance"), "balance %lf %lf", &busiest, &idlest), 2);
        const double mean = all > 0 ? (double)all / plan.clusters : 1.0;
        assert_float_equal(busiest, most / mean, 0.001);
        assert_float_equal(idlest, fewest / mean, 0.001);
        for (int32_t j = 0; j < count; j++)
            free(seen[j]);
    }
}

static dgi_typical typical_of(const char *recipe, int64_t products, int64_t rows, int64_t n,
                              int64_t k)
{
    const dg_gemm gemm = gemm_of(recipe_named(recipe), products * rows, n, k, DG_BF16);
    return (dgi_typical){gemm, products, rows, 0.3};
}

static void kernels_fit_shared_memory(void **state)
{
    (void)state;
    for (int32_t i = 0; i < dgi_grouped_few_kernel_count; i++) {
        const dgi_decode_kernel *k = &dgi_grouped_few_kernels[i];
        const int bytes = DGI_GROUPED_FEW_SHARED_BYTES(k->tokens, k->stages, k->scale_k);
        assert_in_range(bytes, 1, k->tokens > 64 ? DGI_SHARED_LIMIT : DGI_SHARED_HALF);
        assert_int_equal(k->tokens % DGI_FEW_BOX, 0);
    }
}

/* All CTAs of a plan run at the same time, all of them share K, and split it only where they may.
 */
static void plans(void **state)
{
    (void)state;
    rng r = rng_new(2);
    for (int i = 0; i < 2000; i++) {
        const dgi_typical t =
            typical_of(rng_chance(&r, 0.5) ? "block128" : "token_channel", rng_range(&r, 1, 256),
                       rng_range(&r, 1, 100), rng_range(&r, 1, 8000), rng_range(&r, 0, 8000));
        const bool may_split = rng_chance(&r, 0.7);
        dgi_decode_plan plan;
        assert_true(dgi_grouped_few_choose(&t, UNITS, may_split, &plan));
        assert_in_range(plan.split, 1, 8);
        assert_int_equal(plan.split & (plan.split - 1), 0);
        assert_true(may_split || plan.split == 1);
        assert_true(plan.split == 1 || plan.split <= ceil_div(t.gemm.a.cols, 128));
        assert_in_range(plan.clusters * plan.split, 1, 2 * UNITS);
        assert_int_equal(plan.tiles, ceil_div(t.gemm.d.cols, DGI_DECODE_ROWS));
        assert_true(plan.cycles > 0);
    }
}

/*
 * Microseconds on an H200, 1x128 . 128x128, row-major weights: the kernels for many rows, and those
 * of 32 rows with K split 1, 2, 4 and 8 ways (0: not measured). What is chosen is within 2 % of the
 * best, with a per cent for the times themselves.
 */
static void what_is_fast_is_chosen(void **state)
{
    (void)state;
    static const struct {
        int64_t products, rows, n, k;
        double many, few[4];
    } cases[] = {
        {32, 20, 6144, 7168, 340.5, {336.9, 336.3, 340.0, 349.5}},
        {32, 20, 7168, 3072, 177.9, {173.8, 176.0, 184.7}},
        {32, 20, 4096, 4096, 139.0, {133.7, 135.3, 137.7}},
        {32, 20, 4096, 2048, 72.6, {70.5, 72.2, 78.2, 110.0}},
        {6, 20, 6144, 7168, 79.2, {90.6, 79.4, 69.3, 71.7}},
        {6, 20, 7168, 3072, 41.6, {45.6, 39.6, 40.4}},
        {6, 20, 4096, 4096, 32.6, {35.4, 33.6, 33.4}},
        {6, 20, 4096, 2048, 19.8, {19.5, 20.8, 21.6, 24.5}},
        {32, 64, 6144, 7168, 363.9, {0}}, /* 558 and more */
        {32, 64, 4096, 2048, 83.1, {0}},  /* 101 and more */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dgi_typical t =
            typical_of("block128", cases[i].products, cases[i].rows, cases[i].n, cases[i].k);
        int32_t many;
        dgi_decode_plan plan;
        assert_ok(dgi_sm90_choose_grouped(&t, UNITS, false, &many));
        assert_true(dgi_grouped_few_choose(&t, UNITS, true, &plan));
        double best = cases[i].many, taken = cases[i].many;
        for (int j = 0; j < 4; j++)
            if (cases[i].few[j] != 0 && cases[i].few[j] < best)
                best = cases[i].few[j];
        if (dgi_grouped_few_is_faster(&plan, &dgi_sm90_grouped_kernels[many], &t, UNITS)) {
            assert_int_equal(dgi_grouped_few_kernels[plan.kernel].tokens, 32);
            taken = cases[i].few[plan.split == 1   ? 0
                                 : plan.split == 2 ? 1
                                 : plan.split == 4 ? 2
                                                   : 3];
            assert_true(taken > 0);
        }
        print_message("%d x ~%d, %d x %d: %.1f us, the best is %.1f\n", (int)cases[i].products,
                      (int)cases[i].rows, (int)cases[i].n, (int)cases[i].k, taken, best);
        assert_true(taken <= 1.03 * best);
    }
}

/* A group's rows are in one tile where they can be, K is split where clusters would have nothing to
 * do, and scales decide how often sums are promoted. */
static void what_is_chosen(void **state)
{
    (void)state;
    static const struct {
        const char *recipe;
        int64_t products, rows, n, k;
        int32_t tokens, scale_k, least_split, most_split;
    } cases[] = {
        {"block128", 32, 20, 6144, 7168, 32, 128, 1, 8},
        {"block128", 6, 20, 6144, 7168, 32, 128, 2, 8},
        {"token_channel", 8, 10, 4096, 4096, 16, 0, 1, 8},
        {"mx", 8, 10, 4096, 4096, 32, 32, 1, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const dgi_typical t =
            typical_of(cases[i].recipe, cases[i].products, cases[i].rows, cases[i].n, cases[i].k);
        dgi_decode_plan plan;
        assert_true(dgi_grouped_few_choose(&t, UNITS, true, &plan));
        assert_int_equal(dgi_grouped_few_kernels[plan.kernel].tokens, cases[i].tokens);
        assert_int_equal(dgi_grouped_few_kernels[plan.kernel].scale_k, cases[i].scale_k);
        assert_in_range(plan.split, cases[i].least_split, cases[i].most_split);
    }
    dgi_typical t = typical_of("block128", 8, 20, 512, 512);
    dgi_decode_plan plan;
    assert_refused(dgi_grouped_few_plan_with(&t, UNITS, true, 0, &plan), DG_UNSUPPORTED_SCALE,
                   "along K");
    t = typical_of("tensor", 100000, 20000, 100000, 512);
    assert_refused(dgi_grouped_few_plan_with(&t, UNITS, true, 0, &plan), DG_UNSUPPORTED_SHAPE,
                   "tiles may be needed");
    t.gemm.a.dtype = DG_F16;
    assert_false(dgi_grouped_few_choose(&t, UNITS, true, &plan));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_tile_once), cmocka_unit_test(kernels_fit_shared_memory),
        cmocka_unit_test(plans),          cmocka_unit_test(what_is_fast_is_chosen),
        cmocka_unit_test(what_is_chosen),
    };
    return test_run(argc, argv, tests);
}
