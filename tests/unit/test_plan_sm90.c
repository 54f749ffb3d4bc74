/* SPDX-License-Identifier: MIT */
/* The planner for Hopper and its kernel table: everything about GPU kernels that needs no GPU. */
#include "core/plan_decode_sm90.h"
#include "core/plan_sm90.h"
#include "core/swizzle.h"
#include "core/tile_order.h"
#include "cuda/device/decode_layout.h"
#include "cuda/device/gemm_layout.h"
#include "gemm_case.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 132 };

static void every_tile_once(void **state)
{
    (void)state;
    rng r = rng_new(1);
    for (int round = 0; round < 200; round++) {
        int32_t rows = (int32_t)rng_range(&r, 1, 40), cols = (int32_t)rng_range(&r, 1, 40);
        int32_t band = (int32_t)rng_range(&r, 1, 50);
        char *seen = calloc((size_t)(rows * cols), 1);
        for (int32_t i = 0; i < rows * cols; i++) {
            dgi_tile tile = dgi_tile_at(i, rows, cols, band);
            assert_in_range(tile.row, 0, rows - 1);
            assert_in_range(tile.col, 0, cols - 1);
            assert_int_equal(seen[tile.row * cols + tile.col]++, 0);
        }
        free(seen);
    }
}

/* Banks, of 4 bytes, that 16-byte accesses at these eight places meet: all 32 when none conflicts.
 */
static int banks_met(const int place[8])
{
    bool met[32] = {false};
    int count = 0;
    for (int i = 0; i < 8; i++)
        for (int word = 0; word < 4; word++) {
            int bank = (place[i] / 4 + word) % 32;
            count += !met[bank];
            met[bank] = true;
        }
    return count;
}

/* Shared memory serves eight 16-byte accesses at a time: a row's chunks, or eight rows of one. */
static void swizzle_meets_no_bank_twice(void **state)
{
    (void)state;
    bool used[64 * 8] = {false};
    for (int first = 0; first < 64; first += 8)
        for (int i = 0; i < 8; i++) {
            int along_row[8], along_column[8];
            for (int j = 0; j < 8; j++) {
                along_row[j] = dgi_swizzle(first + i, j);
                along_column[j] = dgi_swizzle(first + j, i);
                assert_int_equal(along_row[j] / 128, first + i);
                assert_false(used[along_row[j] / 16]);
                used[along_row[j] / 16] = true;
            }
            assert_int_equal(banks_met(along_row), 32);
            assert_int_equal(banks_met(along_column), 32);
        }
}

/* The same of the kernels for few tokens: written eight tokens of a half at a time, read four
 * tokens with both halves. */
static void decode_panel_meets_no_bank_twice(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++)
        for (int first = 0; first < 16; first += 8) {
            int written[8], read[8];
            for (int j = 0; j < 8; j++) {
                written[j] = dgi_decode_panel(first + j, half);
                read[j] = dgi_decode_panel(first + 4 * half + j / 2, j % 2);
            }
            assert_int_equal(banks_met(written), 32);
            assert_int_equal(banks_met(read), 32);
        }
}

static int shared_bytes(const dgi_sm90_kernel *k, int32_t stages)
{
    return DGI_SHARED_BYTES(k->tile_m, k->tile_n, k->groups, stages, k->promote_k, k->span,
                            k->rows);
}

/* Names spell what a kernel is; its shared memory fits; its constants go together. */
static void kernel_table(void **state)
{
    (void)state;
    for (int32_t i = 0; i < dgi_sm90_kernel_count; i++) {
        const dgi_sm90_kernel *k = &dgi_sm90_kernels[i];
        char begin[64], end[64];
        snprintf(begin, sizeof begin, "gemm_%s_%s_", dg_dtype_name(k->a), dg_dtype_name(k->b));
        snprintf(end, sizeof end, "_%dx%d__sm90a", k->tile_m, k->tile_n);
        const bool of_sweep = strstr(k->name, end) == NULL; /* see the end of kernels_sm90.def */
        if (of_sweep)
            snprintf(end, sizeof end, "_%dx%d_s%d__sm90a", k->tile_m, k->tile_n, k->stages);
        assert_int_equal(strncmp(k->name, begin, strlen(begin)), 0);
        assert_string_equal(k->name + strlen(k->name) - strlen(end), end);
        assert_int_equal(dgi_sm90_find(k->name), i);
        assert_true(shared_bytes(k, k->stages) <= DGI_SHARED_LIMIT);
        if (!of_sweep) /* its pipeline is as deep as memory allows */
            assert_true(shared_bytes(k, k->stages + 1) > DGI_SHARED_LIMIT);
        assert_int_equal(k->tile_m % (64 * k->groups), 0);
        assert_true(k->span == 0 || (k->promote_k > 0 && k->tile_n % k->span == 0));
        assert_true(k->stages >= 2 && k->cycles > 0);
    }
    assert_int_equal(dgi_sm90_find("gemm_of_nobody"), -1);
}

/* The plan covers D with whole tiles, fits the GPU, and no other kernel is predicted faster. */
static void plans_of_random_problems(void **state)
{
    (void)state;
    rng r = rng_new(2);
    int planned = 0;
    for (int round = 0; round < 2000; round++) {
        dg_gemm g = gemm_random(&r, 3000);
        if (g.d.rows == 0 || g.d.cols == 0)
            continue;
        g.accumulation = rng_chance(&r, 0.5) ? DG_ACCUMULATE_FAST : DG_ACCUMULATE_PRECISE;
        dgi_sm90_plan plan, other;
        dg_status status = dgi_sm90_choose(&g, UNITS, false, &plan);
        if (status != DG_OK)
            assert_int_equal(status, DG_UNSUPPORTED_SCALE);
        for (int32_t i = 0; i < dgi_sm90_kernel_count; i++)
            if (dgi_sm90_plan_with(&g, UNITS, i, &other) == DG_OK) {
                assert_int_equal(status, DG_OK);
                assert_true(plan.cycles <= other.cycles);
            }
        if (status != DG_OK)
            continue;
        planned++;
        const dgi_sm90_kernel *k = &dgi_sm90_kernels[plan.kernel];
        int64_t rows = (int64_t)plan.tile_rows * k->tile_m;
        int64_t cols = (int64_t)plan.tile_cols * k->tile_n * k->cluster;
        assert_true(rows >= g.d.rows && rows - g.d.rows < k->tile_m);
        assert_true(cols >= g.d.cols && cols - g.d.cols < k->tile_n * k->cluster);
        assert_true(plan.ctas > 0 && plan.ctas <= UNITS && plan.ctas % k->cluster == 0);
        assert_in_range(plan.band, 1, plan.tile_rows);
        assert_true(k->a == g.a.dtype && k->b == g.b.dtype);
        assert_true(k->promote_k > 0 || g.accumulation == DG_ACCUMULATE_FAST);
    }
    assert_true(planned > 100);
}

/* Every recipe of the design has a kernel, whatever the mix of operand types. */
static void every_recipe_runs(void **state)
{
    (void)state;
    for (int i = 0; i < recipe_count; i++)
        for (int mix = 0; mix < 4; mix++) {
            dg_gemm g = gemm_of(&recipes[i], 2048, 4096, 7168, DG_BF16);
            g.a.dtype = mix & 1 ? DG_E5M2 : DG_E4M3;
            g.b.dtype = mix & 2 ? DG_E5M2 : DG_E4M3;
            dgi_sm90_plan plan;
            assert_ok(dgi_sm90_choose(&g, UNITS, false, &plan));
        }
}

/*
 * Measured times in microseconds (docs/hopper-log.md and bench/results/h200, one H200 in bursts).
 * Where several kernels were measured, the planner's choice is as good as the fastest; and its
 * cycles fit all of the times at a clock that this chip has in bursts, so that no constant of
 * tuning_sm90.h is left behind by a change of its kernel.
 */
static void predictions_fit_measurements(void **state)
{
    (void)state;
    static const struct {
        const char *recipe;
        dg_accumulation accumulation;
        int64_t m, n, k;
        struct {
            const char *main_loop;
            double us;
        } kernels[3];
    } cases[] = {
        {"tensor", DG_ACCUMULATE_FAST, 2048, 8192, 8192, {{"fast_128x256", 183.3}}},
        {"tensor", DG_ACCUMULATE_FAST, 4096, 7168, 2048, {{"fast_128x256", 92.4}}},
        {"tensor",
         DG_ACCUMULATE_FAST,
         512,
         4096,
         4096,
         {{"fast_128x128", 15.8}, {"fast_128x144", 17.4}, {"precise_128x128", 16.4}}},
        {"tensor",
         DG_ACCUMULATE_FAST,
         512,
         12288,
         4096,
         {{"fast_128x192", 39.1}, {"fast_128x128", 41.1}, {"precise_128x192", 40.7}}},
        {"tensor",
         DG_ACCUMULATE_FAST,
         4096,
         576,
         7168,
         {{"fast_128x144", 27.5}, {"fast_128x192", 30.0}, {"precise_128x144", 28.5}}},
        {"tensor",
         DG_ACCUMULATE_FAST,
         4096,
         2112,
         7168,
         {{"fast_128x192", 91.5}, {"fast_128x128", 104.0}, {"precise_192x128", 97.2}}},
        {"tensor", DG_ACCUMULATE_PRECISE, 2048, 8192, 8192, {{"precise_256x128", 192.1}}},
        {"tensor", DG_ACCUMULATE_PRECISE, 4096, 7168, 2048, {{"precise_256x128", 93.3}}},
        {"tensor", DG_ACCUMULATE_PRECISE, 512, 4096, 4096, {{"precise_128x128", 16.8}}},
        {"tensor",
         DG_ACCUMULATE_PRECISE,
         4096,
         576,
         7168,
         {{"precise_256x128", 41.2}, {"precise_128x192", 32.3}, {"precise_128x144", 28.3}}},
        {"block128",
         DG_ACCUMULATE_PRECISE,
         2048,
         8192,
         8192,
         {{"block128_256x128", 199.9}, {"block128_192x128", 228.4}, {"block128_128x128", 226.9}}},
        {"block128",
         DG_ACCUMULATE_PRECISE,
         4096,
         576,
         7168,
         {{"block128_256x128", 45.7}, {"block128_128x192", 34.1}, {"block128_128x144", 31.6}}},
        {"block1x128", DG_ACCUMULATE_PRECISE, 2048, 8192, 8192, {{"column128_128x128", 290.3}}},
        {"block32", DG_ACCUMULATE_PRECISE, 2048, 8192, 8192, {{"block32_128x128", 318.5}}},
        {"block32", DG_ACCUMULATE_PRECISE, 4096, 7168, 2048, {{"block32_128x128", 148.5}}},
        {"block32", DG_ACCUMULATE_PRECISE, 4096, 576, 7168, {{"block32_128x128", 71.4}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dg_gemm g =
            gemm_of(recipe_named(cases[i].recipe), cases[i].m, cases[i].n, cases[i].k, DG_BF16);
        g.accumulation = cases[i].accumulation;
        dgi_sm90_plan chosen, plan;
        assert_ok(dgi_sm90_choose(&g, UNITS, false, &chosen));
        double best = 0, taken = 0;
        for (int j = 0; j < 3 && cases[i].kernels[j].us > 0; j++) {
            char name[96];
            const double us = cases[i].kernels[j].us;
            snprintf(name, sizeof name, "gemm_e4m3_e4m3_%s__sm90a", cases[i].kernels[j].main_loop);
            assert_ok(dgi_sm90_plan_with(&g, UNITS, dgi_sm90_find(name), &plan));
            const double mhz = plan.cycles / us;
            if (mhz < 1500 || mhz > 1850)
                fail_msg("%s: %.0f cycles predicted for %.1f us", gemm_text(&g), plan.cycles, us);
            best = j == 0 || us < best ? us : best;
            taken = plan.kernel == chosen.kernel ? us : taken;
        }
        if (taken == 0 || taken > best * 1.03)
            fail_msg("%s: %s is chosen, which takes %.1f us where another takes %.1f",
                     gemm_text(&g), dgi_sm90_kernels[chosen.kernel].name, taken, best);
    }
}

/*
 * In batch-invariant mode a kernel for many tokens adds up like the one for few: sums of 128 or of
 * 32 of K, scales inside or in the epilogue.
 */
static void invariant_mode_keeps_the_order(void **state)
{
    (void)state;
    for (int i = 0; i < recipe_count; i++) {
        dg_gemm many = gemm_of(&recipes[i], 2048, 4096, 7168, DG_BF16), few = many;
        few.d.rows = few.a.rows = 16;
        many.accumulation =
            DG_ACCUMULATE_FAST; /* which must not lead to kernels without promotion */
        dgi_sm90_plan plan;
        dgi_decode_plan decode;
        assert_ok(dgi_sm90_choose(&many, UNITS, true, &plan));
        assert_true(dgi_decode_choose(&few, UNITS, false, &decode));
        const dgi_sm90_kernel *kernel = &dgi_sm90_kernels[plan.kernel];
        const int32_t scale_k = dgi_decode_kernels[decode.kernel].scale_k;
        assert_int_equal(decode.split, 1);
        assert_int_equal(kernel->promote_k, scale_k == 0 ? 128 : scale_k);
        assert_int_equal(kernel->span == 0, scale_k == 0);
    }
}

static void refusals(void **state)
{
    (void)state;
    dgi_sm90_plan plan;
    dg_gemm g = gemm_of(recipe_named("block128"), 256, 256, 512, DG_BF16);
    assert_refused(dgi_sm90_plan_with(
                       &g, UNITS, dgi_sm90_find("gemm_e4m3_e4m3_precise_128x128__sm90a"), &plan),
                   DG_UNSUPPORTED_SCALE, "constant along K");
    g.scale_a = scale_of(DG_F32, 256, 512, 1, 48, 0, 0);
    assert_refused(dgi_sm90_choose(&g, UNITS, false, &plan), DG_UNSUPPORTED_SCALE, "(1,48)");
    g = gemm_of(recipe_named("tensor"), (int64_t)1 << 31, 16, 16, DG_BF16);
    assert_refused(dgi_sm90_choose(&g, UNITS, false, &plan), DG_UNSUPPORTED_SHAPE, "2147483648");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_once),
        cmocka_unit_test(swizzle_meets_no_bank_twice),
        cmocka_unit_test(decode_panel_meets_no_bank_twice),
        cmocka_unit_test(kernel_table),
        cmocka_unit_test(plans_of_random_problems),
        cmocka_unit_test(every_recipe_runs),
        cmocka_unit_test(predictions_fit_measurements),
        cmocka_unit_test(invariant_mode_keeps_the_order),
        cmocka_unit_test(refusals),
    };
    return test_run(argc, argv, tests);
}
