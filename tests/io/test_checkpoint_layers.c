/* SPDX-License-Identifier: MIT */
/*
 * Layers that are fused or split while a checkpoint is written, fused experts, scales of caches and
 * inputs, and the account of all scales.
 */
#include "core/formats.h"
#include "files.h"
#include "random.h"
#include "test.h"
#include "weights.h"

#include <cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The output's folder. */
static const char *written(bool convert, const char *input, dg_checkpoint_format format,
                           dg_checkpoint_fusion fusion)
{
    const char *output = files_path(files_folder(), "out");
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = format;
    options.fusion = fusion;
    assert_ok(write_as(convert, input, output, &options));
    return output;
}

static bool has(const dg_checkpoint *checkpoint, const char *name)
{
    dg_tensor tensor;
    return dg_checkpoint_find(checkpoint, name, &tensor) == DG_OK;
}

static void *normal(rng *r, int64_t count, double deviation)
{
    float *data = malloc((size_t)count * sizeof *data);
    assert_non_null(data);
    rng_fill_normal(r, data, DG_F32, count, deviation);
    return data;
}

/* ---- fused and split ----------------------------------------------------------------- */

enum { COLS = 200 };
#define AT "model.layers.0.self_attn."

/* Rows [first, first + count) of `whole` are those of `part`. */
static values rows_of(const values *whole, int64_t first, int64_t count)
{
    int64_t at = first * whole->cols;
    values part = {count, whole->cols, whole->value + at, whole->scale + at,
                   whole->code == NULL ? NULL : whole->code + at};
    return part;
}

/* Parts of these sizes, each with values of another size, and a bias for each; FP8 in blocks. */
static const char *make_parts(const int64_t *rows, const char *const *names, int count)
{
    const char *folder = files_folder();
    rng r = rng_new(80);
    stored tensors[6];
    static char weights[3][64], biases[3][64];
    for (int p = 0; p < count; p++) {
        snprintf(weights[p], sizeof weights[p], AT "%s.weight", names[p]);
        snprintf(biases[p], sizeof biases[p], AT "%s.bias", names[p]);
        tensors[2 * p] = (stored){weights[p], "F32", 4,
                                  rows[p],    COLS,  normal(&r, rows[p] * COLS, pow(10.0, 1 - p))};
        tensors[2 * p + 1] = (stored){biases[p], "F32", 4, rows[p], 0, normal(&r, rows[p], 1.0)};
    }
    safetensors_write(files_path(folder, "model.safetensors"), tensors, 2 * (size_t)count);
    for (int t = 0; t < 2 * count; t++)
        free((void *)tensors[t].data);
    files_write_text(files_path(folder, "config.json"),
                     "{\"hidden_size\": 200, \"num_attention_heads\": 4, "
                     "\"num_key_value_heads\": 2, \"head_dim\": 64}");
    return written(false, folder, DG_CHECKPOINT_BLOCK, DG_FUSION_AS_IT_IS);
}

/* G45: fusing blocks of scales keeps the last rows, also where a part does not end with a block. */
static void g45_fused_blocks(void **state)
{
    (void)state;
    static const char *const names[] = {"q_a_proj", "kv_a_proj_with_mqa"};
    static const int64_t sizes[][2] = {{2048, 576}, {576, 2048}, {100, 64}};
    for (int i = 0; i < 3; i++) {
        const int64_t *rows = sizes[i];
        const char *parts = make_parts(rows, names, 2);
        const char *fused = written(true, parts, DG_CHECKPOINT_BLOCK, DG_FUSION_FUSED);
        dg_checkpoint *a = open_checkpoint(parts), *b = open_checkpoint(fused);
        dg_stored_weight w;
        assert_ok(dg_checkpoint_weight(b, AT "fused_qkv_a_proj_with_mqa.weight", false, &w));
        assert_int_equal(w.scale.shape[0], (rows[0] + rows[1] + 127) / 128);
        assert_false(has(b, AT "q_a_proj.weight"));
        values whole = values_read(b, AT "fused_qkv_a_proj_with_mqa.weight", -1);
        int64_t first = 0, cut = rows[0] / 128 * 128; /* the block that both parts share */
        for (int p = 0; p < 2; first += rows[p], p++) {
            char name[64];
            snprintf(name, sizeof name, AT "%s.weight", names[p]);
            values part = values_read(a, name, -1), same = rows_of(&whole, first, rows[p]);
            values_expect_nearest(&part, &same);
            if (rows[0] % 128 == 0) { /* no block is shared: nothing changes */
                values_expect_equal(&part, &same);
            } else if (p == 0) { /* blocks before the shared one stay as they are */
                values before = rows_of(&part, 0, cut), after = rows_of(&whole, 0, cut);
                values_expect_equal(&before, &after);
            }
            values_free(&part);
        }
        values_free(&whole);
        dg_tensor bias, part;
        assert_ok(dg_checkpoint_find(b, AT "fused_qkv_a_proj_with_mqa.bias", &bias));
        assert_ok(dg_checkpoint_find(a, AT "q_a_proj.bias", &part));
        assert_int_equal(bias.elements, rows[0] + rows[1]);
        assert_memory_equal(bias.data, part.data, part.bytes);
        assert_ok(dg_checkpoint_find(a, AT "kv_a_proj_with_mqa.bias", &part));
        assert_memory_equal((const char *)bias.data + 4 * rows[0], part.data, part.bytes);
        dg_checkpoint_close(a);
        dg_checkpoint_close(b);
    }
}

/* Split after having been fused, layers are as they were: each ends with a block. */
static void split_and_fused(void **state)
{
    (void)state;
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    static const int64_t rows[] = {256, 128, 128};
    const char *parts = make_parts(rows, names, 3);
    const char *fused = written(true, parts, DG_CHECKPOINT_BLOCK, DG_FUSION_FUSED);
    const char *again = written(true, fused, DG_CHECKPOINT_BLOCK, DG_FUSION_SPLIT);
    dg_checkpoint *a = open_checkpoint(parts), *b = open_checkpoint(again);
    dg_checkpoint *c = open_checkpoint(fused);
    assert_true(has(c, AT "qkv_proj.weight") && has(c, AT "qkv_proj.bias"));
    dg_tensor tensor, same;
    int64_t count = 0;
    for (; dg_checkpoint_tensor_at(a, count, &tensor) == DG_OK; count++) {
        assert_ok(dg_checkpoint_find(b, tensor.name, &same));
        assert_int_equal(tensor.bytes, same.bytes);
        assert_memory_equal(tensor.data, same.data, tensor.bytes);
    }
    assert_int_equal(count, 3 * 3);
    dg_checkpoint_close(a);
    dg_checkpoint_close(b);
    dg_checkpoint_close(c);

    /* Sizes that config.json does not give. */
    files_write_text(files_path(fused, "config.json"),
                     "{\"quantization_config\":{\"quant_method\":\"fp8\"},"
                     "\"num_attention_heads\":3,\"head_dim\":64}");
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.fusion = DG_FUSION_SPLIT;
    assert_refused(write_as(true, fused, files_path(files_folder(), "out"), &options),
                   DG_INVALID_ARGUMENT, "has 512 rows, which cannot be split");
}

/* G39: with one scale for a tensor, a part that is split off is as if it had been quantised alone.
 */
static void g39_one_scale_for_each_part(void **state)
{
    (void)state;
    enum { HALF = 70 };
    rng r = rng_new(82);
    float *small = normal(&r, 2 * HALF * COLS, 0.003);
    for (int64_t i = HALF * COLS; i < 2 * HALF * COLS; i++)
        small[i] *= 1000.0f;
    const stored tensors[] = {{"a.gate_up_proj.weight", "F32", 4, 2 * HALF, COLS, small},
                              {"b.gate_proj.weight", "F32", 4, HALF, COLS, small}};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, tensors, 2);
    free(small);
    dg_checkpoint *checkpoint =
        open_checkpoint(written(false, file, DG_CHECKPOINT_TENSOR, DG_FUSION_SPLIT));
    values part = values_read(checkpoint, "a.gate_proj.weight", -1);
    values alone = values_read(checkpoint, "b.gate_proj.weight", -1);
    values_expect_equal(&alone, &part);
    values up = values_read(checkpoint, "a.up_proj.weight", -1);
    assert_true(up.scale[0] > 100.0 * part.scale[0]);
    values_free(&part);
    values_free(&alone);
    values_free(&up);
    dg_checkpoint_close(checkpoint);
}

/* The last report of a fused weight. */
static bool take_fused(void *user, const dg_tensor_report *tensor)
{
    if (strcmp(tensor->name, AT "qkv_proj.weight") == 0)
        *(dg_tensor_report *)user = *tensor;
    return true;
}

/* A fused weight's error is that of its worst part, however its rows were cut up on the way; how
 * far parts are apart is told where they share a scale. Fused here, or so already. */
static void errors_of_parts(void **state)
{
    (void)state;
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    static const int64_t rows[] = {1500, 300, 300}; /* more than a chunk; ends inside blocks */
    const char *folder = files_folder();
    rng r = rng_new(83);
    float *data = normal(&r, 2100 * COLS, 1.0), largest[3] = {0};
    for (int64_t i = 0; i < 2100 * COLS; i++) {
        int p = i < 1500 * COLS ? 0 : i < 1800 * COLS ? 1 : 2;
        data[i] *= p == 1 ? 1e-5f : 1.0f;
        largest[p] = fmaxf(largest[p], fabsf(data[i]));
    }
    const stored fused = {AT "qkv_proj.weight", "F32", 4, 2100, COLS, data};
    const stored parts[] = {{AT "q_proj.weight", "F32", 4, 1500, COLS, data},
                            {AT "k_proj.weight", "F32", 4, 300, COLS, data + 1500 * COLS},
                            {AT "v_proj.weight", "F32", 4, 300, COLS, data + 1800 * COLS}};
    static const dg_checkpoint_format formats[] = {DG_CHECKPOINT_TENSOR, DG_CHECKPOINT_BLOCK};
    for (int i = 0; i < 4; i++) {
        bool whole = i % 2 == 0;
        safetensors_write(files_path(folder, "model.safetensors"), whole ? &fused : parts,
                          whole ? 1 : 3);
        files_write_text(files_path(folder, "config.json"),
                         "{\"num_attention_heads\": 5, \"num_key_value_heads\": 1, "
                         "\"head_dim\": 300}");
        dg_tensor_report told = {0};
        dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
        options.format = formats[i / 2];
        options.fusion = whole ? DG_FUSION_AS_IT_IS : DG_FUSION_FUSED;
        options.report = take_fused;
        options.user = &told;
        const char *output = files_path(files_folder(), "out");
        assert_ok(write_as(false, folder, output, &options));
        dg_checkpoint *before = open_checkpoint(folder), *after = open_checkpoint(output);
        values codes = values_read(after, AT "qkv_proj.weight", -1);
        double worst = 0.0;
        int64_t first = 0;
        for (int p = 0; p < 3; first += rows[p], p++) {
            char name[64];
            snprintf(name, sizeof name, AT "%s.weight", whole ? "qkv_proj" : names[p]);
            values wide = values_read(before, name, -1);
            values w = rows_of(&wide, whole ? first : 0, rows[p]);
            values v = rows_of(&codes, first, rows[p]);
            worst = fmax(worst, values_distance(&w, &v));
            values_free(&wide);
        }
        assert_true(fabs(told.relative_error / worst - 1) < 1e-4);
        assert_true(told.part_ratio ==
                    (i < 2 ? fmax(largest[0], largest[2]) / (double)largest[1] : 0));
        assert_true(worst > (i < 2 ? 0.1 : 0.01));
        values_free(&codes);
        dg_checkpoint_close(before);
        dg_checkpoint_close(after);
    }
    free(data);
}

/* ---- experts --------------------------------------------------------------------------- */

enum { EXPERTS = 3, HIDDEN = 160, WIDTH = 130 };
#define EX "model.layers.0.mlp.experts."

/* Fused weights [experts, ...] in 32 bits, experts of different size. */
static const char *make_experts(bool transposed)
{
    const char *folder = files_folder();
    enum { GATE_UP = EXPERTS * 2 * WIDTH * HIDDEN, DOWN = EXPERTS * HIDDEN * WIDTH };
    rng r = rng_new(81);
    static float data[GATE_UP + DOWN];
    rng_fill_normal(&r, data, DG_F32, GATE_UP + DOWN, 1.0);
    for (int64_t i = 0; i < GATE_UP; i++)
        data[i] *= (float)pow(8.0, (double)(i / (2 * WIDTH * HIDDEN)));
    char header[512];
    snprintf(header, sizeof header,
             "{\"" EX "gate_up_proj\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],"
             "\"data_offsets\":[0,%d]},\"" EX "down_proj\":{\"dtype\":\"F32\",\"shape\":[%d,%d,%d],"
             "\"data_offsets\":[%d,%d]}}",
             EXPERTS, transposed ? HIDDEN : 2 * WIDTH, transposed ? 2 * WIDTH : HIDDEN, 4 * GATE_UP,
             EXPERTS, transposed ? WIDTH : HIDDEN, transposed ? HIDDEN : WIDTH, 4 * GATE_UP,
             4 * (GATE_UP + DOWN));
    size_t bytes;
    char *file = safetensors_bytes(header, data, sizeof data, &bytes);
    files_write(files_path(folder, "model.safetensors"), file, bytes);
    free(file);
    files_write_text(files_path(folder, "config.json"), "{\"hidden_size\": 160}");
    return folder;
}

static void expect_expert(const dg_checkpoint *fused, const char *name, int64_t expert,
                          int64_t first, int64_t rows, const dg_checkpoint *split, const char *part,
                          bool equal)
{
    char split_name[96];
    snprintf(split_name, sizeof split_name, EX "%lld.%s.weight", (long long)expert, part);
    values whole = values_read(fused, name, expert), v = values_read(split, split_name, -1);
    values w = rows_of(&whole, first, rows);
    if (equal)
        values_expect_equal(&w, &v);
    else
        values_expect_nearest(&w, &v);
    values_free(&whole);
    values_free(&v);
}

/* Quantised as they are for formats that know fused experts; a layer for each expert for others. */
static void experts(void **state)
{
    (void)state;
    const char *model = make_experts(false);
    const char *block = written(false, model, DG_CHECKPOINT_BLOCK, DG_FUSION_AS_IT_IS);
    dg_checkpoint *wide = open_checkpoint(model), *fused = open_checkpoint(block);
    dg_tensor scale;
    assert_ok(dg_checkpoint_find(fused, EX "gate_up_proj_scale_inv", &scale));
    assert_int_equal(scale.rank, 3);
    assert_int_equal(scale.shape[0], EXPERTS);
    assert_int_equal(scale.shape[1], 3);
    assert_int_equal(scale.shape[2], 2);
    for (int64_t e = 0; e < EXPERTS; e++) {
        values w = values_read(wide, EX "gate_up_proj", e);
        values v = values_read(fused, EX "gate_up_proj", e);
        values_expect_nearest(&w, &v);
        assert_true(values_distance(&w, &v) < 0.04);
        values_free(&w);
        values_free(&v);
    }
    /* The gate ends inside a block, so the second part is requantised and the first one is not. */
    const char *split = written(true, block, DG_CHECKPOINT_CT_BLOCK, DG_FUSION_AS_IT_IS);
    dg_checkpoint *layers = open_checkpoint(split);
    for (int64_t e = 0; e < EXPERTS; e++) {
        expect_expert(fused, EX "gate_up_proj", e, 0, WIDTH, layers, "gate_proj", true);
        expect_expert(fused, EX "gate_up_proj", e, WIDTH, WIDTH, layers, "up_proj", false);
        expect_expert(fused, EX "down_proj", e, 0, HIDDEN, layers, "down_proj", true);
    }
    dg_stored_weight w;
    assert_refused(dg_checkpoint_weight(fused, EX "down_proj", false, &w), DG_UNSUPPORTED_SHAPE,
                   "dg_checkpoint_expert");
    assert_refused(dg_checkpoint_expert(fused, EX "down_proj", EXPERTS, false, &w), DG_NOT_FOUND,
                   "holds 3 experts");
    assert_refused(dg_checkpoint_expert(layers, EX "0.down_proj.weight", 0, false, &w),
                   DG_NOT_FOUND, "holds 0 experts");
    dg_checkpoint_close(wide);
    dg_checkpoint_close(fused);
    dg_checkpoint_close(layers);

    /* Stored transposed, they are left alone. */
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    assert_refused(write_as(false, make_experts(true), files_path(files_folder(), "out"), &options),
                   DG_INVALID_ARGUMENT, "no layer to quantise");
}

/* ---- inputs and caches ----------------------------------------------------------------- */

typedef struct extra {
    const char *name;
    const char *type;
    int64_t count;
    float value;
} extra;

/* An FP8 layer "<AT>k_proj" with a scale, and further scales of one value each. */
static const char *make_cache(const char *config, const extra *extras, int count)
{
    static const uint8_t codes[16] = {0x38};
    static const float one = 1.0f;
    static float numbers[8][8];
    stored tensors[10] = {{AT "k_proj.weight", "F8_E4M3", 1, 4, 4, codes},
                          {AT "k_proj.weight_scale", "F32", 4, 1, 0, &one}};
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 8; k++)
            numbers[i][k] = extras[i].value;
        tensors[2 + i] =
            (stored){extras[i].name, extras[i].type, 4, extras[i].count, 0, numbers[i]};
    }
    const char *folder = files_folder();
    safetensors_write(files_path(folder, "model.safetensors"), tensors, 2 + (size_t)count);
    if (config != NULL)
        files_write_text(files_path(folder, "config.json"), config);
    return folder;
}

/* States of scales as letters, loaded L, defaulted D, unused U, missing M, wrong W, after the
 * role's w, i, k, v or n: "wL kD vD". */
static bool note(void *user, const dg_scale_record *scale)
{
    char *text = user;
    static const char roles[] = "wikvn", states[] = "LDUMW";
    char one[4] = {*text == '\0' ? '\0' : ' ', roles[scale->role], states[scale->state], '\0'};
    strcat(text, *one == '\0' ? one + 1 : one);
    bool bad = scale->state == DG_SCALE_MISSING || scale->state == DG_SCALE_WRONG;
    assert_int_equal(bad, scale->problem != NULL);
    assert_non_null(scale->layer);
    return true;
}

static void expect_account(const char *folder, const char *expected)
{
    char text[64] = "";
    dg_checkpoint *checkpoint = open_checkpoint(folder);
    assert_ok(dg_checkpoint_scales(checkpoint, note, text));
    dg_checkpoint_close(checkpoint);
    /* In any order: that of the tensors in the file. */
    bool same = strlen(text) == strlen(expected);
    for (const char *one = expected; same && *one != '\0'; one += 2 + (one[2] == ' ')) {
        char word[3] = {one[0], one[1], '\0'};
        same = strstr(text, word) != NULL;
    }
    if (!same)
        fail_msg("%s, not %s", text, expected);
}

/* G40: scales of caches are one positive finite number each, and 1 where there is none. */
static void g40_scales_of_caches(void **state)
{
    (void)state;
    static const char config[] =
        "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
        "\"kv_cache_scheme\":{\"num_bits\":8}}}";
    static const struct {
        int64_t count;
        float value;
        const char *message;
    } bad[] = {{1, NAN, "is nan"},
               {1, INFINITY, "is inf"},
               {1, -1.0f, "is -1"},
               {1, 0.0f, "is 0"},
               {8, 1.0f, "has 8 elements"}};
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = DG_CHECKPOINT_CT_TENSOR;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const extra scales[] = {{AT "k_proj.k_scale", "F32", bad[i].count, bad[i].value},
                                {AT "v_proj.v_scale", "F32", 1, 1.0f}};
        const char *folder = make_cache(config, scales, 2);
        expect_account(folder, "wL kW vL");
        assert_refused(write_as(true, folder, files_path(files_folder(), "out"), &options),
                       DG_BAD_FILE, bad[i].message);
        assert_non_null(strstr(dg_last_error(), AT "k_proj.k_scale"));
    }
    const extra good[] = {{AT "k_proj.k_scale", "F32", 1, 1.0f},
                          {AT "v_proj.v_scale", "F32", 1, 2}};
    const char *folder = make_cache(config, good, 2);
    expect_account(folder, "wL kL vL"); /* 1 is loaded like any other */
    expect_account(make_cache(config, good, 1), "wL kL vD");
    expect_account(make_cache(config, NULL, 0), "wL kD vD");
    expect_account(make_cache(NULL, NULL, 0), "wL");

    /* They are named as the format names them, there and back. */
    const char *ct = written(true, folder, DG_CHECKPOINT_CT_TENSOR, DG_FUSION_AS_IT_IS);
    const char *mo = written(true, ct, DG_CHECKPOINT_MODELOPT_CHANNEL, DG_FUSION_AS_IT_IS);
    dg_checkpoint *a = open_checkpoint(ct), *b = open_checkpoint(mo);
    assert_true(has(a, AT "k_scale") && has(a, AT "v_scale"));
    float value;
    assert_ok(dg_checkpoint_read(b, AT "v_proj.v_scale", DG_F32, &value, sizeof value));
    assert_true(value == 2.0f);
    assert_true(has(b, AT "k_proj.k_scale"));
    dg_checkpoint_close(a);
    dg_checkpoint_close(b);
    expect_account(mo, "wL kL vL");
}

/* Static scales of inputs: kept for formats that have them, missing, wrong, or given. */
static void scales_of_inputs(void **state)
{
    (void)state;
    static const char config[] =
        "{\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}}";
    const extra input = {AT "k_proj.input_scale", "F32", 1, 0.25f};
    const char *folder = make_cache(config, &input, 1);
    expect_account(folder, "wL iL");
    expect_account(make_cache(config, NULL, 0), "wL iM");
    const extra wrong = {AT "k_proj.input_scale", "F32", 1, -2.0f};
    expect_account(make_cache(config, &wrong, 1), "wL iW");
    const extra stray = {AT "o_proj.input_scale", "F32", 1, 1.0f};
    expect_account(make_cache(NULL, &stray, 1), "wL nU");

    const char *mo = written(true, folder, DG_CHECKPOINT_MODELOPT, DG_FUSION_AS_IT_IS);
    expect_account(mo, "wL iL");
    dg_checkpoint *checkpoint = open_checkpoint(mo);
    float value = 0.0f;
    assert_ok(
        dg_checkpoint_read(checkpoint, AT "k_proj.input_scale", DG_F32, &value, sizeof value));
    assert_true(value == 0.25f);
    dg_checkpoint_close(checkpoint);
    const char *dynamic = written(true, folder, DG_CHECKPOINT_CHANNEL, DG_FUSION_AS_IT_IS);
    expect_account(dynamic, "wL");

    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = DG_CHECKPOINT_MODELOPT;
    const char *output = files_path(files_folder(), "out");
    assert_refused(write_as(true, dynamic, output, &options), DG_INVALID_ARGUMENT,
                   AT "k_proj has none");
    assert_refused(write_as(true, make_cache(config, &wrong, 1), output, &options), DG_BAD_FILE,
                   "is -2");
    options.scales = files_path(make_cache(NULL, &input, 1), "model.safetensors");
    assert_ok(write_as(true, dynamic, output, &options));
    expect_account(output, "wL iL");
}

/* ---- strict ---------------------------------------------------------------------------- */

static void strict(void **state)
{
    (void)state;
    const extra stray = {AT "o_proj.weight_scale", "F32", 1, 1.0f};
    const char *folder = make_cache(NULL, &stray, 1), *place = files_folder();
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.strict = true;
    assert_refused(write_as(true, folder, files_path(place, "out"), &options), DG_BAD_FILE,
                   "a scale of " AT "o_proj is unused");
    options.strict = false;
    assert_ok(write_as(true, folder, files_path(place, "out"), &options));
    expect_account(files_path(place, "out"), "wL nU"); /* nothing gets lost */

    const stored alone = {"w.weight", "F8_E4M3", 1, 2, 2, "abcd"};
    const char *file = files_path(files_folder(), "x.safetensors");
    safetensors_write(file, &alone, 1);
    expect_account(file, "wM");
    assert_refused(write_as(true, file, files_path(place, "no"), &options), DG_BAD_FILE,
                   "without a scale");
    options.unscaled_is_one = true;
    assert_ok(write_as(true, file, files_path(place, "one"), &options));
    dg_checkpoint *checkpoint = open_checkpoint(files_path(place, "one"));
    values v = values_read(checkpoint, "w.weight", -1);
    assert_true(v.scale[0] == 1.0 && v.code[3] == 'd');
    values_free(&v);
    dg_checkpoint_close(checkpoint);

    const stored wide[] = {{"w.weight", "F32", 4, 1, 1, "abcd"},
                           {"v.weight", "F8_E5M2", 1, 2, 2, "abcd"},
                           {"v.weight_scale", "F32", 4, 1, 0, "\0\0\200?"},
                           {"w.weight_scale", "F32", 4, 1, 0, "\0\0\200?"}};
    safetensors_write(file, wide, 4);
    assert_refused(write_as(true, file, files_path(place, "no"), &options), DG_BAD_FILE,
                   "is stored as F32, but has the scale w.weight_scale");
    safetensors_write(file, wide, 1);
    assert_refused(write_as(true, file, files_path(place, "no"), &options), DG_INVALID_ARGUMENT,
                   "no FP8 weight to convert");
    safetensors_write(file, wide, 3); /* E5M2 becomes E4M3 */
    assert_ok(write_as(true, file, files_path(place, "e5m2"), &options));
    dg_checkpoint *before = open_checkpoint(file);
    dg_checkpoint *after = open_checkpoint(files_path(place, "e5m2"));
    values w = values_read(before, "v.weight", -1), x = values_read(after, "v.weight", -1);
    values_expect_nearest(&w, &x);
    values_free(&w);
    values_free(&x);
    dg_checkpoint_close(before);
    dg_checkpoint_close(after);
    assert_int_equal(files_count(place, ""), 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(g45_fused_blocks),
        cmocka_unit_test(split_and_fused),
        cmocka_unit_test(g39_one_scale_for_each_part),
        cmocka_unit_test(errors_of_parts),
        cmocka_unit_test(experts),
        cmocka_unit_test(g40_scales_of_caches),
        cmocka_unit_test(scales_of_inputs),
        cmocka_unit_test(strict),
    };
    return test_run(argc, argv, tests);
}
