/* SPDX-License-Identifier: MIT */
/* deepgemm quantize and inspect: what they print, their JSON, warnings and exit codes. */
#include "files.h"
#include "random.h"
#include "test.h"
#include "tool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two layers of the same kind, a norm and a head, in a folder without config.json. */
static const char *make_model(void)
{
    enum { ROWS = 200, COLS = 130 };
    rng r = rng_new(1);
    static float data[ROWS * COLS];
    rng_fill_normal(&r, data, DG_F32, ROWS * COLS, 1.0);
    const stored tensors[] = {
        {"model.layers.0.up.weight", "F32", 4, ROWS, COLS, data},
        {"model.layers.1.up.weight", "F32", 4, ROWS, COLS, data},
        {"model.layers.1.gate_proj.weight", "F32", 4, ROWS, COLS, data},
        {"lm_head.weight", "F32", 4, 4, COLS, data},
        {"model.norm.weight", "F32", 4, COLS, 0, data},
    };
    const char *folder = files_folder();
    safetensors_write(files_path(folder, "model.safetensors"), tensors, 5);
    return folder;
}

static void help(void **state)
{
    (void)state;
    tool_result r = tool_run("", "quantize --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "quantize-help.txt");
    tool_free(&r);
    r = tool_run("", "convert --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "convert-help.txt");
    tool_free(&r);
    r = tool_run("", "inspect --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "inspect-help.txt");
    tool_free(&r);
}

static void json(void **state)
{
    (void)state;
    const char *output = files_path(files_folder(), "out");
    tool_result r = tool_run("", "quantize '%s' '%s' --json --format channel --keep gate_proj",
                             make_model(), output);
    cJSON *root = tool_json(&r);
    assert_string_equal(tool_string(root, "format"), "channel");
    assert_string_equal(tool_string(root, "output"), output);
    const cJSON *keep = cJSON_GetObjectItem(root, "keep");
    assert_int_equal(cJSON_GetArraySize(keep), 1);
    assert_int_equal(tool_number(cJSON_GetArrayItem(keep, 0), "matches"), 1);
    const cJSON *tensors = cJSON_GetObjectItem(root, "tensors"), *tensor;
    assert_int_equal(cJSON_GetArraySize(tensors), 5);
    int quantized = 0;
    double before = 0.0, after = 0.0;
    cJSON_ArrayForEach(tensor, tensors)
    {
        before += tool_number(tensor, "bytes_before");
        after += tool_number(tensor, "bytes_after");
        if (cJSON_IsTrue(cJSON_GetObjectItem(tensor, "quantized"))) {
            quantized++;
            assert_string_equal(tool_string(tensor, "shape"), "200 x 130");
            double error = tool_number(tensor, "relative_error");
            assert_true(error > 0.01 && error < 0.04);
            assert_int_equal(tool_number(tensor, "bytes_after"), 200 * 130 + 200 * 4);
        } else {
            assert_true(*tool_string(tensor, "kept_because") != '\0');
        }
    }
    assert_int_equal(quantized, 2);
    assert_true(before == tool_number(root, "bytes_before"));
    assert_true(after == tool_number(root, "bytes_after"));
    cJSON_Delete(root);
    tool_free(&r);
}

/* The line of the text that begins so; the test fails without one. */
static void expect_line(const char *text, const char *begin, const char *part)
{
    const char *line = strstr(text, begin);
    if (line == NULL)
        fail_msg("no line '%s' in:\n%s", begin, text);
    char *copy = strndup(line, strcspn(line, "\n"));
    if (strstr(copy, part) == NULL)
        fail_msg("no '%s' in: %s", part, copy);
    free(copy);
}

static void tables_and_warnings(void **state)
{
    (void)state;
    const char *model = make_model(), *place = files_folder();
    tool_result r = tool_run("", "quantize '%s' '%s/a' --keep re:nothing", model, place);
    tool_expect(&r, 0);
    assert_string_equal(r.err, "deepgemm: warning: --keep 're:nothing' matches no layer\n");
    expect_line(r.out, "model.layers.*.up.weight", " 2  200 x 130");
    expect_line(r.out, "model.norm.weight", "not a matrix");
    expect_line(r.out, "lm_head.weight", "lm_head");
    assert_non_null(strstr(r.out, "/a: 3 of 5 tensors in FP8"));
    tool_free(&r);

    r = tool_run("", "quantize '%s' '%s/b' --all", model, place);
    tool_expect(&r, 0);
    assert_string_equal(r.err, "");
    expect_line(r.out, "model.layers.0.up.weight", " 1  200 x 130");
    expect_line(r.out, "model.layers.1.up.weight", " 1  200 x 130");
    tool_free(&r);
}

/* A model of a norm and two fused weights whose gates are within +-10 / ratio and ups within +-10,
 * and of their gates alone. */
static const char *make_fused(double ratio)
{
    enum { HALF = 96, COLS = 130 };
    rng r = rng_new(39);
    static float data[2 * HALF * COLS];
    for (int i = 0; i < 2 * HALF * COLS; i++) {
        double within = i < HALF * COLS ? 10.0 / ratio : 10.0;
        data[i] = (float)(within * (i % (HALF * COLS) == 7 ? -1.0 : 2.0 * rng_unit(&r) - 1.0));
    }
    const stored tensors[] = {
        {"model.layers.0.mlp.gate_up_proj.weight", "F32", 4, 2 * HALF, COLS, data},
        {"model.layers.1.mlp.gate_up_proj.weight", "F32", 4, 2 * HALF, COLS, data},
        {"model.layers.0.mlp.alone.weight", "F32", 4, HALF, COLS, data},
        {"model.norm.weight", "F32", 4, COLS, 0, data},
    };
    const char *folder = files_folder();
    safetensors_write(files_path(folder, "model.safetensors"), tensors, 4);
    return folder;
}

/* G39: one scale for gate and up is told with how far they are apart, and the error is the gate's;
 * what the warning advises gives the gate the codes that it has alone. */
static void g39_parts_that_share_a_scale(void **state)
{
    (void)state;
    static const char *const formats[] = {"tensor", "ct-tensor"};
    const char *model = make_fused(1000.0), *far = make_fused(1e5), *near = make_fused(1.9);
    for (int i = 0; i < 2; i++) {
        const char *place = files_folder(), *format = formats[i];
        tool_result r = tool_run("", "quantize '%s' '%s/a' --format %s", model, place, format);
        tool_expect(&r, 0);
        assert_string_equal(
            r.err,
            "deepgemm: warning: model.layers.0.mlp.gate_up_proj.weight (and 1 more): one scale for "
            "parts whose largest values are 1000x apart; --fusion split, or a format with a scale "
            "per row (channel), gives each part its own\n");
        expect_line(r.out, "model.layers.*.mlp.gate_up_proj.weight",
                    "one scale for parts 1000x apart");
        tool_free(&r);

        r = tool_run("", "quantize '%s' '%s/b' --format %s --json", far, place, format);
        tool_expect(&r, 0);
        cJSON *root = cJSON_Parse(r.out);
        const cJSON *fused = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "tensors"), 0);
        assert_string_equal(tool_string(fused, "name"), "model.layers.0.mlp.gate_up_proj.weight");
        assert_true(fabs(tool_number(fused, "part_ratio") / 1e5 - 1) < 1e-6);
        assert_true(tool_number(fused, "relative_error") > 0.15); /* all of it: 0.03 */
        assert_non_null(strstr(r.err, "1e+05x apart"));
        cJSON_Delete(root);
        tool_free(&r);

        static const char *const silent[] = {"", "--fusion split"};
        const char *inputs[] = {near, model};
        for (int k = 0; k < 2; k++) {
            r = tool_run("", "quantize '%s' '%s/%d' --format %s %s", inputs[k], place, k, format,
                         silent[k]);
            tool_expect(&r, 0);
            assert_string_equal(r.err, "");
            tool_free(&r);
        }
        dg_checkpoint *split;
        dg_tensor gate, alone;
        assert_ok(dg_checkpoint_open(&split, files_path(place, "1")));
        assert_ok(dg_checkpoint_find(split, "model.layers.1.mlp.gate_proj.weight", &gate));
        assert_ok(dg_checkpoint_find(split, "model.layers.0.mlp.alone.weight", &alone));
        assert_int_equal(gate.bytes, alone.bytes);
        assert_memory_equal(gate.data, alone.data, alone.bytes);
        dg_checkpoint_close(split);
    }
}

/* G42: the scale and the block size found for each weight. */
static void inspect(void **state)
{
    (void)state;
    const char *model = make_model(), *place = files_folder();
    static const char *const formats[] = {"block", "channel"};
    static const char *const scales[] = {"weight_scale_inv, 128 x 128", "weight_scale, per row"};
    for (int i = 0; i < 2; i++) {
        tool_result r =
            tool_run("", "quantize '%s' '%s/%s' --format %s", model, place, formats[i], formats[i]);
        tool_expect(&r, 0);
        tool_free(&r);
        r = tool_run("", "inspect '%s/%s'", place, formats[i]);
        tool_expect(&r, 0);
        expect_line(r.out, "model.layers.*.up.weight ", scales[i]);
        expect_line(r.out, "model.layers.*.up.weight ", " 2  200 x 130");
        tool_free(&r);
    }
    tool_result r = tool_run("", "inspect '%s/block' --json", place);
    cJSON *root = tool_json(&r);
    const cJSON *tensors = cJSON_GetObjectItem(root, "tensors"), *tensor;
    int weights = 0;
    cJSON_ArrayForEach(tensor, tensors)
    {
        if (cJSON_GetObjectItem(tensor, "scale") == NULL)
            continue;
        weights++;
        assert_int_equal(tool_number(tensor, "block_rows"), 128);
        assert_string_equal(tool_string(tensor, "stored_type"), "F8_E4M3");
    }
    assert_int_equal(weights, 3);
    assert_int_equal(cJSON_GetArraySize(tensors), 5 + 3);
    cJSON_Delete(root);
    tool_free(&r);

    const stored alone = {"w.weight", "F8_E4M3", 1, 2, 2, "abcd"};
    safetensors_write(files_path(place, "x.safetensors"), &alone, 1);
    r = tool_run("", "inspect '%s/x.safetensors'", place);
    tool_expect(&r, 1);
    expect_line(r.out, "w.weight", "missing");
    assert_non_null(strstr(r.out, "1 missing (weight 1), 0 wrong"));
    assert_non_null(strstr(r.err, "without a scale"));
    tool_free(&r);

    const stored odd[] = {{"w.weight", "F8_E4M3", 1, 2, 2, "abcd"},
                          {"w.weight_scale", "I32", 4, 1, 0, "abcd"}};
    safetensors_write(files_path(place, "x.safetensors"), odd, 2);
    r = tool_run("", "inspect '%s/x.safetensors'", place);
    tool_expect(&r, 1);
    expect_line(r.out, "w.weight ", "wrong");
    assert_non_null(strstr(r.out, "0 missing, 1 wrong (weight 1)"));
    tool_free(&r);
}

/* What a file calls its tensors moves no cursor, in tables and in messages; JSON has it exactly. */
static void names_with_control_characters(void **state)
{
    (void)state;
    /* In JSON: ESC, newline, DEL, and CSI as one character of UTF-8; a letter of two bytes. */
    static const char escaped[] = "a\\u001b[2J\\n\x7f\xc2\x9b\xc3\xa9.weight";
    static const char exact[] = "a\x1b[2J\n\x7f\xc2\x9b\xc3\xa9.weight";
    static const char shown[] = "a?[2J????\xc3\xa9.weight";
    const stored alone = {escaped, "F8_E4M3", 1, 2, 2, "abcd"};
    const char *path = files_path(files_folder(), "x.safetensors");
    safetensors_write(path, &alone, 1);
    tool_result r = tool_run("", "inspect '%s'", path);
    tool_expect(&r, 1);
    expect_line(r.out, shown, " 1  2 x 2");
    assert_non_null(strstr(r.err, shown));
    for (const char *text = r.out; text != NULL; text = text == r.out ? r.err : NULL) {
        assert_null(strchr(text, '\x1b'));
        assert_null(strchr(text, '\x7f'));
        assert_null(strstr(text, "\xc2\x9b"));
    }
    tool_free(&r);
    r = tool_run("", "inspect '%s' --json", path);
    tool_expect(&r, 1);
    cJSON *root = cJSON_Parse(r.out);
    const cJSON *tensor = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "tensors"), 0);
    assert_string_equal(tool_string(tensor, "name"), exact);
    cJSON_Delete(root);
    tool_free(&r);
}

/* Null announces nothing: transformers writes it for models in 16 bits. */
static void config_of_null(void **state)
{
    (void)state;
    const char *model = make_model(), *output = files_path(files_folder(), "out");
    files_write_text(files_path(model, "config.json"),
                     "{\"quantization_config\": null, \"compression_config\": null, \"a\": 1}");
    tool_result r = tool_run("", "quantize '%s' '%s'", model, output);
    tool_expect(&r, 0);
    tool_free(&r);
    size_t bytes;
    char *text = files_read(files_path(output, "config.json"), &bytes);
    cJSON *config = cJSON_Parse(text);
    assert_int_equal(cJSON_GetArraySize(config), 2);
    assert_true(cJSON_IsObject(cJSON_GetObjectItem(config, "quantization_config")));
    cJSON_Delete(config);
    free(text);
}

static void failures(void **state)
{
    (void)state;
    const char *model = make_model(), *place = files_folder();
    static const struct {
        const char *options, *message;
        int code;
    } cases[] = {
        {"--format row", ", not 'row'", 2},
        {"--keep 're:('", "keep pattern re:(", 1},
        {"--threads -1", "--threads", 2},
        {"third", "", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tool_result r = tool_run("", "quantize '%s' '%s/out' %s", model, place, cases[i].options);
        tool_expect(&r, cases[i].code);
        assert_string_equal(r.out, "");
        assert_non_null(strstr(r.err, cases[i].message));
        tool_free(&r);
    }
    tool_result r =
        tool_run("", "quantize '%s' '%s/out' --scales '%s/model.safetensors'", model, place, model);
    tool_expect(&r, 1); /* a file of other things */
    assert_non_null(strstr(r.err, "has no scale for any layer of"));
    tool_free(&r);
    r = tool_run("", "quantize '%s/none' '%s/out'", place, place);
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "deepgemm: quantising: cannot open"));
    tool_free(&r);
    assert_int_equal(files_count(place, ""), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help),
        cmocka_unit_test(json),
        cmocka_unit_test(tables_and_warnings),
        cmocka_unit_test(g39_parts_that_share_a_scale),
        cmocka_unit_test(inspect),
        cmocka_unit_test(names_with_control_characters),
        cmocka_unit_test(config_of_null),
        cmocka_unit_test(failures),
    };
    return test_run(argc, argv, tests);
}
