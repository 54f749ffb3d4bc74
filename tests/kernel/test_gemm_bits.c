/* SPDX-License-Identifier: MIT */
/*
 * What must not change a single bit of a result: the number of rows computed together, the number
 * of threads, the layout of the weights, repeating the call.
 */
#include "core/formats.h"
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static const char *const caps[] = {"generic", "avx2", "avx512", "avx512_bf16"};
enum { CAPS = sizeof caps / sizeof caps[0] };

static dg_context *context_of(const char *isa, int32_t threads)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.isa = isa;
    options.threads = threads;
    return test_context(&options);
}

/* Rows `first` to `first + count` of a problem, as a problem of their own on the same memory. */
static dg_scale rows_of_scale(const dg_scale *s, int64_t first, int64_t count)
{
    dg_scale part = *s;
    if (s->block_rows == 0)
        return part;
    part.row_phase = (int32_t)((first + s->row_phase) % s->block_rows);
    part.rows = dg_scale_count(count, s->block_rows, part.row_phase);
    part.data = (char *)s->data + (first + s->row_phase) / s->block_rows * s->row_stride *
                                      (int64_t)dg_dtype_bytes(s->dtype);
    return part;
}

static dg_matrix rows_of(const dg_matrix *m, int64_t first, int64_t count)
{
    dg_matrix part = *m;
    if (m->dtype == DG_NONE)
        return part;
    part.rows = count;
    part.data = (char *)m->data + first * m->ld * (int64_t)dg_dtype_bytes(m->dtype);
    return part;
}

static void rows_do_not_depend_on_m(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip(); /* only in batch-invariant mode */
    const int64_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 25, 40};
    rng r = rng_new(21);
    for (int cap = 0; cap < CAPS; cap++) {
        dg_context *context = context_of(caps[cap], 0);
        for (int i = 0; i < 12; i++) {
            dg_gemm shape = gemm_random(&r, 200);
            shape.d = dg_matrix_of(NULL, DG_F32, shape.d.rows, shape.d.cols);
            shape.scale_d = (dg_scale){0};
            gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
            assert_ok(gemm_case_run(c, context));
            const int64_t m = shape.d.rows, n = shape.d.cols;
            float *part = malloc((size_t)(m * n) * sizeof *part);
            for (size_t j = 0; j < sizeof counts / sizeof counts[0] && counts[j] <= m; j++) {
                int64_t count = counts[j], first = rng_range(&r, 0, m - count);
                dg_gemm g = c->gemm;
                g.a = rows_of(&g.a, first, count);
                g.c = rows_of(&g.c, first, count);
                g.scale_a = rows_of_scale(&g.scale_a, first, count);
                g.d = dg_matrix_of(part, DG_F32, count, n);
                memset(part, 0xFF, (size_t)(count * n) * sizeof *part);
                assert_ok(dg_gemm_run(context, &g, NULL));
                assert_memory_equal(part, (float *)c->gemm.d.data + first * n,
                                    (size_t)(count * n) * sizeof *part);
            }
            free(part);
            gemm_case_free(c);
        }
        dg_destroy(context);
    }
}

static void results_do_not_depend_on_threads(void **state)
{
    (void)state;
    rng r = rng_new(22);
    for (int cap = 0; cap < CAPS; cap++) {
        dg_context *one = context_of(caps[cap], 1);
        for (int32_t threads = 2; threads <= 5; threads++) {
            dg_context *many = context_of(caps[cap], threads);
            for (int i = 0; i < 6; i++) {
                dg_gemm shape = gemm_random(&r, 300);
                gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
                if (!gemm_case_run_or_refuse(c, one)) {
                    gemm_case_free(c);
                    continue;
                }
                void *expected = gemm_case_copy_d(c);
                for (int again = 0; again < 2; again++) {
                    assert_ok(gemm_case_run(c, many));
                    assert_memory_equal(expected, c->d.data, c->d.bytes);
                }
                free(expected);
                gemm_case_free(c);
            }
            dg_destroy(many);
        }
        dg_destroy(one);
    }
}

/* Few columns and many rows, so that threads share out M; and A in several blocks of rows. */
static void tall_problems(void **state)
{
    (void)state;
    rng r = rng_new(23);
    const struct {
        int64_t m, n, k;
    } shapes[] = {{700, 5, 200}, {1500, 33, 64}, {600, 20, 8192}};
    for (int i = 0; i < 3; i++) {
        dg_gemm shape =
            gemm_of(recipe_named("block128"), shapes[i].m, shapes[i].n, shapes[i].k, DG_F32);
        gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
        dg_context *one = context_of(NULL, 1), *many = context_of(NULL, 4);
        assert_ok(gemm_case_run(c, one));
        gemm_case_check(c);
        void *expected = gemm_case_copy_d(c);
        assert_ok(gemm_case_run(c, many));
        assert_memory_equal(expected, c->d.data, c->d.bytes);
        free(expected);
        gemm_case_free(c);
        dg_destroy(one);
        dg_destroy(many);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_depend_on_m),
        cmocka_unit_test(results_do_not_depend_on_threads),
        cmocka_unit_test(tall_problems),
    };
    return test_run(argc, argv, tests);
}
