/* SPDX-License-Identifier: MIT */
/* How each FP8 checkpoint format names, shapes and stores its scales: what servers look for. */
#ifndef DGI_LAYOUT_H
#define DGI_LAYOUT_H

#include "deepgemm.h"

/* Whether a format stores scales of activations. */
typedef enum dgi_input_rule {
    DGI_INPUT_DYNAMIC, /* never */
    DGI_INPUT_MAYBE,   /* when every quantised layer has one */
    DGI_INPUT_STATIC   /* always: refused without */
} dgi_input_rule;

typedef struct dgi_layout {
    const char *name;         /* as dg_checkpoint_format_name() */
    const char *scale_suffix; /* after the module's name; NULL: 16 bits, without scales */
    int32_t block_rows, block_cols;
    dg_dtype scale_dtype;
    const char *scale_type; /* as safetensors spells it */
    int32_t scale_rank;     /* of a matrix's scales */
    dg_scale_rounding rounding;
    dgi_input_rule input;
    bool fused_experts; /* may hold the weights of all experts in one tensor */
} dgi_layout;

/* NULL when `format` is none. */
const dgi_layout *dgi_layout_of(dg_checkpoint_format format);

#endif
