/* SPDX-License-Identifier: MIT */
/*
 * Files of statistics: safetensors, so that anything which reads those can look inside.
 * docs/calibration.md documents the tensors. A file is read with suspicion: nothing that is wrong
 * in it may become a scale.
 */
#include "quant/statistics.h"

#include "api/check.h"
#include "core/formats.h"
#include "io/checkpoint.h"
#include "io/json.h"
#include "io/replace.h"
#include "io/writer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef long long ll; /* for printf */

#define VERSION     "1"
#define VERSION_KEY "deepgemm_statistics"

/* The tensors of a layer: its name, a dot, and these. */
enum { AMAX, SQUARES, COUNTS, TOPS, BINS, PARTS };
static const struct part {
    const char *name, *type;
    size_t element_bytes;
    int32_t rank;
} parts[PARTS] = {
    [AMAX] = {"amax", "F32", 4, 1},              /* [features] */
    [SQUARES] = {"sum_of_squares", "F64", 8, 1}, /* [features] */
    [COUNTS] = {"counts", "I64", 8, 1},          /* tokens, batches, elements that are not finite */
    [TOPS] = {"histogram_top", "I32", 4, 1},     /* [groups], FP32's exponent field */
    [BINS] = {"histogram", "F64", 8, 2},         /* [groups, 2 + bins]: zeros, too small, bins */
};
enum { COUNT_FIELDS = 3, BEFORE_BINS = 2 };

/* The shape of a layer's part. */
static void shape_of(const dgi_observer *o, int32_t bits, int part, int64_t shape[2])
{
    const int64_t first[PARTS] = {o->features, o->features, COUNT_FIELDS, o->groups, o->groups};
    shape[0] = first[part];
    shape[1] = part == BINS ? BEFORE_BINS + ((int64_t)DGI_OCTAVES << bits) : 1;
}

/* ---- writing ------------------------------------------------------------------------- */

static dg_tensor *new_part(const dgi_observer *o, int32_t bits, int part)
{
    char *name;
    if (asprintf(&name, "%s.%s", o->layer, parts[part].name) < 0)
        return NULL;
    dg_tensor *tensor = dgi_tensor_new(name, parts[part].type, parts[part].rank);
    free(name);
    if (tensor == NULL)
        return NULL;
    int64_t shape[2];
    shape_of(o, bits, part, shape);
    memcpy((int64_t *)tensor->shape, shape, (size_t)parts[part].rank * sizeof *shape);
    tensor->elements = shape[0] * shape[1];
    tensor->bytes = (size_t)tensor->elements * parts[part].element_bytes;
    return tensor;
}

static dg_status write_layer(dgi_writer *writer, const dgi_observer *o, size_t first)
{
    size_t cols = (size_t)o->features, offset = 0;
    const int64_t counts[COUNT_FIELDS] = {o->tokens, o->batches, o->non_finite};
    DGI_TRY(dgi_writer_write(writer, first + AMAX, 0, o->amaxes, cols * sizeof *o->amaxes));
    DGI_TRY(dgi_writer_write(writer, first + SQUARES, 0, o->squares, cols * sizeof *o->squares));
    DGI_TRY(dgi_writer_write(writer, first + COUNTS, 0, counts, sizeof counts));
    for (int64_t g = 0; g < o->groups; g++) {
        const dgi_histogram *h = &o->histograms[g];
        const double before[BEFORE_BINS] = {h->zeros, h->tiny};
        size_t bin_bytes = (size_t)dgi_histogram_bins(h) * sizeof *h->bins;
        DGI_TRY(dgi_writer_write(writer, first + TOPS, (size_t)g * sizeof h->top, &h->top,
                                 sizeof h->top));
        DGI_TRY(dgi_writer_write(writer, first + BINS, offset, before, sizeof before));
        DGI_TRY(dgi_writer_write(writer, first + BINS, offset + sizeof before, h->bins, bin_bytes));
        offset += sizeof before + bin_bytes;
    }
    return DG_OK;
}

static dg_status write_file(const dg_statistics *s, const char *path, dg_tensor **tensors)
{
    char metadata[128];
    snprintf(metadata, sizeof metadata,
             "{\"" VERSION_KEY "\":\"" VERSION "\",\"block_cols\":\"%d\",\"bits\":\"%d\"}",
             s->block_cols, s->bits);
    for (int64_t i = 0; i < s->count; i++)
        for (int part = 0; part < PARTS; part++) {
            dg_tensor **tensor = &tensors[i * PARTS + part];
            *tensor = new_part(s->observers[i], s->bits, part);
            if (*tensor == NULL)
                return dgi_no_memory(path);
        }
    dgi_writer *writer;
    DGI_TRY(dgi_writer_open(path, tensors, (size_t)(s->count * PARTS), metadata, &writer));
    dg_status status = DG_OK;
    for (int64_t i = 0; i < s->count && status == DG_OK; i++)
        status = write_layer(writer, s->observers[i], (size_t)(i * PARTS));
    dg_status closed = dgi_writer_close(writer);
    return status == DG_OK ? closed : status;
}

dg_status dg_statistics_save(const dg_statistics *statistics, const char *path)
{
    if (statistics == NULL || path == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics" : "path");
    char *temporary;
    DGI_TRY(dgi_replace_begin(path, &temporary));
    size_t count = (size_t)(statistics->count * PARTS);
    dg_tensor **tensors = calloc(count + 1, sizeof *tensors);
    dg_status status =
        tensors == NULL ? dgi_no_memory(path) : write_file(statistics, temporary, tensors);
    status = dgi_replace_end(path, temporary, status);
    for (size_t i = 0; i < count && tensors != NULL; i++)
        free(tensors[i]);
    free(tensors);
    return status;
}

/* ---- reading ------------------------------------------------------------------------- */

/* A whole number that the metadata hold as text; -1 for anything else. */
static int64_t number_of(const cJSON *metadata, const char *name)
{
    const char *text = dgi_json_string(dgi_json_get(metadata, name));
    if (text == NULL || *text < '0' || *text > '9' || strlen(text) > 9)
        return -1;
    char *end;
    long long number = strtoll(text, &end, 10);
    return *end == '\0' ? number : -1;
}

static dg_status read_options(const dg_checkpoint *file, const char *path,
                              dg_statistics_options *options)
{
    const char *text = file->shard_count == 1 ? file->shards[0].parsed.metadata : NULL;
    if (text == NULL)
        return dgi_fail(DG_BAD_FILE, "%s has no metadata: not a file of statistics", path);
    cJSON *metadata;
    DGI_TRY(dgi_json_parse(text, strlen(text), path, &metadata));
    const char *version = dgi_json_string(dgi_json_get(metadata, VERSION_KEY));
    dg_status status = DG_OK;
    if (version == NULL)
        status = dgi_fail(DG_BAD_FILE,
                          "%s: its metadata lack " VERSION_KEY ": not a file of statistics", path);
    else if (strcmp(version, VERSION) != 0)
        status = dgi_fail(DG_BAD_FILE, "%s is of version %s, but this library reads " VERSION, path,
                          version);
    options->block_cols = (int32_t)number_of(metadata, "block_cols");
    options->bits = (int32_t)number_of(metadata, "bits");
    cJSON_Delete(metadata);
    if (status == DG_OK && dgi_check_statistics_options(options) != DG_OK)
        status = dgi_fail(DG_BAD_FILE, "%s: block_cols %d and bits %d are not both possible", path,
                          options->block_cols, options->bits);
    return status;
}

/* The tensor that is a layer's part, checked for type and, given the observer, for shape. */
static dg_status find_part(const dg_checkpoint *file, const char *layer, const dgi_observer *o,
                           int32_t bits, int part, const dg_tensor **found)
{
    char *name;
    if (asprintf(&name, "%s.%s", layer, parts[part].name) < 0)
        return dgi_no_memory(layer);
    const dg_tensor *tensor = dgi_find_by_name(file->by_name, file->count, name);
    free(name);
    if (tensor == NULL)
        return dgi_fail(DG_BAD_FILE, "%s: layer %s has no %s", file->file, layer, parts[part].name);
    bool right =
        strcmp(tensor->stored_type, parts[part].type) == 0 && tensor->rank == parts[part].rank;
    if (right && o != NULL) {
        int64_t shape[2];
        shape_of(o, bits, part, shape);
        right = tensor->shape[0] == shape[0] && (tensor->rank == 1 || tensor->shape[1] == shape[1]);
    }
    if (!right)
        return dgi_fail(DG_BAD_FILE, "%s: %s does not have the type and shape it should have",
                        file->file, tensor->name);
    *found = tensor;
    return DG_OK;
}

/* Copies to `target` and checks that the values are finite and not negative. */
static dg_status take_doubles(const dg_tensor *from, size_t offset, double *target, size_t count)
{
    memcpy(target, (const char *)from->data + offset, count * sizeof *target);
    for (size_t i = 0; i < count; i++)
        if (!(target[i] >= 0.0 && isfinite(target[i])))
            return dgi_fail(DG_BAD_FILE, "%s holds %g: negative or not finite", from->name,
                            target[i]);
    return DG_OK;
}

static dg_status take_histogram(const dg_tensor *tops, const dg_tensor *bins, dgi_observer *o,
                                int64_t group)
{
    dgi_histogram *h = &o->histograms[group];
    memcpy(&h->top, (const char *)tops->data + (size_t)group * sizeof h->top, sizeof h->top);
    if (h->top < -1 || h->top > 254)
        return dgi_fail(DG_BAD_FILE, "%s holds %d: it must be -1 to 254", tops->name, h->top);
    size_t count = (size_t)dgi_histogram_bins(h);
    size_t offset = (size_t)group * (BEFORE_BINS + count) * sizeof *h->bins;
    double before[BEFORE_BINS];
    DGI_TRY(take_doubles(bins, offset, before, BEFORE_BINS));
    h->zeros = before[0];
    h->tiny = before[1];
    return take_doubles(bins, offset + sizeof before, h->bins, count);
}

static dg_status take_layer(const dg_checkpoint *file, const char *layer, dg_statistics *s)
{
    const dg_tensor *tensors[PARTS];
    DGI_TRY(find_part(file, layer, NULL, s->bits, AMAX, &tensors[AMAX]));
    int64_t features = tensors[AMAX]->shape[0];
    if (features == 0 || features > INT32_MAX)
        return dgi_fail(DG_BAD_FILE, "%s: layer %s has %lld features", file->file, layer,
                        (ll)features);
    /* The bins are in the file before room is made for them: its size bounds ours. */
    const dgi_observer shape = {.features = features,
                                .groups = dg_scale_count(features, s->block_cols, 0)};
    for (int part = 0; part < PARTS; part++)
        DGI_TRY(find_part(file, layer, &shape, s->bits, part, &tensors[part]));
    dgi_observer *o;
    DGI_TRY(dgi_statistics_need(s, layer, features, &o));

    memcpy(o->amaxes, tensors[AMAX]->data, tensors[AMAX]->bytes);
    for (int64_t c = 0; c < features; c++)
        if (!(o->amaxes[c] >= 0.0f && dgi_f32_is_finite(o->amaxes[c])))
            return dgi_fail(DG_BAD_FILE, "%s holds %g: negative or not finite", tensors[AMAX]->name,
                            (double)o->amaxes[c]);
    DGI_TRY(take_doubles(tensors[SQUARES], 0, o->squares, (size_t)features));
    int64_t counts[COUNT_FIELDS];
    memcpy(counts, tensors[COUNTS]->data, sizeof counts);
    for (int i = 0; i < COUNT_FIELDS; i++)
        if (counts[i] < 0)
            return dgi_fail(DG_BAD_FILE, "%s holds %lld: it cannot be negative",
                            tensors[COUNTS]->name, (ll)counts[i]);
    o->tokens = counts[0];
    o->batches = counts[1];
    o->non_finite = counts[2];
    for (int64_t g = 0; g < o->groups; g++)
        DGI_TRY(take_histogram(tensors[TOPS], tensors[BINS], o, g));
    return DG_OK;
}

/* Every tensor "<layer>.amax" is a layer. */
static dg_status take_layers(const dg_checkpoint *file, dg_statistics *s)
{
    static const char end[] = ".amax";
    for (size_t i = 0; i < file->count; i++) {
        const char *name = file->by_name[i]->name;
        if (!dgi_ends_with(name, end))
            continue;
        char *layer = strndup(name, strlen(name) - strlen(end));
        dg_status status = layer == NULL ? dgi_no_memory(name) : take_layer(file, layer, s);
        free(layer);
        DGI_TRY(status);
    }
    if ((size_t)s->count * PARTS != file->count)
        return dgi_fail(DG_BAD_FILE, "%s holds %zu tensors, but %lld layers have %lld", file->file,
                        file->count, (ll)s->count, (ll)s->count * PARTS);
    return DG_OK;
}

dg_status dg_statistics_load(dg_statistics **statistics, const char *path)
{
    if (statistics == NULL || path == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics" : "path");
    dg_checkpoint *file = NULL;
    dg_statistics *made = NULL;
    dg_statistics_options options = DG_STATISTICS_OPTIONS_INIT;
    dg_status status = dg_checkpoint_open(&file, path);
    if (status == DG_OK)
        status = read_options(file, path, &options);
    if (status == DG_OK)
        status = dg_statistics_create(&made, &options);
    if (status == DG_OK)
        status = take_layers(file, made);
    dg_checkpoint_close(file);
    if (status == DG_OK)
        *statistics = made;
    else
        dg_statistics_destroy(made);
    return status;
}
