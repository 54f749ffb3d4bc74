/* SPDX-License-Identifier: MIT */
/*
 * deepgemm smooth: moves outliers from a Llama model's activations to its weights, where that makes
 * FP8 products more accurate, and writes the 16-bit model that computes the same.
 */
#include "layer.h"
#include "pieces.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Layers that share their input, by the first of them, and what makes that input. */
typedef enum group_kind { GROUP_QKV, GROUP_O, GROUP_GATE_UP, GROUP_DOWN, GROUP_KINDS } group_kind;
static const struct {
    const char *name;
    llama_kind first;
    int count;
} group_kinds[GROUP_KINDS] = {
    {"q_proj, k_proj, v_proj", LLAMA_Q, 3},
    {"o_proj", LLAMA_O, 1},
    {"gate_proj, up_proj", LLAMA_GATE, 2},
    {"down_proj", LLAMA_DOWN, 1},
};

typedef struct group {
    float *factors, *inverse; /* [features], and one over them */
    dg_smooth_report report;
} group;

typedef struct recipe {
    int32_t x_rows, x_cols, weight_rows, weight_cols;
} recipe;

typedef struct smoother {
    dg_context *context;
    const bench_peer *peer;
    llama model;
    recipe blocks;
    group *groups;     /* [blocks, GROUP_KINDS] */
    int32_t *channels; /* of o_proj's features: those of v_proj's that they come from */
    float **v_inverse; /* [blocks], each [v_proj's rows] */
    cli_progress progress;
    double done;
} smoother;

/* ---- choosing ------------------------------------------------------------------------ */

static void choose(smoother *s, int block, group_kind kind, const dg_matrix *x)
{
    group *g = &s->groups[block * GROUP_KINDS + (int)kind];
    dg_smooth smooth = DG_SMOOTH_INIT;
    smooth.x = *x;
    smooth.weights = &s->model.blocks[block].linear[group_kinds[kind].first];
    smooth.weight_count = group_kinds[kind].count;
    smooth.channels = kind == GROUP_O ? s->channels : NULL;
    smooth.x_block_rows = s->blocks.x_rows;
    smooth.x_block_cols = s->blocks.x_cols;
    smooth.weight_block_rows = s->blocks.weight_rows;
    smooth.weight_block_cols = s->blocks.weight_cols;
    g->report = (dg_smooth_report)DG_SMOOTH_REPORT_INIT;
    g->factors = cli_alloc((size_t)x->cols * sizeof *g->factors);
    g->inverse = cli_alloc((size_t)x->cols * sizeof *g->inverse);
    cli_check(dg_smooth_choose(s->context, &smooth, g->factors, &g->report), "smoothing");
    for (int64_t i = 0; i < x->cols; i++)
        g->inverse[i] = 1.0f / g->factors[i];
    cli_progress_update(&s->progress, ++s->done);
}

static void product(void *user, int block, llama_kind kind, const dg_matrix *x, const dg_matrix *y)
{
    smoother *s = user;
    for (group_kind g = 0; g < GROUP_KINDS; g++)
        if (group_kinds[g].first == kind)
            choose(s, block, g, x);
    dg_matrix w = layer_widen(&s->model.blocks[block].linear[kind]);
    layer_multiply_wide(s->peer, x, &w, y);
    free(w.data);
}

/* Query head h reads the values of head h * kv_heads / heads. */
static void fill_channels(smoother *s)
{
    const llama *m = &s->model;
    s->channels = cli_alloc((size_t)(m->heads * m->head_dim) * sizeof *s->channels);
    for (int64_t h = 0; h < m->heads; h++)
        for (int64_t i = 0; i < m->head_dim; i++)
            s->channels[h * m->head_dim + i] =
                (int32_t)(h * m->kv_heads / m->heads * m->head_dim + i);
}

/* ---- folding ------------------------------------------------------------------------- */

static dg_rescale rescale(int block, const char *tensor, const float *rows, const float *cols)
{
    return (dg_rescale){cli_format("model.layers.%d.%s.weight", block, tensor), rows, cols};
}

/* The tensors of a block with their factors: 9 of them. */
static int fold_block(smoother *s, int block, dg_rescale *out)
{
    const group *g = &s->groups[block * GROUP_KINDS];
    const llama *m = &s->model;
    const float *qkv = g[GROUP_QKV].factors, *gate_up = g[GROUP_GATE_UP].factors;
    float *v_rows = cli_alloc((size_t)(m->kv_heads * m->head_dim) * sizeof *v_rows);
    for (int64_t i = 0; i < m->heads * m->head_dim; i++)
        v_rows[s->channels[i]] = g[GROUP_O].inverse[i];
    s->v_inverse[block] = v_rows;
    dg_rescale *first = out;
    *out++ = rescale(block, "input_layernorm", g[GROUP_QKV].inverse, NULL);
    *out++ = rescale(block, "self_attn.q_proj", NULL, qkv);
    *out++ = rescale(block, "self_attn.k_proj", NULL, qkv);
    *out++ = rescale(block, "self_attn.v_proj", v_rows, qkv);
    *out++ = rescale(block, "self_attn.o_proj", NULL, g[GROUP_O].factors);
    *out++ = rescale(block, "post_attention_layernorm", g[GROUP_GATE_UP].inverse, NULL);
    *out++ = rescale(block, "mlp.gate_proj", NULL, gate_up);
    *out++ = rescale(block, "mlp.up_proj", g[GROUP_DOWN].inverse, gate_up);
    *out++ = rescale(block, "mlp.down_proj", NULL, g[GROUP_DOWN].factors);
    return (int)(out - first);
}

/* Writes the smoothed model; returns how many elements were rounded. */
static int64_t write_model(smoother *s, const char *input, const char *output, bool force)
{
    enum { TENSORS = 9 };
    dg_rescale *rescales = cli_alloc((size_t)s->model.block_count * TENSORS * sizeof *rescales);
    s->v_inverse = cli_alloc((size_t)s->model.block_count * sizeof *s->v_inverse);
    int count = 0;
    int64_t rounded = 0;
    for (int b = 0; b < s->model.block_count; b++)
        count += fold_block(s, b, rescales + count);
    cli_check(dg_checkpoint_rescale(s->context, input, output, rescales, count, force, &rounded),
              "writing the model");
    for (int i = 0; i < count; i++)
        free((char *)rescales[i].tensor);
    free(rescales);
    return rounded;
}

/* ---- output -------------------------------------------------------------------------- */

static void print_text(const smoother *s, const char *output, int64_t tokens, int64_t rounded,
                       double seconds)
{
    cli_table *table = cli_table_new("layers that share their input", ">groups", ">smoothed",
                                     ">error before", ">after", ">most gained", NULL);
    for (int kind = 0; kind < GROUP_KINDS; kind++) {
        int smoothed = 0;
        double before = 0.0, after = 0.0, most = 0.0;
        for (int b = 0; b < s->model.block_count; b++) {
            const dg_smooth_report *r = &s->groups[b * GROUP_KINDS + kind].report;
            smoothed += r->strength >= 0.0;
            before += r->error_before / s->model.block_count;
            after += r->error_after / s->model.block_count;
            if (r->error_before > 0.0)
                most = fmax(most, 1.0 - r->error_after / r->error_before);
        }
        cli_table_cell(table, "%s", group_kinds[kind].name);
        cli_table_cell(table, "%d", s->model.block_count);
        cli_table_cell(table, "%d", smoothed);
        cli_table_cell(table, "%.2f %%", 100.0 * before);
        cli_table_cell(table, "%.2f %%", 100.0 * after);
        cli_table_cell(table, "%.1f %%", 100.0 * most);
    }
    cli_table_print(table);
    char time[CLI_NUMBER];
    printf("\n%s: the same model, smoothed on %lld tokens; %lld elements were rounded; in %s\n",
           output, (long long)tokens, (long long)rounded, cli_seconds(time, seconds));
}

static void print_json(const smoother *s, char *const *paths, int64_t tokens, int64_t rounded,
                       double seconds)
{
    cJSON *root = cli_json_new("smooth");
    cJSON_AddStringToObject(root, "model", paths[0]);
    cJSON_AddStringToObject(root, "output", paths[1]);
    cJSON_AddNumberToObject(root, "tokens", (double)tokens);
    cJSON_AddNumberToObject(root, "rounded", (double)rounded);
    cJSON_AddNumberToObject(root, "seconds", seconds);
    cJSON *groups = cJSON_AddArrayToObject(root, "groups");
    for (int i = 0; i < s->model.block_count * GROUP_KINDS; i++) {
        const group *g = &s->groups[i];
        cJSON *row = cJSON_CreateObject();
        int block = i / GROUP_KINDS;
        cJSON_AddNumberToObject(row, "block", block);
        cJSON_AddStringToObject(row, "kind", group_kinds[i % GROUP_KINDS].name);
        cJSON_AddNumberToObject(row, "strength", g->report.strength);
        cJSON_AddNumberToObject(row, "relative_error_before", g->report.error_before);
        cJSON_AddNumberToObject(row, "relative_error", g->report.error_after);
        cJSON_AddItemToArray(groups, row);
    }
    cli_json_print(root);
}

/* ---- the command --------------------------------------------------------------------- */

static void release(smoother *s)
{
    for (int i = 0; i < s->model.block_count * GROUP_KINDS; i++) {
        free(s->groups[i].factors);
        free(s->groups[i].inverse);
    }
    for (int b = 0; b < s->model.block_count; b++)
        free(s->v_inverse[b]);
    free(s->v_inverse);
    free(s->groups);
    free(s->channels);
    llama_close(&s->model);
    dg_destroy(s->context);
}

int cli_smooth(int argc, char **argv)
{
    static const recipe recipes[] = {{0, 0, 0, 0}, {1, 0, 1, 0}, {1, 128, 128, 128}};
    pieces_source source = {.length = 128, .tokens = 256};
    int64_t threads = 0;
    int which = 0;
    bool force = false, json = false;
    const cli_option options[] = {
        {"recipe", "tensor|channel|block", CLI_CHOICE, &which,
         "the scales that the model will have: one each (default), token x channel, 128x128"},
        PIECES_OPTIONS(source, "128", "256"),
        CLI_FORCE(&force),
        CLI_THREADS(&threads),
        CLI_JSON(&json),
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){"smooth", "<model> <output>", 2, 2,
                     "Moves outliers from the activations of a 16-bit Llama model to its weights, "
                     "by powers of two.\n<output> is a 16-bit model that computes the same, to be "
                     "quantised.",
                     options},
        argc, argv);

    cli_expect_folder(paths[1], force);

    double began = cli_now();
    smoother s = {.blocks = recipes[which]};
    s.context = cli_context(threads);
    s.peer = layer_wide_peer(s.context);
    s.model = llama_open(paths[0]);
    pieces p = pieces_read(&s.model, paths[0], &source);
    int groups = s.model.block_count * GROUP_KINDS;
    s.groups = cli_alloc((size_t)groups * sizeof *s.groups);
    fill_channels(&s);
    s.progress = cli_progress_start("smoothing", groups);
    llama_forward(&s.model, p.ids, p.count, p.tokens, product, &s, NULL);
    cli_progress_end(&s.progress);
    int64_t rounded = write_model(&s, paths[0], paths[1], force);
    double seconds = cli_now() - began;
    if (json)
        print_json(&s, paths, p.count * p.tokens, rounded, seconds);
    else
        print_text(&s, paths[1], p.count * p.tokens, rounded, seconds);
    if (rounded > 0)
        cli_warn(
            "%lld elements left the range of their type: the smoothed model is not quite the same",
            (long long)rounded);
    pieces_free(&p);
    release(&s);
    return CLI_OK;
}
