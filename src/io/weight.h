/* SPDX-License-Identifier: MIT */
/* Weights as checkpoints store them: which tensors are one, and which scales belong to it. */
#ifndef DGI_WEIGHT_H
#define DGI_WEIGHT_H

#include "io/checkpoint.h"

/* A weight, or the fused weights of all experts of a layer: `matrices` times [rows, cols]. */
typedef struct dgi_weight {
    const dg_tensor *weight;
    const dg_tensor *scale;       /* NULL where it has none */
    const dg_tensor *input_scale; /* of its static activations; NULL where it has none */
    int64_t matrices, rows, cols;
    dg_dtype scale_dtype; /* UE8M0 also where the file says U8 */
    int32_t block_rows, block_cols;
    int64_t scale_rows, scale_cols; /* of one matrix */
    int64_t matrix_scales;          /* from one matrix's scales to the next one's; 0: they share */
} dgi_weight;

/*
 * Length of the module's name in the name of a weight ("model.layers.0.up" in
 * "model.layers.0.up.weight"; a fused weight of experts is a module of its own), 0 when the tensor
 * is named like no weight.
 */
size_t dgi_weight_module(const dg_tensor *tensor);
/* Whether the tensor is the fused weight of a layer's experts, by its name and rank. */
bool dgi_weight_is_fused_experts(const dg_tensor *tensor);

/*
 * Finds the scales of a tensor that is named like a weight, and checks their types and shapes.
 * DG_BAD_FILE for FP8 codes without scales, unless `unscaled_is_one`. After a failure the tensors
 * that were found are in *weight.
 */
dg_status dgi_weight_find(const dg_checkpoint *checkpoint, const dg_tensor *tensor,
                          bool unscaled_is_one, dgi_weight *weight);

/* DG_BAD_FILE, with the first value that is wrong, unless all scales are finite and positive. */
dg_status dgi_scale_check(const dg_tensor *scale);
/* The same for a scale that must be one number, which it gives. */
dg_status dgi_scale_scalar(const dg_tensor *scale, float *value);

#endif
