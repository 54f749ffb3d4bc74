/* SPDX-License-Identifier: MIT */
/* How plan.c makes an item of a plan: first its parts, then its names, types and shapes. */
#ifndef DGI_ITEM_H
#define DGI_ITEM_H

#include "quant/plan.h"

/* Adds an item without parts to the plan; valid until the next one is added. */
dg_status dgi_item_new(dgi_plan *plan, const dg_tensor *source, const char *file,
                       dgi_plan_item **item);
void dgi_item_free(dgi_plan_item *item);

/* Adds rows of a matrix of a weight, or bytes of a tensor that is copied. */
dg_status dgi_item_rows(dgi_plan_item *item, const dgi_weight *weight, int64_t matrix,
                        int64_t first_row, int64_t rows);
dg_status dgi_item_copy(dgi_plan_item *item, const dg_tensor *tensor, size_t first_byte,
                        size_t bytes);

/* The output of a weight whose parts are there: `matrices` of equal size, for the layer `module`.
 * `fused_experts`: the weight's name is the module's. */
dg_status dgi_item_finish(dgi_plan_item *item, const dgi_plan_request *request, const char *module,
                          int64_t matrices, bool fused_experts);
/* The output of a copied tensor: it is named as before; scales of caches as the format names them.
 */
dg_status dgi_item_name_copy(dgi_plan_item *item, const dgi_layout *layout);
/* The output of a bias that is split or fused. */
dg_status dgi_item_name_bias(dgi_plan_item *item, const char *module, const char *last);

/* Whether a tensor is named like the scale of a key or value cache. */
bool dgi_item_is_cache_scale(const dg_tensor *tensor);

#endif
