/* SPDX-License-Identifier: MIT */
/* Tables of problems: any mix in one call, changed from the host and from device arrays. */
#include "gemm_case.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 90 };

/* Random problems that share what those of a table must. */
static dg_gemm largest_of(rng *r)
{
    dg_gemm g = gemm_random(r, LARGEST);
    g.a.rows = g.d.rows = g.b.rows = g.d.cols = LARGEST;
    g.a.cols = g.b.cols = LARGEST;
    g.a.ld = g.b.ld = g.d.ld = LARGEST;
    g.c = g.bias = (dg_matrix){0};
    g.beta = 0.0f;
    g.scale_a = scale_of(g.scale_a.dtype, LARGEST, LARGEST, g.scale_a.block_rows,
                         g.scale_a.block_cols, 0, 0);
    g.scale_b = scale_of(g.scale_b.dtype, LARGEST, LARGEST, g.scale_b.block_rows,
                         g.scale_b.block_cols, 0, 0);
    if (g.scale_d.dtype != DG_NONE)
        g.scale_d = scale_of(DG_F32, LARGEST, LARGEST, 1, 0, 0, 0);
    return g;
}

/* Contiguous, of any size up to the largest, with a bias and C now and then. */
static dg_gemm problem_of(rng *r, const dg_gemm *largest)
{
    const int64_t m = rng_range(r, 0, LARGEST), n = rng_range(r, 0, LARGEST);
    const int64_t unit = test_device() == DG_CPU ? 1 : 16; /* what addresses need there */
    const int64_t k = unit * rng_range(r, 0, LARGEST / unit);
    dg_gemm g = *largest;
    g.a = dg_matrix_of(NULL, g.a.dtype, m, k);
    g.b = dg_matrix_of(NULL, g.b.dtype, n, k);
    g.d = dg_matrix_of(NULL, g.d.dtype, m, n);
    g.d.ld += rng_range(r, 0, 9);
    g.scale_a = scale_of(g.scale_a.dtype, m, k, g.scale_a.block_rows, g.scale_a.block_cols, 0, 0);
    g.scale_b = scale_of(g.scale_b.dtype, n, k, g.scale_b.block_rows, g.scale_b.block_cols, 0, 0);
    if (g.scale_d.dtype != DG_NONE)
        g.scale_d = scale_of(DG_F32, m, n, 1, 0, 0, 0);
    g.alpha = (float)rng_normal(r);
    if (rng_chance(r, 0.4))
        g.bias = dg_matrix_of(NULL, DG_F32, 1, n);
    if (rng_chance(r, 0.4)) {
        g.c = dg_matrix_of(NULL, DG_F32, m, n);
        g.beta = 0.5f;
    }
    return g;
}

/* A case's operands on the device, and its GEMM with their addresses there. */
typedef struct placed {
    gemm_case *c;
    dg_gemm gemm;
} placed;

static void *place(dg_context *context, guard *memory)
{
    return test_to_device(context, memory->data, memory->bytes);
}

static placed place_case(dg_context *context, gemm_case *c)
{
    placed p = {c, c->gemm};
    c->device = test_device();
    p.gemm.a.data = place(context, &c->a);
    p.gemm.b.data = place(context, &c->b);
    p.gemm.c.data = place(context, &c->c);
    p.gemm.d.data = place(context, &c->d);
    p.gemm.bias.data = place(context, &c->bias);
    p.gemm.scale_a.data = place(context, &c->scale_a);
    p.gemm.scale_b.data = place(context, &c->scale_b);
    p.gemm.scale_d.data = place(context, &c->scale_d);
    return p;
}

static void fetch_and_check(dg_context *context, placed *p)
{
    gemm_case *c = p->c;
    test_release(context, p->gemm.a.data, c->a.data);
    test_release(context, p->gemm.b.data, c->b.data);
    test_release(context, p->gemm.c.data, c->c.data);
    test_release(context, p->gemm.bias.data, c->bias.data);
    test_release(context, p->gemm.scale_a.data, c->scale_a.data);
    test_release(context, p->gemm.scale_b.data, c->scale_b.data);
    test_release(context, p->gemm.scale_d.data, c->scale_d.data);
    test_from_device(context, p->gemm.d.data, c->d.data, c->d.bytes);
    gemm_case_check(c);
    gemm_case_free(c);
}

static void random_tables(void **state)
{
    (void)state;
    rng r = rng_new(1);
    dg_context *context = test_context(NULL);
    for (int i = 0; i < 30; i++) {
        const int32_t problems = (int32_t)rng_range(&r, 1, 20);
        placed cases[20];
        dg_weights *packed[20] = {NULL};
        dg_table *table;
        dg_gemm largest;
        dg_status status;
        do { /* a GPU does not take every granularity */
            largest = largest_of(&r);
            status = dg_table_create(context, &largest, problems, &table);
        } while (status == DG_UNSUPPORTED_SCALE && test_device() != DG_CPU);
        assert_ok(status);
        for (int32_t j = 0; j < problems; j++) {
            const dg_gemm shape = problem_of(&r, &largest);
            cases[j] = place_case(context, gemm_case_new(&r, &shape, CASE_PLAIN));
            dg_gemm g = cases[j].gemm;
            if (rng_chance(&r, 0.5)) {
                assert_ok(dg_weights_pack(context, &g.b, &g.scale_b, NULL, 0, NULL, &packed[j]));
                g.weights = packed[j];
                g.b = (dg_matrix){0};
                g.scale_b = (dg_scale){0};
            }
            assert_ok(dg_table_set(table, j, &g));
        }
        assert_ok(dg_table_update(table, NULL));
        assert_ok(dg_table_run(table, NULL));
        for (int32_t j = 0; j < problems; j++) {
            fetch_and_check(context, &cases[j]);
            dg_weights_destroy(packed[j]);
        }
        dg_table_destroy(table);
    }
    dg_destroy(context);
}

/* What was set has no effect before the update, and an emptied problem none after it. */
static void updates_take_effect_when_asked(void **state)
{
    (void)state;
    rng r = rng_new(2);
    dg_context *context = test_context(NULL);
    const dg_gemm shape = gemm_of(recipe_named("block128"), 20, 30, 208, DG_BF16);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    placed p = place_case(context, c);
    dg_table *table;
    assert_ok(dg_table_create(context, &shape, 3, &table));
    assert_ok(dg_table_run(table, NULL)); /* nothing was ever set */
    assert_ok(dg_table_set(table, 1, &p.gemm));
    assert_ok(dg_table_run(table, NULL));
    dg_memory_copy(context, c->d.data, p.gemm.d.data, c->d.bytes, DG_DEVICE_TO_HOST, NULL);
    assert_ok(dg_synchronize(context, NULL));
    gemm_case_check_untouched(c);
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_set(table, 1, NULL));
    assert_ok(dg_table_run(table, NULL));
    fetch_and_check(context, &p);

    c = gemm_case_new(&r, &shape, CASE_PLAIN);
    p = place_case(context, c);
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    dg_memory_copy(context, c->d.data, p.gemm.d.data, c->d.bytes, DG_DEVICE_TO_HOST, NULL);
    assert_ok(dg_synchronize(context, NULL));
    gemm_case_check_untouched(c);
    assert_ok(dg_table_set(table, 1, &p.gemm));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    fetch_and_check(context, &p);
    dg_table_destroy(table);
    dg_destroy(context);
}

/*
 * The device's table takes other sizes and other addresses out of arrays: the same problems, each
 * described by its neighbour's first, give their neighbour's results.
 */
static void updates_from_device_arrays(void **state)
{
    (void)state;
    enum { PROBLEMS = 7 };
    rng r = rng_new(3);
    dg_context *context = test_context(NULL);
    const recipe *const recipe = recipe_named("block1x128");
    const dg_gemm largest = gemm_of(recipe, 100, 100, 300, DG_F32);
    placed cases[PROBLEMS];
    dg_table *table;
    assert_ok(dg_table_create(context, &largest, PROBLEMS, &table));
    for (int i = 0; i < PROBLEMS; i++) {
        dg_gemm shape = gemm_of(recipe, rng_range(&r, 0, 100), rng_range(&r, 1, 100),
                                16 * rng_range(&r, 0, 18), DG_F32);
        shape.a.ld = shape.b.ld = 304; /* pitches are not in the arrays */
        shape.d.ld = 100;
        shape.scale_a.row_stride = shape.scale_b.row_stride = 3;
        cases[i] = place_case(context, gemm_case_new(&r, &shape, CASE_PLAIN));
    }
    int32_t m[PROBLEMS], n[PROBLEMS], k[PROBLEMS];
    void *a[PROBLEMS], *b[PROBLEMS], *d[PROBLEMS], *scale_a[PROBLEMS], *scale_b[PROBLEMS];
    for (int i = 0; i < PROBLEMS; i++) {
        const dg_gemm *g = &cases[i].gemm;
        assert_ok(dg_table_set(table, (i + 1) % PROBLEMS, g));
        m[i] = (int32_t)g->d.rows, n[i] = (int32_t)g->d.cols, k[i] = (int32_t)g->a.cols;
        a[i] = g->a.data, b[i] = g->b.data, d[i] = g->d.data;
        scale_a[i] = g->scale_a.data, scale_b[i] = g->scale_b.data;
    }
    assert_ok(dg_table_update(table, NULL));
    struct {
        void *host, *device;
        size_t bytes;
    } arrays[] = {{m, NULL, sizeof m},
                  {n, NULL, sizeof n},
                  {k, NULL, sizeof k},
                  {a, NULL, sizeof a},
                  {b, NULL, sizeof b},
                  {d, NULL, sizeof d},
                  {scale_a, NULL, sizeof scale_a},
                  {scale_b, NULL, sizeof scale_b}};
    for (int i = 0; i < 8; i++)
        arrays[i].device = test_to_device(context, arrays[i].host, arrays[i].bytes);
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.m = arrays[0].device, values.n = arrays[1].device, values.k = arrays[2].device;
    values.a = arrays[3].device, values.b = arrays[4].device, values.d = arrays[5].device;
    values.scale_a = arrays[6].device, values.scale_b = arrays[7].device;
    assert_ok(dg_table_update_device(table, &values, NULL));
    assert_ok(dg_table_run(table, NULL));
    assert_ok(dg_synchronize(context, NULL));
    for (int i = 0; i < 8; i++)
        test_release(context, arrays[i].device, arrays[i].host);
    for (int i = 0; i < PROBLEMS; i++)
        fetch_and_check(context, &cases[i]);
    dg_table_destroy(table);
    dg_destroy(context);
}

/* Sizes outside the limits are brought inside: nothing beyond the largest problem is touched. */
static void sizes_are_clamped(void **state)
{
    (void)state;
    rng r = rng_new(4);
    dg_context *context = test_context(NULL);
    const dg_gemm shape = gemm_of(recipe_named("token_channel"), 17, 19, 48, DG_BF16);
    placed cases[2];
    dg_table *table;
    assert_ok(dg_table_create(context, &shape, 2, &table));
    for (int i = 0; i < 2; i++) {
        cases[i] = place_case(context, gemm_case_new(&r, &shape, CASE_PLAIN));
        assert_ok(dg_table_set(table, i, &cases[i].gemm));
    }
    assert_ok(dg_table_update(table, NULL));
    int32_t m[] = {1000000, -3};
    void *device = test_to_device(context, m, sizeof m);
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.m = device;
    assert_ok(dg_table_update_device(table, &values, NULL));
    assert_ok(dg_table_run(table, NULL));
    assert_ok(dg_synchronize(context, NULL));
    test_release(context, device, m);
    fetch_and_check(context, &cases[0]);
    gemm_case *c = cases[1].c;
    dg_memory_copy(context, c->d.data, cases[1].gemm.d.data, c->d.bytes, DG_DEVICE_TO_HOST, NULL);
    assert_ok(dg_synchronize(context, NULL));
    gemm_case_check_untouched(c);
    /* The host's description stands: an update brings all of it back. */
    assert_ok(dg_table_set(table, 0, NULL));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    fetch_and_check(context, &cases[1]);
    dg_table_destroy(table);
    dg_destroy(context);
}

/* An address from a device array that a GPU's copy engine cannot use: that problem is left alone.
 */
static void addresses_that_cannot_be_read(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip(); /* which reads any */
    rng r = rng_new(8);
    dg_context *context = test_context(NULL);
    const dg_gemm shape = gemm_of(recipe_named("block128"), 17, 24, 256, DG_BF16);
    placed cases[3];
    dg_table *table;
    assert_ok(dg_table_create(context, &shape, 3, &table));
    void *a[3], *b[3];
    for (int i = 0; i < 3; i++) {
        cases[i] = place_case(context, gemm_case_new(&r, &shape, CASE_PLAIN));
        assert_ok(dg_table_set(table, i, &cases[i].gemm));
        a[i] = (char *)cases[i].gemm.a.data + (i == 1 ? 1 : 0);
        b[i] = (char *)cases[i].gemm.b.data - (i == 2 ? 8 : 0);
    }
    assert_ok(dg_table_update(table, NULL));
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.a = test_to_device(context, a, sizeof a);
    values.b = test_to_device(context, b, sizeof b);
    assert_ok(dg_table_update_device(table, &values, NULL));
    assert_ok(dg_table_run(table, NULL));
    for (int i = 1; i < 3; i++) {
        gemm_case *c = cases[i].c;
        assert_ok(dg_memory_copy(context, c->d.data, cases[i].gemm.d.data, c->d.bytes,
                                 DG_DEVICE_TO_HOST, NULL));
        assert_ok(dg_synchronize(context, NULL));
        gemm_case_check_untouched(c);
    }
    fetch_and_check(context, &cases[0]);
    /* As they were set, they are right. */
    assert_ok(dg_table_set(table, 0, NULL));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    for (int i = 1; i < 3; i++)
        fetch_and_check(context, &cases[i]);
    test_release(context, (void *)values.a, a);
    test_release(context, (void *)values.b, b);
    dg_table_destroy(table);
    dg_destroy(context);
}

static void refusals(void **state)
{
    (void)state;
    rng r = rng_new(5);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("block128"), 20, 30, 208, DG_BF16);
    dg_table *table = NULL;
    assert_refused(dg_table_create(NULL, &shape, 3, &table), DG_INVALID_ARGUMENT, "context");
    assert_refused(dg_table_create(context, NULL, 3, &table), DG_INVALID_ARGUMENT, "largest");
    assert_refused(dg_table_create(context, &shape, 3, NULL), DG_INVALID_ARGUMENT, "table");
    assert_refused(dg_table_create(context, &shape, -1, &table), DG_INVALID_ARGUMENT, "-1");
    assert_refused(dg_table_create(context, &shape, 65537, &table), DG_INVALID_ARGUMENT, "65536");
    assert_ok(dg_table_create(context, &shape, 3, &table));

    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    placed p = place_case(context, c);
    assert_refused(dg_table_set(NULL, 0, &p.gemm), DG_INVALID_ARGUMENT, "table");
    assert_refused(dg_table_set(table, 3, &p.gemm), DG_INVALID_ARGUMENT, "index is 3");
    assert_refused(dg_table_set(table, -1, NULL), DG_INVALID_ARGUMENT, "index is -1");
    dg_gemm wrong = p.gemm;
    wrong.scale_a = (dg_scale){0};
    assert_refused(dg_table_set(table, 0, &wrong), DG_UNSUPPORTED_SCALE, "scale_a");
    wrong = p.gemm;
    wrong.a.dtype = DG_E5M2;
    assert_refused(dg_table_set(table, 0, &wrong), DG_INVALID_ARGUMENT, "e5m2");
    wrong = p.gemm;
    wrong.scale_b.block_rows = 64;
    assert_refused(dg_table_set(table, 0, &wrong), DG_INVALID_ARGUMENT, "(64,128)");
    wrong = p.gemm;
    wrong.accumulation = DG_ACCUMULATE_FAST;
    assert_refused(dg_table_set(table, 0, &wrong), DG_INVALID_ARGUMENT, "accumulation");
    wrong = p.gemm;
    wrong.workspace = c->a.data;
    assert_refused(dg_table_set(table, 0, &wrong), DG_INVALID_ARGUMENT, "workspace");
    dg_table *small;
    dg_gemm limit = gemm_of(recipe_named("block128"), 19, 30, 208, DG_BF16);
    assert_ok(dg_table_create(context, &limit, 1, &small));
    assert_refused(dg_table_set(small, 0, &p.gemm), DG_INVALID_ARGUMENT, "at most 19, 30, 208");
    dg_table_destroy(small);
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.n = (const int32_t *)((const char *)c->a.data + 1);
    if ((uintptr_t)values.n % 4 != 0)
        assert_refused(dg_table_update_device(table, &values, NULL), DG_MISALIGNED, "values.n");
    assert_refused(dg_table_update(NULL, NULL), DG_INVALID_ARGUMENT, "table");
    assert_refused(dg_table_update_device(NULL, &values, NULL), DG_INVALID_ARGUMENT, "table");
    assert_refused(dg_table_update_device(table, NULL, NULL), DG_INVALID_ARGUMENT, "values");
    assert_refused(dg_table_run(NULL, NULL), DG_INVALID_ARGUMENT, "table");
    dg_table_destroy(NULL);

    /* All of this had no effect, and the table works. */
    assert_ok(dg_table_set(table, 0, &p.gemm));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    fetch_and_check(context, &p);
    dg_table_destroy(table);
    dg_destroy(context);
}

/* More problems than a GPU takes in one launch; those at the seams are set, then grow. */
static void thousands_of_problems(void **state)
{
    (void)state;
    enum { COUNT = 2100, SET = 5, M = 20 };
    static const int32_t indices[SET] = {0, 1023, 1024, 2048, COUNT - 1};
    rng r = rng_new(7);
    dg_context *context = test_context(NULL);
    const dg_gemm shape = gemm_of(recipe_named("block128"), M, 30, 208, DG_BF16);
    placed cases[SET];
    static int32_t m[COUNT];
    dg_table *table;
    assert_ok(dg_table_create(context, &shape, COUNT, &table));
    for (int i = 0; i < SET; i++) {
        cases[i] = place_case(context, gemm_case_new(&r, &shape, CASE_PLAIN));
        dg_gemm none = cases[i].gemm;
        none.a.rows = none.d.rows = none.scale_a.rows = 0;
        assert_ok(dg_table_set(table, indices[i], &none));
        m[indices[i]] = M;
    }
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL)); /* all are empty */
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.m = test_to_device(context, m, sizeof m);
    assert_ok(dg_table_update_device(table, &values, NULL));
    assert_ok(dg_table_run(table, NULL));
    for (int i = 0; i < SET; i++)
        fetch_and_check(context, &cases[i]);
    test_release(context, (void *)values.m, m);
    dg_table_destroy(table);
    dg_destroy(context);
}

/*
 * Long products among short ones, which a GPU cuts along K: recipes whose scales change along K or
 * not, also where a part begins inside a block; K that ends inside a stage.
 */
static const struct cut_case {
    const char *recipe;
    dg_dtype d;
    int32_t block, phase; /* of A's scales along K, or 0: the recipe's */
} cut_cases[] = {
    {"block128", DG_BF16, 0, 0},    {"block1x128", DG_F32, 0, 0}, {"token_channel", DG_E4M3, 0, 0},
    {"block128", DG_F16, 1536, 96}, {"mx", DG_BF16, 0, 0},
};

static dg_gemm cut_gemm(const struct cut_case *cut, int64_t m, int64_t n, int64_t k)
{
    dg_gemm g = gemm_of(recipe_named(cut->recipe), m, n, k, cut->d);
    if (cut->block != 0)
        g.scale_a = scale_of(DG_F32, m, k, 1, cut->block, 0, cut->phase);
    return g;
}

static dg_gemm cut_problem(const struct cut_case *cut, int i)
{
    static const int32_t sizes[][3] = {{20, 30, 208},  {60, 150, 14800}, {9, 64, 0},
                                       {60, 70, 2608}, {200, 40, 1040},  {1, 300, 2048}};
    const int64_t m = sizes[i][0], n = sizes[i][1];
    dg_gemm g = cut_gemm(cut, m, n, sizes[i][2]);
    g.alpha = i % 2 == 0 ? 1.0f : -0.75f;
    if (i % 3 == 0)
        g.bias = dg_matrix_of(NULL, DG_F32, 1, n);
    if (i == 3) {
        g.c = dg_matrix_of(NULL, DG_BF16, m, n);
        g.beta = 0.5f;
    }
    return g;
}

/* How many tiles the explanation says are cut, or -1 where it says nothing of it. */
static int tiles_cut(dg_table *table)
{
    char text[8192];
    size_t bytes = sizeof text;
    int tiles, m, n, clusters, cut = -1;
    assert_ok(dg_table_explain(table, text, &bytes));
    const char *line = strstr(text, "\ntiles ");
    if (line != NULL)
        assert_int_equal(sscanf(line, "\ntiles %d of %d x %d for %d clusters of CTAs, %d", &tiles,
                                &m, &n, &clusters, &cut),
                         5);
    return cut;
}

static void cut_along_k(void **state)
{
    (void)state;
    enum { PROBLEMS = 6, CASES = sizeof cut_cases / sizeof cut_cases[0], RUNS = 2 };
    rng r = rng_new(9);
    for (int i = 0; i <= CASES; i++) {
        dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
        options.batch_invariant = i >= CASES;
        dg_context *context = test_context(&options);
        const struct cut_case *cut = &cut_cases[i % CASES];
        const dg_gemm largest = cut_gemm(cut, 200, 300, 14800);
        dg_table *table;
        placed cases[PROBLEMS];
        assert_ok(dg_table_create(context, &largest, PROBLEMS, &table));
        for (int j = 0; j < PROBLEMS; j++) {
            const dg_gemm shape = cut_problem(cut, j);
            cases[j] = place_case(context, gemm_case_new(&r, &shape, CASE_PLAIN));
            assert_ok(dg_table_set(table, j, &cases[j].gemm));
        }
        assert_ok(dg_table_update(table, NULL));
        if (test_device() != DG_CPU && !options.batch_invariant)
            assert_in_range(tiles_cut(table), 1, 40);
        else
            assert_true(tiles_cut(table) <= 0);
        void *bits[RUNS][PROBLEMS];
        for (int run = 0; run < RUNS; run++) { /* without another update between */
            assert_ok(dg_table_run(table, NULL));
            for (int j = 0; j < PROBLEMS; j++) {
                const size_t bytes = cases[j].c->d.bytes;
                bits[run][j] = malloc(bytes);
                assert_ok(dg_memory_copy(context, bits[run][j], cases[j].gemm.d.data, bytes,
                                         DG_DEVICE_TO_HOST, NULL));
                assert_ok(dg_synchronize(context, NULL));
                assert_memory_equal(bits[run][j], bits[0][j], bytes);
            }
        }
        for (int j = 0; j < PROBLEMS; j++) {
            for (int run = 0; run < RUNS; run++)
                free(bits[run][j]);
            fetch_and_check(context, &cases[j]);
        }
        dg_table_destroy(table);
        dg_destroy(context);
    }
}

static void explanations(void **state)
{
    (void)state;
    rng r = rng_new(6);
    dg_context *context = test_context(NULL);
    const dg_gemm limit = gemm_of(recipe_named("block128"), 300, 400, 512, DG_BF16);
    const dg_gemm shape = gemm_of(recipe_named("block128"), 60, 64, 256, DG_BF16);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    dg_table *table;
    char text[8192];
    size_t bytes = sizeof text;
    assert_ok(dg_table_create(context, &limit, 3, &table));
    assert_ok(dg_table_explain(table, text, &bytes));
    assert_non_null(strstr(text, "kernel ")); /* chosen when the table was made */
    assert_ok(dg_table_set(table, 1, &c->gemm));
    bytes = 0;
    assert_ok(dg_table_explain(table, NULL, &bytes));
    assert_in_range(bytes, 2, sizeof text);
    assert_ok(dg_table_explain(table, text, &bytes));
    assert_int_equal(bytes, strlen(text) + 1);
    assert_non_null(strstr(text, "\nbalance "));
    assert_refused(dg_table_explain(table, text, NULL), DG_INVALID_ARGUMENT, "text_bytes");
    assert_refused(dg_table_explain(NULL, text, &bytes), DG_INVALID_ARGUMENT, "table");
    dg_table_destroy(table);
    gemm_case_free(c);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_tables),
        cmocka_unit_test(updates_take_effect_when_asked),
        cmocka_unit_test(updates_from_device_arrays),
        cmocka_unit_test(sizes_are_clamped),
        cmocka_unit_test(addresses_that_cannot_be_read),
        cmocka_unit_test(thousands_of_problems),
        cmocka_unit_test(cut_along_k),
        cmocka_unit_test(explanations),
        cmocka_unit_test(refusals),
    };
    return test_run(argc, argv, tests);
}
