/* SPDX-License-Identifier: MIT */
/* dg_scales_write: the scales of a checkpoint in a file, and what quantising makes of them. */
#include "files.h"
#include "random.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 200, COLS = 130 };

typedef struct fixture {
    dg_context *context;
    const char *folder;
    float data[3][ROWS * COLS];
    dg_statistics *statistics;
} fixture;

static const char *const layers[] = {"model.layers.0.mlp.experts.0.up_proj",
                                     "model.layers.0.mlp.experts.1.up_proj",
                                     "model.layers.0.mlp.down_proj"};

/* Three layers: an expert that met tokens, one that met none, and one that nobody observed. */
static int make(void **state)
{
    static fixture f;
    rng r = rng_new(1);
    f.context = test_context(NULL);
    f.folder = files_folder();
    stored tensors[5];
    static char names[3][80];
    for (int i = 0; i < 3; i++) {
        for (int j = 0; j < ROWS * COLS; j++)
            f.data[i][j] = (float)(rng_normal(&r) * exp(rng_normal(&r)));
        snprintf(names[i], sizeof names[i], "%s.weight", layers[i]);
        tensors[i] = (stored){names[i], "F32", 4, ROWS, COLS, f.data[i]};
    }
    tensors[3] = (stored){"lm_head.weight", "F32", 4, ROWS, COLS, f.data[0]};
    tensors[4] = (stored){"model.norm.weight", "F32", 4, COLS, 0, f.data[0]};
    safetensors_write(files_path(f.folder, "model.safetensors"), tensors, 5);
    assert_ok(dg_statistics_create(&f.statistics, NULL));
    dg_matrix x = dg_matrix_of(f.data[2], DG_F32, 50, COLS), none = x;
    none.rows = 0;
    assert_ok(dg_statistics_observe(f.context, f.statistics, layers[0], &x));
    assert_ok(dg_statistics_observe(f.context, f.statistics, layers[1], &none));
    *state = &f;
    return 0;
}

static int release(void **state)
{
    fixture *f = *state;
    dg_statistics_destroy(f->statistics);
    dg_destroy(f->context);
    return 0;
}

static dg_scales_options options_of(const fixture *f)
{
    dg_scales_options o = DG_SCALES_OPTIONS_INIT;
    o.statistics = f->statistics;
    o.inputs.method = DG_METHOD_PERCENTILE;
    o.inputs.percentile = 99.0;
    o.weights.method = DG_METHOD_MSE;
    return o;
}

/* The file's scales are those that the calls for one matrix and one layer choose. */
static void test_scales_of_each_layer(void **state)
{
    fixture *f = *state;
    const char *path = files_path(files_folder(), "scales.safetensors");
    static const int32_t blocks[][2] = {{0, 0}, {1, 0}, {128, 128}, {1, 32}};
    for (int b = 0; b < 4; b++) {
        dg_scales_options o = options_of(f);
        o.block_rows = blocks[b][0];
        o.block_cols = blocks[b][1];
        o.weigh_columns = b % 2 == 1;
        assert_ok(dg_scales_write(f->context, f->folder, path, &o));
        dg_checkpoint *file;
        dg_tensor t;
        assert_ok(dg_checkpoint_open(&file, path));
        for (int i = 0; i < 3; i++) {
            char name[100];
            static float expected[ROWS * 5];
            dg_matrix weight = dg_matrix_of(f->data[i], DG_F32, ROWS, COLS);
            dg_scale scale = dg_scale_of(expected, DG_F32, ROWS, COLS, o.block_rows, o.block_cols);
            dg_observed seen = DG_OBSERVED_INIT;
            assert_ok(dg_statistics_layer(f->statistics, layers[0], &seen));
            bool weighed = o.weigh_columns && i == 0; /* the others met nothing */
            assert_ok(dg_scale_choose(f->context, &weight, &o.weights,
                                      weighed ? seen.squares : NULL, &scale, NULL));
            snprintf(name, sizeof name, "%s.weight_scale", layers[i]);
            assert_ok(dg_checkpoint_find(file, name, &t));
            assert_string_equal(t.stored_type, "F32");
            assert_true(t.rank == 2 && t.shape[0] == scale.rows && t.shape[1] == scale.cols);
            assert_memory_equal(t.data, expected, t.bytes);

            snprintf(name, sizeof name, "%s.input_scale", layers[i]);
            if (i == 2) {
                assert_refused(dg_checkpoint_find(file, name, &t), DG_NOT_FOUND, name);
                continue;
            }
            float input;
            dg_scale one = dg_scale_of(&input, DG_F32, 1, COLS, 0, 0);
            assert_ok(dg_statistics_choose(f->statistics, layers[0], &o.inputs, &one, NULL));
            assert_ok(dg_checkpoint_find(file, name, &t));
            assert_memory_equal(t.data, &input, sizeof input); /* of the sibling, for the second */
        }
        assert_refused(dg_checkpoint_find(file, "lm_head.weight_scale", &t), DG_NOT_FOUND, "");
        dg_checkpoint_close(file);
    }
}

static bool add_error(void *user, const dg_tensor_report *tensor)
{
    if (tensor->kept_because == NULL)
        *(double *)user += tensor->relative_error * tensor->relative_error;
    return true;
}

/*
 * Quantising with scales by MSE has no more error than without (sometimes those of amax are the
 * best), and static ones are in the output.
 */
static void test_quantising_takes_them(void **state)
{
    fixture *f = *state;
    const char *place = files_folder(), *path = files_path(place, "scales.safetensors");
    dg_scales_options o = options_of(f);
    o.block_rows = o.block_cols = 0;
    const char *keep[] = {"down_proj"};
    o.keep = keep;
    o.keep_count = 1;
    assert_ok(dg_scales_write(f->context, f->folder, path, &o));
    double without = 0.0, with = 0.0;
    dg_checkpoint_options job = DG_CHECKPOINT_OPTIONS_INIT;
    job.format = DG_CHECKPOINT_CT_TENSOR;
    job.keep = keep;
    job.keep_count = 1;
    job.report = add_error;
    job.user = &without;
    assert_ok(dg_checkpoint_quantize(f->context, f->folder, files_path(place, "amax"), &job));
    job.user = &with;
    job.scales = path;
    assert_ok(dg_checkpoint_quantize(f->context, f->folder, files_path(place, "mse"), &job));
    assert_true(with <= without);

    dg_checkpoint *scales, *output;
    dg_tensor given, written;
    assert_ok(dg_checkpoint_open(&scales, path));
    assert_ok(dg_checkpoint_open(&output, files_path(place, "mse")));
    for (int i = 0; i < 2; i++) {
        static const char *const ends[] = {"input_scale", "weight_scale"};
        for (int e = 0; e < 2; e++) {
            char name[100];
            snprintf(name, sizeof name, "%s.%s", layers[i], ends[e]);
            assert_ok(dg_checkpoint_find(scales, name, &given));
            assert_ok(dg_checkpoint_find(output, name, &written));
            assert_true(written.elements == 1);
            assert_memory_equal(written.data, given.data, sizeof(float));
        }
    }
    dg_checkpoint_close(scales);
    dg_checkpoint_close(output);
}

/* G38: strict mode refuses layers without tokens, and names one. */
static void test_strict(void **state)
{
    fixture *f = *state;
    const char *path = files_path(files_folder(), "scales.safetensors");
    dg_scales_options o = options_of(f);
    o.strict = true;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_NOT_FOUND, layers[1]);
    const char *keep[] = {"experts"};
    o.keep = keep;
    o.keep_count = 1;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_NOT_FOUND,
                   "down_proj is not in the statistics");
    assert_false(files_exist(path));
}

static bool stop(void *user, const dg_layer_scales *layer)
{
    (void)layer;
    return ++*(int *)user < 2;
}

static void test_refusals(void **state)
{
    fixture *f = *state;
    const char *place = files_folder(), *path = files_path(place, "scales.safetensors");
    dg_scales_options o = DG_SCALES_OPTIONS_INIT;
    const dg_scales_options good = o;
    assert_refused(dg_scales_write(NULL, f->folder, path, NULL), DG_INVALID_ARGUMENT, "context");
    assert_refused(dg_scales_write(f->context, NULL, path, NULL), DG_INVALID_ARGUMENT,
                   "checkpoint");
    assert_refused(dg_scales_write(f->context, f->folder, NULL, NULL), DG_INVALID_ARGUMENT,
                   "output");
    assert_refused(dg_scales_write(f->context, files_path(place, "none"), path, NULL), DG_NOT_FOUND,
                   "none");
    assert_refused(
        dg_scales_write(f->context, f->folder, files_path(place, "no/such/folder"), NULL),
        DG_NOT_FOUND, "no/such/folder");
    o.weigh_columns = true;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_INVALID_ARGUMENT,
                   "statistics");
    o = good;
    o.block_rows = -1;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_UNSUPPORTED_SCALE,
                   "block_rows");
    o = good;
    o.weights.method = (dg_scale_method)7;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_INVALID_ARGUMENT, "method");
    o = good;
    o.keep_count = 1;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_INVALID_ARGUMENT, "keep");
    const char *keep[] = {"mlp"};
    o.keep = keep;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_INVALID_ARGUMENT,
                   "no 16-bit layer");
    dg_statistics *other;
    float x[7] = {0};
    dg_matrix narrow = dg_matrix_of(x, DG_F32, 1, 7);
    assert_ok(dg_statistics_create(&other, NULL));
    assert_ok(dg_statistics_observe(f->context, other, layers[0], &narrow));
    o = good;
    o.statistics = other;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_INVALID_ARGUMENT,
                   "130 features");
    dg_statistics_destroy(other);
    int calls = 0;
    o = good;
    o.report = stop;
    o.user = &calls;
    assert_refused(dg_scales_write(f->context, f->folder, path, &o), DG_CANCELLED, "layer");
    assert_int_equal(files_count(place, ""), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_scales_of_each_layer),
        cmocka_unit_test(test_quantising_takes_them),
        cmocka_unit_test(test_strict),
        cmocka_unit_test(test_refusals),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, make, release);
}
