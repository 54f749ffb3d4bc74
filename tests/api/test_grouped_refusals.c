/* SPDX-License-Identifier: MIT */
/* What grouped calls refuse: with a message, and with D left alone. */
#include "grouped_case.h"
#include "test.h"

static dg_context *context;
static grouped_case *valid;

static int begin(void **state)
{
    (void)state;
    static const int32_t sizes[] = {3, 0, 7};
    rng r = rng_new(1);
    context = test_context(NULL);
    grouped_shape s =
        grouped_of(recipe_named("block128"), DG_GROUPS_MASKED, 3, 8, 20, 200, DG_BF16);
    s.sizes = sizes;
    valid = grouped_case_new(&r, &s);
    return 0;
}

static int end(void **state)
{
    (void)state;
    grouped_case_free(valid);
    dg_destroy(context);
    return 0;
}

/* The call with one thing wrong; the message contains `text`. */
static void refused(const dg_gemm *g, const dg_groups *q, dg_status status, const char *text)
{
    assert_refused(dg_grouped_run(context, g, q, NULL), status, text);
    assert_refused(dg_grouped_prepare(context, g, q), status, text);
    size_t bytes = 0;
    assert_refused(dg_grouped_explain(context, g, q, NULL, NULL, &bytes), status, text);
    grouped_case_check_untouched(valid);
}

#define REFUSED(change, status, text)                                                              \
    do {                                                                                           \
        dg_gemm g = valid->gemm;                                                                   \
        dg_groups q = valid->groups;                                                               \
        change;                                                                                    \
        refused(&g, &q, status, text);                                                             \
    } while (0)

static void descriptions(void **state)
{
    (void)state;
    assert_refused(dg_grouped_run(NULL, &valid->gemm, &valid->groups, NULL), DG_INVALID_ARGUMENT,
                   "context");
    refused(NULL, &valid->groups, DG_INVALID_ARGUMENT, "gemm is NULL");
    refused(&valid->gemm, NULL, DG_INVALID_ARGUMENT, "groups is NULL");
    REFUSED(q.struct_bytes = 0, DG_INVALID_ARGUMENT, "groups.struct_bytes");
    REFUSED(q.grouping = (dg_grouping)9, DG_INVALID_ARGUMENT, "groups.grouping is 9");
    REFUSED(q.padding = (dg_padding)2, DG_INVALID_ARGUMENT, "groups.padding is 2");
    REFUSED(q.count = -1, DG_INVALID_ARGUMENT, "groups.count is -1");
    REFUSED(q.expected_rows = -1, DG_INVALID_ARGUMENT, "groups.expected_rows is -1");
    REFUSED(q.sizes = NULL, DG_INVALID_ARGUMENT, "groups.sizes is NULL, but 3");
    REFUSED(q.sizes = (const int32_t *)((const char *)q.sizes + 2), DG_MISALIGNED, "groups.sizes");
    REFUSED(q.grouping = DG_GROUPS_BY_END;
            q.alignment = 0, DG_INVALID_ARGUMENT, "groups.alignment is 0");
    REFUSED(q.gather = q.sizes, DG_INVALID_ARGUMENT, "groups.gather is given");
    REFUSED(q.scatter = q.sizes, DG_INVALID_ARGUMENT, "groups.scatter is given");
    REFUSED(q.grouping = DG_GROUPS_BY_END; q.rows = 7, DG_INVALID_ARGUMENT, "groups.rows is 7");
    REFUSED(q.grouping = DG_GROUPS_BY_END; q.rows = -1, DG_INVALID_ARGUMENT, "rows");
    REFUSED(q.grouping = DG_GROUPS_K_COLUMNS;
            q.padding = DG_PADDING_ZERO, DG_INVALID_ARGUMENT, "no padding rows");
}

static void operands(void **state)
{
    (void)state;
    REFUSED(g.a.dtype = DG_BF16, DG_UNSUPPORTED_TYPE, "a.dtype");
    REFUSED(g.b.cols = 199, DG_INVALID_ARGUMENT, "same K");
    REFUSED(g.d.rows = 9, DG_INVALID_ARGUMENT, "d is 9 x 20");
    REFUSED(g.scale_b.rows = 3, DG_INVALID_ARGUMENT, "scale_b.rows is 3");
    REFUSED(g.b.data = NULL, DG_INVALID_ARGUMENT, "b.data is NULL");
    REFUSED(g.workspace = g.a.data, DG_INVALID_ARGUMENT, "workspace");
    REFUSED(g.beta = 1.0f, DG_INVALID_ARGUMENT, "c is absent");
    /* Groups along K: a scale's columns begin anew with each group. */
    REFUSED(q.grouping = DG_GROUPS_K_COLUMNS;
            g.scale_a.cols = 5, DG_INVALID_ARGUMENT,
            "scale_a.cols is 5, but 3 groups of together 200 columns in blocks of 128 need 2 to 4");
    REFUSED(q.grouping = DG_GROUPS_K_COLUMNS; g.scale_b.cols = 1, DG_INVALID_ARGUMENT, "2 to 4");
    REFUSED(q.grouping = DG_GROUPS_K_BLOCKS;
            g.scale_a.col_phase = 1, DG_INVALID_ARGUMENT, "col_phase");
}

static void strides(void **state)
{
    (void)state;
    REFUSED(q.b_stride = -1, DG_INVALID_ARGUMENT, "groups.b_stride is -1");
    REFUSED(q.scale_a_stride = -8, DG_INVALID_ARGUMENT, "groups.scale_a_stride");
    REFUSED(q.a_stride = INT64_MAX / 2, DG_INVALID_ARGUMENT, "groups.a_stride");
    REFUSED(q.d_stride = 159, DG_INVALID_ARGUMENT, "groups.d_stride is 159");
    REFUSED(q.d_stride = 0, DG_INVALID_ARGUMENT, "overlaps that of group 1");
    REFUSED(g.a.data = g.d.data, DG_INVALID_ARGUMENT, "d overlaps a");
    REFUSED(g.scale_b.data = (char *)g.d.data + 4 * q.d_stride, DG_INVALID_ARGUMENT,
            "d overlaps scale_b");
    REFUSED(q.sizes = g.d.data, DG_INVALID_ARGUMENT, "d overlaps groups.sizes");
    REFUSED(g.c = g.d; g.beta = 1.0f;
            q.c_stride = q.d_stride + 1, DG_INVALID_ARGUMENT, "d overlaps c");
}

static void packed_weights(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    dg_weights *weights = NULL, *other = NULL;
    dg_gemm small = gemm_of(recipe_named("block128"), 8, 19, 200, DG_BF16);
    small.b.data = valid->gemm.b.data;
    small.scale_b.data = valid->gemm.scale_b.data;
    assert_ok(
        dg_weights_pack(context, &valid->gemm.b, &valid->gemm.scale_b, NULL, 0, NULL, &weights));
    assert_ok(dg_weights_pack(context, &small.b, &small.scale_b, NULL, 0, NULL, &other));
    const dg_weights *good[] = {weights, weights, weights}, *odd[] = {weights, weights, other};
    const dg_weights *missing[] = {weights, NULL, weights};
    REFUSED(g.weights = weights, DG_INVALID_ARGUMENT, "gemm.weights");
    REFUSED(q.weights = good, DG_INVALID_ARGUMENT, "b and scale_b must be absent");
    REFUSED(q.weights = odd, DG_INVALID_ARGUMENT, "groups.weights[2] differs");
    REFUSED(q.weights = missing, DG_INVALID_ARGUMENT, "groups.weights[1] is NULL");
    REFUSED(q.weights = good; q.grouping = DG_GROUPS_K_COLUMNS, DG_INVALID_ARGUMENT, "along K");
    dg_weights_destroy(weights);
    dg_weights_destroy(other);
}

/* What the device's arrays may not say, where they can be read. */
static void sizes_that_are_read(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    static const int32_t twice[] = {1, 1, 0, 0, 1, -1, 2, 2}, blocks[] = {16, 0, 24};
    dg_groups q = valid->groups;
    q.grouping = DG_GROUPS_BY_ROW;
    q.sizes = twice;
    assert_refused(dg_grouped_run(context, &valid->gemm, &q, NULL), DG_INVALID_ARGUMENT,
                   "groups.sizes[4] is 1");
    q.grouping = DG_GROUPS_K_BLOCKS;
    q.sizes = blocks;
    assert_refused(dg_grouped_run(context, &valid->gemm, &q, NULL), DG_INVALID_ARGUMENT,
                   "groups.sizes[2] is 24");
    grouped_case_check_untouched(valid);
}

/* Sizes that the scale arrays do not cover: seen where the sizes can be read. */
static void too_few_scales(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    static const int32_t sizes[] = {100, 100, 56};
    rng r = rng_new(2);
    grouped_shape s =
        grouped_of(recipe_named("block1x128"), DG_GROUPS_K_COLUMNS, 3, 8, 20, 256, DG_F32);
    s.sizes = sizes;
    s.gemm.scale_a.cols = s.gemm.scale_b.cols = 4;
    s.gemm.scale_a.row_stride = s.gemm.scale_b.row_stride = 4;
    grouped_case *c = grouped_case_new(&r, &s);
    assert_ok(grouped_case_run(c, context, false));
    grouped_case_check(c);
    c->gemm.scale_b.cols = 2;
    assert_refused(grouped_case_run(c, context, false), DG_INVALID_ARGUMENT,
                   "groups.sizes need 3 columns of scale_b");
    grouped_case_check_untouched(c);
    grouped_case_free(c);
}

/* Blocks along K lie one behind another: ld says nothing, also not where A ends. */
static void ld_of_blocks(void **state)
{
    (void)state;
    enum { M = 16, N = 32, K = 64 };
    static _Alignas(256) char memory[(M + N) * K + M * N * 4 + 256];
    static const int32_t sizes[] = {32, 32};
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(memory, DG_E4M3, M, K);
    g.b = dg_matrix_of(memory + M * K, DG_E4M3, N, K);
    g.d = dg_matrix_of(memory + (M + N) * K, DG_F32, M, N);
    g.scale_a = g.scale_b = dg_scale_of(memory + sizeof memory - 256, DG_F32, M, K, 0, 0);
    dg_groups q = dg_groups_of(DG_GROUPS_K_BLOCKS, 1, sizes, &g);
    const int64_t lds[] = {K, 0, 1000, INT64_MAX, -1};
    for (size_t i = 0; i < sizeof lds / sizeof lds[0]; i++) {
        g.a.ld = g.b.ld = lds[i];
        assert_ok(dg_grouped_prepare(context, &g, &q));
    }
}

/* None of it did any harm. */
static void still_works(void **state)
{
    (void)state;
    assert_ok(grouped_case_run(valid, context, false));
    grouped_case_check(valid);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions),
        cmocka_unit_test(operands),
        cmocka_unit_test(strides),
        cmocka_unit_test(packed_weights),
        cmocka_unit_test(sizes_that_are_read),
        cmocka_unit_test(too_few_scales),
        cmocka_unit_test(ld_of_blocks),
        cmocka_unit_test(still_works),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, begin, end);
}
