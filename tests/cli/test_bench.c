/* SPDX-License-Identifier: MIT */
/* deepgemm bench: what its numbers must satisfy, case files, the plot, peers that are absent. */
#include "files.h"
#include "test.h"
#include "tool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/deepgemm-bench-XXXXXX";

/* The path of a file of that content in the tests' own folder. */
static const char *write_file(const char *name, const char *content)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(content, file);
    fclose(file);
    return path;
}

static void numbers_agree_with_each_other(void **state)
{
    (void)state;
    const char *path = write_file("cases.txt", "# recipe m n k [a b d]\n"
                                               "\n"
                                               "block128 3 65 130\n"
                                               "mx 2 64 64 e5m2 e4m3 f32\n"
                                               "  token_channel 1 33 47 e4m3 e5m2 f16\n");
    tool_result r = tool_run("",
                             "bench --cases %s --seconds 0.02 --no-peers --threads 1 "
                             "--weights rows --commit abc123 --json",
                             path);
    cJSON *root = tool_json(&r);
    assert_string_equal(tool_string(root, "version"), dg_version());
    assert_string_equal(tool_string(root, "commit"), "abc123");
    assert_string_equal(tool_string(root, "fill"), "random");
    assert_string_equal(tool_string(root, "weights"), "rows");
    assert_string_equal(tool_string(root, "caches"), "cold");
    assert_int_equal(tool_number(root, "threads"), 1);
    double peak = tool_number(root, "peak_gflops");
    assert_true(peak > 0);

    dg_context *context;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    static const char *const cases[] = {"block128 3 65 130 e4m3 e4m3 bf16",
                                        "mx 2 64 64 e5m2 e4m3 f32",
                                        "token_channel 1 33 47 e4m3 e5m2 f16"};
    const cJSON *row = cJSON_GetObjectItem(root, "rows")->child;
    for (int i = 0; i < 3; i++, row = row->next) {
        assert_non_null(row);
        assert_string_equal(tool_string(row, "case"), cases[i]);
        double us = tool_number(row, "us"), floor_us = tool_number(row, "floor_us");
        double flops = 2 * tool_number(row, "m") * tool_number(row, "n") * tool_number(row, "k");
        assert_ok(dg_kernel_usable(context, tool_string(row, "kernel")));
        assert_true(tool_number(row, "min_us") > 0);
        assert_true(tool_number(row, "min_us") <= tool_number(row, "p10_us"));
        assert_true(tool_number(row, "p10_us") <= us && us <= tool_number(row, "p90_us"));
        assert_float_equal(tool_number(row, "tflops") * 1e6 * us / flops, 1, 1e-3);
        assert_float_equal(tool_number(row, "floor_share") * us / floor_us, 1, 1e-3);
        assert_true(floor_us * 1e3 * peak * 1.001 >= flops);
        assert_true(floor_us * 1e3 * tool_number(row, "bandwidth_gbps") * 1.001 >=
                    tool_number(row, "n") * tool_number(row, "k"));
        assert_true(tool_number(row, "repeats") >= 3 && tool_number(row, "calls") >= 1);
        assert_null(cJSON_GetObjectItem(row, "peer_us")->child);
    }
    assert_null(row);
    dg_destroy(context);
    cJSON_Delete(root);
    tool_free(&r);
}

static void case_files_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *content, *message;
    } mistakes[] = {
        {"tensor 1 2 3\nblock64 1 2 3\n", ":2: there is no recipe 'block64'"},
        {"tensor 1 2\n", ":1: a case is 'recipe m n k [a b d]'"},
        {"tensor 0 2 3\n", ":1: a case is 'recipe m n k [a b d]'"},
        {"tensor 4294967296 1 4294967296\n", ":1: a size is at most 2147483647"},
        {"tensor 1 1 99999999999999999999\n", ":1: a size is at most 2147483647"},
        {"tensor 1 2 3 e4m3\n", ":1: a case is 'recipe m n k [a b d]'"},
        {"tensor 1 2 3 e4m3 e4m3 bf16 fast\n", ":1: a case is 'recipe m n k [a b d]'"},
        {"tensor 1 2 3 e4m3 e4m3 f64\n", ":1: there is no data type 'f64'"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *path = write_file("wrong.txt", mistakes[i].content);
        tool_result r = tool_run("", "bench --cases %s --json", path);
        tool_expect(&r, 2);
        assert_non_null(strstr(r.err, path));
        assert_non_null(strstr(r.err, mistakes[i].message));
        assert_string_equal(r.out, "");
        tool_free(&r);
    }
    tool_result r = tool_run("", "bench --cases %s/absent.txt", folder);
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "absent.txt: No such file or directory"));
    tool_free(&r);
    for (int grouped = 0; grouped < 2; grouped++) {
        const char *option = grouped ? "grouped" : "cases";
        r = tool_run("", "bench --%s %s", option, write_file("wrong.txt", "# nothing\n"));
        tool_expect(&r, 2);
        assert_non_null(strstr(r.err, "wrong.txt has no case"));
        tool_free(&r);
        r = tool_run("", "bench --%s %s", option, folder);
        tool_expect(&r, 1);
        assert_non_null(strstr(r.err, ": Is a directory"));
        tool_free(&r);
    }
}

/* Each form, also with empty groups and with a table: the same products in one call and in many. */
static void grouped_products(void **state)
{
    (void)state;
    const char *path = write_file("cases.txt", "# recipe form n k sizes\n"
                                               "block128 contiguous 40 256 3,0,2x9\n"
                                               "block32 contiguous 33 96 5,40,7\n"
                                               "token_channel masked 48 130 4,0,31\n"
                                               "tensor masked 16 32 1\n"
                                               "block128 table 9:24:128,2x1:8:300,0:5:7\n");
    static const struct {
        const char *form;
        double products, work;
    } expected[] = {
        {"contiguous", 4, 2.0 * 21 * 40 * 256},
        {"contiguous", 3, 2.0 * 52 * 33 * 96},
        {"masked", 3, 2.0 * 35 * 48 * 130},
        {"masked", 1, 2.0 * 16 * 32},
        {"table", 4, 2.0 * (9 * 24 * 128 + 2 * 8 * 300)},
    };
    for (int packed = 0; packed < 2; packed++) {
        tool_result r = tool_run(
            "", "bench --grouped %s --seconds 0.002 --warm --threads 1 --weights %s --json", path,
            packed ? "packed" : "rows");
        cJSON *root = tool_json(&r);
        assert_string_equal(tool_string(root, "weights"), packed ? "packed" : "rows");
        const cJSON *row = cJSON_GetObjectItem(root, "rows")->child;
        for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++, row = row->next) {
            assert_non_null(row);
            const double us = tool_number(row, "us");
            assert_string_equal(tool_string(row, "form"), expected[i].form);
            assert_int_equal(tool_number(row, "products"), expected[i].products);
            assert_float_equal(tool_number(row, "tflops") * 1e6 * us / expected[i].work, 1, 1e-3);
            assert_float_equal(tool_number(row, "floor_share") * us / tool_number(row, "floor_us"),
                               1, 1e-3);
            assert_true(tool_number(row, "separate_us") > 0);
            assert_true(tool_number(row, "busiest") >= 1 && tool_number(row, "idlest") <= 1);
            assert_non_null(strstr(tool_string(row, "kernel"), "gemm_"));
            assert_int_equal(cJSON_HasObjectItem(row, "update_us"),
                             strcmp(expected[i].form, "table") == 0);
        }
        assert_null(row);
        cJSON_Delete(root);
        tool_free(&r);
    }
    tool_result r = tool_run("", "bench --grouped %s --seconds 0.002 --warm --threads 1", path);
    tool_expect(&r, 0);
    assert_non_null(strstr(r.out, "separate"));
    tool_free(&r);
}

static void grouped_case_files_that_are_wrong(void **state)
{
    (void)state;
    static const struct {
        const char *content, *message;
    } mistakes[] = {
        {"", " has no case"},
        {"block128\n", ":1: a case is 'recipe contiguous|masked n k sizes'"},
        {"block128 ragged 8 8 1\n", ":1: a case is 'recipe contiguous|masked n k sizes'"},
        {"block128 masked 8 8\n", ":1: a case is 'recipe contiguous|masked n k sizes'"},
        {"block128 table 8 8 1:2:3\n", ":1: a case is 'recipe contiguous|masked n k sizes'"},
        {"# none\nblock7 masked 8 8 1\n", ":2: there is no recipe 'block7'"},
        {"block128 masked 0 8 1\n", ":1: n and k are numbers of at least 1, not '0' and '8'"},
        {"block128 masked 8 8 4,x\n", ":1: 'x' is no size: it is M"},
        {"block128 masked 8 8 4,-1\n", ":1: '-1' is no size: it is M"},
        {"block128 masked 8 8 0x4\n", ":1: '0x4' is no size: it is M"},
        {"block128 masked 8 8 1:2:3\n", ":1: '1:2:3' is no size: it is M"},
        {"block128 table 4\n", ":1: '4' is no size: it is M:N:K"},
        {"block128 table 4:0:8\n", ":1: '4:0:8' is no size: it is M:N:K"},
        {"block128 masked 8 8 70000x1\n", ":1: a case has at most 65536 products"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *path = write_file("wrong.txt", mistakes[i].content);
        tool_result r = tool_run("", "bench --grouped %s --json", path);
        tool_expect(&r, 2);
        assert_non_null(strstr(r.err, path));
        assert_non_null(strstr(r.err, mistakes[i].message));
        assert_string_equal(r.out, "");
        tool_free(&r);
    }
    tool_result r = tool_run("", "bench --grouped %s/absent.txt", folder);
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "absent.txt: No such file or directory"));
    tool_free(&r);
    r = tool_run("", "bench --grouped %s/wrong.txt --m 1", folder);
    tool_expect(&r, 2);
    assert_non_null(strstr(r.err, "--grouped takes all its cases from its file"));
    tool_free(&r);
}

/* One point and one label in the plot for each M of the sweep, which has no gaps. */
static void sweep_and_plot(void **state)
{
    (void)state;
    tool_result r =
        tool_run("",
                 "bench --sweep --n 8 --k 16 --recipe tensor --seconds 0.002 --threads 1 "
                 "--no-peers --warm --plot %s/sweep.svg --json",
                 folder);
    cJSON *root = tool_json(&r);
    assert_string_equal(tool_string(root, "caches"), "warm");
    int rows = 0;
    double last = 0;
    for (const cJSON *row = cJSON_GetObjectItem(root, "rows")->child; row != NULL;
         row = row->next) {
        assert_true(tool_number(row, "m") > last);
        last = tool_number(row, "m");
        rows++;
    }
    assert_int_equal(last, 1024);
    cJSON_Delete(root);
    tool_free(&r);

    char path[256], text[1 << 16];
    snprintf(path, sizeof path, "%s/sweep.svg", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(strncmp(text, "<svg ", 5), 0);
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    assert_null(strstr(text, "nan"));
    int circles = 0;
    for (const char *at = text; (at = strstr(at, "<circle")) != NULL; at++)
        circles++;
    assert_int_equal(circles, rows);
}

static void quantize_stays_below_a_copy(void **state)
{
    (void)state;
    tool_result r = tool_run("", "bench --quantize --m 64 --k 300 --seconds 0.02 --json");
    cJSON *root = tool_json(&r);
    const cJSON *row = cJSON_GetObjectItem(root, "rows")->child;
    double bytes = 64 * (300 * 3 + 3 * 4); /* BF16 in, a code and a third of 128 scales out */
    assert_float_equal(tool_number(row, "gbps") * 1e3 * tool_number(row, "us") / bytes, 1, 1e-3);
    cJSON_Delete(root);
    tool_free(&r);
}

/* Values that run faster than real ones are used when asked for only, and named in both outputs. */
static void other_values_are_labelled(void **state)
{
    (void)state;
    static const char *const fills[] = {"zeros", "ones"};
    for (int i = 0; i < 2; i++) {
        tool_result r = tool_run("",
                                 "bench --m 1 --n 8 --k 8 --seconds 0.002 --no-peers --warm "
                                 "--fill %s --json",
                                 fills[i]);
        cJSON *root = tool_json(&r);
        assert_string_equal(tool_string(root, "fill"), fills[i]);
        cJSON_Delete(root);
        tool_free(&r);
    }
    tool_result r =
        tool_run("", "bench --m 1 --n 8 --k 8 --seconds 0.002 --no-peers --warm --fill zeros");
    tool_expect(&r, 0);
    assert_non_null(strstr(r.out, "; zeros values, "));
    tool_free(&r);
}

static void absent_peers_are_named(void **state)
{
    (void)state;
    tool_result r = tool_run("DEEPGEMM_OPENBLAS=/absent.so DEEPGEMM_ONEDNN=/absent.so",
                             "bench --m 1 --n 8 --k 8 --seconds 0.002 --warm --isa generic --json");
    cJSON *root = tool_json(&r), *peers = cJSON_GetObjectItem(root, "peers");
    assert_non_null(strstr(tool_string(peers, "openblas_sgemv"), "$DEEPGEMM_OPENBLAS"));
    assert_non_null(strstr(tool_string(peers, "onednn_bf16"), "$DEEPGEMM_ONEDNN"));
    assert_null(cJSON_GetObjectItem(cJSON_GetObjectItem(root, "rows")->child, "peer_us")->child);
    cJSON_Delete(root);
    tool_free(&r);
}

/* OpenBLAS gets the kernels of deepgemm's instructions, whatever the environment forces on it. */
static void peers_have_the_same_instructions(void **state)
{
    (void)state;
    static const struct {
        const char *options, *about;
    } runs[] = {
        {"--isa generic", "OpenBLAS 1.2.3, core own choice"},
        {"--isa avx2", "OpenBLAS 1.2.3, core Haswell"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        tool_result r =
            tool_run("OPENBLAS_CORETYPE=Nehalem DEEPGEMM_OPENBLAS=" FAKE_OPENBLAS,
                     "bench --m 1 --n 9 --k 70 --seconds 0.002 --warm --json %s", runs[i].options);
        cJSON *root = tool_json(&r);
        assert_string_equal(tool_string(cJSON_GetObjectItem(root, "peers"), "openblas_sgemv"),
                            runs[i].about);
        const cJSON *row = cJSON_GetObjectItem(root, "rows")->child;
        assert_true(tool_number(cJSON_GetObjectItem(row, "peer_us"), "openblas_sgemv") > 0);
        cJSON_Delete(root);
        tool_free(&r);
    }
}

/* Nor is a peer that writes nothing, where deepgemm's own result of the same type lay. */
static void wrong_results_are_not_timed(void **state)
{
    (void)state;
    const char *path = write_file("cases.txt", "tensor 2 9 70 e4m3 e4m3 f32\n");
    tool_result r = tool_run("DEEPGEMM_OPENBLAS=" FAKE_OPENBLAS,
                             "bench --cases %s --fill ones --seconds 0.002 --warm --json", path);
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "openblas_sgemm is wrong: D[0, 0] is "));
    assert_string_equal(r.out, "");
    tool_free(&r);
}

/* What was measured before a run ended early is in the file, which is whole at any time. */
static void output_keeps_finished_cases(void **state)
{
    (void)state;
    const char *path = write_file("cases.txt", "tensor 1 9 70\ntensor 2 9 70\n");
    tool_result r =
        tool_run("DEEPGEMM_OPENBLAS=" FAKE_OPENBLAS,
                 "bench --cases %s --seconds 0.002 --warm --output %s/kept.json", path, folder);
    tool_expect(&r, 1); /* the fake OpenBLAS is wrong for M = 2 */
    tool_free(&r);
    char kept[256];
    snprintf(kept, sizeof kept, "%s/kept.json", folder);
    size_t bytes;
    char *text = files_read(kept, &bytes);
    cJSON *root = cJSON_Parse(text), *rows = cJSON_GetObjectItem(root, "rows");
    assert_int_equal(tool_number(root, "cases"), 2);
    assert_int_equal(cJSON_GetArraySize(rows), 1);
    assert_string_equal(tool_string(rows->child, "case"), "tensor 1 9 70 e4m3 e4m3 bf16");
    cJSON_Delete(root);
    free(text);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = {"cases.txt", "wrong.txt", "sweep.svg", "kept.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_agree_with_each_other),
        cmocka_unit_test(case_files_that_are_wrong),
        cmocka_unit_test(grouped_products),
        cmocka_unit_test(grouped_case_files_that_are_wrong),
        cmocka_unit_test(sweep_and_plot),
        cmocka_unit_test(quantize_stays_below_a_copy),
        cmocka_unit_test(other_values_are_labelled),
        cmocka_unit_test(absent_peers_are_named),
        cmocka_unit_test(peers_have_the_same_instructions),
        cmocka_unit_test(wrong_results_are_not_timed),
        cmocka_unit_test(output_keeps_finished_cases),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
