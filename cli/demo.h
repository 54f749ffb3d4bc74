/* SPDX-License-Identifier: MIT */
/* What `deepgemm demo` (demo.c) measures (demo_run.c) and prints (demo_report.c). */
#ifndef CLI_DEMO_H
#define CLI_DEMO_H

#include "layer.h"
#include "llama.h"
#include "predict.h"

/* A linear layer: its weights in FP8, and how they did. */
typedef struct demo_layer {
    int block;
    llama_kind kind;
    dg_weights *weights; /* packed */
    int64_t n, k;
    int64_t wide_bytes, fp8_bytes;    /* of weights; FP8 with its scales      */
    dg_comparison error;              /* FP8 against 16 bits, same activations */
    double wide_seconds, fp8_seconds; /* FP8 with quantising the activations  */
} demo_layer;

typedef struct demo_recipe {
    const char *name;
    int32_t weight_rows, weight_cols, activation_cols; /* activations: one row each */
} demo_recipe;

typedef struct demo {
    llama model;
    dg_context *context;
    const demo_recipe *recipe;
    const bench_peer *peer; /* multiplies in 16 bits */
    demo_layer *layers;     /* block by block, each with its kinds in order */
    dg_matrix head;         /* F32 */
    cli_progress progress;
    double done; /* layers, of both passes */
} demo;

/* Runs everything; fills in the layers. Returns what FP8 in every linear layer but the head does.
 */
predict demo_run(demo *d, const int32_t *ids, int64_t tokens);

typedef struct demo_result {
    const char *source;  /* the model's folder; NULL: generated data */
    const char *missing; /* why generated data; NULL otherwise       */
    const char *recipe;  /* "1x128 . 128x128"                        */
    const char *wide_by; /* what computed the 16-bit products        */
    dg_device_info device;
    int64_t tokens;
    demo_layer *layers;
    int layer_count;
    predict whole;
    double seconds; /* the run's */
    double others;  /* processors that other programs kept busy meanwhile */
} demo_result;

void demo_print(const demo_result *result, bool all_layers);
void demo_print_json(const demo_result *result);

#endif
