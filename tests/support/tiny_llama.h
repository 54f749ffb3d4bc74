/* SPDX-License-Identifier: MIT */
/* A very small Llama model with random weights in BF16, in a folder, for tests of the tool. */
#ifndef TEST_TINY_LLAMA_H
#define TEST_TINY_LLAMA_H

#include "random.h"

enum {
    TINY_HIDDEN = 64,
    TINY_INNER = 96,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_HEAD_DIM = 16,
    TINY_VOCABULARY = 80,
    TINY_BLOCKS = 2
};

typedef struct tiny_llama {
    const char *folder; /* with model.safetensors, config.json and tokens.safetensors */
    int64_t tokens;
    int32_t *ids;
    float *embedding;  /* [TINY_VOCABULARY, TINY_HIDDEN] */
    float *first_norm; /* [TINY_HIDDEN], before the first block's attention */
} tiny_llama;

/* Some of the features are `outlier` times as large as the others. */
tiny_llama tiny_llama_new(rng *r, int64_t tokens, double outlier);
void tiny_llama_free(tiny_llama *model);

#endif
