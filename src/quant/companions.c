/* SPDX-License-Identifier: MIT */
/* What lies beside the tensors of a checkpoint: see companions.h. */
#include "quant/companions.h"

#include "core/status.h"
#include "io/json.h"
#include "quant/config.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONFIG          "config.json"
#define MODELOPT_CONFIG "hf_quant_config.json"

static dg_status write_file(const char *folder, const char *name, const void *data, size_t bytes)
{
    char *path = dgi_path_join(folder, name);
    if (path == NULL)
        return dgi_no_memory(name);
    dg_status status = dgi_file_create(path, data, bytes);
    free(path);
    return status;
}

/* ---- the index ----------------------------------------------------------------------- */

/* Adds where a tensor lies; returns its bytes. */
static double add_place(cJSON *weight_map, const dg_tensor *tensor, const char *file)
{
    cJSON_AddStringToObject(weight_map, tensor->name, file);
    return (double)tensor->bytes;
}

dg_status dgi_index_write(const dgi_plan *plan, const char *folder, const char *name)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(root, "metadata");
    cJSON *weight_map = cJSON_AddObjectToObject(root, "weight_map");
    double bytes = 0.0;
    for (size_t i = 0; i < plan->count; i++) {
        const dgi_plan_item *item = &plan->items[i];
        const dg_tensor *all[] = {item->codes, item->scale, item->input};
        for (int k = 0; k < 3; k++)
            if (all[k] != NULL)
                bytes += add_place(weight_map, all[k], item->file);
    }
    cJSON_AddNumberToObject(metadata, "total_size", bytes);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    dg_status status =
        text == NULL ? dgi_no_memory(name) : write_file(folder, name, text, strlen(text));
    cJSON_free(text);
    return status;
}

/* ---- config.json --------------------------------------------------------------------- */

dg_status dgi_config_open(const char *folder, bool may_be_quantized, dgi_map *config)
{
    char *path = dgi_path_join(folder, CONFIG);
    if (path == NULL)
        return dgi_no_memory(CONFIG);
    dg_status status = DG_OK;
    if (access(path, F_OK) == 0) {
        status = dgi_file_map(path, config);
        if (status == DG_OK)
            status = dgi_config_check(config->data, config->bytes, may_be_quantized, path);
    }
    free(path);
    return status;
}

dg_status dgi_config_write(const dgi_map *config, dg_checkpoint_format format, const dgi_plan *plan,
                           const char *folder)
{
    const dgi_config_facts facts = {
        .format = format,
        .static_input = plan->static_input,
        .fp8_cache = plan->fp8_cache,
        .kept = plan->kept,
        .kept_count = plan->kept_count,
    };
    dg_status status = DG_OK;
    size_t bytes = 0;
    if (config->data != NULL) {
        char *text = dgi_config_text(config->data, config->bytes, &facts, &bytes);
        status = text == NULL ? dgi_no_memory(CONFIG) : write_file(folder, CONFIG, text, bytes);
        free(text);
    }
    if (status == DG_OK && dgi_config_is_modelopt(format)) {
        char *text = dgi_config_modelopt(&facts, &bytes);
        status = text == NULL ? dgi_no_memory(MODELOPT_CONFIG)
                              : write_file(folder, MODELOPT_CONFIG, text, bytes);
        free(text);
    }
    return status;
}

/* ---- the other files ----------------------------------------------------------------- */

/* Whether a file travels along: no weights in any format, no index, nothing hidden. */
static bool travels(const char *name)
{
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",     ".pt",  ".pth",
                                       ".gguf",        ".h5",         ".msgpack", ".onnx"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (dgi_ends_with(name, ends[i]))
            return false;
    return *name != '.' && strcmp(name, CONFIG) != 0 && strcmp(name, MODELOPT_CONFIG) != 0;
}

/* Copies a file, also one at the end of a link; leaves out folders and the like. */
static dg_status copy_file(const char *path, const char *name, const char *to)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return dgi_io_error("look at", path);
    if (!S_ISREG(facts.st_mode))
        return DG_OK;
    dgi_map map;
    DGI_TRY(dgi_file_map(path, &map));
    dg_status status = write_file(to, name, map.data, map.bytes);
    dgi_file_unmap(&map);
    return status;
}

dg_status dgi_companions_copy(const char *from, const char *to)
{
    DIR *entries = opendir(from);
    if (entries == NULL)
        return dgi_io_error("read folder", from);
    dg_status status = DG_OK;
    const struct dirent *entry;
    while (status == DG_OK && (entry = readdir(entries)) != NULL) {
        if (!travels(entry->d_name))
            continue;
        char *path = dgi_path_join(from, entry->d_name);
        status = path == NULL ? dgi_no_memory(from) : copy_file(path, entry->d_name, to);
        free(path);
    }
    closedir(entries);
    return status;
}
