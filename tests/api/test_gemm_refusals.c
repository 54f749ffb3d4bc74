/* SPDX-License-Identifier: MIT */
/*
 * What a GEMM refuses: the status, a message that names the argument and its value, no byte of D
 * touched, and a context that works afterwards.
 */
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static dg_context *context;
static gemm_case *good; /* a call that is right, with every optional operand */

static int set_up(void **state)
{
    (void)state;
    rng r = rng_new(2);
    dg_gemm shape = gemm_of(recipe_named("block128"), 24, 40, 150, DG_BF16);
    shape.c = dg_matrix_of(NULL, DG_F32, 24, 40);
    shape.beta = 0.5f;
    shape.bias = dg_matrix_of(NULL, DG_F32, 1, 40);
    context = test_context(NULL);
    good = gemm_case_new(&r, &shape, CASE_PLAIN);
    return 0;
}

/* Ends every test: after all those refusals, the right call still works. */
static int tear_down(void **state)
{
    (void)state;
    assert_ok(gemm_case_run(good, context));
    gemm_case_check(good);
    gemm_case_free(good);
    dg_destroy(context);
    return 0;
}

/* The good call with one `change` (statements about `g`) is refused. */
#define REFUSED(status, text, change)                                                              \
    do {                                                                                           \
        dg_gemm g = good->gemm;                                                                    \
        change;                                                                                    \
        assert_refused(dg_gemm_run(context, &g, NULL), status, text);                              \
        gemm_case_check_untouched(good);                                                           \
    } while (0)

static void null_arguments(void **state)
{
    (void)state;
    assert_refused(dg_gemm_run(NULL, &good->gemm, NULL), DG_INVALID_ARGUMENT, "context is NULL");
    assert_refused(dg_gemm_run(context, NULL, NULL), DG_INVALID_ARGUMENT, "gemm is NULL");
    assert_refused(dg_gemm_workspace(context, &good->gemm, NULL), DG_INVALID_ARGUMENT,
                   "bytes is NULL");
    assert_refused(dg_gemm_explain(context, &good->gemm, NULL, NULL), DG_INVALID_ARGUMENT,
                   "text_bytes is NULL");
    REFUSED(DG_INVALID_ARGUMENT, "a.data is NULL, but a is 24 x 150", g.a.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "b.data is NULL", g.b.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "c.data is NULL", g.c.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "d.data is NULL", g.d.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "bias.data is NULL", g.bias.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "scale_a.data is NULL, but 24 x 2 scales", g.scale_a.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "scale_b.data is NULL", g.scale_b.data = NULL);
}

static void types(void **state)
{
    (void)state;
    REFUSED(DG_UNSUPPORTED_TYPE, "a.dtype is f32: this operand takes e4m3 or e5m2",
            g.a.dtype = DG_F32);
    REFUSED(DG_UNSUPPORTED_TYPE, "a.dtype is none", g.a.dtype = DG_NONE);
    REFUSED(DG_UNSUPPORTED_TYPE, "a.dtype is unknown", g.a.dtype = (dg_dtype)99);
    REFUSED(DG_UNSUPPORTED_TYPE, "a.dtype is unknown", g.a.dtype = (dg_dtype)-1);
    REFUSED(DG_UNSUPPORTED_TYPE, "b.dtype is bf16", g.b.dtype = DG_BF16);
    REFUSED(DG_UNSUPPORTED_TYPE, "b.dtype is ue8m0", g.b.dtype = DG_UE8M0);
    REFUSED(DG_UNSUPPORTED_TYPE, "c.dtype is e4m3: this operand takes f32, f16 or bf16",
            g.c.dtype = DG_E4M3);
    REFUSED(DG_UNSUPPORTED_TYPE, "d.dtype is none", g.d.dtype = DG_NONE);
    REFUSED(DG_UNSUPPORTED_TYPE, "d.dtype is ue8m0", g.d.dtype = DG_UE8M0);
    REFUSED(DG_UNSUPPORTED_TYPE, "bias.dtype is e5m2", g.bias.dtype = DG_E5M2);
    REFUSED(DG_INVALID_ARGUMENT, "accumulation is 7", g.accumulation = (dg_accumulation)7);
}

static void shapes(void **state)
{
    (void)state;
    REFUSED(DG_INVALID_ARGUMENT, "a is -1 x 150: sizes cannot be negative", g.a.rows = -1);
    REFUSED(DG_INVALID_ARGUMENT, "b is 40 x -3", g.b.cols = -3);
    REFUSED(DG_INVALID_ARGUMENT, "a is 24 x 149 and b is 40 x 150: both need the same K",
            g.a.cols = 149);
    REFUSED(DG_INVALID_ARGUMENT, "d is 23 x 40, but 24 x 40 is needed", g.d.rows = 23);
    REFUSED(DG_INVALID_ARGUMENT, "d is 24 x 41, but 24 x 40 is needed", g.d.cols = 41);
    REFUSED(DG_INVALID_ARGUMENT, "c is 24 x 39", g.c.cols = 39);
    REFUSED(DG_INVALID_ARGUMENT, "bias is 2 x 40, but 1 x 40 is needed", g.bias.rows = 2);
    REFUSED(DG_INVALID_ARGUMENT, "bias is 1 x 24, but 1 x 40 is needed", g.bias.cols = 24);
    REFUSED(DG_INVALID_ARGUMENT, "a.ld is 149, shorter than a row of 150", g.a.ld = 149);
    REFUSED(DG_INVALID_ARGUMENT, "b.ld is 0", g.b.ld = 0);
    REFUSED(DG_INVALID_ARGUMENT, "c.ld is -40", g.c.ld = -40);
    REFUSED(DG_INVALID_ARGUMENT, "d.ld is 39", g.d.ld = 39);
}

static void overflowing_sizes(void **state)
{
    (void)state;
    REFUSED(DG_INVALID_ARGUMENT, "does not fit 63 bits", g.a.ld = INT64_MAX);
    REFUSED(DG_INVALID_ARGUMENT, "d of 24 x 40 with ld", g.d.ld = INT64_MAX / 40);
    REFUSED(DG_INVALID_ARGUMENT, "does not fit 63 bits", g.a.rows = (int64_t)1 << 40;
            g.a.ld = (int64_t)1 << 30);
    REFUSED(DG_INVALID_ARGUMENT, "does not fit 63 bits", g.scale_a.row_stride = INT64_MAX / 2);
    REFUSED(DG_INVALID_ARGUMENT, "passes the end of the address space",
            g.a.data = (void *)(UINTPTR_MAX - 100));
    REFUSED(DG_INVALID_ARGUMENT, "passes the end of the address space",
            g.scale_a.data = (void *)(UINTPTR_MAX - 15));
    /* A size whose count of blocks cannot be computed in 64 bits. */
    REFUSED(DG_INVALID_ARGUMENT, "", g.a.cols = g.b.cols = g.a.ld = g.b.ld = INT64_MAX;
            g.a.rows = g.b.rows = 1);
}

static void scales(void **state)
{
    (void)state;
    REFUSED(DG_UNSUPPORTED_SCALE, "scale_a.dtype is none: a scale is f32 or ue8m0",
            g.scale_a.dtype = DG_NONE);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale_b.dtype is bf16", g.scale_b.dtype = DG_BF16);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale_a.dtype is unknown", g.scale_a.dtype = (dg_dtype)12);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale_a.block_rows is -1", g.scale_a.block_rows = -1);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale_b.block_cols is -128", g.scale_b.block_cols = -128);
    REFUSED(DG_INVALID_ARGUMENT, "scale_a.col_phase is 128: it must be 0 to 127",
            g.scale_a.col_phase = 128);
    REFUSED(DG_INVALID_ARGUMENT, "scale_b.row_phase is -1", g.scale_b.row_phase = -1);
    REFUSED(DG_INVALID_ARGUMENT, "scale_a.col_phase is 1: it must be 0 to 0",
            g.scale_a.block_cols = 0;
            g.scale_a.cols = 1; g.scale_a.col_phase = 1);
    REFUSED(DG_INVALID_ARGUMENT, "scale_a.rows is 23, but 24 rows in blocks of 1",
            g.scale_a.rows = 23);
    REFUSED(DG_INVALID_ARGUMENT,
            "scale_a.cols is 1, but 150 cols in blocks of 128 (phase 0) need 2",
            g.scale_a.cols = 1);
    REFUSED(DG_INVALID_ARGUMENT,
            "scale_b.cols is 2, but 150 cols in blocks of 128 (phase 120) need 3",
            g.scale_b.col_phase = 120);
    REFUSED(DG_INVALID_ARGUMENT, "strides -1 and 1", g.scale_a.row_stride = -1);
    REFUSED(DG_INVALID_ARGUMENT, "scale_b has strides 2 and -2", g.scale_b.col_stride = -2);
}

static void optional_operands(void **state)
{
    (void)state;
    REFUSED(DG_INVALID_ARGUMENT, "b is absent, and so is weights", g.b.dtype = DG_NONE);
    REFUSED(DG_INVALID_ARGUMENT, "beta is 0.5, but c is absent", g.c.dtype = DG_NONE);
    REFUSED(DG_INVALID_ARGUMENT, "scale_d is given, but d is bf16", g.scale_d = g.scale_a);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale_d.dtype is none", g.d.dtype = DG_E4M3);
}

static void packed_weights(void **state)
{
    (void)state;
    dg_weights *weights;
    dg_matrix b = good->gemm.b;
    dg_scale scale_b = good->gemm.scale_b;
    if (test_device() != DG_CPU) {
        assert_refused(dg_weights_pack(context, &b, &scale_b, NULL, 0, NULL, &weights),
                       DG_DEVICE_MISMATCH, "is not memory of CUDA device");
    }
    b.data = test_to_device(context, good->b.data, good->b.bytes);
    scale_b.data = test_to_device(context, good->scale_b.data, good->scale_b.bytes);
    assert_ok(dg_weights_pack(context, &b, &scale_b, NULL, 0, NULL, &weights));
    REFUSED(DG_INVALID_ARGUMENT, "b and scale_b must be absent", g.weights = weights);
    REFUSED(DG_INVALID_ARGUMENT, "b and scale_b must be absent", g.weights = weights;
            g.b.dtype = DG_NONE);
    REFUSED(DG_INVALID_ARGUMENT, "a is 24 x 149 and b is 40 x 150", g.weights = weights;
            g.b.dtype = g.scale_b.dtype = DG_NONE; g.a.cols = 149);
    dg_weights_destroy(weights);
    dg_weights_destroy(NULL);
    test_release(context, (void *)b.data, good->b.data);
    test_release(context, (void *)scale_b.data, good->scale_b.data);
}

static void workspace(void **state)
{
    (void)state;
    size_t need;
    assert_ok(dg_gemm_workspace(context, &good->gemm, &need));
    char *memory = aligned_alloc(256, need / 256 * 256 + 512);
    assert_non_null(memory);
    if (need > 0) {
        REFUSED(DG_INVALID_ARGUMENT, "workspace_bytes is", g.workspace = memory;
                g.workspace_bytes = need - 1);
        REFUSED(DG_MISALIGNED, "256-byte aligned", g.workspace = memory + 16;
                g.workspace_bytes = need);
        const void *const operands[] = {good->gemm.d.data, good->gemm.c.data, good->gemm.b.data,
                                        good->gemm.scale_a.data, good->gemm.bias.data};
        for (int i = 0; i < 5; i++)
            REFUSED(DG_INVALID_ARGUMENT, i == 0 ? "workspace overlaps d" : "workspace overlaps ",
                    g.workspace = (void *)((uintptr_t)operands[i] / 256 * 256);
                    g.workspace_bytes = need);
    }
    if (test_device() == DG_CPU) {
        good->gemm.workspace = memory;
        good->gemm.workspace_bytes = need;
        assert_ok(gemm_case_run(good, context));
        gemm_case_check(good);
        good->gemm.workspace = NULL;
    }
    free(memory);
}

static void overlapping_output(void **state)
{
    (void)state;
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps a", g.d.data = g.a.data);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps a", g.d.data = (char *)g.a.data + 24 * 150 - 1);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps b", g.d.data = (char *)g.b.data - 24 * 40 * 2 + 1);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps scale_a", g.d.data = g.scale_a.data);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps scale_b", g.d.data = g.scale_b.data);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps bias", g.d.data = g.bias.data);
    /* C may be D itself, but then in every respect. */
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps c", g.c.data = g.d.data);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps c", g.c = g.d; g.c.data = (char *)g.d.data + 2);
    REFUSED(DG_INVALID_ARGUMENT, "d overlaps c", g.c = g.d; g.c.ld = 41);
    /* Behind the last row, and between the rows, is no overlap. */
    dg_gemm g = good->gemm;
    uint16_t both[24 * 80];
    for (int i = 0; i < 24 * 80; i++)
        both[i] = 0x3F80; /* 1.0 */
    g.d = (dg_matrix){both, DG_BF16, 24, 40, 80};
    g.c = (dg_matrix){both + 40, DG_BF16, 24, 40, 80};
    if (test_device() == DG_CPU)
        assert_ok(dg_gemm_run(context, &g, NULL));
    g.c.data = both + 39;
    assert_refused(dg_gemm_run(context, &g, NULL), DG_INVALID_ARGUMENT, "d overlaps c");
}

/* An empty D is no error, and has an explanation. */
static void explained_empty(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char text[256];
        size_t bytes = sizeof text;
        dg_gemm g = DG_GEMM_INIT;
        const int64_t m = i == 0 ? 0 : 4, n = i == 0 ? 4 : 0;
        static float ones[4] = {1.0f, 1.0f, 1.0f, 1.0f};
        g.a = dg_matrix_of(ones, DG_E4M3, m, 4);
        g.b = dg_matrix_of(ones, DG_E4M3, n, 4);
        g.d = dg_matrix_of(NULL, DG_F32, m, n);
        g.scale_a = dg_scale_of(ones, DG_F32, m, 4, 0, 0);
        g.scale_b = dg_scale_of(ones, DG_F32, n, 4, 0, 0);
        assert_ok(dg_gemm_explain(context, &g, text, &bytes));
        assert_non_null(strstr(text, i == 0 ? "0 x 4" : "4 x 0"));
    }
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(null_arguments),
        TEST(types),
        TEST(shapes),
        TEST(overflowing_sizes),
        TEST(scales),
        TEST(packed_weights),
        TEST(workspace),
        TEST(optional_operands),
        TEST(overlapping_output),
        TEST(explained_empty),
    };
    return test_run(argc, argv, tests);
}
