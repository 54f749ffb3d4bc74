/* SPDX-License-Identifier: MIT */
/*
 * What the CUDA backend asks of the driver, with a driver that only counts: how many calls a
 * product takes, whose context is current, which pointers are refused, and that nothing is
 * loaded during a capture. Only in builds with the CUDA backend.
 */
#include "counting_driver.h"
#include "gemm_case.h"
#include "test.h"

#include <string.h>

static int all(void)
{
    return fake.count.get_current + fake.count.push + fake.count.pop + fake.count.pointers +
           fake.count.maps + fake.count.loads + fake.count.launches;
}

/* Operands in device memory, each far from the others, `place` bytes into it. */
static dg_gemm product(const char *recipe, int64_t m, uintptr_t place)
{
    dg_gemm g = gemm_of(recipe_named(recipe), m, 8192, 7168, DG_BF16);
    void **const data[] = {&g.a.data, &g.b.data, &g.d.data, &g.scale_a.data, &g.scale_b.data};
    for (uintptr_t i = 0; i < sizeof data / sizeof data[0]; i++)
        *data[i] = (void *)(ours + (i << 32) + place);
    return g;
}

static void run(dg_context *context, const dg_gemm *g)
{
    memset(&fake.count, 0, sizeof fake.count);
    assert_ok(dg_gemm_run(context, g, a_stream));
    assert_int_equal(fake.count.launches, 1);
}

/* A call like an earlier one asks for the current context and launches. */
static void repeated_calls(void **state)
{
    dg_context *context = *state;
    static const struct {
        const char *recipe;
        int64_t m;
        int maps;
    } cases[] = {
        {"block128", 2048, 3}, {"token_channel", 2048, 3}, {"block128", 16, 2}, {"mx", 1, 2}};
    fake.current = primary;
    for (uintptr_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dg_gemm g = product(cases[i].recipe, cases[i].m, i << 20);
        run(context, &g);
        assert_int_equal(fake.count.pointers, 5);
        assert_int_equal(fake.count.maps, cases[i].maps);
        const dgi_gemm_product first = fake.launched;
        for (int round = 0; round < 3; round++) {
            run(context, &g);
            assert_int_equal(all(), 2);
            assert_memory_equal(&fake.launched.maps.a, &first.maps.a, sizeof first.maps.a);
            assert_memory_equal(&fake.launched.maps.b, &first.maps.b, sizeof first.maps.b);
        }
    }
    /* Other tokens in the same memory: new maps of A and D, the weights' is still there. */
    dg_gemm g = product("block128", 1024, 0);
    run(context, &g);
    assert_int_equal(fake.count.pointers, 0);
    assert_int_equal(fake.count.maps, 2);
    assert_int_equal(fake.launched.maps.a.opaque[2], 1024);
    assert_int_equal(fake.launched.maps.b.opaque[2], 8192);
}

/* The caller's context is current again after each call, also after one that failed. */
static void contexts_are_restored(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    for (int round = 0; round < 2; round++) {
        run(context, &g);
        assert_int_equal(fake.count.push, 1);
        assert_int_equal(fake.count.pop, 1);
        assert_ptr_equal(fake.current, callers);
    }
    fake.launch_result = CUDA_ERROR_LAUNCH_FAILED;
    assert_refused(dg_gemm_run(context, &g, a_stream), DG_DRIVER_ERROR, "CUDA_ERROR_OF_TEST");
    assert_ptr_equal(fake.current, callers);
}

/* Memory of the host or of another device is refused, whatever was asked before. */
static void wrong_pointers(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 16, 0);
    run(context, &g);
    static const struct {
        uintptr_t address;
        const char *part;
    } wrong[] = {{4096, "is not memory of CUDA device 0"},
                 {0x7f8000001000, "is memory of CUDA device 1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (int round = 0; round < 2; round++) {
            void **const data[] = {&g.a.data, &g.b.data, &g.d.data, &g.scale_a.data,
                                   &g.scale_b.data};
            for (size_t j = 0; j < sizeof data / sizeof data[0]; j++) {
                void *good = *data[j];
                *data[j] = (void *)wrong[i].address;
                const int launches = fake.count.launches;
                assert_refused(dg_gemm_run(context, &g, a_stream), DG_DEVICE_MISMATCH,
                               wrong[i].part);
                assert_int_equal(fake.count.launches, launches);
                *data[j] = good;
            }
        }
    run(context, &g);
    assert_int_equal(fake.count.pointers, 0);
    /* After memory was released, every pointer is asked about again. */
    assert_ok(dg_memory_free(context, (void *)(ours + ((uintptr_t)9 << 32))));
    run(context, &g);
    assert_int_equal(fake.count.pointers, 5);
}

/* During a capture nothing is loaded; what is loaded already runs. */
static void captures(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    fake.capturing = true;
    assert_refused(dg_gemm_run(context, &g, a_stream), DG_NOT_PREPARED, "is not loaded");
    assert_int_equal(fake.count.loads + fake.count.launches, 0);
    fake.capturing = false;
    assert_ok(dg_gemm_prepare(context, &g));
    assert_true(fake.count.loads > 0);
    fake.capturing = true;
    run(context, &g);
    assert_int_equal(fake.count.loads, 0);
}

/* After one prepare call every smaller M can be captured, from addresses that need a copy too. */
static void prepared_for_smaller_m(void **state)
{
    dg_context *context = *state;
    dgi_cuda *cuda = context->state;
    enum { MOST = 4096 };
    fake.current = primary;
    for (int i = 0; i < recipe_count; i++)
        for (int invariant = 0; invariant < 2; invariant++) {
            dg_gemm g = product(recipes[i].name, MOST, 0);
            g.a.dtype = i % 2 ? DG_E5M2 : DG_E4M3;
            dgi_cuda_unload(cuda);
            memset(cuda->kernels, 0, sizeof cuda->kernels);
            cuda->batch_invariant = invariant;
            fake.capturing = false;
            assert_ok(dg_gemm_prepare(context, &g));
            fake.capturing = true;
            for (int64_t m = 1; m <= MOST; m += m < 300 ? 1 : 61) {
                dg_gemm fewer = g;
                fewer.a.rows = fewer.d.rows = m;
                fewer.scale_a = scale_of(g.scale_a.dtype, m, g.a.cols, g.scale_a.block_rows,
                                         g.scale_a.block_cols, 0, 0);
                fewer.scale_a.data = g.scale_a.data;
                if (dg_gemm_run(context, &fewer, a_stream) != DG_OK)
                    fail_msg("%s: %s", gemm_text(&fewer), dg_last_error());
            }
        }
}

/* Operands that the copy engine cannot read go through scratch memory, which is given back. */
static void scratch_memory(void **state)
{
    dg_context *context = *state;
    dgi_cuda *cuda = context->state;
    dg_gemm g = product("block128", 2048, 0);
    run(context, &g);
    assert_int_equal(fake.count.taken + fake.count.given, 0);
    g.a.data = (char *)g.a.data + 1;
    for (int round = 0; round < 2; round++) {
        memset(&fake.count, 0, sizeof fake.count);
        fake.launch_result = round == 0 ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_FAILED;
        assert_status(dg_gemm_run(context, &g, a_stream), round == 0 ? DG_OK : DG_DRIVER_ERROR);
        assert_int_equal(fake.count.launches, 2 - round);
        assert_int_equal(fake.count.taken, 1);
        assert_int_equal(fake.count.given, 1);
        assert_ptr_equal(fake.scratch_stream, a_stream);
    }
    fake.launch_result = CUDA_SUCCESS;
    assert_ok(dg_gemm_prepare(context, &g)); /* the pool has enough from then on */
    assert_int_equal(fake.count.taken, 2);
    assert_int_equal(fake.count.given, 2);
    size_t bytes;
    assert_ok(dg_gemm_workspace(context, &g, &bytes));
    g.workspace = (void *)(ours + ((uintptr_t)8 << 32));
    g.workspace_bytes = bytes;
    memset(&fake.count, 0, sizeof fake.count);
    assert_ok(dg_gemm_run(context, &g, a_stream));
    assert_int_equal(fake.count.taken, 0);
    /* A device without pools still runs all that needs none. */
    fake.pools_exist = false;
    dgi_cuda_scratch_open(cuda);
    assert_ok(dg_gemm_run(context, &g, a_stream));
    g.workspace = NULL;
    assert_refused(dg_gemm_run(context, &g, a_stream), DG_UNSUPPORTED_DEVICE, "gemm.workspace");
}

/* Packed weights are read as they lie, by the kernels for many tokens too. */
static void packed_weights(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    size_t bytes;
    dg_weights *weights;
    void *buffer = (void *)(ours + ((uintptr_t)8 << 32));
    assert_ok(dg_weights_bytes(context, &g.b, &g.scale_b, &bytes));
    assert_ok(dg_weights_pack(context, &g.b, &g.scale_b, buffer, bytes, a_stream, &weights));
    g.weights = weights;
    g.b = (dg_matrix){0};
    g.scale_b = (dg_scale){0};
    assert_ok(dg_gemm_workspace(context, &g, &bytes));
    assert_int_equal(bytes, 0);
    run(context, &g);
    assert_int_equal(fake.count.taken, 0);
    assert_int_equal(fake.count.maps, 2); /* A's and D's */
    assert_ptr_equal(fake.launched.args.packed, buffer);
    dg_weights_destroy(weights);
}

/* B is read before earlier work has ended where that is promised, but never a copy of it. */
static void constant_weights(void **state)
{
    dg_context *context = *state;
    for (int constant = 0; constant < 2; constant++)
        for (int misaligned = 0; misaligned < 2; misaligned++) {
            dg_gemm g = product("block128", 16, 0);
            g.b.data = (char *)g.b.data + misaligned;
            g.b_is_constant = constant;
            assert_ok(dg_gemm_run(context, &g, a_stream));
            assert_int_equal(fake.launched_few.product.n, g.d.cols);
            assert_int_equal(fake.launched_few.early, constant && !misaligned);
        }
}

/* Few tokens: the next kernel begins late where its CTAs have a place beside those of this one. */
static void next_kernel(void **state)
{
    dg_context *context = *state;
    for (int64_t n = 8192; n <= 24576; n += 16384) { /* 128 CTAs and 192, of 132 multiprocessors */
        dg_gemm g = product("token_channel", 16, 0);
        g.b.rows = g.scale_b.rows = g.d.cols = g.d.ld = n;
        assert_ok(dg_gemm_run(context, &g, a_stream));
        assert_int_equal(fake.launched_few.product.n, n);
        assert_int_equal(fake.launched_few.last, n == 8192 ? 2 : 5); /* 5: all stages of the ring */
    }
}

/* A stream of another device is named as what it is. */
static void wrong_stream(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    fake.launch_result = CUDA_ERROR_INVALID_HANDLE;
    assert_refused(dg_gemm_run(context, &g, (void *)0x1234), DG_DEVICE_MISMATCH,
                   "stream at 0x1234 is not one of CUDA device 0");
    g.a.rows = g.d.rows = g.scale_a.rows = 16;
    assert_refused(dg_gemm_run(context, &g, (void *)0x1234), DG_DEVICE_MISMATCH, "stream at");
}

/* Quantisers refuse the host's memory, and launch nothing for an empty matrix. */
static void quantisers(void **state)
{
    dg_context *context = *state;
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of((void *)ours, DG_BF16, 64, 256);
    q.output = dg_matrix_of((void *)(ours + ((uintptr_t)1 << 32)), DG_E4M3, 64, 256);
    q.scale = scale_of(DG_F32, 64, 256, 1, 128, 0, 0);
    q.scale.data = (void *)(ours + ((uintptr_t)2 << 32));
    assert_ok(dg_quantize_run(context, &q, a_stream));
    assert_int_equal(fake.count.launches, 1);
    void **const data[] = {&q.input.data, &q.output.data, &q.scale.data, (void **)&q.counts};
    static const char *const names[] = {"input at", "output at", "scale at", "counts at"};
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++) {
        void *good = *data[i];
        *data[i] = (void *)4096;
        assert_refused(dg_quantize_run(context, &q, a_stream), DG_DEVICE_MISMATCH, names[i]);
        *data[i] = good;
    }
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    d.input = q.output;
    d.output = q.input;
    d.scale = q.scale;
    d.scale.data = (void *)4096;
    assert_refused(dg_dequantize_run(context, &d, a_stream), DG_DEVICE_MISMATCH, "scale at");
    assert_int_equal(fake.count.launches, 1);
    q.input.rows = q.output.rows = 0;
    q.scale = scale_of(DG_F32, 0, 256, 0, 0, 0, 0);
    q.scale.data = d.input.data;
    q.source = DG_SCALE_GIVEN;
    assert_ok(dg_quantize_run(context, &q, a_stream));
    assert_int_equal(fake.count.launches, 1);
}

/* Groups of rows whose operands lie one behind another take one launch and no scratch memory. */
static void groups(void **state)
{
    dg_context *context = *state;
    enum { COUNT = 40 };
    const int32_t *sizes = (const int32_t *)(ours + ((uintptr_t)9 << 32));
    const dg_grouping groupings[] = {DG_GROUPS_BY_END, DG_GROUPS_MASKED, DG_GROUPS_BY_ROW};
    dg_gemm g = product("block128", 256, 0);
    for (int i = 0; i < 3; i++)
        for (int gap = 0; gap < 2; gap++) {
            dg_groups q = dg_groups_of(groupings[i], COUNT, sizes, &g);
            q.b_stride += gap * g.b.ld;
            assert_ok(dg_grouped_run(context, &g, &q, a_stream));
            memset(&fake.count, 0, sizeof fake.count);
            assert_ok(dg_grouped_run(context, &g, &q, a_stream));
            const bool one = gap == 0 && groupings[i] != DG_GROUPS_BY_ROW;
            assert_int_equal(fake.count.launches, one ? 1 : 2);
            assert_int_equal(fake.count.taken, one ? 0 : 1);
            assert_int_equal(fake.count.maps, 0);
        }
}

/* A table is brought up to date from the host's memory, which a graph must not read later. */
static void tables(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 256, 0), largest = g;
    largest.a.data = largest.b.data = largest.d.data = NULL;
    largest.scale_a.data = largest.scale_b.data = NULL;
    dg_table *table;
    assert_ok(dg_table_create(context, &largest, 2, &table));
    assert_ok(dg_table_set(table, 1, &g));
    assert_ok(dg_table_update(table, a_stream));
    assert_ok(dg_table_run(table, a_stream));
    fake.capturing = true;
    assert_refused(dg_table_update(table, a_stream), DG_NOT_PREPARED, "cannot be captured");
    assert_ok(dg_table_run(table, a_stream));
    fake.capturing = false;
    g.scale_b.data = (void *)4096;
    assert_ok(dg_table_set(table, 0, &g));
    assert_refused(dg_table_update(table, a_stream), DG_DEVICE_MISMATCH, "scale_b at");
    dg_gemm empty = product("block128", 256, 0); /* whose A, with no rows, may be anywhere */
    empty.a.rows = empty.d.rows = empty.scale_a.rows = 0;
    empty.a.data = empty.d.data = empty.scale_a.data = (void *)4096;
    assert_ok(dg_table_set(table, 0, &empty));
    assert_ok(dg_table_update(table, a_stream));
    assert_ok(dg_table_set(table, 0, NULL));
    assert_ok(dg_table_update(table, a_stream));
    dg_table_destroy(table);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(repeated_calls, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(contexts_are_restored, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(wrong_pointers, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(captures, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(prepared_for_smaller_m, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(scratch_memory, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(packed_weights, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(constant_weights, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(next_kernel, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(wrong_stream, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(quantisers, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(groups, counting_open, counting_close),
        cmocka_unit_test_setup_teardown(tables, counting_open, counting_close),
    };
    return test_run(argc, argv, tests);
}
