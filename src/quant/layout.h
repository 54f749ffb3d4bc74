/* SPDX-License-Identifier: MIT */
/* How each FP8 checkpoint format names, shapes and announces its scales: what servers look for. */
#ifndef DGI_LAYOUT_H
#define DGI_LAYOUT_H

#include "deepgemm.h"

typedef struct dgi_layout {
    const char *scale_suffix; /* after the weight's name */
    int32_t block_rows, block_cols;
} dgi_layout;

/* NULL when `format` is none. */
const dgi_layout *dgi_layout_of(dg_checkpoint_format format);

/*
 * DG_BAD_FILE unless `config`, the text of a config.json, is a JSON object; DG_INVALID_ARGUMENT
 * when it says that the model is quantised already. `path` is for messages.
 */
dg_status dgi_config_check(const char *config, size_t bytes, const char *path);

/*
 * The text of a config.json that passed the check, with the member quantization_config for the
 * format: `kept` are the layers that stay in 16 bits. All else stays as it was written, to the last
 * digit. To be freed; NULL without memory.
 */
char *dgi_config_quantized(const char *config, size_t bytes, dg_checkpoint_format format,
                           const char *const *kept, size_t kept_count, size_t *quantized_bytes);

#endif
