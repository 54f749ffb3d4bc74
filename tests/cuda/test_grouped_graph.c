/* SPDX-License-Identifier: MIT */
/*
 * CUDA graphs of grouped products: captured once, replayed a thousand times while the sizes change
 * on the device, in the same stream. Run it with --device cuda:0; without a GPU it is skipped.
 */
#include "core/formats.h"
#include "grouped_case.h"
#include "oracle.h"
#include "test.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* The driver's functions in use, under the names that its library exports. */
typedef struct driver {
    int (*retain)(void **context, int device);
    int (*set_current)(void *context);
    int (*stream_create)(void **stream, unsigned flags);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*instantiate)(void **exec, void *graph, unsigned long long flags);
    int (*launch)(void *exec, void *stream);
    int (*set_bytes)(uintptr_t memory, unsigned char value, size_t bytes, void *stream);
} driver;

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    assert_non_null(found);
    return found;
}

static driver open_driver(void **stream)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    assert_non_null(library);
    driver d;
    *(void **)&d.retain = symbol(library, "cuDevicePrimaryCtxRetain");
    *(void **)&d.set_current = symbol(library, "cuCtxSetCurrent");
    *(void **)&d.stream_create = symbol(library, "cuStreamCreate");
    *(void **)&d.begin_capture = symbol(library, "cuStreamBeginCapture_v2");
    *(void **)&d.end_capture = symbol(library, "cuStreamEndCapture");
    *(void **)&d.instantiate = symbol(library, "cuGraphInstantiateWithFlags");
    *(void **)&d.launch = symbol(library, "cuGraphLaunch");
    *(void **)&d.set_bytes = symbol(library, "cuMemsetD8Async");
    assert_int_equal(d.retain(&context, test_device()), 0);
    assert_int_equal(d.set_current(context), 0);
    assert_int_equal(d.stream_create(stream, 1), 0); /* it does not wait for the default stream */
    return d;
}

enum { GROUPS = 8, M = 300, N = 192, K = 512, REPLAYS = 1000, THREAD_LOCAL = 1 };

/* Host operands, their copies on the device, and what each row times each group's weights is. */
typedef struct setting {
    dg_context *context;
    grouped_case *c;
    dg_gemm gemm;                  /* addresses on the device */
    double *reference, *magnitude; /* [GROUPS][M][N] */
} setting;

static void *copied(dg_context *context, const guard *memory)
{
    void *device;
    assert_ok(dg_memory_alloc(context, memory->bytes, &device));
    assert_ok(
        dg_memory_copy(context, device, memory->data, memory->bytes, DG_HOST_TO_DEVICE, NULL));
    return device;
}

static setting set_up(rng *r)
{
    static int32_t ends[GROUPS] = {M, M, M, M, M, M, M, M};
    grouped_shape s =
        grouped_of(recipe_named("block128"), DG_GROUPS_BY_END, GROUPS, M, N, K, DG_BF16);
    s.sizes = ends;
    setting made = {.context = test_context(NULL), .c = grouped_case_new(r, &s)};
    made.gemm = made.c->gemm;
    made.gemm.a.data = copied(made.context, &made.c->a);
    made.gemm.b.data = copied(made.context, &made.c->b);
    made.gemm.d.data = copied(made.context, &made.c->d);
    made.gemm.scale_a.data = copied(made.context, &made.c->scale_a);
    made.gemm.scale_b.data = copied(made.context, &made.c->scale_b);
    assert_ok(dg_synchronize(made.context, NULL));
    const size_t count = (size_t)GROUPS * M * N;
    made.reference = malloc(count * sizeof(double));
    made.magnitude = malloc(count * sizeof(double));
    assert_true(made.reference != NULL && made.magnitude != NULL);
    for (int32_t g = 0; g < GROUPS; g++) {
        const dg_gemm group = grouped_case_group(made.c, g);
        oracle_gemm(&group, made.reference + (size_t)g * M * N, made.magnitude + (size_t)g * M * N);
    }
    return made;
}

static void tear_down(setting *s)
{
    void *memory[] = {s->gemm.a.data, s->gemm.b.data, s->gemm.d.data, s->gemm.scale_a.data,
                      s->gemm.scale_b.data};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        assert_ok(dg_memory_free(s->context, memory[i]));
    free(s->reference);
    free(s->magnitude);
    grouped_case_free(s->c);
    dg_destroy(s->context);
}

/* Row `row` of D is that row of A times the weights of `group`; -1: still as it was. */
static void check_row(const setting *s, const uint16_t *d, int64_t row, int32_t group, int replay)
{
    for (int64_t j = 0; j < N; j++) {
        const uint16_t code = d[row * N + j];
        if (group < 0) {
            if (code != 0xFFFF)
                fail_msg("replay %d: row %lld was written", replay, (long long)row);
            continue;
        }
        const size_t at = ((size_t)group * M + (size_t)row) * N + (size_t)j;
        const double out = dgi_load_f32(&code, DG_BF16, 0);
        if (!oracle_close(out, DG_BF16, s->reference[at], 8e-3 * s->magnitude[at]))
            fail_msg("replay %d: D[%lld,%lld] is %g, not %g (group %d)", replay, (long long)row,
                     (long long)j, out, s->reference[at], group);
    }
}

/* Random ends for all replays, on the device: many groups are empty, some rows in none. */
static int32_t *random_ends(rng *r, const setting *s, int32_t (*ends)[GROUPS])
{
    for (int i = 0; i < test_rounds(REPLAYS, 20); i++) {
        int32_t end = 0;
        for (int g = 0; g < GROUPS; g++) {
            if (!rng_chance(r, 0.3))
                end += (int32_t)rng_range(r, 0, rng_chance(r, 0.2) ? M : M / 6);
            ends[i][g] = end = end < M ? end : M;
        }
    }
    const size_t bytes = (size_t)REPLAYS * sizeof *ends;
    void *device;
    assert_ok(dg_memory_alloc(s->context, bytes, &device));
    assert_ok(dg_memory_copy(s->context, device, ends, bytes, DG_HOST_TO_DEVICE, NULL));
    assert_ok(dg_synchronize(s->context, NULL));
    return device;
}

static void groups_in_a_graph(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    rng r = rng_new(1);
    setting s = set_up(&r);
    void *stream, *graph, *exec, *sizes;
    static int32_t ends[REPLAYS][GROUPS];
    static uint16_t d[M * N];
    driver cuda = open_driver(&stream);
    int32_t *all = random_ends(&r, &s, ends);
    assert_ok(dg_memory_alloc(s.context, sizeof ends[0], &sizes));
    dg_groups q = s.c->groups;
    q.sizes = sizes;
    /* The first call of all is captured: prepare() has done what cannot be. */
    assert_ok(dg_grouped_prepare(s.context, &s.gemm, &q));
    assert_int_equal(cuda.begin_capture(stream, THREAD_LOCAL), 0);
    assert_ok(dg_grouped_run(s.context, &s.gemm, &q, stream));
    assert_int_equal(cuda.end_capture(stream, &graph), 0);
    assert_int_equal(cuda.instantiate(&exec, graph, 0), 0);
    for (int i = 0; i < test_rounds(REPLAYS, 20); i++) {
        assert_ok(dg_memory_copy(s.context, sizes, all + (size_t)i * GROUPS, sizeof ends[0],
                                 DG_DEVICE_TO_DEVICE, stream));
        assert_int_equal(cuda.set_bytes((uintptr_t)s.gemm.d.data, 0xFF, sizeof d, stream), 0);
        assert_int_equal(cuda.launch(exec, stream), 0);
        assert_ok(dg_memory_copy(s.context, d, s.gemm.d.data, sizeof d, DG_DEVICE_TO_HOST, stream));
        assert_ok(dg_synchronize(s.context, stream));
        int64_t row = 0;
        for (int32_t g = 0; g < GROUPS; g++)
            for (; row < ends[i][g]; row++)
                check_row(&s, d, row, g, i);
        for (; row < M; row++)
            check_row(&s, d, row, -1, i);
    }
    assert_ok(dg_memory_free(s.context, all));
    assert_ok(dg_memory_free(s.context, sizes));
    tear_down(&s);
}

/* What has been prepared for many rows can be captured for fewer, which other kernels compute. */
static void prepared_for_fewer_rows(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    enum { ROWS = 4096, WIDTH = 2048 };
    dg_context *context = test_context(NULL);
    void *memory, *stream, *graph;
    assert_ok(dg_memory_alloc(context, (size_t)96 << 20, &memory)); /* which nobody computes with */
    driver cuda = open_driver(&stream);
    dg_gemm g = DG_GEMM_INIT;
    char *at = memory;
    g.a = dg_matrix_of(at, DG_E4M3, ROWS, WIDTH);
    g.b = dg_matrix_of(at += ROWS * WIDTH, DG_E4M3, WIDTH, WIDTH);
    g.d = dg_matrix_of(at += GROUPS * WIDTH * WIDTH, DG_BF16, ROWS, WIDTH);
    g.scale_a = dg_scale_of(at += 2 * ROWS * WIDTH, DG_F32, ROWS, WIDTH, 1, 128);
    g.scale_b = dg_scale_of(at += ROWS * WIDTH / 32, DG_F32, WIDTH, WIDTH, 128, 128);
    dg_groups q = dg_groups_of(DG_GROUPS_BY_END, GROUPS, (const int32_t *)(at + (1 << 20)), &g);
    assert_ok(dg_grouped_prepare(context, &g, &q));
    for (int64_t rows = ROWS; rows > 0; rows /= 2) {
        g.a.rows = g.d.rows = g.scale_a.rows = rows;
        assert_int_equal(cuda.begin_capture(stream, THREAD_LOCAL), 0);
        assert_ok(dg_grouped_run(context, &g, &q, stream));
        assert_int_equal(cuda.end_capture(stream, &graph), 0);
    }
    assert_ok(dg_memory_free(context, memory));
    dg_destroy(context);
}

/* The table's update and its run in one graph: M of each problem changes with every replay. */
static void table_in_a_graph(void **state)
{
    (void)state;
    if (test_device() == DG_CPU)
        skip();
    rng r = rng_new(2);
    setting s = set_up(&r);
    void *stream, *graph, *exec, *sizes;
    static int32_t ends[REPLAYS][GROUPS];
    static uint16_t d[GROUPS][M * N];
    driver cuda = open_driver(&stream);
    int32_t *all = random_ends(&r, &s, ends);
    assert_ok(dg_memory_alloc(s.context, sizeof ends[0], &sizes));
    void *results;
    assert_ok(dg_memory_alloc(s.context, sizeof d, &results));
    dg_table *table;
    assert_ok(dg_table_create(s.context, &s.gemm, GROUPS, &table));
    for (int32_t g = 0; g < GROUPS; g++) {
        dg_gemm problem = s.gemm;
        problem.b.data = (char *)s.gemm.b.data + g * s.c->groups.b_stride;
        problem.scale_b.data = (float *)s.gemm.scale_b.data + g * s.c->groups.scale_b_stride;
        problem.d.data = (char *)results + (size_t)g * sizeof d[0];
        assert_ok(dg_table_set(table, g, &problem));
    }
    assert_ok(dg_table_update(table, stream));
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.m = sizes;
    assert_int_equal(cuda.begin_capture(stream, THREAD_LOCAL), 0);
    assert_ok(dg_table_update_device(table, &values, stream));
    assert_ok(dg_table_run(table, stream));
    assert_int_equal(cuda.end_capture(stream, &graph), 0);
    assert_int_equal(cuda.instantiate(&exec, graph, 0), 0);
    for (int i = 0; i < test_rounds(REPLAYS, 20); i++) {
        assert_ok(dg_memory_copy(s.context, sizes, all + (size_t)i * GROUPS, sizeof ends[0],
                                 DG_DEVICE_TO_DEVICE, stream));
        assert_int_equal(cuda.set_bytes((uintptr_t)results, 0xFF, sizeof d, stream), 0);
        assert_int_equal(cuda.launch(exec, stream), 0);
        assert_ok(dg_memory_copy(s.context, d, results, sizeof d, DG_DEVICE_TO_HOST, stream));
        assert_ok(dg_synchronize(s.context, stream));
        for (int32_t g = 0; g < GROUPS; g++)
            for (int64_t row = 0; row < M; row++)
                check_row(&s, d[g], row, row < ends[i][g] ? g : -1, i);
    }
    dg_table_destroy(table);
    assert_ok(dg_memory_free(s.context, all));
    assert_ok(dg_memory_free(s.context, sizes));
    assert_ok(dg_memory_free(s.context, results));
    tear_down(&s);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_in_a_graph),
        cmocka_unit_test(prepared_for_fewer_rows),
        cmocka_unit_test(table_in_a_graph),
    };
    return test_run(argc, argv, tests);
}
