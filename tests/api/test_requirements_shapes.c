/* SPDX-License-Identifier: MIT */
/* Requirements G03 to G06 (docs/requirements.md): index range, ragged K, scale bands, empty work.
 */
#include "core/formats.h"
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint8_t ONE = 0x38; /* 1.0 in E4M3 */

/* Address space of which only the touched pages take memory. */
static void *sparse_memory(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(memory != MAP_FAILED);
    return memory;
}

/* The same, as the device sees it; NULL, with a message, where it has not so much. */
static void *sparse_device_memory(dg_context *context, size_t bytes)
{
    if (test_device() == DG_CPU)
        return sparse_memory(bytes);
    void *memory = NULL;
    if (dg_memory_alloc(context, bytes, &memory) != DG_OK)
        print_message("not tested with %zu bytes: %s\n", bytes, dg_last_error());
    return memory;
}

/* The last rows of D where its rows are `ld` elements apart, beside the same rows alone. */
static bool last_rows_are_right(dg_context *context, rng *r, dg_dtype type)
{
    enum { M = 65600, N = 16, K = 48, LD = 32784, LAST = 5 }; /* M x LD: 2^31 and 3e6 elements */
    const size_t element = dg_dtype_bytes(type);
    const size_t bytes = ((size_t)(M - 1) * LD + N) * element;
    dg_gemm shape = gemm_of(recipe_named("token_channel"), M, N, K, type);
    if (type == DG_E4M3)
        shape.scale_d = scale_of(DG_F32, M, N, 0, 0, 0, 0);
    void *wide = sparse_device_memory(context, bytes);
    if (wide == NULL)
        return false;
    gemm_case *c = gemm_case_new(r, &shape, CASE_PLAIN);
    guard *memory[] = {&c->a, &c->b, &c->scale_a, &c->scale_b, &c->scale_d};
    dg_gemm g = c->gemm;
    void **data[] = {&g.a.data, &g.b.data, &g.scale_a.data, &g.scale_b.data, &g.scale_d.data};
    enum { INPUTS = sizeof memory / sizeof memory[0] };
    void *inputs[INPUTS];
    for (int i = 0; i < INPUTS; i++)
        inputs[i] = *data[i] = test_to_device(context, memory[i]->data, memory[i]->bytes);
    g.d.data = wide;
    g.d.ld = LD;
    assert_ok(dg_gemm_run(context, &g, NULL));

    uint8_t alone[LAST * N * sizeof(uint16_t)];
    memset(alone, 0xA5, sizeof alone);
    g.a.data = (char *)g.a.data + (M - LAST) * K;
    g.scale_a.data = (float *)g.scale_a.data + (M - LAST);
    g.a.rows = g.d.rows = g.scale_a.rows = LAST;
    g.d.data = test_to_device(context, alone, sizeof alone);
    g.d.ld = N;
    assert_ok(dg_gemm_run(context, &g, NULL));
    test_from_device(context, g.d.data, alone, sizeof alone);
    for (int64_t i = 0; i < LAST; i++) {
        uint8_t row[N * sizeof(uint16_t)];
        char *at = (char *)wide + (size_t)((M - LAST + i) * LD) * element;
        assert_ok(dg_memory_copy(context, row, at, N * element, DG_DEVICE_TO_HOST, NULL));
        assert_ok(dg_synchronize(context, NULL));
        assert_memory_equal(row, alone + (size_t)i * N * element, N * element);
    }
    for (int i = 0; i < INPUTS; i++)
        test_release(context, inputs[i], memory[i]->data);
    if (test_device() == DG_CPU)
        munmap(wide, bytes);
    else
        assert_ok(dg_memory_free(context, wide));
    gemm_case_free(c);
    return true;
}

/* D's offsets pass 2^31 elements: its last rows equal the same rows computed alone. */
static void g03_wide_row_stride_of_d(void **state)
{
    (void)state;
    rng r = rng_new(303);
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.batch_invariant = true; /* few rows alone take another kernel on a GPU */
    dg_context *context = test_context(&options);
    static const dg_dtype types[] = {DG_E4M3, DG_BF16}; /* of 2.2 and of 4.3 GB */
    int tested = 0;
    for (int i = 0; i < test_rounds(2, 1); i++)
        tested += last_rows_are_right(context, &r, types[i]);
    dg_destroy(context);
    if (tested == 0)
        skip();
}

/* The same for each operand in turn, with few rows far apart: same bits as side by side. */
static void g03_far_apart_rows(void **state)
{
    (void)state;
    if (test_device() != DG_CPU)
        skip();
    enum { ROWS = 70, K = 130 };
    const int64_t ld = (int64_t)1 << 25; /* 69 rows down: 2.3e9 elements */
    rng r = rng_new(304);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("block1x128"), ROWS, ROWS, K, DG_F32);
    shape.c = dg_matrix_of(NULL, DG_F32, ROWS, ROWS);
    shape.beta = -0.5f;
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);

    for (int operand = 0; operand < 5; operand++) {
        dg_gemm g = c->gemm;
        dg_matrix scale_rows[2];
        for (int i = 0; i < 2; i++) {
            const dg_scale *s = i == 0 ? &g.scale_a : &g.scale_b;
            scale_rows[i] = (dg_matrix){s->data, s->dtype, s->rows, s->cols, s->row_stride};
        }
        const dg_matrix *near[] = {&g.a, &g.b, &g.c, &scale_rows[0], &scale_rows[1]};
        dg_matrix from = *near[operand];
        size_t element = dg_dtype_bytes(from.dtype), bytes = (size_t)(ROWS * ld) * element;
        char *far = sparse_memory(bytes);
        for (int64_t i = 0; i < ROWS; i++)
            memcpy(far + (size_t)(i * ld) * element,
                   (char *)from.data + (size_t)(i * from.ld) * element,
                   (size_t)from.cols * element);
        switch (operand) {
        case 0:
            g.a.data = far, g.a.ld = ld;
            break;
        case 1:
            g.b.data = far, g.b.ld = ld;
            break;
        case 2:
            g.c.data = far, g.c.ld = ld;
            break;
        case 3:
            g.scale_a.data = far, g.scale_a.row_stride = ld;
            break;
        default:
            g.scale_b.data = far, g.scale_b.row_stride = ld;
        }
        float again[ROWS * ROWS];
        g.d.data = again;
        assert_ok(dg_gemm_run(context, &g, NULL));
        assert_memory_equal(again, c->d.data, sizeof again);
        munmap(far, bytes);
    }
    gemm_case_free(c);
    dg_destroy(context);
}

/* The tail of K counts as zeros, and its partial block uses its own scale. */
static void g04_ragged_k(void **state)
{
    (void)state;
    rng r = rng_new(4);
    dg_context *context = test_context(NULL);
    const int64_t depths[] = {192, 1, 16, 127, 129};
    for (int recipe = 0; recipe < recipe_count; recipe++)
        for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
            dg_gemm shape = gemm_of(&recipes[recipe], 33, 65, depths[i], DG_F32);
            gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
            assert_ok(gemm_case_run(c, context));
            gemm_case_check(c);
            assert_ok(gemm_case_run_packed(c, context));
            gemm_case_check(c);
            gemm_case_free(c);
        }
    dg_gemm shape = gemm_of(recipe_named("tensor"), 2, 5, 3, DG_BF16);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    assert_ok(gemm_case_run(c, context));
    gemm_case_check(c);
    gemm_case_free(c);
    dg_destroy(context);
}

/* A's scale changes between two bands of rows: each band gets its own, once. */
static void g05_two_bands_of_rows(void **state)
{
    (void)state;
    rng r = rng_new(5);
    dg_context *context = test_context(NULL);
    dg_gemm shape = gemm_of(recipe_named("block1x128"), 256, 256, 128, DG_F32);
    gemm_case *c = gemm_case_new(&r, &shape, CASE_PLAIN);
    memset(c->a.data, ONE, c->a.bytes);
    memset(c->b.data, ONE, c->b.bytes);
    for (int i = 0; i < 256; i++) {
        ((float *)c->scale_a.data)[i] = i < 128 ? 2.0f : 4.0f;
        ((float *)c->scale_b.data)[i] = i < 128 ? 1.0f : 2.0f;
    }
    assert_ok(gemm_case_run(c, context));
    const float *d = c->d.data;
    for (int i = 0; i < 256; i++)
        for (int j = 0; j < 256; j++)
            assert_true(d[i * 256 + j] == (i < 128 ? 256.0f : 512.0f) * (j < 128 ? 1.0f : 2.0f));
    gemm_case_free(c);
    dg_destroy(context);
}

/* Without rows or columns of D nothing is touched, and no pointer is needed. */
static void g06_nothing_to_write(void **state)
{
    (void)state;
    dg_context *context = test_context(NULL);
    const int64_t sizes[][3] = {{0, 256, 256}, {256, 0, 256}, {0, 0, 0}, {0, 256, 0}};
    for (int recipe = 0; recipe < recipe_count; recipe++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            dg_gemm g = gemm_of(&recipes[recipe], sizes[i][0], sizes[i][1], sizes[i][2], DG_BF16);
            /* What is not empty needs memory: codes and scales of any value. */
            static uint32_t something[256 * 256];
            void *device = test_to_device(context, something, sizeof something);
            g.a.data = g.a.rows != 0 ? device : NULL;
            g.b.data = g.b.rows != 0 ? device : NULL;
            g.scale_a.data = g.scale_b.data = device;
            assert_ok(dg_gemm_run(context, &g, NULL));
            size_t bytes = 1;
            assert_ok(dg_gemm_workspace(context, &g, &bytes));
            assert_int_equal(bytes, 0);
            assert_ok(dg_gemm_prepare(context, &g));
            test_release(context, device, something);
        }
    dg_destroy(context);
}

/* K = 0: D = beta C + bias. */
static void g06_k_is_zero(void **state)
{
    (void)state;
    rng r = rng_new(6);
    dg_context *context = test_context(NULL);
    for (int recipe = 0; recipe < recipe_count; recipe++)
        for (int with = 0; with < 8; with++) {
            dg_gemm shape = gemm_of(&recipes[recipe], 16, 16, 0, DG_F32);
            if (with & 1)
                shape.bias = dg_matrix_of(NULL, DG_BF16, 1, 16);
            if (with & 2) {
                shape.c = dg_matrix_of(NULL, DG_F32, 16, 16);
                shape.beta = 1.0f;
            }
            gemm_case *c =
                gemm_case_new(&r, &shape, (with & 2) && (with & 4) ? CASE_IN_PLACE : CASE_PLAIN);
            assert_ok(gemm_case_run(c, context));
            gemm_case_check(c);
            if (with == 6) /* beta = 1 in place leaves C as it was */
                gemm_case_check_untouched(c);
            if (with == 0)
                for (int i = 0; i < 256; i++)
                    assert_true(((float *)c->d.data)[i] == 0.0f);
            assert_ok(gemm_case_run_packed(c, context));
            gemm_case_check(c);
            gemm_case_free(c);
        }
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g03_wide_row_stride_of_d),
        cmocka_unit_test(g03_far_apart_rows),
        cmocka_unit_test(g04_ragged_k),
        cmocka_unit_test(g05_two_bands_of_rows),
        cmocka_unit_test(g06_nothing_to_write),
        cmocka_unit_test(g06_k_is_zero),
    };
    return test_run(argc, argv, tests);
}
