/* SPDX-License-Identifier: MIT */
/* What the files beside the tensors say of a checkpoint's quantisation. */
#ifndef DGI_QUANTIZATION_H
#define DGI_QUANTIZATION_H

#include "deepgemm.h"

/* From config.json (quantization_config) or else hf_quant_config.json; zeros where they are silent.
 */
typedef struct dgi_quantization {
    char method[32];                /* "fp8", "compressed-tensors", "modelopt", ... */
    int32_t block_rows, block_cols; /* of weights' scales */
    int32_t group;                  /* columns that share a scale, each row for itself */
    bool static_input;              /* activations have scales in the checkpoint */
    bool fp8_cache;                 /* keys and values are cached in FP8 */
} dgi_quantization;

/* Of the checkpoint in this folder. DG_BAD_FILE for files that are no JSON or hold no such sizes.
 */
dg_status dgi_quantization_read(const char *folder, dgi_quantization *quantization);

#endif
