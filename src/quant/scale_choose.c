/* SPDX-License-Identifier: MIT */
/* Choosing the scales of a matrix that is at hand: dg_scale_choose(). */
#include "api/check.h"
#include "core/formats.h"
#include "io/file.h"
#include "quant/choose.h"

#include <math.h>
#include <stdlib.h>

/*
 * With fewer blocks than this the rows of each block are shared out among the threads, in as many
 * parts; with more, the blocks are. It depends on the matrix alone, so that results do not depend
 * on the threads.
 */
enum { FEW_BLOCKS = 32, ROW_PARTS = 32 };

/* Bins for KL: finer ones would hold too few elements of a weight's block to be a distribution. */
enum { KL_BITS = 5 };

enum { SEGMENT = 256 }; /* columns that are widened at a time */

typedef struct job {
    const dg_matrix *matrix;
    const dg_scale *scale;
    const double *column_weights;
    dg_scale_choice choice;
    int32_t bits, threads;
} job;

/* What was chosen for a block. */
typedef struct chosen {
    float scale;
    dgi_damage damage;
} chosen;

/* What a thread needs for one block. */
typedef struct scratch {
    dgi_chooser chooser;
    double bins[DGI_MAX_BINS];
} scratch;

/* Rows [row, row_end) and columns [col, col_end). */
typedef struct area {
    int64_t row, row_end, col, col_end;
} area;

static int64_t block_edge(int64_t index, int32_t block, int32_t phase, int64_t size)
{
    if (block == 0)
        return index == 0 ? 0 : size;
    int64_t edge = index * block - phase;
    return edge < 0 ? 0 : edge < size ? edge : size;
}

static area block_area(const job *j, int64_t index)
{
    const dg_scale *s = j->scale;
    int64_t r = index / s->cols, c = index % s->cols;
    return (area){block_edge(r, s->block_rows, s->row_phase, j->matrix->rows),
                  block_edge(r + 1, s->block_rows, s->row_phase, j->matrix->rows),
                  block_edge(c, s->block_cols, s->col_phase, j->matrix->cols),
                  block_edge(c + 1, s->block_cols, s->col_phase, j->matrix->cols)};
}

static area row_part(area a, int64_t part)
{
    int64_t rows = a.row_end - a.row;
    return (area){a.row + part * rows / ROW_PARTS, a.row + (part + 1) * rows / ROW_PARTS, a.col,
                  a.col_end};
}

/* Widens a segment of a row; what is not finite becomes zero. */
static int64_t widen(const dg_matrix *m, int64_t row, int64_t col, int64_t end, float *values)
{
    int64_t count = end - col < SEGMENT ? end - col : SEGMENT;
    for (int64_t i = 0; i < count; i++) {
        float value = dgi_load_f32(m->data, m->dtype, row * m->ld + col + i);
        values[i] = dgi_f32_is_finite(value) ? value : 0.0f;
    }
    return count;
}

/* ---- histograms ---------------------------------------------------------------------- */

/* Adds an area to a histogram, unless none is asked for; returns its amax. */
static float gather(const job *j, area a, dgi_histogram *histogram)
{
    float amax = 0.0f, values[SEGMENT];
    for (int64_t row = a.row; row < a.row_end; row++)
        for (int64_t col = a.col, count; col < a.col_end; col += count) {
            count = widen(j->matrix, row, col, a.col_end, values);
            if (j->choice.method != DG_METHOD_AMAX)
                dgi_histogram_add(histogram, values,
                                  j->column_weights == NULL ? NULL : j->column_weights + col,
                                  count);
            for (int64_t i = 0; i < count; i++)
                amax = fmaxf(amax, fabsf(values[i]));
        }
    return amax;
}

/* ---- the error itself ---------------------------------------------------------------- */

/* Adds what a scale does to an area, element by element. */
static void measure(const job *j, area a, float scale, dgi_damage *damage)
{
    float values[SEGMENT], reciprocal = dgi_scale_reciprocal(scale);
    dg_dtype code = j->choice.code;
    for (int64_t row = a.row; row < a.row_end; row++)
        for (int64_t col = a.col, count; col < a.col_end; col += count) {
            count = widen(j->matrix, row, col, a.col_end, values);
            for (int64_t i = 0; i < count; i++) {
                double weight = j->column_weights == NULL ? 1.0 : j->column_weights[col + i];
                float result = dgi_quantized(values[i], scale, reciprocal, code);
                double error = (double)values[i] - (double)result;
                damage->elements += weight;
                damage->clipped += dgi_clips(values[i], reciprocal, code) ? weight : 0.0;
                damage->underflow += values[i] != 0.0f && result == 0.0f ? weight : 0.0;
                damage->squares += weight * (double)values[i] * (double)values[i];
                damage->error_squares += weight * error * error;
            }
        }
}

static void add_damage(dgi_damage *to, const dgi_damage *from)
{
    to->elements += from->elements;
    to->clipped += from->clipped;
    to->underflow += from->underflow;
    to->squares += from->squares;
    to->error_squares += from->error_squares;
}

/* In fixed parts, added in order. */
static dgi_damage measure_shared(const job *j, area a, float scale)
{
    dgi_damage damages[ROW_PARTS] = {0}, all = {0};
#pragma omp parallel for num_threads(j->threads) schedule(dynamic)
    for (int64_t p = 0; p < ROW_PARTS; p++)
        measure(j, row_part(a, p), scale, &damages[p]);
    for (int p = 0; p < ROW_PARTS; p++)
        add_damage(&all, &damages[p]);
    return all;
}

/* ---- one block ----------------------------------------------------------------------- */

/* A dgi_damage of an area: by one thread, or by all of them. */
typedef dgi_damage measure_function(const job *j, area a, float scale);

static dgi_damage measure_alone(const job *j, area a, float scale)
{
    dgi_damage damage = {0};
    measure(j, a, scale, &damage);
    return damage;
}

/*
 * Chooses a block's scale from its histogram. A histogram rounds magnitudes to BF16, so the
 * promise that MSE is never worse than amax is kept by measuring both.
 */
static chosen choose(const job *j, area a, const dgi_histogram *histogram, float amax,
                     dgi_chooser *chooser, measure_function *measured)
{
    chosen best = {.scale = dgi_choose_scale(histogram, amax, &j->choice, chooser)};
    best.damage = measured(j, a, best.scale);
    float whole = dgi_dynamic_scale(amax, 0.0f, j->choice.code, j->choice.rounding);
    if (j->choice.method != DG_METHOD_MSE || whole == best.scale)
        return best;
    dgi_damage other = measured(j, a, whole);
    return other.error_squares < best.damage.error_squares ? (chosen){whole, other} : best;
}

/* ---- all blocks ---------------------------------------------------------------------- */

/* A thread takes a block. */
static dg_status choose_many(const job *j, int64_t blocks, chosen *results)
{
    bool failed = false;
#pragma omp parallel num_threads(j->threads) reduction(|| : failed)
    {
        scratch *work = malloc(sizeof *work);
        failed = work == NULL;
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < blocks; i++) {
            if (work == NULL)
                continue;
            dgi_histogram histogram = dgi_histogram_of(j->bits, work->bins);
            dgi_histogram_clear(&histogram);
            area a = block_area(j, i);
            float amax = gather(j, a, &histogram);
            results[i] = choose(j, a, &histogram, amax, &work->chooser, measure_alone);
        }
        free(work);
    }
    return failed ? dgi_no_memory("choosing scales") : DG_OK;
}

/* All threads take one block after the other. */
static dg_status choose_few(const job *j, int64_t blocks, chosen *results)
{
    size_t bins = (size_t)DGI_OCTAVES << j->bits;
    scratch *work = malloc(sizeof *work);
    double *part_bins = malloc(ROW_PARTS * bins * sizeof *part_bins);
    for (int64_t i = 0; i < blocks && work != NULL && part_bins != NULL; i++) {
        dgi_histogram histogram = dgi_histogram_of(j->bits, work->bins), histograms[ROW_PARTS];
        dgi_histogram_clear(&histogram);
        float amaxes[ROW_PARTS], amax = 0.0f;
        area a = block_area(j, i);
#pragma omp parallel for num_threads(j->threads) schedule(dynamic)
        for (int64_t p = 0; p < ROW_PARTS; p++) {
            histograms[p] = dgi_histogram_of(j->bits, part_bins + (size_t)p * bins);
            dgi_histogram_clear(&histograms[p]);
            amaxes[p] = gather(j, row_part(a, p), &histograms[p]);
        }
        for (int p = 0; p < ROW_PARTS; p++) {
            dgi_histogram_merge(&histogram, &histograms[p]);
            amax = fmaxf(amax, amaxes[p]);
        }
        results[i] = choose(j, a, &histogram, amax, &work->chooser, measure_shared);
    }
    bool failed = work == NULL || part_bins == NULL;
    free(work);
    free(part_bins);
    return failed ? dgi_no_memory("choosing scales") : DG_OK;
}

/* Writes the scales; returns what they do, all together. */
static dgi_damage take_results(const dg_scale *s, const chosen *results)
{
    dgi_damage all = {0};
    for (int64_t i = 0; i < s->rows * s->cols; i++) {
        int64_t place = i / s->cols * s->row_stride + i % s->cols * s->col_stride;
        dgi_store_f32(s->data, s->dtype, place, results[i].scale, DG_SATURATE);
        add_damage(&all, &results[i].damage);
    }
    return all;
}

static dg_status check_column_weights(const double *column_weights, int64_t cols)
{
    for (int64_t c = 0; c < cols && column_weights != NULL; c++)
        if (!(column_weights[c] >= 0.0 && isfinite(column_weights[c])))
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "column_weights[%lld] is %g: it must be finite and not negative",
                            (long long)c, column_weights[c]);
    return DG_OK;
}

dg_status dg_scale_choose(dg_context *context, const dg_matrix *matrix,
                          const dg_scale_choice *choice, const double *column_weights,
                          const dg_scale *scale, dg_scale_quality *quality)
{
    job j = {.matrix = matrix, .scale = scale, .column_weights = column_weights};
    dg_scale_quality result = DG_SCALE_QUALITY_INIT;
    DGI_TRY(dgi_check_cpu_context(context, "scales are chosen"));
    DGI_TRY(dgi_check_wide(matrix, "matrix"));
    DGI_TRY(dgi_check_scale(scale, matrix->rows, matrix->cols, true));
    DGI_TRY(dgi_take_choice(&j.choice, choice, scale->dtype));
    DGI_TRY(check_column_weights(column_weights, matrix->cols));
    if (quality != NULL)
        DGI_TRY(dgi_take(&result, sizeof result, sizeof result, quality, "quality"));
    dg_device_info device;
    DGI_TRY(dg_get_device_info(context, &device));
    j.threads = device.units;
    j.bits = j.choice.method == DG_METHOD_KL ? KL_BITS : DGI_MAX_BITS;

    int64_t blocks = scale->rows * scale->cols;
    chosen *results = calloc((size_t)blocks + 1, sizeof *results);
    if (results == NULL)
        return dgi_no_memory("choosing scales");
    dg_status status =
        blocks < FEW_BLOCKS ? choose_few(&j, blocks, results) : choose_many(&j, blocks, results);
    if (status == DG_OK) {
        dgi_damage all = take_results(scale, results);
        dgi_damage_report(&all, &result);
        if (quality != NULL)
            *quality = result;
    }
    free(results);
    return status;
}
