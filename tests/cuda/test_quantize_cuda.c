/* SPDX-License-Identifier: MIT */
/*
 * The GPU's quantisers give the CPU's bits. Run it with --device cuda:0; without a GPU its tests
 * are skipped.
 */
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct results {
    unsigned char *codes, *scales;
    size_t code_bytes, scale_bytes;
    dg_quantize_counts counts;
} results;

/* Runs the description `q`, whose pointers are host memory, and returns what it wrote. */
static results quantize_on(dg_context *context, const dg_quantize *q, size_t input_bytes)
{
    results r = {NULL,
                 NULL,
                 (size_t)(q->output.rows * q->output.ld),
                 (size_t)(q->scale.rows * q->scale.cols) * dg_dtype_bytes(q->scale.dtype),
                 {0}};
    r.codes = calloc(1, r.code_bytes);
    r.scales = malloc(r.scale_bytes);
    memcpy(r.scales, q->scale.data, r.scale_bytes);
    dg_quantize d = *q;
    void *memory[4];
    struct {
        void *host;
        size_t bytes;
        void **field;
    } buffers[] = {
        {q->input.data, input_bytes, &d.input.data},
        {r.codes, r.code_bytes, &d.output.data},
        {r.scales, r.scale_bytes, &d.scale.data},
        {&r.counts, sizeof r.counts, (void **)&d.counts},
    };
    for (int i = 0; i < 4; i++) {
        assert_ok(dg_memory_alloc(context, buffers[i].bytes, &memory[i]));
        assert_ok(dg_memory_copy(context, memory[i], buffers[i].host, buffers[i].bytes,
                                 DG_HOST_TO_DEVICE, NULL));
        *buffers[i].field = memory[i];
    }
    assert_ok(dg_quantize_run(context, &d, NULL));
    for (int i = 0; i < 4; i++)
        assert_ok(dg_memory_copy(context, buffers[i].host, memory[i], buffers[i].bytes,
                                 DG_DEVICE_TO_HOST, NULL));
    assert_ok(dg_synchronize(context, NULL));
    for (int i = 0; i < 4; i++)
        assert_ok(dg_memory_free(context, memory[i]));
    return r;
}

static void release(results *r)
{
    free(r->codes);
    free(r->scales);
}

/* Normal values of very different sizes, some zero, NaN, infinite or near a rounding boundary. */
static void fill(rng *r, void *data, dg_dtype dtype, int64_t count)
{
    const float special[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 464.0f, 448.0f, 61440.0f};
    for (int64_t i = 0; i < count; i++) {
        float value = (float)(rng_normal(r) * exp2((double)rng_range(r, -12, 12)));
        if (rng_chance(r, 0.02))
            value = special[rng_range(r, 0, 7)];
        assert_ok(dg_convert(&value, DG_F32, (char *)data + (size_t)i * dg_dtype_bytes(dtype),
                             dtype, 1, DG_SATURATE));
    }
}

static void same_bits_as_the_cpu(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    static const int32_t blocks[][2] = {{0, 0},   {1, 0},     {0, 1},  {1, 128}, {1, 32},
                                        {32, 32}, {128, 128}, {3, 50}, {200, 70}};
    static const dg_dtype inputs[] = {DG_F32, DG_F16, DG_BF16};
    rng r = rng_new(1);
    dg_context *gpu = test_context(NULL), *cpu;
    assert_ok(dg_create(&cpu, DG_CPU, NULL));
    for (int round = 0; round < 150; round++) {
        const int32_t *block = blocks[rng_range(&r, 0, 8)];
        int64_t rows = rng_range(&r, 1, 300), cols = rng_range(&r, 1, 500);
        dg_quantize q = DG_QUANTIZE_INIT;
        q.input = dg_matrix_of(NULL, inputs[rng_range(&r, 0, 2)], rows, cols);
        q.output = dg_matrix_of(NULL, rng_chance(&r, 0.5) ? DG_E4M3 : DG_E5M2, rows, cols);
        q.output.ld += rng_range(&r, 0, 5);
        q.scale = dg_scale_of(NULL, rng_chance(&r, 0.5) ? DG_F32 : DG_UE8M0, rows, cols, block[0],
                              block[1]);
        q.rounding = q.scale.dtype == DG_UE8M0 ? (dg_scale_rounding)rng_range(&r, 1, 2)
                                               : (dg_scale_rounding)rng_range(&r, 0, 2);
        q.source = rng_chance(&r, 0.7) ? DG_SCALE_DYNAMIC : DG_SCALE_GIVEN;
        q.overflow = rng_chance(&r, 0.5) ? DG_SATURATE : DG_OVERFLOW_IEEE;
        q.amax_floor = rng_chance(&r, 0.3) ? 0.5f : 0.0f;
        size_t input_bytes = (size_t)(rows * cols) * dg_dtype_bytes(q.input.dtype);
        int64_t scales = q.scale.rows * q.scale.cols;
        q.input.data = malloc(input_bytes);
        q.scale.data = malloc((size_t)scales * dg_dtype_bytes(q.scale.dtype));
        fill(&r, q.input.data, q.input.dtype, rows * cols);
        rng_fill_scales(&r, q.scale.data, q.scale.dtype, scales);

        results on_gpu = quantize_on(gpu, &q, input_bytes);
        results on_cpu = quantize_on(cpu, &q, input_bytes);
        assert_memory_equal(on_gpu.scales, on_cpu.scales, on_cpu.scale_bytes);
        assert_memory_equal(on_gpu.codes, on_cpu.codes, on_cpu.code_bytes);
        assert_memory_equal(&on_gpu.counts, &on_cpu.counts, sizeof on_cpu.counts);
        release(&on_gpu);
        release(&on_cpu);
        free(q.input.data);
        free(q.scale.data);
    }
    dg_destroy(cpu);
    dg_destroy(gpu);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_as_the_cpu)};
    return test_run(argc, argv, tests);
}
