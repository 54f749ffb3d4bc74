/* SPDX-License-Identifier: MIT */
/* Layers that servers multiply as one: their names, and how many rows each has. */
#ifndef DGI_FUSION_H
#define DGI_FUSION_H

#include "deepgemm.h"

enum { DGI_FUSED_PARTS = 3 };

typedef struct dgi_fusion {
    const char *whole;                  /* last part of the module's name */
    const char *parts[DGI_FUSED_PARTS]; /* the same of its parts, in the order of their rows */
    int count;
} dgi_fusion;

/* Sizes that config.json gives; 0 where it does not. */
typedef struct dgi_model_sizes {
    int64_t hidden, heads, kv_heads, head, q_rank;
} dgi_model_sizes;

/* `config` is the text of a config.json, or NULL. */
dg_status dgi_model_sizes_read(const char *config, size_t bytes, dgi_model_sizes *sizes);

/* The fusion whose whole, or one of whose parts, the module's name ends with; or NULL. */
const dgi_fusion *dgi_fusion_of_whole(const char *module);
const dgi_fusion *dgi_fusion_of_part(const char *module);

/* The rows of each part of `module`, which has `rows`; DG_INVALID_ARGUMENT where nothing tells. */
dg_status dgi_fusion_rows(const dgi_fusion *fusion, const dgi_model_sizes *sizes,
                          const char *module, int64_t rows, int64_t part_rows[DGI_FUSED_PARTS]);

/* `module` with another last part of its name, and `end` behind it: to be freed. */
char *dgi_sibling(const char *module, const char *last, const char *end);

#endif
