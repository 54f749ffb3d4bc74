/* SPDX-License-Identifier: MIT */
/* dg_checkpoint_rescale: what is multiplied, what is copied, what is counted and refused. */
#include "files.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 70, COLS = 33 };

typedef struct fixture {
    dg_context *context;
    const char *folder;
    uint16_t matrix[ROWS * COLS], vector[ROWS];
    float wide[ROWS * COLS];
    int32_t ids[ROWS];
} fixture;

/* Two shards with their index, config.json and a file that travels along. */
static int make(void **state)
{
    static fixture f;
    rng r = rng_new(1);
    f.context = test_context(NULL);
    f.folder = files_folder();
    rng_fill_normal(&r, f.matrix, DG_BF16, ROWS * COLS, 1.0);
    rng_fill_normal(&r, f.vector, DG_BF16, ROWS, 1.0);
    rng_fill_normal(&r, f.wide, DG_F32, ROWS * COLS, 1.0);
    for (int i = 0; i < ROWS; i++)
        f.ids[i] = (int32_t)rng_next(&r);
    const stored first[] = {{"a.weight", "BF16", 2, ROWS, COLS, f.matrix},
                            {"norm.weight", "BF16", 2, ROWS, 0, f.vector}};
    const stored second[] = {{"b.weight", "F32", 4, ROWS, COLS, f.wide},
                             {"ids", "I32", 4, ROWS, 0, f.ids}};
    safetensors_write(files_path(f.folder, "model-1.safetensors"), first, 2);
    safetensors_write(files_path(f.folder, "model-2.safetensors"), second, 2);
    files_write_text(files_path(f.folder, "model.safetensors.index.json"),
                     "{\"weight_map\": {\"a.weight\": \"model-1.safetensors\", "
                     "\"norm.weight\": \"model-1.safetensors\", "
                     "\"b.weight\": \"model-2.safetensors\", \"ids\": \"model-2.safetensors\"}}");
    files_write_text(files_path(f.folder, "config.json"), "{\"rope_theta\": 10000.0}");
    files_write_text(files_path(f.folder, "tokenizer.json"), "{}");
    *state = &f;
    return 0;
}

static int release(void **state)
{
    dg_destroy(((fixture *)*state)->context);
    return 0;
}

static const void *data_of(const dg_checkpoint *c, const char *name)
{
    dg_tensor t;
    assert_ok(dg_checkpoint_find(c, name, &t));
    return t.data;
}

/* Without factors the copy is the same, file by file; in place it is refused. */
static void test_nothing_to_multiply(void **state)
{
    const fixture *f = *state;
    const char *output = files_path(files_folder(), "copy");
    int64_t rounded = -1;
    assert_ok(dg_checkpoint_rescale(f->context, f->folder, output, NULL, 0, false, &rounded));
    assert_int_equal(rounded, 0);
    dg_checkpoint *a, *b;
    dg_tensor x, y;
    assert_ok(dg_checkpoint_open(&a, f->folder));
    assert_ok(dg_checkpoint_open(&b, output));
    for (int64_t i = 0; dg_checkpoint_tensor_at(a, i, &x) == DG_OK; i++) {
        assert_ok(dg_checkpoint_find(b, x.name, &y));
        assert_string_equal(x.file, y.file);
        assert_memory_equal(x.data, y.data, x.bytes);
    }
    dg_checkpoint_close(a);
    dg_checkpoint_close(b);
    static const char *const same[] = {"config.json", "tokenizer.json",
                                       "model.safetensors.index.json"};
    for (int i = 0; i < 3; i++) {
        size_t bytes;
        char *before = files_read(files_path(f->folder, same[i]), &bytes);
        char *after = files_read(files_path(output, same[i]), &bytes);
        assert_string_equal(before, after);
        free(before);
        free(after);
    }
    assert_refused(dg_checkpoint_rescale(f->context, f->folder, output, NULL, 0, false, NULL),
                   DG_INVALID_ARGUMENT, "output");
    assert_ok(dg_checkpoint_rescale(f->context, f->folder, output, NULL, 0, true, NULL));
}

/* Powers of two are exact in both directions; other factors are rounded, and counted. */
static void test_factors(void **state)
{
    const fixture *f = *state;
    float rows[ROWS], cols[COLS];
    for (int i = 0; i < ROWS; i++)
        rows[i] = exp2f((float)(i % 7 - 3));
    for (int i = 0; i < COLS; i++)
        cols[i] = exp2f((float)(i % 5 - 2));
    const char *output = files_path(files_folder(), "scaled");
    dg_rescale r[] = {
        {"a.weight", rows, cols}, {"norm.weight", rows, NULL}, {"b.weight", NULL, cols}};
    int64_t rounded = -1;
    assert_ok(dg_checkpoint_rescale(f->context, f->folder, output, r, 3, false, &rounded));
    assert_int_equal(rounded, 0);
    dg_checkpoint *c;
    assert_ok(dg_checkpoint_open(&c, output));
    static float a[ROWS * COLS], before[ROWS * COLS], norm[ROWS], norm_before[ROWS];
    assert_ok(dg_convert(f->matrix, DG_BF16, before, DG_F32, ROWS * COLS, DG_SATURATE));
    assert_ok(dg_convert(f->vector, DG_BF16, norm_before, DG_F32, ROWS, DG_SATURATE));
    assert_ok(dg_checkpoint_read(c, "a.weight", DG_F32, a, sizeof a));
    assert_ok(dg_checkpoint_read(c, "norm.weight", DG_F32, norm, sizeof norm));
    const float *b = data_of(c, "b.weight");
    for (int i = 0; i < ROWS * COLS; i++) {
        assert_true(a[i] == before[i] * rows[i / COLS] * cols[i % COLS]);
        assert_true(b[i] == f->wide[i] * cols[i % COLS]);
    }
    for (int i = 0; i < ROWS; i++)
        assert_true(norm[i] == norm_before[i] * rows[i]);
    assert_memory_equal(data_of(c, "ids"), f->ids, sizeof f->ids);
    dg_checkpoint_close(c);

    for (int i = 0; i < ROWS; i++)
        rows[i] = i == 3 ? 1.1f : 1.0f;
    r[1] = (dg_rescale){"norm.weight", rows, NULL};
    assert_ok(dg_checkpoint_rescale(f->context, f->folder, output, r + 1, 1, true, &rounded));
    assert_int_equal(rounded, 1);
    rows[3] = 1e38f; /* beyond BF16 */
    rows[4] = 1e38f;
    assert_ok(dg_checkpoint_rescale(f->context, f->folder, output, r + 1, 1, true, &rounded));
    assert_true(rounded >= 1 && rounded <= 2);
}

static void test_refusals(void **state)
{
    const fixture *f = *state;
    const char *place = files_folder(), *output = files_path(place, "out");
    static const float ones[ROWS] = {1.0f};
    const dg_rescale none = {NULL, ones, NULL}, missing = {"c.weight", ones, NULL};
    const dg_rescale ids = {"ids", ones, NULL}, vector = {"norm.weight", ones, ones};
    const dg_rescale twice[] = {{"a.weight", ones, NULL}, {"a.weight", NULL, ones}};
    const struct {
        const dg_rescale *rescales;
        int64_t count;
        dg_status status;
        const char *message;
    } cases[] = {
        {NULL, 1, DG_INVALID_ARGUMENT, "rescales"},
        {&none, 1, DG_INVALID_ARGUMENT, "rescales[0].tensor"},
        {&missing, 1, DG_NOT_FOUND, "c.weight"},
        {&ids, 1, DG_UNSUPPORTED_TYPE, "ids is I32"},
        {&vector, 1, DG_INVALID_ARGUMENT, "is a vector"},
        {twice, 2, DG_INVALID_ARGUMENT, "twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_refused(dg_checkpoint_rescale(f->context, f->folder, output, cases[i].rescales,
                                             cases[i].count, false, NULL),
                       cases[i].status, cases[i].message);
    assert_refused(dg_checkpoint_rescale(NULL, f->folder, output, NULL, 0, false, NULL),
                   DG_INVALID_ARGUMENT, "context");
    assert_refused(dg_checkpoint_rescale(f->context, NULL, output, NULL, 0, false, NULL),
                   DG_INVALID_ARGUMENT, "input");
    assert_refused(dg_checkpoint_rescale(f->context, f->folder, f->folder, NULL, 0, true, NULL),
                   DG_INVALID_ARGUMENT, "the folder of the input");
    assert_int_equal(files_count(place, ""), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_to_multiply),
        cmocka_unit_test(test_factors),
        cmocka_unit_test(test_refusals),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, make, release);
}
