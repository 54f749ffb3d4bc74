/* SPDX-License-Identifier: MIT */
/* Static scales from statistics of activations, and what they do to them. */
#include "quant/statistics.h"

#include "api/check.h"
#include "core/formats.h"
#include "io/file.h"
#include "quant/choose.h"

#include <stdlib.h>

typedef long long ll; /* for printf */

/* ---- arguments ----------------------------------------------------------------------- */

/* Finds the layer, and checks scales of activations against it. */
static dg_status take_layer(const dg_statistics *statistics, const char *layer,
                            const dg_scale *scale, bool written, const dgi_observer **observer)
{
    if (statistics == NULL || layer == NULL || scale == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics"
                        : layer == NULL    ? "layer"
                                           : "scale");
    *observer = dgi_statistics_find(statistics, layer);
    if (*observer == NULL)
        return dgi_fail(DG_NOT_FOUND, "the statistics have no layer %s", layer);
    DGI_TRY(dgi_check_scale(scale, 1, (*observer)->features, written));
    int32_t block = statistics->block_cols, wanted = scale->block_cols;
    if (scale->block_rows != 0 || scale->col_phase != 0 ||
        (wanted != 0 && (block == 0 || wanted % block != 0)))
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "scale has blocks of %d x %d, column phase %d: static scales have "
                        "block_rows 0, phase 0, and block_cols 0 or a multiple of %d, the "
                        "statistics' own",
                        scale->block_rows, wanted, scale->col_phase, block);
    return DG_OK;
}

/* The histograms [*first, *last) and the columns [*first_col, *last_col) of scale `index`. */
typedef struct span {
    int64_t first, last, first_col, last_col;
} span;

static span span_of(const dg_statistics *statistics, const dgi_observer *o, const dg_scale *scale,
                    int64_t index)
{
    if (scale->block_cols == 0)
        return (span){0, o->groups, 0, o->features};
    int64_t each = scale->block_cols / statistics->block_cols;
    int64_t last = (index + 1) * each, last_col = (index + 1) * scale->block_cols;
    return (span){index * each, last < o->groups ? last : o->groups, index * scale->block_cols,
                  last_col < o->features ? last_col : o->features};
}

/* ---- gathering ----------------------------------------------------------------------- */

/* Adds an observer's part to a histogram and its amax. */
static void gather(const dgi_observer *o, span s, dgi_histogram *all, float *amax)
{
    for (int64_t g = s.first; g < s.last; g++)
        dgi_histogram_merge(all, &o->histograms[g]);
    for (int64_t c = s.first_col; c < s.last_col; c++)
        *amax = o->amaxes[c] > *amax ? o->amaxes[c] : *amax;
}

/* The same for the layer itself or, if it has met no token, for its siblings. */
static dg_scale_origin gather_known(const dg_statistics *statistics, const dgi_observer *o, span s,
                                    dgi_histogram *all, float *amax)
{
    if (o->tokens > 0) {
        gather(o, s, all, amax);
        return DG_FROM_LAYER;
    }
    dg_scale_origin origin = DG_FROM_NOTHING;
    for (int64_t i = 0; i < statistics->count; i++) {
        const dgi_observer *other = statistics->observers[i];
        if (other->tokens == 0 || other->features != o->features ||
            !dgi_are_siblings(o->layer, other->layer))
            continue;
        gather(other, s, all, amax);
        origin = DG_FROM_SIBLINGS;
    }
    return origin;
}

/* ---- choosing and judging ------------------------------------------------------------ */

/* Memory for one scale at a time. */
typedef struct scratch {
    dgi_chooser chooser;
    double bins[DGI_MAX_BINS];
} scratch;

dg_status dg_statistics_choose(const dg_statistics *statistics, const char *layer,
                               const dg_scale_choice *choice, const dg_scale *scale,
                               dg_scale_quality *quality)
{
    const dgi_observer *o;
    dg_scale_choice complete;
    dg_scale_quality result = DG_SCALE_QUALITY_INIT;
    DGI_TRY(take_layer(statistics, layer, scale, true, &o));
    DGI_TRY(dgi_take_choice(&complete, choice, scale->dtype));
    if (quality != NULL)
        DGI_TRY(dgi_take(&result, sizeof result, sizeof result, quality, "quality"));
    scratch *work = malloc(sizeof *work);
    if (work == NULL)
        return dgi_no_memory(layer);
    dgi_damage damage = {0};
    for (int64_t i = 0; i < scale->cols; i++) {
        float amax = 0.0f;
        dgi_histogram all = dgi_histogram_of(statistics->bits, work->bins);
        dgi_histogram_clear(&all);
        result.origin = gather_known(statistics, o, span_of(statistics, o, scale, i), &all, &amax);
        float chosen = dgi_choose_scale(&all, amax, &complete, &work->chooser);
        dgi_damage_add(&damage, &all, chosen, complete.code);
        dgi_store_f32(scale->data, scale->dtype, i * scale->col_stride, chosen, DG_SATURATE);
    }
    free(work);
    dgi_damage_report(&damage, &result);
    if (quality != NULL)
        *quality = result;
    return DG_OK;
}

dg_status dg_statistics_judge(const dg_statistics *statistics, const char *layer,
                              const dg_scale *scale, dg_dtype code, dg_scale_quality *quality)
{
    const dgi_observer *o;
    dg_scale_quality result = DG_SCALE_QUALITY_INIT;
    DGI_TRY(take_layer(statistics, layer, scale, false, &o));
    if (!dgi_is_fp8(code))
        return dgi_fail(DG_UNSUPPORTED_TYPE, "code is %s: e4m3 or e5m2 expected",
                        dg_dtype_name(code));
    DGI_TRY(dgi_take(&result, sizeof result, sizeof result, quality, "quality"));
    dgi_damage damage = {0};
    for (int64_t i = 0; i < scale->cols; i++) {
        float given = dgi_scale_at(scale, 0, i);
        if (!(given > 0.0f && dgi_f32_is_finite(given)))
            return dgi_fail(DG_UNSUPPORTED_SCALE,
                            "scale %lld is %g: it must be positive and finite", (ll)i,
                            (double)given);
        span s = span_of(statistics, o, scale, i);
        for (int64_t g = s.first; g < s.last; g++)
            dgi_damage_add(&damage, &o->histograms[g], given, code);
    }
    dgi_damage_report(&damage, &result);
    result.origin = o->tokens > 0 ? DG_FROM_LAYER : DG_FROM_NOTHING;
    *quality = result;
    return DG_OK;
}

/* ---- the histogram ------------------------------------------------------------------- */

dg_status dg_statistics_histogram(const dg_statistics *statistics, const char *layer, dg_bin *bins,
                                  int64_t *count)
{
    if (statistics == NULL || layer == NULL || count == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        statistics == NULL ? "statistics"
                        : layer == NULL    ? "layer"
                                           : "count");
    const dgi_observer *o = dgi_statistics_find(statistics, layer);
    if (o == NULL)
        return dgi_fail(DG_NOT_FOUND, "the statistics have no layer %s", layer);
    double *memory = calloc((size_t)DGI_OCTAVES << statistics->bits, sizeof *memory);
    if (memory == NULL)
        return dgi_no_memory(layer);
    dgi_histogram all = dgi_histogram_of(statistics->bits, memory);
    for (int64_t g = 0; g < o->groups; g++)
        dgi_histogram_merge(&all, &o->histograms[g]);
    int64_t found = 0, room = bins == NULL ? 0 : *count;
    for (int32_t i = 0; i < dgi_histogram_bins(&all); i++) {
        if (all.bins[i] == 0.0)
            continue;
        if (found < room)
            bins[found] = (dg_bin){dgi_histogram_value(&all, i), all.bins[i]};
        found++;
    }
    *count = found;
    free(memory);
    return DG_OK;
}
