/* SPDX-License-Identifier: MIT */
/*
 * deepgemm demo: a real model's linear layers in FP8 against 16 bits, on activations computed from
 * real text: errors, times and bytes for each layer, then the effect on the model's predictions.
 */
#include "demo.h"

#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const demo_recipe recipes[] = {
    {"1x128 . 128x128", 128, 128, 128},
    {"token x channel", 1, 0, 0},
};
static const char recipe_words[] = "block|channel";

static char *cache_folder(void)
{
    const char *name = "smollm2-135m-instruct";
    const char *own = getenv("DEEPGEMM_CACHE"), *user = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    if (own != NULL && *own != '\0')
        return cli_format("%s/%s", own, name);
    if (user != NULL && *user != '\0')
        return cli_format("%s/deepgemm/%s", user, name);
    return cli_format("%s/.cache/deepgemm/%s", home != NULL ? home : "", name);
}

static bool file_exists(const char *folder, const char *name)
{
    char *path = cli_format("%s/%s", folder, name);
    bool found = access(path, R_OK) == 0;
    free(path);
    return found;
}

/* As good as random: every row of a generated embedding is. */
static int32_t *generate_ids(int64_t tokens)
{
    int32_t *ids = cli_alloc((size_t)tokens * sizeof *ids);
    for (int64_t t = 0; t < tokens; t++)
        ids[t] = (int32_t)t;
    return ids;
}

int cli_demo(int argc, char **argv)
{
    enum { least_tokens = 2 };
    const char *folder = NULL;
    int64_t tokens = 128, threads = 0;
    int recipe_index = 0;
    bool all = false, json = false;
    const cli_option options[] = {
        {"recipe", recipe_words, CLI_CHOICE, &recipe_index,
         "scales: 1x128 . 128x128 blocks (default), or token x channel"},
        {"tokens", "N", CLI_COUNT, &tokens, "how much of the text to run (default 128)"},
        CLI_THREADS(&threads),
        {"model", "FOLDER", CLI_TEXT, &folder, "another Llama checkpoint, with tokens.safetensors"},
        {"all", NULL, CLI_FLAG, &all, "a line for every layer"},
        CLI_JSON(&json),
        {0},
    };
    cli_parse(&(cli_usage){"demo", "", 0, 0,
                           "Runs a real model's linear layers in FP8 and in 16 bits, on real text.",
                           options},
              argc, argv);
    if (tokens < least_tokens)
        cli_misuse("--tokens must be at least %d: a prediction needs a token to predict",
                   least_tokens);

    double began = cli_now();
    demo d = {.recipe = &recipes[recipe_index]};
    demo_result result = {.recipe = d.recipe->name};
    d.context = cli_context(threads);
    cli_check(dg_get_device_info(d.context, &result.device), "asking for the processor");
    d.peer = layer_wide_peer(d.context);
    result.wide_by = d.peer->about();

    char *cache = cache_folder();
    int32_t *ids;
    if (folder != NULL || file_exists(cache, "model.safetensors")) {
        result.source = folder != NULL ? folder : cache;
        d.model = llama_open(result.source);
        char *path = cli_format("%s/tokens.safetensors", result.source);
        llama_text text = llama_read_text(&d.model, path);
        ids = text.ids; /* the first text, where there are several */
        tokens = text.tokens < tokens ? text.tokens : tokens;
        if (tokens < least_tokens)
            cli_die("%s: a prediction needs at least %d tokens", path, least_tokens);
        free(path);
    } else {
        result.missing = cache;
        d.model = llama_generate();
        ids = generate_ids(tokens);
    }
    result.tokens = tokens;
    double start = cli_now(), others = bench_seconds_of_others();
    result.whole = demo_run(&d, ids, tokens);
    result.others = fmax(0.0, bench_seconds_of_others() - others) / (cli_now() - start);
    result.layers = d.layers;
    result.layer_count = d.model.block_count * LLAMA_BLOCK_KINDS;
    result.seconds = cli_now() - began;
    if (json)
        demo_print_json(&result);
    else
        demo_print(&result, all);

    for (int i = 0; i < result.layer_count; i++)
        dg_weights_destroy(d.layers[i].weights);
    free(d.layers);
    free(ids);
    free(cache);
    llama_close(&d.model);
    dg_destroy(d.context);
    return CLI_OK;
}
