/* SPDX-License-Identifier: MIT */
/* deepgemm compare on small checkpoints made here: what it measures, ranks and refuses. */
#include "files.h"
#include "oracle.h"
#include "random.h"
#include "test.h"
#include "tool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a model of three layers --------------------------------------------------------- */

/* Ragged, in unusual blocks, and with more rows than the tool works on at a time. */
enum { layers = 3, n = 2100, k = 200, block_rows = 48, block_cols = 64, norm_size = 7 };
enum {
    scale_rows = (n + block_rows - 1) / block_rows,
    scale_cols = (k + block_cols - 1) / block_cols
};

typedef struct model {
    uint16_t wide[layers][n * k];
    uint8_t codes[layers][n * k];
    float scales[layers][scale_rows * scale_cols];
    float norm[norm_size];
    const char *folder; /* holds wide/ and fp8/ */
} model;

static const char *const weights[layers] = {
    "model.layers.0.mlp.down_proj.weight",
    "model.layers.1.mlp.down_proj.weight",
    "model.layers.2.mlp.down_proj.weight",
};
static const char *const scale_names[layers] = {
    "model.layers.0.mlp.down_proj.weight_scale_inv",
    "model.layers.1.mlp.down_proj.weight_scale_inv",
    "model.layers.2.mlp.down_proj.weight_scale_inv",
};

static dg_scale scale_of(model *m, int layer)
{
    return dg_scale_of(m->scales[layer], DG_F32, n, k, block_rows, block_cols);
}

static int layer_in(const cJSON *row)
{
    for (int i = 0; i < layers; i++)
        if (strcmp(tool_string(row, "name"), weights[i]) == 0)
            return i;
    fail_msg("%s is not a layer", tool_string(row, "name"));
    return -1;
}

static void write_model(const model *m)
{
    stored wide[layers + 1], fp8[2 * layers + 1];
    for (int i = 0; i < layers; i++) {
        wide[i] = (stored){weights[i], "BF16", 2, n, k, m->wide[i]};
        fp8[2 * i] = (stored){weights[i], "F8_E4M3", 1, n, k, m->codes[i]};
        fp8[2 * i + 1] = (stored){scale_names[i], "F32", 4, scale_rows, scale_cols, m->scales[i]};
    }
    const stored norm = {"model.norm.weight", "F32", 4, norm_size, 0, m->norm};
    wide[layers] = fp8[2 * layers] = norm;
    safetensors_write(files_path(m->folder, "wide/model.safetensors"), wide, layers + 1);
    safetensors_write(files_path(m->folder, "fp8/model.safetensors"), fp8, 2 * layers + 1);
}

static int make_model(void **state)
{
    model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    rng r = rng_new(1);
    dg_context *context;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    for (int i = 0; i < layers; i++) {
        rng_fill_normal(&r, m->wide[i], DG_BF16, n * k, 0.1);
        dg_quantize q = DG_QUANTIZE_INIT;
        q.input = dg_matrix_of(m->wide[i], DG_BF16, n, k);
        q.output = dg_matrix_of(m->codes[i], DG_E4M3, n, k);
        q.scale = scale_of(m, i);
        assert_ok(dg_quantize_run(context, &q, NULL));
    }
    dg_destroy(context);
    rng_fill_normal(&r, m->norm, DG_F32, norm_size, 1.0);
    m->folder = files_folder();
    files_make_folder(files_path(m->folder, "wide"));
    files_make_folder(files_path(m->folder, "fp8"));
    files_write_text(files_path(m->folder, "fp8/config.json"),
                     "{\"quantization_config\": {\"weight_block_size\": [48, 64]}}");
    write_model(m);
    *state = m;
    return 0;
}

static int free_model(void **state)
{
    free(*state);
    return 0;
}

static tool_result compare(const model *m, const char *options)
{
    return tool_run("", "compare %s/wide %s/fp8 %s", m->folder, m->folder, options);
}

/* Row `index` of a run that may have failed. */
static const cJSON *row_at(const cJSON *root, int index)
{
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "tensors"), index);
    assert_non_null(row);
    return row;
}

static cJSON *parse(const tool_result *result)
{
    cJSON *root = cJSON_Parse(result->out);
    if (root == NULL)
        fail_msg("no JSON on stdout; stderr: %s", result->err);
    return root;
}

static double metric(const cJSON *row, const char *part, const char *name)
{
    return tool_number(cJSON_GetObjectItem(row, part), name);
}

/* |w - w8| / |w| by the oracle. */
static double weight_error(model *m, int layer)
{
    double *wide = malloc(sizeof(double) * n * k), *fp8 = malloc(sizeof(double) * n * k);
    assert_true(wide != NULL && fp8 != NULL);
    dg_matrix w = dg_matrix_of(m->wide[layer], DG_BF16, n, k);
    dg_matrix q = dg_matrix_of(m->codes[layer], DG_E4M3, n, k);
    dg_scale none = {0}, scale = scale_of(m, layer);
    oracle_dequantize(&w, &none, wide);
    oracle_dequantize(&q, &scale, fp8);
    double error = 0.0, size = 0.0;
    for (int i = 0; i < n * k; i++) {
        error += (fp8[i] - wide[i]) * (fp8[i] - wide[i]);
        size += wide[i] * wide[i];
    }
    free(wide);
    free(fp8);
    return sqrt(error / size);
}

/* ---- tests --------------------------------------------------------------------------- */

static void healthy_model(void **state)
{
    model *m = *state;
    tool_result r =
        compare(m, "--tokens 4 --seed 5 --json --limit-relative 0.1 --limit-cosine 0.99");
    cJSON *root = tool_json(&r);
    assert_int_equal(tool_number(root, "fp8_layers"), layers);
    assert_int_equal(tool_number(root, "identical"), 1);
    assert_int_equal(tool_number(root, "seed"), 5);
    for (int i = 0; i < layers; i++) {
        const cJSON *row = row_at(root, i);
        int layer = layer_in(row);
        /* the tool dequantises to FP32, the oracle does not round */
        assert_true(fabs(metric(row, "weight", "relative_error") / weight_error(m, layer) - 1) <
                    1e-5);
        double output = metric(row, "output", "relative_error");
        assert_true(output > 0.01 && output < 0.1);
    }
    tool_result again = compare(m, "--tokens 4 --seed 5 --json");
    tool_result other = compare(m, "--tokens 4 --seed 6 --json");
    cJSON *repeated = tool_json(&again), *changed = tool_json(&other);
    assert_true(metric(row_at(repeated, 0), "output", "cosine") ==
                metric(row_at(root, 0), "output", "cosine"));
    assert_true(metric(row_at(changed, 0), "output", "cosine") !=
                metric(row_at(root, 0), "output", "cosine"));
    cJSON_Delete(root);
    cJSON_Delete(repeated);
    cJSON_Delete(changed);
    tool_free(&r);
    tool_free(&again);
    tool_free(&other);
}

/* One scale of one layer doubled: it ranks first, and alone fails the limit. */
static void damaged_layer_ranks_first(void **state)
{
    model *m = *state;
    rng r = rng_new(2);
    int damaged = (int)rng_range(&r, 0, layers - 1);
    /* among the whole blocks: a ragged one may hold little */
    int64_t row = rng_range(&r, 0, n / block_rows - 1), col = rng_range(&r, 0, k / block_cols - 1);
    float *scale = &m->scales[damaged][row * scale_cols + col];
    *scale *= 2;
    write_model(m);
    tool_result free_run = compare(m, "--json"), text = compare(m, "--limit-relative 0.05");
    tool_result limited = compare(m, "--json --limit-relative 0.05");
    cJSON *root = tool_json(&free_run), *failed = parse(&limited);
    assert_int_equal(layer_in(row_at(root, 0)), damaged);
    tool_expect(&limited, 1);
    assert_int_equal(tool_number(failed, "failed"), 1);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(row_at(failed, 0), "failed")));
    tool_expect(&text, 1);
    assert_non_null(strstr(text.out, "FAILS"));
    *scale /= 2;
    cJSON_Delete(root);
    cJSON_Delete(failed);
    tool_free(&free_run);
    tool_free(&limited);
    tool_free(&text);
}

/* NaN needs no limit to fail, and comes before any finite error. */
static void nan_ranks_first_and_fails(void **state)
{
    model *m = *state;
    uint8_t *code = &m->codes[1][17], before = *code;
    *code = 0x7F;
    m->scales[2][0] *= 16;
    write_model(m);
    tool_result r = compare(m, "--json"), text = compare(m, "--top 1");
    cJSON *root = parse(&r);
    tool_expect(&r, 1);
    assert_int_equal(layer_in(row_at(root, 0)), 1);
    assert_int_equal(metric(row_at(root, 0), "weight", "nan"), 1);
    assert_int_equal(metric(row_at(root, 0), "weight", "spoiled"), 1);
    assert_true(metric(row_at(root, 0), "output", "nan") >= 1);
    const cJSON *weight = cJSON_GetObjectItem(row_at(root, 0), "weight");
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(weight, "relative_error"))); /* infinity */
    assert_true(tool_number(weight, "cosine") == 0.0);
    assert_int_equal(tool_number(root, "failed"), 1);
    tool_expect(&text, 1);
    assert_non_null(strstr(text.out, " inf %"));
    assert_non_null(strstr(text.out, " -inf  0.00000 "));
    *code = before;
    m->scales[2][0] /= 16;
    cJSON_Delete(root);
    tool_free(&r);
    tool_free(&text);
}

/* Outputs on given activations agree with the oracle; layers without any are judged by weights. */
static void given_inputs(void **state)
{
    model *m = *state;
    enum { tokens = 3, layer = 1 };
    static float x[tokens * k], x_scales[tokens * ((k + block_cols - 1) / block_cols)];
    static uint8_t x_codes[tokens * k];
    static double y16[tokens * n], y8[tokens * n], magnitude[tokens * n];
    rng r = rng_new(3);
    rng_fill_normal(&r, x, DG_F32, tokens * k, 2.0);
    const char *path = files_path(m->folder, "inputs.safetensors");
    const char *name = "model.layers.1.mlp.down_proj";
    safetensors_write(path, &(stored){name, "F32", 4, tokens, k, x}, 1);
    write_model(m);

    dg_context *context;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(x, DG_F32, tokens, k);
    q.output = dg_matrix_of(x_codes, DG_E4M3, tokens, k);
    q.scale = dg_scale_of(x_scales, DG_F32, tokens, k, 1, block_cols);
    assert_ok(dg_quantize_run(context, &q, NULL));
    dg_destroy(context);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.d = dg_matrix_of(NULL, DG_F32, tokens, n);
    gemm.a = q.output, gemm.scale_a = q.scale;
    gemm.b = dg_matrix_of(m->codes[layer], DG_E4M3, n, k), gemm.scale_b = scale_of(m, layer);
    oracle_gemm(&gemm, y8, magnitude);
    gemm.a = q.input, gemm.scale_a = (dg_scale){0};
    gemm.b = dg_matrix_of(m->wide[layer], DG_BF16, n, k), gemm.scale_b = (dg_scale){0};
    oracle_gemm(&gemm, y16, magnitude);
    double error = 0.0, size = 0.0;
    for (int i = 0; i < tokens * n; i++) {
        error += (y8[i] - y16[i]) * (y8[i] - y16[i]);
        size += y16[i] * y16[i];
    }

    tool_result run = tool_run(
        "", "compare %1$s/wide %1$s/fp8 --inputs %1$s/inputs.safetensors --json", m->folder);
    cJSON *root = tool_json(&run);
    for (int i = 0; i < layers; i++) {
        const cJSON *row = row_at(root, i);
        if (layer_in(row) == layer)
            assert_true(fabs(metric(row, "output", "relative_error") / sqrt(error / size) - 1) <
                        1e-3);
        else
            assert_null(cJSON_GetObjectItem(row, "output"));
    }
    cJSON_Delete(root);
    tool_free(&run);

    safetensors_write(path, &(stored){name, "F32", 4, tokens, k - 1, x}, 1);
    run = tool_run("", "compare %1$s/wide %1$s/fp8 --inputs %1$s/inputs.safetensors", m->folder);
    tool_expect(&run, 1);
    assert_non_null(strstr(run.err, "199 features"));
    tool_free(&run);
}

/* ---- causes and counts --------------------------------------------------------------- */

/* A layer of one scale, with the reference's weight beside it and activations for it. */
typedef struct small {
    float wide[4 * 8], x[2 * 8], scale;
    uint8_t codes[4 * 8];
    float input_scale; /* 0: none in the checkpoint */
} small;

static cJSON *compare_small(const model *m, const small *s)
{
    const stored wide = {"a.weight", "F32", 4, 4, 8, s->wide};
    const stored fp8[] = {{"a.weight", "F8_E4M3", 1, 4, 8, s->codes},
                          {"a.weight_scale", "F32", 4, 1, 1, &s->scale},
                          {"a.input_scale", "F32", 4, 1, 0, &s->input_scale}};
    const stored inputs = {"a", "F32", 4, 2, 8, s->x};
    safetensors_write(files_path(m->folder, "small16.safetensors"), &wide, 1);
    safetensors_write(files_path(m->folder, "small8.safetensors"), fp8, s->input_scale > 0 ? 3 : 2);
    safetensors_write(files_path(m->folder, "small-x.safetensors"), &inputs, 1);
    tool_result run = tool_run("",
                               "compare %1$s/small16.safetensors %1$s/small8.safetensors "
                               "--inputs %1$s/small-x.safetensors --json",
                               m->folder);
    cJSON *root = tool_json(&run);
    tool_free(&run);
    return root;
}

static double cause(const cJSON *root, const char *name, const char *value)
{
    const cJSON *all = cJSON_GetObjectItem(row_at(root, 0), "caused_by");
    return tool_number(cJSON_GetObjectItem(all, name), value);
}

/* Weights 1.5 and 2 of both signs, activations 1 to 448: all of them are E4M3. */
static small exact_layer(rng *r)
{
    small s = {.scale = 1.0f};
    for (int i = 0; i < 4 * 8; i++) {
        bool large = rng_range(r, 0, 1), negative = rng_range(r, 0, 1);
        s.codes[i] = (uint8_t)((large ? 0x40 : 0x3C) | (negative ? 0x80 : 0));
        s.wide[i] = (large ? 2.0f : 1.5f) * (negative ? -1 : 1);
    }
    for (int i = 0; i < 2 * 8; i++)
        s.x[i] = i % 8 == 0 ? 448.0f : (float)rng_range(r, 1, 15);
    return s;
}

static void causes_are_told_apart(void **state)
{
    const model *m = *state;
    rng r = rng_new(4);
    small s = exact_layer(&r);
    cJSON *root = compare_small(m, &s);
    assert_true(metric(row_at(root, 0), "output", "relative_error") < 1e-6);
    cJSON_Delete(root);

    for (int i = 0; i < 4 * 8; i++) /* now the weights alone are rounded */
        s.wide[i] *= 1.01f;
    root = compare_small(m, &s);
    assert_true(fabs(cause(root, "weights", "share") - 1) < 1e-4);
    assert_true(fabs(cause(root, "activations", "share")) < 1e-4);
    assert_true(fabs(cause(root, "weights", "relative_error") - 0.01 / 1.01) < 1e-4);
    cJSON_Delete(root);

    s = exact_layer(&r); /* now the activations alone: 33 is between 32 and 36 */
    s.x[3] = s.x[9] = 33.0f;
    root = compare_small(m, &s);
    assert_true(fabs(cause(root, "activations", "share") - 1) < 1e-4);
    assert_true(fabs(cause(root, "weights", "share")) < 1e-4);
    assert_true(cause(root, "accumulation", "relative_error") < 1e-6);
    cJSON_Delete(root);
}

/* On real layers all three add up to the whole error. */
static void shares_add_up(void **state)
{
    model *m = *state;
    write_model(m);
    tool_result r = compare(m, "--json");
    cJSON *root = tool_json(&r);
    for (int i = 0; i < layers; i++) {
        const cJSON *all = cJSON_GetObjectItem(row_at(root, i), "caused_by"), *one;
        double sum = 0.0;
        cJSON_ArrayForEach(one, all) sum += tool_number(one, "share");
        assert_true(fabs(sum - 1) < 1e-3);
        double by_weights = tool_number(cJSON_GetObjectItem(all, "weights"), "share");
        assert_true(by_weights > 0.05 && by_weights < 0.95); /* both are rounded */
    }
    cJSON_Delete(root);
    tool_free(&r);
}

static void clipped_and_vanished_values_are_counted(void **state)
{
    const model *m = *state;
    rng r = rng_new(5);
    small s = exact_layer(&r);
    s.wide[0] = 1000.0f;                /* beyond 448 */
    s.wide[1] = -1e-6f, s.codes[1] = 0; /* below half of 2^-9 */
    s.wide[2] = 0.0f, s.codes[2] = 0;   /* no underflow */
    s.x[1] = 1e-5f;
    cJSON *root = compare_small(m, &s);
    assert_int_equal(metric(row_at(root, 0), "weight", "saturated"), 1);
    assert_int_equal(metric(row_at(root, 0), "weight", "underflow"), 1);
    assert_int_equal(metric(row_at(root, 0), "activations", "saturated"), 0);
    assert_int_equal(metric(row_at(root, 0), "activations", "underflow"), 1);
    cJSON_Delete(root);

    s = exact_layer(&r);
    s.input_scale = 0.5f; /* 448 becomes 224 */
    root = compare_small(m, &s);
    assert_int_equal(metric(row_at(root, 0), "activations", "saturated"), 2);
    assert_true(metric(row_at(root, 0), "output", "relative_error") > 0.3);
    cJSON_Delete(root);
}

/* A cosine of 0.9702 passes a limit of 0.97. */
static void cosine_limit_is_not_rounded(void **state)
{
    model *m = *state;
    const float cosine = 0.9702f;
    const float x[] = {1, 0}, y[] = {cosine, sqrtf(1 - cosine * cosine)};
    safetensors_write(files_path(m->folder, "x.safetensors"), &(stored){"v", "F32", 4, 2, 0, x}, 1);
    safetensors_write(files_path(m->folder, "y.safetensors"), &(stored){"v", "F32", 4, 2, 0, y}, 1);
    tool_result passes = tool_run("",
                                  "compare %1$s/x.safetensors %1$s/y.safetensors "
                                  "--limit-cosine 0.97",
                                  m->folder);
    tool_result fails = tool_run("",
                                 "compare %1$s/x.safetensors %1$s/y.safetensors "
                                 "--limit-cosine 0.9703",
                                 m->folder);
    tool_expect(&passes, 0);
    tool_expect(&fails, 1);
    tool_free(&passes);
    tool_free(&fails);
}

static void missing_tensor_fails(void **state)
{
    model *m = *state;
    safetensors_write(files_path(m->folder, "short.safetensors"),
                      &(stored){"model.norm.weight", "F32", 4, norm_size, 0, m->norm}, 1);
    tool_result r = tool_run("", "compare %1$s/wide %1$s/short.safetensors", m->folder);
    tool_expect(&r, 1);
    assert_non_null(strstr(r.out, "model.layers.2.mlp.down_proj.weight is missing"));
    tool_free(&r);
}

static void misuse(void **state)
{
    (void)state;
    tool_result text = tool_run("", "compare a b --limit-top1 0.9");
    tool_expect(&text, 2);
    tool_free(&text);
    tool_result one = tool_run("", "compare somewhere");
    tool_result none = tool_run("", "compare /nowhere /nowhere");
    tool_expect(&one, 2);
    tool_expect(&none, 1);
    assert_non_null(strstr(none.err, "/nowhere"));
    tool_free(&one);
    tool_free(&none);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(healthy_model),
        cmocka_unit_test(damaged_layer_ranks_first),
        cmocka_unit_test(nan_ranks_first_and_fails),
        cmocka_unit_test(given_inputs),
        cmocka_unit_test(causes_are_told_apart),
        cmocka_unit_test(shares_add_up),
        cmocka_unit_test(clipped_and_vanished_values_are_counted),
        cmocka_unit_test(cosine_limit_is_not_rounded),
        cmocka_unit_test(missing_tensor_fails),
        cmocka_unit_test(misuse),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, make_model, free_model);
}
