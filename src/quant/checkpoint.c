/* SPDX-License-Identifier: MIT */
/*
 * Quantising a checkpoint: dg_checkpoint_quantize(). After the plan (plan.h) every shard is
 * written, its tensors streaming through band by band; then come the index, config.json and the
 * files that only travel along; then the folder takes its place (publish.h).
 */
#include "api/check.h"
#include "io/json.h"
#include "io/publish.h"
#include "io/writer.h"
#include "quant/plan.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * Elements of a weight that are worked on at a time, as whole rows: enough to occupy all threads,
 * and little beside a model.
 */
#define BAND_ELEMENTS ((int64_t)16 << 20)

#define CONFIG "config.json"

typedef struct job {
    dg_context *context;
    dg_checkpoint_options options;
    const dgi_layout *layout;
    dg_checkpoint *input;
    char *config_path; /* of the input; NULL: it has none */
    dgi_map config;
    dgi_keep keep;
    dgi_plan plan;
    dgi_output output;
    int64_t done;   /* elements */
    uint8_t *codes; /* of one band */
    float *values;  /* what the codes mean */
} job;

/* ---- tensors ------------------------------------------------------------------------- */

/* Rows of a band: a multiple of the scales' blocks. */
static int64_t band_rows(const dgi_layout *layout, int64_t cols)
{
    int64_t blocks = BAND_ELEMENTS / cols / layout->block_rows;
    return (blocks > 0 ? blocks : 1) * layout->block_rows;
}

static dg_status quantize_band(job *j, const dg_matrix *weight, const dg_scale *scale,
                               dg_quantize_counts *counts, dg_comparison *comparison)
{
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = *weight;
    quantize.output = dg_matrix_of(j->codes, DG_E4M3, weight->rows, weight->cols);
    quantize.scale = *scale;
    dg_quantize_counts band;
    quantize.counts = &band;
    DGI_TRY(dg_quantize_run(j->context, &quantize, NULL));
    counts->saturated += band.saturated;
    counts->underflow += band.underflow;
    counts->non_finite += band.non_finite;

    dg_dequantize dequantize = DG_DEQUANTIZE_INIT;
    dequantize.input = quantize.output;
    dequantize.scale = *scale;
    dequantize.output = dg_matrix_of(j->values, DG_F32, weight->rows, weight->cols);
    DGI_TRY(dg_dequantize_run(j->context, &dequantize, NULL));
    return dg_compare(weight, &dequantize.output, comparison);
}

/* Quantises a weight into tensor `first` of the writer, and its scales into the one after it. */
static dg_status quantize_tensor(job *j, const dgi_plan_item *item, dgi_writer *writer,
                                 size_t first, float *scales, dg_tensor_report *report)
{
    const dg_tensor *source = item->source;
    int64_t rows = source->shape[0], cols = source->shape[1];
    int64_t step = band_rows(j->layout, cols);
    size_t row_bytes = (size_t)cols * dg_dtype_bytes(source->dtype);
    dg_comparison comparison = DG_COMPARISON_INIT;
    for (int64_t row = 0; row < rows; row += step) {
        int64_t count = rows - row < step ? rows - row : step;
        const char *data = (const char *)source->data + (size_t)row * row_bytes;
        dg_matrix weight = dg_matrix_of((void *)data, source->dtype, count, cols);
        float *band_scales = scales + row / j->layout->block_rows * item->scale->shape[1];
        dg_scale scale = dg_scale_of(band_scales, DG_F32, count, cols, j->layout->block_rows,
                                     j->layout->block_cols);
        DGI_TRY(quantize_band(j, &weight, &scale, &report->counts, &comparison));
        DGI_TRY(dgi_writer_write(writer, first, (size_t)(row * cols), j->codes,
                                 (size_t)(count * cols)));
        dgi_drop_pages(data, (size_t)count * row_bytes);
    }
    report->relative_error = comparison.relative_error;
    return dgi_writer_write(writer, first + 1, 0, scales, item->scale->bytes);
}

static dg_status copy_tensor(const dg_tensor *source, dgi_writer *writer, size_t index)
{
    for (size_t offset = 0; offset < source->bytes; offset += BAND_ELEMENTS) {
        size_t rest = source->bytes - offset;
        size_t bytes = rest < BAND_ELEMENTS ? rest : BAND_ELEMENTS;
        const char *data = (const char *)source->data + offset;
        DGI_TRY(dgi_writer_write(writer, index, offset, data, bytes));
        dgi_drop_pages(data, bytes);
    }
    return DG_OK;
}

/* Writes what becomes of a tensor to place `first` of the writer, and reports it. */
static dg_status write_item(job *j, const dgi_plan_item *item, dgi_writer *writer, size_t first)
{
    const dg_tensor *source = item->source;
    dg_tensor_report report = {source->name,        item->kept_because,
                               source->stored_type, source->rank,
                               source->shape,       source->bytes,
                               source->bytes,       0.0,
                               {0, 0, 0},           0,
                               j->plan.elements};
    dg_status status;
    if (item->kept_because != NULL) {
        status = copy_tensor(source, writer, first);
    } else {
        float *scales = malloc(item->scale->bytes);
        status = scales == NULL ? dgi_no_memory(item->scale->name)
                                : quantize_tensor(j, item, writer, first, scales, &report);
        free(scales);
        report.bytes_after = item->codes->bytes + item->scale->bytes;
    }
    j->done += source->elements;
    report.done = j->done;
    if (status == DG_OK && j->options.report != NULL)
        j->options.report(j->options.user, &report);
    return status;
}

/* ---- shards -------------------------------------------------------------------------- */

/* Opens a writer for the tensors that `count` items become. */
static dg_status open_shard(const job *j, const dgi_shard *shard, const dgi_plan_item *items,
                            size_t count, dg_tensor **tensors, dgi_writer **writer)
{
    size_t made = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].kept_because != NULL) {
            tensors[made++] = items[i].source;
        } else {
            tensors[made++] = items[i].codes;
            tensors[made++] = items[i].scale;
        }
    }
    char *path = dgi_path_join(j->output.temporary, shard->name);
    dg_status status = path == NULL
                           ? dgi_no_memory(shard->name)
                           : dgi_writer_open(path, tensors, made, shard->parsed.metadata, writer);
    free(path);
    return status;
}

static dg_status write_shard(job *j, const dgi_shard *shard, const dgi_plan_item *items,
                             size_t count)
{
    dg_tensor **tensors = calloc(2 * count + 1, sizeof *tensors);
    if (tensors == NULL)
        return dgi_no_memory(shard->name);
    dgi_writer *writer;
    dg_status status = open_shard(j, shard, items, count, tensors, &writer);
    if (status == DG_OK) {
        size_t next = 0;
        for (size_t i = 0; i < count && status == DG_OK; i++) {
            status = write_item(j, &items[i], writer, next);
            next += items[i].kept_because != NULL ? 1 : 2;
        }
        dg_status closed = dgi_writer_close(writer);
        if (status == DG_OK)
            status = closed;
    }
    free(tensors);
    return status;
}

static dg_status write_shards(job *j)
{
    size_t first = 0;
    for (size_t s = 0; s < j->input->shard_count; s++) {
        const dgi_shard *shard = &j->input->shards[s];
        size_t last = first;
        while (last < j->plan.count && j->plan.items[last].source->file == shard->name)
            last++;
        DGI_TRY(write_shard(j, shard, &j->plan.items[first], last - first));
        first = last;
    }
    return DG_OK;
}

/* ---- the other files ----------------------------------------------------------------- */

static dg_status write_text(const job *j, const char *name, const char *text, size_t bytes)
{
    char *path = dgi_path_join(j->output.temporary, name);
    dg_status status =
        path == NULL || text == NULL ? dgi_no_memory(name) : dgi_file_create(path, text, bytes);
    free(path);
    return status;
}

/* Adds where a tensor lies to the index; returns its bytes. */
static double add_place(cJSON *weight_map, const dg_tensor *tensor, const char *file)
{
    cJSON_AddStringToObject(weight_map, tensor->name, file);
    return (double)tensor->bytes;
}

static dg_status write_index(const job *j)
{
    cJSON *root = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(root, "metadata");
    cJSON *weight_map = cJSON_AddObjectToObject(root, "weight_map");
    double bytes = 0.0;
    for (size_t i = 0; i < j->plan.count; i++) {
        const dgi_plan_item *item = &j->plan.items[i];
        const char *file = item->source->file;
        if (item->kept_because != NULL) {
            bytes += add_place(weight_map, item->source, file);
        } else {
            bytes += add_place(weight_map, item->codes, file);
            bytes += add_place(weight_map, item->scale, file);
        }
    }
    cJSON_AddNumberToObject(metadata, "total_size", bytes);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    dg_status status = write_text(j, j->input->file, text, text == NULL ? 0 : strlen(text));
    cJSON_free(text);
    return status;
}

static dg_status write_config(const job *j)
{
    size_t bytes = 0;
    char *text = dgi_config_quantized(j->config.data, j->config.bytes, j->options.format,
                                      j->plan.kept, j->plan.kept_count, &bytes);
    dg_status status = write_text(j, CONFIG, text, bytes);
    free(text);
    return status;
}

/* Whether a file of the input's folder only travels along: no weights in any format, no index. */
static bool travels(const char *name)
{
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",     ".pt",  ".pth",
                                       ".gguf",        ".h5",         ".msgpack", ".onnx"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (dgi_ends_with(name, ends[i]))
            return false;
    return *name != '.' && strcmp(name, CONFIG) != 0;
}

static dg_status copy_file(const job *j, const char *name)
{
    char *path = dgi_path_join(j->input->folder, name);
    struct stat facts;
    dg_status status = DG_OK;
    if (path == NULL) {
        status = dgi_no_memory(name);
    } else if (stat(path, &facts) != 0) {
        status = dgi_io_error("look at", path);
    } else if (S_ISREG(facts.st_mode)) { /* also at the end of a link */
        dgi_map map;
        status = dgi_file_map(path, &map);
        if (status == DG_OK) {
            status = write_text(j, name, map.data, map.bytes);
            dgi_file_unmap(&map);
        }
    }
    free(path);
    return status;
}

static dg_status copy_files(const job *j)
{
    DIR *entries = opendir(j->input->folder);
    if (entries == NULL)
        return dgi_io_error("read folder", j->input->folder);
    dg_status status = DG_OK;
    const struct dirent *entry;
    while (status == DG_OK && (entry = readdir(entries)) != NULL)
        if (travels(entry->d_name))
            status = copy_file(j, entry->d_name);
    closedir(entries);
    return status;
}

/* ---- the whole ----------------------------------------------------------------------- */

static dg_status read_config(job *j)
{
    j->config_path = dgi_path_join(j->input->folder, CONFIG);
    if (j->config_path == NULL)
        return dgi_no_memory(CONFIG);
    if (access(j->config_path, F_OK) != 0)
        return DG_OK;
    DGI_TRY(dgi_file_map(j->config_path, &j->config));
    return dgi_config_check(j->config.data, j->config.bytes, j->config_path);
}

static bool same_folder(const char *a, const char *b)
{
    struct stat a_facts, b_facts;
    return stat(a, &a_facts) == 0 && stat(b, &b_facts) == 0 && a_facts.st_dev == b_facts.st_dev &&
           a_facts.st_ino == b_facts.st_ino;
}

static dg_status run(job *j, const char *input, const char *output)
{
    DGI_TRY(dg_checkpoint_open(&j->input, input));
    if (same_folder(j->input->folder, output))
        return dgi_fail(DG_INVALID_ARGUMENT, "output %s is the folder of the input", output);
    DGI_TRY(read_config(j));
    DGI_TRY(dgi_keep_open(j->options.keep, j->options.keep_count, &j->keep));
    DGI_TRY(dgi_plan_make(j->input, j->layout, &j->keep, &j->plan));
    int64_t band = band_rows(j->layout, j->plan.widest) * j->plan.widest;
    j->codes = malloc((size_t)band);
    j->values = malloc((size_t)band * sizeof *j->values);
    if (j->codes == NULL || j->values == NULL)
        return dgi_no_memory("a band of a weight");

    DGI_TRY(dgi_output_open(output, j->options.replace, &j->output));
    DGI_TRY(write_shards(j));
    if (dgi_is_index(j->input->file))
        DGI_TRY(write_index(j));
    if (j->config.data != NULL)
        DGI_TRY(write_config(j));
    if (j->input->is_folder)
        DGI_TRY(copy_files(j));
    DGI_TRY(dgi_output_publish(&j->output));
    for (int32_t i = 0; i < j->options.keep_count && j->options.keep_matches != NULL; i++)
        j->options.keep_matches[i] = j->keep.patterns[i].matches;
    return DG_OK;
}

static dg_status take_options(job *j, const dg_checkpoint_options *options)
{
    j->options = (dg_checkpoint_options)DG_CHECKPOINT_OPTIONS_INIT;
    if (options != NULL)
        DGI_TRY(dgi_take(&j->options, sizeof j->options, sizeof j->options, options, "options"));
    j->layout = dgi_layout_of(j->options.format);
    if (j->layout == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "options.format is %d: DG_CHECKPOINT_BLOCK or _CHANNEL expected",
                        j->options.format);
    if (j->options.keep_count < 0 || (j->options.keep_count > 0 && j->options.keep == NULL))
        return dgi_fail(DG_INVALID_ARGUMENT, "options.keep is %p with keep_count %d",
                        (const void *)j->options.keep, j->options.keep_count);
    return DG_OK;
}

dg_status dg_checkpoint_quantize(dg_context *context, const char *input, const char *output,
                                 const dg_checkpoint_options *options)
{
    DGI_TRY(dgi_check_context(context));
    if (context->device != DG_CPU)
        return dgi_fail(DG_UNSUPPORTED_DEVICE,
                        "context is for device %d: checkpoints are quantised by a CPU context",
                        context->device);
    if (input == NULL || output == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", input == NULL ? "input" : "output");
    job j = {.context = context, .output = {.lock = -1}};
    dg_status status = take_options(&j, options);
    if (status == DG_OK)
        status = run(&j, input, output);
    free(j.codes);
    free(j.values);
    dgi_output_close(&j.output);
    dgi_plan_free(&j.plan);
    dgi_keep_close(&j.keep);
    dgi_file_unmap(&j.config);
    free(j.config_path);
    dg_checkpoint_close(j.input);
    return status;
}
