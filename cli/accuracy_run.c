/* SPDX-License-Identifier: MIT */
/* The runs behind `deepgemm accuracy`: in 16 bits, and in FP8 with each method's scales. */
#include "accuracy.h"

#include <math.h>
#include <stdlib.h>

const accuracy_scales accuracy_all_scales[accuracy_scales_count] = {
    {.name = "tensor . tensor, static", .fixed = true},
    {.name = "token . channel", .weight_rows = 1},
    {.name = "1x128 . 128x128", .weight_rows = 128, .weight_cols = 128, .input_cols = 128},
    {.name = "1x32 . 32x32", .weight_rows = 32, .weight_cols = 32, .input_cols = 32},
    {.name = "1x32 . 1x32, UE8M0",
     .weight_rows = 1,
     .weight_cols = 32,
     .input_cols = 32,
     .pow2 = true},
};

/* 99.99 per cent of fewer than 10,000 values are all of them: the same as absmax. */
const accuracy_method accuracy_methods[accuracy_method_count] = {
    {.name = "absmax", .method = DG_METHOD_AMAX},
    {.name = "percentile", .method = DG_METHOD_PERCENTILE, .least_values = 10000},
    {.name = "MSE", .method = DG_METHOD_MSE},
    {.name = "MSE, weighted", .method = DG_METHOD_MSE, .weighted = true},
    {.name = "KL", .method = DG_METHOD_KL},
    {.name = "absmax, smoothed", .method = DG_METHOD_AMAX, .smoothed = true},
};

bool accuracy_has(int row, int method)
{
    const accuracy_scales *scales = &accuracy_all_scales[row];
    const int64_t many = INT16_MAX; /* rows or columns, where a scale is for all */
    int64_t rows = scales->weight_rows > 0 ? scales->weight_rows : many;
    int64_t cols = scales->weight_cols > 0 ? scales->weight_cols : many;
    bool whole_row = scales->weight_rows == 1 && scales->weight_cols == 0;
    const int64_t row_values = 1024; /* about what a row of a small model has */
    return (whole_row ? row_values : rows * cols) >= accuracy_methods[method].least_values;
}

/* Rows of a batch: many, since each product copies its weights first. */
enum { batch_rows = 2048 };
/* Tokens by which the strength of smoothing is chosen. */
enum { sample_rows = 128 };

static int layer_count(const accuracy *a)
{
    return a->model.block_count * LLAMA_BLOCK_KINDS;
}

static int layer_index(int block, llama_kind kind)
{
    return kind == LLAMA_HEAD ? block * LLAMA_BLOCK_KINDS : block * LLAMA_BLOCK_KINDS + (int)kind;
}

/* ---- 16 bits ------------------------------------------------------------------------- */

static void product_wide(void *user, int block, llama_kind kind, const dg_matrix *x,
                         const dg_matrix *y)
{
    const accuracy *a = user;
    layer_multiply_wide(a->peer, x, &a->wide[layer_index(block, kind)], y);
}

static void product_observed(void *user, int block, llama_kind kind, const dg_matrix *x,
                             const dg_matrix *y)
{
    const accuracy *a = user;
    char *name = llama_layer_name(block, kind);
    cli_check(dg_statistics_observe(a->context, a->statistics, name, x), "observing activations");
    free(name);
    dg_matrix *sample = &a->samples[layer_index(block, kind)];
    if (sample->data == NULL) {
        dg_matrix first = *x;
        first.rows = first.rows < sample_rows ? first.rows : sample_rows;
        *sample = layer_widen(&first); /* a copy */
    }
    product_wide(user, block, kind, x, y);
}

void accuracy_calibrate(accuracy *a)
{
    int layers = layer_count(a);
    a->wide = cli_alloc((size_t)(layers + 1) * sizeof *a->wide);
    for (int i = 0; i < layers; i++)
        a->wide[i] =
            layer_widen(&a->model.blocks[i / LLAMA_BLOCK_KINDS].linear[i % LLAMA_BLOCK_KINDS]);
    a->wide[layers] = layer_widen(&a->model.head);

    a->samples = cli_alloc((size_t)layers * sizeof *a->samples);
    cli_check(dg_statistics_create(&a->statistics, NULL), "making statistics");
    const llama_text *text = &a->calibration;
    int64_t batch = batch_rows / text->tokens > 0 ? batch_rows / text->tokens : 1;
    for (int64_t first = 0; first < text->sequences; first += batch) {
        int64_t count = text->sequences - first < batch ? text->sequences - first : batch;
        llama_forward(&a->model, text->ids + first * text->tokens, count, text->tokens,
                      product_observed, a, NULL);
    }
}

/* ---- FP8 ----------------------------------------------------------------------------- */

typedef struct fp8_layer {
    dg_weights *weights; /* packed */
    layer_activations activations;
    float *factors; /* [K], what activations are divided by first; or NULL */
} fp8_layer;

/* A model of a cell. */
typedef struct fp8_model {
    const accuracy *a;
    fp8_layer *layers;
} fp8_model;

/* The mean squares are the sums' multiples, which is all that weights need be. */
static const double *energies(const accuracy *a, const char *layer)
{
    dg_observed observed = DG_OBSERVED_INIT;
    cli_check(dg_statistics_layer(a->statistics, layer, &observed), layer);
    return observed.squares;
}

/* ---- smoothing ----------------------------------------------------------------------- */

/* The layers that meet the same activations: the first of them, and how many there are. */
static llama_kind first_of_group(llama_kind kind, int *count)
{
    *count = kind <= LLAMA_V ? 3 : kind == LLAMA_GATE || kind == LLAMA_UP ? 2 : 1;
    return kind <= LLAMA_V ? LLAMA_Q : kind == LLAMA_UP ? LLAMA_GATE : kind;
}

/*
 * The factors of a layer's activations. What comes before can be scaled by them: a norm, the rows
 * of up_proj, or those of v_proj, of which each makes a feature of several query heads.
 */
static float *smoothing_factors(const accuracy *a, int index, const accuracy_scales *scales)
{
    int block = index / LLAMA_BLOCK_KINDS, count;
    llama_kind kind = index % LLAMA_BLOCK_KINDS, first = first_of_group(kind, &count);
    int64_t k = a->wide[index].cols, d = a->model.head_dim;
    int32_t *channels = cli_alloc((size_t)k * sizeof *channels);
    for (int64_t i = 0; i < k; i++)
        channels[i] = (int32_t)(i / d * a->model.kv_heads / a->model.heads * d + i % d);

    char *name = llama_layer_name(block, first);
    dg_observed observed = DG_OBSERVED_INIT;
    cli_check(dg_statistics_layer(a->statistics, name, &observed), name);
    dg_smooth smooth = DG_SMOOTH_INIT;
    smooth.x = a->samples[layer_index(block, first)];
    smooth.weights = &a->wide[layer_index(block, first)];
    smooth.weight_count = count;
    smooth.amaxes = observed.amaxes;
    smooth.channels = kind == LLAMA_O ? channels : NULL;
    smooth.x_block_rows = scales->fixed ? 0 : 1;
    smooth.x_block_cols = scales->input_cols;
    smooth.weight_block_rows = scales->weight_rows;
    smooth.weight_block_cols = scales->weight_cols;
    float *factors = cli_alloc((size_t)k * sizeof *factors);
    cli_check(dg_smooth_choose(a->context, &smooth, factors, NULL), name);
    free(name);
    free(channels);
    return factors;
}

/* x / factors, or x * factors: both exact, since factors are powers of two. */
static dg_matrix scale_columns(const dg_matrix *x, const float *factors, bool divide)
{
    dg_matrix scaled = layer_new(x->rows, x->cols);
    const float *from = x->data;
    float *to = scaled.data;
#pragma omp parallel for
    for (int64_t row = 0; row < x->rows; row++)
        for (int64_t i = 0; i < x->cols; i++)
            to[row * x->cols + i] = divide ? from[row * x->cols + i] / factors[i]
                                           : from[row * x->cols + i] * factors[i];
    return scaled;
}

/* One scale for activations that are smoothed first: that of their absmax. */
static float smoothed_scale(const accuracy *a, const char *layer, const float *factors)
{
    const float largest_code = 448.0f;
    dg_observed observed = DG_OBSERVED_INIT;
    cli_check(dg_statistics_layer(a->statistics, layer, &observed), layer);
    float amax = 0.0f;
    for (int64_t i = 0; i < observed.features; i++)
        amax = fmaxf(amax, observed.amaxes[i] / factors[i]);
    return amax > 0.0f ? amax / largest_code : 1.0f;
}

/* ---- layers -------------------------------------------------------------------------- */

static fp8_layer make_layer(const accuracy *a, int index, const accuracy_scales *scales,
                            const accuracy_method *method)
{
    char *name = llama_layer_name(index / LLAMA_BLOCK_KINDS, index % LLAMA_BLOCK_KINDS);
    fp8_layer layer = {.activations = {.cols = scales->input_cols, .pow2 = scales->pow2}};
    dg_matrix smoothed = {0};
    const dg_matrix *wide = &a->wide[index];
    if (method->smoothed) {
        layer.factors = smoothing_factors(a, index, scales);
        smoothed = scale_columns(&a->wide[index], layer.factors, false);
        wide = &smoothed;
    }
    dg_scale_choice choice = DG_SCALE_CHOICE_INIT;
    choice.method = method->method;
    choice.percentile = a->percentile;
    choice.rounding = scales->pow2 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;

    layer_codes w =
        layer_codes_new(wide->rows, wide->cols, scales->weight_rows, scales->weight_cols);
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = *wide;
    quantize.output = w.codes;
    quantize.scale = w.scale;
    quantize.rounding = choice.rounding;
    if (method->method != DG_METHOD_AMAX) { /* which is what the quantiser does by itself */
        const double *weights = method->weighted ? energies(a, name) : NULL;
        cli_check(dg_scale_choose(a->context, wide, &choice, weights, &w.scale, NULL), name);
        quantize.source = DG_SCALE_GIVEN;
    }
    cli_check(dg_quantize_run(a->context, &quantize, NULL), name);
    cli_check(dg_weights_pack(a->context, &w.codes, &w.scale, NULL, 0, NULL, &layer.weights), name);

    if (scales->fixed && method->smoothed) {
        layer.activations.fixed = smoothed_scale(a, name, layer.factors);
    } else if (scales->fixed) {
        dg_scale fixed =
            dg_scale_of(&layer.activations.fixed, DG_F32, a->text.tokens, wide->cols, 0, 0);
        cli_check(dg_statistics_choose(a->statistics, name, &choice, &fixed, NULL), name);
    }
    free(smoothed.data);
    layer_codes_free(&w);
    free(name);
    return layer;
}

static void product_fp8(void *user, int block, llama_kind kind, const dg_matrix *x,
                        const dg_matrix *y)
{
    const fp8_model *model = user;
    const accuracy *a = model->a;
    if (kind == LLAMA_HEAD) {
        layer_multiply_wide(a->peer, x, &a->wide[layer_index(block, kind)], y);
        return;
    }
    const fp8_layer *layer = &model->layers[layer_index(block, kind)];
    dg_matrix smoothed = {0};
    if (layer->factors != NULL)
        smoothed = scale_columns(x, layer->factors, true);
    layer_codes x8 = layer_quantize_activations(a->context, &layer->activations,
                                                layer->factors != NULL ? &smoothed : x, NULL);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = x8.codes;
    gemm.scale_a = x8.scale;
    gemm.weights = layer->weights;
    gemm.d = *y;
    cli_check(dg_gemm_run(a->context, &gemm, NULL), "multiplying");
    layer_codes_free(&x8);
    free(smoothed.data);
}

/* ---- a row --------------------------------------------------------------------------- */

static void run_batch(accuracy *a, int row, fp8_model models[accuracy_method_count], int64_t first,
                      int64_t count, cli_progress *progress)
{
    int64_t tokens = a->text.tokens, vocabulary = a->model.vocabulary;
    const int32_t *ids = a->text.ids + first * tokens;
    dg_matrix wide = layer_new(count * tokens, vocabulary);
    dg_matrix fp8 = layer_new(count * tokens, vocabulary);
    llama_forward(&a->model, ids, count, tokens, product_wide, a, wide.data);
    predict_reference reference = predict_reference_new(ids, count, tokens, &wide);
    for (int m = 0; m < accuracy_method_count; m++) {
        if (models[m].layers == NULL)
            continue;
        llama_forward(&a->model, ids, count, tokens, product_fp8, &models[m], fp8.data);
        predict_add(&a->cells[row][m].result, &reference, &fp8);
        cli_progress_update(progress, (double)(first + count));
    }
    predict_reference_free(&reference);
    free(wide.data);
    free(fp8.data);
}

void accuracy_run_row(accuracy *a, int row)
{
    const accuracy_scales *scales = &accuracy_all_scales[row];
    fp8_model models[accuracy_method_count] = {{0}};
    int layers = layer_count(a), open = 0;
    for (int m = 0; m < accuracy_method_count; m++)
        if (a->wanted[row][m] && !a->cells[row][m].done) {
            open++;
            a->cells[row][m].result = (predict)PREDICT_INIT;
            models[m] = (fp8_model){a, cli_alloc((size_t)layers * sizeof(fp8_layer))};
            for (int i = 0; i < layers; i++)
                models[m].layers[i] = make_layer(a, i, scales, &accuracy_methods[m]);
        }
    if (open == 0)
        return;

    int64_t batch = batch_rows / a->text.tokens > 0 ? batch_rows / a->text.tokens : 1;
    cli_progress progress = cli_progress_start(scales->name, (double)a->text.sequences);
    for (int64_t first = 0; first < a->text.sequences; first += batch) {
        int64_t left = a->text.sequences - first;
        run_batch(a, row, models, first, left < batch ? left : batch, &progress);
    }
    cli_progress_end(&progress);
    for (int m = 0; m < accuracy_method_count; m++) {
        a->cells[row][m].done = a->cells[row][m].done || a->wanted[row][m];
        for (int i = 0; models[m].layers != NULL && i < layers; i++) {
            dg_weights_destroy(models[m].layers[i].weights);
            free(models[m].layers[i].factors);
        }
        free(models[m].layers);
    }
}
