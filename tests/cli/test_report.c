/* SPDX-License-Identifier: MIT */
/* deepgemm report: well-formed pages with everything in them, from any JSON, however hostile. */
#include "files.h"
#include "random.h"
#include "test.h"
#include "tiny_llama.h"
#include "tool.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- looking at a page --------------------------------------------------------------- */

static int count_of(const char *text, const char *part)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        count++;
    return count;
}

/* Every element that opens closes, in order; void elements and those that end in "/>" need not. */
static void expect_balanced(const char *page)
{
    static const char *const empty[] = {"meta", "br", "!DOCTYPE"};
    enum { most_depth = 64, name_bytes = 32 };
    char open[most_depth][name_bytes];
    int depth = 0;
    for (const char *at = strchr(page, '<'); at != NULL; at = strchr(at + 1, '<')) {
        const char *end = strchr(at, '>');
        assert_non_null(end);
        bool closing = at[1] == '/';
        char name[name_bytes];
        size_t length = strcspn(at + 1 + closing, " />\n");
        assert_true(length > 0 && length < name_bytes);
        memcpy(name, at + 1 + closing, length);
        name[length] = '\0';
        bool is_empty = end[-1] == '/';
        for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
            is_empty = is_empty || strcmp(name, empty[i]) == 0;
        if (closing) {
            if (depth == 0 || strcmp(open[depth - 1], name) != 0)
                fail_msg("</%s> closes <%s>", name, depth > 0 ? open[depth - 1] : "nothing");
            depth--;
        } else if (!is_empty) {
            assert_true(depth < most_depth);
            memcpy(open[depth++], name, length + 1);
        }
    }
    assert_int_equal(depth, 0);
}

/* Nothing is fetched from anywhere, and nothing runs. */
static void expect_self_contained(const char *page)
{
    static const char *const forbidden[] = {
        "http:",   "https:", "//",      "src=",    "url(",    "@import",
        "<script", "<link",  "<iframe", " onload", " onerror"};
    for (size_t i = 0; i < sizeof forbidden / sizeof *forbidden; i++)
        if (strstr(page, forbidden[i]) != NULL)
            fail_msg("the page has '%s'", forbidden[i]);
    assert_non_null(strstr(page, "width=device-width"));
    assert_non_null(strstr(page, "prefers-color-scheme:dark"));
}

/* Places are within the plot, so no NaN and nothing that lies outside. */
static void expect_places_in_range(const char *page)
{
    int places = 0;
    for (const char *at = page; (at = strchr(at, '%')) != NULL; at++) {
        const char *start = at;
        while (start > page &&
               (isdigit((unsigned char)start[-1]) || start[-1] == '.' || start[-1] == '-'))
            start--;
        if (start > page && start[-1] == '\'' && at[1] == '\'') {
            double place = strtod(start, NULL);
            assert_true(place >= 0 && place <= 100.001);
            places++;
        }
    }
    assert_null(strstr(page, "nan%"));
    assert_null(strstr(page, "inf%"));
    assert_true(places > 0);
}

/* The page of JSON texts, NULL at the end, written to files first. */
static char *page_of(const char *first, const char *second)
{
    const char *folder = files_folder();
    const char *a = files_path(folder, "first.json"), *b = files_path(folder, "second.json");
    const char *page = files_path(folder, "page.html");
    files_write_text(a, first);
    if (second != NULL)
        files_write_text(b, second);
    tool_result r = tool_run("", "report %s %s -o %s", a, second != NULL ? b : "", page);
    tool_expect(&r, 0);
    assert_string_equal(r.out, "");
    tool_free(&r);
    size_t bytes;
    char *text = files_read(page, &bytes);
    expect_balanced(text);
    expect_self_contained(text);
    return text;
}

/* ---- tests --------------------------------------------------------------------------- */

static const char compare_json[] =
    "{\"command\": \"compare\", \"tokens\": 128, \"whole_model\": {\"top1_agreement\": 0.9375},"
    "\"tensors\": ["
    "{\"name\": \"model.layers.1.mlp.up_proj.weight\", \"n\": 8, \"output\": {\"relative_error\": "
    "0.04, \"snr_db\": null}, \"caused_by\": {\"weights\": {\"share\": 0.75}, \"activations\": "
    "{\"share\": 0.26}, \"accumulation\": {\"share\": -0.01}}},"
    "{\"name\": \"model.layers.0.mlp.up_proj.weight\", \"n\": 8, \"output\": {\"relative_error\": "
    "0.03}, \"caused_by\": {\"weights\": {\"share\": 0.5}, \"activations\": {\"share\": 0.5}, "
    "\"accumulation\": {\"share\": 0}}},"
    "{\"name\": \"model.layers.0.mlp.down_proj.weight\", \"n\": 8, \"output\": "
    "{\"relative_error\": "
    "0.02}, \"caused_by\": {\"weights\": {\"share\": 0.5}, \"activations\": {\"share\": 0.5}, "
    "\"accumulation\": {\"share\": 0}}}],"
    "\"not_compared\": [\"one is missing\"]}";

/* A layer whose output became NaN is not drawn as if it had its weight's small error. */
static void spoiled_layers(void **state)
{
    (void)state;
    char *page = page_of(
        "{\"command\": \"compare\", \"tensors\": ["
        "{\"name\": \"a.2.up.weight\", \"weight\": {\"relative_error\": 0.5, \"spoiled\": 0}, "
        "\"output\": {\"relative_error\": null, \"spoiled\": 3}, \"caused_by\": {\"weights\": "
        "{\"share\": 1}}},"
        "{\"name\": \"a.1.up.weight\", \"output\": {\"relative_error\": 0.04, \"spoiled\": 0}, "
        "\"caused_by\": {\"weights\": {\"share\": 1}}},"
        "{\"name\": \"a.0.up.weight\", \"output\": {\"relative_error\": 0.03, \"spoiled\": 0}, "
        "\"caused_by\": {\"weights\": {\"share\": 1}}}]}",
        NULL);
    expect_places_in_range(page);
    assert_int_equal(count_of(page, "<circle"), 2);
    assert_int_equal(count_of(page, "Not shown: 1 with NaN or infinities."), 1);
    assert_int_equal(count_of(page, "NaN, Inf"), 1);
    assert_null(strstr(page, "50.00 %"));
    free(page);
}

static void errors_and_their_causes(void **state)
{
    (void)state;
    char *page = page_of(compare_json, NULL);
    expect_places_in_range(page);
    assert_int_equal(count_of(page, "<circle"), 3);          /* a point for each layer */
    assert_int_equal(count_of(page, "<rect"), 3 * 3);        /* a box for each cause   */
    assert_int_equal(count_of(page, "<tr>"), 1 + 3);         /* titles and rows        */
    assert_int_equal(count_of(page, "<li class='s"), 2 + 3); /* two kinds, three causes */
    assert_non_null(strstr(page, "mlp.up_proj 1: 4 %"));
    assert_non_null(strstr(page, "weights: 75.0 % of the error"));
    assert_non_null(strstr(page, "whole_model.top1_agreement"));
    assert_non_null(strstr(page, "<h2>compare: first.json</h2>"));
    assert_non_null(strstr(page, "one is missing"));
    /* the worst layer's error is at 1/1.1 of the height, and a third of it is 3/4 of that */
    assert_non_null(strstr(page, "cy='9.09%'"));
    free(page);
}

static void speed_beside_the_floor(void **state)
{
    (void)state;
    char *page = page_of(
        "{\"rows\": [{\"case\": \"block128 1 64 64\", \"us\": 4, \"floor_us\": 3, \"peer_us\": "
        "{\"peer\": 6}}, {\"case\": \"block128 2 64 64\", \"us\": 8, \"floor_us\": 4, "
        "\"peer_us\": {}}]}",
        NULL);
    expect_places_in_range(page);
    assert_int_equal(count_of(page, "<rect"), 2);
    assert_int_equal(count_of(page, "<circle"), 1);
    assert_non_null(strstr(page, "width='75.00%'"));
    assert_non_null(strstr(page, "width='50.00%'"));
    assert_non_null(strstr(page, "cx='50.00%'")); /* the peer: 3 of 6 */
    free(page);
}

static void utilisation_by_depth(void **state)
{
    (void)state;
    char *page = page_of(
        "{\"rows\": [{\"case\": \"block128 1 2 3\", \"main_loop\": \"wide\", \"stages\": 3, "
        "\"floor_share\": 0.75}, {\"case\": \"block128 1 2 3\", \"main_loop\": \"wide\", "
        "\"stages\": 2, \"floor_share\": 0.5}, {\"case\": \"block128 1 2 3\", \"main_loop\": "
        "\"tall\", \"stages\": 2, \"floor_share\": 0.25}, {\"case\": \"block128 1 2 3\", "
        "\"floor_share\": 0.8}, {\"case\": \"mx 1 2 3\", \"main_loop\": \"wide\", \"stages\": "
        "2, \"floor_share\": 0.125}, {\"case\": \"none\", \"main_loop\": \"x\", \"stages\": 2}]}",
        NULL);
    expect_places_in_range(page);
    assert_int_equal(count_of(page, "<figure>"), 2); /* one for each case */
    assert_int_equal(count_of(page, "<circle"), 4);
    assert_int_equal(count_of(page, "<line class='s"), 1); /* from 2 stages to 3 */
    assert_non_null(strstr(page, "wide 3: 75 %"));
    assert_non_null(strstr(page, "cx='66.67%' cy='25.00%'")); /* 3 on an axis from 1 to 4 */
    free(page);
}

static void histograms_with_clip_points(void **state)
{
    (void)state;
    char *page = page_of(
        "{\"layers\": [{\"name\": \"model.layers.0.mlp.up_proj\", \"histogram\": [[0.25, 10], [1, "
        "1000], [4, 1]], \"methods\": {\"amax\": {\"scale\": 0.01}, \"mse\": {\"scale\": "
        "0.005}}}]}",
        NULL);
    expect_places_in_range(page);
    assert_int_equal(count_of(page, "<rect"), 3);
    assert_int_equal(count_of(page, "class='rule "), 2);
    assert_non_null(strstr(page, "amax clips at 4.48"));
    assert_non_null(strstr(page, "mse clips at 2.24"));
    free(page);
}

static void methods_by_granularity(void **state)
{
    (void)state;
    char *page =
        page_of("{\"cells\": [{\"scales\": \"a . b\", \"method\": \"absmax\", "
                "\"fp8_perplexity\": 30, \"top1_agreement\": 0.9}, {\"scales\": \"a . b\", "
                "\"method\": \"MSE\", \"fp8_perplexity\": 1e9, \"top1_agreement\": 1}]}",
                NULL);
    expect_places_in_range(page);
    assert_int_equal(count_of(page, "<circle"), 2 * 2); /* two plots of two points */
    assert_non_null(strstr(page, "best 30"));
    free(page);
}

/* ---- what the tool writes ------------------------------------------------------------ */

typedef struct command_run {
    const char *command;
    const char *arguments; /* %1$s: the model's folder, %2$s: that of what commands write */
    const char *plots[3];
} command_run;

/* Every command that has --json but tune, which needs a GPU: the whole way of a model. */
static const command_run runs[] = {
    {"info", "", {NULL}},
    {"calibrate", "%1$s %2$s/stats --length 12", {"Magnitudes and clip points"}},
    {"scales",
     "%1$s %2$s/scales --calibration %2$s/stats --granularity tensor",
     {"Error by layer"}},
    {"smooth", "%1$s %2$s/smooth --length 12", {"Error by layer"}},
    {"mix", "%1$s --size 75 --length 12", {"Divergence by layer"}},
    {"quantize", "%1$s %2$s/fp8 --format ct-tensor --scales %2$s/scales", {"Error by layer"}},
    {"convert", "%2$s/fp8 %2$s/blocks --to ct-mxfp8", {"Error by layer"}},
    {"inspect", "%2$s/blocks", {NULL}},
    {"compare",
     "%1$s %2$s/fp8 --text %1$s/tokens.safetensors",
     {"Error by layer", "What caused the error"}},
    {"accuracy",
     "%1$s --text %1$s/tokens.safetensors --calibration %1$s/tokens.safetensors --method absmax",
     {"Other predictions", "Error of the logits", "Perplexity"}},
    {"demo", "--model %1$s --tokens 12", {"Error by layer"}},
    {"bench", "--m 1 --n 64 --k 64 --seconds 0.001 --no-peers", {"Speed against the floor"}},
};
enum { run_count = sizeof runs / sizeof *runs };

/* Each result says which command wrote it, and those about layers or speed have their plots. */
static void every_command(void **state)
{
    (void)state;
    rng g = rng_new(3);
    tiny_llama m = tiny_llama_new(&g, 24, 8.0);
    const char *folder = files_folder();
    char files[4096] = "";
    for (int i = 0; i < run_count; i++) {
        char arguments[1024], name[32];
        snprintf(arguments, sizeof arguments, runs[i].arguments, m.folder, folder);
        snprintf(name, sizeof name, "%s.json", runs[i].command);
        tool_result r = tool_run("", "%s %s --json", runs[i].command, arguments);
        tool_expect(&r, 0);
        const char *path = files_path(folder, name);
        files_write_text(path, r.out);
        tool_free(&r);
        snprintf(files + strlen(files), sizeof files - strlen(files), " %s", path);
    }
    tool_result r = tool_run("", "report %s", files);
    tool_expect(&r, 0);
    expect_balanced(r.out);
    expect_self_contained(r.out);
    expect_places_in_range(r.out);
    const char *section = r.out;
    for (int i = 0; i < run_count; i++) {
        char heading[96];
        snprintf(heading, sizeof heading, "<h2>%1$s: %1$s.json</h2>", runs[i].command);
        section = strstr(section, heading);
        if (section == NULL)
            fail_msg("there is no %s", heading);
        const char *end = strstr(section, "</section>");
        for (int p = 0; p < 3 && runs[i].plots[p] != NULL; p++) {
            const char *plot = strstr(section, runs[i].plots[p]);
            if (plot == NULL || plot > end)
                fail_msg("%s has no plot '%s'", runs[i].command, runs[i].plots[p]);
        }
    }
    tool_free(&r);
    tiny_llama_free(&m);
}

/* Every result has its section; a result without anything to plot is still there whole. */
static void any_json(void **state)
{
    (void)state;
    char *page = page_of(compare_json,
                         "{\"text\": \"plain\", \"deep\": {\"er\": {\"list\": [[1, 2], [3]]}}, "
                         "\"rows\": [{\"shape\": [3, 5], \"flag\": true}, {\"other\": null}, 7], "
                         "\"empty\": [], \"nothing\": {}}");
    assert_int_equal(count_of(page, "<section"), 2);
    assert_int_equal(count_of(page, "href='#result"), 2);
    assert_non_null(strstr(page, "3 × 5"));
    assert_non_null(strstr(page, "plain"));
    free(page);
}

static void hostile_names_stay_text(void **state)
{
    (void)state;
    char *page =
        page_of("{\"command\": \"<script>alert(1)</script>\", \"<b>\": \"\\\" ' & <i>\","
                "\"tensors\": [{\"name\": \"</table><img>.0.x\", \"relative_error\": 1e308},"
                "{\"name\": \"a.1.x\", \"relative_error\": -1}, {\"name\": 5, "
                "\"relative_error\": \"x\"}, {\"name\": \"a.99999999999999999999.x\", "
                "\"relative_error\": 0.5}], \"rows\": [{\"us\": 0, \"floor_us\": 1}, "
                "{\"us\": 1e-300, \"floor_us\": 1e300, \"peer_us\": {\"<p>\": 1}}], "
                "\"layers\": [{\"histogram\": [1, [], [\"a\"], [-1, 2], [0, 5]], "
                "\"methods\": 3}, {\"histogram\": [[1e-300, 1], [1e300, 1e300]], "
                "\"methods\": {\"<m>\": {\"scale\": -1}}}]}",
                NULL);
    assert_non_null(strstr(page, "&lt;script&gt;"));
    assert_non_null(strstr(page, "&lt;/table&gt;"));
    assert_non_null(strstr(page, "&quot; &#39; &amp; &lt;i&gt;"));
    free(page);
}

static void refuse(const char *text, const char *reason)
{
    const char *folder = files_folder(), *path = files_path(folder, "bad.json");
    files_write_text(path, text);
    tool_result r = tool_run("", "report %s -o %s/page.html", path, folder);
    tool_expect(&r, 1);
    if (strstr(r.err, reason) == NULL)
        fail_msg("'%s' is not in: %s", reason, r.err);
    assert_false(files_exist(files_path(folder, "page.html")));
    tool_free(&r);
}

static void refusals(void **state)
{
    (void)state;
    refuse("", "not a JSON object");
    refuse("[1]", "not a JSON object");
    refuse("{\"a\": ", "not a JSON object");
    tool_result r = tool_run("", "report /nowhere.json");
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "/nowhere.json"));
    tool_free(&r);
    r = tool_run("", "report");
    tool_expect(&r, 2);
    tool_free(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_and_their_causes),
        cmocka_unit_test(spoiled_layers),
        cmocka_unit_test(speed_beside_the_floor),
        cmocka_unit_test(utilisation_by_depth),
        cmocka_unit_test(histograms_with_clip_points),
        cmocka_unit_test(methods_by_granularity),
        cmocka_unit_test(every_command),
        cmocka_unit_test(any_json),
        cmocka_unit_test(hostile_names_stay_text),
        cmocka_unit_test(refusals),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
