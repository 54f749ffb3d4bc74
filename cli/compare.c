/* SPDX-License-Identifier: MIT */
/*
 * deepgemm compare: where the accuracy of an FP8 checkpoint went. Holds every layer against the
 * 16-bit checkpoint it was made from, weights and outputs, and ranks them, the worst first.
 */
#include "compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Positive where x is worse than y. */
static int compare_damage(const dg_comparison *x, const dg_comparison *y)
{
    if (x->spoiled != y->spoiled)
        return x->spoiled > y->spoiled ? 1 : -1;
    return (x->relative_error > y->relative_error) - (x->relative_error < y->relative_error);
}

const dg_comparison *compare_judged(const compare_row *row)
{
    bool output = row->has_output && compare_damage(&row->output, &row->weight) > 0;
    return output ? &row->output : &row->weight;
}

static int worst_first(const void *a, const void *b)
{
    return compare_damage(compare_judged(b), compare_judged(a));
}

/* ---- tensors that are not in FP8 ----------------------------------------------------- */

static bool same_shape(const dg_tensor *a, const dg_tensor *b)
{
    return a->rank == b->rank &&
           memcmp(a->shape, b->shape, (size_t)a->rank * sizeof *a->shape) == 0;
}

static bool is_wide(const dg_tensor *t)
{
    return t->dtype == DG_F32 || t->dtype == DG_F16 || t->dtype == DG_BF16;
}

static bool same_bytes(const dg_tensor *a, const dg_tensor *b)
{
    return strcmp(a->stored_type, b->stored_type) == 0 && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

static compare_row compare_kept(const dg_tensor *reference, const dg_tensor *result)
{
    dg_matrix x = dg_matrix_of((void *)reference->data, reference->dtype, 1, reference->elements);
    dg_matrix y = dg_matrix_of((void *)result->data, result->dtype, 1, result->elements);
    compare_row row = {
        .name = result->name, .n = 1, .k = result->elements, .weight = DG_COMPARISON_INIT};
    cli_check(dg_compare(&x, &y, &row.weight), result->name);
    return row;
}

/* ---- all tensors --------------------------------------------------------------------- */

static void add_problem(compare_report *report, char *text)
{
    cli_list_add(&report->problems, text);
    free(text);
}

void compare_add_row(compare_report *report, compare_row row)
{
    report->rows = realloc(report->rows, (size_t)(report->row_count + 1) * sizeof *report->rows);
    if (report->rows == NULL)
        cli_die("out of memory");
    report->rows[report->row_count++] = row;
}

/* Whether the run over the text compares this tensor: a layer of the model, or one of its norms. */
static bool belongs_to_run(const compare_report *report, const dg_tensor *result)
{
    if (report->text == NULL)
        return false;
    for (int i = 0; i < report->row_count; i++)
        if (strcmp(report->rows[i].name, result->name) == 0)
            return true;
    return strstr(result->name, "norm") != NULL;
}

static void compare_tensor(const compare_job *job, const dg_tensor *result, compare_report *report)
{
    dg_tensor reference;
    dg_status found = dg_checkpoint_find(job->reference, result->name, &reference);
    bool fp8 = cli_is_fp8(result->dtype);
    if (!fp8 && found == DG_OK && same_shape(&reference, result) &&
        same_bytes(&reference, result)) {
        report->identical_count++;
    } else if (belongs_to_run(report, result)) {
        return;
    } else if (fp8) {
        dg_stored_weight weight;
        dg_status status = dg_checkpoint_weight(job->result, result->name, false, &weight);
        if (status == DG_UNSUPPORTED_SHAPE) {
            add_problem(report, cli_format("%s", dg_last_error()));
            return;
        }
        cli_check(status, "the result");
        compare_add_row(report, compare_layer(job, &weight, NULL, NULL, NULL));
    } else if (found != DG_OK) {
        return; /* scales, most of all */
    } else if (same_shape(&reference, result) && is_wide(&reference) && is_wide(result)) {
        compare_add_row(report, compare_kept(&reference, result));
    } else {
        add_problem(report, cli_format("%s is not the same in both: another type (%s, %s), "
                                       "another shape, or not a type to compare",
                                       result->name, reference.stored_type, result->stored_type));
    }
}

static int64_t count_tensors(const dg_checkpoint *checkpoint)
{
    dg_tensor tensor;
    int64_t count = 0;
    while (dg_checkpoint_tensor_at(checkpoint, count, &tensor) == DG_OK)
        count++;
    return count;
}

static void compare_all(const compare_job *job, compare_report *report)
{
    dg_tensor tensor, found;
    int64_t count = count_tensors(job->result);
    cli_progress progress = cli_progress_start("compare", (double)count);
    for (int64_t i = 0; i < count; i++) {
        cli_check(dg_checkpoint_tensor_at(job->result, i, &tensor), "the result");
        compare_tensor(job, &tensor, report);
        cli_progress_update(&progress, (double)(i + 1));
    }
    cli_progress_end(&progress);
    count = count_tensors(job->reference);
    for (int64_t i = 0; i < count; i++) {
        cli_check(dg_checkpoint_tensor_at(job->reference, i, &tensor), "the reference");
        if (dg_checkpoint_find(job->result, tensor.name, &found) != DG_OK)
            add_problem(report, cli_format("%s is missing in the result", tensor.name));
    }
}

static void judge(compare_report *report)
{
    if (report->row_count > 0) /* no array to sort otherwise */
        qsort(report->rows, (size_t)report->row_count, sizeof *report->rows, worst_first);
    for (int i = 0; i < report->row_count; i++) {
        const dg_comparison *c = compare_judged(&report->rows[i]);
        report->rows[i].failed = c->spoiled > 0 || c->cosine < report->limit_cosine ||
                                 c->relative_error > report->limit_relative;
        report->failed_count += report->rows[i].failed;
        report->layer_count += report->rows[i].is_layer;
    }
    report->whole_failed =
        report->text != NULL && (report->whole.logits.spoiled > 0 ||
                                 predict_top1_agreement(&report->whole) < report->limit_top1);
}

/* ---- the command --------------------------------------------------------------------- */

int cli_compare(int argc, char **argv)
{
    enum { everything = INT32_MAX, sampled_tokens = 32, text_tokens = 128 };
    const char *inputs = NULL, *text = NULL;
    int64_t tokens = -1, seed = time(NULL) & INT32_MAX, threads = 0, shown = 20;
    double limit_cosine = -INFINITY, limit_relative = INFINITY, limit_top1 = -INFINITY;
    bool all = false, json = false;
    const cli_option options[] = {
        {"text", "FILE", CLI_TEXT, &text,
         "safetensors with token ids: runs both models, which must be Llamas"},
        {"inputs", "FILE", CLI_TEXT, &inputs,
         "safetensors with activations [tokens, K] under each layer's name"},
        {"tokens", "N", CLI_COUNT, &tokens,
         "of the text (default 128), or activations to sample (default 32)"},
        {"seed", "N", CLI_COUNT, &seed, "of the sampled activations (default: the time)"},
        {"limit-cosine", "X", CLI_REAL, &limit_cosine, "fail where the cosine is below X"},
        {"limit-relative", "X", CLI_REAL, &limit_relative,
         "fail where the relative error is above X, e.g. 0.05"},
        {"limit-top1", "X", CLI_REAL, &limit_top1,
         "with --text: fail where fewer predictions agree, e.g. 0.95"},
        {"top", "N", CLI_COUNT, &shown, "show the N worst (default 20)"},
        {"all", NULL, CLI_FLAG, &all, "show every layer"},
        CLI_THREADS(&threads),
        CLI_JSON(&json),
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){
            "compare", "<16-bit checkpoint> <FP8 checkpoint>", 2, 2,
            "Holds each layer of an FP8 checkpoint against the one it was made from: its weights, "
            "and its\noutputs on the same activations, with what caused their error: the weights, "
            "the activations or\nthe accumulation. The activations come from running the model "
            "over a text, from a file, or are\nsampled. Exits with 1 where a layer is beyond a "
            "limit, where finite values became NaN or\ninfinite, or where something could not be "
            "compared.",
            options},
        argc, argv);
    if (text != NULL && inputs != NULL)
        cli_misuse("either --text or --inputs");
    if (text == NULL && isfinite(limit_top1))
        cli_misuse("--limit-top1 needs --text");
    if (tokens < 0)
        tokens = text != NULL ? text_tokens : sampled_tokens;
    if (tokens == 0 && inputs == NULL)
        cli_misuse("--tokens must be at least 1");

    compare_job job = {.tokens = tokens, .seed = (uint64_t)seed};
    job.context = cli_context(threads);
    job.peer = layer_wide_peer(job.context);
    cli_check(dg_checkpoint_open(&job.reference, paths[0]), "opening the reference");
    cli_check(dg_checkpoint_open(&job.result, paths[1]), "opening the result");
    if (inputs != NULL)
        cli_check(dg_checkpoint_open(&job.inputs, inputs), "opening the inputs");

    compare_report report = {
        .reference = paths[0],
        .result = paths[1],
        .inputs = inputs,
        .text = text,
        .wide_by = job.peer->about(),
        .tokens = tokens,
        .seed = job.seed,
        .limit_cosine = limit_cosine,
        .limit_relative = limit_relative,
        .limit_top1 = limit_top1,
        .whole = PREDICT_INIT,
        .shown = all ? everything : shown,
    };
    if (text != NULL)
        compare_models(&job, paths[0], paths[1], &report);
    compare_all(&job, &report);
    judge(&report);
    if (json)
        compare_print_json(&report);
    else
        compare_print(&report);

    bool failed = report.failed_count > 0 || report.whole_failed || report.problems.count > 0;
    free(report.rows);
    cli_list_free(&report.problems);
    dg_checkpoint_close(job.reference);
    dg_checkpoint_close(job.result);
    dg_checkpoint_close(job.inputs);
    dg_destroy(job.context);
    return failed ? CLI_FAILED : CLI_OK;
}
