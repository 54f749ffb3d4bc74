/* SPDX-License-Identifier: MIT */
/* How much each layer's precision matters: the model is run with that layer alone in FP8. */
#include "mix.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const mix_recipe mix_recipes[MIX_RECIPES] = {
    {"tensor", 0, 0, 0},
    {"channel", 1, 0, 0},
    {"block", 128, 128, 128},
};

/* ---- a layer in FP8 ------------------------------------------------------------------ */

typedef struct fp8_layer {
    layer_codes weight;
    int32_t token_cols;
} fp8_layer;

static fp8_layer fp8_layer_new(const mix *m, const dg_matrix *weight, const mix_recipe *recipe)
{
    fp8_layer layer = {
        layer_codes_new(weight->rows, weight->cols, recipe->weight_rows, recipe->weight_cols),
        recipe->token_cols};
    layer_quantize(m->context, weight, &layer.weight);
    return layer;
}

static void fp8_multiply(const mix *m, const fp8_layer *layer, const dg_matrix *x,
                         const dg_matrix *y)
{
    layer_codes x8 = layer_codes_new(x->rows, x->cols, 1, layer->token_cols);
    layer_quantize(m->context, x, &x8);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = x8.codes;
    gemm.scale_a = x8.scale;
    gemm.b = layer->weight.codes;
    gemm.scale_b = layer->weight.scale;
    gemm.d = *y;
    cli_check(dg_gemm_run(m->context, &gemm, NULL), "multiplying");
    layer_codes_free(&x8);
}

/* ---- running the model --------------------------------------------------------------- */

/*
 * A forward pass with some layers in FP8. What comes before the first of them is as it was in 16
 * bits, so those products are not computed again.
 */
typedef struct pass {
    const mix *m;
    dg_matrix *wide;      /* each layer's weight in F32, and the head's */
    dg_matrix *products;  /* each layer's result in 16 bits */
    const fp8_layer *fp8; /* of each layer; codes.data NULL: 16 bits. NULL: record the products */
    int first;            /* layer that is not in 16 bits */
} pass;

static void product(void *user, int block, llama_kind kind, const dg_matrix *x, const dg_matrix *y)
{
    const pass *p = user;
    int layer = kind == LLAMA_HEAD ? p->m->layer_count : block * LLAMA_BLOCK_KINDS + (int)kind;
    size_t bytes = (size_t)(y->rows * y->cols) * sizeof(float);
    if (p->fp8 != NULL && layer < p->first)
        memcpy(y->data, p->products[layer].data, bytes);
    else if (p->fp8 != NULL && layer < p->m->layer_count && p->fp8[layer].weight.codes.data != NULL)
        fp8_multiply(p->m, &p->fp8[layer], x, y);
    else
        layer_multiply_wide(p->m->peer, x, &p->wide[layer], y);
    if (p->fp8 == NULL && layer < p->m->layer_count) {
        p->products[layer] = layer_new(y->rows, y->cols);
        memcpy(p->products[layer].data, y->data, bytes);
    }
}

static float *run(const mix *m, pass *p)
{
    int64_t rows = m->text.count * m->text.tokens;
    float *logits = cli_alloc((size_t)(rows * m->model.vocabulary) * sizeof *logits);
    llama_forward(&m->model, m->text.ids, m->text.count, m->text.tokens, product, p, logits);
    return logits;
}

static pass pass_new(const mix *m, float **logits)
{
    pass p = {.m = m};
    size_t count = (size_t)m->layer_count + 1;
    p.wide = cli_alloc(count * sizeof *p.wide);
    p.products = cli_alloc(count * sizeof *p.products);
    for (int i = 0; i < m->layer_count; i++)
        p.wide[i] = layer_widen(&m->model.blocks[m->layers[i].block].linear[m->layers[i].kind]);
    p.wide[m->layer_count] = layer_widen(&m->model.head);
    *logits = run(m, &p);
    return p;
}

static void pass_free(pass *p)
{
    for (int i = 0; i <= p->m->layer_count; i++) {
        free(p->wide[i].data);
        free(p->products[i].data);
    }
    free(p->wide);
    free(p->products);
}

/* ---- how far apart predictions are --------------------------------------------------- */

static double log_sum(const float *logits, int64_t count)
{
    float top = logits[0];
    for (int64_t i = 1; i < count; i++)
        top = logits[i] > top ? logits[i] : top;
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)logits[i] - (double)top);
    return log(sum) + (double)top;
}

/* sum P log(P/Q) of one token's next-token distributions, P from `wide`. */
static double token_divergence(const float *wide, const float *fp8, int64_t count)
{
    double wide_log = log_sum(wide, count), fp8_log = log_sum(fp8, count), sum = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double p = (double)wide[i] - wide_log, q = (double)fp8[i] - fp8_log;
        sum += exp(p) * (p - q);
    }
    return fmax(sum, 0.0);
}

/* The mean over all tokens, in nats. */
static double divergence(const mix *m, const float *wide, const float *fp8)
{
    int64_t rows = m->text.count * m->text.tokens, vocabulary = m->model.vocabulary;
    double *each = cli_alloc((size_t)rows * sizeof *each), sum = 0.0;
#pragma omp parallel for
    for (int64_t t = 0; t < rows; t++)
        each[t] = token_divergence(wide + t * vocabulary, fp8 + t * vocabulary, vocabulary);
    for (int64_t t = 0; t < rows; t++)
        sum += each[t];
    free(each);
    return sum / (double)rows;
}

/* ---- measuring ----------------------------------------------------------------------- */

static dg_precision measure(const mix *m, pass *p, fp8_layer *fp8, int layer,
                            const mix_recipe *recipe, const float *wide)
{
    const mix_layer *l = &m->layers[layer];
    const dg_matrix *weight = &m->model.blocks[l->block].linear[l->kind];
    fp8[layer] = fp8_layer_new(m, weight, recipe);
    p->fp8 = fp8;
    p->first = layer;
    float *logits = run(m, p);
    const dg_scale *s = &fp8[layer].weight.scale;
    dg_precision found = {
        .bytes = (double)(weight->rows * weight->cols) + (double)(s->rows * s->cols) * 4.0,
        .error = divergence(m, wide, logits),
    };
    free(logits);
    layer_codes_free(&fp8[layer].weight);
    fp8[layer] = (fp8_layer){0};
    return found;
}

void mix_measure(mix *m)
{
    float *wide;
    m->layer_count = m->model.block_count * LLAMA_BLOCK_KINDS;
    m->layers = cli_alloc((size_t)m->layer_count * sizeof *m->layers);
    int asked = 0;
    for (int r = 0; r < MIX_RECIPES; r++)
        asked += m->asked[r];
    for (int i = 0; i < m->layer_count; i++) {
        mix_layer *l = &m->layers[i];
        l->block = i / LLAMA_BLOCK_KINDS;
        l->kind = (llama_kind)(i % LLAMA_BLOCK_KINDS);
        l->name = llama_layer_name(l->block, l->kind);
        const dg_matrix *weight = &m->model.blocks[l->block].linear[l->kind];
        for (int r = 0; r < MIX_RECIPES; r++)
            l->precisions[r] = (dg_precision){INFINITY, INFINITY};
        l->precisions[MIX_RECIPES].bytes =
            (double)(weight->rows * weight->cols) * (double)dg_dtype_bytes(weight->dtype);
        m->wide_bytes += l->precisions[MIX_RECIPES].bytes;
    }
    cli_progress progress = cli_progress_start("measuring", (double)m->layer_count * asked);
    pass p = pass_new(m, &wide);
    fp8_layer *fp8 = cli_alloc((size_t)m->layer_count * sizeof *fp8);
    double done = 0.0;
    for (int i = 0; i < m->layer_count; i++)
        for (int r = 0; r < MIX_RECIPES; r++) {
            if (!m->asked[r])
                continue;
            m->layers[i].precisions[r] = measure(m, &p, fp8, i, &mix_recipes[r], wide);
            cli_progress_update(&progress, ++done);
        }
    cli_progress_end(&progress);
    free(fp8);
    free(wide);
    pass_free(&p);
}

void mix_verify(mix *m)
{
    float *wide;
    pass p = pass_new(m, &wide);
    fp8_layer *fp8 = cli_alloc((size_t)m->layer_count * sizeof *fp8);
    for (int i = 0; i < m->layer_count; i++) {
        const mix_layer *l = &m->layers[i];
        if (l->chosen != MIX_RECIPES)
            fp8[i] = fp8_layer_new(m, &m->model.blocks[l->block].linear[l->kind],
                                   &mix_recipes[l->chosen]);
    }
    p.fp8 = fp8;
    float *logits = run(m, &p);
    m->measured = divergence(m, wide, logits);
    for (int i = 0; i < m->layer_count; i++)
        layer_codes_free(&fp8[i].weight);
    free(fp8);
    free(logits);
    free(wide);
    pass_free(&p);
}

void mix_free(mix *m)
{
    for (int i = 0; i < m->layer_count; i++)
        free(m->layers[i].name);
    free(m->layers);
}
