/* SPDX-License-Identifier: MIT */
/*
 * Structs that begin with their own size: older ones are completed, newer ones are taken as long
 * as they use nothing that this library does not know.
 */
#include "gemm_case.h"
#include "test.h"

#include <string.h>

/* A caller's struct as a later header might have it: 16 bytes longer. */
#define LATER(type)                                                                                \
    struct {                                                                                       \
        type known;                                                                                \
        unsigned char unknown[16];                                                                 \
    }

static void gemm_struct(void **state)
{
    (void)state;
    rng r = rng_new(3);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("tensor"), 5, 6, 7, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);

    const size_t oldest = offsetof(dg_gemm, b_is_constant);
    const size_t wrong[] = {0, 1, sizeof(size_t), oldest - 1, SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        dg_gemm g = c->gemm;
        g.struct_bytes = wrong[i];
        assert_refused(dg_gemm_run(context, &g, NULL), DG_INVALID_ARGUMENT, "gemm");
        gemm_case_check_untouched(c);
    }

    LATER(dg_gemm) later = {.known = c->gemm};
    later.known.struct_bytes = sizeof later;
    later.unknown[15] = 1;
    assert_refused(dg_gemm_run(context, &later.known, NULL), DG_INVALID_ARGUMENT, "does not know");
    gemm_case_check_untouched(c);
    later.unknown[15] = 0;
    if (test_device() == DG_CPU) {
        assert_ok(dg_gemm_run(context, &later.known, NULL));
        gemm_case_check(c);
        dg_gemm old = c->gemm; /* what lies behind it is not this call's */
        old.struct_bytes = oldest;
        memset((char *)&old + oldest, 0xFF, sizeof old - oldest);
        assert_ok(dg_gemm_run(context, &old, NULL));
        gemm_case_check(c);
    }
    gemm_case_free(c);
    dg_destroy(context);
}

static void options_struct(void **state)
{
    (void)state;
    dg_context *context = NULL;
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.struct_bytes = 0;
    assert_refused(dg_create(&context, test_device(), &options), DG_INVALID_ARGUMENT,
                   "options.struct_bytes is 0");
    assert_null(context);
    LATER(dg_context_options) later = {.known = DG_CONTEXT_OPTIONS_INIT};
    later.known.struct_bytes = sizeof later;
    later.unknown[0] = 1;
    assert_refused(dg_create(&context, test_device(), &later.known), DG_INVALID_ARGUMENT,
                   "does not know");
    assert_null(context);
    later.unknown[0] = 0;
    assert_ok(dg_create(&context, test_device(), &later.known));
    dg_destroy(context);
}

static void quantize_structs(void **state)
{
    (void)state;
    dg_context *context = test_context(NULL);
    float wide = 1.0f, scale = 1.0f;
    unsigned char code = 0x55;
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(&wide, DG_F32, 1, 1);
    q.output = dg_matrix_of(&code, DG_E4M3, 1, 1);
    q.scale = dg_scale_of(&scale, DG_F32, 1, 1, 0, 0);
    q.struct_bytes -= 1;
    assert_refused(dg_quantize_run(context, &q, NULL), DG_INVALID_ARGUMENT,
                   "quantize.struct_bytes");
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    d.input = q.output, d.output = q.input, d.scale = q.scale;
    d.struct_bytes = 3;
    assert_refused(dg_dequantize_run(context, &d, NULL), DG_INVALID_ARGUMENT,
                   "dequantize.struct_bytes is 3");
    assert_int_equal(code, 0x55);
    assert_true(wide == 1.0f && scale == 1.0f);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_struct),
        cmocka_unit_test(options_struct),
        cmocka_unit_test(quantize_structs),
    };
    return test_run(argc, argv, tests);
}
