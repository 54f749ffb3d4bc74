/* SPDX-License-Identifier: MIT */
/* deepgemm scales: chooses the scales of a checkpoint's weights, and from statistics those of its
 * activations, for deepgemm quantize. */
#include "tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* One layer, or the worst of each number over the layers of a kind. */
typedef struct line {
    char *name;
    int layers;
    int without_input, from_siblings, from_nothing; /* layers */
    float input_scale;
    double weight_error, weight_clipped, input_error, input_clipped;
} line;

typedef struct report {
    cli_progress progress;
    line *lines; /* one for each layer */
    int count, room;
} report;

static bool take_layer(void *user, const dg_layer_scales *layer)
{
    report *r = user;
    if (r->count == r->room) {
        r->room = 2 * r->room + 64;
        r->lines = realloc(r->lines, (size_t)r->room * sizeof *r->lines);
        if (r->lines == NULL)
            cli_die("no memory for the report");
    }
    bool input = layer->input_scale > 0.0f;
    r->lines[r->count++] = (line){
        .name = cli_format("%s", layer->layer),
        .layers = 1,
        .without_input = !input,
        .from_siblings = input && layer->input.origin == DG_FROM_SIBLINGS,
        .from_nothing = input && layer->input.origin == DG_FROM_NOTHING,
        .input_scale = layer->input_scale,
        .weight_error = layer->weight.relative_error,
        .weight_clipped = layer->weight.clipped,
        .input_error = layer->input.relative_error,
        .input_clipped = layer->input.clipped,
    };
    cli_progress_update(&r->progress, (double)layer->done / (double)layer->total);
    return !cli_interrupted();
}

/* Adds a line to that of its kind. */
static void add_to_kinds(line *kinds, int *count, const line *one)
{
    char *name = tensors_kind(one->name);
    int k = 0;
    while (k < *count && !tensors_same(kinds[k].name, name))
        k++;
    if (k == *count) {
        kinds[k] = *one;
        kinds[k].name = name;
        (*count)++;
        return;
    }
    free(name);
    kinds[k].layers++;
    kinds[k].without_input += one->without_input;
    kinds[k].weight_error = fmax(kinds[k].weight_error, one->weight_error);
    kinds[k].weight_clipped = fmax(kinds[k].weight_clipped, one->weight_clipped);
    kinds[k].input_error = fmax(kinds[k].input_error, one->input_error);
    kinds[k].input_clipped = fmax(kinds[k].input_clipped, one->input_clipped);
}

static void print_lines(const line *lines, int count, bool inputs)
{
    cli_table *table = cli_table_new("layer", ">layers", ">weight error", ">clipped", NULL);
    if (inputs) {
        cli_table_column(table, ">input error");
        cli_table_column(table, ">clipped");
    }
    for (int i = 0; i < count; i++) {
        cli_table_cell(table, "%s", lines[i].name);
        cli_table_cell(table, "%d", lines[i].layers);
        cli_table_cell(table, "%.2f %%", 100.0 * lines[i].weight_error);
        cli_table_cell(table, "%.2g %%", 100.0 * lines[i].weight_clipped);
        if (!inputs)
            continue;
        if (lines[i].without_input < lines[i].layers) {
            cli_table_cell(table, "%.2f %%", 100.0 * lines[i].input_error);
            cli_table_cell(table, "%.2g %%", 100.0 * lines[i].input_clipped);
        } else {
            cli_table_cell(table, "%s", "");
            cli_table_cell(table, "%s", "");
        }
    }
    cli_table_print(table);
}

static void print_text(const report *r, const char *output, bool inputs, bool all, double seconds)
{
    line *kinds = cli_alloc((size_t)r->count * sizeof *kinds);
    int count = 0;
    for (int i = 0; i < r->count; i++)
        add_to_kinds(kinds, &count, &r->lines[i]);
    print_lines(all ? r->lines : kinds, all ? r->count : count, inputs);
    for (int k = 0; k < count; k++)
        free(kinds[k].name);
    free(kinds);
    char time[CLI_NUMBER];
    printf("\n%s: scales of %d layers, in %s\n", output, r->count, cli_seconds(time, seconds));
}

static void print_json(const report *r, const char *const *paths, double seconds)
{
    static const char *const origins[] = {"layer", "siblings", "nothing"};
    cJSON *root = cli_json_new("scales");
    cJSON_AddStringToObject(root, "input", paths[0]);
    cJSON_AddStringToObject(root, "output", paths[1]);
    cJSON_AddNumberToObject(root, "seconds", seconds);
    cJSON *layers = cJSON_AddArrayToObject(root, "layers");
    for (int i = 0; i < r->count; i++) {
        const line *l = &r->lines[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", l->name);
        cJSON *weight = cJSON_AddObjectToObject(row, "weight");
        cJSON_AddNumberToObject(weight, "relative_error", l->weight_error);
        cJSON_AddNumberToObject(weight, "clipped", l->weight_clipped);
        if (!l->without_input) {
            cJSON *input = cJSON_AddObjectToObject(row, "input");
            cJSON_AddNumberToObject(input, "scale", (double)l->input_scale);
            cJSON_AddNumberToObject(input, "relative_error", l->input_error);
            cJSON_AddNumberToObject(input, "clipped", l->input_clipped);
            cJSON_AddStringToObject(input, "origin",
                                    origins[l->from_siblings  ? 1
                                            : l->from_nothing ? 2
                                                              : 0]);
        }
        cJSON_AddItemToArray(layers, row);
    }
    cli_json_print(root);
}

static void print_warnings(const report *r, bool inputs)
{
    for (int i = 0; i < r->count && inputs; i++) {
        const line *l = &r->lines[i];
        const char *what = l->without_input   ? "is not in the statistics: it gets no input scale"
                           : l->from_siblings ? "met no token: its input scale is that of the "
                                                "other experts"
                           : l->from_nothing  ? "met no token, nor did a sibling: its input scale "
                                                "is 1"
                                              : NULL;
        if (what != NULL)
            cli_warn("%s %s", l->name, what);
    }
}

int cli_scales(int argc, char **argv)
{
    static const char methods[] = "amax|percentile|mse|kl";
    static const struct {
        int32_t rows, cols;
    } grains[] = {{0, 0}, {1, 0}, {128, 128}, {1, 32}}; /* in the order of the words below */
    const char *calibration = NULL;
    int inputs = DG_METHOD_AMAX, weights = DG_METHOD_AMAX, grain = 2;
    int64_t threads = 0;
    double percentile = 99.99;
    bool pow2 = false, weigh = false, strict = false, all = false, json = false;
    cli_list keep = {0};
    const cli_option options[] = {
        {"calibration", "file", CLI_TEXT, &calibration,
         "statistics from deepgemm calibrate: also choose static scales for the inputs"},
        {"inputs", methods, CLI_CHOICE, &inputs, "how to choose the inputs' scales (default amax)"},
        {"weights", methods, CLI_CHOICE, &weights,
         "how to choose the weights' scales (default amax)"},
        {"percentile", "p", CLI_REAL, &percentile,
         "what percentile means, in per cent (default 99.99)"},
        {"granularity", "tensor|channel|block|mx", CLI_CHOICE, &grain,
         "what a weight's scale covers: all, a row, 128x128 (default), 1x32; as the format has it"},
        {"pow2", NULL, CLI_FLAG, &pow2, "weights' scales are powers of two, as some formats need"},
        {"weigh", NULL, CLI_FLAG, &weigh,
         "with --weights mse: by what each column meets, so that the product's error counts"},
        {"strict", NULL, CLI_FLAG, &strict, "fail when a layer has met no token"},
        {"keep", "pattern", CLI_LIST, &keep, "layers to leave out, as for deepgemm quantize"},
        CLI_THREADS(&threads),
        {"all", NULL, CLI_FLAG, &all, "a line for each layer, not for each kind"},
        CLI_JSON(&json),
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){"scales", "<checkpoint> <output>", 2, 2,
                     "Chooses the scales of a 16-bit checkpoint's linear layers. <output> is a "
                     "safetensors file\nfor deepgemm quantize --scales.",
                     options},
        argc, argv);
    if (!(percentile > 0.0 && percentile <= 100.0))
        cli_misuse("--percentile takes more than 0 and at most 100, not %g", percentile);
    if ((weigh || strict) && calibration == NULL)
        cli_misuse("--%s needs --calibration", weigh ? "weigh" : "strict");

    cli_expect_output(paths[1]);

    double began = cli_now();
    dg_context *context = cli_context(threads);
    dg_statistics *statistics = NULL;
    if (calibration != NULL)
        cli_check(dg_statistics_load(&statistics, calibration), "reading statistics");
    report r = {.progress = cli_progress_start("choosing scales", 1.0)};
    dg_scales_options job = DG_SCALES_OPTIONS_INIT;
    job.statistics = statistics;
    job.inputs.method = (dg_scale_method)inputs;
    job.weights.method = (dg_scale_method)weights;
    job.inputs.percentile = job.weights.percentile = percentile;
    job.weights.rounding = pow2 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;
    job.block_rows = grains[grain].rows;
    job.block_cols = grains[grain].cols;
    job.weigh_columns = weigh;
    job.strict = strict;
    job.keep = keep.items;
    job.keep_count = keep.count;
    job.report = take_layer;
    job.user = &r;
    cli_catch_interrupt();
    dg_status status = dg_scales_write(context, paths[0], paths[1], &job);
    cli_progress_end(&r.progress);
    cli_check(status, "choosing scales");
    double seconds = cli_now() - began;
    if (json)
        print_json(&r, (const char *const *)paths, seconds);
    else
        print_text(&r, paths[1], statistics != NULL, all, seconds);
    print_warnings(&r, statistics != NULL);
    for (int i = 0; i < r.count; i++)
        free(r.lines[i].name);
    free(r.lines);
    cli_list_free(&keep);
    dg_statistics_destroy(statistics);
    dg_destroy(context);
    return CLI_OK;
}
