/* SPDX-License-Identifier: MIT */
/*
 * deepgemm demo: a real model's linear layers in FP8 against 16 bits, on activations computed from
 * real text: errors, times and bytes for each layer, then the effect on the model's predictions.
 */
#include "demo.h"

#include "bench.h"
#include "layer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct recipe {
    const char *name;
    int32_t weight_rows, weight_cols, activation_cols; /* activations: one row each */
} recipe;

static const recipe recipes[] = {
    {"1x128 . 128x128", 128, 128, 128},
    {"token x channel", 1, 0, 0},
};
static const char recipe_words[] = "block|channel";

typedef struct demo {
    llama model;
    dg_context *context;
    const recipe *recipe;
    demo_layer *layers;     /* block by block, each with its kinds in order */
    dg_matrix head;         /* F32 */
    const bench_peer *peer; /* multiplies in 16 bits */
    cli_progress progress;
    double done; /* layers, of both passes */
} demo;

/* ---- one layer ----------------------------------------------------------------------- */

static demo_layer *layer_of(const demo *d, int block, llama_kind kind)
{
    return &d->layers[block * LLAMA_BLOCK_KINDS + (int)kind];
}

static void quantize_weights(demo *d, int block, llama_kind kind)
{
    const dg_matrix *wide = &d->model.blocks[block].linear[kind];
    demo_layer *layer = layer_of(d, block, kind);
    layer_codes w =
        layer_quantize(d->context, wide, d->recipe->weight_rows, d->recipe->weight_cols);
    int64_t elements = wide->rows * wide->cols, scales = w.scale.rows * w.scale.cols;
    *layer = (demo_layer){
        .block = block,
        .kind = kind,
        .n = wide->rows,
        .k = wide->cols,
        .wide_bytes = elements * (int64_t)dg_dtype_bytes(wide->dtype),
        .fp8_bytes = elements + scales * (int64_t)sizeof(float),
        .error = DG_COMPARISON_INIT,
    };
    cli_check(dg_weights_pack(d->context, &w.codes, &w.scale, NULL, 0, NULL, &layer->weights),
              "packing weights");
    layer_codes_free(&w);
}

/* Quantises x and multiplies, as a server would for each token that comes in. */
static void multiply_fp8(const demo *d, const demo_layer *layer, const dg_matrix *x,
                         const dg_matrix *y)
{
    layer_codes a = layer_quantize(d->context, x, 1, d->recipe->activation_cols);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = a.codes;
    gemm.scale_a = a.scale;
    gemm.weights = layer->weights;
    gemm.d = *y;
    cli_check(dg_gemm_run(d->context, &gemm, NULL), "multiplying");
    layer_codes_free(&a);
}

/* ---- the products of the forward passes ---------------------------------------------- */

static const double seconds_each = 0.01; /* to time one layer's product */

/*
 * First pass: goes on with the 16-bit product, and holds the FP8 one of the same x against it. The
 * FP8 products are timed in the second pass, so that two libraries' threads do not take turns.
 */
static void product_compared(void *user, int block, llama_kind kind, const dg_matrix *x,
                             const dg_matrix *y)
{
    demo *d = user;
    if (kind == LLAMA_HEAD) {
        layer_multiply_wide(d->peer, x, &d->head, y);
        return;
    }
    demo_layer *layer = layer_of(d, block, kind);
    dg_matrix w = layer_widen(&d->model.blocks[block].linear[kind]);
    layer->wide_seconds = layer_time_wide(d->peer, x, &w, y, seconds_each);
    dg_matrix y8 = layer_new(y->rows, y->cols);
    multiply_fp8(d, layer, x, &y8);
    cli_check(dg_compare(y, &y8, &layer->error), "comparing");
    free(w.data);
    free(y8.data);
    cli_progress_update(&d->progress, ++d->done);
}

typedef struct fp8_call {
    const demo *demo;
    const demo_layer *layer;
    const dg_matrix *x, *y;
} fp8_call;

static void run_fp8(void *state, int64_t index)
{
    (void)index;
    const fp8_call *call = state;
    multiply_fp8(call->demo, call->layer, call->x, call->y);
}

/* Second pass: FP8 everywhere but in the head. */
static void product_fp8(void *user, int block, llama_kind kind, const dg_matrix *x,
                        const dg_matrix *y)
{
    demo *d = user;
    if (kind == LLAMA_HEAD) {
        layer_multiply_wide(d->peer, x, &d->head, y);
        return;
    }
    demo_layer *layer = layer_of(d, block, kind);
    layer->fp8_seconds = bench_measure(run_fp8, &(fp8_call){d, layer, x, y}, seconds_each).median;
    cli_progress_update(&d->progress, ++d->done);
}

/* ---- the whole model ----------------------------------------------------------------- */

static int64_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* -log of the probability that the logits give to `id`. */
static double surprise(const float *logits, int64_t count, int32_t id)
{
    double top = logits[largest(logits, count)], sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += exp(logits[i] - top);
    return log(sum) + top - logits[id];
}

static double perplexity(const float *logits, int64_t vocabulary, const int32_t *ids,
                         int64_t tokens)
{
    double sum = 0.0;
    for (int64_t t = 0; t + 1 < tokens; t++)
        sum += surprise(logits + t * vocabulary, vocabulary, ids[t + 1]);
    return exp(sum / (double)(tokens - 1));
}

static demo_end_to_end judge(const llama *model, const int32_t *ids, int64_t tokens, float *wide,
                             float *fp8)
{
    int64_t vocabulary = model->vocabulary, agreed = 0;
    for (int64_t t = 0; t < tokens; t++)
        agreed +=
            largest(wide + t * vocabulary, vocabulary) == largest(fp8 + t * vocabulary, vocabulary);
    demo_end_to_end whole = {
        .logits = DG_COMPARISON_INIT,
        .top1_agreement = (double)agreed / (double)tokens,
        .wide_perplexity = perplexity(wide, vocabulary, ids, tokens),
        .fp8_perplexity = perplexity(fp8, vocabulary, ids, tokens),
    };
    dg_matrix reference = dg_matrix_of(wide, DG_F32, tokens, vocabulary);
    dg_matrix result = dg_matrix_of(fp8, DG_F32, tokens, vocabulary);
    cli_check(dg_compare(&reference, &result, &whole.logits), "comparing logits");
    return whole;
}

/* Runs everything; fills in the layers. */
static demo_end_to_end run(demo *d, const int32_t *ids, int64_t tokens)
{
    const llama *model = &d->model;
    int count = model->block_count * LLAMA_BLOCK_KINDS;
    d->layers = cli_alloc((size_t)count * sizeof *d->layers);
    d->head = layer_widen(&model->head);
    for (int b = 0; b < model->block_count; b++)
        for (llama_kind kind = 0; kind < LLAMA_BLOCK_KINDS; kind++)
            quantize_weights(d, b, kind);

    size_t logits_bytes = (size_t)(tokens * model->vocabulary) * sizeof(float);
    float *wide = cli_alloc(logits_bytes), *fp8 = cli_alloc(logits_bytes);
    d->progress = cli_progress_start("layers", 2 * count);
    llama_forward(model, ids, tokens, product_compared, d, wide);
    llama_forward(model, ids, tokens, product_fp8, d, fp8);
    cli_progress_end(&d->progress);
    demo_end_to_end whole = judge(model, ids, tokens, wide, fp8);
    free(wide);
    free(fp8);
    free(d->head.data);
    return whole;
}

/* ---- the command --------------------------------------------------------------------- */

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

/* The text's token ids, at most *tokens of them; *tokens becomes their number. */
static int32_t *read_ids(const char *folder, const llama *model, int64_t *tokens)
{
    char *path = cli_format("%s/tokens.safetensors", folder);
    dg_checkpoint *file;
    dg_tensor tensor;
    cli_check(dg_checkpoint_open(&file, path), "opening the text");
    cli_check(dg_checkpoint_find(file, "ids", &tensor), "reading the text");
    if (strcmp(tensor.stored_type, "I32") != 0)
        cli_die("%s: ids are stored as %s, not as I32", path, tensor.stored_type);
    int32_t *ids = cli_alloc(tensor.bytes);
    memcpy(ids, tensor.data, tensor.bytes);
    *tokens = tensor.elements < *tokens ? tensor.elements : *tokens;
    for (int64_t t = 0; t < *tokens; t++)
        if (ids[t] < 0 || ids[t] >= model->vocabulary)
            cli_die("%s: id %d is not in the vocabulary of %lld", path, ids[t],
                    (long long)model->vocabulary);
    dg_checkpoint_close(file);
    free(path);
    return ids;
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
        {"threads", "N", CLI_COUNT, &threads, "threads to use (default: all)"},
        {"model", "FOLDER", CLI_TEXT, &folder, "another Llama checkpoint, with tokens.safetensors"},
        {"all", NULL, CLI_FLAG, &all, "a line for every layer"},
        {"json", NULL, CLI_FLAG, &json, "print one JSON object"},
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
    dg_context_options context_options = DG_CONTEXT_OPTIONS_INIT;
    context_options.threads = (int32_t)threads;
    demo d = {.recipe = &recipes[recipe_index]};
    demo_result result = {.recipe = d.recipe->name};
    cli_check(dg_create(&d.context, DG_CPU, &context_options), "opening the processor");
    cli_check(dg_get_device_info(d.context, &result.device), "asking for the processor");
    d.peer = layer_wide_peer(result.device.units, result.device.architecture);
    result.wide_by = d.peer->about();

    char *cache = cache_folder();
    int32_t *ids;
    if (folder != NULL || file_exists(cache, "model.safetensors")) {
        result.source = folder != NULL ? folder : cache;
        d.model = llama_open(result.source);
        ids = read_ids(result.source, &d.model, &tokens);
    } else {
        result.missing = cache;
        d.model = llama_generate();
        ids = generate_ids(tokens);
    }
    result.tokens = tokens;
    result.whole = run(&d, ids, tokens);
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
