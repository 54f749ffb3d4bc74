/* SPDX-License-Identifier: MIT */
/* Scales for a whole checkpoint, in a file that quantising takes: dg_scales_write(). */
#include "api/check.h"
#include "core/formats.h"
#include "io/checkpoint.h"
#include "io/replace.h"
#include "io/writer.h"
#include "quant/keep.h"
#include "quant/statistics.h"

#include <stdio.h>
#include <stdlib.h>

typedef long long ll; /* for printf */

#define WEIGHT_END ".weight"

/* A layer and its tensors in the output. */
typedef struct layer {
    const dg_tensor *weight;
    char *name;
    const dgi_observer *observer;    /* NULL: nothing is known of its input */
    dg_tensor *scales, *input_scale; /* input_scale is NULL without an observer */
} layer;

typedef struct job {
    dg_context *context;
    dg_scales_options options;
    dg_checkpoint *input;
    layer *layers;
    size_t count;
    dg_tensor **tensors; /* of the output, layer by layer */
    size_t tensor_count;
    int64_t done, total;
} job;

/* ---- which layers -------------------------------------------------------------------- */

static bool is_linear(const dg_tensor *t)
{
    bool wide = t->dtype == DG_F32 || t->dtype == DG_F16 || t->dtype == DG_BF16;
    return wide && t->rank == 2 && t->elements > 0 && dgi_ends_with(t->name, WEIGHT_END);
}

static dg_tensor *new_tensor(const char *layer, const char *end, int32_t rank, int64_t rows,
                             int64_t cols)
{
    char *name;
    if (asprintf(&name, "%s%s", layer, end) < 0)
        return NULL;
    dg_tensor *tensor = dgi_tensor_new(name, "F32", rank);
    free(name);
    if (tensor == NULL)
        return NULL;
    int64_t *shape = (int64_t *)tensor->shape;
    shape[0] = rows;
    if (rank == 2)
        shape[1] = cols;
    tensor->elements = rows * cols;
    tensor->bytes = (size_t)tensor->elements * sizeof(float);
    return tensor;
}

static dg_status check_observer(const job *j, const layer *l)
{
    if (l->observer != NULL && l->observer->features != l->weight->shape[1])
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "layer %s takes %lld features, but the statistics have %lld", l->name,
                        (ll)l->weight->shape[1], (ll)l->observer->features);
    bool met = l->observer != NULL && l->observer->tokens > 0;
    if (j->options.strict && j->options.statistics != NULL && !met)
        return dgi_fail(DG_NOT_FOUND, "layer %s %s", l->name,
                        l->observer == NULL ? "is not in the statistics" : "has met no token");
    return DG_OK;
}

static dg_status take_layer(job *j, const dg_tensor *weight, dgi_keep *keep)
{
    char *name = strndup(weight->name, strlen(weight->name) - strlen(WEIGHT_END));
    if (name == NULL)
        return dgi_no_memory(weight->name);
    if (dgi_keep_match(keep, weight->name, name) != NULL) {
        free(name);
        return DG_OK;
    }
    layer *l = &j->layers[j->count++];
    l->weight = weight;
    l->name = name;
    const dg_scales_options *o = &j->options;
    if (o->statistics != NULL)
        l->observer = dgi_statistics_find(o->statistics, l->name);
    DGI_TRY(check_observer(j, l));
    l->scales =
        new_tensor(l->name, ".weight_scale", 2, dg_scale_count(weight->shape[0], o->block_rows, 0),
                   dg_scale_count(weight->shape[1], o->block_cols, 0));
    if (l->observer != NULL)
        l->input_scale = new_tensor(l->name, ".input_scale", 1, 1, 1);
    if (l->scales == NULL || (l->observer != NULL && l->input_scale == NULL))
        return dgi_no_memory(l->name);
    j->tensors[j->tensor_count++] = l->scales;
    if (l->input_scale != NULL)
        j->tensors[j->tensor_count++] = l->input_scale;
    j->total += weight->elements;
    return DG_OK;
}

static dg_status find_layers(job *j)
{
    dgi_keep keep;
    j->layers = calloc(j->input->count + 1, sizeof *j->layers);
    j->tensors = calloc(2 * j->input->count + 1, sizeof *j->tensors);
    if (j->layers == NULL || j->tensors == NULL)
        return dgi_no_memory(j->input->file);
    dg_status status = dgi_keep_open(j->options.keep, j->options.keep_count, &keep);
    for (size_t i = 0; i < j->input->count && status == DG_OK; i++)
        if (is_linear(j->input->tensors[i]))
            status = take_layer(j, j->input->tensors[i], &keep);
    dgi_keep_close(&keep);
    if (status == DG_OK && j->count == 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s holds no 16-bit layer to choose scales for",
                        j->input->file);
    return status;
}

/* ---- choosing ------------------------------------------------------------------------ */

/* The sums of squares that the layer's columns met; NULL where they are not wanted or not known. */
static const double *column_weights(const job *j, const layer *l)
{
    bool known = l->observer != NULL && l->observer->tokens > 0;
    return j->options.weigh_columns && known ? l->observer->squares : NULL;
}

static dg_status write_layer(job *j, const layer *l, dgi_writer *writer, size_t place)
{
    const dg_scales_options *o = &j->options;
    int64_t rows = l->weight->shape[0], cols = l->weight->shape[1];
    dg_layer_scales report = {
        .layer = l->name,
        .rows = rows,
        .cols = cols,
        .input = DG_SCALE_QUALITY_INIT,
        .weight = DG_SCALE_QUALITY_INIT,
        .total = j->total,
    };
    float *scales = malloc(l->scales->bytes);
    if (scales == NULL)
        return dgi_no_memory(l->name);
    dg_matrix weight = dg_matrix_of((void *)l->weight->data, l->weight->dtype, rows, cols);
    dg_scale scale = dg_scale_of(scales, DG_F32, rows, cols, o->block_rows, o->block_cols);
    dg_status status = dg_scale_choose(j->context, &weight, &o->weights, column_weights(j, l),
                                       &scale, &report.weight);
    if (status == DG_OK)
        status = dgi_writer_write(writer, place, 0, scales, l->scales->bytes);
    free(scales);
    dgi_drop_pages(l->weight->data, l->weight->bytes);
    DGI_TRY(status);
    if (l->input_scale != NULL) {
        dg_scale input = dg_scale_of(&report.input_scale, DG_F32, 1, cols, 0, 0);
        DGI_TRY(dg_statistics_choose(o->statistics, l->name, &o->inputs, &input, &report.input));
        DGI_TRY(dgi_writer_write(writer, place + 1, 0, &report.input_scale, sizeof(float)));
    }
    j->done += l->weight->elements;
    report.done = j->done;
    if (o->report != NULL && !o->report(o->user, &report))
        return dgi_fail(DG_CANCELLED, "cancelled after layer %s", l->name);
    return DG_OK;
}

static dg_status write_layers(job *j, const char *path)
{
    dgi_writer *writer;
    DGI_TRY(dgi_writer_open(path, j->tensors, j->tensor_count, NULL, &writer));
    dg_status status = DG_OK;
    size_t place = 0;
    for (size_t i = 0; i < j->count && status == DG_OK; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it loses sight of what close_job() frees */
        status = write_layer(j, &j->layers[i], writer, place);
        place += j->layers[i].input_scale != NULL ? 2 : 1;
    }
    dg_status closed = dgi_writer_close(writer);
    return status == DG_OK ? closed : status;
}

/* ---- the whole ----------------------------------------------------------------------- */

static dg_status run(job *j, const char *checkpoint, const char *output)
{
    DGI_TRY(dg_checkpoint_open(&j->input, checkpoint));
    DGI_TRY(find_layers(j));
    char *temporary;
    DGI_TRY(dgi_replace_begin(output, &temporary));
    return dgi_replace_end(output, temporary, write_layers(j, temporary));
}

static void close_job(job *j)
{
    for (size_t i = 0; i < j->count; i++) {
        free(j->layers[i].name);
        free(j->layers[i].scales);
        free(j->layers[i].input_scale);
    }
    free(j->layers);
    free(j->tensors);
    dg_checkpoint_close(j->input);
}

static dg_status take_options(dg_scales_options *complete, const dg_scales_options *options)
{
    *complete = (dg_scales_options)DG_SCALES_OPTIONS_INIT;
    if (options != NULL)
        DGI_TRY(dgi_take(complete, sizeof *complete, sizeof *complete, options, "options"));
    dg_scale_choice checked;
    DGI_TRY(dgi_take_choice(&checked, &complete->inputs, DG_F32));
    DGI_TRY(dgi_take_choice(&checked, &complete->weights, DG_F32));
    if (complete->block_rows < 0 || complete->block_cols < 0)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "options.block_rows and block_cols are %d and %d: a block size is "
                        "positive, or 0 for all",
                        complete->block_rows, complete->block_cols);
    if (complete->weigh_columns && complete->statistics == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "options.weigh_columns needs options.statistics");
    if (complete->keep_count < 0 || (complete->keep_count > 0 && complete->keep == NULL))
        return dgi_fail(DG_INVALID_ARGUMENT, "options.keep is %p with keep_count %d",
                        (const void *)complete->keep, complete->keep_count);
    return DG_OK;
}

dg_status dg_scales_write(dg_context *context, const char *checkpoint, const char *output,
                          const dg_scales_options *options)
{
    job j = {.context = context};
    DGI_TRY(dgi_check_cpu_context(context, "scales are chosen"));
    if (checkpoint == NULL || output == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        checkpoint == NULL ? "checkpoint" : "output");
    DGI_TRY(take_options(&j.options, options));
    dg_status status = run(&j, checkpoint, output);
    close_job(&j);
    return status;
}
