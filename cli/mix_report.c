/* SPDX-License-Identifier: MIT */
/* What `deepgemm mix` found out, as a table and as JSON. */
#include "mix.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *precision_name(int32_t index)
{
    return index == MIX_RECIPES ? "16 bits" : mix_recipes[index].name;
}

/* The worst that any of the layer's recipes does. */
static double worst_of(const mix_layer *l)
{
    double worst = 0.0;
    for (int r = 0; r < MIX_RECIPES; r++)
        if (isfinite(l->precisions[r].error))
            worst = fmax(worst, l->precisions[r].error);
    return worst;
}

static int by_worst(const void *a, const void *b)
{
    const mix_layer *x = *(const mix_layer *const *)a, *y = *(const mix_layer *const *)b;
    double left = worst_of(x), right = worst_of(y);
    if (left != right)
        return left > right ? -1 : 1;
    return x < y ? -1 : 1;
}

/* The layers, worst first; to be freed. */
static const mix_layer **ordered(const mix *m)
{
    const mix_layer **order = cli_alloc((size_t)m->layer_count * sizeof *order);
    for (int i = 0; i < m->layer_count; i++)
        order[i] = &m->layers[i];
    qsort(order, (size_t)m->layer_count, sizeof *order, by_worst);
    return order;
}

void mix_print(const mix *m, bool all)
{
    enum { SHORT = 20 };
    const mix_layer **order = ordered(m);
    int shown = all || m->layer_count < SHORT ? m->layer_count : SHORT, wide = 0;
    printf("How far the model's predictions move when one layer alone is in FP8 (mean divergence "
           "in nats a token,\n%lld tokens), and the precision chosen for it. Worst first.\n\n",
           (long long)(m->text.count * m->text.tokens));
    cli_table *table = cli_table_new("layer", NULL);
    for (int r = 0; r < MIX_RECIPES; r++) {
        char *title = cli_format(">%s", mix_recipes[r].name);
        if (m->asked[r])
            cli_table_column(table, title);
        free(title);
    }
    cli_table_column(table, ">16-bit bytes");
    cli_table_column(table, "chosen");
    char bytes[CLI_NUMBER], before[CLI_NUMBER], time[CLI_NUMBER];
    for (int i = 0; i < shown; i++) {
        cli_table_cell(table, "%s", order[i]->name);
        for (int r = 0; r < MIX_RECIPES; r++)
            if (m->asked[r])
                cli_table_cell(table, "%.2e", order[i]->precisions[r].error);
        cli_table_cell(table, "%s", cli_bytes(bytes, order[i]->precisions[MIX_RECIPES].bytes));
        cli_table_cell(table, "%s", precision_name(order[i]->chosen));
    }
    cli_table_print(table);
    if (shown < m->layer_count)
        printf("... and %d more (--all)\n", m->layer_count - shown);
    for (int i = 0; i < m->layer_count; i++)
        wide += m->layers[i].chosen == MIX_RECIPES;
    printf("\n%d of %d layers keep 16 bits; the linear layers take %s of %s.\n", wide,
           m->layer_count, cli_bytes(bytes, m->predicted.bytes), cli_bytes(before, m->wide_bytes));
    printf("Divergence of the whole model: %.3e nats a token measured, %.3e by adding up; in %s\n",
           m->measured, m->predicted.error, cli_seconds(time, m->seconds));
    free(order);
}

void mix_print_json(const mix *m)
{
    cJSON *root = cli_json_new("mix");
    cJSON_AddStringToObject(root, "model", m->folder);
    cJSON_AddNumberToObject(root, "tokens", (double)(m->text.count * m->text.tokens));
    cJSON_AddStringToObject(root, "budget", m->budget == DG_BUDGET_BYTES ? "bytes" : "error");
    cJSON_AddNumberToObject(root, "limit", m->limit);
    cJSON_AddNumberToObject(root, "bytes_before", m->wide_bytes);
    cJSON_AddNumberToObject(root, "bytes_after", m->predicted.bytes);
    cJSON_AddNumberToObject(root, "divergence_predicted", m->predicted.error);
    cJSON_AddNumberToObject(root, "divergence_measured", m->measured);
    cJSON_AddNumberToObject(root, "seconds", m->seconds);
    cJSON *keep = cJSON_AddArrayToObject(root, "keep");
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].chosen == MIX_RECIPES)
            cJSON_AddItemToArray(keep, cJSON_CreateString(m->layers[i].name));
    cJSON *layers = cJSON_AddArrayToObject(root, "layers");
    const mix_layer **order = ordered(m);
    for (int i = 0; i < m->layer_count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "name", order[i]->name);
        cJSON_AddStringToObject(row, "chosen", precision_name(order[i]->chosen));
        cJSON_AddNumberToObject(row, "divergence", worst_of(order[i]));
        cJSON *precisions = cJSON_AddObjectToObject(row, "precisions");
        for (int r = 0; r < MIX_PRECISIONS; r++) {
            if (!isfinite(order[i]->precisions[r].bytes))
                continue;
            cJSON *one = cJSON_AddObjectToObject(precisions, precision_name(r));
            cJSON_AddNumberToObject(one, "bytes", order[i]->precisions[r].bytes);
            cJSON_AddNumberToObject(one, "divergence", order[i]->precisions[r].error);
        }
        cJSON_AddItemToArray(layers, row);
    }
    free(order);
    cli_json_print(root);
}
