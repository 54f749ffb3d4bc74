/* SPDX-License-Identifier: MIT */
/* deepgemm inspect: the tensors of a checkpoint, and for each weight the scales that belong to it.
 */
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor, or several layers' tensors of one kind. */
typedef struct line {
    char *name, *shape;
    const char *stored_type;
    char *scale; /* name and granularity; "" where there is none */
    int64_t tensors;
    double bytes;
} line;

/* ---- the scale of a weight ----------------------------------------------------------- */

static bool is_weight(const dg_tensor *tensor)
{
    const char *end = ".weight";
    size_t length = strlen(tensor->name), end_length = strlen(end);
    return tensor->rank == 2 && tensor->dtype != DG_NONE && tensor->dtype != DG_UE8M0 &&
           length >= end_length && strcmp(tensor->name + length - end_length, end) == 0;
}

static const char *granularity(char *text, size_t bytes, const dg_stored_weight *w)
{
    if (w->block_rows == 0)
        return "per tensor";
    if (w->block_cols == 0)
        return "per row";
    snprintf(text, bytes, "%d x %d", w->block_rows, w->block_cols);
    return text;
}

/* The scales of a weight as a table shows them, of malloc's; NULL when they do not fit it. */
static char *describe_scale(const dg_checkpoint *checkpoint, const dg_tensor *tensor,
                            dg_stored_weight *w)
{
    *w = (dg_stored_weight){0};
    if (!is_weight(tensor))
        return cli_format("%s", "");
    if (dg_checkpoint_weight(checkpoint, tensor->name, false, w) != DG_OK)
        return NULL;
    if (w->scale.name == NULL)
        return cli_format("%s", "");
    char text[64];
    return cli_format("%s, %s", strrchr(w->scale.name, '.') + 1, granularity(text, sizeof text, w));
}

/* ---- output -------------------------------------------------------------------------- */

/* Adds the tensor to the line of its kind, or to a new one. */
static void add_tensor(line *lines, int *count, const dg_tensor *tensor, char *scale, bool all)
{
    line one = {all ? cli_format("%s", tensor->name) : tensors_kind(tensor->name),
                tensors_shape(tensor->shape, tensor->rank),
                tensor->stored_type,
                scale,
                1,
                (double)tensor->bytes};
    for (int i = all ? *count : 0; i < *count; i++) {
        line *l = &lines[i];
        if (tensors_same(l->name, one.name) && tensors_same(l->shape, one.shape) &&
            tensors_same(l->stored_type, one.stored_type) && tensors_same(l->scale, one.scale)) {
            l->tensors++;
            l->bytes += one.bytes;
            free(one.name);
            free(one.shape);
            free(one.scale);
            return;
        }
    }
    lines[(*count)++] = one;
}

static void print_lines(const line *lines, int count)
{
    cli_table *table =
        cli_table_new("tensor", ">count", "shape", "stored as", ">bytes", "scale", NULL);
    char bytes[CLI_NUMBER];
    for (int i = 0; i < count; i++) {
        cli_table_cell(table, "%s", lines[i].name);
        cli_table_cell(table, "%lld", (long long)lines[i].tensors);
        cli_table_cell(table, "%s", lines[i].shape);
        cli_table_cell(table, "%s", lines[i].stored_type);
        cli_table_cell(table, "%s", cli_bytes(bytes, lines[i].bytes));
        cli_table_cell(table, "%s", lines[i].scale);
    }
    cli_table_print(table);
}

static void release(line *lines, int count)
{
    for (int i = 0; i < count; i++) {
        free(lines[i].name);
        free(lines[i].shape);
        free(lines[i].scale);
    }
    free(lines);
}

static cJSON *describe_tensor(const dg_tensor *tensor, const dg_stored_weight *w)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", tensor->name);
    cJSON_AddStringToObject(row, "stored_type", tensor->stored_type);
    cJSON_AddStringToObject(row, "file", tensor->file);
    cJSON *shape = cJSON_AddArrayToObject(row, "shape");
    for (int32_t i = 0; i < tensor->rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    cJSON_AddNumberToObject(row, "bytes", (double)tensor->bytes);
    if (w->scale.name != NULL) {
        cJSON_AddStringToObject(row, "scale", w->scale.name);
        cJSON_AddNumberToObject(row, "block_rows", w->block_rows);
        cJSON_AddNumberToObject(row, "block_cols", w->block_cols);
    }
    return row;
}

/* ---- the command --------------------------------------------------------------------- */

int cli_inspect(int argc, char **argv)
{
    bool json = false, all = false;
    const cli_option options[] = {
        {"all", NULL, CLI_FLAG, &all, "a line for each tensor, not for each kind of layer"},
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
        {0},
    };
    const cli_usage usage = {"inspect",
                             "<checkpoint>",
                             1,
                             1,
                             "Lists the tensors of a checkpoint and the scales of each weight. "
                             "Fails when a weight's\nscales are missing or do not fit it.",
                             options};
    char **paths = cli_parse(&usage, argc, argv);
    dg_checkpoint *checkpoint;
    cli_check(dg_checkpoint_open(&checkpoint, paths[0]), "opening");

    cJSON *root = cJSON_CreateObject(), *rows = cJSON_AddArrayToObject(root, "tensors");
    line *lines = NULL;
    int count = 0, code = CLI_OK;
    dg_tensor tensor;
    for (int64_t i = 0; dg_checkpoint_tensor_at(checkpoint, i, &tensor) == DG_OK; i++) {
        dg_stored_weight w;
        char *scale = describe_scale(checkpoint, &tensor, &w);
        if (scale == NULL) {
            fprintf(stderr, "deepgemm: %s\n", dg_last_error());
            scale = cli_format("%s", "wrong");
            code = CLI_FAILED;
        }
        lines = realloc(lines, (size_t)(count + 1) * sizeof *lines);
        if (lines == NULL)
            cli_die("no memory for the list");
        cJSON_AddItemToArray(rows, describe_tensor(&tensor, &w));
        add_tensor(lines, &count, &tensor, scale, all);
    }
    if (json) {
        cli_json_print(root);
    } else {
        print_lines(lines, count);
        cJSON_Delete(root);
    }
    release(lines, count);
    dg_checkpoint_close(checkpoint);
    return code;
}
