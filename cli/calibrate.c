/* SPDX-License-Identifier: MIT */
/*
 * deepgemm calibrate: runs a model over text, collects statistics of what its linear layers meet,
 * and says what each way of choosing a static scale would do to them and to text held out.
 */
#include "calibrate.h"

#include "layer.h"
#include "pieces.h"

#include <stdlib.h>

/* Tokens that run side by side: enough that widening the weights takes little of the time. */
enum { BATCH_TOKENS = 4096 };

/* ---- running the model --------------------------------------------------------------- */

typedef struct run {
    dg_context *context;
    const bench_peer *peer; /* multiplies in 16 bits */
    llama model;
    dg_statistics *into;
    cli_progress progress;
    double done; /* tokens times blocks */
} run;

static void observe_product(void *user, int block, llama_kind kind, const dg_matrix *x,
                            const dg_matrix *y)
{
    run *r = user;
    char *name = llama_layer_name(block, kind);
    cli_check(dg_statistics_observe(r->context, r->into, name, x), "observing");
    free(name);
    dg_matrix w = layer_widen(&r->model.blocks[block].linear[kind]);
    layer_multiply_wide(r->peer, x, &w, y);
    free(w.data);
    if (kind == LLAMA_DOWN)
        cli_progress_update(&r->progress, r->done += (double)x->rows);
}

/* Runs pieces [first, last). */
static void run_pieces(run *r, const pieces *p, int64_t first, int64_t last, dg_statistics *into)
{
    int64_t step = BATCH_TOKENS / p->tokens > 0 ? BATCH_TOKENS / p->tokens : 1;
    r->into = into;
    for (int64_t i = first; i < last; i += step) {
        int64_t count = last - i < step ? last - i : step;
        llama_forward(&r->model, p->ids + i * p->tokens, count, p->tokens, observe_product, r,
                      NULL);
    }
}

/* ---- the command --------------------------------------------------------------------- */

typedef struct settings {
    pieces_source source;
    int64_t threads;
    double held_out;
    dg_statistics_options statistics;
} settings;

/* Runs the model into the statistics and, for what is held out, into others. */
static void calibrate(const char *folder, const settings *s, dg_statistics *statistics,
                      dg_statistics *held_out, calibrate_result *result)
{
    run r = {0};
    r.context = cli_context(s->threads);
    r.peer = layer_wide_peer(r.context);
    r.model = llama_open(folder);
    pieces p = pieces_read(&r.model, folder, &s->source);
    int64_t held = (int64_t)((double)p.count * s->held_out / 100.0 + 0.5);
    held = held == 0 && s->held_out > 0.0 && p.count > 1 ? 1 : held;
    held = held == p.count ? p.count - 1 : held;
    pieces_hold_out(&p, held);
    result->tokens = (p.count - held) * p.tokens;
    result->held_out_tokens = held * p.tokens;
    r.progress = cli_progress_start("calibrating",
                                    (double)(p.count * p.tokens) * (double)r.model.block_count);
    run_pieces(&r, &p, 0, p.count - held, statistics);
    run_pieces(&r, &p, p.count - held, p.count, held_out);
    cli_progress_end(&r.progress);
    pieces_free(&p);
    llama_close(&r.model);
    dg_destroy(r.context);
}

static void merge_files(const cli_list *files, dg_statistics *statistics)
{
    for (int i = 0; i < files->count; i++) {
        dg_statistics *other;
        cli_check(dg_statistics_load(&other, files->items[i]), "reading statistics");
        cli_check(dg_statistics_merge(statistics, other), files->items[i]);
        dg_statistics_destroy(other);
    }
}

int cli_calibrate(int argc, char **argv)
{
    settings s = {.source = {.length = 128, .tokens = INT32_MAX},
                  .held_out = 20.0,
                  .statistics = DG_STATISTICS_OPTIONS_INIT};
    calibrate_result result = {.percentile = 99.99, .least_tokens = 4096};
    int64_t block = s.statistics.block_cols, bits = s.statistics.bits;
    bool all = false, json = false;
    cli_list merge = {0};
    const cli_option options[] = {
        PIECES_OPTIONS(s.source, "128", "all"),
        {"held-out", "percent", CLI_REAL, &s.held_out,
         "how much of the text is only judged, not collected (default 20)"},
        {"percentile", "p", CLI_REAL, &result.percentile,
         "the percentile that the report shows (default 99.99)"},
        {"block", "n", CLI_COUNT, &block,
         "features that share a histogram: the finest static scales (default 128; 0: all)"},
        {"bits", "n", CLI_COUNT, &bits, "2^n bins an octave, 4 to 7 (default 5)"},
        {"merge", "file", CLI_LIST, &merge, "add the statistics of another run; may be repeated"},
        {"least", "tokens", CLI_COUNT, &result.least_tokens,
         "warn of layers that met fewer (default 4096)"},
        CLI_THREADS(&s.threads),
        {"all", NULL, CLI_FLAG, &all, "a line for each layer, not for each kind"},
        CLI_JSON(&json),
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){"calibrate", "[<model>] <output>", 1, 2,
                     "Collects statistics of the activations of a 16-bit Llama model, for static "
                     "scales.\n<output> is a safetensors file. Without <model> it is the sum of "
                     "the files that "
                     "--merge names.",
                     options},
        argc, argv);
    result.model = paths[1] != NULL ? paths[0] : NULL;
    result.text = s.source.text;
    result.output = paths[1] != NULL ? paths[1] : paths[0];
    if (result.model == NULL && merge.count == 0)
        cli_misuse("calibrate needs a model, or files to --merge");
    if (!(s.held_out >= 0.0 && s.held_out < 100.0))
        cli_misuse("--held-out takes 0 to less than 100, not %g", s.held_out);
    if (!(result.percentile > 0.0 && result.percentile <= 100.0))
        cli_misuse("--percentile takes more than 0 and at most 100, not %g", result.percentile);

    cli_expect_output(result.output);

    double began = cli_now();
    dg_statistics *statistics, *held_out;
    s.statistics.block_cols = (int32_t)block;
    s.statistics.bits = (int32_t)bits;
    cli_check(dg_statistics_create(&statistics, &s.statistics), "making statistics");
    cli_check(dg_statistics_create(&held_out, &s.statistics), "making statistics");
    merge_files(&merge, statistics); /* first: it is quick, and may fail */
    if (result.model != NULL)
        calibrate(result.model, &s, statistics, held_out, &result);
    cli_check(dg_statistics_save(statistics, result.output), "writing statistics");
    result.statistics = statistics;
    calibrate_judge(&result, held_out);
    result.seconds = cli_now() - began;
    (json ? calibrate_print_json(&result) : calibrate_print(&result, all));
    calibrate_warn(&result);
    free(result.layers);
    cli_list_free(&merge);
    dg_statistics_destroy(statistics);
    dg_statistics_destroy(held_out);
    return CLI_OK;
}
