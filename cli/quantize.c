/* SPDX-License-Identifier: MIT */
/* deepgemm quantize: a 16-bit checkpoint becomes an FP8 checkpoint; says what it did with each
 * tensor. */
#include "tensors.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line of the report: one tensor, or several layers' tensors of one kind. */
typedef struct line {
    char *name, *shape, *stored_type;
    char *kept_because; /* NULL: quantised */
    int64_t tensors;
    double bytes_before, bytes_after;
    double worst_error;
    int64_t saturated, underflow, non_finite;
} line;

typedef struct report {
    cli_progress progress;
    line *lines; /* one for each tensor */
    int count, room;
} report;

/* ---- collecting ---------------------------------------------------------------------- */

/* Set by Ctrl-C: the run stops after the tensor it is at, and clears away what it has written. */
static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    interrupted = signal_number;
}

static bool take_tensor(void *user, const dg_tensor_report *tensor)
{
    report *r = user;
    if (r->count == r->room) {
        r->room = 2 * r->room + 64;
        r->lines = realloc(r->lines, (size_t)r->room * sizeof *r->lines);
        if (r->lines == NULL)
            cli_die("no memory for the report");
    }
    r->lines[r->count++] = (line){
        .name = cli_format("%s", tensor->name),
        .shape = tensors_shape(tensor->shape, tensor->rank),
        .stored_type = cli_format("%s", tensor->stored_type),
        .kept_because =
            tensor->kept_because == NULL ? NULL : cli_format("%s", tensor->kept_because),
        .tensors = 1,
        .bytes_before = (double)tensor->bytes_before,
        .bytes_after = (double)tensor->bytes_after,
        .worst_error = tensor->relative_error,
        .saturated = tensor->counts.saturated,
        .underflow = tensor->counts.underflow,
        .non_finite = tensor->counts.non_finite,
    };
    cli_progress_update(&r->progress, (double)tensor->done / (double)tensor->total);
    return interrupted == 0;
}

static line sum_of(const report *r)
{
    line sum = {0};
    for (int i = 0; i < r->count; i++) {
        sum.bytes_before += r->lines[i].bytes_before;
        sum.bytes_after += r->lines[i].bytes_after;
        sum.tensors += r->lines[i].kept_because == NULL;
    }
    return sum;
}

static void release(report *r)
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

static void print_lines(const report *r)
{
    cli_table *table = cli_table_new("tensor", ">count", "shape", "stored as", ">before", ">after",
                                     ">worst error", "kept because", NULL);
    char bytes[CLI_NUMBER];
    for (int i = 0; i < r->count; i++) {
        const line *l = &r->lines[i];
        cli_table_cell(table, "%s", l->name);
        cli_table_cell(table, "%lld", (long long)l->tensors);
        cli_table_cell(table, "%s", l->shape);
        cli_table_cell(table, "%s", l->stored_type);
        cli_table_cell(table, "%s", cli_bytes(bytes, l->bytes_before));
        cli_table_cell(table, "%s", cli_bytes(bytes, l->bytes_after));
        if (l->kept_because == NULL)
            cli_table_cell(table, "%.2f %%", 100.0 * l->worst_error);
        else
            cli_table_cell(table, "%s", "");
        cli_table_cell(table, "%s", l->kept_because == NULL ? "" : l->kept_because);
    }
    cli_table_print(table);
}

/* Prints the lines with those of a kind added up, in the order in which the kinds are met. */
static void print_kinds(const report *all)
{
    report kinds = {.lines = cli_alloc((size_t)all->count * sizeof *kinds.lines)};
    for (int i = 0; i < all->count; i++) {
        line one = all->lines[i];
        one.name = tensors_kind(one.name); /* the other texts stay those of the first */
        int k = 0;
        while (k < kinds.count && !(tensors_same(kinds.lines[k].name, one.name) &&
                                    tensors_same(kinds.lines[k].shape, one.shape) &&
                                    tensors_same(kinds.lines[k].stored_type, one.stored_type) &&
                                    tensors_same(kinds.lines[k].kept_because, one.kept_because)))
            k++;
        if (k == kinds.count) {
            kinds.lines[kinds.count++] = one;
            continue;
        }
        line *kind = &kinds.lines[k];
        kind->tensors++;
        kind->bytes_before += one.bytes_before;
        kind->bytes_after += one.bytes_after;
        if (one.worst_error > kind->worst_error)
            kind->worst_error = one.worst_error;
        free(one.name);
    }
    print_lines(&kinds);
    for (int k = 0; k < kinds.count; k++)
        free(kinds.lines[k].name);
    free(kinds.lines);
}

static void print_text(const report *r, const char *output, bool all, double seconds)
{
    char before[CLI_NUMBER], after[CLI_NUMBER], time[CLI_NUMBER];
    line sum = sum_of(r);
    (all ? print_lines : print_kinds)(r);
    printf("\n%s: %lld of %d tensors in FP8, %s became %s, in %s\n", output, (long long)sum.tensors,
           r->count, cli_bytes(before, sum.bytes_before), cli_bytes(after, sum.bytes_after),
           cli_seconds(time, seconds));
}

/* Things to look at, on stderr. */
static void print_warnings(const report *r, const cli_list *keep, const int64_t *matches)
{
    for (int i = 0; i < keep->count; i++)
        if (matches[i] == 0)
            fprintf(stderr, "deepgemm: warning: --keep '%s' matches no layer\n", keep->items[i]);
    for (int i = 0; i < r->count; i++)
        if (r->lines[i].non_finite > 0)
            fprintf(stderr, "deepgemm: warning: %s holds %lld values that are not finite\n",
                    r->lines[i].name, (long long)r->lines[i].non_finite);
}

/* ---- JSON ---------------------------------------------------------------------------- */

static cJSON *describe(const line *l)
{
    cJSON *row = cJSON_CreateObject();
    cJSON_AddStringToObject(row, "name", l->name);
    cJSON_AddStringToObject(row, "shape", l->shape);
    cJSON_AddStringToObject(row, "stored_type", l->stored_type);
    cJSON_AddBoolToObject(row, "quantized", l->kept_because == NULL);
    cJSON_AddNumberToObject(row, "bytes_before", l->bytes_before);
    cJSON_AddNumberToObject(row, "bytes_after", l->bytes_after);
    if (l->kept_because != NULL) {
        cJSON_AddStringToObject(row, "kept_because", l->kept_because);
        return row;
    }
    cJSON_AddNumberToObject(row, "relative_error", l->worst_error);
    cJSON_AddNumberToObject(row, "saturated", (double)l->saturated);
    cJSON_AddNumberToObject(row, "underflow", (double)l->underflow);
    cJSON_AddNumberToObject(row, "non_finite", (double)l->non_finite);
    return row;
}

static void print_json(const report *r, const char *const *paths, const char *format,
                       const cli_list *keep, const int64_t *matches, double seconds)
{
    line sum = sum_of(r);
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "input", paths[0]);
    cJSON_AddStringToObject(root, "output", paths[1]);
    cJSON_AddStringToObject(root, "format", format);
    cJSON_AddNumberToObject(root, "seconds", seconds);
    cJSON_AddNumberToObject(root, "bytes_before", sum.bytes_before);
    cJSON_AddNumberToObject(root, "bytes_after", sum.bytes_after);
    cJSON *patterns = cJSON_AddArrayToObject(root, "keep");
    for (int i = 0; i < keep->count; i++) {
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "pattern", keep->items[i]);
        cJSON_AddNumberToObject(row, "matches", (double)matches[i]);
        cJSON_AddItemToArray(patterns, row);
    }
    cJSON *tensors = cJSON_AddArrayToObject(root, "tensors");
    for (int i = 0; i < r->count; i++)
        cJSON_AddItemToArray(tensors, describe(&r->lines[i]));
    cli_json_print(root);
}

/* ---- the command --------------------------------------------------------------------- */

int cli_quantize(int argc, char **argv)
{
    static const char *const formats[] = {"block", "channel"};
    int format = DG_CHECKPOINT_BLOCK;
    int64_t threads = 0;
    bool force = false, json = false, all = false;
    cli_list keep = {0};
    const cli_option options[] = {
        {"format", "block|channel", CLI_CHOICE, &format,
         "128x128 blocks (DeepSeek's layout), or a scale per row (compressed-tensors)"},
        {"keep", "pattern", CLI_LIST, &keep,
         "layers to leave in 16 bits: a part of the name between dots, or re:expression"},
        {"force", NULL, CLI_FLAG, &force, "replace a checkpoint that is there already"},
        {"threads", "n", CLI_COUNT, &threads, "threads to use; 0: all"},
        {"all", NULL, CLI_FLAG, &all, "a line for each tensor, not for each kind of layer"},
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
        {0},
    };
    const cli_usage usage = {
        "quantize",
        "<input> <output>",
        2,
        2,
        "Makes an FP8 checkpoint of a 16-bit one. <input> is a folder, an index or a "
        ".safetensors\nfile; <output> a folder, which appears when it is complete.",
        options};
    char **paths = cli_parse(&usage, argc, argv);

    dg_context_options context_options = DG_CONTEXT_OPTIONS_INIT;
    context_options.threads = (int32_t)threads;
    dg_context *context;
    cli_check(dg_create(&context, DG_CPU, &context_options), "opening the processor");

    report r = {.progress = cli_progress_start("quantising", 1.0)};
    int64_t *matches = cli_alloc((size_t)keep.count * sizeof *matches);
    dg_checkpoint_options job = DG_CHECKPOINT_OPTIONS_INIT;
    job.format = (dg_checkpoint_format)format;
    job.keep = keep.items;
    job.keep_count = keep.count;
    job.keep_matches = matches;
    job.replace = force;
    job.report = take_tensor;
    job.user = &r;
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    double started = cli_now();
    dg_status status = dg_checkpoint_quantize(context, paths[0], paths[1], &job);
    cli_progress_end(&r.progress);
    cli_check(status, "quantising");
    double seconds = cli_now() - started;

    if (json)
        print_json(&r, (const char *const *)paths, formats[format], &keep, matches, seconds);
    else
        print_text(&r, paths[1], all, seconds);
    print_warnings(&r, &keep, matches);
    release(&r);
    free(matches);
    free(keep.items);
    dg_destroy(context);
    return CLI_OK;
}
