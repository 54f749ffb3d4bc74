/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: any bytes as a checkpoint in a folder, an index, a config.json and a shard "s". The
 * input is the lengths of the first two (16 bits each, little-endian), then the three files. What
 * opens is gone through as a program would: every tensor read, every weight's scales looked up.
 */
#include "deepgemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In memory: a file on a disk that is written anew each time waits for the disk. */
static char folder[] = "/dev/shm/deepgemm-fuzz-XXXXXX";
static const char *const names[] = {"model.safetensors.index.json", "config.json", "s"};
enum { FILES = 3 };

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void remove_folder(void)
{
    for (int i = 0; i < FILES; i++)
        remove(path_of(names[i]));
    remove(folder);
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    FILE *file = fopen(path_of(name), "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path_of(name));
        exit(1);
    }
}

/* Takes the next `bytes` of the input, or what is left of it. */
static void next_file(const char *name, const uint8_t **data, size_t *size, size_t bytes)
{
    if (bytes > *size)
        bytes = *size;
    write_file(name, *data, bytes);
    *data += bytes;
    *size -= bytes;
}

/* Whether the record of a scale is as the header promises. */
static bool check_record(void *user, const dg_scale_record *scale)
{
    int64_t *records = user;
    bool bad = scale->state == DG_SCALE_MISSING || scale->state == DG_SCALE_WRONG;
    if (bad != (scale->problem != NULL) || scale->layer == NULL ||
        (scale->state == DG_SCALE_LOADED && !(scale->smallest > 0 || scale->scale.elements == 0)))
        abort();
    return ++*records < 1000;
}

static void go_through(const dg_checkpoint *checkpoint)
{
    int64_t records = 0;
    dg_status status = dg_checkpoint_scales(checkpoint, check_record, &records);
    if (status != DG_OK && !(status == DG_CANCELLED && records == 1000))
        abort();
    dg_tensor tensor, found;
    for (int64_t i = 0; dg_checkpoint_tensor_at(checkpoint, i, &tensor) == DG_OK; i++) {
        if (dg_checkpoint_find(checkpoint, tensor.name, &found) != DG_OK ||
            found.data != tensor.data)
            abort();
        void *copy = malloc(tensor.bytes + 1);
        if (copy == NULL ||
            dg_checkpoint_read(checkpoint, tensor.name, DG_NONE, copy, tensor.bytes) != DG_OK ||
            memcmp(copy, tensor.data, tensor.bytes) != 0)
            abort();
        free(copy);
        dg_stored_weight w;
        if ((dg_checkpoint_weight(checkpoint, tensor.name, false, &w) != DG_OK &&
             dg_checkpoint_expert(checkpoint, tensor.name, 0, false, &w) != DG_OK) ||
            w.scale.name == NULL)
            continue;
        /* The scales fit the weight, as the header promises. */
        dg_scale scale = dg_scale_of(NULL, DG_F32, w.weight.shape[0], w.weight.shape[1],
                                     w.block_rows, w.block_cols);
        if (w.scale.elements != scale.rows * scale.cols || dg_dtype_bytes(w.scale.dtype) == 0)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    if (!ready) {
        if (mkdtemp(folder) == NULL) {
            perror(folder);
            exit(1);
        }
        atexit(remove_folder);
        ready = true;
    }
    if (size < 4)
        return 0;
    size_t index_bytes = data[0] | (size_t)data[1] << 8;
    size_t config_bytes = data[2] | (size_t)data[3] << 8;
    data += 4;
    size -= 4;
    next_file(names[0], &data, &size, index_bytes);
    next_file(names[1], &data, &size, config_bytes);
    next_file(names[2], &data, &size, size);
    dg_checkpoint *checkpoint;
    if (dg_checkpoint_open(&checkpoint, folder) == DG_OK) {
        go_through(checkpoint);
        dg_checkpoint_close(checkpoint);
    }
    return 0;
}
