/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target: any bytes as a checkpoint (config.json and one shard) that is quantised or
 * converted. The input is what to do (2 bytes), the length of config.json (16 bits, little-endian),
 * then the two files. What is written can be opened, and every scale in it is right.
 */
#include "deepgemm.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In memory: a file on a disk that is written anew each time waits for the disk. */
static char place[] = "/dev/shm/deepgemm-fuzz-XXXXXX";
static char input[64], output[64];
static dg_context *context;

static void remove_files(const char *folder)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            remove(path);
    }
    if (entries != NULL)
        closedir(entries);
    remove(folder);
}

static void remove_place(void)
{
    remove_files(input);
    remove_files(output);
    remove(place);
    dg_destroy(context);
}

static void write_file(const char *name, const uint8_t *data, size_t bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", input, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void set_up(void)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.threads = 1;
    if (mkdtemp(place) == NULL || dg_create(&context, DG_CPU, &options) != DG_OK)
        abort();
    snprintf(input, sizeof input, "%s/in", place);
    snprintf(output, sizeof output, "%s/out", place);
    char command[128];
    snprintf(command, sizeof command, "mkdir %s", input);
    if (system(command) != 0)
        abort();
    atexit(remove_place);
}

/* Weights that were written have scales; what was copied may be anything. */
static bool check_record(void *user, const dg_scale_record *scale)
{
    (void)user;
    if (scale->role == DG_SCALE_OF_WEIGHT && scale->state != DG_SCALE_LOADED)
        abort();
    return true;
}

static void check_output(void)
{
    dg_checkpoint *checkpoint;
    if (dg_checkpoint_open(&checkpoint, output) != DG_OK ||
        dg_checkpoint_scales(checkpoint, check_record, NULL) != DG_OK)
        abort();
    dg_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (context == NULL)
        set_up();
    if (size < 4)
        return 0;
    size_t config_bytes = data[2] | (size_t)data[3] << 8;
    if (config_bytes > size - 4)
        config_bytes = size - 4;
    write_file("config.json", data + 4, config_bytes);
    write_file("model.safetensors", data + 4 + config_bytes, size - 4 - config_bytes);
    dg_checkpoint_options options = DG_CHECKPOINT_OPTIONS_INIT;
    options.format = (dg_checkpoint_format)(data[0] % DG_CHECKPOINT_FORMATS);
    options.fusion = (dg_checkpoint_fusion)(data[1] % 3);
    options.unscaled_is_one = data[1] & 64;
    dg_status status = (data[1] & 128 ? dg_checkpoint_quantize
                                      : dg_checkpoint_convert)(context, input, output, &options);
    if (status == DG_OK) {
        check_output();
        remove_files(output);
    } else if (status == DG_OUT_OF_MEMORY || *dg_last_error() == '\0') {
        abort();
    }
    return 0;
}
