/* SPDX-License-Identifier: MIT */
/* Where the weights of a Llama model come from: a checkpoint, or a random generator. */
#include "llama.h"

#include "bench.h"
#include "layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json --------------------------------------------------------------------- */

static cJSON *read_config(const char *folder)
{
    char *path = cli_format("%s/config.json", folder);
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        cli_die("%s: %m", path);
    enum { most_bytes = 1 << 20 }; /* real ones have a few thousand */
    char *text = cli_alloc(most_bytes);
    size_t bytes = fread(text, 1, most_bytes, file);
    fclose(file);
    cJSON *config = cJSON_ParseWithLength(text, bytes);
    if (config == NULL)
        cli_die("%s is not a JSON file", path);
    free(text);
    free(path);
    return config;
}

static double config_number(const cJSON *config, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, name);
    if (!cJSON_IsNumber(item) || !(item->valuedouble > 0.0))
        cli_die("config.json: %s is not a positive number", name);
    return item->valuedouble;
}

static int64_t config_size(const cJSON *config, const char *name)
{
    double value = config_number(config, name);
    if (value > INT32_MAX || value != floor(value))
        cli_die("config.json: %s is %g, not a size", name, value);
    return (int64_t)value;
}

static void expect_word(const cJSON *config, const char *name, const char *word)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, name);
    if (!cJSON_IsString(item) || strcmp(item->valuestring, word) != 0)
        cli_die("config.json: %s is not \"%s\", and the forward pass here does nothing else", name,
                word);
}

/* What this forward pass does not do must not be asked for. */
static void check_supported(const cJSON *config, bool quantized)
{
    expect_word(config, "model_type", "llama");
    expect_word(config, "hidden_act", "silu");
    static const char *const unsupported[] = {"attention_bias", "mlp_bias", "rope_scaling",
                                              "quantization_config"};
    size_t count =
        sizeof unsupported / sizeof *unsupported - quantized; /* which may have the last */
    for (size_t i = 0; i < count; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, unsupported[i]);
        if (item != NULL && !cJSON_IsNull(item) && !cJSON_IsFalse(item))
            cli_die("config.json: the forward pass here does not do %s", unsupported[i]);
    }
}

static void take_config(llama *model, const char *folder, bool quantized)
{
    cJSON *config = read_config(folder);
    check_supported(config, quantized);
    model->hidden = config_size(config, "hidden_size");
    model->intermediate = config_size(config, "intermediate_size");
    model->heads = config_size(config, "num_attention_heads");
    model->kv_heads = config_size(config, "num_key_value_heads");
    model->vocabulary = config_size(config, "vocab_size");
    model->block_count = (int)config_size(config, "num_hidden_layers");
    model->norm_epsilon = config_number(config, "rms_norm_eps");
    model->rope_theta = config_number(config, "rope_theta");
    model->head_dim = cJSON_HasObjectItem(config, "head_dim") ? config_size(config, "head_dim")
                                                              : model->hidden / model->heads;
    if (model->heads % model->kv_heads != 0 || model->head_dim % 2 != 0)
        cli_die(
            "config.json: %lld query heads of %lld features do not go with %lld key-value heads",
            (long long)model->heads, (long long)model->head_dim, (long long)model->kv_heads);
    cJSON_Delete(config);
}

/* ---- shapes -------------------------------------------------------------------------- */

typedef struct shape {
    int64_t rows, cols;
} shape;

static shape shape_of(const llama *model, llama_kind kind)
{
    int64_t hidden = model->hidden, q = model->heads * model->head_dim;
    int64_t kv = model->kv_heads * model->head_dim;
    const shape shapes[] = {
        [LLAMA_Q] = {q, hidden},
        [LLAMA_K] = {kv, hidden},
        [LLAMA_V] = {kv, hidden},
        [LLAMA_O] = {hidden, q},
        [LLAMA_GATE] = {model->intermediate, hidden},
        [LLAMA_UP] = {model->intermediate, hidden},
        [LLAMA_DOWN] = {hidden, model->intermediate},
        [LLAMA_HEAD] = {model->vocabulary, hidden},
    };
    return shapes[kind];
}

/* ---- a checkpoint -------------------------------------------------------------------- */

static dg_matrix matrix_named(const llama *model, const char *name, shape s, bool quantized)
{
    dg_stored_weight stored;
    cli_check(dg_checkpoint_weight(model->checkpoint, name, false, &stored), name);
    const dg_tensor *t = &stored.weight;
    if (t->rank != 2 || t->shape[0] != s.rows || t->shape[1] != s.cols)
        cli_die("%s does not have the shape %lld x %lld that config.json gives it", name,
                (long long)s.rows, (long long)s.cols);
    bool wide = t->dtype == DG_BF16 || t->dtype == DG_F16 || t->dtype == DG_F32;
    if (!wide && !(quantized && cli_is_fp8(t->dtype)))
        cli_die("%s is stored as %s: %s is needed", name, t->stored_type,
                quantized ? "16 bits or FP8" : "a 16-bit model");
    return dg_matrix_of((void *)t->data, t->dtype, s.rows, s.cols);
}

static float *norm_named(const llama *model, const char *name)
{
    size_t bytes = (size_t)model->hidden * sizeof(float);
    float *norm = cli_alloc(bytes);
    cli_check(dg_checkpoint_read(model->checkpoint, name, DG_F32, norm, bytes), name);
    return norm;
}

static void load_block(llama *model, int b, bool quantized)
{
    llama_block *block = &model->blocks[b];
    for (llama_kind kind = 0; kind < LLAMA_BLOCK_KINDS; kind++) {
        char *layer = llama_layer_name(b, kind), *name = cli_format("%s.weight", layer);
        block->linear[kind] = matrix_named(model, name, shape_of(model, kind), quantized);
        free(name);
        free(layer);
    }
    enum { name_bytes = 128 };
    char name[name_bytes];
    snprintf(name, sizeof name, "model.layers.%d.input_layernorm.weight", b);
    block->attention_norm = norm_named(model, name);
    snprintf(name, sizeof name, "model.layers.%d.post_attention_layernorm.weight", b);
    block->mlp_norm = norm_named(model, name);
}

static llama open_model(const char *folder, bool quantized)
{
    llama model = {0};
    take_config(&model, folder, quantized);
    cli_check(dg_checkpoint_open(&model.checkpoint, folder), "opening the model");
    model.blocks = cli_alloc((size_t)model.block_count * sizeof *model.blocks);
    for (int b = 0; b < model.block_count; b++)
        load_block(&model, b, quantized);
    shape s = shape_of(&model, LLAMA_HEAD);
    model.embedding = matrix_named(&model, "model.embed_tokens.weight", s, false);
    /* the embedding where they are tied */
    model.head = matrix_named(&model, "lm_head.weight", s, quantized);
    model.final_norm = norm_named(&model, "model.norm.weight");
    return model;
}

llama llama_open(const char *folder)
{
    return open_model(folder, false);
}

llama llama_open_quantized(const char *folder)
{
    return open_model(folder, true);
}

/* ---- text ---------------------------------------------------------------------------- */

llama_text llama_read_text(const llama *model, const char *path)
{
    dg_checkpoint *file;
    dg_tensor tensor;
    cli_check(dg_checkpoint_open(&file, path), "opening the text");
    cli_check(dg_checkpoint_find(file, "ids", &tensor), "reading the text");
    if (strcmp(tensor.stored_type, "I32") != 0 || tensor.rank < 1 || tensor.rank > 2)
        cli_die("%s: ids are stored as %s in %d dimensions, not as I32 in one or two", path,
                tensor.stored_type, tensor.rank);
    if (tensor.elements == 0)
        cli_die("%s: ids hold no token", path);
    llama_text text = {
        .ids = cli_alloc(tensor.bytes),
        .sequences = tensor.rank == 2 ? tensor.shape[0] : 1,
        .tokens = tensor.shape[tensor.rank - 1],
    };
    memcpy(text.ids, tensor.data, tensor.bytes);
    for (int64_t t = 0; t < tensor.elements; t++)
        if (text.ids[t] < 0 || text.ids[t] >= model->vocabulary)
            cli_die("%s: id %d is not in the vocabulary of %lld", path, text.ids[t],
                    (long long)model->vocabulary);
    dg_checkpoint_close(file);
    return text;
}

llama_text llama_cut_text(llama_text text, int64_t sequences, int64_t tokens)
{
    llama_text cut = {
        .sequences = text.sequences < sequences ? text.sequences : sequences,
        .tokens = text.tokens < tokens ? text.tokens : tokens,
    };
    cut.ids = cli_alloc((size_t)(cut.sequences * cut.tokens) * sizeof *cut.ids);
    for (int64_t s = 0; s < cut.sequences; s++)
        memcpy(cut.ids + s * cut.tokens, text.ids + s * text.tokens,
               (size_t)cut.tokens * sizeof *cut.ids);
    free(text.ids);
    return cut;
}

/* ---- generated ----------------------------------------------------------------------- */

static dg_matrix generate_matrix(uint64_t seed, shape s, float deviation)
{
    int64_t count = s.rows * s.cols;
    float *values = cli_alloc((size_t)count * sizeof *values);
    uint16_t *data = cli_alloc((size_t)count * sizeof *data);
    bench_fill_values(values, count, BENCH_RANDOM, seed);
    for (int64_t i = 0; i < count; i++)
        values[i] *= deviation;
    cli_check(dg_convert(values, DG_F32, data, DG_BF16, count, DG_SATURATE), "generating weights");
    free(values);
    return dg_matrix_of(data, DG_BF16, s.rows, s.cols);
}

static float *generate_norm(uint64_t seed, int64_t size)
{
    float *norm = cli_alloc((size_t)size * sizeof *norm);
    layer_fill_gains(norm, size, seed);
    return norm;
}

llama llama_generate(void)
{
    llama model = {
        .hidden = 576,
        .intermediate = 1536,
        .heads = 9,
        .kv_heads = 3,
        .head_dim = 64,
        .vocabulary = 49152,
        .block_count = 30,
        .norm_epsilon = 1e-5,
        .rope_theta = 1e5,
    };
    model.blocks = cli_alloc((size_t)model.block_count * sizeof *model.blocks);
    /* One stream of values; each tensor begins where none before it has reached. */
    const uint64_t stride = (uint64_t)1 << 32;
    uint64_t seed = 0;
    for (int b = 0; b < model.block_count; b++) {
        for (llama_kind kind = 0; kind < LLAMA_BLOCK_KINDS; kind++) {
            shape s = shape_of(&model, kind);
            /* keeps the variance of what goes through */
            float deviation = 1.0f / sqrtf((float)s.cols);
            model.blocks[b].linear[kind] = generate_matrix(seed += stride, s, deviation);
        }
        model.blocks[b].attention_norm = generate_norm(seed += stride, model.hidden);
        model.blocks[b].mlp_norm = generate_norm(seed += stride, model.hidden);
    }
    model.embedding = generate_matrix(seed += stride, shape_of(&model, LLAMA_HEAD), 1.0f);
    model.head = model.embedding;
    model.final_norm = generate_norm(seed + stride, model.hidden);
    return model;
}

void llama_close(llama *model)
{
    for (int b = 0; b < model->block_count; b++) {
        llama_block *block = &model->blocks[b];
        free(block->attention_norm);
        free(block->mlp_norm);
        if (model->checkpoint == NULL)
            for (llama_kind kind = 0; kind < LLAMA_BLOCK_KINDS; kind++)
                free(block->linear[kind].data);
    }
    if (model->checkpoint == NULL)
        free(model->embedding.data);
    free(model->blocks);
    free(model->final_norm);
    dg_checkpoint_close(model->checkpoint);
}
