/* SPDX-License-Identifier: MIT */
/* A very small Llama model: see tiny_llama.h. */
#include "tiny_llama.h"

#include "files.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_TENSORS = 2 + 9 * TINY_BLOCKS, NAME_BYTES = 64 };

typedef struct builder {
    rng *r;
    stored tensors[MOST_TENSORS];
    char names[MOST_TENSORS][NAME_BYTES];
    uint16_t *data[MOST_TENSORS];
    int count;
} builder;

/* Adds a tensor of normal values around `mean`; every 13th column is `outlier` times as large.
 * Returns the values, to be freed. */
static float *add(builder *b, const char *name, int64_t rows, int64_t cols, double mean,
                  double deviation, double outlier)
{
    int64_t count = rows * (cols == 0 ? 1 : cols), period = cols == 0 ? rows : cols;
    float *values = malloc((size_t)count * sizeof *values);
    uint16_t *data = malloc((size_t)count * sizeof *data);
    for (int64_t i = 0; i < count; i++)
        values[i] =
            (float)((mean + deviation * rng_normal(b->r)) * (i % period % 13 == 5 ? outlier : 1.0));
    assert_ok(dg_convert(values, DG_F32, data, DG_BF16, count, DG_SATURATE));
    assert_ok(dg_convert(data, DG_BF16, values, DG_F32, count, DG_SATURATE));
    snprintf(b->names[b->count], NAME_BYTES, "%s", name);
    b->data[b->count] = data;
    b->tensors[b->count] = (stored){b->names[b->count], "BF16", 2, rows, cols, data};
    b->count++;
    return values;
}

static float *add_to_block(builder *b, int block, const char *name, int64_t rows, int64_t cols,
                           double mean, double deviation, double outlier)
{
    char full[NAME_BYTES];
    snprintf(full, sizeof full, "model.layers.%d.%s.weight", block, name);
    return add(b, full, rows, cols, mean, deviation, outlier);
}

static void write_config(const char *folder)
{
    char text[512];
    snprintf(text, sizeof text,
             "{\"model_type\": \"llama\", \"hidden_act\": \"silu\", \"hidden_size\": %d, "
             "\"intermediate_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": %d, "
             "\"vocab_size\": %d, \"num_hidden_layers\": %d, \"rms_norm_eps\": 1e-05, "
             "\"rope_theta\": 10000.0, \"tie_word_embeddings\": true}",
             TINY_HIDDEN, TINY_INNER, TINY_HEADS, TINY_KV_HEADS, TINY_VOCABULARY, TINY_BLOCKS);
    files_write_text(files_path(folder, "config.json"), text);
}

tiny_llama tiny_llama_new(rng *r, int64_t tokens, double outlier)
{
    const double wide = 1.0 / sqrt(TINY_HIDDEN), inner = 1.0 / sqrt(TINY_INNER);
    const int64_t kv = TINY_KV_HEADS * TINY_HEAD_DIM;
    builder b = {.r = r};
    tiny_llama m = {.folder = files_folder(), .tokens = tokens};
    m.embedding = add(&b, "model.embed_tokens.weight", TINY_VOCABULARY, TINY_HIDDEN, 0, 1, 1);
    for (int block = 0; block < TINY_BLOCKS; block++) {
        float *norm = add_to_block(&b, block, "input_layernorm", TINY_HIDDEN, 0, 1, 0.1, outlier);
        if (block == 0)
            m.first_norm = norm;
        else
            free(norm);
        free(add_to_block(&b, block, "self_attn.q_proj", TINY_HIDDEN, TINY_HIDDEN, 0, wide, 1));
        free(add_to_block(&b, block, "self_attn.k_proj", kv, TINY_HIDDEN, 0, wide, 1));
        free(add_to_block(&b, block, "self_attn.v_proj", kv, TINY_HIDDEN, 0, wide, 1));
        free(add_to_block(&b, block, "self_attn.o_proj", TINY_HIDDEN, TINY_HIDDEN, 0, wide, 1));
        free(add_to_block(&b, block, "post_attention_layernorm", TINY_HIDDEN, 0, 1, 0.1, outlier));
        free(add_to_block(&b, block, "mlp.gate_proj", TINY_INNER, TINY_HIDDEN, 0, wide, 1));
        free(add_to_block(&b, block, "mlp.up_proj", TINY_INNER, TINY_HIDDEN, 0, wide, 1));
        free(add_to_block(&b, block, "mlp.down_proj", TINY_HIDDEN, TINY_INNER, 0, inner, 1));
    }
    free(add(&b, "model.norm.weight", TINY_HIDDEN, 0, 1, 0.1, 1));
    safetensors_write(files_path(m.folder, "model.safetensors"), b.tensors, (size_t)b.count);
    for (int i = 0; i < b.count; i++)
        free(b.data[i]);
    write_config(m.folder);

    m.ids = malloc((size_t)tokens * sizeof *m.ids);
    for (int64_t t = 0; t < tokens; t++)
        m.ids[t] = (int32_t)rng_range(r, 0, TINY_VOCABULARY - 1);
    safetensors_write(files_path(m.folder, "tokens.safetensors"),
                      &(stored){"ids", "I32", 4, tokens, 0, m.ids}, 1);
    return m;
}

void tiny_llama_free(tiny_llama *model)
{
    free(model->ids);
    free(model->embedding);
    free(model->first_norm);
}
