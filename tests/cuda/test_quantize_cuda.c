/* SPDX-License-Identifier: MIT */
/*
 * The GPU's quantisers give the CPU's bits: shapes, blocks and layouts that take each of the ways
 * in src/cuda/quantize.c. Run it with --device cuda:0; without a GPU its tests are skipped.
 * (unit/test_quantize compares either backend with a plain definition, over any layout.)
 */
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BUFFERS = 4, POISON = 0xA5 };

/* Host memory of a call, and the field of its description that points at it. */
typedef struct buffer {
    void *data, **field;
    size_t bytes;
    bool written;
} buffer;

static dg_context *gpu, *cpu;

/*
 * Makes a call on either backend: `run` on a description whose fields point at copies of the
 * buffers. What the GPU writes must be what the CPU writes, byte for byte, and nothing else.
 */
static void same_bits(buffer *buffers, int count, dg_status (*run)(dg_context *, void *),
                      void *description, const char *what)
{
    unsigned char *given[MOST_BUFFERS], *expected[MOST_BUFFERS];
    void *memory[MOST_BUFFERS];
    for (int i = 0; i < count; i++) {
        buffer *b = &buffers[i];
        given[i] = malloc(b->bytes + 1), expected[i] = malloc(b->bytes + 1);
        assert_true(given[i] != NULL && expected[i] != NULL);
        if (b->written && b->data == NULL)
            memset(expected[i], POISON, b->bytes);
        else
            memcpy(expected[i], b->data, b->bytes);
        assert_ok(dg_memory_alloc(gpu, b->bytes, &memory[i]));
        assert_ok(dg_memory_copy(gpu, memory[i], expected[i], b->bytes, DG_HOST_TO_DEVICE, NULL));
        *b->field = memory[i];
    }
    assert_ok(run(gpu, description));
    for (int i = 0; i < count; i++) {
        assert_ok(
            dg_memory_copy(gpu, given[i], memory[i], buffers[i].bytes, DG_DEVICE_TO_HOST, NULL));
        *buffers[i].field = expected[i];
    }
    assert_ok(dg_synchronize(gpu, NULL));
    assert_ok(run(cpu, description));
    for (int i = 0; i < count; i++) {
        size_t at = 0;
        while (at < buffers[i].bytes && given[i][at] == expected[i][at])
            at++;
        if (at < buffers[i].bytes)
            fail_msg("%s: byte %zu of buffer %d is 0x%02x, on the CPU 0x%02x", what, at, i,
                     given[i][at], expected[i][at]);
        assert_ok(dg_memory_free(gpu, memory[i]));
        free(given[i]), free(expected[i]);
    }
}

static dg_status run_quantize(dg_context *context, void *description)
{
    return dg_quantize_run(context, description, NULL);
}

static dg_status run_dequantize(dg_context *context, void *description)
{
    return dg_dequantize_run(context, description, NULL);
}

/* Normal values of very different sizes, some zero, NaN, infinite or near a rounding boundary. */
static void fill(rng *r, void *data, dg_dtype dtype, int64_t count)
{
    static const float special[] = {0.0f,      -0.0f,  NAN,    -NAN,     INFINITY,
                                    -INFINITY, 464.0f, 448.0f, 61440.0f, 1e-42f};
    const double odd = rng_chance(r, 0.5) ? 0.02 : 0.0;
    float values[256];
    for (int64_t done = 0; done < count; done += 256) {
        const int64_t some = count - done < 256 ? count - done : 256;
        const int size = (int)rng_range(r, -12, 12);
        for (int64_t i = 0; i < some; i++)
            values[i] = rng_chance(r, odd) ? special[rng_range(r, 0, 9)]
                                           : (float)ldexp(rng_normal(r), size);
        assert_ok(dg_convert(values, DG_F32, (char *)data + (size_t)done * dg_dtype_bytes(dtype),
                             dtype, some, DG_SATURATE));
    }
}

/* A case: a matrix of wide elements, its codes and scales. */
typedef struct quantize_case {
    int64_t rows, cols;
    int32_t block_rows, block_cols;
} quantize_case;

static dg_matrix matrix_of(rng *r, dg_dtype dtype, const quantize_case *c, bool aligned)
{
    dg_matrix m = dg_matrix_of(NULL, dtype, c->rows, c->cols);
    m.ld += rng_range(r, 0, 1) * rng_range(r, 1, 40);
    if (aligned)
        m.ld = (m.ld + 15) / 16 * 16;
    return m;
}

static size_t matrix_bytes(const dg_matrix *m)
{
    return (size_t)((m->rows - 1) * m->ld + m->cols) * dg_dtype_bytes(m->dtype);
}

/* Rows or columns contiguous, padded, and, mostly, phases that keep pieces whole. */
static dg_scale scale_of(rng *r, const quantize_case *c, bool aligned)
{
    dg_scale s = dg_scale_of(NULL, rng_chance(r, 0.6) ? DG_F32 : DG_UE8M0, c->rows, c->cols,
                             c->block_rows, c->block_cols);
    if (c->block_rows > 0 && rng_chance(r, 0.3))
        s.row_phase = (int32_t)rng_range(r, 0, c->block_rows - 1);
    if (c->block_cols > 0 && rng_chance(r, 0.3))
        s.col_phase =
            (int32_t)rng_range(r, 0, c->block_cols - 1) / (aligned ? 16 : 1) * (aligned ? 16 : 1);
    s.rows = dg_scale_count(c->rows, c->block_rows, s.row_phase);
    s.cols = dg_scale_count(c->cols, c->block_cols, s.col_phase);
    const int64_t padding = rng_range(r, 0, 3);
    const bool transposed = rng_chance(r, 0.5);
    s.row_stride = transposed ? 1 : s.cols + padding;
    s.col_stride = transposed ? s.rows + padding : 1;
    return s;
}

static size_t scale_bytes(const dg_scale *s)
{
    return (size_t)((s->rows - 1) * s->row_stride + (s->cols - 1) * s->col_stride + 1) *
           dg_dtype_bytes(s->dtype);
}

static void check(rng *r, const quantize_case *c)
{
    static const dg_dtype wide[] = {DG_F32, DG_F16, DG_BF16};
    const bool aligned = rng_chance(r, 0.7);
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = matrix_of(r, wide[rng_range(r, 0, 2)], c, aligned);
    q.output = matrix_of(r, rng_chance(r, 0.5) ? DG_E4M3 : DG_E5M2, c, aligned);
    q.scale = scale_of(r, c, aligned);
    q.rounding = (dg_scale_rounding)rng_range(r, q.scale.dtype == DG_UE8M0, 2);
    q.source = rng_chance(r, 0.7) ? DG_SCALE_DYNAMIC : DG_SCALE_GIVEN;
    q.overflow = rng_chance(r, 0.7) ? DG_SATURATE : DG_OVERFLOW_IEEE;
    q.amax_floor = rng_chance(r, 0.3) ? 0.5f : 0.0f;
    const size_t in_bytes = matrix_bytes(&q.input), out_bytes = matrix_bytes(&q.output);
    void *in = malloc(in_bytes), *scales = malloc(scale_bytes(&q.scale));
    assert_true(in != NULL && scales != NULL);
    fill(r, in, q.input.dtype, (int64_t)(in_bytes / dg_dtype_bytes(q.input.dtype)));
    rng_fill_scales(r, scales, q.scale.dtype,
                    (int64_t)(scale_bytes(&q.scale) / dg_dtype_bytes(q.scale.dtype)));
    if (q.scale.dtype == DG_F32 && rng_chance(r, 0.3)) /* whose reciprocal FP32 cannot hold */
        *(float *)scales = 0x1p-140f;

    char what[256];
    snprintf(what, sizeof what,
             "%s %lld x %lld to %s, ld %lld and %lld, %s scales (%d,%d) phase (%d,%d), source %d, "
             "rounding %d, overflow %d",
             dg_dtype_name(q.input.dtype), (long long)c->rows, (long long)c->cols,
             dg_dtype_name(q.output.dtype), (long long)q.input.ld, (long long)q.output.ld,
             dg_dtype_name(q.scale.dtype), c->block_rows, c->block_cols, q.scale.row_phase,
             q.scale.col_phase, q.source, q.rounding, q.overflow);
    buffer quantize[] = {
        {in, &q.input.data, in_bytes, false},
        {NULL, &q.output.data, out_bytes, true},
        {scales, &q.scale.data, scale_bytes(&q.scale), true},
        {NULL, (void **)&q.counts, sizeof(dg_quantize_counts), true},
    };
    same_bits(quantize, rng_chance(r, 0.3) ? 4 : 3, run_quantize, &q, what);

    /* Back again: any codes. */
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    unsigned char *codes = malloc(out_bytes);
    assert_non_null(codes);
    for (size_t i = 0; i < out_bytes; i++)
        codes[i] = (unsigned char)rng_next(r);
    d.input = q.output, d.output = q.input, d.scale = q.scale;
    buffer dequantize[] = {
        {codes, &d.input.data, out_bytes, false},
        {NULL, &d.output.data, in_bytes, true},
        {scales, &d.scale.data, scale_bytes(&q.scale), false},
    };
    same_bits(dequantize, 3, run_dequantize, &d, what);
    free(codes), free(in), free(scales);
}

static int open_both(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        return 0;
    gpu = test_context(NULL);
    assert_ok(dg_create(&cpu, DG_CPU, NULL));
    return 0;
}

static int close_both(void **state)
{
    (void)state;
    dg_destroy(gpu);
    dg_destroy(cpu);
    return 0;
}

static void random_calls(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    static const int32_t blocks[][2] = {{0, 0},     {1, 0},  {0, 1},    {1, 128}, {1, 32}, {32, 32},
                                        {128, 128}, {3, 50}, {200, 70}, {5, 48},  {64, 0}};
    rng r = rng_new(1);
    for (int round = 0; round < test_rounds(300, 10); round++) {
        const int32_t *block = blocks[rng_range(&r, 0, 10)];
        quantize_case c = {rng_range(&r, 1, 300), rng_range(&r, 1, 500), block[0], block[1]};
        check(&r, &c);
    }
}

/* Blocks of each size up to those that no registers hold, several times over. */
static void large_calls(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    static const quantize_case cases[] = {
        {3, 7168, 1, 0},       {2, 16384, 1, 0},    {2, 32752, 1, 0},       {2, 70001, 1, 0},
        {700, 2500, 0, 0},     {1500, 2112, 0, 1},  {300, 9008, 256, 3008}, {1030, 2304, 512, 128},
        {333, 4099, 128, 128}, {2100, 4112, 1, 32}, {129, 4112, 64, 64},    {40, 20000, 0, 7},
    };
    rng r = rng_new(2);
    for (int i = 0; i < test_rounds(sizeof cases / sizeof cases[0], 4); i++)
        for (int round = 0; round < test_rounds(3, 1); round++)
            check(&r, &cases[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_calls),
        cmocka_unit_test(large_calls),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, open_both, close_both);
}
