/* SPDX-License-Identifier: MIT */
/* One layer of two checkpoints: its weights, and its outputs on the same activations. */
#include "compare.h"

#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A layer is worked on in slabs of rows, so that memory stays bounded whatever its size. */
enum { slab_rows = 2048 };

/* Rows first .. first + count of a stored weight, where they lie. */
static dg_matrix rows_of(const dg_tensor *weight, int64_t first, int64_t count)
{
    int64_t k = weight->shape[1];
    char *data = (char *)weight->data + (size_t)(first * k) * dg_dtype_bytes(weight->dtype);
    return dg_matrix_of(data, weight->dtype, count, k);
}

/* All scales of a stored weight as F32; NULL where it has none. */
static float *read_scales(const dg_stored_weight *w)
{
    if (!cli_is_fp8(w->weight.dtype))
        return NULL;
    float *scales = cli_alloc((size_t)w->scale.elements * sizeof *scales);
    cli_check(
        dg_convert(w->scale.data, w->scale.dtype, scales, DG_F32, w->scale.elements, DG_SATURATE),
        w->scale.name);
    return scales;
}

/* The scales of those rows: a slab may begin inside a block. */
static dg_scale scales_of(const dg_stored_weight *w, float *scales, int64_t first, int64_t count)
{
    dg_scale s = dg_scale_of(scales, DG_F32, w->weight.shape[0], w->weight.shape[1], w->block_rows,
                             w->block_cols);
    if (s.block_rows > 0) {
        s.data = scales + first / s.block_rows * s.row_stride;
        s.row_phase = (int32_t)(first % s.block_rows);
    }
    s.rows = dg_scale_count(count, s.block_rows, s.row_phase);
    return s;
}

/* Rows of a stored weight as F32. */
static dg_matrix widen(const compare_job *job, const dg_stored_weight *w, float *scales,
                       int64_t first, int64_t count)
{
    dg_matrix rows = rows_of(&w->weight, first, count);
    if (scales == NULL)
        return layer_widen(&rows);
    dg_scale scale = scales_of(w, scales, first, count);
    return layer_dequantize(job->context, &rows, &scale);
}

static void scale_columns(const dg_matrix *m, const float *gains, bool divide)
{
    float *x = m->data;
    for (int64_t i = 0; i < m->rows * m->cols; i++)
        x[i] = divide ? x[i] / gains[i % m->cols] : x[i] * gains[i % m->cols];
}

static dg_matrix copy_of(const dg_matrix *m)
{
    dg_matrix copy = layer_new(m->rows, m->cols);
    memcpy(copy.data, m->data, (size_t)(m->rows * m->cols) * sizeof(float));
    return copy;
}

/* ---- activations --------------------------------------------------------------------- */

/* The layer's name: the weight's without ".weight"; with `end` in its place. */
static char *layer_name(const char *weight, const char *end)
{
    const char *usual = ".weight";
    size_t length = strlen(weight), cut = strlen(usual);
    bool has_end = length > cut && strcmp(weight + length - cut, usual) == 0;
    return cli_format("%.*s%s", (int)(has_end ? length - cut : length), weight, end);
}

/* Data is NULL where the file has none for this layer. */
static dg_matrix given_inputs(const compare_job *job, const char *weight, int64_t k)
{
    char *name = layer_name(weight, "");
    dg_tensor x;
    dg_status status = dg_checkpoint_find(job->inputs, name, &x);
    if (status == DG_NOT_FOUND) {
        free(name);
        return dg_matrix_of(NULL, DG_F32, 0, k);
    }
    cli_check(status, name);
    if (x.rank == 0 || x.shape[x.rank - 1] != k)
        cli_die("the inputs of %s have rows of %lld features, its weight takes %lld", name,
                (long long)(x.rank == 0 ? 1 : x.shape[x.rank - 1]), (long long)k);
    free(name);
    dg_matrix stored = dg_matrix_of((void *)x.data, x.dtype, k == 0 ? 0 : x.elements / k, k);
    return layer_widen(&stored);
}

/* Normally distributed, with features that are outliers for every token. */
static dg_matrix sampled_inputs(const compare_job *job, int64_t k, uint64_t seed)
{
    dg_matrix x = layer_new(job->tokens, k);
    float *values = x.data, *gains = cli_alloc((size_t)k * sizeof *gains);
    bench_fill_values(values, job->tokens * k, BENCH_RANDOM, seed);
    layer_fill_gains(gains, k, ~seed);
    for (int64_t i = 0; i < job->tokens * k; i++)
        values[i] *= gains[i % k];
    free(gains);
    return x;
}

/* FNV-1a: a seed of its own for each layer, whatever the order. */
static uint64_t seed_of(const compare_job *job, const char *name)
{
    uint64_t hash = 0xCBF29CE484222325u ^ job->seed;
    for (; *name != '\0'; name++)
        hash = (hash ^ (unsigned char)*name) * 0x100000001B3u;
    return hash;
}

/* The static scale of the layer's activations; 0 where they are quantised dynamically. */
static float static_scale(const compare_job *job, const char *weight)
{
    char *name = layer_name(weight, ".input_scale");
    dg_tensor tensor;
    float scale = 0.0f;
    if (dg_checkpoint_find(job->result, name, &tensor) == DG_OK) {
        if (tensor.elements != 1)
            cli_die("%s has %lld elements, one for all activations is needed", name,
                    (long long)tensor.elements);
        cli_check(dg_checkpoint_read(job->result, name, DG_F32, &scale, sizeof scale), name);
        if (!(scale > 0.0f) || isinf(scale))
            cli_die("%s is %g, not a scale", name, (double)scale);
    }
    free(name);
    return scale;
}

/*
 * As a server does it: with the checkpoint's scale where it has one, or else each token with scales
 * of its own, as wide as the weight's blocks and of the weight's kind.
 */
static layer_codes quantize_inputs(const compare_job *job, const dg_stored_weight *result,
                                   const dg_matrix *x, dg_quantize_counts *counts)
{
    const layer_activations how = {
        .fixed = static_scale(job, result->weight.name),
        .cols = result->block_cols,
        .pow2 = result->scale.dtype == DG_UE8M0,
    };
    return layer_quantize_activations(job->context, &how, x, counts);
}

/* ---- causes -------------------------------------------------------------------------- */

const char *const compare_cause_names[COMPARE_CAUSES] = {"weights", "activations", "accumulation"};

double compare_cause_error(const compare_row *row, compare_cause cause)
{
    double size = row->output.reference_squares;
    return size > 0.0 ? sqrt(row->causes[cause].squares / size) : 0.0;
}

double compare_cause_share(const compare_row *row, compare_cause cause)
{
    double error = row->output.error_squares;
    return error > 0.0 ? row->causes[cause].along / error : 0.0;
}

/* x and its dequantised twin: their mean and their difference. */
typedef struct twins {
    dg_matrix mean, change;
} twins;

static twins twins_of(const dg_matrix *x, const dg_matrix *x8)
{
    twins t = {layer_new(x->rows, x->cols), layer_new(x->rows, x->cols)};
    const float *a = x->data, *b = x8->data;
    float *mean = t.mean.data, *change = t.change.data;
    for (int64_t i = 0; i < x->rows * x->cols; i++) {
        mean[i] = 0.5f * (a[i] + b[i]);
        change[i] = b[i] - a[i];
    }
    return t;
}

static void twins_free(twins *t)
{
    free(t->mean.data);
    free(t->change.data);
}

static void add_part(compare_part *part, double value, double error)
{
    part->squares += value * value;
    part->along += value * error;
}

/* Adds a slab's products to the causes; what is not finite has no cause that adds up. */
static void find_causes(const compare_job *job, const twins *x, const dg_matrix *x8,
                        const dg_matrix *w16, const dg_matrix *w8, const dg_matrix *y16,
                        const dg_matrix *y8, compare_part causes[COMPARE_CAUSES])
{
    twins w = twins_of(w16, w8);
    dg_matrix by_weights = layer_new(y16->rows, y16->cols);
    dg_matrix by_inputs = layer_new(y16->rows, y16->cols);
    int64_t count = y16->rows * y16->cols;
    double *exact = cli_alloc((size_t)count * sizeof *exact);
    layer_multiply_wide(job->peer, &x->mean, &w.change, &by_weights);
    layer_multiply_wide(job->peer, &x->change, &w.mean, &by_inputs);
    layer_multiply_exact(x8, w8, exact);
    for (int64_t i = 0; i < count; i++) {
        double result = ((float *)y8->data)[i], error = result - ((float *)y16->data)[i];
        double weights = ((float *)by_weights.data)[i], inputs = ((float *)by_inputs.data)[i];
        if (!isfinite(error) || !isfinite(weights) || !isfinite(inputs) || !isfinite(exact[i]))
            continue;
        add_part(&causes[COMPARE_WEIGHTS], weights, error);
        add_part(&causes[COMPARE_ACTIVATIONS], inputs, error);
        add_part(&causes[COMPARE_ACCUMULATION], result - exact[i], error);
    }
    free(exact);
    free(by_inputs.data);
    free(by_weights.data);
    twins_free(&w);
}

/* ---- the layer ----------------------------------------------------------------------- */

/* What saturates and vanishes when the reference's rows get the result's scales. */
static void count_weights(const compare_job *job, const dg_stored_weight *result, float *scales,
                          int64_t first, const dg_matrix *w16, dg_quantize_counts *sum)
{
    dg_quantize_counts counts = {0};
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = *w16;
    quantize.output = dg_matrix_of(cli_alloc((size_t)(w16->rows * w16->cols)), result->weight.dtype,
                                   w16->rows, w16->cols);
    quantize.scale = scales_of(result, scales, first, w16->rows);
    quantize.source = DG_SCALE_GIVEN;
    quantize.counts = &counts;
    /* A scale that is refused here makes NaN of its block, and is counted as such. */
    if (dg_quantize_run(job->context, &quantize, NULL) == DG_OK) {
        sum->saturated += counts.saturated;
        sum->underflow += counts.underflow;
        sum->non_finite += counts.non_finite;
    }
    free(quantize.output.data);
}

static void multiply_rows(const compare_job *job, const dg_stored_weight *result, float *scales,
                          int64_t first, const layer_codes *x8, const dg_matrix *y)
{
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = x8->codes;
    gemm.scale_a = x8->scale;
    gemm.b = rows_of(&result->weight, first, y->cols);
    gemm.scale_b = scales_of(result, scales, first, y->cols);
    gemm.d = *y;
    cli_check(dg_gemm_run(job->context, &gemm, NULL), result->weight.name);
}

void compare_multiply(const compare_job *job, const dg_stored_weight *result, const dg_matrix *x,
                      const dg_matrix *y)
{
    float *scales = read_scales(result);
    layer_codes x8 = quantize_inputs(job, result, x, NULL);
    multiply_rows(job, result, scales, 0, &x8, y);
    layer_codes_free(&x8);
    free(scales);
}

/* The activations of one layer, in each form that its comparison needs. */
typedef struct inputs {
    dg_matrix x; /* as the result's layer gets them */
    layer_codes x8;
    dg_matrix dequantized;
    twins twins;
} inputs;

static inputs inputs_new(const compare_job *job, const dg_stored_weight *result, dg_matrix x,
                         dg_quantize_counts *counts)
{
    inputs in = {.x = x};
    if (x.rows > 0) {
        in.x8 = quantize_inputs(job, result, &x, counts);
        in.dequantized = layer_dequantize(job->context, &in.x8.codes, &in.x8.scale);
        in.twins = twins_of(&x, &in.dequantized);
    }
    return in;
}

static void inputs_free(inputs *in)
{
    twins_free(&in->twins);
    free(in->dequantized.data);
    layer_codes_free(&in->x8);
    free(in->x.data);
}

/* Puts a slab of columns into the whole product. */
static void put_columns(const dg_matrix *slab, int64_t first, const dg_matrix *whole)
{
    for (int64_t m = 0; m < slab->rows; m++)
        memcpy((float *)whole->data + m * whole->ld + first, (float *)slab->data + m * slab->ld,
               (size_t)slab->cols * sizeof(float));
}

static void compare_outputs(const compare_job *job, const dg_stored_weight *result, float *scales,
                            int64_t first, const inputs *in, const dg_matrix *w16,
                            const dg_matrix *w8, const dg_matrix *y, compare_row *row)
{
    dg_matrix y16 = layer_new(in->x.rows, w16->rows), y8 = layer_new(in->x.rows, w16->rows);
    layer_multiply_wide(job->peer, &in->x, w16, &y16);
    multiply_rows(job, result, scales, first, &in->x8, &y8);
    cli_check(dg_compare(&y16, &y8, &row->output), row->name);
    find_causes(job, &in->twins, &in->dequantized, w16, w8, &y16, &y8, row->causes);
    if (y != NULL)
        put_columns(&y16, first, y);
    free(y16.data);
    free(y8.data);
}

compare_row compare_layer(const compare_job *job, const dg_stored_weight *result,
                          const dg_matrix *x, const float *gains, const dg_matrix *y)
{
    const char *name = result->weight.name;
    int64_t n = result->weight.shape[0], k = result->weight.shape[1];
    dg_stored_weight reference;
    cli_check(dg_checkpoint_weight(job->reference, name, false, &reference), "the reference");
    if (reference.weight.shape[0] != n || reference.weight.shape[1] != k)
        cli_die("%s is %lld x %lld in the reference and %lld x %lld in the result", name,
                (long long)reference.weight.shape[0], (long long)reference.weight.shape[1],
                (long long)n, (long long)k);

    compare_row row = {.name = name,
                       .n = n,
                       .k = k,
                       .is_layer = true,
                       .weight = DG_COMPARISON_INIT,
                       .output = DG_COMPARISON_INIT};
    float *reference_scales = read_scales(&reference), *result_scales = read_scales(result);
    dg_matrix own = x != NULL             ? copy_of(x)
                    : job->inputs != NULL ? given_inputs(job, name, k)
                                          : sampled_inputs(job, k, seed_of(job, name));
    if (gains != NULL)
        scale_columns(&own, gains, false);
    inputs in = inputs_new(job, result, own, &row.input_counts);
    row.has_output = in.x.rows > 0;
    for (int64_t first = 0; first < n; first += slab_rows) {
        int64_t count = n - first < slab_rows ? n - first : slab_rows;
        dg_matrix w16 = widen(job, &reference, reference_scales, first, count);
        dg_matrix w8 = widen(job, result, result_scales, first, count);
        if (gains != NULL)
            scale_columns(&w16, gains, true);
        cli_check(dg_compare(&w16, &w8, &row.weight), name);
        count_weights(job, result, result_scales, first, &w16, &row.weight_counts);
        if (row.has_output)
            compare_outputs(job, result, result_scales, first, &in, &w16, &w8, y, &row);
        free(w16.data);
        free(w8.data);
    }
    inputs_free(&in);
    free(reference_scales);
    free(result_scales);
    return row;
}
