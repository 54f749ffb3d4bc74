/* SPDX-License-Identifier: MIT */
/* deepgemm inspect: the tensors of a checkpoint, the scales of each weight, and what becomes of
 * every scale. */
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

static const char *const states[] = {
    [DG_SCALE_LOADED] = "loaded", [DG_SCALE_DEFAULTED] = "defaulted",
    [DG_SCALE_UNUSED] = "unused", [DG_SCALE_MISSING] = "missing",
    [DG_SCALE_WRONG] = "wrong",
};
enum { STATES = sizeof states / sizeof states[0] };

/* ---- the scale of a weight ----------------------------------------------------------- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_weight(const dg_tensor *tensor)
{
    return tensor->rank == 2 && tensor->dtype != DG_NONE && tensor->dtype != DG_UE8M0 &&
           (ends_with(tensor->name, ".weight") || ends_with(tensor->name, "._weight_qdata"));
}

/* The weights of all experts of a layer in one tensor. */
static bool is_fused_experts(const dg_tensor *tensor)
{
    return tensor->rank == 3 && tensor->shape[0] > 0 && strstr(tensor->name, ".experts.") != NULL &&
           cli_is_fp8(tensor->dtype);
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

/* The scales of a weight (of experts: the first one's) as a table shows them, of malloc's; in the
 * words of the account where they are missing or wrong. */
static char *describe_scale(const dg_checkpoint *checkpoint, const dg_tensor *tensor,
                            dg_stored_weight *w)
{
    *w = (dg_stored_weight){0};
    bool experts = is_fused_experts(tensor);
    if (!experts && !is_weight(tensor))
        return cli_format("%s", "");
    if ((experts ? dg_checkpoint_expert(checkpoint, tensor->name, 0, true, w)
                 : dg_checkpoint_weight(checkpoint, tensor->name, true, w)) != DG_OK)
        return cli_format("%s", states[DG_SCALE_WRONG]);
    if (w->scale.name == NULL)
        return cli_format("%s", cli_is_fp8(tensor->dtype) ? states[DG_SCALE_MISSING] : "");
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

/* ---- the account of all scales ------------------------------------------------------- */

static const char *const roles[] = {
    [DG_SCALE_OF_WEIGHT] = "weight", [DG_SCALE_OF_INPUT] = "input",     [DG_SCALE_OF_KEYS] = "keys",
    [DG_SCALE_OF_VALUES] = "values", [DG_SCALE_OF_NOTHING] = "nothing",
};
enum { ROLES = sizeof roles / sizeof roles[0] };

typedef struct account {
    cJSON *rows;
    int64_t counts[ROLES][STATES];
} account;

static void describe_problem(const dg_scale_record *scale)
{
    const char *name = scale->scale.name == NULL ? scale->layer : scale->scale.name;
    switch (scale->state) {
    case DG_SCALE_LOADED:
        return;
    case DG_SCALE_DEFAULTED:
        cli_warn("%s has no scale for its cached %s: 1 is taken", scale->layer, roles[scale->role]);
        return;
    case DG_SCALE_UNUSED:
        cli_warn("scale %s is used by nothing", name);
        return;
    case DG_SCALE_MISSING:
    case DG_SCALE_WRONG:
        cli_error("%s", scale->problem);
        return;
    }
}

static bool take_scale(void *user, const dg_scale_record *scale)
{
    account *a = user;
    a->counts[scale->role][scale->state]++;
    describe_problem(scale);
    cJSON *row = cJSON_CreateObject();
    cJSON_AddItemToArray(a->rows, row);
    cJSON_AddStringToObject(row, "layer", scale->layer);
    cJSON_AddStringToObject(row, "of", roles[scale->role]);
    cJSON_AddStringToObject(row, "state", states[scale->state]);
    if (scale->scale.name != NULL)
        cJSON_AddStringToObject(row, "name", scale->scale.name);
    if (scale->state == DG_SCALE_LOADED) {
        cJSON_AddNumberToObject(row, "smallest", scale->smallest);
        cJSON_AddNumberToObject(row, "largest", scale->largest);
    }
    if (scale->problem != NULL)
        cJSON_AddStringToObject(row, "problem", scale->problem);
    return true;
}

static int64_t in_state(const account *a, dg_scale_state state)
{
    int64_t count = 0;
    for (int r = 0; r < ROLES; r++)
        count += a->counts[r][state];
    return count;
}

/* "scales: 210 loaded (weight 210), 0 defaulted, ..." */
static void print_account(const account *a)
{
    printf("\nscales: ");
    for (int s = 0; s < STATES; s++) {
        printf("%s%lld %s", s == 0 ? "" : ", ", (long long)in_state(a, (dg_scale_state)s),
               states[s]);
        const char *begin = " (";
        for (int r = 0; r < ROLES; r++)
            if (a->counts[r][s] > 0 && r != DG_SCALE_OF_NOTHING) {
                printf("%s%s %lld", begin, roles[r], (long long)a->counts[r][s]);
                begin = ", ";
            }
        if (*begin == ',')
            putchar(')');
    }
    putchar('\n');
}

/* ---- the command --------------------------------------------------------------------- */

int cli_inspect(int argc, char **argv)
{
    bool json = false, all = false, strict = false;
    const cli_option options[] = {
        {"strict", NULL, CLI_FLAG, &strict, "fail also when a scale is unused or defaulted"},
        {"all", NULL, CLI_FLAG, &all, "a line for each tensor, not for each kind of layer"},
        CLI_JSON(&json),
        {0},
    };
    const cli_usage usage = {"inspect",
                             "<checkpoint>",
                             1,
                             1,
                             "Lists the tensors of a checkpoint and the scales of each weight, and "
                             "accounts for every\nscale. Fails when one is missing or wrong.",
                             options};
    char **paths = cli_parse(&usage, argc, argv);
    dg_checkpoint *checkpoint;
    cli_check(dg_checkpoint_open(&checkpoint, paths[0]), "opening");

    cJSON *root = cli_json_new("inspect"), *rows = cJSON_AddArrayToObject(root, "tensors");
    line *lines = NULL;
    int count = 0;
    dg_tensor tensor;
    for (int64_t i = 0; dg_checkpoint_tensor_at(checkpoint, i, &tensor) == DG_OK; i++) {
        dg_stored_weight w;
        char *scale = describe_scale(checkpoint, &tensor, &w);
        lines = realloc(lines, (size_t)(count + 1) * sizeof *lines);
        if (lines == NULL)
            cli_die("no memory for the list");
        cJSON_AddItemToArray(rows, describe_tensor(&tensor, &w));
        add_tensor(lines, &count, &tensor, scale, all);
    }
    account scales = {.rows = cJSON_AddArrayToObject(root, "scales")};
    cli_check(dg_checkpoint_scales(checkpoint, take_scale, &scales), "accounting for the scales");
    int64_t bad = in_state(&scales, DG_SCALE_MISSING) + in_state(&scales, DG_SCALE_WRONG);
    if (strict)
        bad += in_state(&scales, DG_SCALE_UNUSED) + in_state(&scales, DG_SCALE_DEFAULTED);
    if (json) {
        cli_json_print(root);
    } else {
        print_lines(lines, count);
        print_account(&scales);
        cJSON_Delete(root);
    }
    release(lines, count);
    dg_checkpoint_close(checkpoint);
    return bad == 0 ? CLI_OK : CLI_FAILED;
}
