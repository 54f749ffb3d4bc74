/* SPDX-License-Identifier: MIT */
/* deepgemm smooth: the model that it writes computes the same, bit for bit, with other activations.
 */
#include "files.h"
#include "random.h"
#include "test.h"
#include "tiny_llama.h"
#include "tool.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static dg_statistics *statistics_of(const char *folder, const char *text)
{
    const char *path = files_path(files_folder(), "stats");
    tool_result r = tool_run("",
                             "calibrate '%s' '%s' --text '%s/tokens.safetensors' --held-out 0 "
                             "--least 0 --length 20",
                             folder, path, text);
    tool_expect(&r, 0);
    tool_free(&r);
    dg_statistics *s;
    assert_ok(dg_statistics_load(&s, path));
    return s;
}

/*
 * Were anything rounded, or folded into the wrong place, some layer would meet other values. So the
 * ratio of what each feature meets before and after must be a power of two, everywhere.
 */
static void the_same_model(void **state)
{
    (void)state;
    rng g = rng_new(1);
    tiny_llama m = tiny_llama_new(&g, 60, 3000.0);
    const char *output = files_path(files_folder(), "smooth");
    tool_result r =
        tool_run("", "smooth '%s' '%s' --length 20 --tokens 60 --json", m.folder, output);
    cJSON *root = tool_json(&r);
    assert_int_equal(tool_number(root, "rounded"), 0);
    assert_int_equal(tool_number(root, "tokens"), 60);
    const cJSON *row, *groups = cJSON_GetObjectItem(root, "groups");
    assert_int_equal(cJSON_GetArraySize(groups), 4 * TINY_BLOCKS);
    int smoothed = 0;
    cJSON_ArrayForEach(row, groups)
    {
        assert_true(tool_number(row, "relative_error") <=
                    tool_number(row, "relative_error_before"));
        smoothed += tool_number(row, "strength") >= 0.0;
    }
    assert_true(smoothed > 0);
    cJSON_Delete(root);
    tool_free(&r);

    dg_statistics *before = statistics_of(m.folder, m.folder),
                  *after = statistics_of(output, m.folder);
    dg_observed x = DG_OBSERVED_INIT, y = DG_OBSERVED_INIT;
    int moved = 0;
    for (int64_t i = 0; dg_statistics_layer_at(before, i, &x) == DG_OK; i++) {
        assert_ok(dg_statistics_layer_at(after, i, &y));
        for (int64_t c = 0; c < x.features; c++) {
            int exponent;
            assert_true(x.amaxes[c] > 0.0f);
            float ratio = x.amaxes[c] / y.amaxes[c];
            assert_true(frexpf(ratio, &exponent) == 0.5f);
            assert_true(fabs(x.squares[c] / y.squares[c] / ((double)ratio * (double)ratio) - 1.0) <
                        1e-12);
            moved += ratio != 1.0f;
        }
    }
    assert_true(moved > 0);
    dg_statistics_destroy(before);
    dg_statistics_destroy(after);
    tiny_llama_free(&m);
}

static void help_text_and_mistakes(void **state)
{
    (void)state;
    rng g = rng_new(2);
    tiny_llama m = tiny_llama_new(&g, 20, 100.0);
    const char *place = files_folder();
    tool_result r = tool_run("", "smooth --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "smooth-help.txt");
    tool_free(&r);
    for (int round = 0; round < 2; round++) {
        r = tool_run("", "smooth '%s' '%s/out' --recipe channel %s", m.folder, place,
                     round == 0 ? "" : "--force");
        tool_expect(&r, 0);
        assert_string_equal(r.err, "");
        assert_non_null(strstr(r.out, "q_proj, k_proj, v_proj"));
        assert_non_null(strstr(r.out, "smoothed on 20 tokens; 0 elements were rounded"));
        tool_free(&r);
    }
    static const struct {
        const char *arguments, *message;
        int code;
    } cases[] = {
        {"'%s' '%s/out'", "out", 1},
        {"'%s' '%s/new' --length 0", "--length must be at least 1", 2},
        {"'%s' '%s/new' --recipe mx", "--recipe takes tensor|channel|block", 2},
        {"'%s/no' '%s/new'", "config.json: No such file or directory", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, cases[i].arguments, m.folder, place);
        r = tool_run("", "smooth %s", arguments);
        tool_expect(&r, cases[i].code);
        if (strstr(r.err, cases[i].message) == NULL)
            fail_msg("no '%s' in: %s", cases[i].message, r.err);
        tool_free(&r);
    }
    assert_false(files_exist(files_path(place, "new")));
    tiny_llama_free(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_model),
        cmocka_unit_test(help_text_and_mistakes),
    };
    return test_run(argc, argv, tests);
}
