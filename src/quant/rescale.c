/* SPDX-License-Identifier: MIT */
/* A checkpoint with some of its tensors multiplied by factors: dg_checkpoint_rescale(). */
#include "api/check.h"
#include "core/formats.h"
#include "io/checkpoint.h"
#include "io/publish.h"
#include "io/writer.h"
#include "quant/companions.h"

#include <stdlib.h>
#include <sys/stat.h>

/* Bytes of a tensor that are copied at a time, and elements that are multiplied, as whole rows. */
#define COPY_BYTES    ((size_t)16 << 20)
#define BAND_ELEMENTS ((int64_t)8 << 20)

typedef struct job {
    int32_t threads;
    dg_checkpoint *input;
    const dg_rescale **by_tensor; /* of each tensor by name; NULL: copied */
    dgi_output output;
    dgi_map config;
    int64_t rounded;
} job;

/* ---- one tensor ---------------------------------------------------------------------- */

static dg_status copy_tensor(const dg_tensor *t, dgi_writer *writer, size_t index)
{
    for (size_t offset = 0; offset < t->bytes; offset += COPY_BYTES) {
        size_t bytes = t->bytes - offset < COPY_BYTES ? t->bytes - offset : COPY_BYTES;
        const char *data = (const char *)t->data + offset;
        DGI_TRY(dgi_writer_write(writer, index, offset, data, bytes));
        dgi_drop_pages(data, bytes);
    }
    return DG_OK;
}

/* Multiplies rows [first, last) into `band`; returns how many products are not exact. */
static int64_t multiply(const job *j, const dg_tensor *t, const dg_rescale *r, int64_t first,
                        int64_t last, void *band)
{
    int64_t cols = t->rank == 2 ? t->shape[1] : 1, rounded = 0;
#pragma omp parallel for num_threads(j->threads) reduction(+ : rounded)
    for (int64_t row = first; row < last; row++)
        for (int64_t col = 0; col < cols; col++) {
            double factor = (r->rows == NULL ? 1.0 : (double)r->rows[row]) *
                            (r->cols == NULL ? 1.0 : (double)r->cols[col]);
            double value = (double)dgi_load_f32(t->data, t->dtype, row * cols + col) * factor;
            int64_t place = (row - first) * cols + col;
            dgi_store_f32(band, t->dtype, place, (float)value, DG_SATURATE);
            double stored = (double)dgi_load_f32(band, t->dtype, place);
            rounded += stored != value && value == value;
        }
    return rounded;
}

static dg_status scale_tensor(job *j, const dg_tensor *t, const dg_rescale *r, dgi_writer *writer,
                              size_t index)
{
    int64_t rows = t->shape[0], cols = t->rank == 2 ? t->shape[1] : 1;
    int64_t step = cols > 0 && BAND_ELEMENTS / cols > 0 ? BAND_ELEMENTS / cols : 1;
    size_t row_bytes = (size_t)cols * dg_dtype_bytes(t->dtype);
    char *band = malloc((size_t)(step < rows ? step : rows) * row_bytes + 1);
    if (band == NULL)
        return dgi_no_memory(t->name);
    dg_status status = DG_OK;
    for (int64_t first = 0; first < rows && status == DG_OK; first += step) {
        int64_t last = first + step < rows ? first + step : rows;
        j->rounded += multiply(j, t, r, first, last, band);
        status = dgi_writer_write(writer, index, (size_t)first * row_bytes, band,
                                  (size_t)(last - first) * row_bytes);
        dgi_drop_pages((const char *)t->data + (size_t)first * row_bytes,
                       (size_t)(last - first) * row_bytes);
    }
    free(band);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------- */

static const dg_rescale *rescale_of(const job *j, const dg_tensor *t)
{
    return j->by_tensor[dgi_index_by_name(j->input->by_name, j->input->count, t->name)];
}

/* Writes `count` tensors, those of a shard. */
static dg_status write_shard(job *j, const dgi_shard *shard, dg_tensor *const *tensors,
                             size_t count)
{
    char *path = dgi_path_join(j->output.temporary, shard->name);
    if (path == NULL)
        return dgi_no_memory(shard->name);
    dgi_writer *writer;
    dg_status status = dgi_writer_open(path, tensors, count, shard->parsed.metadata, &writer);
    free(path);
    DGI_TRY(status);
    for (size_t i = 0; i < count && status == DG_OK; i++) {
        const dg_rescale *r = rescale_of(j, tensors[i]);
        status = r == NULL ? copy_tensor(tensors[i], writer, i)
                           : scale_tensor(j, tensors[i], r, writer, i);
    }
    dg_status closed = dgi_writer_close(writer);
    return status == DG_OK ? closed : status;
}

static dg_status write_shards(job *j)
{
    size_t first = 0;
    for (size_t s = 0; s < j->input->shard_count; s++) {
        size_t last = first;
        while (last < j->input->count && j->input->tensors[last]->file == j->input->shards[s].name)
            last++;
        DGI_TRY(write_shard(j, &j->input->shards[s], &j->input->tensors[first], last - first));
        first = last;
    }
    return DG_OK;
}

/* Tensors, shards and names are those of the input, so its index and config.json hold still. */
static dg_status copy_file(const job *j, const char *name)
{
    dgi_map map;
    char *from = dgi_path_join(j->input->folder, name);
    char *to = dgi_path_join(j->output.temporary, name);
    dg_status status = from == NULL || to == NULL ? dgi_no_memory(name) : dgi_file_map(from, &map);
    if (status == DG_OK) {
        status = dgi_file_create(to, map.data, map.bytes);
        dgi_file_unmap(&map);
    }
    free(from);
    free(to);
    return status;
}

static dg_status take_rescales(job *j, const dg_rescale *rescales, int64_t count)
{
    j->by_tensor = calloc(j->input->count + 1, sizeof(const dg_rescale *));
    if (j->by_tensor == NULL)
        return dgi_no_memory(j->input->file);
    for (int64_t i = 0; i < count; i++) {
        const dg_rescale *r = &rescales[i];
        if (r->tensor == NULL)
            return dgi_fail(DG_INVALID_ARGUMENT, "rescales[%lld].tensor is NULL", (long long)i);
        size_t place = dgi_index_by_name(j->input->by_name, j->input->count, r->tensor);
        if (place == j->input->count)
            return dgi_fail(DG_NOT_FOUND, "%s holds no tensor %s", j->input->file, r->tensor);
        const dg_tensor *t = j->input->by_name[place];
        bool wide = t->dtype == DG_F32 || t->dtype == DG_F16 || t->dtype == DG_BF16;
        if (!wide || t->rank < 1 || t->rank > 2)
            return dgi_fail(DG_UNSUPPORTED_TYPE,
                            "%s is %s in %d dimensions: an F32, F16 or BF16 vector or matrix "
                            "expected",
                            t->name, t->stored_type, t->rank);
        if (t->rank == 1 && r->cols != NULL)
            return dgi_fail(DG_INVALID_ARGUMENT, "rescales[%lld].cols is given, but %s is a vector",
                            (long long)i, t->name);
        if (j->by_tensor[place] != NULL)
            return dgi_fail(DG_INVALID_ARGUMENT, "rescales name %s twice", t->name);
        j->by_tensor[place] = r;
    }
    return DG_OK;
}

static bool same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static dg_status run(job *j, const char *input, const char *output, const dg_rescale *rescales,
                     int64_t count, bool replace)
{
    DGI_TRY(dg_checkpoint_open(&j->input, input));
    if (same_folder(j->input->folder, output))
        return dgi_fail(DG_INVALID_ARGUMENT, "output %s is the folder of the input", output);
    DGI_TRY(dgi_config_open(j->input->folder, false, &j->config)); /* refuses a quantised model */
    DGI_TRY(take_rescales(j, rescales, count));
    DGI_TRY(dgi_output_open(output, replace, "rescaled\n", &j->output));
    DGI_TRY(write_shards(j));
    if (dgi_is_index(j->input->file))
        DGI_TRY(copy_file(j, j->input->file));
    if (j->config.data != NULL)
        DGI_TRY(copy_file(j, "config.json"));
    if (j->input->is_folder)
        DGI_TRY(dgi_companions_copy(j->input->folder, j->output.temporary));
    return dgi_output_publish(&j->output);
}

dg_status dg_checkpoint_rescale(dg_context *context, const char *input, const char *output,
                                const dg_rescale *rescales, int64_t count, bool replace,
                                int64_t *rounded)
{
    DGI_TRY(dgi_check_cpu_context(context, "checkpoints are written"));
    if (input == NULL || output == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", input == NULL ? "input" : "output");
    if (count < 0 || (count > 0 && rescales == NULL))
        return dgi_fail(DG_INVALID_ARGUMENT, "rescales is %p with count %lld",
                        (const void *)rescales, (long long)count);
    dg_device_info device;
    DGI_TRY(dg_get_device_info(context, &device));
    job j = {.threads = device.units, .output = {.lock = -1}};
    dg_status status = run(&j, input, output, rescales, count, replace);
    dgi_output_close(&j.output);
    dgi_file_unmap(&j.config);
    free(j.by_tensor);
    dg_checkpoint_close(j.input);
    if (status == DG_OK && rounded != NULL)
        *rounded = j.rounded;
    return status;
}
