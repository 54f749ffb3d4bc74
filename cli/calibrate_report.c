/* SPDX-License-Identifier: MIT */
/* What calibrating found out, as a table, as JSON and as warnings: see calibrate.h. */
#include "calibrate.h"

#include "tensors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const calibrate_methods[CALIBRATE_METHODS] = {
    [DG_METHOD_AMAX] = "amax",
    [DG_METHOD_PERCENTILE] = "percentile",
    [DG_METHOD_MSE] = "mse",
    [DG_METHOD_KL] = "kl",
};

/* ---- judging ------------------------------------------------------------------------- */

static calibrate_scale judge(const calibrate_result *result, const dg_observed *layer,
                             dg_scale_method method, const dg_statistics *held_out)
{
    calibrate_scale s = {.seen = DG_SCALE_QUALITY_INIT, .held_out = DG_SCALE_QUALITY_INIT};
    dg_scale_choice choice = DG_SCALE_CHOICE_INIT;
    choice.method = method;
    choice.percentile = result->percentile;
    dg_scale scale = dg_scale_of(&s.scale, DG_F32, 1, layer->features, 0, 0);
    cli_check(dg_statistics_choose(result->statistics, layer->layer, &choice, &scale, &s.seen),
              "choosing a scale");
    if (result->held_out_tokens > 0)
        cli_check(dg_statistics_judge(held_out, layer->layer, &scale, DG_E4M3, &s.held_out),
                  "judging a scale");
    return s;
}

void calibrate_judge(calibrate_result *result, const dg_statistics *held_out)
{
    dg_observed observed = DG_OBSERVED_INIT;
    while (dg_statistics_layer_at(result->statistics, result->layer_count, &observed) == DG_OK)
        result->layer_count++;
    result->layers = cli_alloc((size_t)result->layer_count * sizeof *result->layers);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < result->layer_count; i++) {
        calibrate_layer *l = &result->layers[i];
        l->observed = (dg_observed)DG_OBSERVED_INIT;
        cli_check(dg_statistics_layer_at(result->statistics, i, &l->observed), "reading a layer");
        for (int m = 0; m < CALIBRATE_METHODS; m++)
            l->scales[m] = judge(result, &l->observed, (dg_scale_method)m, held_out);
    }
}

/* ---- the table ----------------------------------------------------------------------- */

/* One layer, or the worst of each number over the layers of a kind. */
typedef struct line {
    char *name;
    int layers;
    float amax;
    double errors[CALIBRATE_METHODS], clipped[CALIBRATE_METHODS];
} line;

static line line_of(const calibrate_result *result, int layer, bool kind)
{
    const calibrate_layer *l = &result->layers[layer];
    line one = {.layers = 1, .amax = l->observed.amax};
    one.name = kind ? tensors_kind(l->observed.layer) : cli_format("%s", l->observed.layer);
    for (int m = 0; m < CALIBRATE_METHODS; m++) {
        bool held_out = l->scales[m].held_out.elements > 0.0;
        const dg_scale_quality *q = held_out ? &l->scales[m].held_out : &l->scales[m].seen;
        one.errors[m] = q->relative_error;
        one.clipped[m] = q->clipped;
    }
    return one;
}

static void add_line(line *lines, int *count, line one)
{
    for (int i = 0; i < *count; i++) {
        if (!tensors_same(lines[i].name, one.name))
            continue;
        lines[i].layers++;
        lines[i].amax = fmaxf(lines[i].amax, one.amax);
        for (int m = 0; m < CALIBRATE_METHODS; m++) {
            lines[i].errors[m] = fmax(lines[i].errors[m], one.errors[m]);
            lines[i].clipped[m] = fmax(lines[i].clipped[m], one.clipped[m]);
        }
        free(one.name);
        return;
    }
    lines[(*count)++] = one;
}

void calibrate_print(const calibrate_result *result, bool all_layers)
{
    line *lines = cli_alloc((size_t)result->layer_count * sizeof *lines);
    int count = 0;
    for (int i = 0; i < result->layer_count; i++)
        add_line(lines, &count, line_of(result, i, !all_layers));
    bool held_out = result->held_out_tokens > 0;
    printf("One static scale for a layer's input: the worst error and the worst share that clips, "
           "on %s.\n\n",
           held_out ? "the text held out" : "the text seen (none was held out)");
    cli_table *table = cli_table_new("layer", ">layers", ">largest", NULL);
    for (int m = 0; m < CALIBRATE_METHODS; m++) {
        char *title = m == DG_METHOD_PERCENTILE ? cli_format(">%g %%", result->percentile)
                                                : cli_format(">%s", calibrate_methods[m]);
        cli_table_column(table, title);
        cli_table_column(table, ">clips");
        free(title);
    }
    for (int i = 0; i < count; i++) {
        cli_table_cell(table, "%s", lines[i].name);
        cli_table_cell(table, "%d", lines[i].layers);
        cli_table_cell(table, "%.3g", (double)lines[i].amax);
        for (int m = 0; m < CALIBRATE_METHODS; m++) {
            cli_table_cell(table, "%.2f %%", 100.0 * lines[i].errors[m]);
            cli_table_cell(table, "%.2g %%", 100.0 * lines[i].clipped[m]);
        }
        free(lines[i].name);
    }
    cli_table_print(table);
    free(lines);
    char time[CLI_NUMBER];
    if (result->model != NULL)
        printf("\n%s: statistics of %lld tokens; %lld others were held out; in %s\n",
               result->output, (long long)result->tokens, (long long)result->held_out_tokens,
               cli_seconds(time, result->seconds));
    else
        printf("\n%s: merged statistics of %d layers\n", result->output, result->layer_count);
}

/* ---- JSON ---------------------------------------------------------------------------- */

static void add_quality(cJSON *row, const char *name, const dg_scale_quality *q)
{
    cJSON *object = cJSON_AddObjectToObject(row, name);
    cJSON_AddNumberToObject(object, "relative_error", q->relative_error);
    cJSON_AddNumberToObject(object, "clipped", q->clipped);
    cJSON_AddNumberToObject(object, "underflow", q->underflow);
}

/* The histogram with so many bins an octave: pairs of a bin's least magnitude and its count. */
static void add_histogram(cJSON *row, const dg_statistics *statistics, const char *layer)
{
    const double bins_an_octave = 4.0;
    int64_t count = 0;
    cli_check(dg_statistics_histogram(statistics, layer, NULL, &count), "reading a histogram");
    dg_bin *bins = cli_alloc((size_t)count * sizeof *bins);
    cli_check(dg_statistics_histogram(statistics, layer, bins, &count), "reading a histogram");
    cJSON *list = cJSON_AddArrayToObject(row, "histogram");
    for (int64_t i = 0; i < count;) {
        double place = floor(log2((double)bins[i].magnitude) * bins_an_octave);
        double edge = exp2((place + 1.0) / bins_an_octave), sum = 0.0;
        for (; i < count && (double)bins[i].magnitude < edge; i++)
            sum += bins[i].count;
        cJSON *pair = cJSON_CreateArray();
        cJSON_AddItemToArray(pair, cJSON_CreateNumber(exp2(place / bins_an_octave)));
        cJSON_AddItemToArray(pair, cJSON_CreateNumber(sum));
        cJSON_AddItemToArray(list, pair);
    }
    free(bins);
}

static cJSON *describe(const calibrate_result *result, const calibrate_layer *l)
{
    static const char *const origins[] = {"layer", "siblings", "nothing"};
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", l->observed.layer);
    cJSON_AddNumberToObject(row, "features", (double)l->observed.features);
    cJSON_AddNumberToObject(row, "tokens", (double)l->observed.tokens);
    cJSON_AddNumberToObject(row, "batches", (double)l->observed.batches);
    cJSON_AddNumberToObject(row, "non_finite", (double)l->observed.non_finite);
    cJSON_AddNumberToObject(row, "amax", (double)l->observed.amax);
    cJSON_AddStringToObject(row, "origin", origins[l->scales[0].seen.origin]);
    cJSON *methods = cJSON_AddObjectToObject(row, "methods");
    for (int m = 0; m < CALIBRATE_METHODS; m++) {
        const calibrate_scale *s = &l->scales[m];
        cJSON *method = cJSON_AddObjectToObject(methods, calibrate_methods[m]);
        cJSON_AddNumberToObject(method, "scale", (double)s->scale);
        add_quality(method, "seen", &s->seen);
        if (s->held_out.elements > 0.0)
            add_quality(method, "held_out", &s->held_out);
    }
    add_histogram(row, result->statistics, l->observed.layer);
    return row;
}

void calibrate_print_json(const calibrate_result *result)
{
    cJSON *root = cli_json_new("calibrate");
    if (result->model != NULL) {
        cJSON_AddStringToObject(root, "model", result->model);
        if (result->text != NULL)
            cJSON_AddStringToObject(root, "text", result->text);
    }
    cJSON_AddStringToObject(root, "output", result->output);
    cJSON_AddNumberToObject(root, "tokens", (double)result->tokens);
    cJSON_AddNumberToObject(root, "held_out_tokens", (double)result->held_out_tokens);
    cJSON_AddNumberToObject(root, "percentile", result->percentile);
    cJSON_AddNumberToObject(root, "seconds", result->seconds);
    cJSON *layers = cJSON_AddArrayToObject(root, "layers");
    for (int i = 0; i < result->layer_count; i++)
        cJSON_AddItemToArray(layers, describe(result, &result->layers[i]));
    cli_json_print(root);
}

/* ---- warnings ------------------------------------------------------------------------ */

void calibrate_warn(const calibrate_result *result)
{
    static const char *const without[] = {
        [DG_FROM_SIBLINGS] = "its scale is that of the other experts",
        [DG_FROM_NOTHING] = "and no sibling did: its scale is 1",
    };
    int64_t fewest = INT64_MAX;
    double worst = 0.0;
    const char *worst_layer = NULL;
    for (int i = 0; i < result->layer_count; i++) {
        const calibrate_layer *l = &result->layers[i];
        const calibrate_scale *amax = &l->scales[DG_METHOD_AMAX];
        if (l->observed.tokens == 0)
            cli_warn("%s met no token; %s", l->observed.layer, without[amax->seen.origin]);
        else if (l->observed.tokens < fewest)
            fewest = l->observed.tokens;
        if (l->observed.non_finite > 0)
            cli_warn("%s met %lld values that are not finite", l->observed.layer,
                     (long long)l->observed.non_finite);
        if (amax->held_out.clipped > worst) {
            worst = amax->held_out.clipped;
            worst_layer = l->observed.layer;
        }
    }
    if (fewest < result->least_tokens)
        cli_warn(
            "some layers met only %lld tokens; static scales from fewer than %lld are not to be "
            "trusted",
            (long long)fewest, (long long)result->least_tokens);
    const double too_often = 1e-5;
    if (worst > too_often)
        cli_warn("%.2g %% of what %s meets in the text held out lies beyond all that it was "
                 "calibrated on",
                 100.0 * worst, worst_layer);
}
