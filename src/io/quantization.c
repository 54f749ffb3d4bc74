/* SPDX-License-Identifier: MIT */
/* What config.json and hf_quant_config.json say of the quantisation: see quantization.h. */
#include "io/quantization.h"

#include "core/status.h"
#include "io/file.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *text_of(const cJSON *object, const char *name)
{
    const char *text = dgi_json_string(dgi_json_get(object, name));
    return text == NULL ? "" : text;
}

/* "weight_block_size" (DeepSeek) or "block_structure" (compressed-tensors): [rows, columns]. */
static dg_status read_block(const cJSON *block, const char *path, dgi_quantization *q)
{
    if (!cJSON_IsArray(block))
        return DG_OK;
    int64_t rows = dgi_json_size(cJSON_GetArrayItem(block, 0));
    int64_t cols = dgi_json_size(cJSON_GetArrayItem(block, 1));
    if (cJSON_GetArraySize(block) != 2 || rows < 1 || cols < 1 || rows > INT32_MAX ||
        cols > INT32_MAX)
        return dgi_fail(DG_BAD_FILE, "%s: its block size is not [rows, columns]", path);
    q->block_rows = (int32_t)rows;
    q->block_cols = (int32_t)cols;
    return DG_OK;
}

/* The groups of compressed-tensors; Model Optimizer mirrors its settings in the same form. The
 * first one that says something counts. */
static dg_status read_groups(const cJSON *groups, const char *path, dgi_quantization *q)
{
    const cJSON *group;
    cJSON_ArrayForEach(group, groups)
    {
        const cJSON *weights = dgi_json_get(group, "weights");
        const cJSON *input = dgi_json_get(group, "input_activations");
        if (q->block_rows == 0)
            DGI_TRY(read_block(dgi_json_get(weights, "block_structure"), path, q));
        int64_t size = dgi_json_size(dgi_json_get(weights, "group_size"));
        if (q->group == 0 && size >= 1 && size <= INT32_MAX)
            q->group = (int32_t)size;
        if (cJSON_IsObject(input) && cJSON_IsFalse(dgi_json_get(input, "dynamic")))
            q->static_input = true;
    }
    return DG_OK;
}

/* The member quantization_config of config.json. */
static dg_status read_config(const cJSON *config, const char *path, dgi_quantization *q)
{
    const cJSON *settings = dgi_json_get(config, "quantization_config");
    if (!cJSON_IsObject(settings))
        settings = dgi_json_get(config, "compression_config");
    snprintf(q->method, sizeof q->method, "%s", text_of(settings, "quant_method"));
    DGI_TRY(read_block(dgi_json_get(settings, "weight_block_size"), path, q));
    DGI_TRY(read_groups(dgi_json_get(settings, "config_groups"), path, q));
    q->static_input |= strcmp(text_of(settings, "activation_scheme"), "static") == 0;
    q->fp8_cache = cJSON_IsObject(dgi_json_get(settings, "kv_cache_scheme")) ||
                   strcmp(text_of(settings, "kv_cache_quant_algo"), "FP8") == 0;
    if (strcmp(q->method, "modelopt") == 0)
        q->static_input |= strcmp(text_of(settings, "quant_algo"), "FP8") == 0;
    return DG_OK;
}

/* Model Optimizer's own file. */
static dg_status read_hf_quant_config(const cJSON *root, const char *path, dgi_quantization *q)
{
    (void)path;
    const cJSON *settings = dgi_json_get(root, "quantization");
    if (q->method[0] == '\0')
        snprintf(q->method, sizeof q->method, "%s",
                 text_of(dgi_json_get(root, "producer"), "name"));
    q->static_input |= strcmp(text_of(settings, "quant_algo"), "FP8") == 0;
    q->fp8_cache |= strcmp(text_of(settings, "kv_cache_quant_algo"), "FP8") == 0;
    return DG_OK;
}

static dg_status read_file(const char *folder, const char *name, dgi_quantization *q,
                           dg_status (*read)(const cJSON *, const char *, dgi_quantization *))
{
    char *path = dgi_path_join(folder, name);
    if (path == NULL)
        return dgi_no_memory(name);
    dg_status status = DG_OK;
    if (access(path, F_OK) == 0) {
        cJSON *root;
        status = dgi_json_parse_file(path, &root);
        if (status == DG_OK) {
            status = read(root, path, q);
            cJSON_Delete(root);
        }
    }
    free(path);
    return status;
}

dg_status dgi_quantization_read(const char *folder, dgi_quantization *quantization)
{
    *quantization = (dgi_quantization){0};
    DGI_TRY(read_file(folder, "config.json", quantization, read_config));
    return read_file(folder, "hf_quant_config.json", quantization, read_hf_quant_config);
}
