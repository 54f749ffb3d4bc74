/* SPDX-License-Identifier: MIT */
/* Writing a safetensors file: see writer.h. */
#include "io/writer.h"

#include "core/status.h"
#include "io/file.h"
#include "io/json.h"
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The data begin at a multiple of this, so that what is aligned among the data is so in the file.
 */
#define DATA_ALIGNMENT 8

struct dgi_writer {
    char *path;
    int file;
    dg_tensor *const *tensors;
    int64_t *offsets; /* of each tensor, from the beginning of the file */
};

static void release(dgi_writer *writer)
{
    if (writer->file >= 0)
        close(writer->file);
    free(writer->path);
    free(writer->offsets);
    free(writer);
}

/* ---- the header ---------------------------------------------------------------------- */

/* How a reader may want the tensor aligned; types of less than a byte need nothing. */
static int32_t alignment(const dg_tensor *tensor)
{
    dg_dtype dtype;
    int32_t bits = dgi_stored_type(tensor->stored_type, &dtype);
    return bits % 8 == 0 ? bits / 8 : 1;
}

/* Gives each tensor its offset in the data; returns the bytes of them all. */
static int64_t place_tensors(dg_tensor *const *tensors, size_t count, int64_t *offsets)
{
    int64_t next = 0;
    for (int32_t wanted = DATA_ALIGNMENT; wanted >= 0; wanted--)
        for (size_t i = 0; i < count; i++)
            if (alignment(tensors[i]) == wanted) {
                offsets[i] = next;
                next += (int64_t)tensors[i]->bytes;
            }
    return next;
}

static void describe(FILE *out, const dg_tensor *tensor, int64_t offset)
{
    char *name = dgi_json_quote(tensor->name);
    fprintf(out, "%s:{\"dtype\":\"%s\",\"shape\":[", name == NULL ? "" : name, tensor->stored_type);
    for (int32_t i = 0; i < tensor->rank; i++)
        fprintf(out, "%s%lld", i == 0 ? "" : ",", (long long)tensor->shape[i]);
    fprintf(out, "],\"data_offsets\":[%lld,%lld]}", (long long)offset,
            (long long)(offset + (int64_t)tensor->bytes));
    cJSON_free(name);
}

/*
 * What the file begins with, up to the data: the header's length and its text, padded with spaces.
 * To be freed. NULL without memory.
 */
static char *make_header(dg_tensor *const *tensors, size_t count, const int64_t *offsets,
                         const char *metadata, size_t *bytes)
{
    static const char length[sizeof(uint64_t)]; /* not known yet */
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
    fwrite(length, 1, sizeof length, out);
    fputc('{', out);
    if (metadata != NULL)
        fprintf(out, "\"__metadata__\":%s%s", metadata, count == 0 ? "" : ",");
    for (size_t i = 0; i < count; i++) {
        describe(out, tensors[i], offsets[i]);
        fputc(i + 1 < count ? ',' : '}', out);
    }
    if (count == 0)
        fputc('}', out);
    while (ftell(out) % DATA_ALIGNMENT != 0)
        fputc(' ', out);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    uint64_t header_bytes = *bytes - sizeof length;
    for (size_t i = 0; i < sizeof length; i++)
        text[i] = (char)(header_bytes >> (8 * i));
    return text;
}

/* ---- the file ------------------------------------------------------------------------ */

/* Whether the file begins with these bytes and has that size. */
static bool has_begun(const dgi_writer *writer, const char *begin, size_t bytes, int64_t size)
{
    struct stat facts;
    char *there = malloc(bytes);
    bool same = there != NULL && fstat(writer->file, &facts) == 0 && facts.st_size == size &&
                pread(writer->file, there, bytes, 0) == (ssize_t)bytes &&
                memcmp(there, begin, bytes) == 0;
    free(there);
    return same;
}

static dg_status write_header(dgi_writer *writer, size_t count, const char *metadata, bool *resumed)
{
    int64_t data_bytes = place_tensors(writer->tensors, count, writer->offsets);
    size_t bytes;
    char *begin = make_header(writer->tensors, count, writer->offsets, metadata, &bytes);
    if (begin == NULL)
        return dgi_no_memory(writer->path);
    int64_t data_start = (int64_t)bytes;
    for (size_t i = 0; i < count; i++)
        writer->offsets[i] += data_start;

    bool begun = resumed != NULL && has_begun(writer, begin, bytes, data_start + data_bytes);
    if (resumed != NULL)
        *resumed = begun;
    dg_status status = DG_OK;
    if (!begun) {
        int error = posix_fallocate(writer->file, 0, data_start + data_bytes);
        if (error != 0) {
            errno = error;
            status = dgi_io_error("reserve the space of", writer->path);
        }
        /* What an earlier run left may be longer. */
        if (status == DG_OK && ftruncate(writer->file, data_start + data_bytes) != 0)
            status = dgi_io_error("write", writer->path);
        if (status == DG_OK)
            status = dgi_file_write(writer->file, begin, bytes, 0, writer->path);
    }
    free(begin);
    return status;
}

/* `resumed` NULL: the file must not exist. */
static dg_status open_file(const char *path, dg_tensor *const *tensors, size_t count,
                           const char *metadata, bool *resumed, dgi_writer **writer)
{
    dgi_writer *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_no_memory(path);
    *made = (dgi_writer){strdup(path), -1, tensors, calloc(count + 1, sizeof *made->offsets)};
    int flags = O_RDWR | O_CREAT | O_CLOEXEC | (resumed == NULL ? O_EXCL : 0);
    dg_status status = DG_OK;
    if (made->path == NULL || made->offsets == NULL)
        status = dgi_no_memory(path);
    else if ((made->file = open(path, flags, 0666)) < 0)
        status = dgi_io_error("create", path);
    else
        status = write_header(made, count, metadata, resumed);
    if (status == DG_OK)
        *writer = made;
    else
        release(made);
    return status;
}

dg_status dgi_writer_open(const char *path, dg_tensor *const *tensors, size_t count,
                          const char *metadata, dgi_writer **writer)
{
    return open_file(path, tensors, count, metadata, NULL, writer);
}

dg_status dgi_writer_resume(const char *path, dg_tensor *const *tensors, size_t count,
                            const char *metadata, bool *resumed, dgi_writer **writer)
{
    return open_file(path, tensors, count, metadata, resumed, writer);
}

dg_status dgi_writer_write(dgi_writer *writer, size_t index, size_t offset, const void *data,
                           size_t bytes)
{
    return dgi_file_write(writer->file, data, bytes, writer->offsets[index] + (int64_t)offset,
                          writer->path);
}

dg_status dgi_writer_sync(const dgi_writer *writer)
{
    return fsync(writer->file) == 0 ? DG_OK : dgi_io_error("write", writer->path);
}

dg_status dgi_writer_close(dgi_writer *writer)
{
    dg_status status = dgi_writer_sync(writer);
    release(writer);
    return status;
}
