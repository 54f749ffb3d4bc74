/* SPDX-License-Identifier: MIT */
/* The demo's two forward passes: 16 bits with FP8 held against it, then FP8 everywhere. */
#include "demo.h"

#include "bench.h"

#include <stdlib.h>

/* ---- one layer ----------------------------------------------------------------------- */

static demo_layer *layer_of(const demo *d, int block, llama_kind kind)
{
    return &d->layers[block * LLAMA_BLOCK_KINDS + (int)kind];
}

static void quantize_weights(demo *d, int block, llama_kind kind)
{
    const dg_matrix *wide = &d->model.blocks[block].linear[kind];
    demo_layer *layer = layer_of(d, block, kind);
    layer_codes w =
        layer_codes_new(wide->rows, wide->cols, d->recipe->weight_rows, d->recipe->weight_cols);
    layer_quantize(d->context, wide, &w);
    int64_t elements = wide->rows * wide->cols, scales = w.scale.rows * w.scale.cols;
    *layer = (demo_layer){
        .block = block,
        .kind = kind,
        .n = wide->rows,
        .k = wide->cols,
        .wide_bytes = elements * (int64_t)dg_dtype_bytes(wide->dtype),
        .fp8_bytes = elements + scales * (int64_t)sizeof(float),
        .error = DG_COMPARISON_INIT,
    };
    cli_check(dg_weights_pack(d->context, &w.codes, &w.scale, NULL, 0, NULL, &layer->weights),
              "packing weights");
    layer_codes_free(&w);
}

/* ---- the products of the forward passes ---------------------------------------------- */

static const double seconds_each = 0.01; /* to time one layer's product */

/* What a server does for tokens that come in: quantise them and multiply. */
typedef struct fp8_product {
    dg_context *context;
    const dg_matrix *x;
    layer_codes x8;
    dg_gemm gemm;
} fp8_product;

static fp8_product fp8_product_new(const demo *d, const demo_layer *layer, const dg_matrix *x,
                                   const dg_matrix *y)
{
    fp8_product p = {d->context, x,
                     layer_codes_new(x->rows, x->cols, 1, d->recipe->activation_cols),
                     DG_GEMM_INIT};
    p.gemm.a = p.x8.codes;
    p.gemm.scale_a = p.x8.scale;
    p.gemm.weights = layer->weights;
    p.gemm.d = *y;
    return p;
}

static void fp8_product_run(void *product, int64_t index)
{
    (void)index;
    const fp8_product *p = product;
    layer_quantize(p->context, p->x, &p->x8);
    cli_check(dg_gemm_run(p->context, &p->gemm, NULL), "multiplying");
}

/*
 * First pass: goes on with the 16-bit product, and holds the FP8 one of the same x against it. The
 * FP8 products are timed in the second pass, so that two libraries' threads do not take turns.
 */
static void product_compared(void *user, int block, llama_kind kind, const dg_matrix *x,
                             const dg_matrix *y)
{
    demo *d = user;
    if (kind == LLAMA_HEAD) {
        layer_multiply_wide(d->peer, x, &d->head, y);
        return;
    }
    demo_layer *layer = layer_of(d, block, kind);
    dg_matrix w = layer_widen(&d->model.blocks[block].linear[kind]);
    layer->wide_seconds = layer_time_wide(d->peer, x, &w, y, seconds_each);
    dg_matrix y8 = layer_new(y->rows, y->cols);
    fp8_product product = fp8_product_new(d, layer, x, &y8);
    fp8_product_run(&product, 0);
    cli_check(dg_compare(y, &y8, &layer->error), "comparing");
    layer_codes_free(&product.x8);
    free(w.data);
    free(y8.data);
    cli_progress_update(&d->progress, ++d->done);
}

/* Second pass: FP8 everywhere but in the head. */
static void product_fp8(void *user, int block, llama_kind kind, const dg_matrix *x,
                        const dg_matrix *y)
{
    demo *d = user;
    if (kind == LLAMA_HEAD) {
        layer_multiply_wide(d->peer, x, &d->head, y);
        return;
    }
    demo_layer *layer = layer_of(d, block, kind);
    fp8_product product = fp8_product_new(d, layer, x, y);
    layer->fp8_seconds = bench_measure_once(fp8_product_run, &product, seconds_each).median;
    layer_codes_free(&product.x8);
    cli_progress_update(&d->progress, ++d->done);
}

/* ---- the whole model ----------------------------------------------------------------- */

predict demo_run(demo *d, const int32_t *ids, int64_t tokens)
{
    const llama *model = &d->model;
    int count = model->block_count * LLAMA_BLOCK_KINDS;
    d->layers = cli_alloc((size_t)count * sizeof *d->layers);
    d->head = layer_widen(&model->head);
    for (int b = 0; b < model->block_count; b++)
        for (llama_kind kind = 0; kind < LLAMA_BLOCK_KINDS; kind++)
            quantize_weights(d, b, kind);

    size_t logits_bytes = (size_t)(tokens * model->vocabulary) * sizeof(float);
    float *wide = cli_alloc(logits_bytes), *fp8 = cli_alloc(logits_bytes);
    d->progress = cli_progress_start("layers", 2 * count);
    llama_forward(model, ids, 1, tokens, product_compared, d, wide);
    llama_forward(model, ids, 1, tokens, product_fp8, d, fp8);
    cli_progress_end(&d->progress);
    const dg_matrix wide_logits = dg_matrix_of(wide, DG_F32, tokens, model->vocabulary);
    const dg_matrix fp8_logits = dg_matrix_of(fp8, DG_F32, tokens, model->vocabulary);
    predict whole = PREDICT_INIT;
    predict_reference reference = predict_reference_new(ids, 1, tokens, &wide_logits);
    predict_add(&whole, &reference, &fp8_logits);
    predict_reference_free(&reference);
    free(wide);
    free(fp8);
    free(d->head.data);
    return whole;
}
