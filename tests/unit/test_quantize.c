/* SPDX-License-Identifier: MIT */
/*
 * Quantise and dequantise against their definition, bit for bit: every granularity, type, stride
 * and phase, each instruction set, several thread counts, on memory between guard pages. What is
 * neither an element nor a scale must stay as it was.
 */
#include "core/formats.h"
#include "guard.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the definition: see dg_quantize in deepgemm.h ------------------------------------ */

static float input_at(const dg_quantize *q, int64_t r, int64_t c)
{
    return dgi_load_f32(q->input.data, q->input.dtype, r * q->input.ld + c);
}

static void define_scales(const dg_quantize *q, float *amax)
{
    const dg_scale *s = &q->scale;
    for (int64_t i = 0; i < s->rows * s->cols; i++)
        amax[i] = 0.0f;
    for (int64_t r = 0; r < q->input.rows; r++)
        for (int64_t c = 0; c < q->input.cols; c++) {
            float x = fabsf(input_at(q, r, c));
            float *largest = &amax[dgi_scale_index(r, s->block_rows, s->row_phase) * s->cols +
                                   dgi_scale_index(c, s->block_cols, s->col_phase)];
            if (isfinite(x) && x > *largest)
                *largest = x;
        }
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->cols; j++)
            dgi_store_f32(s->data, s->dtype, i * s->row_stride + j * s->col_stride,
                          dgi_dynamic_scale(amax[i * s->cols + j], q->amax_floor, q->output.dtype,
                                            q->rounding),
                          DG_SATURATE);
}

static void define_quantize(const dg_quantize *q)
{
    const dg_scale *s = &q->scale;
    if (q->source == DG_SCALE_DYNAMIC) {
        float *amax = calloc((size_t)(s->rows * s->cols) + 1, sizeof *amax);
        define_scales(q, amax);
        free(amax);
    }
    dg_quantize_counts counts = {0, 0, 0};
    float largest = dgi_fp8_max(q->output.dtype);
    for (int64_t r = 0; r < q->input.rows; r++)
        for (int64_t c = 0; c < q->input.cols; c++) {
            float scale = dgi_scale_at(s, dgi_scale_index(r, s->block_rows, s->row_phase),
                                       dgi_scale_index(c, s->block_cols, s->col_phase));
            float x = input_at(q, r, c), y = x * dgi_scale_reciprocal(scale);
            uint8_t code = dgi_fp8_from_f32(q->output.dtype, y, q->overflow);
            ((uint8_t *)q->output.data)[r * q->output.ld + c] = code;
            float unlimited = dgi_f32_from_fp8(
                q->output.dtype, dgi_fp8_from_f32(q->output.dtype, y, DG_OVERFLOW_IEEE));
            counts.saturated += !isnan(x) && !(fabsf(unlimited) <= largest);
            counts.underflow += x != 0.0f && (code & 0x7F) == 0;
            counts.non_finite += !isfinite(x);
        }
    if (q->counts != NULL)
        *q->counts = counts;
}

static void define_dequantize(const dg_dequantize *d)
{
    const dg_scale *s = &d->scale;
    for (int64_t r = 0; r < d->input.rows; r++)
        for (int64_t c = 0; c < d->input.cols; c++) {
            uint8_t code = ((uint8_t *)d->input.data)[r * d->input.ld + c];
            float scale = dgi_scale_at(s, dgi_scale_index(r, s->block_rows, s->row_phase),
                                       dgi_scale_index(c, s->block_cols, s->col_phase));
            dgi_store_f32(d->output.data, d->output.dtype, r * d->output.ld + c,
                          scale * dgi_f32_from_fp8(d->input.dtype, code), DG_SATURATE);
        }
}

/* ---- memory: what the library writes, and beside it what the definition writes --------- */

#define POISON 0xA5

typedef struct buffer {
    guard given, expected;
} buffer;

static buffer buffer_new(rng *r, int64_t elements, dg_dtype dtype)
{
    size_t bytes = (size_t)elements * dg_dtype_bytes(dtype);
    guard_side side = rng_chance(r, 0.5) ? GUARD_AFTER : GUARD_BEFORE;
    return (buffer){guard_new(bytes, side, POISON), guard_new(bytes, side, POISON)};
}

static void buffer_free(buffer *b)
{
    guard_free(&b->given);
    guard_free(&b->expected);
}

/* Makes the definition's copy start from the same bytes. */
static void buffer_share(buffer *b)
{
    memcpy(b->expected.data, b->given.data, b->given.bytes);
}

static int64_t matrix_elements(const dg_matrix *m)
{
    return m->rows == 0 || m->cols == 0 ? 0 : (m->rows - 1) * m->ld + m->cols;
}

static int64_t scale_elements(const dg_scale *s)
{
    return s->rows == 0 || s->cols == 0
               ? 0
               : (s->rows - 1) * s->row_stride + (s->cols - 1) * s->col_stride + 1;
}

/* ---- random calls ---------------------------------------------------------------------- */

/* A case: a matrix of wide elements, its codes and scales. No data yet. */
typedef struct quantize_case {
    dg_matrix wide, codes;
    dg_scale scale;
} quantize_case;

static int32_t random_block(rng *r)
{
    static const int32_t usual[] = {0, 1, 2, 16, 32, 64, 128};
    return rng_chance(r, 0.7) ? usual[rng_range(r, 0, 6)] : (int32_t)rng_range(r, 1, 400);
}

static dg_scale random_scale(rng *r, int64_t rows, int64_t cols, int32_t block_rows,
                             int32_t block_cols)
{
    dg_scale s = {.dtype = rng_chance(r, 0.5) ? DG_F32 : DG_UE8M0,
                  .block_rows = block_rows,
                  .block_cols = block_cols};
    if (block_rows > 0 && rng_chance(r, 0.5))
        s.row_phase = (int32_t)rng_range(r, 0, block_rows - 1);
    if (block_cols > 0 && rng_chance(r, 0.5))
        s.col_phase = (int32_t)rng_range(r, 0, block_cols - 1);
    s.rows = dg_scale_count(rows, block_rows, s.row_phase);
    s.cols = dg_scale_count(cols, block_cols, s.col_phase);
    int64_t padding = rng_range(r, 0, 3), step = rng_range(r, 1, 2);
    bool transposed = rng_chance(r, 0.5);
    s.row_stride = transposed ? step : s.cols * step + padding;
    s.col_stride = transposed ? s.rows * step + padding : step;
    return s;
}

static quantize_case case_of(rng *r, int64_t rows, int64_t cols, int32_t block_rows,
                             int32_t block_cols)
{
    static const dg_dtype wide[] = {DG_F32, DG_F16, DG_BF16};
    int64_t padding = rng_chance(r, 0.5) ? rng_range(r, 1, 40) : 0;
    return (quantize_case){
        {NULL, wide[rng_range(r, 0, 2)], rows, cols, cols + rng_range(r, 0, padding)},
        {NULL, rng_chance(r, 0.6) ? DG_E4M3 : DG_E5M2, rows, cols, cols + padding},
        random_scale(r, rows, cols, block_rows, block_cols)};
}

/* Values whose size changes from place to place, with zeros, NaN and infinities among them. */
static void fill_input(rng *r, const dg_matrix *m)
{
    double odd = rng_chance(r, 0.5) ? 0.02 : 0.0; /* how often a value is a special one */
    int spread = (int)rng_range(r, 0, 14);
    for (int64_t i = 0; i < matrix_elements(m); i++) {
        static const float special[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 1e-42f, 65504.0f};
        double value = ldexp(rng_normal(r), (int)rng_range(r, -spread, spread));
        dgi_store_f32(m->data, m->dtype, i,
                      rng_chance(r, odd) ? special[rng_range(r, 0, 6)] : (float)value, DG_SATURATE);
    }
}

static void check_quantize(rng *r, dg_context *context, quantize_case c)
{
    dg_quantize q = DG_QUANTIZE_INIT;
    buffer in = buffer_new(r, matrix_elements(&c.wide), c.wide.dtype);
    buffer out = buffer_new(r, matrix_elements(&c.codes), c.codes.dtype);
    buffer scale = buffer_new(r, scale_elements(&c.scale), c.scale.dtype);
    buffer counts = buffer_new(r, sizeof(dg_quantize_counts), DG_E4M3);
    c.wide.data = in.given.data;
    fill_input(r, &c.wide);
    q.source = rng_chance(r, 0.3) ? DG_SCALE_GIVEN : DG_SCALE_DYNAMIC;
    if (q.source == DG_SCALE_GIVEN)
        rng_fill_scales(r, scale.given.data, c.scale.dtype, scale_elements(&c.scale));
    buffer_share(&in);
    buffer_share(&scale);
    q.rounding = (dg_scale_rounding)rng_range(r, c.scale.dtype == DG_UE8M0, 2);
    q.overflow = rng_chance(r, 0.5) ? DG_SATURATE : DG_OVERFLOW_IEEE;
    q.amax_floor = rng_chance(r, 0.3) ? 0.75f : 0.0f;
    bool counting = rng_chance(r, 0.5);

    q.input = c.wide, q.output = c.codes, q.scale = c.scale;
    q.input.data = test_to_device(context, in.given.data, in.given.bytes);
    q.output.data = test_to_device(context, out.given.data, out.given.bytes);
    q.scale.data = test_to_device(context, scale.given.data, scale.given.bytes);
    if (counting)
        q.counts = test_to_device(context, counts.given.data, counts.given.bytes);
    assert_ok(dg_quantize_run(context, &q, NULL));
    test_from_device(context, q.input.data, in.given.data, in.given.bytes);
    test_from_device(context, q.output.data, out.given.data, out.given.bytes);
    test_from_device(context, q.scale.data, scale.given.data, scale.given.bytes);
    if (counting)
        test_from_device(context, q.counts, counts.given.data, counts.given.bytes);

    q.input.data = in.expected.data;
    q.output.data = out.expected.data;
    q.scale.data = scale.expected.data;
    q.counts = counting ? counts.expected.data : NULL;
    define_quantize(&q);
    if (memcmp(out.given.data, out.expected.data, out.given.bytes) != 0 ||
        memcmp(scale.given.data, scale.expected.data, scale.given.bytes) != 0 ||
        memcmp(counts.given.data, counts.expected.data, counts.given.bytes) != 0)
        fail_msg("%s %lld x %lld to %s, %s scales (%d,%d) phase (%d,%d), source %d, rounding %d, "
                 "overflow %d, counting %d",
                 dg_dtype_name(c.wide.dtype), (long long)c.wide.rows, (long long)c.wide.cols,
                 dg_dtype_name(c.codes.dtype), dg_dtype_name(c.scale.dtype), c.scale.block_rows,
                 c.scale.block_cols, c.scale.row_phase, c.scale.col_phase, q.source, q.rounding,
                 q.overflow, counting);
    assert_memory_equal(in.given.data, in.expected.data, in.given.bytes);
    buffer_free(&in), buffer_free(&out), buffer_free(&scale), buffer_free(&counts);
}

static void check_dequantize(rng *r, dg_context *context, quantize_case c)
{
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    buffer in = buffer_new(r, matrix_elements(&c.codes), c.codes.dtype);
    buffer out = buffer_new(r, matrix_elements(&c.wide), c.wide.dtype);
    buffer scale = buffer_new(r, scale_elements(&c.scale), c.scale.dtype);
    for (size_t i = 0; i < in.given.bytes; i++)
        ((uint8_t *)in.given.data)[i] = (uint8_t)rng_next(r);
    rng_fill_scales(r, scale.given.data, c.scale.dtype, scale_elements(&c.scale));
    buffer_share(&in);
    buffer_share(&scale);

    d.input = c.codes, d.output = c.wide, d.scale = c.scale;
    d.input.data = test_to_device(context, in.given.data, in.given.bytes);
    d.output.data = test_to_device(context, out.given.data, out.given.bytes);
    d.scale.data = test_to_device(context, scale.given.data, scale.given.bytes);
    assert_ok(dg_dequantize_run(context, &d, NULL));
    test_from_device(context, d.input.data, in.given.data, in.given.bytes);
    test_from_device(context, d.output.data, out.given.data, out.given.bytes);
    test_from_device(context, d.scale.data, scale.given.data, scale.given.bytes);

    d.input.data = in.expected.data;
    d.output.data = out.expected.data;
    d.scale.data = scale.expected.data;
    define_dequantize(&d);
    if (memcmp(out.given.data, out.expected.data, out.given.bytes) != 0)
        fail_msg("%s %lld x %lld to %s, %s scales (%d,%d) phase (%d,%d)",
                 dg_dtype_name(c.codes.dtype), (long long)c.wide.rows, (long long)c.wide.cols,
                 dg_dtype_name(c.wide.dtype), dg_dtype_name(c.scale.dtype), c.scale.block_rows,
                 c.scale.block_cols, c.scale.row_phase, c.scale.col_phase);
    assert_memory_equal(in.given.data, in.expected.data, in.given.bytes);
    assert_memory_equal(scale.given.data, scale.expected.data, scale.given.bytes);
    buffer_free(&in), buffer_free(&out), buffer_free(&scale);
}

/* ---- tests ----------------------------------------------------------------------------- */

/* A context for each instruction set that the machine has, or NULL; a GPU has just one. */
static dg_context *context_with(const char *isa, int threads)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = threads;
    dg_context *context = NULL;
    if (test_device() == DG_CPU)
        options.isa = isa;
    dg_status status = dg_create(&context, test_device(), &options);
    if (status != DG_UNSUPPORTED_DEVICE)
        assert_status(status, DG_OK);
    return context;
}

static const char *const isas[] = {"generic", "avx2", "avx512"};
#define ISAS (sizeof isas / sizeof isas[0])

static void random_calls(void **state)
{
    (void)state;
    rng r = rng_new(1);
    for (size_t isa = 0; isa < ISAS; isa++)
        for (int threads = 1; threads <= 5; threads += threads) {
            dg_context *context = context_with(isas[isa], threads == 4 ? 5 : threads);
            for (int i = 0; context != NULL && i < 60; i++) {
                quantize_case c = case_of(&r, rng_range(&r, 1, 300), rng_range(&r, 1, 300),
                                          random_block(&r), random_block(&r));
                check_quantize(&r, context, c);
                check_dequantize(&r, context, c);
            }
            dg_destroy(context);
        }
}

/* Shapes that are cut in several pieces, shared by threads, or too large for the caches. */
static void large_calls(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, cols;
        int32_t block_rows, block_cols;
    } shapes[] = {{3, 70001, 1, 128},    {2, 300000, 1, 0},      {700, 2500, 0, 0},
                  {1500, 2100, 0, 1},    {40, 20000, 0, 7},      {300, 9000, 256, 3000},
                  {2000, 400, 1999, 37}, {1030, 2300, 512, 128}, {333, 4099, 128, 128},
                  {5, 6000, 1, 5},       {2100, 4100, 1, 32},    {2100, 4100, 0, 0}};
    rng r = rng_new(2);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        dg_context *context = context_with(NULL, 1 + (int)i % 3);
        quantize_case c =
            case_of(&r, shapes[i].rows, shapes[i].cols, shapes[i].block_rows, shapes[i].block_cols);
        check_quantize(&r, context, c);
        check_dequantize(&r, context, c);
        dg_destroy(context);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_calls),
                                       cmocka_unit_test(large_calls)};
    return test_run(argc, argv, tests);
}
