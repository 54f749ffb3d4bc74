/* SPDX-License-Identifier: MIT */
/*
 * Smoothing: dg_smooth_choose(). After Xiao et al., "SmoothQuant" (2022), with factors that are
 * powers of two and a strength that is chosen by the error of the FP8 products themselves.
 */
#include "api/check.h"
#include "core/formats.h"
#include "io/file.h"

#include <math.h>
#include <stdlib.h>

typedef long long ll; /* for printf */

enum { STRENGTHS = 11, CANDIDATES = STRENGTHS + 1 }; /* the first one: no smoothing */
/* The furthest that a factor moves a feature, in octaves: with more, 16-bit weights could overflow.
 */
enum { MOST_OCTAVES = 12 };

typedef struct job {
    dg_context *context;
    const dg_smooth *s;
    int64_t tokens, k, largest_n;
    int32_t threads;
    float *x_amax, *w_amax; /* [k], by channel: the largest of its features */
    float *factors;         /* [CANDIDATES, k] */
    float *x, *x_scaled;    /* [tokens, k] */
    float *w, *w_scaled;    /* [largest_n, k] */
    float *y, *y8;          /* [tokens, largest_n] */
    uint8_t *x_codes, *w_codes;
    float *x_scales, *w_scales;
    double errors[CANDIDATES], squares; /* sums over all weights */
} job;

/* ---- memory -------------------------------------------------------------------------- */

static int64_t scale_count(int64_t rows, int64_t cols, int32_t block_rows, int32_t block_cols)
{
    return dg_scale_count(rows, block_rows, 0) * dg_scale_count(cols, block_cols, 0);
}

/* Memory for so many elements, not NULL for none of them. */
static void *room(int64_t count, size_t element_bytes)
{
    return calloc((size_t)count + 1, element_bytes);
}

static dg_status job_open(job *j)
{
    const dg_smooth *s = j->s;
    int64_t k = j->k, n = j->largest_n, t = j->tokens;
    j->x_amax = room(k, sizeof *j->x_amax);
    j->w_amax = room(k, sizeof *j->w_amax);
    j->factors = room(CANDIDATES * k, sizeof *j->factors);
    j->x = room(t * k, sizeof *j->x);
    j->x_scaled = room(t * k, sizeof *j->x_scaled);
    j->w = room(n * k, sizeof *j->w);
    j->w_scaled = room(n * k, sizeof *j->w_scaled);
    j->y = room(t * n, sizeof *j->y);
    j->y8 = room(t * n, sizeof *j->y8);
    j->x_codes = room(t * k, 1);
    j->w_codes = room(n * k, 1);
    j->x_scales = room(scale_count(t, k, s->x_block_rows, s->x_block_cols), sizeof *j->x_scales);
    j->w_scales =
        room(scale_count(n, k, s->weight_block_rows, s->weight_block_cols), sizeof *j->w_scales);
    bool all = j->x_amax != NULL && j->w_amax != NULL && j->factors != NULL && j->x != NULL &&
               j->x_scaled != NULL && j->w != NULL && j->w_scaled != NULL && j->y != NULL &&
               j->y8 != NULL && j->x_codes != NULL && j->w_codes != NULL && j->x_scales != NULL &&
               j->w_scales != NULL;
    return all ? DG_OK : dgi_no_memory("smoothing");
}

static void job_close(job *j)
{
    void *const memory[] = {j->x_amax,  j->w_amax,   j->factors, j->x,  j->x_scaled,
                            j->w,       j->w_scaled, j->y,       j->y8, j->x_codes,
                            j->w_codes, j->x_scales, j->w_scales};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        free(memory[i]);
}

/* ---- factors ------------------------------------------------------------------------- */

static void widen(const job *j, const dg_matrix *m, float *to)
{
#pragma omp parallel for num_threads(j->threads)
    for (int64_t row = 0; row < m->rows; row++)
        for (int64_t col = 0; col < m->cols; col++)
            to[row * m->cols + col] = dgi_load_f32(m->data, m->dtype, row * m->ld + col);
}

static int64_t channel_of(const job *j, int64_t feature)
{
    return j->s->channels == NULL ? feature : j->s->channels[feature];
}

/* Raises the amax of each feature's channel to that of the matrix's finite values. */
static void raise_amax(const job *j, const float *values, int64_t rows, float *amax)
{
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < j->k; col++) {
            float magnitude = fabsf(values[row * j->k + col]);
            int64_t channel = channel_of(j, col);
            if (dgi_f32_is_finite(magnitude) && magnitude > amax[channel])
                amax[channel] = magnitude;
        }
}

/* The exponents of one strength's factors, around 0. */
static void fill_factors(const job *j, double strength, float *factors)
{
    double sum = 0.0;
    int64_t count = 0;
    for (int64_t col = 0; col < j->k; col++) {
        int64_t channel = channel_of(j, col);
        double x = (double)j->x_amax[channel], w = (double)j->w_amax[channel];
        bool known = x > 0.0 && w > 0.0;
        factors[col] = known ? (float)(strength * log2(x) - (1.0 - strength) * log2(w)) : NAN;
        sum += known ? (double)factors[col] : 0.0;
        count += known;
    }
    double middle = count > 0 ? sum / (double)count : 0.0;
    for (int64_t col = 0; col < j->k; col++) {
        double octaves = isnan(factors[col]) ? 0.0 : rint((double)factors[col] - middle);
        octaves = fmin(fmax(octaves, -MOST_OCTAVES), MOST_OCTAVES);
        factors[col] = (float)exp2(octaves);
    }
}

/* ---- products ------------------------------------------------------------------------ */

static void multiply(const job *j, int64_t n_count)
{
#pragma omp parallel for num_threads(j->threads)
    for (int64_t n = 0; n < n_count; n++)
        for (int64_t t = 0; t < j->tokens; t++) {
            const float *x = j->x + t * j->k, *w = j->w + n * j->k;
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < j->k; i++)
                sum += x[i] * w[i];
            j->y[t * n_count + n] = sum;
        }
}

/* to = from scaled by the factors, or by one over them. */
static void scale_columns(const job *j, const float *from, int64_t rows, const float *factors,
                          bool divide, float *to)
{
#pragma omp parallel for num_threads(j->threads)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < j->k; col++)
            to[row * j->k + col] =
                from[row * j->k + col] * (divide ? 1.0f / factors[col] : factors[col]);
}

static dg_status quantize(const job *j, float *values, int64_t rows, int32_t block_rows,
                          int32_t block_cols, uint8_t *codes, float *scales, dg_matrix *matrix,
                          dg_scale *scale)
{
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(values, DG_F32, rows, j->k);
    *matrix = q.output = dg_matrix_of(codes, DG_E4M3, rows, j->k);
    *scale = q.scale = dg_scale_of(scales, DG_F32, rows, j->k, block_rows, block_cols);
    return dg_quantize_run(j->context, &q, NULL);
}

/* Adds the error of one weight's product with one candidate's factors. */
static dg_status add_error(job *j, int64_t n, int candidate)
{
    const float *factors = j->factors + (int64_t)candidate * j->k;
    const dg_smooth *s = j->s;
    scale_columns(j, j->x, j->tokens, factors, true, j->x_scaled);
    scale_columns(j, j->w, n, factors, false, j->w_scaled);
    dg_gemm gemm = DG_GEMM_INIT;
    DGI_TRY(quantize(j, j->x_scaled, j->tokens, s->x_block_rows, s->x_block_cols, j->x_codes,
                     j->x_scales, &gemm.a, &gemm.scale_a));
    DGI_TRY(quantize(j, j->w_scaled, n, s->weight_block_rows, s->weight_block_cols, j->w_codes,
                     j->w_scales, &gemm.b, &gemm.scale_b));
    gemm.d = dg_matrix_of(j->y8, DG_F32, j->tokens, n);
    DGI_TRY(dg_gemm_run(j->context, &gemm, NULL));
    dg_comparison c = DG_COMPARISON_INIT;
    dg_matrix y = dg_matrix_of(j->y, DG_F32, j->tokens, n);
    DGI_TRY(dg_compare(&y, &gemm.d, &c));
    j->errors[candidate] += c.spoiled > 0 ? INFINITY : c.error_squares;
    j->squares += candidate == 0 ? c.reference_squares : 0.0;
    return DG_OK;
}

/* ---- the whole ----------------------------------------------------------------------- */

static dg_status run(job *j, float *factors, dg_smooth_report *report)
{
    const dg_smooth *s = j->s;
    DGI_TRY(job_open(j));
    widen(j, &s->x, j->x);
    if (s->amaxes == NULL)
        raise_amax(j, j->x, j->tokens, j->x_amax);
    else
        raise_amax(j, s->amaxes, 1, j->x_amax);
    for (int32_t i = 0; i < s->weight_count; i++) {
        widen(j, &s->weights[i], j->w);
        raise_amax(j, j->w, s->weights[i].rows, j->w_amax);
    }
    for (int64_t col = 0; col < j->k; col++)
        j->factors[col] = 1.0f;
    for (int c = 1; c < CANDIDATES; c++)
        fill_factors(j, (double)(c - 1) / (STRENGTHS - 1), j->factors + (int64_t)c * j->k);

    for (int32_t i = 0; i < s->weight_count; i++) {
        int64_t n = s->weights[i].rows;
        if (n == 0)
            continue;
        widen(j, &s->weights[i], j->w);
        multiply(j, n);
        for (int c = 0; c < CANDIDATES; c++)
            DGI_TRY(add_error(j, n, c));
    }
    int best = 0;
    for (int c = 1; c < CANDIDATES; c++)
        if (j->errors[c] < j->errors[best])
            best = c;
    memcpy(factors, j->factors + (int64_t)best * j->k, (size_t)j->k * sizeof *factors);
    double squares = j->squares > 0.0 ? j->squares : 1.0;
    report->strength = best == 0 ? -1.0 : (double)(best - 1) / (STRENGTHS - 1);
    report->error_before = sqrt(j->errors[0] / squares);
    report->error_after = sqrt(j->errors[best] / squares);
    return DG_OK;
}

static dg_status check_blocks(const char *name, int32_t block_rows, int32_t block_cols)
{
    if (block_rows < 0 || block_cols < 0)
        return dgi_fail(DG_UNSUPPORTED_SCALE,
                        "%s_block_rows and _cols are %d and %d: a block size is positive, or 0 for "
                        "all",
                        name, block_rows, block_cols);
    return DG_OK;
}

static dg_status check(const dg_smooth *s)
{
    DGI_TRY(dgi_check_wide(&s->x, "x"));
    if (s->x.rows == 0 || s->x.cols == 0)
        return dgi_fail(DG_INVALID_ARGUMENT, "x is %lld x %lld: a sample is needed", (ll)s->x.rows,
                        (ll)s->x.cols);
    if (s->weights == NULL || s->weight_count < 1)
        return dgi_fail(DG_INVALID_ARGUMENT, "weights are %p, %d of them", (const void *)s->weights,
                        s->weight_count);
    for (int32_t i = 0; i < s->weight_count; i++) {
        DGI_TRY(dgi_check_wide(&s->weights[i], "weights"));
        if (s->weights[i].cols != s->x.cols)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "weights[%d] has %lld columns and x %lld: both need the same K", i,
                            (ll)s->weights[i].cols, (ll)s->x.cols);
    }
    for (int64_t col = 0; col < s->x.cols && s->channels != NULL; col++)
        if (s->channels[col] < 0 || s->channels[col] >= s->x.cols)
            return dgi_fail(DG_INVALID_ARGUMENT, "channels[%lld] is %d: it must be 0 to %lld",
                            (ll)col, s->channels[col], (ll)s->x.cols - 1);
    DGI_TRY(check_blocks("x", s->x_block_rows, s->x_block_cols));
    return check_blocks("weight", s->weight_block_rows, s->weight_block_cols);
}

dg_status dg_smooth_choose(dg_context *context, const dg_smooth *smooth, float *factors,
                           dg_smooth_report *report)
{
    dg_smooth complete = DG_SMOOTH_INIT;
    dg_smooth_report result = DG_SMOOTH_REPORT_INIT;
    DGI_TRY(dgi_check_cpu_context(context, "smoothing is chosen"));
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, smooth, "smooth"));
    DGI_TRY(check(&complete));
    if (factors == NULL)
        return dgi_fail(DG_INVALID_ARGUMENT, "factors is NULL");
    if (report != NULL)
        DGI_TRY(dgi_take(&result, sizeof result, sizeof result, report, "report"));
    dg_device_info device;
    DGI_TRY(dg_get_device_info(context, &device));
    job j = {.context = context,
             .s = &complete,
             .tokens = complete.x.rows,
             .k = complete.x.cols,
             .threads = device.units};
    for (int32_t i = 0; i < complete.weight_count; i++)
        if (complete.weights[i].rows > j.largest_n)
            j.largest_n = complete.weights[i].rows;
    dg_status status = run(&j, factors, &result);
    job_close(&j);
    if (status == DG_OK && report != NULL)
        *report = result;
    return status;
}
