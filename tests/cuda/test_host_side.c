/* SPDX-License-Identifier: MIT */
/*
 * What the CUDA backend's host side takes and refuses, beyond what the front looks at: addresses
 * that a kernel would fault on, empty operands and tables, tables whose problems begin inside a
 * block of scales, and rows that must not depend on the kernel. Run it with --device cuda:0.
 */
#include "test.h"

#include <stdlib.h>
#include <string.h>

enum { M = 64, N = 128, K = 128, ROOM = 1 << 21 };

static dg_context *context;
static char *memory, *at; /* device memory that holds scales of 1 to 7; what is left of it */

static int open_context(void **state)
{
    (void)state;
    static float ones[ROOM / 4];
    if (test_device() == DG_CPU)
        return 0;
    context = test_context(NULL);
    for (int i = 0; i < ROOM / 4; i++)
        ones[i] = (float)(1 + i % 7);
    assert_ok(dg_memory_alloc(context, ROOM, (void **)&memory));
    assert_ok(dg_memory_copy(context, memory, ones, ROOM, DG_HOST_TO_DEVICE, NULL));
    assert_ok(dg_synchronize(context, NULL));
    at = memory;
    return 0;
}

static int close_context(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        return 0;
    assert_ok(dg_memory_free(context, memory));
    dg_destroy(context);
    return 0;
}

static void *take(size_t bytes)
{
    void *taken = at;
    at += (bytes + 255) / 256 * 256;
    assert_true(at <= memory + ROOM);
    return taken;
}

static void *to_device(const void *host, size_t bytes)
{
    void *taken = take(bytes);
    assert_ok(dg_memory_copy(context, taken, host, bytes, DG_HOST_TO_DEVICE, NULL));
    assert_ok(dg_synchronize(context, NULL));
    return taken;
}

/* Codes of 1 and scales of 1 to 7; without data where that is asked for. */
static dg_gemm product(dg_dtype a, dg_dtype d, int64_t m, int64_t k, bool with_data)
{
    static uint8_t codes[N * 1024];
    memset(codes, 0x38, sizeof codes);
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(NULL, a, m, k);
    g.b = dg_matrix_of(NULL, DG_E4M3, N, k);
    g.d = dg_matrix_of(NULL, d, m, N);
    g.scale_a = dg_scale_of(NULL, DG_F32, m, k, 1, 128);
    g.scale_b = dg_scale_of(NULL, DG_F32, N, k, 128, 128);
    if (!with_data)
        return g;
    at = memory + ROOM / 2; /* scales before that */
    g.scale_a.data = g.scale_b.data = memory;
    g.a.data = to_device(codes, (size_t)(m * k));
    g.b.data = to_device(codes, (size_t)(N * k));
    g.d.data = take((size_t)(m * N) * dg_dtype_bytes(d));
    return g;
}

/* ---- addresses that a kernel would fault on ------------------------------------------------ */

static void misaligned_elements(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    dg_gemm g = product(DG_E4M3, DG_BF16, M, K, true);
    assert_ok(dg_gemm_run(context, &g, NULL));
    dg_gemm odd = g;
    odd.d.data = (char *)g.d.data + 1;
    assert_refused(dg_gemm_run(context, &odd, NULL), DG_MISALIGNED, "d is at");
    odd = g;
    odd.scale_a.data = memory + 2;
    assert_refused(dg_gemm_run(context, &odd, NULL), DG_MISALIGNED, "scale_a is at");
    odd = g;
    odd.bias = dg_matrix_of(memory + 1, DG_F16, 1, N);
    assert_refused(dg_gemm_run(context, &odd, NULL), DG_MISALIGNED, "bias is at");
    odd = g;
    odd.a.data = (char *)g.a.data + 1; /* FP8 lies anywhere */
    odd.a.rows = odd.d.rows = odd.scale_a.rows = M - 1;
    assert_ok(dg_gemm_run(context, &odd, NULL));
    dg_dequantize q = DG_DEQUANTIZE_INIT;
    q.input = g.a;
    q.scale = g.scale_a;
    q.output = dg_matrix_of(memory + ROOM / 4 + 2, DG_F32, M, K);
    assert_refused(dg_dequantize_run(context, &q, NULL), DG_MISALIGNED, "output is at");
}

static void memory_of_the_host(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    dg_gemm g = product(DG_E4M3, DG_BF16, M, K, true);
    void *host = aligned_alloc(256, ROOM);
    assert_non_null(host);
    g.a.data = (char *)g.a.data + 1; /* needs a copy */
    g.a.rows = g.d.rows = g.scale_a.rows = M - 1;
    g.workspace = host;
    g.workspace_bytes = ROOM;
    assert_refused(dg_gemm_run(context, &g, NULL), DG_DEVICE_MISMATCH, "workspace at");
    free(host);

    dg_gemm largest = product(DG_E4M3, DG_BF16, M, K, false);
    dg_table *table;
    int32_t m = 1;
    dg_table_values values = DG_TABLE_VALUES_INIT;
    assert_ok(dg_table_create(context, &largest, 1, &table));
    values.m = &m;
    assert_refused(dg_table_update_device(table, &values, NULL), DG_DEVICE_MISMATCH, "values.m at");
    dg_table_destroy(table);
}

/* ---- nothing at all ------------------------------------------------------------------------ */

static void a_table_of_no_problems(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    dg_gemm largest = product(DG_E4M3, DG_BF16, M, K, false);
    dg_table *table;
    assert_ok(dg_table_create(context, &largest, 0, &table));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    dg_table_destroy(table);
}

static void one_scale_of_no_columns(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    dg_quantize q = DG_QUANTIZE_INIT;
    float scale = 0.0f;
    q.input = dg_matrix_of(NULL, DG_BF16, 5, 0);
    q.output = dg_matrix_of(NULL, DG_E4M3, 5, 0);
    q.scale = dg_scale_of(memory + ROOM / 4, DG_F32, 5, 0, 0, 0);
    assert_ok(dg_quantize_run(context, &q, NULL));
    assert_ok(dg_memory_copy(context, &scale, q.scale.data, 4, DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
    assert_true(scale == 1.0f);
}

/* ---- tables whose scales begin inside a block ---------------------------------------------- */

/* `problem` in a table gives what dg_gemm_run makes of `expected`, after n has grown to N. */
static void check_table(const dg_gemm *largest, const dg_gemm *problem, const dg_gemm *expected)
{
    static float want[M * N], got[M * N];
    dg_table *table;
    int32_t n = N;
    dg_table_values values = DG_TABLE_VALUES_INIT;
    assert_ok(dg_gemm_run(context, expected, NULL));
    assert_ok(
        dg_memory_copy(context, want, expected->d.data, sizeof want, DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
    assert_ok(dg_table_create(context, largest, 1, &table));
    assert_ok(dg_table_set(table, 0, problem));
    const dg_status status = dg_table_update(table, NULL);
    if (status == DG_UNSUPPORTED_SCALE) { /* better than a wrong result */
        dg_table_destroy(table);
        return;
    }
    assert_int_equal(status, DG_OK);
    values.n = to_device(&n, sizeof n);
    assert_ok(dg_table_update_device(table, &values, NULL));
    assert_ok(dg_table_run(table, NULL));
    assert_ok(dg_memory_copy(context, got, problem->d.data, sizeof got, DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
    dg_table_destroy(table);
    assert_memory_equal(got, want, sizeof want);
}

static void tables_with_phases(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    const dg_dtype types[] = {DG_E4M3, DG_E5M2};
    for (int t = 0; t < 2; t++) {
        /* Along K: the largest problem has one column of scales, this one two. */
        dg_gemm largest = product(types[t], DG_F32, M, K, false);
        dg_gemm g = product(types[t], DG_F32, M, K, true);
        g.scale_a.col_phase = 64;
        g.scale_a.cols = g.scale_a.row_stride = 2;
        check_table(&largest, &g, &g);
        /* Rows of B: one scale for 64 of them, two when the device makes them 128. */
        largest = product(types[t], DG_F32, M, 1024, false);
        g = product(types[t], DG_F32, M, 1024, true);
        g.scale_b.row_phase = 64;
        g.scale_b.rows = 2;
        dg_gemm small = g;
        small.b.rows = small.d.cols = 64;
        small.scale_b.rows = 1;
        check_table(&largest, &small, &g);
    }
}

/* ---- batch-invariant groups ---------------------------------------------------------------- */

/* The first rows of groups of 64 to 256: all kernels add them up alike. */
static void rows_of_invariant_groups(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    enum { GROUPS = 2, MOST = 256, COLS = 256, DEPTH = 512, FIRST = 64 };
    static uint8_t a[GROUPS * MOST * DEPTH], b[GROUPS * COLS * DEPTH];
    static float rows[2][FIRST * COLS];
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.batch_invariant = true;
    dg_context *invariant = test_context(&options);
    for (size_t i = 0; i < sizeof a; i++)
        a[i] = (uint8_t)(i % (MOST * DEPTH) * 2654435761u >> 24 & 0xF7);
    for (size_t i = 0; i < sizeof b; i++)
        b[i] = (uint8_t)(i * 2246822519u >> 24 & 0xF7);
    const float scales[2] = {0.0123f, 0.0457f};
    for (int64_t m = FIRST; m <= MOST; m += 64) {
        at = memory;
        dg_gemm g = DG_GEMM_INIT;
        g.b = dg_matrix_of(to_device(b, sizeof b), DG_E4M3, COLS, DEPTH);
        g.a = dg_matrix_of(take((size_t)(GROUPS * m * DEPTH)), DG_E4M3, m, DEPTH);
        for (int i = 0; i < GROUPS; i++)
            assert_ok(dg_memory_copy(context, (char *)g.a.data + i * m * DEPTH, a,
                                     (size_t)(m * DEPTH), DG_HOST_TO_DEVICE, NULL));
        g.d = dg_matrix_of(take((size_t)(GROUPS * m * COLS * 4)), DG_F32, m, COLS);
        g.scale_a = dg_scale_of(to_device(&scales[0], 4), DG_F32, m, DEPTH, 0, 0);
        g.scale_b = dg_scale_of(to_device(&scales[1], 4), DG_F32, COLS, DEPTH, 0, 0);
        const int32_t sizes[GROUPS] = {(int32_t)m, (int32_t)m};
        dg_groups q = dg_groups_of(DG_GROUPS_MASKED, GROUPS, to_device(sizes, sizeof sizes), &g);
        q.scale_a_stride = q.scale_b_stride = 0;
        assert_ok(dg_grouped_run(invariant, &g, &q, NULL));
        float *target = rows[m > FIRST];
        assert_ok(
            dg_memory_copy(context, target, g.d.data, sizeof rows[0], DG_DEVICE_TO_HOST, NULL));
        assert_ok(dg_synchronize(context, NULL));
        if (m > FIRST)
            assert_memory_equal(rows[1], rows[0], sizeof rows[0]);
    }
    dg_destroy(invariant);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(misaligned_elements),    cmocka_unit_test(memory_of_the_host),
        cmocka_unit_test(a_table_of_no_problems), cmocka_unit_test(one_scale_of_no_columns),
        cmocka_unit_test(tables_with_phases),     cmocka_unit_test(rows_of_invariant_groups),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, open_context, close_context);
}
