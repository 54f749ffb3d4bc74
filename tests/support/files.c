/* SPDX-License-Identifier: MIT */
/* Files for the tests of checkpoints: see files.h. */
#include "files.h"
#include "test.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Everything lies below one folder of this program. */
static char root[] = "/tmp/deepgemm-test-XXXXXX";
static pid_t owner;

static void remove_root(void)
{
    if (getpid() == owner) /* not in a child that a test forked */
        files_remove(root);
}

const char *files_folder(void)
{
    static int count;
    char name[32];
    if (owner == 0) {
        assert_non_null(mkdtemp(root));
        owner = getpid();
        atexit(remove_root);
    }
    snprintf(name, sizeof name, "%d", count++);
    const char *path = files_path(root, name);
    files_make_folder(path);
    return path;
}

const char *files_path(const char *folder, const char *name)
{
    static struct path {
        struct path *before;
        char text[];
    } * last; /* all of them stay reachable, so that no leak is reported */
    size_t bytes = strlen(folder) + strlen(name) + 2;
    struct path *path = malloc(sizeof *path + bytes);
    assert_non_null(path);
    path->before = last;
    last = path;
    snprintf(path->text, bytes, "%s/%s", folder, name);
    return path->text;
}

void files_make_folder(const char *path)
{
    if (mkdir(path, 0777) != 0)
        fail_msg("cannot create folder %s", path);
}

void files_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(data, 1, bytes, file) != bytes || fclose(file) != 0)
        fail_msg("cannot write %s", path);
}

void files_write_text(const char *path, const char *text)
{
    files_write(path, text, strlen(text));
}

char *files_read(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    struct stat facts;
    if (file == NULL || fstat(fileno(file), &facts) != 0)
        fail_msg("cannot open %s", path);
    char *data = malloc((size_t)facts.st_size + 1);
    assert_non_null(data);
    *bytes = fread(data, 1, (size_t)facts.st_size, file);
    assert_int_equal(*bytes, facts.st_size);
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

bool files_exist(const char *path)
{
    return access(path, F_OK) == 0;
}

static int remove_entry(const char *path, const struct stat *facts, int kind, struct FTW *place)
{
    (void)facts, (void)kind, (void)place;
    return remove(path);
}

void files_remove(const char *path)
{
    nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int files_count(const char *folder, const char *prefix)
{
    DIR *entries = opendir(folder);
    if (entries == NULL)
        fail_msg("cannot read folder %s", folder);
    int count = 0;
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            count += strncmp(entry->d_name, prefix, strlen(prefix)) == 0;
    closedir(entries);
    return count;
}

void files_expect_same(const char *folder, const char *other)
{
    assert_int_equal(files_count(folder, ""), files_count(other, ""));
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t bytes, other_bytes;
        char *data = files_read(files_path(folder, entry->d_name), &bytes);
        char *other_data = files_read(files_path(other, entry->d_name), &other_bytes);
        if (bytes != other_bytes || memcmp(data, other_data, bytes) != 0)
            fail_msg("%s differs between %s and %s", entry->d_name, folder, other);
        free(data);
        free(other_data);
    }
    closedir(entries);
}

/* ---- safetensors --------------------------------------------------------------------- */

dg_checkpoint *open_checkpoint(const char *path)
{
    dg_checkpoint *checkpoint = NULL;
    assert_ok(dg_checkpoint_open(&checkpoint, path));
    return checkpoint;
}

dg_status write_as(bool convert, const char *input, const char *output,
                   const dg_checkpoint_options *options)
{
    dg_context *context;
    assert_ok(dg_create(&context, DG_CPU, NULL));
    dg_status status =
        (convert ? dg_checkpoint_convert : dg_checkpoint_quantize)(context, input, output, options);
    dg_destroy(context);
    return status;
}

char *safetensors_bytes(const char *header, const void *data, size_t data_bytes, size_t *bytes)
{
    size_t header_bytes = strlen(header);
    *bytes = 8 + header_bytes + data_bytes;
    char *file = malloc(*bytes);
    assert_non_null(file);
    for (int i = 0; i < 8; i++)
        file[i] = (char)((uint64_t)header_bytes >> (8 * i));
    memcpy(file + 8, header, header_bytes);
    if (data_bytes != 0)
        memcpy(file + 8 + header_bytes, data, data_bytes);
    return file;
}

void safetensors_write(const char *path, const stored *tensors, size_t count)
{
    safetensors_write_with(path, "{\"format\":\"pt\"}", tensors, count);
}

void safetensors_write_with(const char *path, const char *metadata, const stored *tensors,
                            size_t count)
{
    char *header, *data;
    size_t header_bytes, data_bytes, bytes, end = 0;
    FILE *header_text = open_memstream(&header, &header_bytes);
    FILE *data_stream = open_memstream(&data, &data_bytes);
    fprintf(header_text, "{");
    if (metadata != NULL)
        fprintf(header_text, "\"__metadata__\":%s", metadata);
    for (size_t i = 0; i < count; i++) {
        const stored *t = &tensors[i];
        size_t size = (size_t)(t->rows * (t->cols == 0 ? 1 : t->cols)) * t->element_bytes;
        fprintf(header_text, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%lld",
                i > 0 || metadata != NULL ? "," : "", t->name, t->type, (long long)t->rows);
        if (t->cols != 0)
            fprintf(header_text, ",%lld", (long long)t->cols);
        fprintf(header_text, "],\"data_offsets\":[%zu,%zu]}", end, end + size);
        if (size != 0)
            assert_int_equal(fwrite(t->data, size, 1, data_stream), 1);
        end += size;
    }
    fprintf(header_text, "}");
    fclose(header_text);
    fclose(data_stream);
    char *file = safetensors_bytes(header, data, data_bytes, &bytes);
    files_write(path, file, bytes);
    free(file);
    free(header);
    free(data);
}
