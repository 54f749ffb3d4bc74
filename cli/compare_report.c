/* SPDX-License-Identifier: MIT */
/* What `deepgemm compare` prints. */
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- text ---------------------------------------------------------------------------- */

static void add_percent(cli_table *table, bool known, double share, int decimals)
{
    if (fabs(share) < 0.5 * pow(10, -2 - decimals))
        share = 0.0; /* without a sign */
    if (known)
        cli_table_cell(table, "%.*f %%", decimals, 100 * share);
    else
        cli_table_cell(table, "-");
}

static void add_row(cli_table *table, const compare_row *row)
{
    const dg_comparison *c = compare_judged(row);
    cli_table_cell(table, "%s", row->name);
    cli_table_cell(table, "%lld x %lld", (long long)row->n, (long long)row->k);
    add_percent(table, true, row->weight.relative_error, 2);
    add_percent(table, row->has_output, row->output.relative_error, 2);
    for (compare_cause cause = 0; cause < COMPARE_CAUSES; cause++)
        add_percent(table, row->has_output, compare_cause_share(row, cause), 0);
    cli_table_cell(table, "%.1f", c->snr_db);
    cli_table_cell(table, "%.5f", c->cosine);
    cli_table_cell(table, "%.3g", c->max_error);
    cli_table_cell(table, "%lld",
                   (long long)(row->weight_counts.saturated + row->input_counts.saturated));
    cli_table_cell(table, "%lld",
                   (long long)(row->weight_counts.underflow + row->input_counts.underflow));
    cli_table_cell(table, "%lld", (long long)c->spoiled);
    cli_table_cell(table, "%s", row->failed ? "FAILS" : "");
}

static void print_inputs(const compare_report *r)
{
    if (r->text != NULL)
        printf("inputs     of each layer in the reference's run over %lld tokens of %s\n",
               (long long)r->tokens, r->text);
    else if (r->inputs != NULL)
        printf("inputs     %s\n", r->inputs);
    else
        printf("inputs     SAMPLED: %lld tokens a layer, normal, about one feature in 100 times %g "
               "(--seed %llu)\n",
               (long long)r->tokens, (double)layer_outlier_gain, (unsigned long long)r->seed);
}

static void print_rows(const compare_report *r)
{
    cli_table *table = cli_table_new("tensor", ">N x K", ">weight", ">output", ">by w", ">by x",
                                     ">by sum", ">SNR dB", ">cosine", ">largest", ">clipped",
                                     ">to zero", ">NaN, Inf", "", NULL);
    for (int i = 0; i < r->row_count && i < r->shown; i++)
        add_row(table, &r->rows[i]);
    cli_table_print(table);
    if (r->shown < r->row_count)
        printf("... and %lld better ones: --all shows them\n",
               (long long)(r->row_count - r->shown));
    printf(
        "weight, output: relative error; SNR, cosine, largest: of the worse one. by w, x, sum: "
        "what the\nweights, the activations and the accumulation caused of the output's error. "
        "clipped, to zero:\nvalues of the weight and the activations that saturate or vanish\n\n");
}

static void print_whole(const compare_report *r)
{
    const predict *w = &r->whole;
    printf("logits       error %.2f %%, mean absolute %.4f, SNR %.1f dB, cosine %.5f%s\n",
           100 * w->logits.relative_error, w->logits.mean_error, w->logits.snr_db, w->logits.cosine,
           w->logits.spoiled > 0 ? "  FAILS" : "");
    printf("next token   the same prediction for %.1f %% of the tokens%s\n",
           100 * predict_top1_agreement(w),
           predict_top1_agreement(w) < r->limit_top1 ? "  FAILS" : "");
    printf("perplexity   %.3f in the result, %.3f in the reference\n\n", predict_fp8_perplexity(w),
           predict_wide_perplexity(w));
}

void compare_print(const compare_report *r)
{
    printf("reference  %s, multiplied by %s\n", r->reference, r->wide_by);
    printf("result     %s, activations quantised as it says\n", r->result);
    print_inputs(r);
    printf("\n");
    if (r->row_count > 0)
        print_rows(r);
    if (r->text != NULL)
        print_whole(r);
    printf("%d layers in FP8, %d other tensors that differ, %d identical\n", r->layer_count,
           r->row_count - r->layer_count, r->identical_count);
    for (int i = 0; i < r->problems.count; i++) {
        char *problem = cli_format("%s", r->problems.items[i]);
        printf("not compared: %s\n", cli_printable(problem));
        free(problem);
    }
    if (r->failed_count > 0)
        printf("%d of %d FAIL\n", r->failed_count, r->row_count);
    else if (!r->whole_failed &&
             (isfinite(r->limit_cosine) || isfinite(r->limit_relative) || isfinite(r->limit_top1)))
        printf("all within the limits\n");
}

/* ---- JSON ---------------------------------------------------------------------------- */

static void add_causes(cJSON *object, const compare_row *row)
{
    for (compare_cause cause = 0; cause < COMPARE_CAUSES; cause++) {
        cJSON *part = cJSON_AddObjectToObject(object, compare_cause_names[cause]);
        cJSON_AddNumberToObject(part, "relative_error", compare_cause_error(row, cause));
        cJSON_AddNumberToObject(part, "share", compare_cause_share(row, cause));
    }
}

static cJSON *row_object(const compare_row *row)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "name", row->name);
    cJSON_AddNumberToObject(object, "n", (double)row->n);
    cJSON_AddNumberToObject(object, "k", (double)row->k);
    cJSON *weight = cJSON_AddObjectToObject(object, "weight");
    layer_add_metrics(weight, &row->weight);
    if (row->is_layer)
        layer_add_counts(weight, &row->weight_counts);
    if (row->has_output) {
        layer_add_metrics(cJSON_AddObjectToObject(object, "output"), &row->output);
        layer_add_counts(cJSON_AddObjectToObject(object, "activations"), &row->input_counts);
        add_causes(cJSON_AddObjectToObject(object, "caused_by"), row);
    }
    cJSON_AddBoolToObject(object, "failed", row->failed);
    return object;
}

void compare_print_json(const compare_report *r)
{
    cJSON *root = cli_json_new("compare");
    cJSON_AddStringToObject(root, "reference", r->reference);
    cJSON_AddStringToObject(root, "result", r->result);
    cJSON_AddStringToObject(root, "wide_by", r->wide_by);
    const char *inputs = r->text != NULL ? r->text : r->inputs;
    cJSON_AddStringToObject(root, "inputs", inputs != NULL ? inputs : "sampled");
    if (r->inputs == NULL)
        cJSON_AddNumberToObject(root, "tokens", (double)r->tokens);
    if (inputs == NULL)
        cJSON_AddNumberToObject(root, "seed", (double)r->seed);
    cJSON *rows = cJSON_AddArrayToObject(root, "tensors");
    for (int i = 0; i < r->row_count; i++)
        cJSON_AddItemToArray(rows, row_object(&r->rows[i]));
    if (r->text != NULL) {
        cJSON *whole = cJSON_AddObjectToObject(root, "whole_model");
        predict_add_to(whole, &r->whole);
        cJSON_AddBoolToObject(whole, "failed", r->whole_failed);
    }
    cJSON_AddNumberToObject(root, "fp8_layers", r->layer_count);
    cJSON_AddNumberToObject(root, "identical", r->identical_count);
    cJSON_AddNumberToObject(root, "failed", r->failed_count);
    cJSON *problems = cJSON_AddArrayToObject(root, "not_compared");
    for (int i = 0; i < r->problems.count; i++)
        cJSON_AddItemToArray(problems, cJSON_CreateString(r->problems.items[i]));
    cli_json_print(root);
}
