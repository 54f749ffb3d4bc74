/* SPDX-License-Identifier: MIT */
/* deepgemm mix: budgets are met, sums add up, and what is measured for one layer is what it does.
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

enum { LAYERS = 7 * TINY_BLOCKS };

typedef struct fixture {
    tiny_llama model;
} fixture;

static int make(void **state)
{
    static fixture f;
    rng r = rng_new(1);
    f.model = tiny_llama_new(&r, 24, 8.0);
    *state = &f;
    return 0;
}

static int release(void **state)
{
    tiny_llama_free(&((fixture *)*state)->model);
    return 0;
}

static cJSON *mix(void **state, const char *options)
{
    const fixture *f = *state;
    tool_result r = tool_run("", "mix '%s' --json --length 12 %s", f->model.folder, options);
    cJSON *root = tool_json(&r);
    tool_free(&r);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "layers")), LAYERS);
    return root;
}

static const char *chosen_of(const cJSON *layer)
{
    return tool_string(layer, "chosen");
}

static double number(const cJSON *layer, const char *precision, const char *what)
{
    const cJSON *precisions = cJSON_GetObjectItem(layer, "precisions");
    return tool_number(cJSON_GetObjectItem(precisions, precision), what);
}

/* The totals are sums over the layers' choices; worst layers come first. */
static void assert_adds_up(const cJSON *root)
{
    const cJSON *layer;
    double bytes = 0.0, divergence = 0.0, last = INFINITY;
    int wide = 0;
    cJSON_ArrayForEach(layer, cJSON_GetObjectItem(root, "layers"))
    {
        const cJSON *one;
        double worst = 0.0;
        bytes += number(layer, chosen_of(layer), "bytes");
        divergence += number(layer, chosen_of(layer), "divergence");
        wide += strcmp(chosen_of(layer), "16 bits") == 0;
        cJSON_ArrayForEach(one, cJSON_GetObjectItem(layer, "precisions")) worst =
            fmax(worst, tool_number(one, "divergence"));
        assert_true(worst <= last);
        last = worst;
    }
    assert_int_equal(wide, cJSON_GetArraySize(cJSON_GetObjectItem(root, "keep")));
    assert_true(bytes == tool_number(root, "bytes_after"));
    assert_true(fabs(divergence - tool_number(root, "divergence_predicted")) <=
                1e-12 + 1e-9 * divergence);
}

static void test_budget_of_bytes(void **state)
{
    cJSON *root = mix(state, "--size 100");
    assert_adds_up(root);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "keep")), LAYERS);
    assert_true(tool_number(root, "divergence_measured") == 0.0); /* nothing was changed */
    assert_true(tool_number(root, "bytes_after") == tool_number(root, "bytes_before"));
    cJSON_Delete(root);

    root = mix(state, "--size 60 --recipe tensor --recipe channel");
    assert_adds_up(root);
    assert_true(tool_number(root, "bytes_after") <= 0.6 * tool_number(root, "bytes_before"));
    int kept = cJSON_GetArraySize(cJSON_GetObjectItem(root, "keep"));
    assert_true(kept > 0 && kept < LAYERS);
    double measured = tool_number(root, "divergence_measured");
    double predicted = tool_number(root, "divergence_predicted");
    /* The errors of the layers add up or cancel: 0.30 to 1.51 times, over 60 seeds. */
    assert_true(measured > 0.1 * predicted && measured < 10.0 * predicted);
    const cJSON *layer;
    cJSON_ArrayForEach(layer, cJSON_GetObjectItem(root, "layers"))
    {
        double n_k = number(layer, "16 bits", "bytes") / 2.0;
        assert_true(number(layer, "tensor", "bytes") == n_k + 4.0);
        assert_true(number(layer, "channel", "bytes") > n_k + 4.0);
        assert_true(number(layer, "tensor", "divergence") > 0.0);
    }
    cJSON_Delete(root);
}

/* With one layer in FP8 and no other, the model's divergence is the one measured for it. */
static void test_budget_of_error(void **state)
{
    cJSON *root = mix(state, "--error 1000");
    assert_adds_up(root);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "keep")), 0);
    const cJSON *layer, *layers = cJSON_GetObjectItem(root, "layers");
    double least = INFINITY;
    cJSON_ArrayForEach(layer, layers) least = fmin(least, number(layer, "block", "divergence"));
    cJSON_Delete(root);

    char options[80];
    snprintf(options, sizeof options, "--error %.17g", 1.000001 * least);
    root = mix(state, options);
    assert_adds_up(root);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "keep")), LAYERS - 1);
    double measured = tool_number(root, "divergence_measured");
    assert_true(fabs(measured - least) <= 1e-9 * least);
    cJSON_Delete(root);
}

static void test_output_and_text(void **state)
{
    const fixture *f = *state;
    const char *keep = files_path(files_folder(), "keep.txt");
    tool_result r =
        tool_run("", "mix '%s' --size 75 --length 12 --output '%s'", f->model.folder, keep);
    tool_expect(&r, 0);
    size_t bytes;
    char *text = files_read(keep, &bytes);
    int lines = 0;
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"), lines++)
        assert_true(strncmp(line, "model.layers.", 13) == 0);
    char expected[64];
    snprintf(expected, sizeof expected, "\n%d of %d layers keep 16 bits", lines, LAYERS);
    assert_true(lines > 0);
    assert_non_null(strstr(r.out, expected));
    free(text);
    tool_free(&r);

    /* Who reads the table only in part does not lose the file. */
    const char *other = files_path(files_folder(), "keep.txt");
    r = tool_run("", "mix '%s' --size 75 --length 12 --json --output '%s' | true", f->model.folder,
                 other);
    tool_free(&r);
    text = files_read(other, &bytes);
    free(text);

    /* quantize takes that file: as many layers stay in 16 bits */
    r = tool_run("", "quantize '%s' '%s/fp8' --keep '@%s' --json", f->model.folder, files_folder(),
                 keep);
    cJSON *root = tool_json(&r);
    int kept = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "keep")) kept +=
        (int)tool_number(row, "matches");
    assert_int_equal(kept, lines);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "keep")), lines);
    cJSON_Delete(root);
    tool_free(&r);
    r = tool_run("", "quantize '%s' '%s/fp8' --keep @/nowhere", f->model.folder, files_folder());
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "/nowhere: No such file"));
    tool_free(&r);
    r = tool_run("", "mix --help");
    tool_expect(&r, 0);
    tool_golden(r.out, "mix-help.txt");
    tool_free(&r);
}

static void test_mistakes(void **state)
{
    const fixture *f = *state;
    static const struct {
        const char *options, *message;
        int code;
    } cases[] = {
        {"", "either --size or --error", 2},
        {"--size 50 --error 1", "either --size or --error", 2},
        {"--size 50 --recipe row", "--recipe takes tensor, channel or block", 2},
        {"--size 50 --length 0", "--length must be at least 1", 2},
        {"--size 10", "least possible", 1},
        {"--size 60 --output /nowhere/keep", "cannot write '/nowhere/keep'", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tool_result r = tool_run("", "mix '%s' %s", f->model.folder, cases[i].options);
        tool_expect(&r, cases[i].code);
        if (strstr(r.err, cases[i].message) == NULL)
            fail_msg("no '%s' in: %s", cases[i].message, r.err);
        tool_free(&r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget_of_bytes),
        cmocka_unit_test(test_budget_of_error),
        cmocka_unit_test(test_output_and_text),
        cmocka_unit_test(test_mistakes),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, make, release);
}
