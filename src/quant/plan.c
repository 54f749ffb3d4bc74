/* SPDX-License-Identifier: MIT */
/* What quantising or converting a checkpoint makes of each of its tensors: see plan.h. */
#include "quant/plan.h"

#include "core/formats.h"
#include "core/status.h"
#include "quant/item.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OUTPUT_HEAD "lm_head"

/* A plan in the making. */
typedef struct making {
    const dgi_plan_request *request;
    dgi_plan *plan;
    const char *file; /* the shard of the tensor that is looked at */
    bool *taken; /* tensors of the input by name: scales of weights, and parts of what is fused */
} making;

static bool is_wide(dg_dtype dtype)
{
    return dtype == DG_F32 || dtype == DG_F16 || dtype == DG_BF16;
}

static size_t name_index(const making *m, const char *name)
{
    const dg_checkpoint *input = m->request->input;
    return dgi_index_by_name(input->by_name, input->count, name);
}

/* ---- which tensors are weights ------------------------------------------------------- */

/* Why a tensor is no weight to be quantised, or NULL. */
static const char *unfit(const dg_tensor *tensor, const dgi_model_sizes *sizes)
{
    if (dgi_weight_module(tensor) == 0)
        return "not named ....weight";
    bool fused = dgi_weight_is_fused_experts(tensor);
    if (tensor->rank != 2 && !fused)
        return "not a matrix";
    if (!is_wide(tensor->dtype))
        return "not F32, F16 or BF16";
    if (tensor->elements == 0)
        return "empty";
    /* Some architectures store their experts' weights transposed, and scale them otherwise. */
    bool down = fused && dgi_ends_with(tensor->name, ".down_proj");
    if (fused && sizes->hidden != 0 && tensor->shape[down ? 1 : 2] != sizes->hidden)
        return "experts stored transposed";
    return NULL;
}

static dg_status refuse_quantized(const dg_checkpoint *input, const dg_tensor *tensor)
{
    return dgi_fail(DG_INVALID_ARGUMENT,
                    "%s: tensor %s is stored as %s: the checkpoint is quantised already",
                    input->file, tensor->name, tensor->stored_type);
}

/* Finds the scales of an FP8 weight and takes them out of what is copied. */
static dg_status find_weight(making *m, const dg_tensor *tensor, dgi_weight *weight)
{
    dgi_weight w;
    DGI_TRY(dgi_weight_find(m->request->input, tensor, m->request->unscaled_is_one, &w));
    if (w.scale != NULL && !dgi_is_fp8(tensor->dtype))
        return dgi_fail(DG_BAD_FILE, "weight %s is stored as %s, but has the scale %s",
                        tensor->name, tensor->stored_type, w.scale->name);
    if (!dgi_is_fp8(tensor->dtype))
        return DG_OK;
    if (tensor->elements == 0)
        return dgi_fail(DG_BAD_FILE, "weight %s has no elements", tensor->name);
    if (w.scale != NULL)
        m->taken[name_index(m, w.scale->name)] = true;
    if (w.input_scale != NULL)
        m->taken[name_index(m, w.input_scale->name)] = true;
    *weight = w;
    return DG_OK;
}

/* Converting: FP8 weights with their scales. */
static dg_status find_fp8_weights(making *m)
{
    const dg_checkpoint *input = m->request->input;
    for (size_t i = 0; i < input->count; i++) {
        const dg_tensor *tensor = input->tensors[i];
        bool named = dgi_weight_module(tensor) != 0;
        if (dgi_is_fp8(tensor->dtype) && !named)
            return dgi_fail(DG_BAD_FILE,
                            "%s: tensor %s is stored as %s, but is named like no "
                            "weight",
                            input->file, tensor->name, tensor->stored_type);
        if (named && (dgi_is_fp8(tensor->dtype) || (is_wide(tensor->dtype) && tensor->rank == 2)))
            DGI_TRY(find_weight(m, tensor, &m->plan->weights[name_index(m, tensor->name)]));
    }
    return DG_OK;
}

/* Quantising: 16-bit weights. */
static dg_status find_wide_weights(making *m)
{
    const dgi_plan_request *request = m->request;
    const dg_checkpoint *input = request->input;
    for (size_t i = 0; i < input->count; i++) {
        const dg_tensor *tensor = input->tensors[i];
        if (dgi_is_fp8(tensor->dtype))
            return refuse_quantized(input, tensor);
        if (unfit(tensor, &request->sizes) != NULL)
            continue;
        dgi_weight w;
        DGI_TRY(dgi_weight_find(input, tensor, false, &w));
        if (w.scale != NULL)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "%s holds the scale %s: the checkpoint is quantised already",
                            input->file, w.scale->name);
        m->plan->weights[name_index(m, tensor->name)] = w;
    }
    return DG_OK;
}

/* ---- items --------------------------------------------------------------------------- */

static dg_status keep_tensor(making *m, const dg_tensor *tensor, const char *because)
{
    dgi_plan_item *item;
    DGI_TRY(dgi_item_new(m->plan, tensor, m->file, &item));
    item->kept_because = because;
    DGI_TRY(dgi_item_copy(item, tensor, 0, tensor->bytes));
    return dgi_item_name_copy(item, m->request->layout);
}

/* Notes a layer that stays in 16 bits, if a server would take it for FP8. */
static dg_status note_kept(making *m, const dg_tensor *tensor)
{
    size_t module = dgi_weight_module(tensor);
    if (module == 0 || tensor->rank != 2 || !is_wide(tensor->dtype))
        return DG_OK;
    char *name = strndup(tensor->name, module);
    if (name == NULL)
        return dgi_no_memory(tensor->name);
    m->plan->kept[m->plan->kept_count++] = name;
    return DG_OK;
}

/* The rows of each part of a layer that stays fused, and how many parts there are: one where
 * nothing tells of several. */
static int known_parts(const making *m, const char *module, int64_t rows,
                       int64_t part_rows[DGI_FUSED_PARTS])
{
    const dgi_fusion *fusion = dgi_fusion_of_whole(module);
    if (fusion != NULL &&
        dgi_fusion_rows(fusion, &m->request->sizes, module, rows, part_rows) == DG_OK)
        return fusion->count;
    part_rows[0] = rows;
    return 1;
}

static dg_status whole_weight(making *m, const dgi_weight *w, const char *module)
{
    dgi_plan_item *item;
    DGI_TRY(dgi_item_new(m->plan, w->weight, m->file, &item));
    int64_t rows[DGI_FUSED_PARTS];
    int parts = known_parts(m, module, w->rows, rows);
    for (int64_t matrix = 0; matrix < w->matrices; matrix++) {
        int64_t first = 0;
        for (int p = 0; p < parts; first += rows[p], p++)
            DGI_TRY(dgi_item_rows(item, w, matrix, first, rows[p]));
    }
    return dgi_item_finish(item, m->request, module, w->matrices,
                           dgi_weight_is_fused_experts(w->weight));
}

/* One part of a weight, as a layer by itself. */
static dg_status part_of_weight(making *m, const dgi_weight *w, int64_t matrix, int64_t first_row,
                                int64_t rows, char *module)
{
    if (module == NULL)
        return dgi_no_memory(w->weight->name);
    dgi_plan_item *item;
    dg_status status = dgi_item_new(m->plan, w->weight, m->file, &item);
    if (status == DG_OK)
        status = dgi_item_rows(item, w, matrix, first_row, rows);
    if (status == DG_OK)
        status = dgi_item_finish(item, m->request, module, 1, false);
    free(module);
    return status;
}

/* A weight, or rows of a bias, for each part of a fused layer. */
static dg_status split_layer(making *m, const dgi_weight *w, const dgi_fusion *fusion,
                             const char *module)
{
    int64_t rows[DGI_FUSED_PARTS], first = 0;
    DGI_TRY(dgi_fusion_rows(fusion, &m->request->sizes, module, w->rows, rows));
    for (int p = 0; p < fusion->count; first += rows[p], p++)
        DGI_TRY(part_of_weight(m, w, 0, first, rows[p], dgi_sibling(module, fusion->parts[p], "")));
    return DG_OK;
}

/* Layers for each expert of a fused weight: "....experts.gate_up_proj" becomes
 * "....experts.0.gate_proj" and so on. */
static dg_status split_experts(making *m, const dgi_weight *w, const char *module)
{
    const dgi_fusion *fusion = dgi_fusion_of_whole(module);
    int64_t rows[DGI_FUSED_PARTS] = {w->rows};
    if (fusion != NULL)
        DGI_TRY(dgi_fusion_rows(fusion, &m->request->sizes, module, w->rows, rows));
    for (int64_t e = 0; e < w->matrices; e++) {
        int64_t first = 0;
        for (int p = 0; p < (fusion == NULL ? 1 : fusion->count); first += rows[p], p++) {
            char last[64];
            snprintf(last, sizeof last, "%lld.%s", (long long)e,
                     fusion == NULL ? "down_proj" : fusion->parts[p]);
            DGI_TRY(part_of_weight(m, w, e, first, rows[p], dgi_sibling(module, last, "")));
        }
    }
    return DG_OK;
}

/* The tensor of a sibling of `module`; its place by name in *place. */
static dg_status find_sibling(const making *m, const char *module, const char *last,
                              const char *end, size_t *place)
{
    char *name = dgi_sibling(module, last, end);
    if (name == NULL)
        return dgi_no_memory(module);
    *place = name_index(m, name);
    free(name);
    return DG_OK;
}

/* The weight of a tensor, or NULL. */
static const dgi_weight *weight_of(const making *m, const dg_tensor *tensor)
{
    const dgi_weight *weight = &m->plan->weights[name_index(m, tensor->name)];
    return weight->weight == NULL ? NULL : weight;
}

static bool is_kept(const making *m, const dg_tensor *weight);

/*
 * The weights of the layer's siblings and itself, in order; *all: they are there, to be written in
 * FP8, and as wide as one another.
 */
static dg_status find_parts(const making *m, const dgi_fusion *fusion, const char *module,
                            const dgi_weight *parts[DGI_FUSED_PARTS], bool *all)
{
    const dg_checkpoint *input = m->request->input;
    *all = false;
    for (int p = 0; p < DGI_FUSED_PARTS; p++)
        parts[p] = NULL;
    for (int p = 0; p < fusion->count; p++) {
        size_t place = 0;
        DGI_TRY(find_sibling(m, module, fusion->parts[p], ".weight", &place));
        if (place == input->count)
            return DG_OK;
        const dg_tensor *tensor = input->by_name[place];
        parts[p] = weight_of(m, tensor);
        if (parts[p] == NULL || parts[p]->matrices != 1 || parts[p]->cols != parts[0]->cols ||
            is_kept(m, tensor))
            return DG_OK;
    }
    *all = true;
    return DG_OK;
}

/* Fuses the layer with its siblings where that can be done; *fused says so. Only the first of them
 * that is met comes here. */
static dg_status fuse_weights(making *m, const dgi_fusion *fusion, const char *module, bool *fused)
{
    const dgi_weight *parts[DGI_FUSED_PARTS];
    DGI_TRY(find_parts(m, fusion, module, parts, fused));
    if (!*fused)
        return DG_OK;
    dgi_plan_item *item;
    DGI_TRY(dgi_item_new(m->plan, parts[0]->weight, m->file, &item));
    for (int p = 0; p < fusion->count; p++) {
        DGI_TRY(dgi_item_rows(item, parts[p], 0, 0, parts[p]->rows));
        m->taken[name_index(m, parts[p]->weight->name)] = true;
    }
    char *whole = dgi_sibling(module, fusion->whole, "");
    dg_status status =
        whole == NULL ? dgi_no_memory(module) : dgi_item_finish(item, m->request, whole, 1, false);
    free(whole);
    return status;
}

/* ---- biases of layers that are split or fused ------------------------------------------ */

static dg_status fuse_biases(making *m, const dgi_fusion *fusion, const char *module, bool *fused)
{
    const dg_checkpoint *input = m->request->input;
    const dgi_weight *parts[DGI_FUSED_PARTS];
    const dg_tensor *biases[DGI_FUSED_PARTS] = {NULL};
    DGI_TRY(find_parts(m, fusion, module, parts, fused));
    for (int p = 0; p < fusion->count && *fused; p++) {
        size_t place = 0;
        DGI_TRY(find_sibling(m, module, fusion->parts[p], ".bias", &place));
        biases[p] = place == input->count ? NULL : input->by_name[place];
        if (biases[p] == NULL || biases[p]->rank != 1 ||
            strcmp(biases[p]->stored_type, biases[0]->stored_type) != 0)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "%s cannot be fused with its siblings: not all of them have a bias of "
                            "one type",
                            module);
    }
    if (!*fused)
        return DG_OK;
    dgi_plan_item *item;
    DGI_TRY(dgi_item_new(m->plan, biases[0], m->file, &item));
    item->kept_because = "a bias, fused";
    for (int p = 0; p < fusion->count; p++) {
        DGI_TRY(dgi_item_copy(item, biases[p], 0, biases[p]->bytes));
        m->taken[name_index(m, biases[p]->name)] = true;
    }
    return dgi_item_name_bias(item, module, fusion->whole);
}

static dg_status split_bias(making *m, const dg_tensor *bias, const dgi_fusion *fusion,
                            const char *module)
{
    int64_t rows[DGI_FUSED_PARTS];
    DGI_TRY(dgi_fusion_rows(fusion, &m->request->sizes, module, bias->elements, rows));
    size_t first = 0, element = bias->bytes / (size_t)bias->elements;
    for (int p = 0; p < fusion->count; p++) {
        dgi_plan_item *item;
        DGI_TRY(dgi_item_new(m->plan, bias, m->file, &item));
        item->kept_because = "a bias, split";
        size_t bytes = (size_t)rows[p] * element;
        DGI_TRY(dgi_item_copy(item, bias, first, bytes));
        DGI_TRY(dgi_item_name_bias(item, module, fusion->parts[p]));
        first += bytes;
    }
    return DG_OK;
}

/* A bias follows its layer; *done unless it is to be copied as it is. */
static dg_status plan_bias(making *m, const dg_tensor *bias, bool *done)
{
    const char *end = ".bias";
    *done = false;
    if (m->request->fusion == DG_FUSION_AS_IT_IS || !dgi_ends_with(bias->name, end) ||
        bias->rank != 1 || bias->elements == 0)
        return DG_OK;
    char *module = strndup(bias->name, strlen(bias->name) - strlen(end));
    if (module == NULL)
        return dgi_no_memory(bias->name);
    bool split = m->request->fusion == DG_FUSION_SPLIT;
    const dgi_fusion *fusion = split ? dgi_fusion_of_whole(module) : dgi_fusion_of_part(module);
    dg_status status = DG_OK;
    if (fusion != NULL && split) {
        size_t place = 0;
        status = find_sibling(m, module, fusion->whole, ".weight", &place);
        const dg_checkpoint *input = m->request->input;
        const dg_tensor *weight = place < input->count ? input->by_name[place] : NULL;
        if (status == DG_OK && weight != NULL && weight_of(m, weight) != NULL &&
            !is_kept(m, weight)) {
            status = split_bias(m, bias, fusion, module);
            *done = true;
        }
    } else if (fusion != NULL) {
        status = fuse_biases(m, fusion, module, done);
    }
    free(module);
    return status;
}

/* ---- each tensor --------------------------------------------------------------------- */

/* Whether a weight stays in 16 bits by its name. Counts no match of the patterns. */
static bool is_kept(const making *m, const dg_tensor *weight)
{
    if (m->request->convert)
        return false;
    char *layer = strndup(weight->name, dgi_weight_module(weight));
    bool kept = layer == NULL || dgi_keep_finds(m->request->keep, weight->name, layer);
    free(layer);
    return kept;
}

static dg_status plan_weight(making *m, const dgi_weight *w, const char *module)
{
    const dgi_plan_request *request = m->request;
    bool split = request->fusion == DG_FUSION_SPLIT;
    const dgi_fusion *whole = dgi_fusion_of_whole(module), *part = dgi_fusion_of_part(module);
    bool experts = dgi_weight_is_fused_experts(w->weight);
    if (experts && (split || !request->layout->fused_experts))
        return split_experts(m, w, module);
    if (!experts && split && whole != NULL)
        return split_layer(m, w, whole, module);
    if (request->fusion == DG_FUSION_FUSED && part != NULL) {
        bool fused;
        DGI_TRY(fuse_weights(m, part, module, &fused));
        if (fused)
            return DG_OK;
    }
    return whole_weight(m, w, module);
}

static dg_status plan_tensor(making *m, const dg_tensor *tensor)
{
    const dgi_plan_request *request = m->request;
    const dgi_weight *w = weight_of(m, tensor);
    m->file = tensor->file;
    if (m->taken[name_index(m, tensor->name)])
        return DG_OK;
    if (w == NULL) {
        bool done;
        DGI_TRY(plan_bias(m, tensor, &done));
        if (done)
            return DG_OK;
        DGI_TRY(note_kept(m, tensor));
        const char *because = unfit(tensor, &request->sizes);
        return keep_tensor(m, tensor, because == NULL ? "not in FP8" : because);
    }
    char *module = strndup(tensor->name, dgi_weight_module(tensor));
    if (module == NULL)
        return dgi_no_memory(tensor->name);
    const char *because =
        request->convert ? NULL : dgi_keep_match(request->keep, tensor->name, module);
    dg_status status;
    if (because != NULL) {
        status = note_kept(m, tensor);
        if (status == DG_OK)
            status = keep_tensor(m, tensor, because);
    } else {
        status = plan_weight(m, w, module);
    }
    free(module);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------- */

/*
 * Adds the scales of key and value caches that calibration found, to the last shard. A file of
 * scales of which nothing fits is a mistake: of another model, or no such file at all.
 */
static dg_status take_calibration(making *m)
{
    const dg_checkpoint *scales = m->request->scales, *input = m->request->input;
    bool fits = scales == NULL;
    for (size_t i = 0; i < m->plan->count; i++)
        fits |= m->plan->items[i].calibrated;
    m->file = input->shards[input->shard_count - 1].name;
    for (size_t i = 0; scales != NULL && i < scales->count; i++) {
        const dg_tensor *scale = scales->tensors[i];
        float value;
        /* Formats whose inputs have dynamic scales leave static ones alone. */
        fits |= m->request->layout->input == DGI_INPUT_DYNAMIC &&
                dgi_ends_with(scale->name, ".input_scale");
        if (!dgi_item_is_cache_scale(scale))
            continue;
        DGI_TRY(dgi_scale_scalar(scale, &value));
        DGI_TRY(keep_tensor(m, scale, "from calibration"));
        m->plan->fp8_cache = true;
        fits = true;
    }
    if (!fits)
        return dgi_fail(DG_NOT_FOUND,
                        "%s has no scale for any layer of %s: expected are <layer>.weight_scale "
                        "and <layer>.input_scale",
                        scales->file, input->file);
    return DG_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* No two tensors of the output may have one name. */
static dg_status check_names(const dgi_plan *plan)
{
    const char **names = calloc(3 * plan->count + 1, sizeof *names);
    if (names == NULL)
        return dgi_no_memory("the names of the tensors");
    size_t count = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const dgi_plan_item *item = &plan->items[i];
        const dg_tensor *all[] = {item->codes, item->scale, item->input};
        for (int k = 0; k < 3; k++)
            if (all[k] != NULL)
                names[count++] = all[k]->name;
    }
    qsort(names, count, sizeof *names, compare_names);
    dg_status status = DG_OK;
    for (size_t i = 1; i < count && status == DG_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = dgi_fail(DG_INVALID_ARGUMENT, "the output would have two tensors named %s",
                              names[i]);
    free(names);
    return status;
}

/* Decides whether the output has static scales of activations: all layers or none. */
static dg_status settle_inputs(dgi_plan *plan)
{
    const char *without = NULL;
    size_t with = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const dgi_plan_item *item = &plan->items[i];
        if (item->kept_because != NULL)
            continue;
        with += item->input != NULL;
        if (item->input == NULL && without == NULL)
            without = item->module;
    }
    if (plan->layout->input == DGI_INPUT_STATIC && without != NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "format %s needs a static scale for the input of each layer, and %s has "
                        "none: give scales from calibration, or take a format with dynamic ones",
                        plan->layout->name, without);
    plan->static_input = with > 0 && without == NULL;
    for (size_t i = 0; i < plan->count && !plan->static_input; i++) {
        free(plan->items[i].input);
        plan->items[i].input = NULL;
    }
    return DG_OK;
}

static dg_status make(making *m)
{
    const dgi_plan_request *request = m->request;
    const dg_checkpoint *input = request->input;
    dgi_plan *plan = m->plan;
    DGI_TRY(request->convert ? find_fp8_weights(m) : find_wide_weights(m));
    for (size_t i = 0; i < input->count; i++) {
        float value;
        plan->fp8_cache |= dgi_item_is_cache_scale(input->tensors[i]);
        if (dgi_item_is_cache_scale(input->tensors[i]))
            DGI_TRY(dgi_scale_scalar(input->tensors[i], &value));
    }
    plan->fp8_cache |= input->quantization.fp8_cache;
    for (size_t i = 0; i < input->count; i++)
        DGI_TRY(plan_tensor(m, input->tensors[i]));
    DGI_TRY(take_calibration(m));
    size_t changed = 0;
    for (size_t i = 0; i < plan->count; i++) {
        plan->elements += plan->items[i].elements;
        changed += plan->items[i].kept_because == NULL;
    }
    if (changed == 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s holds no %s: %zu layers are kept", input->file,
                        request->convert ? "FP8 weight to convert" : "layer to quantise",
                        plan->kept_count);
    DGI_TRY(settle_inputs(plan));
    DGI_TRY(check_names(plan));
    /* A head that is tied to the embedding has no tensor, but is a layer to a server. */
    if (dgi_find_by_name(input->by_name, input->count, OUTPUT_HEAD ".weight") == NULL) {
        char *head = strdup(OUTPUT_HEAD);
        if (head == NULL)
            return dgi_no_memory(OUTPUT_HEAD);
        plan->kept[plan->kept_count++] = head;
    }
    return DG_OK;
}

dg_status dgi_plan_make(const dgi_plan_request *request, dgi_plan *plan)
{
    size_t count = request->input->count;
    *plan = (dgi_plan){.layout = request->layout,
                       .weights = calloc(count + 1, sizeof *plan->weights),
                       .kept = calloc(count + 2, sizeof *plan->kept)};
    making m = {request, plan, NULL, calloc(count + 1, sizeof *m.taken)};
    dg_status status = plan->weights == NULL || plan->kept == NULL || m.taken == NULL
                           ? dgi_no_memory(request->input->file)
                           : make(&m);
    free(m.taken);
    return status;
}

void dgi_plan_free(dgi_plan *plan)
{
    for (size_t i = 0; i < plan->count; i++)
        dgi_item_free(&plan->items[i]);
    for (size_t i = 0; i < plan->kept_count; i++)
        free((char *)plan->kept[i]);
    free(plan->items);
    free(plan->weights);
    free(plan->kept);
    *plan = (dgi_plan){0};
}
