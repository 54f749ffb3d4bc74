/* SPDX-License-Identifier: MIT */
/* deepgemm calibrate: what it collects from a model, merges, judges on held-out text and warns of.
 */
#include "files.h"
#include "random.h"
#include "test.h"
#include "tiny_llama.h"
#include "tool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dg_statistics *load(const char *path)
{
    dg_statistics *s;
    assert_ok(dg_statistics_load(&s, path));
    return s;
}

static dg_observed observed(const dg_statistics *s, const char *layer)
{
    dg_observed o = DG_OBSERVED_INIT;
    assert_ok(dg_statistics_layer(s, layer, &o));
    return o;
}

static void help(void **state)
{
    (void)state;
    tool_result r = tool_run("", "calibrate --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "calibrate-help.txt");
    tool_free(&r);
}

/* What the first layer meets can be computed by hand: the normed embeddings of the text. */
static void statistics_of_the_first_layer(void **state)
{
    (void)state;
    rng g = rng_new(1);
    tiny_llama m = tiny_llama_new(&g, 100, 30.0);
    const char *output = files_path(files_folder(), "s.safetensors");
    tool_result r = tool_run("", "calibrate '%s' '%s' --held-out 0 --length 30 --json --least 90",
                             m.folder, output);
    cJSON *root = tool_json(&r);
    assert_int_equal(tool_number(root, "tokens"), 90); /* 10 do not fill a piece */
    assert_int_equal(tool_number(root, "held_out_tokens"), 0);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "layers")), 7 * TINY_BLOCKS);
    cJSON_Delete(root);
    tool_free(&r);

    dg_statistics *s = load(output);
    dg_observed o = observed(s, "model.layers.0.self_attn.q_proj");
    assert_int_equal(o.tokens, 90);
    assert_int_equal(o.features, TINY_HIDDEN);
    assert_int_equal(observed(s, "model.layers.1.mlp.down_proj").features, TINY_INNER);
    for (int c = 0; c < TINY_HIDDEN; c++) {
        double amax = 0.0, sum = 0.0;
        for (int t = 0; t < 90; t++) {
            const float *row = m.embedding + (size_t)m.ids[t] * TINY_HIDDEN;
            double squares = 0.0;
            for (int i = 0; i < TINY_HIDDEN; i++)
                squares += (double)row[i] * (double)row[i];
            double value =
                (double)row[c] / sqrt(squares / TINY_HIDDEN + 1e-5) * (double)m.first_norm[c];
            amax = fmax(amax, fabs(value));
            sum += value * value;
        }
        assert_true(fabs((double)o.amaxes[c] - amax) <= 1e-6 * amax);
        assert_true(fabs(o.squares[c] - sum) <= 1e-5 * sum);
    }
    dg_statistics_destroy(s);
    tiny_llama_free(&m);
}

/* Two runs over halves of the text, merged, equal one run over all of it. */
static void merged_runs(void **state)
{
    (void)state;
    enum { LENGTH = 16, TOKENS = 6 * LENGTH };
    rng g = rng_new(2);
    tiny_llama m = tiny_llama_new(&g, TOKENS, 10.0);
    const char *place = files_folder();
    for (int half = 0; half < 2; half++) {
        char name[32];
        snprintf(name, sizeof name, "text%d", half);
        safetensors_write(
            files_path(place, name),
            &(stored){"ids", "I32", 4, 3, LENGTH, m.ids + (ptrdiff_t)(half * TOKENS / 2)}, 1);
        tool_result r = tool_run("",
                                 "calibrate '%s' '%s/part%d' --text '%s/text%d' --held-out 0 "
                                 "--least 0",
                                 m.folder, place, half, place, half);
        tool_expect(&r, 0);
        assert_string_equal(r.err, "");
        tool_free(&r);
    }
    tool_result r = tool_run("", "calibrate '%s' '%s/whole' --held-out 0 --length %d --least 0",
                             m.folder, place, LENGTH);
    tool_expect(&r, 0);
    assert_non_null(strstr(r.out, "model.layers.*.mlp.down_proj"));
    tool_free(&r);
    r = tool_run("", "calibrate '%s/merged' --merge '%s/part0' --merge '%s/part1' --json --least 0",
                 place, place, place);
    cJSON *root = tool_json(&r);
    assert_null(cJSON_GetObjectItem(root, "model"));
    cJSON_Delete(root);
    tool_free(&r);
    dg_statistics *whole = load(files_path(place, "whole"));
    dg_statistics *merged = load(files_path(place, "merged"));
    dg_observed x = DG_OBSERVED_INIT, y = DG_OBSERVED_INIT;
    for (int64_t i = 0; i < 7 * TINY_BLOCKS; i++) {
        assert_ok(dg_statistics_layer_at(whole, i, &x));
        assert_ok(dg_statistics_layer_at(merged, i, &y));
        assert_string_equal(x.layer, y.layer);
        assert_true(x.tokens == TOKENS && y.tokens == TOKENS);
        assert_memory_equal(x.amaxes, y.amaxes, (size_t)x.features * sizeof *x.amaxes);
    }
    dg_statistics_destroy(whole);
    dg_statistics_destroy(merged);
    tiny_llama_free(&m);
}

/* G37: too little data is said, and what clips in the text held out is counted. */
static void little_data_is_noticed(void **state)
{
    (void)state;
    enum { COUNT = 60 };
    rng g = rng_new(3);
    tiny_llama m = tiny_llama_new(&g, COUNT, 1.0);
    const char *place = files_folder();
    tool_result r = tool_run("", "calibrate '%s' '%s/s' --tokens 40 --length 10 --held-out 75",
                             m.folder, place);
    tool_expect(&r, 0);
    assert_non_null(strstr(r.out, "statistics of 10 tokens; 30 others were held out"));
    assert_non_null(strstr(r.err, "only 10 tokens"));
    assert_non_null(strstr(r.err, "beyond all that it was calibrated on"));
    tool_free(&r);

    r = tool_run("", "calibrate '%s' '%s/s' --tokens 40 --length 10 --held-out 75 --least 0 --json",
                 m.folder, place);
    tool_expect(&r, 0);
    cJSON *root = cJSON_Parse(r.out); /* the warning of what clips goes to stderr */
    assert_non_null(root);
    const cJSON *layer, *layers = cJSON_GetObjectItem(root, "layers");
    double clipped = 0.0;
    cJSON_ArrayForEach(layer, layers)
    {
        static const char *const names[] = {"amax", "percentile", "mse", "kl"};
        const cJSON *methods = cJSON_GetObjectItem(layer, "methods");
        for (int i = 0; i < 4; i++) {
            const cJSON *method = cJSON_GetObjectItem(methods, names[i]);
            double scale = tool_number(method, "scale");
            assert_true(scale > 0.0 && isfinite(scale));
            const cJSON *seen = cJSON_GetObjectItem(method, "seen");
            const cJSON *held_out = cJSON_GetObjectItem(method, "held_out");
            if (i == 0) {
                assert_true(tool_number(seen, "clipped") == 0.0);
                clipped += tool_number(held_out, "clipped");
            }
            assert_true(tool_number(held_out, "relative_error") > 0.0);
        }
        const cJSON *pair;
        double count = 0.0;
        cJSON_ArrayForEach(pair, cJSON_GetObjectItem(layer, "histogram")) count +=
            cJSON_GetArrayItem(pair, 1)->valuedouble;
        assert_true(count == 10 * tool_number(layer, "features"));
    }
    assert_true(clipped > 0.0);
    cJSON_Delete(root);
    tool_free(&r);
    tiny_llama_free(&m);
}

static void mistakes(void **state)
{
    (void)state;
    rng g = rng_new(4);
    tiny_llama m = tiny_llama_new(&g, 20, 1.0);
    static const struct {
        const char *arguments, *message;
        int code;
    } cases[] = {
        {"only-an-output", "needs a model, or files to --merge", 2},
        {"a b c", "does not take 'c'", 2},
        {"'%s' s --length 0", "--length must be at least 1", 2},
        {"'%s' s --held-out 100", "--held-out takes 0 to less than 100", 2},
        {"'%s' s --percentile 0", "--percentile takes more than 0", 2},
        {"'%s' s --tokens 5 --length 10", "make no piece of 10", 1},
        {"'%s' s --text /nowhere", "opening the text", 1},
        {"'%1$s' s --text '%1$s/empty.safetensors'", "ids hold no token", 1},
        {"'%s' /nowhere/s", "/nowhere/s", 1},
        {"'%s' s --bits 9", "options.bits", 1},
        {"s --merge /nowhere", "reading statistics", 1},
        {"s --merge '%s/model.safetensors'", "not a file of statistics", 1},
    };
    safetensors_write(files_path(m.folder, "empty.safetensors"),
                      &(stored){"ids", "I32", 4, 0, 0, m.ids}, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, cases[i].arguments, m.folder);
        tool_result r = tool_run("", "calibrate %s", arguments);
        tool_expect(&r, cases[i].code);
        if (strstr(r.err, cases[i].message) == NULL)
            fail_msg("no '%s' in: %s", cases[i].message, r.err);
        tool_free(&r);
    }
    assert_false(files_exist("s"));
    tiny_llama_free(&m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help),        cmocka_unit_test(statistics_of_the_first_layer),
        cmocka_unit_test(merged_runs), cmocka_unit_test(little_data_is_noticed),
        cmocka_unit_test(mistakes),
    };
    return test_run(argc, argv, tests);
}
