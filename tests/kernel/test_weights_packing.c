/* SPDX-License-Identifier: MIT */
/* Packing weights and its inverse: the same codes and scales, for every kernel and granularity. */
#include "core/formats.h"
#include "gemm_case.h"
#include "guard.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

/* Packs the B of a case into exactly the bytes asked for, and unpacks it into other memory. */
static void round_trip(const gemm_case *c, dg_context *context)
{
    const dg_matrix *b = &c->gemm.b;
    const dg_scale *scale = &c->gemm.scale_b;
    const size_t scale_element = dg_dtype_bytes(scale->dtype);
    size_t bytes;
    assert_ok(dg_weights_bytes(context, b, scale, &bytes));
    guard packed = guard_new((bytes + 255) / 256 * 256, GUARD_AFTER, 0xFF);
    dg_weights *weights;
    assert_ok(dg_weights_pack(context, b, scale, packed.data, bytes, NULL, &weights));

    /* Other strides than those packed: scales transposed, codes contiguous. */
    guard codes = guard_new((size_t)(b->rows * b->cols), GUARD_AFTER, 0xFF);
    guard scales =
        guard_new((size_t)(scale->rows * scale->cols) * scale_element, GUARD_AFTER, 0xFF);
    dg_matrix out = dg_matrix_of(codes.data, b->dtype, b->rows, b->cols);
    dg_scale out_scale = *scale;
    out_scale.data = scales.data;
    out_scale.row_stride = 1;
    out_scale.col_stride = scale->rows;
    assert_ok(dg_weights_unpack(context, weights, &out, &out_scale, NULL));
    for (int64_t n = 0; n < b->rows; n++)
        assert_memory_equal((uint8_t *)codes.data + n * b->cols, (uint8_t *)b->data + n * b->ld,
                            (size_t)b->cols);
    for (int64_t i = 0; i < scale->rows; i++)
        for (int64_t j = 0; j < scale->cols; j++) {
            float was = dgi_scale_at(scale, i, j), is = dgi_scale_at(&out_scale, i, j);
            assert_int_equal(dgi_f32_to_bits(is), dgi_f32_to_bits(was));
        }
    dg_weights_destroy(weights);
    guard_free(&scales);
    guard_free(&codes);
    guard_free(&packed);
}

static void packing_has_an_inverse(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip(); /* instruction sets are the CPU's; test_decode_cuda does this for a GPU */
    const char *const caps[] = {"generic", "avx2", "avx512", "avx512_bf16"};
    rng r = rng_new(31);
    for (int cap = 0; cap < 4; cap++) {
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.isa = caps[cap];
        dg_context *context = test_context(&options);
        for (int i = 0; i < 60; i++) {
            dg_gemm shape = gemm_random(&r, 300);
            shape.a.rows = shape.d.rows = 1;
            shape.scale_a = scale_of(DG_F32, 1, shape.a.cols, 0, 0, 0, 0);
            shape.c = shape.d = dg_matrix_of(NULL, DG_F32, 1, shape.d.cols);
            shape.scale_d = (dg_scale){0};
            gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
            /* Any codes: NaN too must come back as it was. */
            for (int64_t k = 0; k < c->gemm.b.cols; k++)
                ((uint8_t *)c->gemm.b.data)[k] = (uint8_t)rng_next(&r);
            round_trip(c, context);
            gemm_case_free(c);
        }
        dg_destroy(context);
    }
}

/* Weights packed under one instruction set serve a context with another. */
static void one_layout_for_all(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.isa = "generic";
    dg_context *generic = test_context(&options), *best = test_context(NULL);
    rng r = rng_new(32);
    dg_gemm shape = gemm_of(recipe_named("block128"), 3, 100, 300, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    size_t bytes;
    assert_ok(dg_weights_bytes(generic, &c->gemm.b, &c->gemm.scale_b, &bytes));
    void *buffers[2];
    dg_context *contexts[2] = {generic, best};
    for (int i = 0; i < 2; i++) {
        dg_weights *weights;
        buffers[i] = aligned_alloc(256, (bytes + 255) / 256 * 256);
        assert_ok(dg_weights_pack(contexts[i], &c->gemm.b, &c->gemm.scale_b, buffers[i], bytes,
                                  NULL, &weights));
        dg_weights_destroy(weights);
    }
    assert_memory_equal(buffers[0], buffers[1], bytes);
    free(buffers[0]);
    free(buffers[1]);
    gemm_case_free(c);
    dg_destroy(generic);
    dg_destroy(best);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_has_an_inverse),
        cmocka_unit_test(one_layout_for_all),
    };
    return test_run(argc, argv, tests);
}
