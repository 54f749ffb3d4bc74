/* SPDX-License-Identifier: MIT */
/*
 * Statistics of activations: collecting, merging and asking. The files are in statistics_file.c,
 * the choice of scales in statistics_choose.c.
 */
#include "quant/statistics.h"

#include "api/check.h"
#include "core/formats.h"
#include "io/file.h"

#include <stdlib.h>

typedef long long ll; /* for printf */

/* ---- life ---------------------------------------------------------------------------- */

dg_status dgi_check_statistics_options(const dg_statistics_options *options)
{
    if (options->block_cols < 0)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "options.block_cols is %d: it must be positive, or 0 for all",
                        options->block_cols);
    if (options->bits < 4 || options->bits > DGI_MAX_BITS)
        return dgi_fail(DG_INVALID_ARGUMENT, "options.bits is %d: it must be 4 to %d",
                        options->bits, DGI_MAX_BITS);
    return DG_OK;
}

dg_status dg_statistics_create(dg_statistics **statistics, const dg_statistics_options *options)
{
    dg_statistics_options complete = DG_STATISTICS_OPTIONS_INIT;
    if (statistics == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "statistics is NULL");
    if (options != NULL)
        DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, options, "options"));
    DGI_TRY(dgi_check_statistics_options(&complete));
    dg_statistics *made = calloc(1, sizeof *made);
    if (made == NULL)
        return dgi_no_memory("statistics");
    made->block_cols = complete.block_cols;
    made->bits = complete.bits;
    *statistics = made;
    return DG_OK;
}

void dg_statistics_destroy(dg_statistics *statistics)
{
    if (statistics == NULL)
        return;
    for (int64_t i = 0; i < statistics->count; i++)
        free(statistics->observers[i]);
    free(statistics->observers);
    free(statistics);
}

/* ---- layers by name ------------------------------------------------------------------ */

/* Where the layer is, or would be. */
static int64_t place_of(const dg_statistics *statistics, const char *layer)
{
    int64_t low = 0, high = statistics->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (strcmp(statistics->observers[middle]->layer, layer) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

dgi_observer *dgi_statistics_find(const dg_statistics *statistics, const char *layer)
{
    int64_t place = place_of(statistics, layer);
    if (place == statistics->count || strcmp(statistics->observers[place]->layer, layer) != 0)
        return NULL;
    return statistics->observers[place];
}

/* NULL without memory. Doubles come first, so that all are aligned. */
static dgi_observer *new_observer(const dg_statistics *statistics, const char *layer,
                                  int64_t features)
{
    size_t groups = (size_t)dg_scale_count(features, statistics->block_cols, 0);
    size_t cols = (size_t)features, bins = (size_t)DGI_OCTAVES << statistics->bits;
    size_t doubles, bytes, name_bytes = strlen(layer) + 1;
    if (__builtin_mul_overflow(groups, bins, &doubles) ||
        __builtin_add_overflow(doubles, cols, &doubles) ||
        __builtin_mul_overflow(doubles, sizeof(double), &bytes) ||
        __builtin_add_overflow(bytes, groups * sizeof(dgi_histogram) + cols * sizeof(float),
                               &bytes) ||
        __builtin_add_overflow(bytes, sizeof(dgi_observer) + name_bytes, &bytes))
        return NULL;
    dgi_observer *o = calloc(1, bytes);
    if (o == NULL)
        return NULL;
    double *histogram_bins = (double *)(o + 1);
    o->features = features;
    o->groups = (int64_t)groups;
    o->squares = histogram_bins + groups * bins;
    o->histograms = (dgi_histogram *)(o->squares + cols);
    o->amaxes = (float *)(o->histograms + groups);
    for (size_t g = 0; g < groups; g++)
        o->histograms[g] = dgi_histogram_of(statistics->bits, histogram_bins + g * bins);
    o->layer = memcpy(o->amaxes + cols, layer, name_bytes);
    return o;
}

dg_status dgi_statistics_need(dg_statistics *statistics, const char *layer, int64_t features,
                              dgi_observer **observer)
{
    int64_t place = place_of(statistics, layer);
    if (place < statistics->count && strcmp(statistics->observers[place]->layer, layer) == 0) {
        *observer = statistics->observers[place];
        if ((*observer)->features != features)
            return dgi_fail(DG_INVALID_ARGUMENT, "layer %s has %lld features here and %lld before",
                            layer, (ll)features, (ll)(*observer)->features);
        return DG_OK;
    }
    if (statistics->count == statistics->room) {
        int64_t room = 2 * statistics->room + 64;
        dgi_observer **larger = realloc(statistics->observers, (size_t)room * sizeof *larger);
        if (larger == NULL)
            return dgi_no_memory(layer);
        statistics->observers = larger;
        statistics->room = room;
    }
    *observer = new_observer(statistics, layer, features);
    if (*observer == NULL)
        return dgi_no_memory(layer);
    dgi_observer **at = &statistics->observers[place];
    memmove(at + 1, at, (size_t)(statistics->count - place) * sizeof *at);
    *at = *observer;
    statistics->count++;
    return DG_OK;
}

bool dgi_are_siblings(const char *layer, const char *other)
{
    static const char mark[] = "experts.", digits[] = "0123456789";
    const char *at = strstr(layer, mark);
    if (at == NULL)
        return false;
    size_t before = (size_t)(at - layer) + strlen(mark);
    if (strncmp(layer, other, before) != 0)
        return false;
    const char *end = layer + before, *other_end = other + before;
    size_t number = strspn(end, digits), other_number = strspn(other_end, digits);
    return number > 0 && other_number > 0 && strcmp(end + number, other_end + other_number) == 0;
}

/* ---- observing ----------------------------------------------------------------------- */

/* Columns that a thread takes at a time. */
enum { STRIP = 128 };

/*
 * Adds the columns from `first` on, at most STRIP of them and all of one group or of whole groups,
 * of one row. Returns how many elements were not finite.
 */
static int64_t observe_part(dgi_observer *o, const dg_matrix *x, int64_t row, int64_t first,
                            int64_t last, int64_t block)
{
    float values[STRIP];
    int64_t non_finite = 0;
    for (int64_t c = first; c < last; c++) {
        float value = dgi_load_f32(x->data, x->dtype, row * x->ld + c);
        bool finite = dgi_f32_is_finite(value);
        non_finite += !finite;
        value = finite ? value : 0.0f;
        float magnitude = value < 0.0f ? -value : value;
        o->amaxes[c] = magnitude > o->amaxes[c] ? magnitude : o->amaxes[c];
        o->squares[c] += (double)value * (double)value;
        values[c - first] = value;
    }
    for (int64_t c = first; c < last;) {
        int64_t group = c / block, end = (group + 1) * block < last ? (group + 1) * block : last;
        dgi_histogram_add(&o->histograms[group], values + (c - first), NULL, end - c);
        c = end;
    }
    return non_finite;
}

/* Each thread has whole groups, so no histogram is shared. */
static void observe(dgi_observer *o, const dg_matrix *x, int64_t block, int32_t threads)
{
    int64_t at_a_time = block < STRIP ? STRIP / block * block : block; /* columns */
    int64_t parts = dg_scale_count(x->cols, (int32_t)at_a_time, 0), non_finite = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic) reduction(+ : non_finite)
    for (int64_t p = 0; p < parts; p++) {
        int64_t from = p * at_a_time;
        int64_t to = from + at_a_time < x->cols ? from + at_a_time : x->cols;
        for (int64_t row = 0; row < x->rows; row++)
            for (int64_t c = from; c < to; c += STRIP)
                non_finite += observe_part(o, x, row, c, c + STRIP < to ? c + STRIP : to, block);
    }
    o->non_finite += non_finite;
}

dg_status dg_statistics_observe(dg_context *context, dg_statistics *statistics, const char *layer,
                                const dg_matrix *x)
{
    DGI_TRY(dgi_check_cpu_context(context, "statistics are collected"));
    if (statistics == NULL || layer == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics" : "layer");
    DGI_TRY(dgi_check_wide(x, "x"));
    if (x->cols == 0 || x->cols > INT32_MAX)
        return dgi_fail(DG_INVALID_ARGUMENT, "x.cols is %lld: a layer has 1 to %d features",
                        (ll)x->cols, INT32_MAX);
    dg_device_info device;
    DGI_TRY(dg_get_device_info(context, &device));
    dgi_observer *o;
    DGI_TRY(dgi_statistics_need(statistics, layer, x->cols, &o));
    if (x->rows == 0)
        return DG_OK;
    observe(o, x, statistics->block_cols == 0 ? x->cols : statistics->block_cols, device.units);
    o->tokens += x->rows;
    o->batches++;
    return DG_OK;
}

/* ---- merging ------------------------------------------------------------------------- */

static void add_observer(dgi_observer *to, const dgi_observer *from)
{
    to->tokens += from->tokens;
    to->batches += from->batches;
    to->non_finite += from->non_finite;
    for (int64_t c = 0; c < to->features; c++) {
        to->amaxes[c] = from->amaxes[c] > to->amaxes[c] ? from->amaxes[c] : to->amaxes[c];
        to->squares[c] += from->squares[c];
    }
    for (int64_t g = 0; g < to->groups; g++)
        dgi_histogram_merge(&to->histograms[g], &from->histograms[g]);
}

dg_status dg_statistics_merge(dg_statistics *statistics, const dg_statistics *other)
{
    if (statistics == NULL || other == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics" : "other");
    if (statistics == other)
        return dgi_fail(DG_INVALID_ARGUMENT, "other is statistics itself");
    if (statistics->block_cols != other->block_cols || statistics->bits != other->bits)
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "other has block_cols %d and bits %d, but statistics have %d and %d",
                        other->block_cols, other->bits, statistics->block_cols, statistics->bits);
    for (int64_t i = 0; i < other->count; i++) { /* before anything changes */
        const dgi_observer *from = other->observers[i];
        const dgi_observer *to = dgi_statistics_find(statistics, from->layer);
        if (to != NULL && to->features != from->features)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "layer %s has %lld features in other and %lld in statistics",
                            from->layer, (ll)from->features, (ll)to->features);
    }
    for (int64_t i = 0; i < other->count; i++) { /* what can fail comes first */
        dgi_observer *to;
        DGI_TRY(dgi_statistics_need(statistics, other->observers[i]->layer,
                                    other->observers[i]->features, &to));
    }
    for (int64_t i = 0; i < other->count; i++)
        add_observer(dgi_statistics_find(statistics, other->observers[i]->layer),
                     other->observers[i]);
    return DG_OK;
}

/* ---- asking -------------------------------------------------------------------------- */

static dg_status describe(const dgi_observer *o, dg_observed *observed)
{
    dg_observed complete = DG_OBSERVED_INIT;
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, observed, "observed"));
    float amax = 0.0f;
    for (int64_t c = 0; c < o->features; c++)
        amax = o->amaxes[c] > amax ? o->amaxes[c] : amax;
    *observed = (dg_observed){
        .struct_bytes = sizeof *observed,
        .layer = o->layer,
        .features = o->features,
        .tokens = o->tokens,
        .batches = o->batches,
        .non_finite = o->non_finite,
        .amax = amax,
        .amaxes = o->amaxes,
        .squares = o->squares,
    };
    return DG_OK;
}

dg_status dg_statistics_layer_at(const dg_statistics *statistics, int64_t index,
                                 dg_observed *observed)
{
    if (statistics == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "statistics is NULL");
    if (index < 0 || index >= statistics->count)
        return dgi_fail(DG_NOT_FOUND, "index is %lld, but there are %lld layers", (ll)index,
                        (ll)statistics->count);
    return describe(statistics->observers[index], observed);
}

dg_status dg_statistics_layer(const dg_statistics *statistics, const char *layer,
                              dg_observed *observed)
{
    if (statistics == NULL || layer == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics" : "layer");
    const dgi_observer *o = dgi_statistics_find(statistics, layer);
    if (o == NULL)
        return dgi_fail(DG_NOT_FOUND, "the statistics have no layer %s", layer);
    return describe(o, observed);
}

dg_status dg_statistics_get_options(const dg_statistics *statistics, dg_statistics_options *options)
{
    if (statistics == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "statistics is NULL");
    dg_statistics_options complete = DG_STATISTICS_OPTIONS_INIT;
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, options, "options"));
    options->block_cols = statistics->block_cols;
    options->bits = statistics->bits;
    return DG_OK;
}
