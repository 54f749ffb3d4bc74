/* SPDX-License-Identifier: MIT */
/* Quantised checkpoints: the values, which layers, the files beside them, and what is refused. */
#include "core/formats.h"
#include "files.h"
#include "random.h"
#include "test.h"

#include <cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- values -------------------------------------------------------------------------- */

/* |w - code * scale| is at most half a step of E4M3 at that place, give or take FP32's rounding. */
static void expect_nearest(double w, uint8_t code, double scale)
{
    double value = dgi_f32_from_e4m3(code);
    int exponent;
    frexp(w / scale, &exponent);
    double step = ldexp(1.0, (exponent - 1 < -6 ? -6 : exponent - 1) - 3);
    if (fabs(w / scale - value) > 0.5 * step * (1 + 1e-5))
        fail_msg("%g became %g times the scale %g", w, value, scale);
}

/* Checks a weight of `input` against its codes and scales in `output`; returns |w-w'| / |w|. */
static double expect_quantized(const dg_checkpoint *input, const dg_checkpoint *output,
                               const char *name, int32_t block_rows, int32_t block_cols)
{
    dg_tensor source;
    dg_stored_weight w;
    assert_ok(dg_checkpoint_find(input, name, &source));
    assert_ok(dg_checkpoint_weight(output, name, false, &w));
    assert_string_equal(w.weight.stored_type, "F8_E4M3");
    assert_string_equal(w.scale.stored_type, "F32");
    assert_int_equal(w.block_rows, block_rows);
    assert_int_equal(w.block_cols, block_cols);
    int64_t rows = source.shape[0], cols = source.shape[1];
    assert_int_equal(w.weight.shape[0], rows);
    assert_int_equal(w.weight.shape[1], cols);
    assert_int_equal(w.scale.rank, 2);
    int64_t scale_rows = dg_scale_count(rows, block_rows, 0);
    int64_t scale_cols = dg_scale_count(cols, block_cols, 0);
    assert_int_equal(w.scale.shape[0], scale_rows);
    assert_int_equal(w.scale.shape[1], scale_cols);

    const uint8_t *codes = w.weight.data;
    float *largest = calloc((size_t)(scale_rows * scale_cols), sizeof *largest);
    double error = 0.0, norm = 0.0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            int64_t place = (block_rows == 0 ? 0 : r / block_rows) * scale_cols +
                            (block_cols == 0 ? 0 : c / block_cols);
            float x = dgi_load_f32(source.data, source.dtype, r * cols + c);
            float scale = dgi_load_f32(w.scale.data, DG_F32, place);
            expect_nearest(x, codes[r * cols + c], scale);
            largest[place] = fmaxf(largest[place], fabsf(x));
            double difference = (double)x - (double)scale * dgi_f32_from_e4m3(codes[r * cols + c]);
            error += difference * difference;
            norm += (double)x * x;
        }
    for (int64_t i = 0; i < scale_rows * scale_cols; i++)
        assert_true(dgi_load_f32(w.scale.data, DG_F32, i) == largest[i] / 448.0f);
    free(largest);
    return sqrt(error / norm);
}

static void expect_copied(const dg_checkpoint *input, const dg_checkpoint *output, const char *name)
{
    dg_tensor before, after;
    assert_ok(dg_checkpoint_find(input, name, &before));
    assert_ok(dg_checkpoint_find(output, name, &after));
    assert_string_equal(before.stored_type, after.stored_type);
    assert_int_equal(before.bytes, after.bytes);
    assert_memory_equal(before.data, after.data, before.bytes);
}

/* ---- a small model ------------------------------------------------------------------- */

/* Values of a tensor of the model; each test has its own. */
static void *values(rng *r, dg_dtype dtype, int64_t count)
{
    void *data = malloc((size_t)count * dg_dtype_bytes(dtype));
    assert_non_null(data);
    rng_fill_normal(r, data, dtype, count, 0.02);
    return data;
}

enum { Q_ROWS = 576, COLS = 200, UP_ROWS = 300 };
#define Q     "model.layers.0.self_attn.q_proj.weight"
#define UP    "model.layers.0.mlp.up_proj.weight"
#define GATE  "model.layers.0.mlp.gate.weight"
#define NORM  "model.norm.weight"
#define EMBED "model.embed_tokens.weight"
#define HEAD  "lm_head.weight"
#define IDS   "ids"

static const char config[] = "{\n  \"rope_theta\": 10000.0,\n  \"eps\": 1e-05\n}\n";

/* Tensors of odd sizes and several types, in two shards with an index, or in one file. */
static const char *make_model(uint64_t stream, bool sharded)
{
    rng r = rng_new(stream);
    const char *folder = files_folder();
    void *q = values(&r, DG_BF16, Q_ROWS * COLS), *up = values(&r, DG_F32, UP_ROWS * COLS);
    void *gate = values(&r, DG_F16, 7 * COLS), *norm = values(&r, DG_BF16, COLS);
    void *embed = values(&r, DG_BF16, 3 * COLS), *head = values(&r, DG_BF16, 3 * COLS);
    const stored tensors[] = {
        {IDS, "I8", 1, 3, 0, "abc"},        {Q, "BF16", 2, Q_ROWS, COLS, q},
        {GATE, "F16", 2, 7, COLS, gate},    {UP, "F32", 4, UP_ROWS, COLS, up},
        {EMBED, "BF16", 2, 3, COLS, embed}, {HEAD, "BF16", 2, 3, COLS, head},
        {NORM, "BF16", 2, COLS, 0, norm},
    };
    if (sharded) {
        safetensors_write(files_path(folder, "m-1-of-2.safetensors"), tensors, 3);
        safetensors_write(files_path(folder, "m-2-of-2.safetensors"), tensors + 3, 4);
        char *index = NULL;
        size_t bytes;
        FILE *out = open_memstream(&index, &bytes);
        fprintf(out, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
        for (int i = 0; i < 7; i++)
            fprintf(out, "%s\"%s\":\"m-%d-of-2.safetensors\"", i == 0 ? "" : ",", tensors[i].name,
                    i < 3 ? 1 : 2);
        fprintf(out, "}}");
        fclose(out);
        files_write_text(files_path(folder, "model.safetensors.index.json"), index);
        free(index);
    } else {
        safetensors_write(files_path(folder, "model.safetensors"), tensors, 7);
    }
    files_write_text(files_path(folder, "config.json"), config);
    files_write_text(files_path(folder, "tokenizer.json"), "{\"tokens\": []}");
    files_write_text(files_path(folder, "pytorch_model.bin"), "old weights");
    files_write_text(files_path(folder, "empty.txt"), "");
    files_write_text(files_path(folder, ".hidden"), "");
    files_make_folder(files_path(folder, "original"));
    void *all[] = {q, up, gate, norm, embed, head};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    return folder;
}

/* What the callback was told. */
typedef struct told {
    int tensors, quantized;
    int64_t done, total;
    double q_error;
    char gate_reason[64];
    size_t before, after;
} told;

static bool listen(void *user, const dg_tensor_report *tensor)
{
    told *t = user;
    t->tensors++;
    t->quantized += tensor->kept_because == NULL;
    assert_true(tensor->done > t->done && tensor->done <= tensor->total);
    t->done = tensor->done;
    t->total = tensor->total;
    t->before += tensor->bytes_before;
    t->after += tensor->bytes_after;
    if (strcmp(tensor->name, Q) == 0)
        t->q_error = tensor->relative_error;
    if (strcmp(tensor->name, GATE) == 0)
        snprintf(t->gate_reason, sizeof t->gate_reason, "%s", tensor->kept_because);
    return true;
}

static void expect_model(const char *folder, const char *quantized, dg_checkpoint_format format,
                         const told *t)
{
    dg_checkpoint *input = open_checkpoint(folder), *output = open_checkpoint(quantized);
    int32_t rows = format == DG_CHECKPOINT_BLOCK ? 128 : 1;
    int32_t cols = format == DG_CHECKPOINT_BLOCK ? 128 : 0;
    double error = expect_quantized(input, output, Q, rows, cols);
    assert_true(fabs(error - t->q_error) < 1e-6 * error);
    assert_true(error > 0.01 && error < 0.04);
    expect_quantized(input, output, UP, rows, cols);
    static const char *const kept[] = {GATE, NORM, EMBED, HEAD, IDS};
    for (int i = 0; i < 5; i++)
        expect_copied(input, output, kept[i]);
    assert_int_equal(t->tensors, 7);
    assert_int_equal(t->quantized, 2);
    assert_int_equal(t->done, t->total);
    assert_string_equal(t->gate_reason, "re:(.*\\.)?(gate|router|shared_expert_gate)$");

    size_t bytes = 0;
    dg_tensor tensor;
    int64_t count = 0;
    while (dg_checkpoint_tensor_at(output, count, &tensor) == DG_OK) {
        size_t element = dg_dtype_bytes(tensor.dtype);
        if (element != 0) /* aligned in the file, so that a server can use it where it lies */
            assert_int_equal((uintptr_t)tensor.data % element, 0);
        bytes += tensor.bytes;
        count++;
    }
    assert_int_equal(count, 7 + 2);
    assert_int_equal(bytes, t->after);
    dg_checkpoint_close(input);
    dg_checkpoint_close(output);
}

static cJSON *read_json(const char *path)
{
    size_t bytes;
    char *text = files_read(path, &bytes);
    cJSON *json = cJSON_Parse(text);
    free(text);
    assert_non_null(json);
    return json;
}

/* Both formats, one file and shards: values, alignment, report, index, travelling files. */
static void models(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool sharded = i % 2 == 1;
        const char *folder = make_model((uint64_t)i, sharded);
        const char *output = files_path(files_folder(), "out");
        told t = {0};
        dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
        options.format = i / 2 == 0 ? DG_CHECKPOINT_BLOCK : DG_CHECKPOINT_CHANNEL;
        options.report = listen;
        options.user = &t;
        assert_ok(write_as(false, folder, output, &options));
        expect_model(folder, output, options.format, &t);

        assert_true(files_exist(files_path(output, "tokenizer.json")));
        assert_true(files_exist(files_path(output, "config.json")));
        assert_true(files_exist(files_path(output, "empty.txt")));
        assert_int_equal(files_count(output, ""), sharded ? 6 : 4);
        if (sharded) {
            cJSON *index = read_json(files_path(output, "model.safetensors.index.json"));
            const cJSON *metadata = cJSON_GetObjectItem(index, "metadata");
            assert_int_equal(cJSON_GetObjectItem(metadata, "total_size")->valuedouble, t.after);
            const cJSON *map = cJSON_GetObjectItem(index, "weight_map");
            const char *suffix = options.format == DG_CHECKPOINT_BLOCK ? "_scale_inv" : "_scale";
            char scale[128];
            snprintf(scale, sizeof scale, "%s%s", Q, suffix);
            assert_string_equal(cJSON_GetObjectItem(map, scale)->valuestring,
                                "m-1-of-2.safetensors");
            cJSON_Delete(index);
        }
    }
}

static void config_is_extended(void **state)
{
    (void)state;
    const char *folder = make_model(20, false), *output = files_path(files_folder(), "out");
    assert_ok(write_as(false, folder, output, NULL));
    size_t bytes;
    char *text = files_read(files_path(output, "config.json"), &bytes);
    /* What was there is there still, digit for digit. */
    assert_memory_equal(text, config, strlen(config) - strlen("\n}\n"));
    free(text);
    cJSON *json = read_json(files_path(output, "config.json"));
    const cJSON *q = cJSON_GetObjectItem(json, "quantization_config");
    assert_string_equal(cJSON_GetObjectItem(q, "quant_method")->valuestring, "fp8");
    assert_string_equal(cJSON_GetObjectItem(q, "fmt")->valuestring, "e4m3");
    assert_string_equal(cJSON_GetObjectItem(q, "activation_scheme")->valuestring, "dynamic");
    const cJSON *block = cJSON_GetObjectItem(q, "weight_block_size");
    assert_int_equal(cJSON_GetArrayItem(block, 0)->valueint, 128);
    char *kept = cJSON_PrintUnformatted(cJSON_GetObjectItem(q, "modules_to_not_convert"));
    assert_string_equal(kept, "[\"model.layers.0.mlp.gate\",\"model.embed_tokens\",\"lm_head\"]");
    cJSON_free(kept);
    cJSON_Delete(json);

    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = DG_CHECKPOINT_CHANNEL;
    files_write_text(files_path(folder, "config.json"), "{ }");
    output = files_path(files_folder(), "out");
    assert_ok(write_as(false, folder, output, &options));
    json = read_json(files_path(output, "config.json"));
    q = cJSON_GetObjectItem(json, "quantization_config");
    assert_string_equal(cJSON_GetObjectItem(q, "quant_method")->valuestring, "compressed-tensors");
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(q, "ignore")), 3);
    cJSON_Delete(json);

    /* A file by itself: its config.json comes along, the rest of the folder does not. */
    output = files_path(files_folder(), "out");
    assert_ok(write_as(false, files_path(folder, "model.safetensors"), output, NULL));
    assert_int_equal(files_count(output, ""), 2);
    files_remove(files_path(folder, "config.json"));
    output = files_path(files_folder(), "out");
    assert_ok(write_as(false, files_path(folder, "model.safetensors"), output, NULL));
    assert_int_equal(files_count(output, ""), 1);
}

/* A weight so large that it goes through in several bands: each has its own scales and codes. */
static void several_bands(void **state)
{
    (void)state;
    enum { ROWS = 300, WIDTH = 70000 };
    rng r = rng_new(38);
    uint16_t *data = malloc(sizeof *data * ROWS * WIDTH);
    assert_non_null(data);
    for (int64_t i = 0; i < (int64_t)ROWS * WIDTH; i++) /* rows of very different size */
        data[i] = dgi_bf16_from_f32((float)rng_range(&r, -99, 99) * (float)(1 + i / WIDTH));
    const stored tensor = {"w.weight", "BF16", 2, ROWS, WIDTH, data};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, &tensor, 1);
    free(data);
    for (int format = DG_CHECKPOINT_BLOCK; format <= DG_CHECKPOINT_CHANNEL; format++) {
        dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
        options.format = (dg_checkpoint_format)format;
        const char *output = files_path(files_folder(), "out");
        assert_ok(write_as(false, file, output, &options));
        dg_checkpoint *before = open_checkpoint(file), *after = open_checkpoint(output);
        bool block = format == DG_CHECKPOINT_BLOCK;
        expect_quantized(before, after, "w.weight", block ? 128 : 1, block ? 128 : 0);
        dg_checkpoint_close(before);
        dg_checkpoint_close(after);
        files_remove(output);
    }
}

/* G39: with a scale per row each part of a fused weight is as if it had been quantised alone. */
static void g39_fused_projections(void **state)
{
    (void)state;
    enum { ROWS = 64, WIDTH = 96 };
    rng r = rng_new(39);
    static float fused[2 * ROWS * WIDTH];
    rng_fill_normal(&r, fused, DG_F32, ROWS * WIDTH, 0.003);
    rng_fill_normal(&r, fused + ROWS * WIDTH, DG_F32, ROWS * WIDTH, 3.0);
    const stored tensors[] = {{"fused.weight", "F32", 4, 2 * ROWS, WIDTH, fused},
                              {"alone.weight", "F32", 4, ROWS, WIDTH, fused}};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, tensors, 2);
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = DG_CHECKPOINT_CHANNEL;
    const char *output = files_path(files_folder(), "out");
    assert_ok(write_as(false, file, output, &options));
    dg_checkpoint *checkpoint = open_checkpoint(output);
    dg_tensor whole, alone;
    assert_ok(dg_checkpoint_find(checkpoint, "fused.weight", &whole));
    assert_ok(dg_checkpoint_find(checkpoint, "alone.weight", &alone));
    assert_memory_equal(whole.data, alone.data, alone.bytes);
    dg_checkpoint_close(checkpoint);
}

/* ---- refusals ------------------------------------------------------------------------ */

static void arguments_that_are_refused(void **state)
{
    (void)state;
    const char *folder = make_model(40, false), *output = files_path(files_folder(), "out");
    assert_refused(dg_checkpoint_quantize(NULL, folder, output, NULL), DG_INVALID_ARGUMENT,
                   "context is NULL");
    assert_refused(write_as(false, NULL, output, NULL), DG_INVALID_ARGUMENT, "input is NULL");
    assert_refused(write_as(false, folder, NULL, NULL), DG_INVALID_ARGUMENT, "output is NULL");
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = DG_CHECKPOINT_FORMATS;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT, "format is 13");
    options.format = DG_CHECKPOINT_BF16;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT, "not quantised");
    options = (dg_checkpoint_options)DG_CHECKPOINT_OPTIONS_INIT;
    options.fusion = (dg_checkpoint_fusion)3;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT, "fusion is 3");
    options = (dg_checkpoint_options)DG_CHECKPOINT_OPTIONS_INIT;
    options.keep_count = 1;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT, "options.keep");
    options.keep_count = -1;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT, "keep_count -1");
    options.struct_bytes = 1;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT, "struct_bytes");
    assert_refused(write_as(false, output, output, NULL), DG_NOT_FOUND, "out");
    assert_refused(write_as(false, folder, "/", NULL), DG_INVALID_ARGUMENT,
                   "output / does not end");
    assert_refused(write_as(false, folder, files_path(output, "deeper"), NULL), DG_NOT_FOUND,
                   "cannot create folder");
    const char *keep = "re:";
    options = (dg_checkpoint_options)DG_CHECKPOINT_OPTIONS_INIT;
    options.keep = &keep;
    options.keep_count = 1;
    assert_refused(write_as(false, folder, output, &options), DG_INVALID_ARGUMENT,
                   "no layer to quantise");
    assert_false(files_exist(output));
}

static void quantized_inputs_are_refused(void **state)
{
    (void)state;
    const char *folder = make_model(41, false), *place = files_folder();
    const char *once = files_path(place, "once"), *twice = files_path(place, "twice");
    assert_ok(write_as(false, folder, once, NULL));
    assert_refused(write_as(false, once, twice, NULL), DG_INVALID_ARGUMENT, "quantised already");
    files_remove(files_path(once, "config.json"));
    assert_refused(write_as(false, once, twice, NULL), DG_INVALID_ARGUMENT, "stored as F8_E4M3");
    const float data[4] = {1.0f};
    const stored tensors[] = {{"w.weight", "F32", 4, 2, 2, data},
                              {"w.weight_scale_inv", "F32", 4, 1, 1, data}};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, tensors, 2);
    assert_refused(write_as(false, file, twice, NULL), DG_INVALID_ARGUMENT, "w.weight_scale_inv");
    assert_int_equal(files_count(place, ""), 1);
}

static void outputs_that_are_there(void **state)
{
    (void)state;
    const char *folder = make_model(42, false), *place = files_folder();
    const char *output = files_path(place, "out");
    dg_checkpoint_options replace = DG_CHECKPOINT_OPTIONS_INIT;
    replace.replace = true;
    files_write_text(output, "a file");
    assert_refused(write_as(false, folder, output, &replace), DG_INVALID_ARGUMENT, "is no folder");
    files_remove(output);
    files_make_folder(output); /* empty */
    assert_ok(write_as(false, folder, output, NULL));
    assert_refused(write_as(false, folder, output, NULL), DG_INVALID_ARGUMENT, "is not empty");

    /* With `replace` only a checkpoint gives way, and never the input. */
    files_write_text(files_path(output, "notes.txt"), "from an older run");
    assert_ok(write_as(false, folder, output, &replace));
    assert_false(files_exist(files_path(output, "notes.txt")));
    assert_int_equal(files_count(place, ""), 1);
    files_make_folder(files_path(output, "inside"));
    assert_refused(write_as(false, folder, output, &replace), DG_INVALID_ARGUMENT, "not replaced");
    files_remove(files_path(output, "inside"));
    files_remove(files_path(output, "model.safetensors"));
    assert_refused(write_as(false, folder, output, &replace), DG_INVALID_ARGUMENT, "not replaced");
    files_remove(files_path(folder, "original"));
    assert_refused(write_as(false, folder, folder, &replace), DG_INVALID_ARGUMENT,
                   "folder of the input");

    /* What killed runs left goes away; what others left does not. */
    files_remove(output);
    files_make_folder(files_path(place, ".out.deepgemm-0"));
    files_write_text(files_path(files_path(place, ".out.deepgemm-0"), "model.safetensors"), "");
    files_make_folder(files_path(place, ".other.deepgemm-0"));
    assert_ok(write_as(false, folder, files_path(place, "out//"), NULL));
    assert_int_equal(files_count(place, ".out"), 0);
    assert_int_equal(files_count(place, ".other"), 1);
    assert_true(files_exist(files_path(output, "model.safetensors")));
}

/* Stops at a tensor; counts those that came, and those of them that an earlier run had done. */
typedef struct stopping {
    int stop_at, tensors, resumed;
} stopping;

static bool stop(void *user, const dg_tensor_report *tensor)
{
    stopping *s = user;
    s->resumed += tensor->resumed;
    return ++s->tensors != s->stop_at;
}

/* A cancelled run leaves what it has done to the next one of the same kind, and to no other. */
static void cancelled_and_resumed(void **state)
{
    (void)state;
    const char *folder = make_model(43, true), *place = files_folder();
    const char *whole = files_path(place, "whole"), *output = files_path(place, "out");
    assert_ok(write_as(false, folder, whole, NULL));
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    stopping s = {.stop_at = 3};
    options.report = stop;
    options.user = &s;
    assert_refused(write_as(false, folder, output, &options), DG_CANCELLED, GATE);
    assert_int_equal(s.tensors, 3);
    assert_false(files_exist(output));
    assert_int_equal(files_count(place, ".out.deepgemm-"), 1);

    s = (stopping){.stop_at = 5};
    assert_refused(write_as(false, folder, output, &options), DG_CANCELLED, EMBED);
    assert_int_equal(s.resumed, 3);
    told t = {0};
    options.report = listen;
    options.user = &t;
    assert_ok(write_as(false, folder, output, &options));
    files_expect_same(whole, output);
    expect_model(folder, output, DG_CHECKPOINT_BLOCK, &t); /* errors from the journal too */
    assert_int_equal(files_count(place, ""), 2);

    /* Another format, or an input that has changed since, begins anew. */
    for (int i = 0; i < 2; i++) {
        files_remove(output);
        options.report = stop;
        options.user = &s;
        s = (stopping){.stop_at = 3};
        options.format = DG_CHECKPOINT_BLOCK;
        assert_refused(write_as(false, folder, output, &options), DG_CANCELLED, GATE);
        s = (stopping){.stop_at = -1};
        if (i == 0)
            options.format = DG_CHECKPOINT_CHANNEL;
        else
            files_write_text(files_path(folder, "config.json"), "{\"hidden_size\": 1}");
        assert_ok(write_as(false, folder, output, &options));
        assert_int_equal(s.resumed, 0);
        assert_int_equal(files_count(place, ""), 2);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models),
        cmocka_unit_test(config_is_extended),
        cmocka_unit_test(several_bands),
        cmocka_unit_test(g39_fused_projections),
        cmocka_unit_test(arguments_that_are_refused),
        cmocka_unit_test(quantized_inputs_are_refused),
        cmocka_unit_test(outputs_that_are_there),
        cmocka_unit_test(cancelled_and_resumed),
    };
    return test_run(argc, argv, tests);
}
