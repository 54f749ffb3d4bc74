/* SPDX-License-Identifier: MIT */
/* deepgemm scales: from a model's statistics to a checkpoint with static scales. */
#include "files.h"
#include "random.h"
#include "test.h"
#include "tiny_llama.h"
#include "tool.h"

#include <stdio.h>
#include <string.h>

static void help(void **state)
{
    (void)state;
    tool_result r = tool_run("", "scales --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "scales-help.txt");
    tool_free(&r);
}

/* calibrate, scales, quantize: the checkpoint announces and holds the static scales. */
static void from_statistics_to_a_checkpoint(void **state)
{
    (void)state;
    rng g = rng_new(1);
    tiny_llama m = tiny_llama_new(&g, 60, 20.0);
    const char *place = files_folder();
    tool_result r = tool_run("", "calibrate '%s' '%s/stats' --least 0 --held-out 0 --length 20",
                             m.folder, place);
    tool_expect(&r, 0);
    tool_free(&r);
    r = tool_run("",
                 "scales '%s' '%s/scales' --calibration '%s/stats' --inputs mse --weights mse "
                 "--weigh --strict --granularity tensor --json",
                 m.folder, place, place);
    cJSON *root = tool_json(&r);
    const cJSON *layer, *layers = cJSON_GetObjectItem(root, "layers");
    assert_int_equal(cJSON_GetArraySize(layers), 7 * TINY_BLOCKS);
    cJSON_ArrayForEach(layer, layers)
    {
        assert_string_equal(tool_string(cJSON_GetObjectItem(layer, "input"), "origin"), "layer");
        assert_true(tool_number(cJSON_GetObjectItem(layer, "input"), "scale") > 0.0);
        assert_true(tool_number(cJSON_GetObjectItem(layer, "weight"), "relative_error") < 0.04);
        assert_true(tool_number(cJSON_GetObjectItem(layer, "input"), "relative_error") < 0.04);
    }
    tool_free(&r);
    r = tool_run("", "quantize '%s' '%s/fp8' --format ct-tensor --scales '%s/scales'", m.folder,
                 place, place);
    tool_expect(&r, 0);
    tool_free(&r);
    dg_checkpoint *output;
    dg_tensor t;
    assert_ok(dg_checkpoint_open(&output, files_path(place, "fp8")));
    cJSON_ArrayForEach(layer, layers)
    {
        char name[100];
        float scale;
        snprintf(name, sizeof name, "%s.input_scale", tool_string(layer, "name"));
        assert_ok(dg_checkpoint_find(output, name, &t));
        memcpy(&scale, t.data, sizeof scale);
        assert_true(scale == (float)tool_number(cJSON_GetObjectItem(layer, "input"), "scale"));
    }
    dg_checkpoint_close(output);
    cJSON_Delete(root);
    tiny_llama_free(&m);
}

static void tables_warnings_and_mistakes(void **state)
{
    (void)state;
    rng g = rng_new(2);
    tiny_llama m = tiny_llama_new(&g, 20, 1.0);
    const char *place = files_folder();
    tool_result r = tool_run("", "scales '%s' '%s/scales' --keep down_proj", m.folder, place);
    tool_expect(&r, 0);
    assert_string_equal(r.err, "");
    assert_non_null(strstr(r.out, "model.layers.*.mlp.up_proj"));
    assert_null(strstr(r.out, "down_proj"));
    assert_non_null(strstr(r.out, ": scales of 12 layers"));
    tool_free(&r);

    /* Statistics of nothing: every layer is without an input scale, and is named. */
    dg_statistics *none;
    assert_ok(dg_statistics_create(&none, NULL));
    assert_ok(dg_statistics_save(none, files_path(place, "none")));
    dg_statistics_destroy(none);
    r = tool_run("", "scales '%s' '%s/scales' --calibration '%s/none'", m.folder, place, place);
    tool_expect(&r, 0);
    assert_non_null(strstr(r.err, "model.layers.1.mlp.down_proj is not in the statistics"));
    tool_free(&r);

    static const struct {
        const char *options, *message;
        int code;
    } cases[] = {
        {"--strict", "--strict needs --calibration", 2},
        {"--weigh", "--weigh needs --calibration", 2},
        {"--percentile 101", "--percentile takes", 2},
        {"--weights median", "--weights takes amax|percentile|mse|kl", 2},
        {"--calibration /nowhere", "reading statistics", 1},
        {"--keep mlp --keep self_attn", "no 16-bit layer", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        r = tool_run("", "scales '%s' '%s/no' %s", m.folder, place, cases[i].options);
        tool_expect(&r, cases[i].code);
        if (strstr(r.err, cases[i].message) == NULL)
            fail_msg("no '%s' in: %s", cases[i].message, r.err);
        tool_free(&r);
    }
    assert_false(files_exist(files_path(place, "no")));
    tiny_llama_free(&m);
}

/* Ctrl-C at any moment leaves the whole file or nothing. */
static void interrupted(void **state)
{
    (void)state;
    rng g = rng_new(3);
    tiny_llama m = tiny_llama_new(&g, 20, 1.0);
    const char *place = files_folder();
    for (int i = 0; i < 12; i++) {
        char limit[64];
        snprintf(limit, sizeof limit, "timeout -s INT %.2f", 0.01 * (1 + i * i));
        tool_result r =
            tool_run(limit, "scales '%s' '%s/s' --weights mse --granularity mx", m.folder, place);
        assert_int_equal(files_count(place, ""), files_exist(files_path(place, "s")));
        files_remove(files_path(place, "s"));
        tool_free(&r);
    }
    tiny_llama_free(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help),
        cmocka_unit_test(from_statistics_to_a_checkpoint),
        cmocka_unit_test(tables_warnings_and_mistakes),
        cmocka_unit_test(interrupted),
    };
    return test_run(argc, argv, tests);
}
