/* SPDX-License-Identifier: MIT */
/* What `deepgemm mix` (mix.c) measures (mix_run.c) and prints (mix_report.c). */
#ifndef CLI_MIX_H
#define CLI_MIX_H

#include "layer.h"
#include "pieces.h"

/* How a layer can be quantised; tokens are quantised one by one, as they come. */
typedef struct mix_recipe {
    const char *name;
    int32_t weight_rows, weight_cols, token_cols; /* blocks of the scales */
} mix_recipe;

enum { MIX_RECIPES = 3, MIX_PRECISIONS = MIX_RECIPES + 1 }; /* and 16 bits, the last */
extern const mix_recipe mix_recipes[MIX_RECIPES];

typedef struct mix_layer {
    char *name;
    int block;
    llama_kind kind;
    /* Stored bytes, and the divergence of the predictions when this layer alone is so. Infinite for
     * recipes that were not asked for. */
    dg_precision precisions[MIX_PRECISIONS];
    int32_t chosen;
} mix_layer;

typedef struct mix {
    dg_context *context;
    const bench_peer *peer; /* multiplies in 16 bits */
    const char *folder;
    llama model;
    pieces text;
    bool asked[MIX_RECIPES];
    mix_layer *layers; /* block by block, each with its kinds in order */
    int layer_count;
    dg_budget budget;
    double limit;
    double wide_bytes;      /* all layers in 16 bits */
    dg_precision predicted; /* of the choice, by adding up */
    double measured;        /* divergence of the whole model so */
    double seconds;
} mix;

/* Measures each layer's precisions. */
void mix_measure(mix *m);
/* Measures the model with the precisions that were chosen. */
void mix_verify(mix *m);
void mix_free(mix *m);

void mix_print(const mix *m, bool all);
void mix_print_json(const mix *m);

#endif
