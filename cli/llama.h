/* SPDX-License-Identifier: MIT */
/*
 * The forward pass of Llama models, for the commands that run one. It does everything but the
 * matrix products itself, in FP32; each product goes through a function of the caller's, who can so
 * compute it in any precision, time it and compare.
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

/* "model.layers.3.mlp.up_proj", or "lm_head": of malloc's. */
char *llama_layer_name(int block, llama_kind kind);

typedef struct llama_block {
    float *attention_norm, *mlp_norm;    /* [hidden] */
    dg_matrix linear[LLAMA_BLOCK_KINDS]; /* [N, K], as stored */
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
 * The same, but linear layers may also be in FP8. Their matrices hold the codes; the scales are
 * those that dg_checkpoint_weight() finds by the layer's name.
 */
llama llama_open_quantized(const char *folder);

/*
 * A model of SmolLM2-135M's shapes with generated weights: normal, and in the norms some features
 * that are far larger than the others (layer_fill_gains), so that activations have outliers.
 */
llama llama_generate(void);

void llama_close(llama *model);

/* Token ids: several texts of the same length. */
typedef struct llama_text {
    int32_t *ids; /* [sequences, tokens], of malloc's */
    int64_t sequences, tokens;
} llama_text;

/* The tensor `ids`, I32 [tokens] or [sequences, tokens], of a safetensors file; or dies. */
llama_text llama_read_text(const llama *model, const char *path);

/* The first texts, and the first tokens of each; frees what it is given. */
llama_text llama_cut_text(llama_text text, int64_t sequences, int64_t tokens);

/* Computes y = x . W^T for one layer: x [rows, K] and y [rows, N] are F32. */
typedef void llama_product(void *user, int block, llama_kind kind, const dg_matrix *x,
                           const dg_matrix *y);

/*
 * Runs `sequences` texts of `tokens` ids each, side by side: ids [sequences, tokens]. A product has
 * sequences * tokens rows. The logits are [sequences * tokens, vocabulary]; NULL leaves the head
 * out. Every row has the same bits whatever runs beside it, if the product's rows have.
 */
void llama_forward(const llama *model, const int32_t *ids, int64_t sequences, int64_t tokens,
                   llama_product *product, void *user, float *logits);

#endif
