/* SPDX-License-Identifier: MIT */
/*
 * The cases of tests/cases/, which the benchmark times: sizes of real models. The whole product is
 * computed, with packed and with row-major weights, and samples of it are compared with the oracle.
 */
#include "gemm_case.h"
#include "oracle.h"
#include "test.h"

#include "core/formats.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 6, SAMPLE_ROWS = 4, SAMPLE_COLS = 16 };

static guard fill(rng *r, dg_matrix *m)
{
    guard g = guard_new((size_t)(m->rows * m->cols), GUARD_AFTER, 0);
    rng_fill_small_codes(r, g.data, m->rows * m->cols);
    m->data = g.data;
    return g;
}

static guard fill_scales(rng *r, dg_scale *s)
{
    guard g = guard_new((size_t)(s->rows * s->cols) * dg_dtype_bytes(s->dtype), GUARD_AFTER, 0);
    rng_fill_scales(r, g.data, s->dtype, s->rows * s->cols);
    s->data = g.data;
    return g;
}

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static void check_samples(rng *r, const dg_gemm *g, const char *where)
{
    for (int sample = 0; sample < SAMPLES; sample++) {
        /* The first sample is the last corner, where tiles are ragged. */
        int64_t rows = smaller(SAMPLE_ROWS, g->d.rows), cols = smaller(SAMPLE_COLS, g->d.cols);
        int64_t row = sample == 0 ? g->d.rows - rows : rng_range(r, 0, g->d.rows - rows);
        int64_t col = sample == 0 ? g->d.cols - cols : rng_range(r, 0, g->d.cols - cols);
        dg_gemm part = gemm_part(g, row, rows, col, cols);
        double reference[SAMPLE_ROWS * SAMPLE_COLS], magnitude[SAMPLE_ROWS * SAMPLE_COLS];
        oracle_gemm(&part, reference, magnitude);
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < cols; j++) {
                double out = dgi_load_f32(part.d.data, part.d.dtype, i * part.d.ld + j);
                int64_t at = i * cols + j;
                if (!oracle_close(out, part.d.dtype, reference[at], 1e-5 * magnitude[at]))
                    fail_msg("%s: D[%lld,%lld] is %.9g, should be %.9g: %s", where,
                             (long long)(row + i), (long long)(col + j), out, reference[at],
                             gemm_text(g));
            }
    }
}

static void run_case(rng *r, dg_context *context, const char *line, const char *where)
{
    char name[32];
    long long m, n, k;
    if (sscanf(line, "%31s %lld %lld %lld", name, &m, &n, &k) != 4)
        fail_msg("%s: \"%s\" is not 'recipe m n k'", where, line);
    dg_gemm g = gemm_of(recipe_named(name), m, n, k, DG_BF16);
    guard memory[] = {fill(r, &g.a), fill(r, &g.b), fill_scales(r, &g.scale_a),
                      fill_scales(r, &g.scale_b),
                      guard_new((size_t)(m * n) * 2, GUARD_AFTER, 0xFF)};
    g.d.data = memory[4].data;
    assert_ok(dg_gemm_run(context, &g, NULL));
    check_samples(r, &g, where);

    dg_weights *weights;
    assert_ok(dg_weights_pack(context, &g.b, &g.scale_b, NULL, 0, NULL, &weights));
    dg_gemm packed = g;
    packed.weights = weights;
    packed.b.dtype = packed.scale_b.dtype = DG_NONE;
    guard again = guard_new(memory[4].bytes, GUARD_AFTER, 0xFF);
    packed.d.data = again.data;
    assert_ok(dg_gemm_run(context, &packed, NULL));
    assert_memory_equal(again.data, g.d.data, again.bytes);
    dg_weights_destroy(weights);
    guard_free(&again);
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        guard_free(&memory[i]);
}

static void every_case(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    rng r = rng_new(60);
    dg_context *context = test_context(NULL);
    glob_t files;
    assert_int_equal(glob(TEST_CASES "/*.txt", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        if (strstr(files.gl_pathv[i], "/grouped.txt") != NULL)
            continue; /* of `deepgemm bench --grouped`, which checks each product itself */
        FILE *file = fopen(files.gl_pathv[i], "r");
        assert_non_null(file);
        char line[256];
        while (fgets(line, sizeof line, file) != NULL)
            if (line[0] != '#' && line[0] != '\n')
                run_case(&r, context, line, files.gl_pathv[i]);
        fclose(file);
    }
    globfree(&files);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_case)};
    return test_run(argc, argv, tests);
}
