/* SPDX-License-Identifier: MIT */
/*
 * What quantising or converting a checkpoint makes of its tensors, decided before a byte is
 * written. Each item is one tensor of the output, with its scales, and the parts of the input's
 * tensors that it consists of: usually one, whole; several where layers are fused, or were before;
 * a part of one where they are split.
 */
#ifndef DGI_PLAN_H
#define DGI_PLAN_H

#include "io/weight.h"
#include "quant/fusion.h"
#include "quant/keep.h"
#include "quant/layout.h"

/* Rows of a matrix of a weight, or bytes of a tensor that is copied. */
typedef struct dgi_part {
    const dg_tensor *tensor;
    const dgi_weight *weight; /* NULL: copied */
    int64_t matrix, first_row, rows;
    size_t first_byte, bytes;
} dgi_part;

typedef struct dgi_plan_item {
    const dg_tensor *source;  /* the first tensor of its parts */
    const char *file;         /* the shard that it goes to, by the address of the name */
    char *module;             /* its layer's name; NULL for tensors that are no weights */
    const char *kept_because; /* NULL: its values are written in FP8, or in 16 bits */
    dgi_part *parts; /* in the order of the output's rows, or bytes; each matrix has as many */
    size_t part_count;
    int64_t matrices, rows, cols;
    dg_tensor *codes, *scale, *input; /* of the output; scale and input may be NULL */
    float input_scale;
    const dg_tensor *given; /* scales to be used, from calibration; or NULL */
    bool calibrated;        /* calibration has a scale of the weight or of the input */
    size_t bytes_before;
    int64_t elements;
} dgi_plan_item;

typedef struct dgi_plan {
    const dgi_layout *layout;
    dgi_plan_item *items; /* grouped by shard, in the order of the shards */
    size_t count, room;
    dgi_weight *weights; /* of the input's tensors by name; weight NULL: it is none */
    int64_t elements;    /* of all items */
    const char **kept;   /* layers that stay in 16 bits and that a server would take for FP8 */
    size_t kept_count;
    bool static_input, fp8_cache;
} dgi_plan;

typedef struct dgi_plan_request {
    const dg_checkpoint *input;
    const dg_checkpoint *scales; /* from calibration, or NULL */
    const dgi_layout *layout;
    dgi_model_sizes sizes;
    dg_checkpoint_fusion fusion;
    bool convert; /* FP8 weights become others; otherwise 16-bit weights become FP8 */
    bool unscaled_is_one;
    dgi_keep *keep;
} dgi_plan_request;

/*
 * DG_INVALID_ARGUMENT for an input that is not FP8 (to be converted) or is so already (to be
 * quantised). Borrows from its arguments. Free it also after a failure.
 */
dg_status dgi_plan_make(const dgi_plan_request *request, dgi_plan *plan);
void dgi_plan_free(dgi_plan *plan);

#endif
