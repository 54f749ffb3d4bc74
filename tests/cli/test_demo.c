/* SPDX-License-Identifier: MIT */
/*
 * deepgemm demo, and compare with --text, on a small Llama model made here, against a forward pass
 * in double precision.
 */
#include "files.h"
#include "oracle.h"
#include "random.h"
#include "test.h"
#include "tool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the model ----------------------------------------------------------------------- */

/* Ragged against blocks of 128, four query heads on two key-value heads. */
enum { hidden = 160, inner = 200, heads = 4, kv_heads = 2, head_dim = 40 };
enum { blocks = 2, vocabulary = 90, tokens = 11 };
static const double epsilon = 1e-5, theta = 500.0;

static const char config[] =
    "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"hidden_size\": 160,"
    " \"intermediate_size\": 200, \"num_attention_heads\": 4, \"num_key_value_heads\": 2,"
    " \"num_hidden_layers\": 2, \"vocab_size\": 90, \"rms_norm_eps\": 1e-5,"
    " \"rope_theta\": 500.0%s}";

enum { Q, K, V, O, GATE, UP, DOWN, kinds };
static const struct {
    const char *name;
    int rows, cols;
} linear[kinds] = {
    {"self_attn.q_proj", heads *head_dim, hidden},
    {"self_attn.k_proj", kv_heads *head_dim, hidden},
    {"self_attn.v_proj", kv_heads *head_dim, hidden},
    {"self_attn.o_proj", hidden, heads *head_dim},
    {"mlp.gate_proj", inner, hidden},
    {"mlp.up_proj", inner, hidden},
    {"mlp.down_proj", hidden, inner},
};

typedef struct model {
    double *linear[blocks][kinds], *norms[blocks][2];
    double *embedding, *final_norm; /* the head is tied to the embedding */
    int32_t ids[tokens];
    const char *folder;
} model;

/* BF16 values for the file; returns them in double. */
static double *make_tensor(rng *r, stored *t, const char *name, int rows, int cols,
                           double deviation)
{
    int count = rows * (cols == 0 ? 1 : cols);
    uint16_t *data = malloc((size_t)count * sizeof *data);
    double *values = malloc((size_t)count * sizeof *values);
    assert_true(data != NULL && values != NULL);
    rng_fill_normal(r, data, DG_BF16, count, deviation);
    dg_matrix m = dg_matrix_of(data, DG_BF16, 1, count);
    oracle_dequantize(&m, &(dg_scale){0}, values);
    *t = (stored){strdup(name), "BF16", 2, rows, cols, data};
    return values;
}

/*
 * The same model with scale moved from activations to weights: every third gain of a norm is four
 * times as large, and the columns that it feeds are a quarter, both exactly.
 */
static void write_smoothed(const char *folder, stored *tensors, int count)
{
    const float grow = 4.0f;
    for (int i = 0; i < count; i++) {
        bool norm = strstr(tensors[i].name, "layernorm") != NULL;
        bool fed = strstr(tensors[i].name, "q_proj") != NULL ||
                   strstr(tensors[i].name, "k_proj") != NULL ||
                   strstr(tensors[i].name, "v_proj") != NULL ||
                   strstr(tensors[i].name, "gate_proj") != NULL ||
                   strstr(tensors[i].name, "up_proj") != NULL;
        if (!norm && !fed)
            continue;
        int64_t elements = tensors[i].rows * (tensors[i].cols == 0 ? 1 : tensors[i].cols);
        uint16_t *data = (uint16_t *)tensors[i].data;
        for (int64_t e = 0; e < elements; e++) {
            float value;
            assert_ok(dg_convert(&data[e], DG_BF16, &value, DG_F32, 1, DG_SATURATE));
            if (e % hidden % 3 == 0)
                value = norm ? value * grow : value / grow;
            assert_ok(dg_convert(&value, DG_F32, &data[e], DG_BF16, 1, DG_SATURATE));
        }
    }
    files_make_folder(files_path(folder, "smooth"));
    safetensors_write(files_path(folder, "smooth/model.safetensors"), tensors, (size_t)count);
}

static int make_model(void **state)
{
    static model m;
    static const char *const norms[2] = {"input_layernorm", "post_attention_layernorm"};
    enum { tensor_count = blocks * (kinds + 2) + 2 };
    stored tensors[tensor_count];
    int count = 0;
    char name[80];
    rng r = rng_new(1);
    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < kinds; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", b, linear[i].name);
            m.linear[b][i] = make_tensor(&r, &tensors[count++], name, linear[i].rows,
                                         linear[i].cols, 1.5 / sqrt(linear[i].cols));
        }
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", b, norms[i]);
            m.norms[b][i] = make_tensor(&r, &tensors[count++], name, hidden, 0, 1.0);
        }
    }
    m.embedding =
        make_tensor(&r, &tensors[count++], "model.embed_tokens.weight", vocabulary, hidden, 0.2);
    m.final_norm = make_tensor(&r, &tensors[count++], "model.norm.weight", hidden, 0, 1.0);
    for (int i = 0; i < tokens; i++)
        m.ids[i] = (int32_t)rng_range(&r, 0, vocabulary - 1);

    m.folder = files_folder();
    safetensors_write(files_path(m.folder, "model.safetensors"), tensors, (size_t)count);
    safetensors_write(files_path(m.folder, "tokens.safetensors"),
                      &(stored){"ids", "I32", 4, tokens, 0, m.ids}, 1);
    write_smoothed(m.folder, tensors, count);
    for (int i = 0; i < count; i++) {
        free((void *)tensors[i].name);
        free((void *)tensors[i].data);
    }
    *state = &m;
    return 0;
}

static int free_model(void **state)
{
    model *m = *state;
    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < kinds; i++)
            free(m->linear[b][i]);
        for (int i = 0; i < 2; i++)
            free(m->norms[b][i]);
    }
    free(m->embedding);
    free(m->final_norm);
    return 0;
}

static void write_config(const model *m, const char *more)
{
    char text[sizeof config + 64];
    snprintf(text, sizeof text, config, more);
    files_write_text(files_path(m->folder, "config.json"), text);
}

/* ---- the forward pass, for one token at a time --------------------------------------- */

static void multiply(const double *w, int rows, int cols, const double *x, double *y)
{
    for (int r = 0; r < rows; r++) {
        y[r] = 0.0;
        for (int c = 0; c < cols; c++)
            y[r] += w[r * cols + c] * x[c];
    }
}

static void normalize(const double *x, const double *weight, double *y)
{
    double squares = 0.0;
    for (int i = 0; i < hidden; i++)
        squares += x[i] * x[i];
    for (int i = 0; i < hidden; i++)
        y[i] = x[i] / sqrt(squares / hidden + epsilon) * weight[i];
}

/* Feature i and feature i + half of a head are one complex number, turned by the position. */
static void turn(double *head, int position)
{
    enum { half = head_dim / 2 };
    for (int i = 0; i < half; i++) {
        double angle = position / pow(theta, 2.0 * i / head_dim), re = head[i], im = head[i + half];
        head[i] = re * cos(angle) - im * sin(angle);
        head[i + half] = re * sin(angle) + im * cos(angle);
    }
}

static double dot(const double *x, const double *y, int count)
{
    double sum = 0.0;
    for (int i = 0; i < count; i++)
        sum += x[i] * y[i];
    return sum;
}

static void attend(const double *q, double k[][kv_heads * head_dim],
                   double v[][kv_heads * head_dim], int position, double *out)
{
    for (int h = 0; h < heads; h++) {
        int kv = h / (heads / kv_heads) * head_dim;
        double sum = 0.0, *target = out + h * head_dim;
        memset(target, 0, head_dim * sizeof *target);
        for (int s = 0; s <= position; s++) {
            double weight = exp(dot(q + h * head_dim, k[s] + kv, head_dim) / sqrt(head_dim));
            sum += weight;
            for (int i = 0; i < head_dim; i++)
                target[i] += weight * v[s][kv + i];
        }
        for (int i = 0; i < head_dim; i++)
            target[i] /= sum;
    }
}

/* exp of the mean surprise at each next token */
static double perplexity(const model *m)
{
    static double k[blocks][tokens][kv_heads * head_dim], v[blocks][tokens][kv_heads * head_dim];
    double x[hidden], h[hidden], q[heads * head_dim], attended[heads * head_dim];
    double gate[inner], up[inner], logits[vocabulary], surprise = 0.0;
    for (int t = 0; t + 1 < tokens; t++) {
        memcpy(x, m->embedding + m->ids[t] * hidden, sizeof x);
        for (int b = 0; b < blocks; b++) {
            double *const *w = m->linear[b];
            normalize(x, m->norms[b][0], h);
            multiply(w[Q], heads * head_dim, hidden, h, q);
            multiply(w[K], kv_heads * head_dim, hidden, h, k[b][t]);
            multiply(w[V], kv_heads * head_dim, hidden, h, v[b][t]);
            for (int i = 0; i < heads; i++)
                turn(q + i * head_dim, t);
            for (int i = 0; i < kv_heads; i++)
                turn(k[b][t] + i * head_dim, t);
            attend(q, k[b], v[b], t, attended);
            multiply(w[O], hidden, heads * head_dim, attended, h);
            for (int i = 0; i < hidden; i++)
                x[i] += h[i];
            normalize(x, m->norms[b][1], h);
            multiply(w[GATE], inner, hidden, h, gate);
            multiply(w[UP], inner, hidden, h, up);
            for (int i = 0; i < inner; i++)
                gate[i] *= up[i] / (1.0 + exp(-gate[i]));
            multiply(w[DOWN], hidden, inner, gate, h);
            for (int i = 0; i < hidden; i++)
                x[i] += h[i];
        }
        normalize(x, m->final_norm, h);
        multiply(m->embedding, vocabulary, hidden, h, logits);
        double sum = 0.0;
        for (int i = 0; i < vocabulary; i++)
            sum += exp(logits[i]);
        surprise += log(sum) - logits[m->ids[t + 1]];
    }
    return exp(surprise / (tokens - 1));
}

/* ---- tests --------------------------------------------------------------------------- */

static void numbers_of_a_small_model(void **state)
{
    const model *m = *state;
    write_config(m, "");
    double expected = perplexity(m);
    static const char *const recipes[] = {"block", "channel"};
    for (int recipe = 0; recipe < 2; recipe++) {
        tool_result r =
            tool_run("", "demo --model %s --recipe %s --json", m->folder, recipes[recipe]);
        cJSON *root = tool_json(&r);
        assert_string_equal(tool_string(root, "data"), "model");
        assert_int_equal(tool_number(root, "tokens"), tokens);
        const cJSON *layers = cJSON_GetObjectItem(root, "layers"), *row = layers->child;
        assert_int_equal(cJSON_GetArraySize(layers), blocks * kinds);
        for (int i = 0; i < blocks * kinds; i++, row = row->next) {
            int n = linear[i % kinds].rows, k = linear[i % kinds].cols;
            int scales = recipe == 0 ? (n + 127) / 128 * ((k + 127) / 128) : n;
            assert_int_equal(tool_number(row, "block"), i / kinds);
            assert_non_null(strstr(linear[i % kinds].name, tool_string(row, "kind")));
            assert_int_equal(tool_number(row, "n"), n);
            assert_int_equal(tool_number(row, "k"), k);
            assert_int_equal(tool_number(row, "wide_bytes"), 2 * n * k);
            assert_int_equal(tool_number(row, "fp8_bytes"), n * k + 4 * scales);
            double error = tool_number(row, "relative_error");
            assert_true(error > 0.01 && error < 0.08); /* E4M3 has three bits of fraction */
            assert_true(tool_number(row, "fp8_us") > 0 && tool_number(row, "wide_us") > 0);
        }
        const cJSON *whole = cJSON_GetObjectItem(root, "whole_model");
        double wide = tool_number(whole, "wide_perplexity");
        if (fabs(wide / expected - 1) > 1e-3)
            fail_msg("perplexity is %g, %g expected", wide, expected);
        double fp8 = tool_number(whole, "fp8_perplexity");
        assert_true(fp8 != wide && fabs(log(fp8 / wide)) < 1.0);
        cJSON_Delete(root);
        tool_free(&r);
    }
    tool_result text = tool_run("", "demo --model %s --all", m->folder);
    tool_expect(&text, 0);
    assert_non_null(strstr(text.out, "1.down_proj"));
    tool_free(&text);
}

/* Quantises the model (`part` "" or "/smooth") and compares it over the text. */
static tool_result compare_over_text(const model *m, const char *part, const char *options)
{
    tool_result quantized = tool_run("", "quantize %1$s%2$s %1$s/fp8 --force", m->folder, part);
    tool_expect(&quantized, 0);
    tool_free(&quantized);
    return tool_run("", "compare %1$s %1$s/fp8 --text %1$s/tokens.safetensors --json %2$s",
                    m->folder, options);
}

/* The checkpoint that `quantize` writes computes what the demo computes, to the bit. */
static void compare_runs_both_models(void **state)
{
    const model *m = *state;
    write_config(m, "");
    tool_result run = compare_over_text(m, "", ""),
                demo = tool_run("", "demo --model %s --json", m->folder);
    cJSON *root = tool_json(&run), *demo_root = tool_json(&demo);
    const cJSON *whole = cJSON_GetObjectItem(root, "whole_model");
    const cJSON *expected = cJSON_GetObjectItem(demo_root, "whole_model");
    static const char *const same[] = {"fp8_perplexity", "wide_perplexity", "top1_agreement"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        assert_true(tool_number(whole, same[i]) == tool_number(expected, same[i]));
    assert_int_equal(tool_number(root, "fp8_layers"), blocks * kinds);
    assert_int_equal(tool_number(root, "tokens"), tokens);

    /* each layer as in the demo, whatever its rank */
    const cJSON *row, *layer;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "tensors"))
    {
        int block, found = 0;
        assert_int_equal(sscanf(tool_string(row, "name"), "model.layers.%d.", &block), 1);
        cJSON_ArrayForEach(layer, cJSON_GetObjectItem(demo_root, "layers"))
        {
            if ((int)tool_number(layer, "block") == block &&
                strstr(tool_string(row, "name"), tool_string(layer, "kind")) != NULL) {
                found++;
                assert_true(tool_number(cJSON_GetObjectItem(row, "output"), "relative_error") ==
                            tool_number(layer, "relative_error"));
            }
        }
        assert_int_equal(found, 1);
    }
    cJSON_Delete(root);
    cJSON_Delete(demo_root);
    tool_free(&run);
    tool_free(&demo);

    run = compare_over_text(m, "", "--limit-top1 1 --limit-relative 0.5");
    root = cJSON_Parse(run.out);
    double agreement = tool_number(cJSON_GetObjectItem(root, "whole_model"), "top1_agreement");
    tool_expect(&run, agreement < 1.0 ? 1 : 0);
    cJSON_Delete(root);
    tool_free(&run);
    run = compare_over_text(m, "", "--limit-top1 1.1");
    tool_expect(&run, 1);
    tool_free(&run);
}

/* Layers of a smoothed model are compared in its own terms, not by weights that differ on purpose.
 */
static void smoothed_model(void **state)
{
    const model *m = *state;
    char text[sizeof config + 64];
    snprintf(text, sizeof text, config, "");
    files_write_text(files_path(m->folder, "smooth/config.json"), text);
    tool_result run = compare_over_text(m, "/smooth", "");
    cJSON *root = tool_json(&run);
    const cJSON *row;
    int rows = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, "tensors"))
    {
        rows++;
        assert_true(tool_number(cJSON_GetObjectItem(row, "weight"), "relative_error") < 0.05);
        assert_true(tool_number(cJSON_GetObjectItem(row, "output"), "relative_error") < 0.08);
    }
    assert_int_equal(rows, blocks * kinds);
    cJSON_Delete(root);
    tool_free(&run);
}

static const cJSON *cell_of(const cJSON *root, const char *scales, const char *method)
{
    const cJSON *cell;
    cJSON_ArrayForEach(cell, cJSON_GetObjectItem(root, "cells"))
    {
        if (strcmp(tool_string(cell, "scales"), scales) == 0 &&
            strcmp(tool_string(cell, "method"), method) == 0)
            return cell;
    }
    fail_msg("no cell %s, %s", scales, method);
    return NULL;
}

static tool_result accuracy(const model *m, const char *options)
{
    return tool_run("",
                    "accuracy %1$s --text %1$s/tokens.safetensors --calibration "
                    "%1$s/tokens.safetensors --json %2$s",
                    m->folder, options);
}

/* Cells that do what the demo does have its numbers; the same text twice changes no mean. */
static void accuracy_agrees_with_the_demo(void **state)
{
    const model *m = *state;
    write_config(m, "");
    static const char *const recipes[] = {"block", "channel"};
    static const char *const scales[] = {"1x128 . 128x128", "token . channel"};
    tool_result run = accuracy(m, "");
    cJSON *root = tool_json(&run);
    for (int i = 0; i < 2; i++) {
        tool_result demo =
            tool_run("", "demo --model %s --recipe %s --json", m->folder, recipes[i]);
        cJSON *demo_root = tool_json(&demo);
        const cJSON *expected = cJSON_GetObjectItem(demo_root, "whole_model");
        const cJSON *cell = cell_of(root, scales[i], "absmax");
        assert_true(tool_number(cell, "fp8_perplexity") == tool_number(expected, "fp8_perplexity"));
        assert_true(tool_number(cJSON_GetObjectItem(cell, "logits"), "mean_error") ==
                    tool_number(cJSON_GetObjectItem(expected, "logits"), "mean_error"));
        cJSON_Delete(demo_root);
        tool_free(&demo);
    }

    int32_t twice[2 * tokens];
    memcpy(twice, m->ids, sizeof m->ids);
    memcpy(twice + tokens, m->ids, sizeof m->ids);
    safetensors_write(files_path(m->folder, "twice.safetensors"),
                      &(stored){"ids", "I32", 4, 2, tokens, twice}, 1);
    tool_result both = tool_run("",
                                "accuracy %1$s --text %1$s/twice.safetensors --calibration "
                                "%1$s/tokens.safetensors --json",
                                m->folder);
    cJSON *both_root = tool_json(&both);
    const cJSON *cell;
    int cells = 0;
    cJSON_ArrayForEach(cell, cJSON_GetObjectItem(root, "cells"))
    {
        const cJSON *other =
            cell_of(both_root, tool_string(cell, "scales"), tool_string(cell, "method"));
        /* every method keeps the model what it is, smoothing too: unrelated logits are at 1.4 */
        double error = tool_number(cJSON_GetObjectItem(cell, "logits"), "relative_error");
        if (!(error < 0.8))
            fail_msg("%s, %s: the logits are off by %g", tool_string(cell, "scales"),
                     tool_string(cell, "method"), error);
        /* not to the bit: how OpenBLAS sums depends on the number of rows */
        double ratio = tool_number(cell, "fp8_perplexity") / tool_number(other, "fp8_perplexity");
        assert_true(fabs(ratio - 1) < 5e-3);
        cells++;
    }
    assert_true(cells > 2 * 5);
    cJSON_Delete(both_root);
    cJSON_Delete(root);
    tool_free(&both);
    tool_free(&run);
}

/* A result that is not finite is read back as such: its sums are null in the file. */
static void accuracy_reads_spoiled_results(void **state)
{
    const model *m = *state;
    write_config(m, "");
    const char *path = files_path(m->folder, "spoiled.json");
    char options[512];
    snprintf(options, sizeof options, "--output %s --scales 'token . channel' --method MSE", path);
    tool_result first = accuracy(m, options);
    cJSON *root = tool_json(&first);
    cJSON *raw = cJSON_GetObjectItem(cell_of(root, "token . channel", "MSE"), "sums");
    cJSON_SetNumberHelper(cJSON_GetObjectItem(raw, "spoiled"), 3);
    cJSON_ReplaceItemInObject(raw, "fp8_nats", cJSON_CreateNull());
    cJSON_ReplaceItemInObject(raw, "max_error", cJSON_CreateNull());
    char *text = cJSON_Print(root);
    files_write_text(path, text);
    cJSON_free(text);
    cJSON_Delete(root);
    tool_free(&first);

    tool_result second = accuracy(m, options);
    root = tool_json(&second);
    const cJSON *cell = cell_of(root, "token . channel", "MSE");
    const cJSON *logits = cJSON_GetObjectItem(cell, "logits");
    assert_int_equal(tool_number(logits, "spoiled"), 3);
    assert_true(tool_number(logits, "cosine") == 0.0);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(logits, "relative_error")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(cell, "fp8_perplexity")));
    cJSON_Delete(root);
    tool_free(&second);
}

/* A second run keeps what the file has, adds what it lacks, and takes no file of other settings. */
static void accuracy_goes_on(void **state)
{
    const model *m = *state;
    write_config(m, "");
    const char *path = files_path(m->folder, "accuracy.json");
    char options[512];
    snprintf(options, sizeof options, "--output %s --scales 'token . channel' --method MSE", path);
    tool_result first = accuracy(m, options);
    cJSON *root = tool_json(&first);
    const double kept = 12.5; /* which no run would give */
    cJSON *raw = cJSON_GetObjectItem(cell_of(root, "token . channel", "MSE"), "sums");
    cJSON_SetNumberHelper(cJSON_GetObjectItem(raw, "fp8_nats"), kept);
    char *text = cJSON_Print(root);
    files_write_text(path, text);
    cJSON_free(text);
    cJSON_Delete(root);
    tool_free(&first);

    snprintf(options, sizeof options, "--output %s", path);
    tool_result second = accuracy(m, options);
    root = tool_json(&second);
    const cJSON *cell = cell_of(root, "token . channel", "MSE");
    assert_true(fabs(tool_number(cell, "fp8_perplexity") / exp(kept / (tokens - 1)) - 1) < 1e-12);
    cell_of(root, "1x32 . 32x32", "absmax, smoothed"); /* is there */
    cJSON_Delete(root);
    tool_free(&second);

    snprintf(options, sizeof options, "--output %s --tokens 5", path);
    tool_result other = accuracy(m, options);
    tool_expect(&other, 1);
    assert_non_null(strstr(other.err, "another 'tokens_each'"));
    tool_free(&other);
}

static void refuse(const char *arguments, int code, const char *reason)
{
    tool_result r = tool_run("", "demo %s", arguments);
    tool_expect(&r, code);
    if (strstr(r.err, reason) == NULL)
        fail_msg("'%s' is not in: %s", reason, r.err);
    tool_free(&r);
}

/* A model that the forward pass would compute wrongly is refused. */
static void refusals(void **state)
{
    const model *m = *state;
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--model %s", m->folder);
    write_config(m, ", \"rope_scaling\": {\"factor\": 2}");
    refuse(arguments, 1, "rope_scaling");
    write_config(m, ", \"attention_bias\": true");
    refuse(arguments, 1, "attention_bias");
    write_config(m, ", \"head_dim\": 20");
    refuse(arguments, 1, "shape");
    write_config(m, ", \"head_dim\": 1e300");
    refuse(arguments, 1, "head_dim is 1e+300, not a size");

    write_config(m, "");
    const char *text = files_path(m->folder, "tokens.safetensors");
    safetensors_write(text, &(stored){"ids", "I32", 4, 0, 16, m->ids}, 1);
    refuse(arguments, 1, "ids hold no token");
    tool_result r = tool_run("", "compare %1$s %1$s --text %2$s", m->folder, text);
    tool_expect(&r, 1);
    assert_non_null(strstr(r.err, "ids hold no token"));
    tool_free(&r);
    safetensors_write(text, &(stored){"ids", "I32", 4, 1, 0, m->ids}, 1);
    refuse(arguments, 1, "at least 2 tokens");
    refuse("--model /nowhere", 1, "/nowhere");
    refuse("--tokens 1", 2, "--tokens");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_a_small_model),
        cmocka_unit_test(compare_runs_both_models),
        cmocka_unit_test(smoothed_model),
        cmocka_unit_test(accuracy_agrees_with_the_demo),
        cmocka_unit_test(accuracy_goes_on),
        cmocka_unit_test(accuracy_reads_spoiled_results),
        cmocka_unit_test(refusals),
    };
    test_begin(argc, argv);
    return cmocka_run_group_tests(tests, make_model, free_model);
}
