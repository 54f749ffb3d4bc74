/* SPDX-License-Identifier: MIT */
/* What became of each tensor of a checkpoint: see written.h. */
#include "written.h"

#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- collecting ---------------------------------------------------------------------- */

static bool take_tensor(void *user, const dg_tensor_report *tensor)
{
    written *r = user;
    if (r->count == r->room) {
        r->room = 2 * r->room + 64;
        r->lines = realloc(r->lines, (size_t)r->room * sizeof *r->lines);
        if (r->lines == NULL)
            cli_die("no memory for the report");
    }
    r->lines[r->count++] = (written_line){
        .name = cli_format("%s", tensor->name),
        .shape = tensors_shape(tensor->shape, tensor->rank),
        .stored_type = cli_format("%s", tensor->stored_type),
        .kept_because =
            tensor->kept_because == NULL ? NULL : cli_format("%s", tensor->kept_because),
        .action = tensor->action,
        .tensors = 1,
        .bytes_before = (double)tensor->bytes_before,
        .bytes_after = (double)tensor->bytes_after,
        .worst_error = tensor->relative_error,
        .part_ratio = tensor->part_ratio,
        .saturated = tensor->counts.saturated,
        .underflow = tensor->counts.underflow,
        .non_finite = tensor->counts.non_finite,
    };
    r->resumed += tensor->resumed;
    r->bytes_resumed += tensor->resumed ? (double)tensor->bytes_before : 0.0;
    cli_progress_update(&r->progress, (double)tensor->done / (double)tensor->total);
    return !cli_interrupted(); /* a later run goes on from there */
}

void written_run(written *report, written_call *call, const char *doing,
                 dg_checkpoint_options *options)
{
    dg_context *context = cli_context(report->threads);
    options->fusion = (dg_checkpoint_fusion)report->fusion;
    options->scales = report->scales;
    options->replace = report->force;
    options->report = take_tensor;
    options->user = report;
    report->format = dg_checkpoint_format_name(options->format);
    report->progress = cli_progress_start(doing, 1.0);
    cli_catch_interrupt();
    report->started = cli_now();
    dg_status status = call(context, report->input, report->output, options);
    cli_progress_end(&report->progress);
    if (status == DG_CANCELLED)
        cli_die("%s: %s; the same command goes on from there", doing, dg_last_error());
    cli_check(status, doing);
    report->seconds = cli_now() - report->started;
    dg_destroy(context);
}

/* "block, channel, ...", of malloc's. */
static char *list_formats(bool with_bf16)
{
    char *text = cli_format("%s", "");
    for (int f = 0; f < (int)DG_CHECKPOINT_FORMATS; f++) {
        if (f == DG_CHECKPOINT_BF16 && !with_bf16)
            continue;
        const char *name = dg_checkpoint_format_name((dg_checkpoint_format)f);
        size_t line = strlen(strrchr(text, '\n') == NULL ? text : strrchr(text, '\n') + 1);
        const char *between = f == 0 ? "" : line + strlen(name) > 80 ? ",\n" : ", ";
        char *longer = cli_format("%s%s%s", text, between, name);
        free(text);
        text = longer;
    }
    return text;
}

char *written_help(const char *text, bool with_bf16)
{
    char *formats = list_formats(with_bf16);
    char *help = cli_format("%s\n\nlayouts (docs/checkpoints.md):\n%s", text, formats);
    free(formats);
    return help;
}

dg_checkpoint_format written_format(const char *option, const char *name, bool with_bf16)
{
    for (int f = 0; f < (int)DG_CHECKPOINT_FORMATS; f++)
        if (strcmp(name, dg_checkpoint_format_name((dg_checkpoint_format)f)) == 0 &&
            (f != DG_CHECKPOINT_BF16 || with_bf16))
            return (dg_checkpoint_format)f;
    cli_misuse("--%s takes %s, not '%s'", option, list_formats(with_bf16), name);
}

void written_free(written *r)
{
    for (int i = 0; i < r->count; i++) {
        free(r->lines[i].name);
        free(r->lines[i].shape);
        free(r->lines[i].stored_type);
        free(r->lines[i].kept_because);
    }
    free(r->lines);
}

/* ---- text ---------------------------------------------------------------------------- */

static const char *action_name(dg_tensor_action action)
{
    static const char *const names[] = {
        [DG_TENSOR_KEPT] = "kept",
        [DG_TENSOR_QUANTIZED] = "quantised",
        [DG_TENSOR_REPACKED] = "same values",
        [DG_TENSOR_REQUANTIZED] = "requantised",
        [DG_TENSOR_WIDENED] = "widened",
    };
    return names[action];
}

/* Whether parts of a fused weight share a scale that does not suit all of them. */
static bool is_uneven(const written_line *l)
{
    const double twice = 2.0; /* each doubling costs the smaller part a binade of its range */
    return l->part_ratio > twice;
}

static void print_lines(const written *r)
{
    cli_table *table = cli_table_new("tensor", ">count", "shape", "stored as", ">before", ">after",
                                     "became", ">worst error", "remark", NULL);
    char bytes[CLI_NUMBER];
    for (int i = 0; i < r->count; i++) {
        const written_line *l = &r->lines[i];
        cli_table_cell(table, "%s", l->name);
        cli_table_cell(table, "%lld", (long long)l->tensors);
        cli_table_cell(table, "%s", l->shape);
        cli_table_cell(table, "%s", l->stored_type);
        cli_table_cell(table, "%s", cli_bytes(bytes, l->bytes_before));
        cli_table_cell(table, "%s", cli_bytes(bytes, l->bytes_after));
        cli_table_cell(table, "%s", action_name(l->action));
        if (l->action == DG_TENSOR_KEPT || l->action == DG_TENSOR_REPACKED)
            cli_table_cell(table, "%s", "");
        else
            cli_table_cell(table, "%.2f %%", 100.0 * l->worst_error);
        if (is_uneven(l))
            cli_table_cell(table, "one scale for parts %.4gx apart", l->part_ratio);
        else
            cli_table_cell(table, "%s", l->kept_because == NULL ? "" : l->kept_because);
    }
    cli_table_print(table);
}

static bool same_kind(const written_line *a, const written_line *b)
{
    return a->action == b->action && tensors_same(a->name, b->name) &&
           tensors_same(a->shape, b->shape) && tensors_same(a->stored_type, b->stored_type) &&
           tensors_same(a->kept_because, b->kept_because);
}

/* Prints the lines with those of a kind added up, in the order in which the kinds are met. */
static void print_kinds(const written *all)
{
    written kinds = {.lines = cli_alloc((size_t)all->count * sizeof *kinds.lines)};
    for (int i = 0; i < all->count; i++) {
        written_line one = all->lines[i];
        one.name = tensors_kind(one.name); /* the other texts stay those of the first */
        int k = 0;
        while (k < kinds.count && !same_kind(&kinds.lines[k], &one))
            k++;
        if (k == kinds.count) {
            kinds.lines[kinds.count++] = one;
            continue;
        }
        written_line *kind = &kinds.lines[k];
        kind->tensors++;
        kind->bytes_before += one.bytes_before;
        kind->bytes_after += one.bytes_after;
        if (one.worst_error > kind->worst_error)
            kind->worst_error = one.worst_error;
        if (one.part_ratio > kind->part_ratio)
            kind->part_ratio = one.part_ratio;
        free(one.name);
    }
    print_lines(&kinds);
    for (int k = 0; k < kinds.count; k++)
        free(kinds.lines[k].name);
    free(kinds.lines);
}

/* The sums: tensors that were not copied, and bytes. */
static written_line sum_of(const written *r)
{
    written_line sum = {0};
    for (int i = 0; i < r->count; i++) {
        sum.bytes_before += r->lines[i].bytes_before;
        sum.bytes_after += r->lines[i].bytes_after;
        sum.tensors += r->lines[i].action != DG_TENSOR_KEPT;
    }
    return sum;
}

/* Bytes of the input that this run read, each second. */
static double speed_of(const written *r)
{
    return (sum_of(r).bytes_before - r->bytes_resumed) / r->seconds;
}

void written_print(const written *r)
{
    char before[CLI_NUMBER], after[CLI_NUMBER], time[CLI_NUMBER], speed[CLI_NUMBER];
    written_line sum = sum_of(r);
    (r->all ? print_lines : print_kinds)(r);
    printf("\n%s: %lld of %d tensors in %s, %s became %s, in %s, %s/s\n", r->output,
           (long long)sum.tensors, r->count,
           strcmp(r->format, dg_checkpoint_format_name(DG_CHECKPOINT_BF16)) == 0 ? "16 bits"
                                                                                 : "FP8",
           cli_bytes(before, sum.bytes_before), cli_bytes(after, sum.bytes_after),
           cli_seconds(time, r->seconds), cli_bytes(speed, speed_of(r)));
    if (r->resumed > 0)
        printf("%d tensors were there already, from a run that was interrupted\n", r->resumed);
}

static void warn_of_uneven_parts(const written *r)
{
    const written_line *worst = NULL;
    int uneven = 0;
    for (int i = 0; i < r->count; i++) {
        const written_line *l = &r->lines[i];
        if (!is_uneven(l))
            continue;
        uneven++;
        if (worst == NULL || l->part_ratio > worst->part_ratio)
            worst = l;
    }
    if (worst == NULL)
        return;
    char others[CLI_NUMBER] = "";
    if (uneven > 1)
        snprintf(others, sizeof others, " (and %d more)", uneven - 1);
    cli_warn("%s%s: one scale for parts whose largest values are %.4gx apart; --fusion split, or a "
             "format with a scale per row (channel), gives each part its own",
             worst->name, others, worst->part_ratio);
}

void written_warn(const written *r)
{
    warn_of_uneven_parts(r);
    for (int i = 0; i < r->count; i++)
        if (r->lines[i].non_finite > 0)
            cli_warn("%s holds %lld values that are not finite", r->lines[i].name,
                     (long long)r->lines[i].non_finite);
}

/* ---- JSON ---------------------------------------------------------------------------- */

static cJSON *describe(const written_line *l)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", l->name);
    cJSON_AddStringToObject(row, "shape", l->shape);
    cJSON_AddStringToObject(row, "stored_type", l->stored_type);
    cJSON_AddStringToObject(row, "action", action_name(l->action));
    cJSON_AddBoolToObject(row, "quantized", l->action == DG_TENSOR_QUANTIZED);
    cJSON_AddNumberToObject(row, "bytes_before", l->bytes_before);
    cJSON_AddNumberToObject(row, "bytes_after", l->bytes_after);
    if (l->kept_because != NULL) {
        cJSON_AddStringToObject(row, "kept_because", l->kept_because);
        return row;
    }
    cJSON_AddNumberToObject(row, "relative_error", l->worst_error);
    if (l->part_ratio > 0.0)
        cJSON_AddNumberToObject(row, "part_ratio", l->part_ratio);
    cJSON_AddNumberToObject(row, "saturated", (double)l->saturated);
    cJSON_AddNumberToObject(row, "underflow", (double)l->underflow);
    cJSON_AddNumberToObject(row, "non_finite", (double)l->non_finite);
    return row;
}

cJSON *written_json(const written *r, const char *command)
{
    written_line sum = sum_of(r);
    cJSON *root = cli_json_new(command);
    cJSON_AddStringToObject(root, "input", r->input);
    cJSON_AddStringToObject(root, "output", r->output);
    cJSON_AddStringToObject(root, "format", r->format);
    cJSON_AddNumberToObject(root, "seconds", r->seconds);
    cJSON_AddNumberToObject(root, "bytes_per_second", speed_of(r));
    cJSON_AddNumberToObject(root, "bytes_before", sum.bytes_before);
    cJSON_AddNumberToObject(root, "bytes_after", sum.bytes_after);
    cJSON_AddNumberToObject(root, "resumed", r->resumed);
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (int i = 0; i < r->count; i++)
        cJSON_AddItemToArray(tensors, describe(&r->lines[i]));
    return root;
}
