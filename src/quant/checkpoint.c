/* SPDX-License-Identifier: MIT */
/*
 * Writing a checkpoint in another format: dg_checkpoint_quantize() and dg_checkpoint_convert().
 * After the plan (plan.h) every shard is written, its tensors streaming through in batches
 * (stream.h); then come the index, config.json and the files that only travel along; then the
 * folder takes its place (publish.h). A journal lets a later run go on where one was killed.
 */
#include "api/check.h"
#include "io/publish.h"
#include "quant/companions.h"
#include "quant/journal.h"
#include "quant/stream.h"

#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>

/* Elements of a batch: enough to occupy all threads to its end, and a fraction of a second. */
#define BATCH_ELEMENTS ((int64_t)64 << 20)
/* Elements after which what is done is brought to the disk and noted. */
#define SYNC_ELEMENTS  ((int64_t)256 << 20)

typedef struct job {
    dg_context *context;
    dg_checkpoint_options options;
    bool convert;
    const dgi_layout *layout;
    dg_checkpoint *input, *scales;
    dgi_map config; /* the input's config.json; data NULL: it has none */
    dgi_keep keep;
    dgi_plan plan;
    dgi_stream stream;
    dgi_output output;
    dgi_journal journal;
    int64_t done, unnoted; /* elements: reported, and not in the journal yet */
} job;

/* ---- reports ------------------------------------------------------------------------- */

static size_t bytes_of(const dg_tensor *tensor)
{
    return tensor == NULL ? 0 : tensor->bytes;
}

static dg_status report(job *j, size_t index)
{
    const dgi_plan_item *item = &j->plan.items[index];
    const dgi_result *result = &j->journal.results[index];
    j->done += item->elements;
    dg_tensor_report facts = {
        .name = item->codes->name,
        .kept_because = item->kept_because,
        .stored_type = item->source->stored_type,
        .rank = item->codes->rank,
        .shape = item->codes->shape,
        .bytes_before = item->bytes_before,
        .bytes_after = bytes_of(item->codes) + bytes_of(item->scale) + bytes_of(item->input),
        .relative_error = result->relative_error,
        .counts = result->counts,
        .done = j->done,
        .total = j->plan.elements,
        .action = result->action,
        .resumed = j->journal.done[index],
        .part_ratio = result->part_ratio,
    };
    if (j->options.report == NULL || j->options.report(j->options.user, &facts))
        return DG_OK;
    return dgi_fail(DG_CANCELLED, "cancelled after tensor %s", facts.name);
}

/* ---- shards -------------------------------------------------------------------------- */

/* Brings what is done to the disk, then notes it. */
static dg_status note(job *j, const dgi_writer *writer)
{
    j->unnoted = 0;
    DGI_TRY(dgi_writer_sync(writer));
    return dgi_journal_sync(&j->journal);
}

/* Writes the items from `first` on that make a batch; *next is the one behind it. */
static dg_status write_batch(job *j, dgi_writer *writer, size_t first, size_t last, size_t place,
                             size_t *next)
{
    int64_t elements = 0;
    size_t end = first;
    while (end < last && (end == first || elements + j->plan.items[end].elements < BATCH_ELEMENTS))
        elements += j->plan.items[end++].elements;
    const dgi_plan_item *items = &j->plan.items[first];
    const bool *skip = &j->journal.done[first];
    dgi_result *results = calloc(end - first + 1, sizeof *results);
    if (results == NULL)
        return dgi_no_memory(items->source->name);
    dg_status status = dgi_stream_run(&j->stream, items, end - first, skip, writer, place, results);
    for (size_t i = first; i < end && status == DG_OK; i++)
        if (!j->journal.done[i])
            dgi_journal_add(&j->journal, i, &results[i - first]);
    free(results);
    DGI_TRY(status);
    *next = end;
    j->unnoted += elements;
    for (size_t i = first; i < end && status == DG_OK; i++)
        status = report(j, i);
    if (j->unnoted >= SYNC_ELEMENTS || status == DG_CANCELLED) {
        dg_status noted = note(j, writer);
        return noted == DG_OK ? status : noted;
    }
    return status;
}

static size_t tensors_of(const dgi_plan_item *item)
{
    return 1 + (item->scale != NULL) + (item->input != NULL);
}

/* Opens a writer for the tensors of the items. */
static dg_status open_shard(job *j, const dgi_shard *shard, size_t first, size_t last,
                            dg_tensor **tensors, dgi_writer **writer)
{
    size_t made = 0;
    for (size_t i = first; i < last; i++) {
        const dgi_plan_item *item = &j->plan.items[i];
        dg_tensor *const all[] = {item->codes, item->scale, item->input};
        for (int k = 0; k < 3; k++)
            if (all[k] != NULL)
                tensors[made++] = all[k];
    }
    char *path = dgi_path_join(j->output.temporary, shard->name);
    bool resumed = false;
    dg_status status = path == NULL ? dgi_no_memory(shard->name)
                                    : dgi_writer_resume(path, tensors, made, shard->parsed.metadata,
                                                        &resumed, writer);
    free(path);
    for (size_t i = first; i < last && status == DG_OK && !resumed; i++)
        j->journal.done[i] = false;
    return status;
}

static dg_status write_items(job *j, dgi_writer *writer, size_t first, size_t last)
{
    size_t place = 0;
    for (size_t next = first; first < last; first = next) {
        DGI_TRY(write_batch(j, writer, first, last, place, &next));
        for (size_t i = first; i < next; i++)
            place += tensors_of(&j->plan.items[i]);
    }
    return note(j, writer);
}

static dg_status write_shard(job *j, const dgi_shard *shard, size_t first, size_t last)
{
    dg_tensor **tensors = calloc(3 * (last - first) + 1, sizeof *tensors);
    if (tensors == NULL)
        return dgi_no_memory(shard->name);
    dgi_writer *writer;
    dg_status status = open_shard(j, shard, first, last, tensors, &writer);
    if (status == DG_OK) {
        status = write_items(j, writer, first, last);
        dg_status closed = dgi_writer_close(writer);
        if (status == DG_OK)
            status = closed;
    }
    free(tensors);
    return status;
}

/* A shard of which nothing is left (it held scales only) is not written. */
static dg_status write_shards(job *j)
{
    size_t first = 0;
    for (size_t s = 0; s < j->input->shard_count; s++) {
        const dgi_shard *shard = &j->input->shards[s];
        size_t last = first;
        while (last < j->plan.count && j->plan.items[last].file == shard->name)
            last++;
        if (last > first)
            DGI_TRY(write_shard(j, shard, first, last));
        first = last;
    }
    return DG_OK;
}

/* ---- strict -------------------------------------------------------------------------- */

typedef struct accounts {
    int64_t bad;
    char first[256];
} accounts;

static bool count_bad(void *user, const dg_scale_record *record)
{
    static const char *const states[] = {"loaded", "defaulted", "unused", "missing", "wrong"};
    accounts *a = user;
    if (record->state != DG_SCALE_LOADED && a->bad++ == 0)
        snprintf(a->first, sizeof a->first, "a scale of %.100s is %s%s%.100s", record->layer,
                 states[record->state], record->problem == NULL ? "" : ": ",
                 record->problem == NULL ? "" : record->problem);
    return true;
}

/* DG_BAD_FILE unless every scale is loaded. */
static dg_status be_strict(const job *j)
{
    accounts a = {0};
    DGI_TRY(dg_checkpoint_scales(j->input, count_bad, &a));
    return a.bad == 0 ? DG_OK
                      : dgi_fail(DG_BAD_FILE, "%s: %s; %lld such scales in all", j->input->file,
                                 a.first, (long long)a.bad);
}

/* ---- the whole ----------------------------------------------------------------------- */

static bool same_folder(const char *a, const char *b)
{
    struct stat a_facts, b_facts;
    return stat(a, &a_facts) == 0 && stat(b, &b_facts) == 0 && a_facts.st_dev == b_facts.st_dev &&
           a_facts.st_ino == b_facts.st_ino;
}

static dg_status make_plan(job *j)
{
    dgi_plan_request request = {
        .input = j->input,
        .scales = j->scales,
        .layout = j->layout,
        .fusion = j->options.fusion,
        .convert = j->convert,
        .unscaled_is_one = j->options.unscaled_is_one,
        .keep = &j->keep,
    };
    DGI_TRY(dgi_model_sizes_read(j->config.data, j->config.bytes, &request.sizes));
    return dgi_plan_make(&request, &j->plan);
}

static dg_status open_output(job *j, const char *path)
{
    char *identity = dgi_journal_identity(j->input, j->scales, &j->options, j->convert);
    if (identity == NULL)
        return dgi_no_memory(path);
    dg_status status = dgi_output_open(path, j->options.replace, identity, &j->output);
    if (status == DG_OK)
        status = dgi_journal_open(j->output.temporary, identity, j->plan.count, &j->journal);
    free(identity);
    return status;
}

static dg_status run(job *j, const char *input, const char *output)
{
    DGI_TRY(dg_checkpoint_open(&j->input, input));
    if (same_folder(j->input->folder, output))
        return dgi_fail(DG_INVALID_ARGUMENT, "output %s is the folder of the input", output);
    if (j->options.scales != NULL)
        DGI_TRY(dg_checkpoint_open(&j->scales, j->options.scales));
    DGI_TRY(dgi_config_open(j->input->folder, j->convert, &j->config));
    DGI_TRY(dgi_keep_open(j->options.keep, j->options.keep_count, &j->keep));
    if (j->convert && j->options.strict)
        DGI_TRY(be_strict(j));
    DGI_TRY(make_plan(j));
    DGI_TRY(dgi_stream_open(j->context, &j->plan, &j->stream));

    DGI_TRY(open_output(j, output));
    const char *folder = j->output.temporary;
    DGI_TRY(write_shards(j));
    if (dgi_is_index(j->input->file))
        DGI_TRY(dgi_index_write(&j->plan, folder, j->input->file));
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
        DGI_TRY(dgi_take(&j->options, sizeof j->options, offsetof(dg_checkpoint_options, scales),
                         options, "options"));
    j->layout = dgi_layout_of(j->options.format);
    if (j->layout == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "options.format is %d: DG_CHECKPOINT_BLOCK (0) to DG_CHECKPOINT_BF16 (%d) "
                        "expected",
                        j->options.format, DG_CHECKPOINT_BF16);
    if (!j->convert && j->options.format == DG_CHECKPOINT_BF16)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "options.format is DG_CHECKPOINT_BF16, to which a checkpoint can be "
                        "converted, not quantised");
    if (j->options.fusion < DG_FUSION_AS_IT_IS || j->options.fusion > DG_FUSION_FUSED)
        return dgi_fail(DG_INVALID_ARGUMENT, "options.fusion is %d", j->options.fusion);
    if (j->options.keep_count < 0 || (j->options.keep_count > 0 && j->options.keep == NULL))
        return dgi_fail(DG_INVALID_ARGUMENT, "options.keep is %p with keep_count %d",
                        (const void *)j->options.keep, j->options.keep_count);
    return DG_OK;
}

static dg_status write_checkpoint(dg_context *context, const char *input, const char *output,
                                  const dg_checkpoint_options *options, bool convert)
{
    DGI_TRY(dgi_check_cpu_context(context, "checkpoints are written"));
    if (input == NULL || output == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL", input == NULL ? "input" : "output");
    job j = {.context = context, .convert = convert, .output = {.lock = -1}};
    dg_status status = take_options(&j, options);
    if (status == DG_OK)
        status = run(&j, input, output);
    j.output.keep = status == DG_CANCELLED;
    dgi_journal_close(&j.journal);
    dgi_output_close(&j.output);
    dgi_stream_close(&j.stream);
    dgi_plan_free(&j.plan);
    dgi_keep_close(&j.keep);
    dgi_file_unmap(&j.config);
    dg_checkpoint_close(j.scales);
    dg_checkpoint_close(j.input);
    return status;
}

dg_status dg_checkpoint_quantize(dg_context *context, const char *input, const char *output,
                                 const dg_checkpoint_options *options)
{
    return write_checkpoint(context, input, output, options, false);
}

dg_status dg_checkpoint_convert(dg_context *context, const char *input, const char *output,
                                const dg_checkpoint_options *options)
{
    return write_checkpoint(context, input, output, options, true);
}
