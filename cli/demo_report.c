/* SPDX-License-Identifier: MIT */
/* What `deepgemm demo` prints. */
#include "demo.h"

#include "layer.h"

#include <errno.h> /* program_invocation_name: how the tool was called */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the layers of one kind ---------------------------------------------------------- */

typedef struct summary {
    const demo_layer *worst; /* by relative error */
    double median_error, least_cosine;
    double wide_seconds, fp8_seconds; /* of one layer: the median over the blocks */
} summary;

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static summary summarize(const demo_result *r, llama_kind kind)
{
    int blocks = r->layer_count / LLAMA_BLOCK_KINDS;
    double *errors = cli_alloc((size_t)blocks * 3 * sizeof *errors);
    double *wide = errors + blocks, *fp8 = wide + blocks;
    summary s = {.worst = &r->layers[kind], .least_cosine = 1.0};
    for (int b = 0; b < blocks; b++) {
        const demo_layer *layer = &r->layers[b * LLAMA_BLOCK_KINDS + (int)kind];
        errors[b] = layer->error.relative_error;
        wide[b] = layer->wide_seconds;
        fp8[b] = layer->fp8_seconds;
        if (errors[b] > s.worst->error.relative_error)
            s.worst = layer;
        s.least_cosine = fmin(s.least_cosine, layer->error.cosine);
    }
    s.median_error = median(errors, blocks);
    s.wide_seconds = median(wide, blocks);
    s.fp8_seconds = median(fp8, blocks);
    free(errors);
    return s;
}

/* ---- text ---------------------------------------------------------------------------- */

/* Time and bytes, the same columns in both tables. */
static void add_costs(cli_table *table, double fp8_seconds, double wide_seconds, int64_t fp8_bytes,
                      int64_t wide_bytes)
{
    char text[CLI_NUMBER];
    cli_table_cell(table, "%s", cli_seconds(text, fp8_seconds));
    cli_table_cell(table, "%s", cli_seconds(text, wide_seconds));
    cli_table_cell(table, "%.2fx", wide_seconds / fp8_seconds);
    cli_table_cell(table, "%s", cli_bytes(text, (double)fp8_bytes));
    cli_table_cell(table, "%s", cli_bytes(text, (double)wide_bytes));
}

static void print_summaries(const demo_result *r)
{
    int blocks = r->layer_count / LLAMA_BLOCK_KINDS;
    double fp8_seconds = 0.0, wide_seconds = 0.0;
    int64_t fp8_bytes = 0, wide_bytes = 0;
    cli_table *table =
        cli_table_new("layer", ">error", ">worst", ">in block", ">SNR dB", ">cosine", ">FP8 time",
                      ">16 bit", ">faster", ">FP8 size", ">16 bit", NULL);
    for (llama_kind kind = 0; kind < LLAMA_BLOCK_KINDS; kind++) {
        summary s = summarize(r, kind);
        cli_table_cell(table, "%s %lld x %lld", llama_kind_names[kind], (long long)s.worst->n,
                       (long long)s.worst->k);
        cli_table_cell(table, "%.2f %%", 100 * s.median_error);
        cli_table_cell(table, "%.2f %%", 100 * s.worst->error.relative_error);
        cli_table_cell(table, "%d", s.worst->block);
        cli_table_cell(table, "%.1f", s.worst->error.snr_db);
        cli_table_cell(table, "%.5f", s.least_cosine);
        add_costs(table, s.fp8_seconds, s.wide_seconds, s.worst->fp8_bytes, s.worst->wide_bytes);
        fp8_seconds += blocks * s.fp8_seconds;
        wide_seconds += blocks * s.wide_seconds;
        fp8_bytes += blocks * s.worst->fp8_bytes;
        wide_bytes += blocks * s.worst->wide_bytes;
    }
    enum { error_columns = 5 };
    cli_table_cell(table, "%d blocks together", blocks);
    for (int i = 0; i < error_columns; i++)
        cli_table_cell(table, "%s", "");
    add_costs(table, fp8_seconds, wide_seconds, fp8_bytes, wide_bytes);
    cli_table_print(table);
    printf("error: |y8 - y16| / |y16|, the median of the blocks and the worst; SNR and cosine: the "
           "worst;\ntime: of one layer for all %lld tokens, the median of the blocks\n",
           (long long)r->tokens);
}

static void print_layers(const demo_result *r)
{
    cli_table *table =
        cli_table_new("layer", ">N", ">K", ">error", ">largest", ">SNR dB", ">cosine", ">FP8 time",
                      ">16 bit", ">faster", ">FP8 size", ">16 bit", NULL);
    for (int i = 0; i < r->layer_count; i++) {
        const demo_layer *layer = &r->layers[i];
        cli_table_cell(table, "%d.%s", layer->block, llama_kind_names[layer->kind]);
        cli_table_cell(table, "%lld", (long long)layer->n);
        cli_table_cell(table, "%lld", (long long)layer->k);
        cli_table_cell(table, "%.2f %%", 100 * layer->error.relative_error);
        cli_table_cell(table, "%.3g", layer->error.max_error);
        cli_table_cell(table, "%.1f", layer->error.snr_db);
        cli_table_cell(table, "%.5f", layer->error.cosine);
        add_costs(table, layer->fp8_seconds, layer->wide_seconds, layer->fp8_bytes,
                  layer->wide_bytes);
    }
    cli_table_print(table);
    printf("error: |y8 - y16| / |y16|; largest: max |y8 - y16|\n");
}

/* Not for generated data: a random model has nothing to predict. */
static void print_whole(const demo_result *r)
{
    const predict *w = &r->whole;
    printf("\nthe whole model, FP8 in all %d linear layers (the output head stays in 16 bits)\n",
           r->layer_count);
    printf("  logits       error %.2f %%, SNR %.1f dB, cosine %.5f\n",
           100 * w->logits.relative_error, w->logits.snr_db, w->logits.cosine);
    printf("  next token   the same prediction for %.1f %% of the tokens\n",
           100 * predict_top1_agreement(w));
    printf("  perplexity   %.3f in FP8, %.3f in 16 bits\n", predict_fp8_perplexity(w),
           predict_wide_perplexity(w));
}

void demo_print(const demo_result *r, bool all_layers)
{
    if (r->missing != NULL) {
        printf(
            "The model is not in %s.\n"
            "scripts/setup-demo.sh puts it there (`make demo` calls it) and needs a network.\n\n",
            r->missing);
        printf("model    GENERATED: random weights in SmolLM2-135M's shapes, with outliers\n");
        printf("input    GENERATED: %lld random tokens\n", (long long)r->tokens);
    } else {
        printf("model    %s\n", r->source);
        printf("input    %lld tokens of text\n", (long long)r->tokens);
    }
    printf("FP8      E4M3, scales %s, activations quantised at run time\n", r->recipe);
    printf("16 bit   the checkpoint's weights, FP32 activations and sums, by %s\n", r->wide_by);
    printf("machine  %s, %s, %d threads\n\n", r->device.name, r->device.architecture,
           r->device.units);

    (all_layers ? print_layers : print_summaries)(r);
    const double quiet = 0.1;
    if (r->others > quiet)
        printf("NOTE: other programs kept %.1f processors busy meanwhile: these times say little\n",
               r->others);

    char seconds[CLI_NUMBER];
    cli_seconds(seconds, r->seconds);
    if (r->missing != NULL) {
        printf("\n%s in all. Next: scripts/setup-demo.sh, then this again on the real model\n",
               seconds);
        return;
    }
    print_whole(r);
    printf("\n%s in all. Next: %s quantize %s smollm2-fp8\n", seconds, program_invocation_name,
           r->source);
}

/* ---- JSON ---------------------------------------------------------------------------- */

static cJSON *layer_object(const demo_layer *layer)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddNumberToObject(row, "block", layer->block);
    cJSON_AddStringToObject(row, "kind", llama_kind_names[layer->kind]);
    cJSON_AddNumberToObject(row, "n", (double)layer->n);
    cJSON_AddNumberToObject(row, "k", (double)layer->k);
    layer_add_metrics(row, &layer->error);
    cJSON_AddNumberToObject(row, "fp8_us", layer->fp8_seconds * 1e6);
    cJSON_AddNumberToObject(row, "wide_us", layer->wide_seconds * 1e6);
    cJSON_AddNumberToObject(row, "fp8_bytes", (double)layer->fp8_bytes);
    cJSON_AddNumberToObject(row, "wide_bytes", (double)layer->wide_bytes);
    return row;
}

void demo_print_json(const demo_result *r)
{
    cJSON *root = cli_json_new("demo");
    cJSON_AddStringToObject(root, "data", r->missing != NULL ? "generated" : "model");
    cJSON_AddStringToObject(root, r->missing != NULL ? "missing" : "model",
                            r->missing != NULL ? r->missing : r->source);
    cJSON_AddNumberToObject(root, "tokens", (double)r->tokens);
    cJSON_AddStringToObject(root, "recipe", r->recipe);
    cJSON_AddStringToObject(root, "wide_by", r->wide_by);
    cJSON_AddStringToObject(root, "cpu", r->device.name);
    cJSON_AddStringToObject(root, "isa", r->device.architecture);
    cJSON_AddNumberToObject(root, "threads", r->device.units);
    cJSON *layers = cJSON_AddArrayToObject(root, "layers");
    for (int i = 0; i < r->layer_count; i++)
        cJSON_AddItemToArray(layers, layer_object(&r->layers[i]));
    if (r->missing == NULL)
        predict_add_to(cJSON_AddObjectToObject(root, "whole_model"), &r->whole);
    cJSON_AddNumberToObject(root, "seconds", r->seconds);
    cJSON_AddNumberToObject(root, "others", r->others);
    cli_json_print(root);
}
