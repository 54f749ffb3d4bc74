/* SPDX-License-Identifier: MIT */
/* What quantising, dequantising and packing refuse: status, message, nothing written. */
#include "gemm_case.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 20, COLS = 300, FILL = 0xA5 };

/* A call of each kind that is right, on buffers of its own. */
static dg_context *context;
static float wide[ROWS * COLS], out[ROWS * COLS];
static uint8_t codes[ROWS * COLS];
static float scales[ROWS * 3];
static dg_quantize_counts counts;
static dg_quantize quantize;
static dg_dequantize dequantize;

static int set_up(void **state)
{
    (void)state;
    rng r = rng_new(70);
    context = test_context(NULL);
    rng_fill_normal(&r, wide, DG_F32, ROWS * COLS, 1.0);
    quantize = (dg_quantize)DG_QUANTIZE_INIT;
    quantize.input = dg_matrix_of(wide, DG_F32, ROWS, COLS);
    quantize.output = dg_matrix_of(codes, DG_E4M3, ROWS, COLS);
    quantize.scale = dg_scale_of(scales, DG_F32, ROWS, COLS, 1, 128);
    quantize.counts = &counts;
    dequantize = (dg_dequantize)DG_DEQUANTIZE_INIT;
    dequantize.input = quantize.output;
    dequantize.scale = quantize.scale;
    dequantize.output = dg_matrix_of(out, DG_F32, ROWS, COLS);
    return 0;
}

/* After the refusals the right calls still work. */
static int tear_down(void **state)
{
    (void)state;
    if (test_device() == DG_CPU) {
        assert_ok(dg_quantize_run(context, &quantize, NULL));
        assert_ok(dg_dequantize_run(context, &dequantize, NULL));
        for (int i = 0; i < ROWS * COLS; i++)
            assert_true(fabsf(out[i] - wide[i]) < 0.3f);
    }
    dg_destroy(context);
    return 0;
}

static void poison(void *data, size_t bytes)
{
    memset(data, FILL, bytes);
}

static void assert_poisoned(const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(((const uint8_t *)data)[i], FILL);
}

#define REFUSED(status, text, change)                                                              \
    do {                                                                                           \
        dg_quantize q = quantize;                                                                  \
        poison(codes, sizeof codes);                                                               \
        poison(scales, sizeof scales);                                                             \
        poison(&counts, sizeof counts);                                                            \
        change;                                                                                    \
        assert_refused(dg_quantize_run(context, &q, NULL), status, text);                          \
        assert_poisoned(codes, sizeof codes);                                                      \
        assert_poisoned(scales, sizeof scales);                                                    \
        assert_poisoned(&counts, sizeof counts);                                                   \
    } while (0)

static void quantize_refusals(void **state)
{
    (void)state;
    assert_refused(dg_quantize_run(NULL, &quantize, NULL), DG_INVALID_ARGUMENT, "context is NULL");
    assert_refused(dg_quantize_run(context, NULL, NULL), DG_INVALID_ARGUMENT, "quantize is NULL");
    REFUSED(DG_INVALID_ARGUMENT, "input.data is NULL", q.input.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "output.data is NULL", q.output.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "scale.data is NULL", q.scale.data = NULL);
    REFUSED(DG_UNSUPPORTED_TYPE, "input.dtype is e4m3", q.input.dtype = DG_E4M3);
    REFUSED(DG_UNSUPPORTED_TYPE, "output.dtype is bf16", q.output.dtype = DG_BF16);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale.dtype is none", q.scale.dtype = DG_NONE);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale.dtype is f16", q.scale.dtype = DG_F16);
    REFUSED(DG_INVALID_ARGUMENT, "output is 19 x 300, but 20 x 300", q.output.rows = 19);
    REFUSED(DG_INVALID_ARGUMENT, "input is -20 x 300", q.input.rows = -20);
    REFUSED(DG_INVALID_ARGUMENT, "input.ld is 299", q.input.ld = 299);
    REFUSED(DG_INVALID_ARGUMENT, "output.ld is 0", q.output.ld = 0);
    REFUSED(DG_INVALID_ARGUMENT, "scale.cols is 2, but 300 cols", q.scale.cols = 2);
    REFUSED(DG_INVALID_ARGUMENT, "scale.rows is 1, but 20 rows", q.scale.rows = 1);
    REFUSED(DG_INVALID_ARGUMENT, "does not fit 63 bits", q.input.ld = INT64_MAX / 4);
    REFUSED(DG_INVALID_ARGUMENT, "source is 2", q.source = (dg_scale_source)2);
    REFUSED(DG_INVALID_ARGUMENT, "rounding is 3", q.rounding = (dg_scale_rounding)3);
    REFUSED(DG_INVALID_ARGUMENT, "overflow is -1", q.overflow = (dg_overflow)-1);
    REFUSED(DG_INVALID_ARGUMENT, "amax_floor is -1", q.amax_floor = -1.0f);
    REFUSED(DG_INVALID_ARGUMENT, "amax_floor is nan", q.amax_floor = NAN);
    REFUSED(DG_INVALID_ARGUMENT, "amax_floor is inf", q.amax_floor = INFINITY);
    REFUSED(DG_UNSUPPORTED_SCALE, "holds only powers of two", q.scale.dtype = DG_UE8M0);
}

static void quantize_overlaps(void **state)
{
    (void)state;
    REFUSED(DG_INVALID_ARGUMENT, "output overlaps input", q.output.data = wide);
    REFUSED(DG_INVALID_ARGUMENT, "output overlaps scale", q.scale.data = codes + 8);
    REFUSED(DG_INVALID_ARGUMENT, "scale overlaps input", q.scale.data = wide);
    REFUSED(DG_INVALID_ARGUMENT, "counts overlaps output", q.counts = (void *)(codes + 16));
    REFUSED(DG_INVALID_ARGUMENT, "counts overlaps scale", q.counts = (void *)scales);
    REFUSED(DG_INVALID_ARGUMENT, "counts overlaps input", q.counts = (void *)wide);
    /* Scales that are written need a place each. */
    REFUSED(DG_INVALID_ARGUMENT, "two scales would share a place", q.scale.row_stride = 0);
    REFUSED(DG_INVALID_ARGUMENT, "two scales would share a place", q.scale.row_stride = 2);
}

#undef REFUSED
#define REFUSED(status, text, change)                                                              \
    do {                                                                                           \
        dg_dequantize d = dequantize;                                                              \
        poison(out, sizeof out);                                                                   \
        change;                                                                                    \
        assert_refused(dg_dequantize_run(context, &d, NULL), status, text);                        \
        assert_poisoned(out, sizeof out);                                                          \
    } while (0)

static void dequantize_refusals(void **state)
{
    (void)state;
    assert_refused(dg_dequantize_run(NULL, &dequantize, NULL), DG_INVALID_ARGUMENT, "context");
    assert_refused(dg_dequantize_run(context, NULL, NULL), DG_INVALID_ARGUMENT, "dequantize is");
    REFUSED(DG_INVALID_ARGUMENT, "input.data is NULL", d.input.data = NULL);
    REFUSED(DG_INVALID_ARGUMENT, "output.data is NULL", d.output.data = NULL);
    REFUSED(DG_UNSUPPORTED_TYPE, "input.dtype is f32", d.input.dtype = DG_F32);
    REFUSED(DG_UNSUPPORTED_TYPE, "output.dtype is e5m2", d.output.dtype = DG_E5M2);
    REFUSED(DG_INVALID_ARGUMENT, "output is 20 x 299", d.output.cols = 299);
    REFUSED(DG_INVALID_ARGUMENT, "output.ld is 1", d.output.ld = 1);
    REFUSED(DG_UNSUPPORTED_SCALE, "scale.block_cols is -1", d.scale.block_cols = -1);
    REFUSED(DG_INVALID_ARGUMENT, "scale.col_phase is 200", d.scale.col_phase = 200);
    REFUSED(DG_INVALID_ARGUMENT, "output overlaps input", d.input.data = out);
    REFUSED(DG_INVALID_ARGUMENT, "output overlaps scale", d.scale.data = out);
}

static void weights_refusals(void **state)
{
    (void)state;
    rng r = rng_new(71);
    memset(codes, 0x38, sizeof codes);
    rng_fill_scales(&r, scales, DG_F32, ROWS * 3);
    dg_matrix b = dequantize.input;
    dg_scale s = dequantize.scale;
    dg_weights *weights = NULL;
    size_t need;
    assert_ok(dg_weights_bytes(context, &b, &s, &need));
    assert_true(need >= ROWS * COLS);
    uint8_t *buffer = aligned_alloc(256, (need + 511) / 256 * 256);
    assert_non_null(buffer);

#define PACK(buffer, bytes) dg_weights_pack(context, &b, &s, buffer, bytes, NULL, &weights)
    assert_refused(dg_weights_bytes(context, &b, &s, NULL), DG_INVALID_ARGUMENT, "bytes is NULL");
    assert_refused(dg_weights_bytes(context, NULL, &s, &need), DG_INVALID_ARGUMENT, "b is NULL");
    assert_refused(dg_weights_bytes(context, &b, NULL, &need), DG_INVALID_ARGUMENT, "scale_b is");
    assert_refused(PACK(buffer, need - 1), DG_INVALID_ARGUMENT, "buffer_bytes is");
    assert_refused(PACK(buffer + 64, need), DG_MISALIGNED, "256-byte aligned");
    assert_refused(dg_weights_pack(context, &b, &s, NULL, 0, NULL, NULL), DG_INVALID_ARGUMENT,
                   "weights is NULL");
    s.rows--;
    assert_refused(PACK(NULL, 0), DG_INVALID_ARGUMENT, "scale_b.rows is 19");
    s.rows++;
    b.dtype = DG_F16;
    assert_refused(PACK(NULL, 0), DG_UNSUPPORTED_TYPE, "b.dtype is f16");
    b.dtype = DG_E4M3;
    assert_null(weights);

    if (test_device() == DG_CPU) {
        assert_ok(PACK(buffer, need));
        dg_matrix other = b;
        dg_scale other_scale = s;
        assert_refused(dg_weights_unpack(context, NULL, &b, &s, NULL), DG_INVALID_ARGUMENT,
                       "weights is NULL");
        other.dtype = DG_E5M2;
        assert_refused(dg_weights_unpack(context, weights, &other, &s, NULL), DG_INVALID_ARGUMENT,
                       "b is e5m2 20 x 300, but e4m3 20 x 300 was packed");
        other_scale.block_cols = 100;
        assert_refused(dg_weights_unpack(context, weights, &b, &other_scale, NULL),
                       DG_INVALID_ARGUMENT, "scale_b is f32 (1,100)");
        other_scale = s;
        other_scale.row_stride = 0;
        assert_refused(dg_weights_unpack(context, weights, &b, &other_scale, NULL),
                       DG_INVALID_ARGUMENT, "two scales would share a place");
        other_scale.row_stride = s.row_stride;
        other_scale.data = codes;
        assert_refused(dg_weights_unpack(context, weights, &b, &other_scale, NULL),
                       DG_INVALID_ARGUMENT, "b overlaps scale_b");
        other = b;
        other.data = buffer;
        assert_refused(dg_weights_unpack(context, weights, &other, &s, NULL), DG_INVALID_ARGUMENT,
                       "b overlaps weights");
        assert_ok(dg_weights_unpack(context, weights, &b, &s, NULL));
        dg_weights_destroy(weights);
    }
#undef PACK
    free(buffer);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(quantize_refusals),
        TEST(quantize_overlaps),
        TEST(dequantize_refusals),
        TEST(weights_refusals),
    };
    return test_run(argc, argv, tests);
}
