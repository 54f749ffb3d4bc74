/* SPDX-License-Identifier: MIT */
/*
 * The forward pass of Llama models, for `deepgemm demo`. It does everything but the matrix products
 * itself, in FP32; each product goes through a function of the caller's, who can so compute it in
 * any precision, time it and compare.
 */
#ifndef CLI_LLAMA_H
#define CLI_LLAMA_H

#include <deepgemm.h>

/* The linear layers of a block, in the order in which it uses them, and the output head. */
typedef enum llama_kind {
    LLAMA_Q,
    LLAMA_K,
    LLAMA_V,
    LLAMA_O,
    LLAMA_GATE,
    LLAMA_UP,
    LLAMA_DOWN,
    LLAMA_BLOCK_KINDS,
    LLAMA_HEAD = LLAMA_BLOCK_KINDS
} llama_kind;

extern const char *const llama_kind_names[LLAMA_BLOCK_KINDS]; /* "q_proj" and so on */

typedef struct llama_block {
    float *attention_norm, *mlp_norm;    /* [hidden] */
    dg_matrix linear[LLAMA_BLOCK_KINDS]; /* [N, K], 16 bits */
} llama_block;

typedef struct llama {
    int64_t hidden, intermediate, heads, kv_heads, head_dim, vocabulary;
    int block_count;
    double norm_epsilon, rope_theta;
    llama_block *blocks;
    float *final_norm;
    dg_matrix embedding, head; /* [vocabulary, hidden]; the same one where they are tied */
    dg_checkpoint *checkpoint; /* holds the matrices; NULL for a generated model */
} llama;

/* Opens a folder with a checkpoint of Hugging Face's LlamaForCausalLM in 16 bits, or dies. */
llama llama_open(const char *folder);

/*
 * A model of SmolLM2-135M's shapes with generated weights: normal, and in the norms some features
 * that are far larger than the others (layer_fill_gains), so that activations have outliers.
 */
llama llama_generate(void);

void llama_close(llama *model);

/* Computes y = x . W^T for one layer: x [tokens, K] and y [tokens, N] are F32. */
typedef void llama_product(void *user, int block, llama_kind kind, const dg_matrix *x,
                           const dg_matrix *y);

/* The logits [tokens, vocabulary] for each of the tokens. */
void llama_forward(const llama *model, const int32_t *ids, int64_t tokens, llama_product *product,
                   void *user, float *logits);

#endif
