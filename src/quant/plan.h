/* SPDX-License-Identifier: MIT */
/* What quantising a checkpoint does with each of its tensors, decided before a byte is written. */
#ifndef DGI_PLAN_H
#define DGI_PLAN_H

#include "io/checkpoint.h"
#include "quant/keep.h"
#include "quant/layout.h"

typedef struct dgi_plan_item {
    dg_tensor *source;
    char *layer;              /* its name without ".weight"; NULL for other tensors */
    const char *kept_because; /* NULL: it is quantised */
    dg_tensor *codes, *scale; /* what replaces it then */
} dgi_plan_item;

typedef struct dgi_plan {
    dgi_plan_item *items; /* in the order of the checkpoint's tensors */
    size_t count;
    int64_t elements;  /* of all tensors */
    int64_t widest;    /* elements of the longest row that is quantised */
    const char **kept; /* layers that stay in 16 bits and that a server would take for FP8 */
    size_t kept_count;
} dgi_plan;

/* DG_INVALID_ARGUMENT for a checkpoint that is quantised already. Borrows from its arguments. */
dg_status dgi_plan_make(const dg_checkpoint *input, const dgi_layout *layout, dgi_keep *keep,
                        dgi_plan *plan);
void dgi_plan_free(dgi_plan *plan);

#endif
