/* SPDX-License-Identifier: MIT */
/* Layers that servers multiply as one: see fusion.h. */
#include "quant/fusion.h"

#include "core/status.h"
#include "io/file.h"
#include "io/json.h"

#include <stdio.h>
#include <string.h>

enum { QKV, GATE_UP, QKV_A, FUSIONS };

static const dgi_fusion fusions[FUSIONS] = {
    [QKV] = {"qkv_proj", {"q_proj", "k_proj", "v_proj"}, 3},
    [GATE_UP] = {"gate_up_proj", {"gate_proj", "up_proj"}, 2},
    [QKV_A] = {"fused_qkv_a_proj_with_mqa", {"q_a_proj", "kv_a_proj_with_mqa"}, 2},
};

static int64_t size_of(const cJSON *config, const char *name)
{
    int64_t size = dgi_json_size(dgi_json_get(config, name));
    return size > 0 && size <= INT32_MAX ? size : 0;
}

dg_status dgi_model_sizes_read(const char *config, size_t bytes, dgi_model_sizes *sizes)
{
    *sizes = (dgi_model_sizes){0};
    if (config == NULL)
        return DG_OK;
    cJSON *root;
    DGI_TRY(dgi_json_parse(config, bytes, "config.json", &root));
    /* Models that read pictures too keep the language model's sizes in an object of their own. */
    const cJSON *text = dgi_json_get(root, "text_config");
    const cJSON *sizes_in = cJSON_IsObject(text) ? text : root;
    *sizes = (dgi_model_sizes){
        .hidden = size_of(sizes_in, "hidden_size"),
        .heads = size_of(sizes_in, "num_attention_heads"),
        .kv_heads = size_of(sizes_in, "num_key_value_heads"),
        .head = size_of(sizes_in, "head_dim"),
        .q_rank = size_of(sizes_in, "q_lora_rank"),
    };
    cJSON_Delete(root);
    if (sizes->kv_heads == 0)
        sizes->kv_heads = sizes->heads;
    if (sizes->head == 0 && sizes->heads > 0)
        sizes->head = sizes->hidden / sizes->heads;
    return DG_OK;
}

static const char *last_part(const char *module)
{
    const char *dot = strrchr(module, '.');
    return dot == NULL ? module : dot + 1;
}

const dgi_fusion *dgi_fusion_of_whole(const char *module)
{
    for (int i = 0; i < FUSIONS; i++)
        if (strcmp(last_part(module), fusions[i].whole) == 0)
            return &fusions[i];
    return NULL;
}

const dgi_fusion *dgi_fusion_of_part(const char *module)
{
    for (int i = 0; i < FUSIONS; i++)
        for (int p = 0; p < fusions[i].count; p++)
            if (strcmp(last_part(module), fusions[i].parts[p]) == 0)
                return &fusions[i];
    return NULL;
}

dg_status dgi_fusion_rows(const dgi_fusion *fusion, const dgi_model_sizes *sizes,
                          const char *module, int64_t rows, int64_t part_rows[DGI_FUSED_PARTS])
{
    int64_t sum = 0;
    memset(part_rows, 0, DGI_FUSED_PARTS * sizeof *part_rows);
    if (fusion == &fusions[QKV]) {
        part_rows[0] = sizes->heads * sizes->head;
        part_rows[1] = part_rows[2] = sizes->kv_heads * sizes->head;
    } else if (fusion == &fusions[GATE_UP]) {
        part_rows[0] = part_rows[1] = rows / 2;
    } else {
        part_rows[0] = sizes->q_rank;
        part_rows[1] = rows - sizes->q_rank;
    }
    bool positive = true;
    for (int i = 0; i < fusion->count; i++) {
        sum += part_rows[i];
        positive &= part_rows[i] > 0;
    }
    if (sum == rows && positive)
        return DG_OK;
    return dgi_fail(DG_INVALID_ARGUMENT,
                    "%s has %lld rows, which cannot be split: config.json gives %lld heads, %lld "
                    "for keys and values, of %lld rows, and q_lora_rank %lld",
                    module, (long long)rows, (long long)sizes->heads, (long long)sizes->kv_heads,
                    (long long)sizes->head, (long long)sizes->q_rank);
}

char *dgi_sibling(const char *module, const char *last, const char *end)
{
    char *name;
    int prefix = (int)(last_part(module) - module);
    return asprintf(&name, "%.*s%s%s", prefix, module, last, end) < 0 ? NULL : name;
}
