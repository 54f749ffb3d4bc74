/* SPDX-License-Identifier: MIT */
/* Converting between the formats of FP8 checkpoints: every pair, there and back. */
#include "core/formats.h"
#include "files.h"
#include "random.h"
#include "test.h"
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef dg_status call(dg_context *, const char *, const char *, const dg_checkpoint_options *);

static dg_status run(call *what, const char *input, const char *output,
                     const dg_checkpoint_options *options)
{
    dg_context *context;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    dg_status status = what(context, input, output, options);
    dg_destroy(context);
    return status;
}

/* ---- a small model ------------------------------------------------------------------- */

enum { LAYERS = 3 };
static const struct layer {
    const char *name;
    int64_t rows, cols;
} layers[LAYERS] = {
    {"model.layers.0.self_attn.q_proj", 300, 200}, /* edges of blocks in both directions */
    {"model.layers.0.mlp.up_proj", 128, 96},       /* one row of blocks, one block */
    {"model.layers.0.mlp.down_proj", 5, 513},
};
static char weights[LAYERS][64];

/* 16-bit weights whose rows and columns differ much in size, and a norm. */
static const char *make_model(void)
{
    const char *folder = files_folder();
    stored tensors[LAYERS + 1];
    static uint16_t norm[200];
    tensors[LAYERS] = (stored){"model.norm.weight", "BF16", 2, 200, 0, norm};
    uint16_t *data[LAYERS];
    rng r = rng_new(70);
    for (int l = 0; l < LAYERS; l++) {
        int64_t count = layers[l].rows * layers[l].cols;
        data[l] = malloc((size_t)count * sizeof *data[l]);
        assert_non_null(data[l]);
        for (int64_t i = 0; i < count; i++) {
            double size = ldexp(1.0, (int)(i / layers[l].cols % 7 - i % layers[l].cols / 32 % 5));
            data[l][i] = dgi_bf16_from_f32((float)(size * rng_normal(&r)));
        }
        snprintf(weights[l], sizeof weights[l], "%s.weight", layers[l].name);
        tensors[l] = (stored){weights[l], "BF16", 2, layers[l].rows, layers[l].cols, data[l]};
    }
    safetensors_write(files_path(folder, "model.safetensors"), tensors, LAYERS + 1);
    files_write_text(files_path(folder, "config.json"), "{\n  \"rope_theta\": 10000.0\n}\n");
    for (int l = 0; l < LAYERS; l++)
        free(data[l]);
    return folder;
}

/* Scales of the layers' inputs: 0.5, 0.75, 1.0. */
static const char *make_scales(void)
{
    static const float scales[LAYERS] = {0.5f, 0.75f, 1.0f};
    static char names[LAYERS][64];
    stored tensors[LAYERS];
    for (int l = 0; l < LAYERS; l++) {
        snprintf(names[l], sizeof names[l], "%s.input_scale", layers[l].name);
        tensors[l] = (stored){names[l], "F32", 4, 1, 0, &scales[l]};
    }
    const char *file = files_path(files_folder(), "scales.safetensors");
    safetensors_write(file, tensors, LAYERS);
    return file;
}

/* ---- every pair ---------------------------------------------------------------------- */

/* What a format's scales cover, and whether they are powers of two. */
static const struct granularity {
    int64_t rows, cols; /* 0: all */
    bool pow2, static_input;
} granularities[DG_CHECKPOINT_FORMATS] = {
    [DG_CHECKPOINT_BLOCK] = {128, 128, false, false},
    [DG_CHECKPOINT_CHANNEL] = {1, 0, false, false},
    [DG_CHECKPOINT_BLOCK_POW2] = {128, 128, true, false},
    [DG_CHECKPOINT_BLOCK_UE8M0] = {128, 128, true, false},
    [DG_CHECKPOINT_TENSOR] = {0, 0, false, true},
    [DG_CHECKPOINT_CT_TENSOR] = {0, 0, false, true},
    [DG_CHECKPOINT_CT_BLOCK] = {128, 128, false, false},
    [DG_CHECKPOINT_CT_MXFP8] = {1, 32, true, false},
    [DG_CHECKPOINT_MODELOPT] = {0, 0, false, true},
    [DG_CHECKPOINT_MODELOPT_CHANNEL] = {1, 0, false, false},
    [DG_CHECKPOINT_MODELOPT_BLOCK] = {128, 128, false, false},
    [DG_CHECKPOINT_MODELOPT_MXFP8] = {1, 32, true, false},
};

/* Whether blocks of `a` contain whole blocks of `b` in a direction of that size. */
static bool contains(int64_t a, int64_t b, int64_t size)
{
    a = a == 0 || a > size ? size : a;
    b = b == 0 || b > size ? size : b;
    return a == size || (b != size && a % b == 0);
}

/* Whether every weight of the layer's shape keeps its values from one format to another. */
static bool is_exact(int from, int to, const struct layer *layer)
{
    const struct granularity *a = &granularities[from], *b = &granularities[to];
    return contains(a->rows, b->rows, layer->rows) && contains(a->cols, b->cols, layer->cols) &&
           (a->pow2 || !b->pow2);
}

typedef struct told {
    dg_tensor_action action[LAYERS];
    double error[LAYERS];
    int tensors;
} told;

static bool listen(void *user, const dg_tensor_report *tensor)
{
    told *t = user;
    t->tensors++;
    for (int l = 0; l < LAYERS; l++)
        if (strcmp(tensor->name, weights[l]) == 0) {
            t->action[l] = tensor->action;
            t->error[l] = tensor->relative_error;
        }
    return true;
}

/*
 * Converts, and checks each weight against the input and against what the report says. `from` is
 * the input's format, or -1 where its scales are known to be such that all values stay.
 */
static const char *convert(const char *input, int from, int to, const char *scales, told *t)
{
    const char *output = files_path(files_folder(), "out");
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    *t = (told){0};
    options.format = (dg_checkpoint_format)to;
    options.report = listen;
    options.user = t;
    options.strict = true;
    options.scales = scales;
    assert_ok(run(dg_checkpoint_convert, input, output, &options));
    assert_int_equal(t->tensors, LAYERS + 1);
    dg_checkpoint *before = open_checkpoint(input), *after = open_checkpoint(output);
    for (int l = 0; l < LAYERS; l++) {
        values w = values_read(before, weights[l], -1), v = values_read(after, weights[l], -1);
        double error = values_distance(&w, &v);
        if (fabs(error - t->error[l]) > 1e-4 * error) /* the library measures in FP32 */
            fail_msg("format %d to %d, %s: error %g, %g reported", from, to, weights[l], error,
                     t->error[l]);
        if (to == DG_CHECKPOINT_BF16) {
            assert_int_equal(t->action[l], DG_TENSOR_WIDENED);
            assert_true(error < 0.004);
        } else if (from < 0 || is_exact(from, to, &layers[l])) {
            assert_int_equal(t->action[l], DG_TENSOR_REPACKED);
            values_expect_equal(&w, &v);
        } else if (t->action[l] == DG_TENSOR_REPACKED) { /* these scales happened to fit */
            values_expect_equal(&w, &v);
        } else {
            assert_int_equal(t->action[l], DG_TENSOR_REQUANTIZED);
            values_expect_nearest(&w, &v);
            assert_true(error < 0.05); /* 0 where powers of two follow powers of two */
        }
        values_free(&w);
        values_free(&v);
    }
    dg_checkpoint_close(before);
    dg_checkpoint_close(after);
    return output;
}

/* The weights of two checkpoints of one format are the same, bit for bit. */
static void expect_same_weights(const char *one, const char *other)
{
    dg_checkpoint *a = open_checkpoint(one), *b = open_checkpoint(other);
    for (int l = 0; l < LAYERS; l++) {
        dg_stored_weight x, y;
        assert_ok(dg_checkpoint_weight(a, weights[l], false, &x));
        assert_ok(dg_checkpoint_weight(b, weights[l], false, &y));
        assert_int_equal(x.weight.bytes, y.weight.bytes);
        assert_int_equal(x.scale.bytes, y.scale.bytes);
        assert_memory_equal(x.weight.data, y.weight.data, x.weight.bytes);
        assert_memory_equal(x.scale.data, y.scale.data, x.scale.bytes);
        assert_string_equal(x.scale.name, y.scale.name);
    }
    dg_checkpoint_close(a);
    dg_checkpoint_close(b);
}

static bool all_exact(int from, int to)
{
    for (int l = 0; l < LAYERS; l++)
        if (!is_exact(from, to, &layers[l]))
            return false;
    return true;
}

/* Values stay where the formats allow it, and come back then; what is lost otherwise is told. */
static void every_pair(void **state)
{
    (void)state;
    const char *model = make_model(), *scales = make_scales();
    int exact = 0;
    for (int from = 0; from < DG_CHECKPOINT_BF16; from++) {
        const char *input = files_path(files_folder(), "in");
        dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
        options.format = (dg_checkpoint_format)from;
        options.scales = scales;
        assert_ok(run(dg_checkpoint_quantize, model, input, &options));
        for (int to = 0; to < DG_CHECKPOINT_FORMATS; to++) {
            told t;
            const char *there = convert(input, from, to, scales, &t);
            if (to == DG_CHECKPOINT_BF16 || !all_exact(from, to))
                continue;
            exact++;
            expect_same_weights(input, convert(there, -1, from, scales, &t));
            for (int l = 0; l < LAYERS; l++)
                assert_int_equal(t.action[l], DG_TENSOR_REPACKED);
        }
    }
    print_message("%d pairs keep all values\n", exact);
    assert_true(exact >= 12 + 6 + 12);
}

/* ---- shards -------------------------------------------------------------------------- */

/* Weights and scales in different shards: each scale moves to its weight, and a shard of which
 * nothing is left goes away; the index names every tensor. */
static void shards(void **state)
{
    (void)state;
    static const uint8_t codes[2 * 4] = {0x38, 0x40, 0x7E, 0x01, 0xB8, 0x30, 0x7F, 0x20};
    static const float scales[2] = {0.5f, 0.25f}, bias[2] = {1.0f, 2.0f};
    const stored first[] = {{"a.weight", "F8_E4M3", 1, 2, 4, codes},
                            {"a.bias", "F32", 4, 2, 0, bias}};
    const stored second[] = {{"a.weight_scale", "F32", 4, 1, 0, scales},
                             {"b.weight_scale", "F32", 4, 2, 1, scales}};
    const stored third = {"b.weight", "F8_E4M3", 1, 2, 4, codes};
    const char *folder = files_folder(), *output = files_path(files_folder(), "out");
    safetensors_write(files_path(folder, "one.safetensors"), first, 2);
    safetensors_write(files_path(folder, "two.safetensors"), second, 2);
    safetensors_write(files_path(folder, "three.safetensors"), &third, 1);
    files_write_text(files_path(folder, "model.safetensors.index.json"),
                     "{\"weight_map\":{\"a.weight\":\"one.safetensors\",\"a.bias\":"
                     "\"one.safetensors\",\"a.weight_scale\":\"two.safetensors\","
                     "\"b.weight_scale\":\"two.safetensors\",\"b.weight\":\"three.safetensors\"}}");
    files_write_text(files_path(folder, "config.json"),
                     "{\"a\": 1.50, \"quantization_config\": {\"x\": \"}\"}, \"b\": [1e-05]}");
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = DG_CHECKPOINT_CHANNEL;
    assert_ok(run(dg_checkpoint_convert, folder, output, &options));
    assert_int_equal(files_count(output, ""), 4); /* two shards, the index, config.json */
    assert_false(files_exist(files_path(output, "two.safetensors")));
    dg_checkpoint *before = open_checkpoint(folder), *after = open_checkpoint(output);
    for (int i = 0; i < 2; i++) {
        const char *name = i == 0 ? "a.weight" : "b.weight";
        values w = values_read(before, name, -1), v = values_read(after, name, -1);
        values_expect_equal(&w, &v); /* the code for NaN, and that of -0, too */
        values_free(&w);
        values_free(&v);
        dg_stored_weight stored_after;
        assert_ok(dg_checkpoint_weight(after, name, false, &stored_after));
        assert_string_equal(stored_after.scale.file, stored_after.weight.file);
    }
    dg_checkpoint_close(before);
    dg_checkpoint_close(after);
    size_t bytes;
    char *text = files_read(files_path(output, "config.json"), &bytes);
    assert_non_null(strstr(text, "{\"a\": 1.50, \"b\": [1e-05],\n  \"quantization_config\": {"));
    assert_null(strstr(text, "\"x\""));
    free(text);

    options.format = DG_CHECKPOINT_BF16;
    output = files_path(files_folder(), "out");
    assert_ok(run(dg_checkpoint_convert, folder, output, &options));
    text = files_read(files_path(output, "config.json"), &bytes);
    assert_string_equal(text, "{\"a\": 1.50, \"b\": [1e-05]\n}\n");
    free(text);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair),
        cmocka_unit_test(shards),
    };
    return test_run(argc, argv, tests);
}
