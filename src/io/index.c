/* SPDX-License-Identifier: MIT */
/*
 * Opening a checkpoint by its index: which shards there are, whether all of them and all of their
 * tensors are there. Called by checkpoint.c.
 */
#include "core/status.h"
#include "io/checkpoint.h"
#include "io/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- lists of names ------------------------------------------------------------------ */

/* Names to be listed in a message: "a, b, c". */
typedef struct name_list {
    FILE *stream;
    char *text;
    size_t bytes;
    int64_t count;
} name_list;

static void list_add(name_list *list, const char *name)
{
    if (list->stream == NULL)
        list->stream = open_memstream(&list->text, &list->bytes);
    if (list->stream != NULL)
        fprintf(list->stream, "%s%s", list->count == 0 ? "" : ", ", name);
    list->count++;
}

/* DG_NOT_FOUND with the list in its message, unless the list is empty. Releases the list. */
static dg_status list_report(name_list *list, const char *file, const char *what)
{
    if (list->stream != NULL)
        fclose(list->stream);
    dg_status status =
        list->count == 0
            ? DG_OK
            : dgi_fail(DG_NOT_FOUND, "%s names %lld %s: %s", file, (long long)list->count, what,
                       list->text == NULL ? "(no memory to list them)" : list->text);
    free(list->text);
    return status;
}

/* ---- shards -------------------------------------------------------------------------- */

static int compare_texts(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct shard names of the index, ordered: pointers into the JSON. */
static dg_status list_shards(const dg_checkpoint *c, const cJSON *weight_map, const char **names,
                             size_t *count)
{
    const cJSON *entry;
    size_t all = 0;
    cJSON_ArrayForEach(entry, weight_map)
    {
        const char *name = dgi_json_string(entry);
        if (name == NULL || *name == '\0' || *name == '.' || strchr(name, '/') != NULL)
            return dgi_fail(DG_BAD_FILE, "%s: the file of tensor %s is not a plain file name",
                            c->file, entry->string);
        names[all++] = name;
    }
    qsort(names, all, sizeof *names, compare_texts);
    *count = 0;
    for (size_t i = 0; i < all; i++)
        if (i == 0 || strcmp(names[i], names[*count - 1]) != 0)
            names[(*count)++] = names[i];
    return DG_OK;
}

static dg_status check_shards_exist(const dg_checkpoint *c, const char *const *names, size_t count)
{
    name_list missing = {0};
    for (size_t i = 0; i < count; i++) {
        char *path = dgi_path_join(c->folder, names[i]);
        if (path == NULL || access(path, F_OK) != 0)
            list_add(&missing, names[i]);
        free(path);
    }
    return list_report(&missing, c->file, "files that are not there");
}

/* ---- tensors ------------------------------------------------------------------------- */

static int compare_shard_name(const void *name, const void *shard)
{
    return strcmp(name, ((const dgi_shard *)shard)->name);
}

/* Lists the tensors of the index. What a shard holds beside them is not part of the model. */
static dg_status list_indexed(dg_checkpoint *c, const cJSON *weight_map)
{
    DGI_TRY(dgi_checkpoint_allocate(c, (size_t)cJSON_GetArraySize(weight_map)));
    name_list missing = {0};
    const cJSON *entry;
    cJSON_ArrayForEach(entry, weight_map)
    {
        const dgi_shard *shard = bsearch(entry->valuestring, c->shards, c->shard_count,
                                         sizeof *c->shards, compare_shard_name);
        dg_tensor *tensor =
            dgi_find_by_name(shard->parsed.by_name, shard->parsed.count, entry->string);
        if (tensor == NULL)
            list_add(&missing, entry->string);
        else
            c->tensors[c->count++] = tensor;
    }
    DGI_TRY(list_report(&missing, c->file, "tensors that their files lack"));
    dgi_order_by_place(c->tensors, c->count);
    return DG_OK;
}

static dg_status open_weight_map(dg_checkpoint *c, const cJSON *weight_map)
{
    if (!cJSON_IsObject(weight_map))
        return dgi_fail(DG_BAD_FILE, "%s has no object weight_map", c->file);
    const char **names = calloc((size_t)cJSON_GetArraySize(weight_map) + 1, sizeof *names);
    if (names == NULL)
        return dgi_no_memory(c->file);
    size_t count = 0;
    dg_status status = list_shards(c, weight_map, names, &count);
    if (status == DG_OK)
        status = check_shards_exist(c, names, count);
    if (status == DG_OK)
        status = dgi_checkpoint_open_shards(c, names, count);
    free(names);
    return status == DG_OK ? list_indexed(c, weight_map) : status;
}

dg_status dgi_checkpoint_open_index(dg_checkpoint *c)
{
    char *path = dgi_path_join(c->folder, c->file);
    if (path == NULL)
        return dgi_no_memory(c->file);
    cJSON *index;
    dg_status status = dgi_json_parse_file(path, &index);
    free(path);
    DGI_TRY(status);
    status = open_weight_map(c, dgi_json_get(index, "weight_map"));
    cJSON_Delete(index);
    return status;
}
