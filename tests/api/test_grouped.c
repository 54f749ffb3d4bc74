/* SPDX-License-Identifier: MIT */
/* Grouped products through the public interface, against the oracle, byte by byte of D. */
#include "grouped_case.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool can_pack(const grouped_case *c)
{
    return c->groups.grouping <= DG_GROUPS_MASKED && c->groups.count != 0;
}

static void random_groups(void **state)
{
    (void)state;
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    int ran = 0;
    for (int i = 0; i < 400; i++) {
        grouped_case *c = grouped_case_random(&r, i % 8 == 0 ? 150 : 40);
        const dg_status status = grouped_case_run(c, context, false);
        if (test_device() != DG_CPU &&
            (status == DG_UNSUPPORTED_SCALE || status == DG_MISALIGNED)) {
            grouped_case_check_untouched(c);
            grouped_case_free(c);
            continue;
        }
        assert_ok(status);
        ran++;
        grouped_case_check(c);
        if (can_pack(c)) {
            assert_ok(grouped_case_run(c, context, true));
            grouped_case_check(c);
        }
        if (test_device() == DG_CPU)
            grouped_case_check_bits(c, context);
        grouped_case_free(c);
    }
    assert_true(ran >= 100); /* a GPU does not take every granularity */
    dg_destroy(context);
}

/*
 * Groups of columns that begin anywhere. A GPU reads them from multiples of 16 on: where all begin
 * there they are right, the last of any K, and else every group is left alone.
 */
static void columns_that_begin_anywhere(void **state)
{
    (void)state;
    static const struct {
        int32_t sizes[4];
        bool on_gpu;
    } cases[] = {
        {{16, 48, 0, 21}, true},   {{32, 5, 0, 0}, true},   {{0, 7, 30, 48}, false},
        {{20, 12, 32, 21}, false}, {{64, 16, 4, 1}, false},
    };
    rng r = rng_new(2);
    dg_context *context = test_context(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        grouped_shape s =
            grouped_of(recipe_named("token_channel"), DG_GROUPS_K_COLUMNS, 4, 20, 40, 85, DG_F32);
        s.sizes = cases[i].sizes;
        grouped_case *c = grouped_case_new(&r, &s);
        assert_ok(grouped_case_run(c, context, false));
        if (test_device() == DG_CPU || cases[i].on_gpu)
            grouped_case_check(c);
        else
            grouped_case_check_untouched(c);
        grouped_case_free(c);
    }
    dg_destroy(context);
}

/*
 * More groups than a GPU takes in one launch, most of them empty. Where a group begins depends on
 * all before it, also on those of earlier launches.
 */
static void thousands_of_groups(void **state)
{
    (void)state;
    enum { COUNT = 2100, ROWS = 300, UNIT = 16 };
    static int32_t sizes[COUNT];
    static const dg_grouping forms[] = {DG_GROUPS_BY_END, DG_GROUPS_BY_ROW, DG_GROUPS_MASKED,
                                        DG_GROUPS_K_COLUMNS, DG_GROUPS_K_BLOCKS};
    rng r = rng_new(4);
    dg_context *context = test_context(NULL);
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        const bool along_k = forms[f] >= DG_GROUPS_K_COLUMNS;
        int64_t sum = 0;
        for (int32_t i = 0; i < COUNT; i++) {
            const int32_t size = rng_chance(&r, 0.06) ? (int32_t)rng_range(&r, 1, 3) : 0;
            sum += size;
            sizes[i] = forms[f] == DG_GROUPS_BY_END   ? (int32_t)(sum < ROWS ? sum : ROWS)
                       : forms[f] == DG_GROUPS_MASKED ? size
                       : along_k                      ? size * UNIT
                                                      : 0;
        }
        for (int32_t row = 0; row < ROWS && forms[f] == DG_GROUPS_BY_ROW; row++)
            sizes[row] = row % 5 == 0 ? -1 : COUNT - 1 - row * 7;
        grouped_shape s =
            along_k
                ? grouped_of(recipe_named("block1x128"), forms[f], COUNT, 9, 8, sum * UNIT, DG_F32)
                : grouped_of(recipe_named("block128"), forms[f], COUNT,
                             forms[f] == DG_GROUPS_MASKED ? 3 : ROWS, 8, 32, DG_BF16);
        s.sizes = sizes;
        if (along_k) { /* each group begins with a scale of its own */
            s.gemm.scale_a.cols += COUNT - 1;
            s.gemm.scale_b.cols += COUNT - 1;
            s.gemm.scale_a.row_stride = s.gemm.scale_a.cols;
            s.gemm.scale_b.row_stride = s.gemm.scale_b.cols;
        }
        grouped_case *c = grouped_case_new(&r, &s);
        assert_ok(grouped_case_run(c, context, false));
        grouped_case_check(c);
        grouped_case_free(c);
    }
    dg_destroy(context);
}

/* A GPU cuts a group along K that is long beside the others, each with its own scales. */
static void one_long_group(void **state)
{
    (void)state;
    static const int32_t sizes[] = {16, 9008, 0, 144};
    static const dg_grouping forms[] = {DG_GROUPS_K_COLUMNS, DG_GROUPS_K_BLOCKS};
    rng r = rng_new(5);
    dg_context *context = test_context(NULL);
    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        grouped_shape s =
            grouped_of(recipe_named("block1x128"), forms[f], 4, 140, 300, 9168, DG_F32);
        s.sizes = sizes;
        s.gemm.scale_a.cols = s.gemm.scale_a.row_stride = 1 + 71 + 2;
        s.gemm.scale_b.cols = s.gemm.scale_b.row_stride = 1 + 71 + 2;
        grouped_case *c = grouped_case_new(&r, &s);
        for (int i = 0; i < 2; i++) {
            assert_ok(grouped_case_run(c, context, false));
            grouped_case_check(c);
        }
        grouped_case_free(c);
    }
    dg_destroy(context);
}

/* How often a line of `text` begins with `start`; `balance` gets the numbers of such a line. */
static int lines_of(const char *text, const char *start, double balance[2])
{
    int found = 0;
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        found += strncmp(line, start, strlen(start)) == 0;
        if (balance != NULL)
            sscanf(line, "balance %lf %lf", &balance[0], &balance[1]);
    }
    return found;
}

/* The chosen kernel is in the table, on a GPU among those for grouped products. */
static void check_kernel(const char *text)
{
    char name[96] = "";
    sscanf(strstr(text, "kernel "), "kernel %95[a-z0-9_]", name);
    dg_kernel_info info;
    int32_t row = 0;
    do {
        assert_ok(dg_kernel_at(row++, &info));
    } while (strcmp(info.name, name) != 0);
    assert_int_equal(info.grouped, test_device() != DG_CPU);
}

/*
 * One kernel is named, and for sizes in host memory the balance is given; what groups.sizes points
 * at is not read.
 */
static void explanations(void **state)
{
    (void)state;
    static const int32_t ends[] = {30, 30, 90, 200}, masked[] = {200, 0, 1, 50};
    static const int32_t along_k[] = {128, 0, 256, 16};
    int32_t rows[200];
    static const struct {
        dg_grouping grouping;
        const int32_t *sizes;
    } forms[] = {{DG_GROUPS_BY_END, ends},
                 {DG_GROUPS_BY_ROW, NULL},
                 {DG_GROUPS_MASKED, masked},
                 {DG_GROUPS_K_COLUMNS, along_k},
                 {DG_GROUPS_K_BLOCKS, along_k}};
    rng r = rng_new(3);
    dg_context *context = test_context(NULL);
    for (int i = 0; i < 200; i++)
        rows[i] = i / 60;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const int32_t *sizes = forms[i].sizes == NULL ? rows : forms[i].sizes;
        grouped_shape s =
            grouped_of(recipe_named("tensor"), forms[i].grouping, 4, 200, 300, 400, DG_BF16);
        s.sizes = sizes;
        grouped_case *c = grouped_case_new(&r, &s);
        c->groups.sizes = (const int32_t *)16; /* an address that cannot be read */
        char text[8192], shorter[20];
        double balance[2] = {0, 0};
        size_t bytes = 0, few = sizeof shorter;
        assert_ok(dg_grouped_explain(context, &c->gemm, &c->groups, NULL, NULL, &bytes));
        assert_in_range(bytes, 2, sizeof text);
        assert_ok(dg_grouped_explain(context, &c->gemm, &c->groups, NULL, text, &bytes));
        assert_int_equal(bytes, strlen(text) + 1);
        assert_int_equal(lines_of(text, "kernel ", NULL), 1);
        assert_int_equal(lines_of(text, "balance ", NULL), 0);
        check_kernel(text);
        bytes = sizeof text;
        assert_ok(dg_grouped_explain(context, &c->gemm, &c->groups, sizes, text, &bytes));
        assert_int_equal(lines_of(text, "kernel ", NULL), 1);
        assert_int_equal(lines_of(text, "balance ", balance), 1);
        assert_true(balance[0] >= 1 && balance[1] <= 1 && balance[1] >= 0);
        assert_ok(dg_grouped_explain(context, &c->gemm, &c->groups, sizes, shorter, &few));
        assert_int_equal(few, bytes);
        assert_int_equal(strlen(shorter), sizeof shorter - 1);
        assert_refused(dg_grouped_explain(context, &c->gemm, &c->groups, sizes, text, NULL),
                       DG_INVALID_ARGUMENT, "text_bytes");
        grouped_case_free(c);
    }
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_groups),       cmocka_unit_test(columns_that_begin_anywhere),
        cmocka_unit_test(thousands_of_groups), cmocka_unit_test(one_long_group),
        cmocka_unit_test(explanations),
    };
    return test_run(argc, argv, tests);
}
