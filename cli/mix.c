/* SPDX-License-Identifier: MIT */
/*
 * deepgemm mix: which linear layers of a model should keep 16 bits, or finer scales, so that a
 * budget of bytes or of error is met: measured layer by layer on text.
 */
#include "mix.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The recipes that the options name; block where there are none. */
static void take_recipes(mix *m, const cli_list *names)
{
    for (int i = 0; i < names->count; i++) {
        int r = 0;
        while (r < MIX_RECIPES && strcmp(mix_recipes[r].name, names->items[i]) != 0)
            r++;
        if (r == MIX_RECIPES)
            cli_misuse("--recipe takes tensor, channel or block, not '%s'", names->items[i]);
        m->asked[r] = true;
    }
    m->asked[MIX_RECIPES - 1] |= names->count == 0;
}

static void choose(mix *m)
{
    dg_precision *precisions = cli_alloc((size_t)m->layer_count * sizeof m->layers->precisions);
    int32_t *chosen = cli_alloc((size_t)m->layer_count * sizeof *chosen);
    for (int i = 0; i < m->layer_count; i++)
        memcpy(precisions + (ptrdiff_t)i * MIX_PRECISIONS, m->layers[i].precisions,
               sizeof m->layers->precisions);
    cli_check(dg_precision_choose(precisions, m->layer_count, MIX_PRECISIONS, m->budget, m->limit,
                                  chosen, &m->predicted),
              "meeting the budget");
    for (int i = 0; i < m->layer_count; i++)
        m->layers[i].chosen = chosen[i];
    free(precisions);
    free(chosen);
}

/* The layers that keep 16 bits, a pattern in each line. */
static void write_keep(const mix *m, const char *path)
{
    cli_file file = cli_file_create(path);
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].chosen == MIX_RECIPES)
            fprintf(file.stream, "%s\n", m->layers[i].name);
    cli_file_finish(&file);
}

int cli_mix(int argc, char **argv)
{
    pieces_source source = {.length = 64, .tokens = 256};
    const char *output = NULL;
    int64_t threads = 0;
    double size = -1.0, error = -1.0;
    bool all = false, json = false;
    cli_list recipes = {0};
    const cli_option options[] = {
        {"size", "percent", CLI_REAL, &size,
         "the budget: the layers' bytes in per cent of what they take in 16 bits"},
        {"error", "nats", CLI_REAL, &error,
         "or: how far predictions may move, in nats a token (e.g. 0.01)"},
        {"recipe", "tensor|channel|block", CLI_LIST, &recipes,
         "scales that layers may have, from coarse to fine; may be repeated (default: block)"},
        PIECES_OPTIONS(source, "64", "256"),
        {"output", "file", CLI_OUTPUT, &output,
         "write the layers that keep 16 bits, one a line, for deepgemm quantize --keep @file"},
        CLI_THREADS(&threads),
        {"all", NULL, CLI_FLAG, &all, "all layers, not only the worst"},
        CLI_JSON(&json),
        {0},
    };
    char **paths = cli_parse(
        &(cli_usage){"mix", "<model>", 1, 1,
                     "Chooses the layers of a 16-bit Llama model that should stay in 16 bits, or "
                     "take finer scales,\nby running it with each layer alone in FP8. Holds the "
                     "model's layers in FP32 meanwhile.",
                     options},
        argc, argv);
    if ((size < 0.0) == (error < 0.0))
        cli_misuse("mix needs a budget: either --size or --error, 0 or more");

    double began = cli_now();
    mix m = {.folder = paths[0]};
    take_recipes(&m, &recipes);
    m.context = cli_context(threads);
    m.peer = layer_wide_peer(m.context);
    m.model = llama_open(m.folder);
    m.text = pieces_read(&m.model, m.folder, &source);
    mix_measure(&m);
    m.budget = size >= 0.0 ? DG_BUDGET_BYTES : DG_BUDGET_ERROR;
    m.limit = size >= 0.0 ? size / 100.0 * m.wide_bytes : error;
    choose(&m);
    mix_verify(&m);
    m.seconds = cli_now() - began;
    if (output != NULL) /* a reader who has gone, as `| head` does, must not keep the file away */
        signal(SIGPIPE, SIG_IGN);
    if (json)
        mix_print_json(&m);
    else
        mix_print(&m, all);
    if (output != NULL) /* last, so that nothing is lost where it cannot be written */
        write_keep(&m, output);
    mix_free(&m);
    pieces_free(&m.text);
    llama_close(&m.model);
    dg_destroy(m.context);
    cli_list_free(&recipes);
    return CLI_OK;
}
