/* SPDX-License-Identifier: MIT */
/* The requirements on grouped products (docs/requirements.md). */
#include "grouped_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static void run_and_check(dg_context *context, rng *r, const grouped_shape *s)
{
    grouped_case *c = grouped_case_new(r, s);
    assert_ok(grouped_case_run(c, context, false));
    grouped_case_check(c);
    grouped_case_free(c);
}

/* G01: whatever the rows a group has room for, nothing spills into the next group. */
static void g01_masked_with_few_padded_rows(void **state)
{
    (void)state;
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    static const int64_t most[] = {1, 2, 8, 16, 32, 63, 65};
    for (size_t i = 0; i < sizeof most / sizeof most[0]; i++) {
        int32_t sizes[4];
        grouped_shape s =
            grouped_of(recipe_named("block128"), DG_GROUPS_MASKED, 4, most[i], 264, 1664, DG_BF16);
        for (int j = 0; j < 4; j++)
            sizes[j] = (int32_t)rng_range(&r, 1, most[i]);
        s.sizes = sizes;
        run_and_check(context, &r, &s);
    }
    dg_destroy(context);
}

/* G02: no N is special for groups along K. */
static void g02_any_n_along_k(void **state)
{
    (void)state;
    rng r = rng_new(2);
    dg_context *context = test_context(NULL);
    static const int64_t widths[] = {768, 1536, 1, 17, 769};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
        int32_t sizes[16];
        int64_t k = 0;
        for (int j = 0; j < 16; j++)
            k += sizes[j] = (int32_t)(128 * rng_range(&r, 0, 2));
        grouped_shape s = grouped_of(recipe_named("block1x128"), DG_GROUPS_K_BLOCKS, 16, 20,
                                     widths[i], k, DG_F32);
        s.sizes = sizes;
        run_and_check(context, &r, &s);
    }
    dg_destroy(context);
}

/* G35: groups along K give the same bits on every call; an all-zero channel's scale has no part. */
static void g35_same_bits_along_k(void **state)
{
    (void)state;
    static const int32_t sizes[] = {256, 128, 128, 256};
    static const float scales[] = {1.0f, 1e-4f, 1e-8f, 1e-30f};
    rng r = rng_new(35);
    dg_context *context = test_context(NULL);
    grouped_shape s =
        grouped_of(recipe_named("block1x128"), DG_GROUPS_K_BLOCKS, 4, 96, 128, 768, DG_F32);
    s.sizes = sizes;
    grouped_case *c = grouped_case_new(&r, &s);
    const int64_t channel = 5, k = 256, depth = 128; /* in the second group, whose scales are the */
    const dg_gemm *g = &c->gemm;                     /* third column                              */
    memset((char *)g->a.data + k * g->a.rows + channel * depth, 0, (size_t)depth);
    void *first = NULL;
    for (int i = 0; i < 200; i++) {
        float *scale = (float *)g->scale_a.data + channel * g->scale_a.row_stride + 2;
        *scale = scales[i % 4];
        assert_ok(grouped_case_run(c, context, false));
        if (first == NULL) {
            grouped_case_check(c);
            first = malloc(c->d.bytes);
            assert_non_null(first);
            memcpy(first, c->d.data, c->d.bytes);
        }
        assert_memory_equal(first, c->d.data, c->d.bytes);
    }
    free(first);
    grouped_case_free(c);
    dg_destroy(context);
}

/* Groups, rows, N and K of 0 in every form: exactly what is asked is written. */
static void empty_work(void **state)
{
    (void)state;
    rng r = rng_new(3);
    dg_context *context = test_context(NULL);
    static const int32_t none[8];
    for (int grouping = DG_GROUPS_BY_END; grouping <= DG_GROUPS_K_BLOCKS; grouping++)
        for (int empty = 0; empty < 5; empty++)
            for (int in_place = 0; in_place < 2; in_place++) {
                const int64_t m = empty == 1 ? 0 : 8, n = empty == 2 ? 0 : 24;
                const int64_t k = empty == 3 ? 0 : 256;
                grouped_shape s = grouped_of(recipe_named("block1x128"), (dg_grouping)grouping,
                                             empty == 4 ? 0 : 8, m, n, k, DG_F32);
                s.sizes = none; /* BY_ROW: all rows in group 0 */
                s.in_place = in_place != 0;
                s.gemm.beta = s.in_place ? 1.0f : 0.0f;
                if (grouping <= DG_GROUPS_MASKED)
                    s.groups.padding = DG_PADDING_ZERO;
                run_and_check(context, &r, &s);
            }
    dg_destroy(context);
}

/* D = D + A B^T over groups along K, twice: the second call adds to what the first one left. */
static void accumulates_in_place(void **state)
{
    (void)state;
    static const int32_t sizes[] = {128, 0, 384, 128};
    rng r = rng_new(4);
    dg_context *context = test_context(NULL);
    grouped_shape s =
        grouped_of(recipe_named("block1x128"), DG_GROUPS_K_COLUMNS, 4, 40, 72, 640, DG_F32);
    s.sizes = sizes;
    s.in_place = true;
    s.gemm.beta = 1.0f;
    grouped_case *c = grouped_case_new(&r, &s);
    for (int i = 0; i < 2; i++) {
        assert_ok(grouped_case_run(c, context, false));
        grouped_case_check(c);
        memcpy(c->d_before.data, c->d.data, c->d.bytes);
    }
    grouped_case_free(c);
    dg_destroy(context);
}

/* Permuting the rows of a router's order permutes nothing else: scatter undoes gather. */
static void scatter_undoes_gather(void **state)
{
    (void)state;
    enum { ROWS = 50 };
    rng r = rng_new(5);
    dg_context *context = test_context(NULL);
    int32_t ends[] = {20, 20, 50}, order[ROWS];
    for (int i = 0; i < ROWS; i++)
        order[i] = (i * 37 + 11) % ROWS;
    grouped_shape s =
        grouped_of(recipe_named("token_channel"), DG_GROUPS_BY_END, 3, ROWS, 40, 300, DG_BF16);
    s.sizes = ends;
    s.groups.rows = ROWS;
    s.gather = s.scatter = order;
    grouped_case *c = grouped_case_new(&r, &s);
    assert_ok(grouped_case_run(c, context, false));
    grouped_case_check(c); /* row order[i] of D is row order[i] of A times its group's weights */
    grouped_case_free(c);
    dg_destroy(context);
}

/* A case of that shape is right, byte for byte; NaN lies in all that no product reads. */
static void check_shape(rng *r, const grouped_shape *shape)
{
    dg_context *context = test_context(NULL);
    grouped_case *c = grouped_case_new(r, shape);
    assert_ok(grouped_case_run(c, context, false));
    grouped_case_check(c);
    grouped_case_free(c);
    dg_destroy(context);
}

/* G03: groups whose operands lie more than 2^32 elements apart, each operand in turn, then D. */
static void g03_groups_far_apart(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    enum { GROUPS = 2, M = 9, N = 40, K = 130 };
    const int64_t stride = (int64_t)5 << 30;
    static const int32_t sizes[GROUPS] = {M, M};
    rng r = rng_new(303);
    dg_context *context = test_context(NULL);
    grouped_shape s =
        grouped_of(recipe_named("block128"), DG_GROUPS_MASKED, GROUPS, M, N, K, DG_F32);
    s.sizes = sizes;
    grouped_case *c = grouped_case_new(&r, &s);
    assert_ok(grouped_case_run(c, context, false));
    grouped_case_check(c);
    const guard *memory[] = {&c->a, &c->b, &c->scale_a, &c->scale_b, &c->d};
    static const size_t element[] = {1, 1, 4, 4, 4};
    for (int i = 0; i < 5; i++) {
        dg_gemm g = c->gemm;
        dg_groups q = c->groups;
        void **const data[] = {&g.a.data, &g.b.data, &g.scale_a.data, &g.scale_b.data, &g.d.data};
        int64_t *const strides[] = {&q.a_stride, &q.b_stride, &q.scale_a_stride, &q.scale_b_stride,
                                    &q.d_stride};
        /* Of this address space only the touched pages take memory. */
        const size_t bytes = memory[i]->bytes / GROUPS, apart = (size_t)stride * element[i];
        char *far = mmap(NULL, apart + bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert_true(far != MAP_FAILED);
        for (size_t group = 0; group < GROUPS; group++)
            memcpy(far + group * apart, (char *)memory[i]->data + group * bytes, bytes);
        float result[GROUPS * M * N];
        g.d.data = result;
        *data[i] = far;
        *strides[i] = stride;
        assert_ok(dg_grouped_run(context, &g, &q, NULL));
        for (size_t group = 0; group < GROUPS; group++)
            assert_memory_equal((char *)g.d.data + group * (size_t)q.d_stride * sizeof(float),
                                (char *)c->d.data + group * sizeof result / GROUPS,
                                sizeof result / GROUPS);
        munmap(far, apart + bytes);
    }
    grouped_case_free(c);
    dg_destroy(context);
}

/* G07: groups without input along K become zero, or keep D when they accumulate. */
static void g07_groups_without_input(void **state)
{
    (void)state;
    static const int32_t sizes[] = {256, 0, 128, 0};
    rng r = rng_new(7);
    grouped_shape s =
        grouped_of(recipe_named("block1x128"), DG_GROUPS_K_BLOCKS, 4, 24, 40, 384, DG_F32);
    s.sizes = sizes;
    check_shape(&r, &s);
    s.in_place = true;
    s.gemm.beta = 1.0f;
    check_shape(&r, &s);
}

/* G08: a skipped expert is not written, and unused rows of NaN have no influence. */
static void g08_skipped_experts(void **state)
{
    (void)state;
    static const int32_t sizes[] = {256, 0, 17, 1};
    rng r = rng_new(8);
    grouped_shape s =
        grouped_of(recipe_named("block128"), DG_GROUPS_MASKED, 4, 256, 48, 256, DG_BF16);
    s.sizes = sizes;
    check_shape(&r, &s);
    s.groups.padding = DG_PADDING_ZERO;
    check_shape(&r, &s);
}

/* G09: rows marked -1 are neither computed nor stored; so are those of groups that do not exist. */
static void g09_rows_marked_as_padding(void **state)
{
    (void)state;
    static const int32_t of_block[][4] = {{0, -1, 2, -1}, {2, 7, 0, -2}};
    rng r = rng_new(9);
    for (int i = 0; i < 2; i++) {
        int32_t sizes[512];
        for (int row = 0; row < 512; row++)
            sizes[row] = of_block[i][row / 128];
        grouped_shape s =
            grouped_of(recipe_named("block128"), DG_GROUPS_BY_ROW, 3, 512, 64, 256, DG_BF16);
        s.sizes = sizes;
        check_shape(&r, &s);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g03_groups_far_apart),
        cmocka_unit_test(g07_groups_without_input),
        cmocka_unit_test(g08_skipped_experts),
        cmocka_unit_test(g09_rows_marked_as_padding),
        cmocka_unit_test(g01_masked_with_few_padded_rows),
        cmocka_unit_test(g02_any_n_along_k),
        cmocka_unit_test(g35_same_bits_along_k),
        cmocka_unit_test(empty_work),
        cmocka_unit_test(accumulates_in_place),
        cmocka_unit_test(scatter_undoes_gather),
    };
    return test_run(argc, argv, tests);
}
