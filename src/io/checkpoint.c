/* SPDX-License-Identifier: MIT */
/* Opening checkpoints and reading their tensors; index.c opens those with an index. */
#include "io/checkpoint.h"

#include "core/status.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool dgi_is_index(const char *file)
{
    return dgi_ends_with(file, ".index.json");
}

/* ---- which file of a folder ---------------------------------------------------------- */

/* The only file of the folder whose name ends so, in *file; *count says how many there are. */
static dg_status find_only(const char *folder, const char *end, char **file, int *count)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return dgi_io_error("read folder", folder);
    *count = 0;
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL)
        if (dgi_ends_with(entry->d_name, end) && (*count)++ == 0)
            *file = strdup(entry->d_name);
    closedir(entries);
    if (*count == 1 && *file != NULL)
        return DG_OK;
    free(*file);
    *file = NULL;
    return *count == 1 ? dgi_no_memory(folder) : DG_OK;
}

/* The index or else the file that a folder's checkpoint begins with. */
static dg_status find_model(const char *folder, char **file)
{
    static const char *const usual[] = {"model.safetensors.index.json", "model.safetensors"};
    static const char *const ends[] = {".safetensors.index.json", ".safetensors"};
    for (size_t i = 0; i < 2; i++) {
        char *path = dgi_path_join(folder, usual[i]);
        bool exists = path != NULL && access(path, F_OK) == 0;
        free(path);
        if (exists)
            return (*file = strdup(usual[i])) == NULL ? dgi_no_memory(folder) : DG_OK;
    }
    for (size_t i = 0; i < 2; i++) {
        int count = 0;
        DGI_TRY(find_only(folder, ends[i], file, &count));
        if (count == 1)
            return DG_OK;
        if (count > 1)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "folder %s holds %d files named *%s and none named %s: give the path "
                            "of one",
                            folder, count, ends[i], usual[i]);
    }
    return dgi_fail(DG_NOT_FOUND, "folder %s holds no .safetensors file", folder);
}

/* ---- shards -------------------------------------------------------------------------- */

static dg_status open_shard(const dg_checkpoint *c, const char *name, dgi_shard *shard)
{
    char *path = dgi_path_join(c->folder, name);
    shard->name = strdup(name);
    dg_status status =
        path == NULL || shard->name == NULL ? dgi_no_memory(name) : dgi_file_map(path, &shard->map);
    free(path);
    DGI_TRY(status);
    return dgi_safetensors_parse(shard->map.data, shard->map.bytes, shard->name, &shard->parsed);
}

dg_status dgi_checkpoint_open_shards(dg_checkpoint *c, const char *const *names, size_t count)
{
    c->shards = calloc(count + 1, sizeof *c->shards);
    if (c->shards == NULL)
        return dgi_no_memory(c->file);
    for (size_t i = 0; i < count; i++) {
        c->shard_count++; /* before it is open: close releases what there is of it */
        DGI_TRY(open_shard(c, names[i], &c->shards[i]));
    }
    return DG_OK;
}

dg_status dgi_checkpoint_allocate(dg_checkpoint *c, size_t count)
{
    c->tensors = calloc(count + 1, sizeof *c->tensors);
    c->by_name = calloc(count + 1, sizeof *c->by_name);
    return c->tensors == NULL || c->by_name == NULL ? dgi_no_memory(c->file) : DG_OK;
}

static dg_status open_single(dg_checkpoint *c)
{
    const char *name = c->file;
    DGI_TRY(dgi_checkpoint_open_shards(c, &name, 1));
    const dgi_safetensors *parsed = &c->shards[0].parsed;
    DGI_TRY(dgi_checkpoint_allocate(c, parsed->count));
    memcpy(c->tensors, parsed->tensors, parsed->count * sizeof *c->tensors);
    c->count = parsed->count;
    return DG_OK;
}

/* ---- the public calls ---------------------------------------------------------------- */

static dg_status open_path(dg_checkpoint *c, const char *path)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return dgi_io_error("open", path);
    c->is_folder = S_ISDIR(facts.st_mode);
    c->folder = c->is_folder ? strdup(path) : dgi_path_folder(path);
    if (c->folder == NULL)
        return dgi_no_memory(path);
    if (c->is_folder)
        DGI_TRY(find_model(c->folder, &c->file));
    else if ((c->file = strdup(dgi_path_name(path))) == NULL)
        return dgi_no_memory(path);
    DGI_TRY(dgi_is_index(c->file) ? dgi_checkpoint_open_index(c) : open_single(c));
    memcpy(c->by_name, c->tensors, c->count * sizeof *c->tensors);
    DGI_TRY(dgi_order_by_name(c->by_name, c->count, c->file));
    return dgi_quantization_read(c->folder, &c->quantization);
}

dg_status dg_checkpoint_open(dg_checkpoint **checkpoint, const char *path)
{
    if (checkpoint == NULL || path == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", path == NULL ? "path" : "checkpoint");
    dg_checkpoint *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_no_memory(path);
    dg_status status = open_path(made, path);
    if (status == DG_OK)
        *checkpoint = made;
    else
        dg_checkpoint_close(made);
    return status;
}

void dg_checkpoint_close(dg_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    for (size_t i = 0; i < checkpoint->shard_count; i++) {
        dgi_shard *shard = &checkpoint->shards[i];
        dgi_safetensors_free(&shard->parsed);
        dgi_file_unmap(&shard->map);
        free(shard->name);
    }
    free(checkpoint->shards);
    free(checkpoint->tensors);
    free(checkpoint->by_name);
    free(checkpoint->file);
    free(checkpoint->folder);
    free(checkpoint);
}

dg_status dg_checkpoint_tensor_at(const dg_checkpoint *checkpoint, int64_t index, dg_tensor *tensor)
{
    if (checkpoint == NULL || tensor == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        tensor == NULL ? "tensor" : "checkpoint");
    if (index < 0 || (uint64_t)index >= checkpoint->count)
        return dgi_fail(DG_NOT_FOUND, "index is %lld, but %s has %zu tensors", (long long)index,
                        checkpoint->file, checkpoint->count);
    *tensor = *checkpoint->tensors[index];
    return DG_OK;
}

dg_status dg_checkpoint_find(const dg_checkpoint *checkpoint, const char *name, dg_tensor *tensor)
{
    if (checkpoint == NULL || name == NULL || tensor == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        checkpoint == NULL ? "checkpoint"
                        : name == NULL     ? "name"
                                           : "tensor");
    const dg_tensor *found = dgi_find_by_name(checkpoint->by_name, checkpoint->count, name);
    if (found == NULL)
        return dgi_fail(DG_NOT_FOUND, "%s has no tensor %s", checkpoint->file, name);
    *tensor = *found;
    return DG_OK;
}

dg_status dg_checkpoint_read(const dg_checkpoint *checkpoint, const char *name, dg_dtype dtype,
                             void *buffer, size_t buffer_bytes)
{
    dg_tensor tensor;
    DGI_TRY(dg_checkpoint_find(checkpoint, name, &tensor));
    size_t element = dg_dtype_bytes(dtype), need = tensor.bytes;
    if (dtype != DG_NONE) {
        if (element == 0 || tensor.dtype == DG_NONE)
            return dgi_fail(DG_UNSUPPORTED_TYPE,
                            "tensor %s is stored as %s: it cannot be read as %s", name,
                            tensor.stored_type, dg_dtype_name(dtype));
        if (__builtin_mul_overflow((size_t)tensor.elements, element, &need))
            return dgi_fail(DG_UNSUPPORTED_SHAPE, "tensor %s as %s has more than 2^64 bytes", name,
                            dg_dtype_name(dtype));
    }
    if (buffer_bytes < need || (buffer == NULL && need != 0))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "buffer is at %p with %zu bytes, but tensor %s needs %zu", buffer,
                        buffer_bytes, name, need);
    if (dtype != DG_NONE)
        DGI_TRY(dg_convert(tensor.data, tensor.dtype, buffer, dtype, tensor.elements, DG_SATURATE));
    else if (need != 0)
        memcpy(buffer, tensor.data, need);
    dgi_drop_pages(tensor.data, tensor.bytes);
    return DG_OK;
}
