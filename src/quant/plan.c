/* SPDX-License-Identifier: MIT */
/* What quantising a checkpoint does with each of its tensors: see plan.h. */
#include "quant/plan.h"

#include "core/formats.h"
#include "core/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WEIGHT_END  ".weight"
#define OUTPUT_HEAD "lm_head"

static bool is_wide(dg_dtype dtype)
{
    return dtype == DG_F32 || dtype == DG_F16 || dtype == DG_BF16;
}

/* Why the tensor cannot be a linear layer's weight, or NULL. */
static const char *unfit(const dg_tensor *tensor)
{
    if (!dgi_ends_with(tensor->name, WEIGHT_END))
        return "not named ....weight";
    if (tensor->rank != 2)
        return "not a matrix";
    if (!is_wide(tensor->dtype))
        return "not F32, F16 or BF16";
    return tensor->elements == 0 ? "empty" : NULL;
}

static dg_tensor *new_matrix(const char *name, const char *type, dg_dtype dtype, int64_t rows,
                             int64_t cols)
{
    dg_tensor *tensor = dgi_tensor_new(name, type, 2);
    if (tensor == NULL)
        return NULL;
    int64_t *shape = (int64_t *)tensor->shape;
    shape[0] = rows;
    shape[1] = cols;
    tensor->dtype = dtype;
    tensor->elements = rows * cols;
    tensor->bytes = (size_t)tensor->elements * dg_dtype_bytes(dtype);
    return tensor;
}

/* Describes the tensors that replace a weight. */
static dg_status replace(const dg_checkpoint *input, const dgi_layout *layout, dgi_plan_item *item)
{
    const dg_tensor *source = item->source;
    int64_t rows = source->shape[0], cols = source->shape[1];
    char *scale_name;
    if (asprintf(&scale_name, "%s%s", source->name, layout->scale_suffix) < 0)
        return dgi_no_memory(source->name);
    const dg_tensor *there = dgi_find_by_name(input->by_name, input->count, scale_name);
    item->codes = new_matrix(source->name, "F8_E4M3", DG_E4M3, rows, cols);
    item->scale = new_matrix(scale_name, "F32", DG_F32, dg_scale_count(rows, layout->block_rows, 0),
                             dg_scale_count(cols, layout->block_cols, 0));
    free(scale_name);
    if (there != NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s holds the scale %s: the checkpoint is quantised already", input->file,
                        there->name);
    return item->codes == NULL || item->scale == NULL ? dgi_no_memory(source->name) : DG_OK;
}

static dg_status plan_tensor(const dg_checkpoint *input, const dgi_layout *layout, dgi_keep *keep,
                             dgi_plan *plan, dgi_plan_item *item)
{
    const dg_tensor *source = item->source;
    if (dgi_is_fp8(source->dtype))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "%s: tensor %s is stored as %s: the checkpoint is quantised already",
                        input->file, source->name, source->stored_type);
    plan->elements += source->elements;
    item->kept_because = unfit(source);
    if (item->kept_because != NULL)
        return DG_OK;
    item->layer = strndup(source->name, strlen(source->name) - strlen(WEIGHT_END));
    if (item->layer == NULL)
        return dgi_no_memory(source->name);
    item->kept_because = dgi_keep_match(keep, source->name, item->layer);
    if (item->kept_because != NULL) {
        plan->kept[plan->kept_count++] = item->layer;
        return DG_OK;
    }
    if (source->shape[1] > plan->widest)
        plan->widest = source->shape[1];
    return replace(input, layout, item);
}

dg_status dgi_plan_make(const dg_checkpoint *input, const dgi_layout *layout, dgi_keep *keep,
                        dgi_plan *plan)
{
    *plan = (dgi_plan){.items = calloc(input->count + 1, sizeof *plan->items),
                       .kept = calloc(input->count + 1, sizeof *plan->kept)};
    if (plan->items == NULL || plan->kept == NULL)
        return dgi_no_memory(input->file);
    for (size_t i = 0; i < input->count; i++) {
        plan->count++; /* first, so that what a failure leaves is freed */
        plan->items[i].source = input->tensors[i];
        DGI_TRY(plan_tensor(input, layout, keep, plan, &plan->items[i]));
    }
    if (plan->widest == 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s holds no layer to quantise: %zu are kept",
                        input->file, plan->kept_count);
    /* A head that is tied to the embedding has no tensor, but is a layer to a server. */
    if (dgi_find_by_name(input->by_name, input->count, OUTPUT_HEAD WEIGHT_END) == NULL)
        plan->kept[plan->kept_count++] = OUTPUT_HEAD;
    return DG_OK;
}

void dgi_plan_free(dgi_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++) {
        free(plan->items[i].layer);
        free(plan->items[i].codes);
        free(plan->items[i].scale);
    }
    free(plan->items);
    free(plan->kept);
    *plan = (dgi_plan){0};
}
