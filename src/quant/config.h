/* SPDX-License-Identifier: MIT */
/* The text of config.json and of Model Optimizer's hf_quant_config.json for each format. */
#ifndef DGI_CONFIG_H
#define DGI_CONFIG_H

#include "deepgemm.h"

/* What a server must know of a checkpoint beside its format. */
typedef struct dgi_config_facts {
    dg_checkpoint_format format;
    bool static_input;       /* activations have scales in the checkpoint */
    bool fp8_cache;          /* keys and values are cached in FP8 */
    const char *const *kept; /* layers that stay in 16 bits */
    size_t kept_count;
} dgi_config_facts;

/*
 * DG_BAD_FILE unless `config`, the text of a config.json, is a JSON object; DG_INVALID_ARGUMENT
 * when it says that the model is quantised already, unless `may_be_quantized`. `path` is for
 * messages.
 */
dg_status dgi_config_check(const char *config, size_t bytes, bool may_be_quantized,
                           const char *path);

/*
 * The text of a config.json that passed the check, with quantization_config for these facts (or
 * without: DG_CHECKPOINT_BF16) in place of one that was there. All else stays as it was written, to
 * the last digit. To be freed; NULL without memory.
 */
char *dgi_config_text(const char *config, size_t bytes, const dgi_config_facts *facts,
                      size_t *text_bytes);

/* The text of hf_quant_config.json, to be freed; NULL without memory. Model Optimizer's only. */
char *dgi_config_modelopt(const dgi_config_facts *facts, size_t *text_bytes);
bool dgi_config_is_modelopt(dg_checkpoint_format format);

#endif
