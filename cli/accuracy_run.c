/* SPDX-License-Identifier: MIT */
/* The runs behind `deepgemm accuracy`: in 16 bits, and in FP8 with each method's scales. */
#include "accuracy.h"

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

/* 99.99 per cent of fewer than 10,000 values are all of them; a divergence of 32 says nothing. */
const accuracy_method accuracy_methods[accuracy_method_count] = {
    {"absmax", DG_METHOD_AMAX, false, 0}, {"percentile", DG_METHOD_PERCENTILE, false, 10000},
    {"MSE", DG_METHOD_MSE, false, 0},     {"MSE, weighted", DG_METHOD_MSE, true, 0},
    {"KL", DG_METHOD_KL, false, 256},
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

static fp8_layer make_layer(const accuracy *a, int index, const accuracy_scales *scales,
                            const accuracy_method *method)
{
    char *name = llama_layer_name(index / LLAMA_BLOCK_KINDS, index % LLAMA_BLOCK_KINDS);
    const dg_matrix *wide = &a->wide[index];
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

    fp8_layer layer = {.activations = {.cols = scales->input_cols, .pow2 = scales->pow2}};
    if (scales->fixed) {
        dg_scale fixed =
            dg_scale_of(&layer.activations.fixed, DG_F32, a->text.tokens, wide->cols, 0, 0);
        cli_check(dg_statistics_choose(a->statistics, name, &choice, &fixed, NULL), name);
    }
    cli_check(dg_weights_pack(a->context, &w.codes, &w.scale, NULL, 0, NULL, &layer.weights), name);
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
    layer_codes x8 = layer_quantize_activations(a->context, &layer->activations, x, NULL);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = x8.codes;
    gemm.scale_a = x8.scale;
    gemm.weights = layer->weights;
    gemm.d = *y;
    cli_check(dg_gemm_run(a->context, &gemm, NULL), "multiplying");
    layer_codes_free(&x8);
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
        if (accuracy_has(row, m) && !a->cells[row][m].done) {
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
        a->cells[row][m].done = accuracy_has(row, m);
        for (int i = 0; models[m].layers != NULL && i < layers; i++)
            dg_weights_destroy(models[m].layers[i].weights);
        free(models[m].layers);
    }
}
