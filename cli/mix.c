/* SPDX-License-Identifier: MIT */
/*
 * deepgemm mix: which linear layers of a model should keep 16 bits, or finer scales, so that a
 * budget of bytes or of error is met: measured layer by layer on text.
 */
#include "mix.h"

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
    FILE *file = fopen(path, "w");
    if (file == NULL)
        cli_die("%s cannot be written", path);
    for (int i = 0; i < m->layer_count; i++)
        if (m->layers[i].chosen == MIX_RECIPES)
            fprintf(file, "%s\n", m->layers[i].name);
    if (fclose(file) != 0)
        cli_die("%s cannot be written", path);
}

int cli_mix(int argc, char **argv)
{
    const char *text = NULL, *output = NULL;
    int64_t length = 64, tokens = 256, threads = 0;
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
        {"text", "file", CLI_TEXT, &text,
         "token ids: `ids`, I32, of a safetensors file (default: <model>/tokens.safetensors)"},
        {"tokens", "n", CLI_COUNT, &tokens, "how many tokens to run (default 256)"},
        {"length", "n", CLI_COUNT, &length, "tokens of a piece of text (default 64)"},
        {"output", "file", CLI_OUTPUT, &output,
         "write the layers that keep 16 bits, one a line, for deepgemm quantize --keep"},
        {"threads", "n", CLI_COUNT, &threads, "threads to use; 0: all"},
        {"all", NULL, CLI_FLAG, &all, "all layers, not only the worst"},
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
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
    if (length < 1 || tokens < 1)
        cli_misuse("--%s must be at least 1", length < 1 ? "length" : "tokens");

    double began = cli_now();
    dg_context_options context_options = DG_CONTEXT_OPTIONS_INIT;
    context_options.threads = (int32_t)threads;
    mix m = {.folder = paths[0]};
    dg_device_info device;
    take_recipes(&m, &recipes);
    cli_check(dg_create(&m.context, DG_CPU, &context_options), "opening the processor");
    cli_check(dg_get_device_info(m.context, &device), "asking for the processor");
    m.peer = layer_wide_peer(device.units, device.architecture);
    m.model = llama_open(m.folder);
    m.text = pieces_read(&m.model, m.folder, text, length, tokens);
    mix_measure(&m);
    m.budget = size >= 0.0 ? DG_BUDGET_BYTES : DG_BUDGET_ERROR;
    m.limit = size >= 0.0 ? size / 100.0 * m.wide_bytes : error;
    choose(&m);
    mix_verify(&m);
    m.seconds = cli_now() - began;
    if (output != NULL)
        write_keep(&m, output);
    if (json)
        mix_print_json(&m);
    else
        mix_print(&m, all);
    mix_free(&m);
    pieces_free(&m.text);
    llama_close(&m.model);
    dg_destroy(m.context);
    free(recipes.items);
    return CLI_OK;
}
