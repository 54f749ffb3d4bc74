/* SPDX-License-Identifier: MIT */
/* What becomes of every scale of a checkpoint: dg_checkpoint_scales(). */
#include "core/formats.h"
#include "core/status.h"
#include "io/weight.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct account {
    const dg_checkpoint *checkpoint;
    bool *used; /* of the tensors by name: whether something takes it */
    bool (*report)(void *user, const dg_scale_record *scale);
    void *user;
} account;

/* ---- records ------------------------------------------------------------------------- */

/* Gives a record its layer, the first `layer_bytes` of `name`, and reports it. */
static dg_status report(const account *a, dg_scale_record *record, const char *name,
                        size_t layer_bytes)
{
    char *layer = strndup(name, layer_bytes);
    if (layer == NULL)
        return dgi_no_memory(name);
    record->layer = layer;
    bool go_on = a->report(a->user, record);
    free(layer);
    return go_on ? DG_OK : dgi_fail(DG_CANCELLED, "cancelled at the scales of %s", name);
}

/* Notes that a tensor has a taker. */
static void take(const account *a, const dg_tensor *tensor)
{
    const dg_checkpoint *c = a->checkpoint;
    a->used[dgi_index_by_name(c->by_name, c->count, tensor->name)] = true;
}

/* A scale that is there: checks its values and notes their range. */
static void judge(dg_scale_record *record, const dg_tensor *scale, dg_dtype dtype, bool one)
{
    float value;
    record->scale = *scale;
    record->scale.dtype = dtype;
    record->state = DG_SCALE_LOADED;
    if ((one ? dgi_scale_scalar(scale, &value) : dgi_scale_check(scale)) != DG_OK) {
        record->state = DG_SCALE_WRONG;
        record->problem = dg_last_error();
        return;
    }
    record->smallest = INFINITY;
    for (int64_t i = 0; i < scale->elements; i++) {
        value = dgi_load_f32(scale->data, dtype, i);
        record->smallest = value < record->smallest ? value : record->smallest;
        record->largest = value > record->largest ? value : record->largest;
    }
    dgi_drop_pages(scale->data, scale->bytes);
}

/* ---- weights ------------------------------------------------------------------------- */

static dg_status account_weight(const account *a, const dg_tensor *tensor)
{
    size_t module = dgi_weight_module(tensor);
    if (module == 0 || !dgi_is_fp8(tensor->dtype))
        return DG_OK;
    dgi_weight w;
    dg_scale_record record = {.role = DG_SCALE_OF_WEIGHT, .state = DG_SCALE_MISSING};
    dg_status found = dgi_weight_find(a->checkpoint, tensor, true, &w);
    char message[256];
    if (w.scale != NULL)
        take(a, w.scale);
    if (w.input_scale != NULL)
        take(a, w.input_scale);
    if (found == DG_OUT_OF_MEMORY)
        return found;
    if (found != DG_OK) {
        record.state = DG_SCALE_WRONG;
        record.problem = dg_last_error();
        if (w.scale != NULL)
            record.scale = *w.scale;
    } else if (w.scale == NULL) {
        snprintf(message, sizeof message, "%.100s is stored as %s without a scale", tensor->name,
                 tensor->stored_type);
        record.problem = message;
    } else {
        record.block_rows = w.block_rows;
        record.block_cols = w.block_cols;
        judge(&record, w.scale, w.scale_dtype, false);
    }
    DGI_TRY(report(a, &record, tensor->name, module));

    record = (dg_scale_record){.role = DG_SCALE_OF_INPUT, .state = DG_SCALE_MISSING};
    if (w.input_scale != NULL) {
        judge(&record, w.input_scale, w.input_scale->dtype, true);
    } else if (a->checkpoint->quantization.static_input) {
        snprintf(message, sizeof message,
                 "config.json says that activations have static scales, but %.100s has none",
                 tensor->name);
        record.problem = message;
    } else {
        return DG_OK;
    }
    return report(a, &record, tensor->name, module);
}

/* ---- caches of keys and values ------------------------------------------------------- */

static const struct cache {
    const char *end;
    dg_scale_role role;
} caches[] = {{".k_scale", DG_SCALE_OF_KEYS}, {".v_scale", DG_SCALE_OF_VALUES}};

static dg_status account_cache(const account *a, const dg_tensor *tensor)
{
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        if (!dgi_ends_with(tensor->name, caches[i].end))
            continue;
        dg_scale_record record = {.role = caches[i].role};
        take(a, tensor);
        judge(&record, tensor, tensor->dtype, true);
        return report(a, &record, tensor->name, strlen(tensor->name) - strlen(caches[i].end));
    }
    return DG_OK;
}

/* Reports a default for attention layers without scales when their caches are FP8. */
static dg_status account_defaults(const account *a, const dg_tensor *tensor)
{
    static const char *const projections[] = {".k_proj.weight", ".qkv_proj.weight"};
    static const char *const places[2][3] = {{".k_proj.k_scale", ".k_scale", ".attn.k_scale"},
                                             {".v_proj.v_scale", ".v_scale", ".attn.v_scale"}};
    if (!a->checkpoint->quantization.fp8_cache)
        return DG_OK;
    size_t length = 0;
    for (int i = 0; i < 2 && length == 0; i++)
        if (dgi_ends_with(tensor->name, projections[i]))
            length = strlen(tensor->name) - strlen(projections[i]);
    for (size_t i = 0; length > 0 && i < sizeof caches / sizeof caches[0]; i++) {
        bool found = false;
        for (int p = 0; p < 3; p++) {
            char *name;
            if (asprintf(&name, "%.*s%s", (int)length, tensor->name, places[i][p]) < 0)
                return dgi_no_memory(tensor->name);
            found |= dgi_find_by_name(a->checkpoint->by_name, a->checkpoint->count, name) != NULL;
            free(name);
        }
        dg_scale_record record = {.role = caches[i].role, .state = DG_SCALE_DEFAULTED};
        if (!found)
            DGI_TRY(report(a, &record, tensor->name, length));
    }
    return DG_OK;
}

/* ---- what is left -------------------------------------------------------------------- */

static bool is_named_like_a_scale(const dg_tensor *tensor)
{
    static const char *const ends[] = {"_scale", "_scale_inv", "_scales_inv"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (dgi_ends_with(tensor->name, ends[i]))
            return true;
    return tensor->dtype == DG_UE8M0 && dgi_ends_with(tensor->name, ".scale");
}

static dg_status account_leftover(const account *a, const dg_tensor *tensor)
{
    if (!is_named_like_a_scale(tensor))
        return DG_OK;
    dg_scale_record record = {
        .role = DG_SCALE_OF_NOTHING, .state = DG_SCALE_UNUSED, .scale = *tensor};
    const char *dot = strrchr(tensor->name, '.');
    return report(a, &record, tensor->name,
                  dot == NULL ? strlen(tensor->name) : (size_t)(dot - tensor->name));
}

static dg_status account_all(const account *a)
{
    const dg_checkpoint *c = a->checkpoint;
    for (size_t i = 0; i < c->count; i++) {
        DGI_TRY(account_weight(a, c->tensors[i]));
        DGI_TRY(account_cache(a, c->tensors[i]));
        DGI_TRY(account_defaults(a, c->tensors[i]));
    }
    for (size_t i = 0; i < c->count; i++)
        if (!a->used[i])
            DGI_TRY(account_leftover(a, c->by_name[i]));
    return DG_OK;
}

dg_status dg_checkpoint_scales(const dg_checkpoint *checkpoint,
                               bool (*report)(void *user, const dg_scale_record *scale), void *user)
{
    if (checkpoint == NULL || report == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        checkpoint == NULL ? "checkpoint" : "report");
    account a = {checkpoint, calloc(checkpoint->count + 1, sizeof *a.used), report, user};
    if (a.used == NULL)
        return dgi_no_memory(checkpoint->file);
    dg_status status = account_all(&a);
    free(a.used);
    return status;
}
