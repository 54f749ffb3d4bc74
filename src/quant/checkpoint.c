/* SPDX-License-Identifier: MIT */
/*
 * Quantising a checkpoint: dg_checkpoint_quantize(). After the plan (plan.h) every shard is
 * written, its tensors streaming through band by band; then come the index, config.json and the
 * files that only travel along; then the folder takes its place (publish.h).
 */
#include "api/check.h"
#include "io/publish.h"
#include "quant/companions.h"
#include "quant/stream.h"

#include <stdlib.h>
#include <sys/stat.h>

typedef struct job {
    dg_context *context;
    dg_checkpoint_options options;
    const dgi_layout *layout;
    dg_checkpoint *input;
    dgi_map config; /* the input's config.json; data NULL: it has none */
    dgi_keep keep;
    dgi_plan plan;
    dgi_stream stream;
    dgi_output output;
    int64_t done; /* elements */
} job;

/* ---- shards -------------------------------------------------------------------------- */

/* Writes what becomes of a tensor to place `first` of the writer, and reports it. */
static dg_status write_item(job *j, const dgi_plan_item *item, dgi_writer *writer, size_t first)
{
    const dg_tensor *source = item->source;
    dg_tensor_report report = {
        .name = source->name,
        .kept_because = item->kept_because,
        .stored_type = source->stored_type,
        .rank = source->rank,
        .shape = source->shape,
        .bytes_before = source->bytes,
        .bytes_after = source->bytes,
        .total = j->plan.elements,
    };
    dg_status status;
    if (item->kept_because != NULL) {
        status = dgi_stream_copy(source, writer, first);
    } else {
        status = dgi_stream_quantize(&j->stream, item, writer, first, &report);
        report.bytes_after = item->codes->bytes + item->scale->bytes;
    }
    j->done += source->elements;
    report.done = j->done;
    if (status == DG_OK && j->options.report != NULL &&
        !j->options.report(j->options.user, &report))
        return dgi_fail(DG_CANCELLED, "cancelled after tensor %s", source->name);
    return status;
}

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

/* ---- the whole ----------------------------------------------------------------------- */

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
    DGI_TRY(dgi_config_open(j->input->folder, &j->config));
    DGI_TRY(dgi_keep_open(j->options.keep, j->options.keep_count, &j->keep));
    DGI_TRY(dgi_plan_make(j->input, j->layout, &j->keep, &j->plan));
    DGI_TRY(dgi_stream_open(j->context, j->layout, j->plan.widest, &j->stream));

    DGI_TRY(dgi_output_open(output, j->options.replace, &j->output));
    const char *folder = j->output.temporary;
    DGI_TRY(write_shards(j));
    if (dgi_is_index(j->input->file))
        DGI_TRY(dgi_index_write(&j->plan, folder, j->input->file));
    if (j->config.data != NULL)
        DGI_TRY(dgi_config_write(&j->config, j->options.format, &j->plan, folder));
    if (j->input->is_folder)
        DGI_TRY(dgi_companions_copy(j->input->folder, folder));
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
    dgi_output_close(&j.output);
    dgi_stream_close(&j.stream);
    dgi_plan_free(&j.plan);
    dgi_keep_close(&j.keep);
    dgi_file_unmap(&j.config);
    dg_checkpoint_close(j.input);
    return status;
}
