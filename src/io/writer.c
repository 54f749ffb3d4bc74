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

/* The header's text, padded with spaces, to be freed. NULL without memory. */
static char *make_header(dg_tensor *const *tensors, size_t count, const int64_t *offsets,
                         const char *metadata, size_t *bytes)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, bytes);
    if (out == NULL)
        return NULL;
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
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* ---- the file ------------------------------------------------------------------------ */

static dg_status write_header(dgi_writer *writer, size_t count, const char *metadata)
{
    int64_t data_bytes = place_tensors(writer->tensors, count, writer->offsets);
    size_t header_bytes;
    char *header = make_header(writer->tensors, count, writer->offsets, metadata, &header_bytes);
    if (header == NULL)
        return dgi_no_memory(writer->path);
    int64_t data_start = (int64_t)(sizeof(uint64_t) + header_bytes);
    for (size_t i = 0; i < count; i++)
        writer->offsets[i] += data_start;

    unsigned char length[sizeof(uint64_t)];
    for (size_t i = 0; i < sizeof length; i++)
        length[i] = (unsigned char)((uint64_t)header_bytes >> (8 * i));
    int error = posix_fallocate(writer->file, 0, data_start + data_bytes);
    dg_status status = DG_OK;
    if (error != 0) {
        errno = error;
        status = dgi_io_error("reserve the space of", writer->path);
    }
    if (status == DG_OK)
        status = dgi_file_write(writer->file, length, sizeof length, 0, writer->path);
    if (status == DG_OK)
        status = dgi_file_write(writer->file, header, header_bytes, sizeof length, writer->path);
    free(header);
    return status;
}

dg_status dgi_writer_open(const char *path, dg_tensor *const *tensors, size_t count,
                          const char *metadata, dgi_writer **writer)
{
    dgi_writer *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_no_memory(path);
    *made = (dgi_writer){strdup(path), -1, tensors, calloc(count + 1, sizeof *made->offsets)};
    dg_status status = DG_OK;
    if (made->path == NULL || made->offsets == NULL)
        status = dgi_no_memory(path);
    else if ((made->file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) < 0)
        status = dgi_io_error("create", path);
    else
        status = write_header(made, count, metadata);
    if (status == DG_OK)
        *writer = made;
    else
        release(made);
    return status;
}

dg_status dgi_writer_write(dgi_writer *writer, size_t index, size_t offset, const void *data,
                           size_t bytes)
{
    return dgi_file_write(writer->file, data, bytes, writer->offsets[index] + (int64_t)offset,
                          writer->path);
}

dg_status dgi_writer_close(dgi_writer *writer)
{
    dg_status status = fsync(writer->file) == 0 ? DG_OK : dgi_io_error("write", writer->path);
    release(writer);
    return status;
}
