/* SPDX-License-Identifier: MIT */
/* Which scales belong to a weight, and what each covers: dg_checkpoint_weight(). */
#include "core/formats.h"
#include "core/status.h"
#include "io/checkpoint.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a checkpoint's blocks are when its config.json does not say: DeepSeek's. */
#define DEFAULT_BLOCK 128
/* The block of OCP MX, whose scales are bytes. */
#define MX_BLOCK      32

typedef long long ll; /* for printf */

/* ---- the block size in config.json --------------------------------------------------- */

/* "weight_block_size" (DeepSeek) or the first "block_structure" of compressed-tensors; or NULL. */
static const cJSON *find_block(const cJSON *config)
{
    const cJSON *quantization = dgi_json_get(config, "quantization_config");
    const cJSON *block = dgi_json_get(quantization, "weight_block_size");
    if (cJSON_IsArray(block))
        return block;
    const cJSON *group;
    cJSON_ArrayForEach(group, dgi_json_get(quantization, "config_groups"))
    {
        block = dgi_json_get(dgi_json_get(group, "weights"), "block_structure");
        if (cJSON_IsArray(block))
            return block;
    }
    return NULL;
}

static dg_status read_block(const cJSON *config, const char *path, dg_checkpoint *checkpoint)
{
    const cJSON *block = find_block(config);
    if (block == NULL)
        return DG_OK;
    int64_t rows = dgi_json_size(cJSON_GetArrayItem(block, 0));
    int64_t cols = dgi_json_size(cJSON_GetArrayItem(block, 1));
    if (cJSON_GetArraySize(block) != 2 || rows < 1 || cols < 1 || rows > INT32_MAX ||
        cols > INT32_MAX)
        return dgi_fail(DG_BAD_FILE, "%s: its block size is not [rows, columns]", path);
    checkpoint->block_rows = (int32_t)rows;
    checkpoint->block_cols = (int32_t)cols;
    return DG_OK;
}

dg_status dgi_checkpoint_read_block(dg_checkpoint *checkpoint)
{
    char *path = dgi_path_join(checkpoint->folder, "config.json");
    if (path == NULL)
        return dgi_no_memory("config.json");
    dg_status status = DG_OK;
    if (access(path, F_OK) == 0) {
        cJSON *config;
        status = dgi_json_parse_file(path, &config);
        if (status == DG_OK) {
            status = read_block(config, path, checkpoint);
            cJSON_Delete(config);
        }
    }
    free(path);
    return status;
}

/* ---- the scale of a weight ----------------------------------------------------------- */

/* The scale of that name, if there is one and none of another name was found before. */
static dg_status take_scale(const dg_checkpoint *checkpoint, const char *name, int name_bytes,
                            const char *suffix, dg_tensor *scale)
{
    char *scale_name;
    if (asprintf(&scale_name, "%.*s%s", name_bytes, name, suffix) < 0)
        return dgi_no_memory(name);
    const dg_tensor *found = dgi_find_by_name(checkpoint->by_name, checkpoint->count, scale_name);
    free(scale_name);
    if (found == NULL)
        return DG_OK;
    if (scale->name != NULL)
        return dgi_fail(DG_BAD_FILE, "weight %s has two scales: %s and %s", name, scale->name,
                        found->name);
    *scale = *found;
    return DG_OK;
}

static dg_status find_scale(const dg_checkpoint *checkpoint, const char *name, dg_tensor *scale)
{
    const char *end = ".weight";
    int bytes = (int)strlen(name);
    DGI_TRY(take_scale(checkpoint, name, bytes, "_scale_inv", scale));
    DGI_TRY(take_scale(checkpoint, name, bytes, "_scale", scale));
    if (dgi_ends_with(name, end))
        DGI_TRY(take_scale(checkpoint, name, bytes - (int)strlen(end), ".scale", scale));
    if (scale->name == NULL)
        return DG_OK;
    /* compressed-tensors stores the exponent bytes of MX scales as plain bytes. */
    if (strcmp(scale->stored_type, "U8") == 0)
        scale->dtype = DG_UE8M0;
    if (scale->dtype == DG_NONE || dgi_is_fp8(scale->dtype))
        return dgi_fail(DG_UNSUPPORTED_TYPE,
                        "scale %s is stored as %s: F32, F16, BF16, F8_E8M0 or U8 expected",
                        scale->name, scale->stored_type);
    return DG_OK;
}

/* Whether a scale of that shape has one value for each block of the weight. */
static bool covers(const dg_tensor *weight, const dg_tensor *scale, int32_t block_rows,
                   int32_t block_cols)
{
    int64_t cols = scale->rank == 2 ? scale->shape[1] : 1;
    return scale->rank >= 1 && scale->rank <= 2 &&
           scale->shape[0] == dg_scale_count(weight->shape[0], block_rows, 0) &&
           cols == dg_scale_count(weight->shape[1], block_cols, 0);
}

/*
 * The granularity of the scale. Where two fit a shape (one row, one block) they mean the same, so
 * the order of the questions does not matter for the values.
 */
static dg_status find_granularity(const dg_checkpoint *checkpoint, dg_stored_weight *w)
{
    int32_t block_rows = checkpoint->block_rows, block_cols = checkpoint->block_cols;
    if (block_rows == 0)
        block_rows = block_cols = DEFAULT_BLOCK;
    const int32_t candidates[][2] = {{1, 0}, {block_rows, block_cols}, {1, MX_BLOCK}};
    size_t count = w->scale.dtype == DG_UE8M0 ? 3 : 2;
    w->block_rows = w->block_cols = 0;
    if (w->scale.elements == 1)
        return DG_OK;
    for (size_t i = 0; i < count; i++)
        if (covers(&w->weight, &w->scale, candidates[i][0], candidates[i][1])) {
            w->block_rows = candidates[i][0];
            w->block_cols = candidates[i][1];
            return DG_OK;
        }
    const int64_t *shape = w->weight.shape;
    return dgi_fail(DG_BAD_FILE,
                    "scale %s has rank %d and %lld elements, but weight %s is [%lld, %lld] with "
                    "blocks of %d x %d: 1, [%lld] or [%lld, %lld] expected",
                    w->scale.name, w->scale.rank, (ll)w->scale.elements, w->weight.name,
                    (ll)shape[0], (ll)shape[1], block_rows, block_cols, (ll)shape[0],
                    (ll)dg_scale_count(shape[0], block_rows, 0),
                    (ll)dg_scale_count(shape[1], block_cols, 0));
}

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

dg_status dg_checkpoint_weight(const dg_checkpoint *checkpoint, const char *name,
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
    dg_stored_weight made = {.weight = *found};
    if (found->dtype == DG_NONE || found->dtype == DG_UE8M0)
        return dgi_fail(DG_UNSUPPORTED_TYPE,
                        "weight %s is stored as %s: F32, F16, BF16, F8_E4M3 or F8_E5M2 expected",
                        name, found->stored_type);
    if (found->rank != 2)
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "weight %s has rank %d: a matrix expected", name,
                        found->rank);
    DGI_TRY(find_scale(checkpoint, found->name, &made.scale));
    if (made.scale.name != NULL)
        DGI_TRY(find_granularity(checkpoint, &made));
    else if (dgi_is_fp8(found->dtype) && !unscaled_is_one)
        return dgi_fail(DG_BAD_FILE,
                        "weight %s is stored as %s without a scale: %s_scale_inv or %s_scale "
                        "expected",
                        name, found->stored_type, found->name, found->name);
    *weight = made;
    return DG_OK;
}
