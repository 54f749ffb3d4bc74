/* SPDX-License-Identifier: MIT */
/*
 * Every row of the kernel table that this machine can run, forced by name, against the oracle:
 * random GEMMs, then every recipe with every type. And the choice among the rows itself.
 */
#include "gemm_case.h"
#include "guard.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 50, LARGEST = 300 };

/* A context that uses the CPU's table row `index`; NULL when it cannot; false after the last. */
static bool context_of_row(int32_t index, dg_kernel_info *info, dg_context **context)
{
    if (dg_kernel_at(index, info) != DG_OK)
        return false;
    *context = NULL;
    if (strcmp(info->backend, "cpu") != 0)
        return true;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.kernel = info->name;
    dg_status status = dg_create(context, DG_CPU, &options);
    if (status == DG_OK)
        return true;
    assert_int_equal(status, DG_UNSUPPORTED_DEVICE);
    assert_non_null(strstr(dg_last_error(), info->name));
    assert_non_null(strstr(dg_last_error(), "needs"));
    print_message("%s\n", dg_last_error());
    *context = NULL;
    return true;
}

/* Runs a case with rows of B and with packed weights: both right, and the same bits. */
static void check_both(gemm_case *c, dg_context *context)
{
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    void *rows = gemm_case_copy_d(c);
    assert_ok(gemm_case_run_packed(c, context));
    gemm_case_check(c);
    assert_memory_equal(rows, c->d.data, c->d.bytes);
    free(rows);
}

static void random_gemms(dg_context *context)
{
    rng r = rng_new(11);
    for (int i = 0; i < CASES; i++) {
        dg_gemm shape = gemm_random(&r, LARGEST);
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        check_both(c, context);
        gemm_case_free(c);
    }
}

static void recipes_and_types(dg_context *context)
{
    const dg_dtype results[] = {DG_F32, DG_BF16, DG_F16, DG_E4M3, DG_E5M2};
    rng r = rng_new(12);
    for (int i = 0; i < recipe_count; i++)
        for (int types = 0; types < 20; types++) {
            int64_t m = rng_range(&r, 1, 40), n = rng_range(&r, 1, 80);
            dg_gemm g = gemm_of(&recipes[i], m, n, rng_range(&r, 1, LARGEST), results[types % 5]);
            g.a.dtype = types / 5 % 2 == 0 ? DG_E4M3 : DG_E5M2;
            g.b.dtype = types / 10 == 0 ? DG_E4M3 : DG_E5M2;
            if (types % 5 >= 3)
                g.scale_d = scale_of(DG_F32, m, n, 1, 32, 0, 0);
            gemm_case *c = gemm_case_new(&r, &g, CASE_PLAIN);
            check_both(c, context);
            gemm_case_free(c);
        }
}

static void every_row(void **state)
{
    (void)state;
    dg_kernel_info info;
    dg_context *context;
    int usable = 0;
    for (int32_t i = 0; context_of_row(i, &info, &context); i++) {
        if (context == NULL)
            continue;
        print_message("%s\n", info.name);
        assert_ok(dg_kernel_usable(context, info.name));
        random_gemms(context);
        recipes_and_types(context);
        dg_destroy(context);
        usable++;
    }
    assert_true(usable >= 1); /* generic C runs everywhere */
}

/* Each cap chooses the best row within it, and the explanation says why the better ones were not.
 */
static void caps_choose_rows(void **state)
{
    (void)state;
    const char *const caps[] = {"generic", "avx2", "avx512", "avx512_bf16"};
    rng r = rng_new(13);
    for (int i = 0; i < 4; i++) {
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.isa = caps[i];
        dg_context *context;
        assert_ok(dg_create(&context, DG_CPU, &options));
        dg_device_info device;
        assert_ok(dg_get_device_info(context, &device));

        dg_gemm shape = gemm_random(&r, 50);
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        char text[4096];
        size_t bytes = sizeof text;
        assert_ok(dg_gemm_explain(context, &c->gemm, text, &bytes));
        assert_int_equal(bytes, strlen(text) + 1);

        dg_kernel_info info;
        bool chosen = false;
        for (int32_t row = 0; dg_kernel_at(row, &info) == DG_OK; row++) {
            if (strcmp(info.backend, "cpu") != 0)
                continue;
            char line[256];
            bool usable = dg_kernel_usable(context, info.name) == DG_OK;
            snprintf(line, sizeof line, "%s%s",
                     chosen   ? ""
                     : usable ? "kernel "
                              : "refused ",
                     info.name);
            assert_true((strstr(text, line) != NULL) == !chosen);
            if (usable && !chosen) {
                assert_string_equal(info.architecture, device.architecture);
                chosen = true;
            }
        }
        assert_true(chosen);
        gemm_case_free(c);
        dg_destroy(context);
    }
}

static void bad_choices_are_refused(void **state)
{
    (void)state;
    dg_context *context = NULL;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.isa = "sse9";
    assert_refused(dg_create(&context, DG_CPU, &options), DG_INVALID_ARGUMENT, "avx512_bf16");
    options.isa = NULL;
    options.kernel = "gemm_of_nobody";
    assert_refused(dg_create(&context, DG_CPU, &options), DG_NOT_FOUND, "gemm_of_nobody");
    dg_kernel_info info;
    for (int32_t i = 0; dg_kernel_at(i, &info) == DG_OK; i++)
        if (strcmp(info.architecture, "avx2") == 0) {
            options.isa = "generic";
            options.kernel = info.name;
            assert_refused(dg_create(&context, DG_CPU, &options), DG_UNSUPPORTED_DEVICE, "AVX2");
        }
    assert_null(context);
}

/* A workspace of exactly the size asked for, with a guard page behind it. */
static void own_workspace(void **state)
{
    (void)state;
    rng r = rng_new(14);
    dg_kernel_info info;
    dg_context *context;
    for (int32_t row = 0; context_of_row(row, &info, &context); row++) {
        for (int i = 0; context != NULL && i < 20; i++) {
            dg_gemm shape = gemm_random(&r, LARGEST);
            gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
            size_t bytes;
            assert_ok(dg_gemm_workspace(context, &c->gemm, &bytes));
            guard memory = guard_new(bytes, GUARD_AFTER, 0xFF);
            c->gemm.workspace = memory.data;
            c->gemm.workspace_bytes = bytes;
            assert_ok(gemm_case_run(c, context));
            gemm_case_check(c);
            guard_free(&memory);
            gemm_case_free(c);
        }
        dg_destroy(context);
    }
}

/* What was prepared for one M serves every smaller one. */
static void workspace_grows_with_m(void **state)
{
    (void)state;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = 5;
    dg_context *context = test_context(&options);
    enum { LARGEST_M = 6000, N = 70, K = 4096 };
    char *inputs = malloc((size_t)LARGEST_M * K), *d = malloc((size_t)LARGEST_M * N * 4);
    size_t before = 0;
    for (int64_t m = 1; m < LARGEST_M; m += 1 + m / 30) {
        dg_gemm g = gemm_of(recipe_named("block128"), m, N, K, DG_F32);
        g.a.data = g.b.data = g.scale_a.data = g.scale_b.data = inputs; /* never read */
        g.d.data = d;
        size_t bytes;
        assert_ok(dg_gemm_workspace(context, &g, &bytes));
        assert_true(bytes >= before);
        before = bytes;
    }
    free(inputs);
    free(d);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),
        cmocka_unit_test(caps_choose_rows),
        cmocka_unit_test(own_workspace),
        cmocka_unit_test(bad_choices_are_refused),
        cmocka_unit_test(workspace_grows_with_m),
    };
    return test_run(argc, argv, tests);
}
