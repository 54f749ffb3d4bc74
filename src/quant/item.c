/* SPDX-License-Identifier: MIT */
/* The items of a plan: see item.h. */
#include "quant/item.h"

#include "core/formats.h"
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making -------------------------------------------------------------------------- */

dg_status dgi_item_new(dgi_plan *plan, const dg_tensor *source, const char *file,
                       dgi_plan_item **item)
{
    if (plan->count == plan->room) {
        size_t room = 2 * plan->room + 64;
        dgi_plan_item *items = realloc(plan->items, room * sizeof *items);
        if (items == NULL)
            return dgi_no_memory("the plan");
        plan->items = items;
        plan->room = room;
    }
    *item = &plan->items[plan->count++];
    **item = (dgi_plan_item){.source = source, .file = file};
    return DG_OK;
}

void dgi_item_free(dgi_plan_item *item)
{
    free(item->module);
    free(item->parts);
    free(item->codes);
    free(item->scale);
    free(item->input);
}

static dg_status add_part(dgi_plan_item *item, const dgi_part *part)
{
    dgi_part *parts = realloc(item->parts, (item->part_count + 1) * sizeof *parts);
    if (parts == NULL)
        return dgi_no_memory(item->source->name);
    item->parts = parts;
    parts[item->part_count++] = *part;
    return DG_OK;
}

dg_status dgi_item_rows(dgi_plan_item *item, const dgi_weight *weight, int64_t matrix,
                        int64_t first_row, int64_t rows)
{
    int64_t all = weight->matrices * weight->rows;
    item->cols = weight->cols;
    item->rows += rows;
    item->elements += rows * weight->cols;
    item->bytes_before += weight->weight->bytes / (size_t)all * (size_t)rows;
    if (weight->scale != NULL) { /* its share, to the nearest byte; all rows' add up to all */
        double bytes_of_row = (double)weight->scale->bytes / (double)all;
        int64_t first = matrix * weight->rows + first_row;
        item->bytes_before += (size_t)(bytes_of_row * (double)(first + rows) + 0.5) -
                              (size_t)(bytes_of_row * (double)first + 0.5);
    }
    dgi_part part = {.tensor = weight->weight,
                     .weight = weight,
                     .matrix = matrix,
                     .first_row = first_row,
                     .rows = rows};
    return add_part(item, &part);
}

dg_status dgi_item_copy(dgi_plan_item *item, const dg_tensor *tensor, size_t first_byte,
                        size_t bytes)
{
    dgi_part part = {.tensor = tensor, .first_byte = first_byte, .bytes = bytes};
    item->bytes_before += bytes;
    item->elements += bytes == tensor->bytes
                          ? tensor->elements /* also of less than a byte */
                          : (int64_t)(bytes / (tensor->bytes / (size_t)tensor->elements));
    return add_part(item, &part);
}

/* ---- tensors of the output ------------------------------------------------------------ */

/* A tensor of a format that the library knows, with its name from a printf format. */
__attribute__((format(printf, 6, 7))) static dg_status
new_tensor(dg_tensor **made, const char *type, dg_dtype dtype, int32_t rank, const int64_t *shape,
           const char *format, ...)
{
    char *name;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&name, format, arguments);
    va_end(arguments);
    if (length < 0)
        return dgi_no_memory("a name");
    dg_tensor *tensor = dgi_tensor_new(name, type, rank);
    free(name);
    if (tensor == NULL)
        return dgi_no_memory("a tensor");
    tensor->dtype = dtype;
    tensor->elements = 1;
    for (int32_t i = 0; i < rank; i++) {
        ((int64_t *)tensor->shape)[i] = shape[i];
        tensor->elements *= shape[i];
    }
    tensor->bytes = (size_t)tensor->elements * dg_dtype_bytes(dtype);
    *made = tensor;
    return DG_OK;
}

/* ---- scales from calibration ----------------------------------------------------------- */

static const dg_tensor *find_given(const dg_checkpoint *scales, const char *module,
                                   const char *suffix)
{
    char *name;
    if (scales == NULL || asprintf(&name, "%s%s", module, suffix) < 0)
        return NULL;
    const dg_tensor *found = dgi_find_by_name(scales->by_name, scales->count, name);
    free(name);
    return found;
}

/* Takes the larger of the item's input scale and this one. */
static dg_status take_input(dgi_plan_item *item, const dg_tensor *scale)
{
    float value;
    DGI_TRY(dgi_scale_scalar(scale, &value));
    if (value > item->input_scale)
        item->input_scale = value;
    return DG_OK;
}

/*
 * The static scale of the layer's input: what calibration gave the layer or the parts that it is
 * made of, or else what they had. Parts of one layer have one input, so the largest scale is right
 * for all. A part without a scale leaves the layer without.
 */
static dg_status find_input(dgi_plan_item *item, const dgi_plan_request *request)
{
    const dg_tensor *whole = find_given(request->scales, item->module, ".input_scale");
    item->calibrated |= whole != NULL;
    if (whole != NULL)
        return take_input(item, whole);
    bool all = true;
    for (size_t p = 0; p < item->part_count; p++) {
        const dgi_weight *w = item->parts[p].weight;
        size_t length = dgi_weight_module(w->weight);
        char *module = strndup(w->weight->name, length);
        if (module == NULL)
            return dgi_no_memory(w->weight->name);
        const dg_tensor *given = find_given(request->scales, module, ".input_scale");
        free(module);
        item->calibrated |= given != NULL;
        if (given == NULL)
            given = w->input_scale;
        if (given != NULL)
            DGI_TRY(take_input(item, given));
        all &= given != NULL;
    }
    if (!all)
        item->input_scale = 0.0f;
    return DG_OK;
}

static dg_status find_given_scales(dgi_plan_item *item, const dgi_plan_request *request)
{
    const dg_tensor *given = find_given(request->scales, item->module, ".weight_scale");
    if (given == NULL || request->convert)
        return DG_OK;
    if (given->dtype != DG_F32 || given->elements != item->scale->elements)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "scale %s has %lld elements of %s, but %s in format %s needs %lld of F32",
                        given->name, (long long)given->elements, given->stored_type,
                        item->codes->name, request->layout->name, (long long)item->scale->elements);
    for (int64_t i = 0; request->layout->rounding != DG_SCALE_EXACT && i < given->elements; i++)
        if ((dgi_f32_to_bits(dgi_load_f32(given->data, DG_F32, i)) & 0x7FFFFFu) != 0)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "scale %s: its value %lld is no power of two, which format %s needs",
                            given->name, (long long)i, request->layout->name);
    item->given = given;
    item->calibrated = true;
    return dgi_scale_check(given);
}

/* ---- weights -------------------------------------------------------------------------- */

/* Shape of the scales of `matrices` matrices of the item, and their rank. */
static int32_t scale_shape(const dgi_plan_item *item, const dgi_layout *layout, bool fused_experts,
                           int64_t shape[3])
{
    int32_t rank = 0;
    if (fused_experts)
        shape[rank++] = item->matrices;
    int32_t of_matrix = fused_experts ? 2 : layout->scale_rank;
    if (of_matrix > 0)
        shape[rank++] = dg_scale_count(item->rows, layout->block_rows, 0);
    if (of_matrix > 1)
        shape[rank++] = dg_scale_count(item->cols, layout->block_cols, 0);
    return rank;
}

dg_status dgi_item_finish(dgi_plan_item *item, const dgi_plan_request *request, const char *module,
                          int64_t matrices, bool fused_experts)
{
    const dgi_layout *layout = request->layout;
    bool wide = layout->scale_suffix == NULL;
    item->module = strdup(module);
    if (item->module == NULL)
        return dgi_no_memory(module);
    item->matrices = matrices;
    item->rows /= matrices;
    const int64_t shape[] = {matrices, item->rows, item->cols};
    DGI_TRY(new_tensor(&item->codes, wide ? "BF16" : "F8_E4M3", wide ? DG_BF16 : DG_E4M3,
                       fused_experts ? 3 : 2, fused_experts ? shape : shape + 1, "%s%s", module,
                       fused_experts ? "" : ".weight"));
    if (wide)
        return DG_OK;
    int64_t scales[3];
    int32_t rank = scale_shape(item, layout, fused_experts, scales);
    /* "_scale_inv" directly behind the name of a fused weight */
    const char *suffix = layout->scale_suffix + (fused_experts ? strlen(".weight") : 0);
    DGI_TRY(new_tensor(&item->scale, layout->scale_type, layout->scale_dtype, rank, scales, "%s%s",
                       module, suffix));
    DGI_TRY(find_given_scales(item, request));
    if (layout->input == DGI_INPUT_DYNAMIC)
        return DG_OK;
    DGI_TRY(find_input(item, request));
    if (item->input_scale > 0.0f) {
        const int64_t one = 1;
        DGI_TRY(new_tensor(&item->input, "F32", DG_F32, layout->scale_rank, &one, "%s.input_scale",
                           module));
    }
    return DG_OK;
}

/* ---- copies --------------------------------------------------------------------------- */

static const char *const cache_ends[] = {".k_scale", ".v_scale"};
static const char *const cache_projections[] = {".k_proj", ".v_proj"};

bool dgi_item_is_cache_scale(const dg_tensor *tensor)
{
    return dgi_ends_with(tensor->name, cache_ends[0]) || dgi_ends_with(tensor->name, cache_ends[1]);
}

/*
 * The name of a cache's scale, to be freed: that of the projection's scale, "k_proj.k_scale", for
 * Model Optimizer, and "self_attn.k_scale" for compressed-tensors. Others take either.
 */
static char *cache_name(const dg_tensor *tensor, const dgi_layout *layout)
{
    int which = dgi_ends_with(tensor->name, cache_ends[1]);
    size_t base = strlen(tensor->name) - strlen(cache_ends[which]);
    size_t projection = strlen(cache_projections[which]);
    bool projected = base > projection && memcmp(tensor->name + base - projection,
                                                 cache_projections[which], projection) == 0;
    size_t attention = projected ? base - projection : base;
    bool to_projection = strncmp(layout->name, "modelopt", 8) == 0;
    bool to_attention =
        strncmp(layout->name, "ct-", 3) == 0 || strcmp(layout->name, "channel") == 0;
    bool is_attention =
        projected || (attention >= 5 && memcmp(tensor->name + attention - 5, "_attn", 5) == 0);
    if (!is_attention || (!to_projection && !to_attention))
        return strdup(tensor->name);
    char *name;
    return asprintf(&name, "%.*s%s%s", (int)attention, tensor->name,
                    to_projection ? cache_projections[which] : "", cache_ends[which]) < 0
               ? NULL
               : name;
}

dg_status dgi_item_name_copy(dgi_plan_item *item, const dgi_layout *layout)
{
    const dg_tensor *source = item->source;
    char *name =
        dgi_item_is_cache_scale(source) ? cache_name(source, layout) : strdup(source->name);
    if (name != NULL)
        item->codes = dgi_tensor_new(name, source->stored_type, source->rank);
    free(name);
    if (item->codes == NULL)
        return dgi_no_memory(source->name);
    memcpy((int64_t *)item->codes->shape, source->shape, (size_t)source->rank * sizeof(int64_t));
    item->codes->dtype = source->dtype;
    item->codes->elements = source->elements;
    item->codes->bytes = source->bytes;
    return DG_OK;
}

dg_status dgi_item_name_bias(dgi_plan_item *item, const char *module, const char *last)
{
    const dg_tensor *source = item->source;
    char *name = dgi_sibling(module, last, ".bias");
    item->codes = name == NULL ? NULL : dgi_tensor_new(name, source->stored_type, 1);
    free(name);
    if (item->codes == NULL)
        return dgi_no_memory(source->name);
    item->codes->bytes = item->bytes_before;
    item->codes->dtype = source->dtype;
    item->codes->elements =
        (int64_t)(item->bytes_before / (source->bytes / (size_t)source->elements));
    ((int64_t *)item->codes->shape)[0] = item->codes->elements;
    return DG_OK;
}
