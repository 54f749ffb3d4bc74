/* SPDX-License-Identifier: MIT */
/* One linear layer in 16 bits and in FP8: see layer.h. */
#include "layer.h"

#include "bench.h"

#include <math.h>
#include <stdlib.h>

dg_matrix layer_new(int64_t rows, int64_t cols)
{
    return dg_matrix_of(cli_alloc((size_t)(rows * cols) * sizeof(float)), DG_F32, rows, cols);
}

dg_matrix layer_widen(const dg_matrix *matrix)
{
    dg_matrix wide = layer_new(matrix->rows, matrix->cols);
    cli_check(dg_convert(matrix->data, matrix->dtype, wide.data, DG_F32,
                         matrix->rows * matrix->cols, DG_SATURATE),
              "widening a matrix");
    return wide;
}

const float layer_outlier_gain = 20.0f;

void layer_fill_gains(float *gains, int64_t features, uint64_t seed)
{
    const float rare = 2.5f; /* standard deviations */
    bench_fill_values(gains, features, BENCH_RANDOM, seed);
    for (int64_t i = 0; i < features; i++)
        gains[i] = fabsf(gains[i]) > rare ? layer_outlier_gain : 1.0f;
}

layer_codes layer_codes_new(int64_t rows, int64_t cols, int32_t block_rows, int32_t block_cols)
{
    layer_codes q = {
        .codes = dg_matrix_of(cli_alloc((size_t)(rows * cols)), DG_E4M3, rows, cols),
        .scale = dg_scale_of(NULL, DG_F32, rows, cols, block_rows, block_cols),
    };
    q.scale.data = cli_alloc((size_t)(q.scale.rows * q.scale.cols) * sizeof(float));
    return q;
}

void layer_codes_free(layer_codes *matrix)
{
    free(matrix->codes.data);
    free(matrix->scale.data);
}

void layer_quantize(dg_context *context, const dg_matrix *wide, const layer_codes *quantized)
{
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = *wide;
    quantize.output = quantized->codes;
    quantize.scale = quantized->scale;
    cli_check(dg_quantize_run(context, &quantize, NULL), "quantising");
}

layer_codes layer_quantize_activations(dg_context *context, const layer_activations *how,
                                       const dg_matrix *x, dg_quantize_counts *counts)
{
    bool fixed = how->fixed > 0.0f;
    layer_codes x8 = layer_codes_new(x->rows, x->cols, fixed ? 0 : 1, fixed ? 0 : how->cols);
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = *x;
    quantize.output = x8.codes;
    quantize.scale = x8.scale;
    quantize.counts = counts;
    if (fixed) {
        *(float *)x8.scale.data = how->fixed;
        quantize.source = DG_SCALE_GIVEN;
    } else if (how->pow2) {
        quantize.rounding = DG_SCALE_POW2_UP;
    }
    cli_check(dg_quantize_run(context, &quantize, NULL), "quantising activations");
    return x8;
}

dg_matrix layer_dequantize(dg_context *context, const dg_matrix *codes, const dg_scale *scale)
{
    dg_dequantize dequantize = DG_DEQUANTIZE_INIT;
    dequantize.input = *codes;
    dequantize.scale = *scale;
    dequantize.output = layer_new(codes->rows, codes->cols);
    cli_check(dg_dequantize_run(context, &dequantize, NULL), "dequantising");
    return dequantize.output;
}

void layer_multiply_exact(const dg_matrix *x, const dg_matrix *w, double *sums)
{
    const float *a = x->data, *b = w->data;
#pragma omp parallel for
    for (int64_t n = 0; n < w->rows; n++)
        for (int64_t m = 0; m < x->rows; m++) {
            double sum = 0.0;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < x->cols; k++)
                sum += (double)a[m * x->cols + k] * b[n * x->cols + k];
            sums[m * w->rows + n] = sum;
        }
}

/* ---- the 16-bit product -------------------------------------------------------------- */

static const char *loop_open(int threads, const char *isa)
{
    (void)threads, (void)isa;
    return NULL;
}

static const char *loop_about(void)
{
    return "a plain loop in C (OpenBLAS was not found)";
}

static void *loop_prepare(const bench_product *product)
{
    bench_product *prepared = cli_alloc(sizeof *prepared);
    *prepared = *product;
    return prepared;
}

static void loop_run(void *prepared, int64_t index)
{
    (void)index;
    const bench_product *p = prepared;
#pragma omp parallel for
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t m = 0; m < p->m; m++) {
            const float *a = p->a + m * p->k, *b = p->b + n * p->k;
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int64_t k = 0; k < p->k; k++)
                sum += a[k] * b[k];
            ((float *)p->d)[m * p->n + n] = sum;
        }
}

static const bench_peer plain_loop = {"plain_loop", DG_F32,   loop_open, loop_about,
                                      loop_prepare, loop_run, free};

const bench_peer *layer_wide_peer(const dg_context *context)
{
    dg_device_info device;
    cli_check(dg_get_device_info(context, &device), "asking for the processor");
    return bench_openblas_sgemm.open(device.units, device.architecture) == NULL
               ? &bench_openblas_sgemm
               : &plain_loop;
}

double layer_time_wide(const bench_peer *peer, const dg_matrix *x, const dg_matrix *w,
                       const dg_matrix *y, double seconds)
{
    const bench_product product = {x->rows, w->rows, w->cols, x->data, w->data, 1, y->data};
    void *prepared = peer->prepare(&product);
    if (prepared == NULL) { /* OpenBLAS's sgemm is not offered a single row */
        peer = &plain_loop;
        prepared = peer->prepare(&product);
    }
    peer->run(prepared, 0);
    double median = seconds > 0 ? bench_measure_once(peer->run, prepared, seconds).median : 0.0;
    peer->release(prepared);
    return median;
}

void layer_multiply_wide(const bench_peer *peer, const dg_matrix *x, const dg_matrix *w,
                         const dg_matrix *y)
{
    layer_time_wide(peer, x, w, y, 0.0);
}

void layer_add_metrics(cJSON *object, const dg_comparison *comparison)
{
    cJSON_AddNumberToObject(object, "relative_error", comparison->relative_error);
    cJSON_AddNumberToObject(object, "snr_db", comparison->snr_db);
    cJSON_AddNumberToObject(object, "cosine", comparison->cosine);
    cJSON_AddNumberToObject(object, "max_error", comparison->max_error);
    cJSON_AddNumberToObject(object, "mean_error", comparison->mean_error);
    cJSON_AddNumberToObject(object, "nan", (double)comparison->result_nan);
    cJSON_AddNumberToObject(object, "inf", (double)comparison->result_inf);
    cJSON_AddNumberToObject(object, "spoiled", (double)comparison->spoiled);
    cJSON_AddNumberToObject(object, "reference_nan", (double)comparison->reference_nan);
    cJSON_AddNumberToObject(object, "reference_inf", (double)comparison->reference_inf);
}

void layer_add_counts(cJSON *object, const dg_quantize_counts *counts)
{
    cJSON_AddNumberToObject(object, "saturated", (double)counts->saturated);
    cJSON_AddNumberToObject(object, "underflow", (double)counts->underflow);
    cJSON_AddNumberToObject(object, "non_finite", (double)counts->non_finite);
}
