/* SPDX-License-Identifier: MIT */
/* Which scales belong to a weight, and what each covers: see weight.h, and dg_checkpoint_weight().
 */
#include "io/weight.h"

#include "core/formats.h"
#include "core/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a checkpoint's blocks are when its config.json does not say: DeepSeek's. */
#define DEFAULT_BLOCK 128
/* The block of OCP MX, whose scales are bytes. */
#define MX_BLOCK      32

typedef long long ll; /* for printf */

/* ---- names --------------------------------------------------------------------------- */

#define WEIGHT_END  ".weight"
#define TORCHAO_END "._weight_qdata"

bool dgi_weight_is_fused_experts(const dg_tensor *tensor)
{
    return tensor->rank == 3 && (dgi_ends_with(tensor->name, ".experts.gate_up_proj") ||
                                 dgi_ends_with(tensor->name, ".experts.down_proj"));
}

size_t dgi_weight_module(const dg_tensor *tensor)
{
    static const char *const ends[] = {WEIGHT_END, TORCHAO_END};
    size_t length = strlen(tensor->name);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (dgi_ends_with(tensor->name, ends[i]))
            return length - strlen(ends[i]);
    return dgi_weight_is_fused_experts(tensor) ? length : 0;
}

/* ---- finding ------------------------------------------------------------------------- */

/* The tensor named by the first `bytes` of a name and a suffix, in *found unless there is none;
 * DG_BAD_FILE when *found is another one already. */
static dg_status take(const dg_checkpoint *checkpoint, const char *name, size_t bytes,
                      const char *suffix, const dg_tensor **found)
{
    char *full;
    if (asprintf(&full, "%.*s%s", (int)bytes, name, suffix) < 0)
        return dgi_no_memory(name);
    const dg_tensor *one = dgi_find_by_name(checkpoint->by_name, checkpoint->count, full);
    free(full);
    if (one == NULL)
        return DG_OK;
    if (*found != NULL)
        return dgi_fail(DG_BAD_FILE, "weight %s has two scales: %s and %s", name, (*found)->name,
                        one->name);
    *found = one;
    return DG_OK;
}

static dg_status find_scales(const dg_checkpoint *c, dgi_weight *w)
{
    /* Of fused experts' weights older releases of one framework spelt the scales in the plural. */
    static const char *const scales[] = {"_scale_inv", "_scales_inv", "_scale"};
    const char *name = w->weight->name;
    size_t module = dgi_weight_module(w->weight), all = strlen(name);
    if (dgi_ends_with(name, TORCHAO_END))
        return take(c, name, module, "._weight_scale", &w->scale);
    for (int i = 0; i < 3; i++)
        DGI_TRY(take(c, name, all, scales[i], &w->scale));
    if (module == 0)
        return DG_OK;
    /* In 16-bit models ".scale" may be anything. */
    if (module < all && dgi_is_fp8(w->weight->dtype))
        DGI_TRY(take(c, name, module, ".scale", &w->scale));
    DGI_TRY(take(c, name, module, module < all ? ".input_scale" : "_input_scale", &w->input_scale));
    return take(c, name, module, module < all ? ".activation_scale" : "_activation_scale",
                &w->input_scale);
}

static dg_status find_scale_type(dgi_weight *w)
{
    w->scale_dtype = w->scale->dtype;
    /* compressed-tensors stores the exponent bytes of MX scales as plain bytes. */
    if (strcmp(w->scale->stored_type, "U8") == 0)
        w->scale_dtype = DG_UE8M0;
    if (w->scale_dtype == DG_NONE || dgi_is_fp8(w->scale_dtype))
        return dgi_fail(DG_UNSUPPORTED_TYPE,
                        "scale %s is stored as %s: F32, F16, BF16, F8_E8M0 or U8 expected",
                        w->scale->name, w->scale->stored_type);
    return DG_OK;
}

/* ---- granularity --------------------------------------------------------------------- */

/*
 * The scale's shape for one matrix, as rows and columns; false when it has none. For fused experts
 * the first size counts them. Model Optimizer writes blocks as [rows, 1, columns, 1].
 */
static bool scale_shape(const dgi_weight *w, int64_t *rows, int64_t *cols)
{
    const int64_t *shape = w->scale->shape;
    int32_t rank = w->scale->rank;
    if (w->matrices > 1 || w->weight->rank == 3) {
        if (rank < 1 || rank > 3 || shape[0] != w->matrices)
            return false;
        shape++;
        rank--;
    }
    if (rank == 4 && shape[1] == 1 && shape[3] == 1) {
        *rows = shape[0];
        *cols = shape[2];
        return true;
    }
    if (rank > 2)
        return false;
    *rows = rank > 0 ? shape[0] : 1;
    *cols = rank > 1 ? shape[1] : 1;
    return true;
}

static bool covers(const dgi_weight *w, int64_t rows, int64_t cols, int32_t block_rows,
                   int32_t block_cols)
{
    return rows == dg_scale_count(w->rows, block_rows, 0) &&
           cols == dg_scale_count(w->cols, block_cols, 0);
}

/*
 * The granularity of the scale. Where two fit a shape (one row, one block) they mean the same, so
 * the order of the questions does not matter for the values.
 */
static dg_status find_granularity(const dg_checkpoint *checkpoint, dgi_weight *w)
{
    const dgi_quantization *q = &checkpoint->quantization;
    int32_t block_rows = q->block_rows, block_cols = q->block_cols;
    if (block_rows == 0)
        block_rows = block_cols = DEFAULT_BLOCK;
    const int32_t candidates[][2] = {
        {0, 0}, {1, 0}, {block_rows, block_cols}, {1, MX_BLOCK}, {1, q->group},
    };
    size_t count = q->group != 0 ? 5 : w->scale_dtype == DG_UE8M0 ? 4 : 3;
    w->block_rows = w->block_cols = 0;
    w->scale_rows = w->scale_cols = 1;
    if (w->scale->elements == 1)
        return DG_OK;
    int64_t rows, cols;
    if (scale_shape(w, &rows, &cols))
        for (size_t i = 0; i < count; i++)
            if (covers(w, rows, cols, candidates[i][0], candidates[i][1])) {
                w->block_rows = candidates[i][0];
                w->block_cols = candidates[i][1];
                w->scale_rows = rows;
                w->scale_cols = cols;
                w->matrix_scales = rows * cols;
                return DG_OK;
            }
    return dgi_fail(DG_BAD_FILE,
                    "scale %s has rank %d and %lld elements, but weight %s is %lld x [%lld, %lld] "
                    "with blocks of %d x %d: for each matrix 1, [%lld] or [%lld, %lld] expected",
                    w->scale->name, w->scale->rank, (ll)w->scale->elements, w->weight->name,
                    (ll)w->matrices, (ll)w->rows, (ll)w->cols, block_rows, block_cols, (ll)w->rows,
                    (ll)dg_scale_count(w->rows, block_rows, 0),
                    (ll)dg_scale_count(w->cols, block_cols, 0));
}

dg_status dgi_weight_find(const dg_checkpoint *checkpoint, const dg_tensor *tensor,
                          bool unscaled_is_one, dgi_weight *weight)
{
    bool fused = dgi_weight_is_fused_experts(tensor);
    dgi_weight *w = weight;
    *w = (dgi_weight){.weight = tensor, .scale_rows = 1, .scale_cols = 1};
    if (tensor->dtype == DG_NONE || tensor->dtype == DG_UE8M0)
        return dgi_fail(DG_UNSUPPORTED_TYPE,
                        "weight %s is stored as %s: F32, F16, BF16, F8_E4M3 or F8_E5M2 expected",
                        tensor->name, tensor->stored_type);
    if (tensor->rank != 2 && !fused)
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "weight %s has rank %d: a matrix expected",
                        tensor->name, tensor->rank);
    w->matrices = fused ? tensor->shape[0] : 1;
    w->rows = tensor->shape[fused];
    w->cols = tensor->shape[fused + 1];
    DGI_TRY(find_scales(checkpoint, w));
    if (w->scale != NULL) {
        DGI_TRY(find_scale_type(w));
        DGI_TRY(find_granularity(checkpoint, w));
    } else if (dgi_is_fp8(tensor->dtype) && !unscaled_is_one) {
        return dgi_fail(DG_BAD_FILE,
                        "weight %s is stored as %s without a scale: %s_scale_inv or %s_scale "
                        "expected",
                        tensor->name, tensor->stored_type, tensor->name, tensor->name);
    }
    return DG_OK;
}

/* ---- values -------------------------------------------------------------------------- */

static dg_dtype value_type(const dg_tensor *scale)
{
    return strcmp(scale->stored_type, "U8") == 0 ? DG_UE8M0 : scale->dtype;
}

dg_status dgi_scale_check(const dg_tensor *scale)
{
    for (int64_t i = 0; i < scale->elements; i++) {
        float value = dgi_load_f32(scale->data, value_type(scale), i);
        if (!(value > 0.0f && isfinite(value)))
            return dgi_fail(DG_BAD_FILE,
                            "scale %s: its value %lld is %g, a finite positive number expected",
                            scale->name, (ll)i, (double)value);
    }
    return DG_OK;
}

dg_status dgi_scale_scalar(const dg_tensor *scale, float *value)
{
    dg_dtype dtype = scale->dtype;
    if (dtype != DG_F32 && dtype != DG_F16 && dtype != DG_BF16)
        return dgi_fail(DG_UNSUPPORTED_TYPE, "scale %s is stored as %s: F32, F16 or BF16 expected",
                        scale->name, scale->stored_type);
    if (scale->elements != 1)
        return dgi_fail(DG_BAD_FILE, "scale %s has %lld elements: 1 expected", scale->name,
                        (ll)scale->elements);
    *value = dgi_load_f32(scale->data, dtype, 0);
    return dgi_scale_check(scale);
}

/* ---- the public calls ---------------------------------------------------------------- */

/* The weight, or the embedding that an output head without a tensor of its own is tied to. */
static const dg_tensor *find_weight(const dg_checkpoint *checkpoint, const char *name)
{
    static const char *const embeddings[] = {"model.embed_tokens.weight", "embed_tokens.weight"};
    const dg_tensor *found = dgi_find_by_name(checkpoint->by_name, checkpoint->count, name);
    if (strcmp(name, "lm_head.weight") == 0)
        for (size_t i = 0; i < 2 && found == NULL; i++)
            found = dgi_find_by_name(checkpoint->by_name, checkpoint->count, embeddings[i]);
    return found;
}

/* Matrix `index` of a tensor that holds `count` of them, or the tensor itself. */
static dg_tensor matrix_of(const dg_tensor *tensor, int64_t index, int64_t count, bool stacked)
{
    dg_tensor one = *tensor;
    if (!stacked)
        return one;
    one.rank--;
    one.shape++;
    one.elements /= count;
    one.bytes /= (size_t)count;
    one.data = (const char *)tensor->data + (size_t)index * one.bytes;
    return one;
}

static dg_status stored_weight(const dg_checkpoint *checkpoint, const char *name, int64_t matrix,
                               bool unscaled_is_one, dg_stored_weight *weight)
{
    if (checkpoint == NULL || name == NULL || weight == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        checkpoint == NULL ? "checkpoint"
                        : name == NULL     ? "name"
                                           : "weight");
    const dg_tensor *found = find_weight(checkpoint, name);
    if (found == NULL)
        return dgi_fail(DG_NOT_FOUND, "%s has no tensor %s", checkpoint->file, name);
    bool fused = dgi_weight_is_fused_experts(found);
    if (fused && matrix < 0)
        return dgi_fail(DG_UNSUPPORTED_SHAPE,
                        "weight %s has rank 3, one matrix for each expert: ask with "
                        "dg_checkpoint_expert()",
                        name);
    if (matrix >= (fused ? found->shape[0] : 0))
        return dgi_fail(DG_NOT_FOUND, "weight %s holds %lld experts, expert %lld asked for", name,
                        (ll)(fused ? found->shape[0] : 0), (ll)matrix);
    dgi_weight w;
    DGI_TRY(dgi_weight_find(checkpoint, found, unscaled_is_one, &w));
    dg_stored_weight made = {.weight = matrix_of(found, matrix, w.matrices, fused),
                             .block_rows = w.block_rows,
                             .block_cols = w.block_cols};
    if (w.scale != NULL) {
        made.scale = matrix_of(w.scale, matrix, w.matrices, fused && w.matrix_scales != 0);
        made.scale.dtype = w.scale_dtype;
    }
    *weight = made;
    return DG_OK;
}

dg_status dg_checkpoint_weight(const dg_checkpoint *checkpoint, const char *name,
                               bool unscaled_is_one, dg_stored_weight *weight)
{
    return stored_weight(checkpoint, name, -1, unscaled_is_one, weight);
}

dg_status dg_checkpoint_expert(const dg_checkpoint *checkpoint, const char *name, int64_t expert,
                               bool unscaled_is_one, dg_stored_weight *weight)
{
    if (expert < 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "expert is %lld", (ll)expert);
    return stored_weight(checkpoint, name, expert, unscaled_is_one, weight);
}
