/* SPDX-License-Identifier: MIT */
/* One layer of two checkpoints: its weights, and its outputs on the same activations. */
#include "compare.h"

#include "bench.h"

#include <stdlib.h>
#include <string.h>

/* A layer is worked on in slabs of rows, so that memory stays bounded whatever its size. */
enum { slab_rows = 2048 };

static bool is_fp8(dg_dtype dtype)
{
    return dtype == DG_E4M3 || dtype == DG_E5M2;
}

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
    if (!is_fp8(w->weight.dtype))
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
    dg_dequantize dequantize = DG_DEQUANTIZE_INIT;
    dequantize.input = rows;
    dequantize.scale = scales_of(w, scales, first, count);
    dequantize.output = layer_new(rows.rows, rows.cols);
    cli_check(dg_dequantize_run(job->context, &dequantize, NULL), w->weight.name);
    return dequantize.output;
}

/* ---- activations --------------------------------------------------------------------- */

/* The layer's name: the weight's without ".weight". */
static char *layer_name(const char *weight)
{
    const char *end = ".weight";
    size_t length = strlen(weight), cut = strlen(end);
    bool has_end = length > cut && strcmp(weight + length - cut, end) == 0;
    return cli_format("%.*s", (int)(has_end ? length - cut : length), weight);
}

/* Data is NULL where the file has none for this layer. */
static dg_matrix given_inputs(const compare_job *job, const char *weight, int64_t k)
{
    char *name = layer_name(weight);
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

/* ---- the layer ----------------------------------------------------------------------- */

static void compare_outputs(const compare_job *job, const dg_stored_weight *result, float *scales,
                            int64_t first, const dg_matrix *x, const layer_codes *x8,
                            const dg_matrix *w16, dg_comparison *output)
{
    dg_matrix y16 = layer_new(x->rows, w16->rows), y8 = layer_new(x->rows, w16->rows);
    layer_multiply_wide(job->peer, x, w16, &y16);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = x8->codes;
    gemm.scale_a = x8->scale;
    gemm.b = rows_of(&result->weight, first, w16->rows);
    gemm.scale_b = scales_of(result, scales, first, w16->rows);
    gemm.d = y8;
    cli_check(dg_gemm_run(job->context, &gemm, NULL), result->weight.name);
    cli_check(dg_compare(&y16, &y8, output), result->weight.name);
    free(y16.data);
    free(y8.data);
}

compare_row compare_layer(const compare_job *job, const dg_stored_weight *result)
{
    const char *name = result->weight.name;
    int64_t n = result->weight.shape[0], k = result->weight.shape[1];
    dg_stored_weight reference;
    cli_check(dg_checkpoint_weight(job->reference, name, false, &reference), "the reference");
    if (reference.weight.shape[0] != n || reference.weight.shape[1] != k)
        cli_die("%s is %lld x %lld in the reference and %lld x %lld in the result", name,
                (long long)reference.weight.shape[0], (long long)reference.weight.shape[1],
                (long long)n, (long long)k);

    compare_row row = {
        .name = name, .n = n, .k = k, .weight = DG_COMPARISON_INIT, .output = DG_COMPARISON_INIT};
    float *reference_scales = read_scales(&reference), *result_scales = read_scales(result);
    dg_matrix x = job->inputs != NULL ? given_inputs(job, name, k)
                                      : sampled_inputs(job, k, seed_of(job, name));
    row.has_output = x.rows > 0;
    layer_codes x8 = {0};
    if (row.has_output) { /* a token has scales of its own, as wide as the weight's blocks */
        x8 = layer_codes_new(x.rows, k, 1, result->block_cols);
        layer_quantize(job->context, &x, &x8);
    }
    for (int64_t first = 0; first < n; first += slab_rows) {
        int64_t count = n - first < slab_rows ? n - first : slab_rows;
        dg_matrix w16 = widen(job, &reference, reference_scales, first, count);
        dg_matrix w8 = widen(job, result, result_scales, first, count);
        cli_check(dg_compare(&w16, &w8, &row.weight), name);
        if (row.has_output)
            compare_outputs(job, result, result_scales, first, &x, &x8, &w16, &row.output);
        free(w16.data);
        free(w8.data);
    }
    layer_codes_free(&x8);
    free(x.data);
    free(reference_scales);
    free(result_scales);
    return row;
}
