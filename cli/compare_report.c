/* SPDX-License-Identifier: MIT */
/* What `deepgemm compare` prints. */
#include "compare.h"

#include <math.h>
#include <stdio.h>

/* ---- text ---------------------------------------------------------------------------- */

static void add_row(cli_table *table, const compare_row *row)
{
    const dg_comparison *c = compare_judged(row);
    cli_table_cell(table, "%s", row->name);
    cli_table_cell(table, "%lld x %lld", (long long)row->n, (long long)row->k);
    cli_table_cell(table, "%.2f %%", 100 * row->weight.relative_error);
    if (row->has_output)
        cli_table_cell(table, "%.2f %%", 100 * row->output.relative_error);
    else
        cli_table_cell(table, "-");
    cli_table_cell(table, "%.1f", c->snr_db);
    cli_table_cell(table, "%.5f", c->cosine);
    cli_table_cell(table, "%.3g", c->max_error);
    cli_table_cell(table, "%lld", (long long)c->spoiled);
    cli_table_cell(table, "%s", row->failed ? "FAILS" : "");
}

static void print_inputs(const compare_report *r)
{
    if (r->inputs != NULL)
        printf("inputs     %s\n", r->inputs);
    else
        printf("inputs     SAMPLED: %lld tokens a layer, normal, about one feature in 100 times %g "
               "(--seed %llu)\n",
               (long long)r->tokens, (double)layer_outlier_gain, (unsigned long long)r->seed);
}

void compare_print(const compare_report *r)
{
    printf("reference  %s, multiplied by %s\n", r->reference, r->wide_by);
    printf("result     %s, activations quantised for each token\n", r->result);
    print_inputs(r);
    printf("\n");
    if (r->row_count > 0) {
        cli_table *table = cli_table_new("tensor", ">N x K", ">weight", ">output", ">SNR dB",
                                         ">cosine", ">largest", ">NaN, Inf", "", NULL);
        for (int i = 0; i < r->row_count && i < r->shown; i++)
            add_row(table, &r->rows[i]);
        cli_table_print(table);
        if (r->shown < r->row_count)
            printf("... and %lld better ones: --all shows them\n",
                   (long long)(r->row_count - r->shown));
        printf("weight, output: relative error; the other columns are those of the worse one\n\n");
    }
    printf("%d layers in FP8, %d other tensors that differ, %d identical\n", r->layer_count,
           r->row_count - r->layer_count, r->identical_count);
    for (int i = 0; i < r->problems->count; i++)
        printf("not compared: %s\n", r->problems->items[i]);
    if (r->failed_count > 0)
        printf("%d of %d FAIL\n", r->failed_count, r->row_count);
    else if (isfinite(r->limit_cosine) || isfinite(r->limit_relative))
        printf("all within the limits\n");
}

/* ---- JSON ---------------------------------------------------------------------------- */

static cJSON *row_object(const compare_row *row)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", row->name);
    cJSON_AddNumberToObject(object, "n", (double)row->n);
    cJSON_AddNumberToObject(object, "k", (double)row->k);
    layer_add_metrics(cJSON_AddObjectToObject(object, "weight"), &row->weight);
    if (row->has_output)
        layer_add_metrics(cJSON_AddObjectToObject(object, "output"), &row->output);
    cJSON_AddBoolToObject(object, "failed", row->failed);
    return object;
}

void compare_print_json(const compare_report *r)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "reference", r->reference);
    cJSON_AddStringToObject(root, "result", r->result);
    cJSON_AddStringToObject(root, "wide_by", r->wide_by);
    cJSON_AddStringToObject(root, "inputs", r->inputs != NULL ? r->inputs : "sampled");
    if (r->inputs == NULL) {
        cJSON_AddNumberToObject(root, "tokens", (double)r->tokens);
        cJSON_AddNumberToObject(root, "seed", (double)r->seed);
    }
    cJSON *rows = cJSON_AddArrayToObject(root, "tensors");
    for (int i = 0; i < r->row_count; i++)
        cJSON_AddItemToArray(rows, row_object(&r->rows[i]));
    cJSON_AddNumberToObject(root, "fp8_layers", r->layer_count);
    cJSON_AddNumberToObject(root, "identical", r->identical_count);
    cJSON_AddNumberToObject(root, "failed", r->failed_count);
    cJSON *problems = cJSON_AddArrayToObject(root, "not_compared");
    for (int i = 0; i < r->problems->count; i++)
        cJSON_AddItemToArray(problems, cJSON_CreateString(r->problems->items[i]));
    cli_json_print(root);
}
