/* SPDX-License-Identifier: MIT */
/* What lies beside the tensors of a quantised checkpoint: its index, config.json, other files. */
#ifndef DGI_COMPANIONS_H
#define DGI_COMPANIONS_H

#include "io/file.h"
#include "quant/plan.h"

/* Writes the index of the shards that the plan makes. */
dg_status dgi_index_write(const dgi_plan *plan, const char *folder, const char *name);

/* Maps config.json, if the folder has one, and checks that it can be changed. */
dg_status dgi_config_open(const char *folder, bool may_be_quantized, dgi_map *config);
/* Writes it, and hf_quant_config.json for formats that have one, with what a server must know. */
dg_status dgi_config_write(const dgi_map *config, dg_checkpoint_format format, const dgi_plan *plan,
                           const char *folder);

/* Copies the files that only travel along: the tokenizer's and so on. */
dg_status dgi_companions_copy(const char *from, const char *to);

#endif
