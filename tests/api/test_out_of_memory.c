/* SPDX-License-Identifier: MIT */
/*
 * Every allocation of the library fails once: the call gives DG_OUT_OF_MEMORY and writes nothing,
 * nothing leaks (the address sanitizer looks), and the same call works afterwards. The linker puts
 * the functions below in place of the C library's (--wrap in cmake/tests.cmake).
 */
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

/* How many allocations still succeed; negative: all do. */
static int remaining = -1;

static bool may_allocate(void)
{
    return remaining < 0 || remaining-- > 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    return may_allocate() ? __real_malloc(bytes) : NULL;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return may_allocate() ? __real_calloc(count, bytes) : NULL;
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return may_allocate() ? __real_realloc(memory, bytes) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return may_allocate() ? __real_aligned_alloc(alignment, bytes) : NULL;
}

/* ---- the calls ----------------------------------------------------------------------- */

static dg_context *context;
static gemm_case *multiply;
static dg_weights *weights;
static float wide[300 * 300];
static uint8_t codes[300 * 300];
static float scales[300 * 3];

static dg_status call_create(void)
{
    return dg_create(&context, DG_CPU, NULL);
}

static dg_status call_gemm(void)
{
    return dg_gemm_run(context, &multiply->gemm, NULL);
}

static dg_status call_pack(void)
{
    return dg_weights_pack(context, &multiply->gemm.b, &multiply->gemm.scale_b, NULL, 0, NULL,
                           &weights);
}

static dg_status call_packed_gemm(void)
{
    dg_gemm g = multiply->gemm;
    g.weights = weights;
    g.b.dtype = g.scale_b.dtype = DG_NONE;
    return dg_gemm_run(context, &g, NULL);
}

static dg_status call_unpack(void)
{
    return dg_weights_unpack(context, weights, &multiply->gemm.b, &multiply->gemm.scale_b, NULL);
}

static dg_status call_explain(void)
{
    char text[2000];
    size_t bytes = sizeof text;
    return dg_gemm_explain(context, &multiply->gemm, text, &bytes);
}

static dg_status call_quantize(void)
{
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(wide, DG_F32, 300, 300);
    q.output = dg_matrix_of(codes, DG_E4M3, 300, 300);
    q.scale = dg_scale_of(scales, DG_F32, 300, 300, 100, 128);
    return dg_quantize_run(context, &q, NULL);
}

/* Fails the call's first, second, ... allocation until it needs no more; how many it needed. */
static int starve(dg_status (*call)(void))
{
    for (int allowed = 0;; allowed++) {
        assert_true(allowed < 1000);
        memcpy(multiply->d.data, multiply->d_before.data, multiply->d.bytes);
        remaining = allowed;
        dg_status status = call();
        remaining = -1;
        if (status == DG_OK)
            return allowed;
        assert_status(status, DG_OUT_OF_MEMORY);
        assert_true(dg_last_error()[0] != 0);
        gemm_case_check_untouched(multiply);
    }
}

static void every_allocation_fails_once(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    rng r = rng_new(80);
    rng_fill_normal(&r, wide, DG_F32, 300 * 300, 1.0);
    /* Few and many rows take different ways through the backend, with memory of their own. */
    const int64_t rows[] = {1, 5, 150};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        dg_gemm shape = gemm_of(recipe_named("block128"), rows[i], 200, 300, DG_BF16);
        multiply = gemm_case_new(&r, &shape, CASE_PLAIN);
        assert_true(starve(call_create) > 0);
        starve(call_gemm);
        gemm_case_check(multiply);
        assert_true(starve(call_pack) > 0);
        starve(call_packed_gemm);
        gemm_case_check(multiply);
        starve(call_unpack);
        starve(call_explain);
        starve(call_quantize);
        dg_weights_destroy(weights);
        dg_destroy(context);
        gemm_case_free(multiply);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_fails_once)};
    return test_run(argc, argv, tests);
}
