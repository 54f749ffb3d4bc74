/* SPDX-License-Identifier: MIT */
/*
 * The CUDA kernels for few tokens, and packed weights on the GPU. Run it with --device cuda:0;
 * without a GPU its tests are skipped.
 */
#include "core/plan_decode_sm90.h"
#include "gemm_case.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void need_gpu(void)
{
    if (test_device() == DG_CPU)
        skip();
}

/* Right, the same bits on a second run, with constant B, and the same with packed weights. */
static void check(dg_context *context, rng *r, const dg_gemm *shape, gemm_case_options options)
{
    gemm_case *c = gemm_case_new(r, shape, options);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    void *first = gemm_case_copy_d(c);
    c->gemm.b_is_constant = true;
    assert_ok(gemm_case_run(c, context));
    if (memcmp(first, c->d.data, c->d.bytes) != 0)
        fail_msg("a second run, with constant B, differs: %s", gemm_text(&c->gemm));
    assert_ok(gemm_case_run_packed(c, context));
    gemm_case_check(c);
    if (memcmp(first, c->d.data, c->d.bytes) != 0)
        fail_msg("packed weights give other bits: %s", gemm_text(&c->gemm));
    free(first);
    gemm_case_free(c);
}

/* Each recipe over numbers of tokens and shapes with ragged edges and every way to split K. */
static void recipes_and_shapes(void **state)
{
    (void)state;
    need_gpu();
    static const int64_t tokens[] = {1, 7, 8, 9, 16, 31, 33, 64, 65, 128};
    static const int64_t shapes[][2] = {{1, 1},      {128, 128},   {576, 7168},
                                        {64, 4096},  {200, 1000},  {1031, 640},
                                        {2112, 500}, {30000, 256}, {16, 0}};
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    for (int i = 0; i < recipe_count; i++)
        for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
            /* Each shape with three of the numbers of tokens: the oracle takes its time. */
            for (size_t t = (j + (size_t)i) % 4; t < sizeof tokens / sizeof tokens[0]; t += 4) {
                dg_gemm g = gemm_of(&recipes[i], tokens[t], shapes[j][0], shapes[j][1], DG_BF16);
                if (g.d.rows * g.d.cols * (g.a.cols + 1) < test_rounds(200000000, 3000000))
                    check(context, &r, &g, CASE_PLAIN);
            }
        }
    dg_destroy(context);
}

/* Each kernel of the table by name, on random problems that it accepts. */
static void every_kernel(void **state)
{
    (void)state;
    need_gpu();
    rng r = rng_new(2);
    for (int32_t i = 0; i < dgi_decode_kernel_count; i++) {
        const dgi_decode_kernel *kernel = &dgi_decode_kernels[i];
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.kernel = kernel->name;
        dg_context *context = test_context(&options);
        int runs = 0;
        for (int attempt = 0; attempt < 3000 && runs < test_rounds(12, 2); attempt++) {
            dg_gemm g = gemm_random(&r, 1500);
            dgi_decode_plan plan;
            g.a.dtype = kernel->a;
            g.b.dtype = kernel->b;
            if (g.d.rows == 0 || g.d.cols == 0 ||
                g.d.rows * g.d.cols * g.a.cols > test_rounds(20000000, 12000000) ||
                dgi_decode_plan_with(&g, 132, true, i, &plan) != DG_OK)
                continue;
            bool in_place = g.d.dtype != DG_E4M3 && g.d.dtype != DG_E5M2 && rng_chance(&r, 0.3);
            check(context, &r, &g, in_place ? CASE_IN_PLACE : CASE_PLAIN);
            runs++;
        }
        print_message("%s: %d problems\n", kernel->name, runs);
        assert_true(runs > 0);
        dg_destroy(context);
    }
}

/* More tokens than a CTA takes: two tiles of tokens, with results of each type, and edges. */
static void two_tiles_of_tokens(void **state)
{
    (void)state;
    need_gpu();
    static const char *const recipe[] = {"precise", "scaled128"};
    static const dg_dtype types[] = {DG_BF16, DG_F32, DG_E4M3};
    rng r = rng_new(6);
    for (int i = 0; i < 2; i++) {
        char name[96];
        snprintf(name, sizeof name, "gemm_e4m3_e4m3_decode_%s_64x128__sm90a", recipe[i]);
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.kernel = name;
        dg_context *context = test_context(&options);
        for (int round = 0; round < test_rounds(24, 6); round++) {
            const int64_t m = round < 2 ? 65 + 63 * round : rng_range(&r, 66, 127);
            const int64_t n = rng_range(&r, 1, 900), k = rng_range(&r, 1, round % 3 ? 400 : 2000);
            const dg_gemm g = gemm_of(recipe_named(i == 0 ? "token_channel" : "block128"), m, n, k,
                                      types[round % 3]);
            check(context, &r, &g, CASE_PLAIN);
        }
        dg_destroy(context);
    }
}

/*
 * In batch-invariant mode a row has the same bits in a batch of any size: the kernels for few
 * tokens add up in the order of those for many.
 */
static void rows_do_not_depend_on_the_batch(void **state)
{
    (void)state;
    need_gpu();
    enum { ALL = 300 };
    static const int64_t batches[] = {1, 8, 13, 16, 32, 64, 100, 128, 200};
    rng r = rng_new(5);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.batch_invariant = true;
    dg_context *context = test_context(&options);
    for (int i = 0; i < recipe_count; i++) {
        if (recipes[i].a_rows > 1)
            continue; /* rows that share their scale with others */
        dg_gemm shape = gemm_of(&recipes[i], ALL, 400, 1056, DG_F32);
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        assert_ok(gemm_case_run(c, context));
        gemm_case_check(c);
        float *expected = gemm_case_copy_d(c);
        dg_gemm whole = c->gemm;
        for (size_t j = 0; j < sizeof batches / sizeof batches[0]; j++) {
            const int64_t first = rng_range(&r, 0, ALL - batches[j]);
            c->gemm = gemm_part(&whole, first, batches[j], 0, whole.d.cols);
            const size_t bytes = (size_t)(batches[j] * whole.d.cols) * 4;
            const guard a = c->a, scale_a = c->scale_a, d = c->d;
            dg_gemm part = c->gemm;
            void *const host[] = {a.data, c->b.data, scale_a.data, c->scale_b.data, d.data};
            const size_t sizes[] = {a.bytes, c->b.bytes, scale_a.bytes, c->scale_b.bytes, d.bytes};
            void *device[5];
            for (int k = 0; k < 5; k++)
                device[k] = test_to_device(context, host[k], sizes[k]);
            part.a.data = (char *)device[0] + ((char *)part.a.data - (char *)host[0]);
            part.b.data = device[1];
            part.scale_a.data = (char *)device[2] + ((char *)part.scale_a.data - (char *)host[2]);
            part.scale_b.data = device[3];
            part.d.data = (char *)device[4] + ((char *)part.d.data - (char *)host[4]);
            assert_ok(dg_gemm_run(context, &part, NULL));
            for (int k = 0; k < 4; k++)
                test_release(context, device[k], host[k]);
            test_from_device(context, device[4], host[4], sizes[4]);
            if (memcmp(c->gemm.d.data, expected + first * whole.d.cols, bytes) != 0)
                fail_msg("%s: rows %d to %d have other bits in a batch of their own",
                         recipes[i].name, (int)first, (int)(first + batches[j] - 1));
        }
        c->gemm = whole;
        free(expected);
        gemm_case_free(c);
    }
    dg_destroy(context);
}

/* Packing has an inverse, for codes of all kinds and scales of any granularity. */
static void packing_has_an_inverse(void **state)
{
    (void)state;
    need_gpu();
    rng r = rng_new(4);
    dg_context *context = test_context(NULL);
    for (int i = 0; i < 40; i++) {
        dg_gemm shape = gemm_random(&r, 500);
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        dg_matrix b = c->gemm.b, out = dg_matrix_of(NULL, b.dtype, b.rows, b.cols);
        dg_scale scale = c->gemm.scale_b, out_scale = scale;
        for (int64_t row = 0; row < b.rows; row++)
            for (int64_t k = 0; k < b.cols; k++)
                ((uint8_t *)b.data)[row * b.ld + k] = (uint8_t)rng_next(&r);
        /* Scales come back transposed. */
        out_scale.row_stride = 1;
        out_scale.col_stride = scale.rows;
        const size_t element = dg_dtype_bytes(scale.dtype), codes = (size_t)(b.rows * b.cols);
        const size_t scales = (size_t)(scale.rows * scale.cols) * element;
        uint8_t *back = malloc(codes + 1), *scales_back = malloc(scales + 1);
        assert_true(back != NULL && scales_back != NULL);
        b.data = test_to_device(context, c->b.data, c->b.bytes);
        scale.data = test_to_device(context, c->scale_b.data, c->scale_b.bytes);
        dg_weights *weights;
        assert_ok(dg_weights_pack(context, &b, &scale, NULL, 0, NULL, &weights));
        assert_ok(dg_memory_alloc(context, codes, &out.data));
        assert_ok(dg_memory_alloc(context, scales, &out_scale.data));
        assert_ok(dg_weights_unpack(context, weights, &out, &out_scale, NULL));
        assert_ok(dg_memory_copy(context, back, out.data, codes, DG_DEVICE_TO_HOST, NULL));
        assert_ok(
            dg_memory_copy(context, scales_back, out_scale.data, scales, DG_DEVICE_TO_HOST, NULL));
        assert_ok(dg_synchronize(context, NULL));
        for (int64_t row = 0; row < b.rows; row++)
            assert_memory_equal(back + row * b.cols, (uint8_t *)c->gemm.b.data + row * b.ld,
                                (size_t)b.cols);
        for (int64_t row = 0; row < scale.rows; row++)
            for (int64_t col = 0; col < scale.cols; col++)
                assert_memory_equal(scales_back + (size_t)(col * scale.rows + row) * element,
                                    (uint8_t *)c->gemm.scale_b.data +
                                        (size_t)(row * scale.row_stride + col * scale.col_stride) *
                                            element,
                                    element);
        assert_ok(dg_memory_free(context, out.data));
        assert_ok(dg_memory_free(context, out_scale.data));
        test_release(context, b.data, c->b.data);
        test_release(context, scale.data, c->scale_b.data);
        dg_weights_destroy(weights);
        free(back);
        free(scales_back);
        gemm_case_free(c);
    }
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_has_an_inverse),
        cmocka_unit_test(recipes_and_shapes),
        cmocka_unit_test(rows_do_not_depend_on_the_batch),
        cmocka_unit_test(every_kernel),
        cmocka_unit_test(two_tiles_of_tokens),
    };
    return test_run(argc, argv, tests);
}
