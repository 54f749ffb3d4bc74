/* SPDX-License-Identifier: MIT */
/* Two checkpoints of a model over the same text: layer by layer, and what it predicts. */
#include "compare.h"

#include <math.h>
#include <stdlib.h>

typedef struct run {
    const compare_job *job;
    llama reference, result;
    compare_report *report;
    cli_progress progress;
    double done; /* layers, of both passes */
} run;

/* The result's weight where it is in FP8. */
static bool find_fp8(const run *r, int block, llama_kind kind, dg_stored_weight *weight)
{
    char *layer = llama_layer_name(block, kind), *name = cli_format("%s.weight", layer);
    cli_check(dg_checkpoint_weight(r->job->result, name, false, weight), "the result");
    free(name);
    free(layer);
    return cli_is_fp8(weight->weight.dtype);
}

static const dg_matrix *matrix_of(const llama *model, int block, llama_kind kind)
{
    return kind == LLAMA_HEAD ? &model->head : &model->blocks[block].linear[kind];
}

/* The gains of the norm that a layer's activations come from; NULL where they come from none. */
static const float *norm_before(const llama *model, int block, llama_kind kind)
{
    switch (kind) {
    case LLAMA_Q:
    case LLAMA_K:
    case LLAMA_V:
        return model->blocks[block].attention_norm;
    case LLAMA_GATE:
    case LLAMA_UP:
        return model->blocks[block].mlp_norm;
    case LLAMA_HEAD:
        return model->final_norm;
    default:
        return NULL;
    }
}

/*
 * By what the result's activations are larger than the reference's, where its norm is another; of
 * malloc's, NULL where it is the same.
 */
static float *gains_of(const run *r, int block, llama_kind kind)
{
    const float *before = norm_before(&r->reference, block, kind);
    const float *after = norm_before(&r->result, block, kind);
    if (before == NULL)
        return NULL;
    int64_t hidden = r->reference.hidden;
    float *gains = cli_alloc((size_t)hidden * sizeof *gains);
    bool same = true;
    for (int64_t i = 0; i < hidden; i++) {
        same = same && before[i] == after[i];
        gains[i] = before[i] != 0.0f && after[i] != 0.0f ? after[i] / before[i] : 1.0f;
    }
    if (same) {
        free(gains);
        return NULL;
    }
    return gains;
}

static void multiply_in_16_bits(const run *r, const dg_matrix *w, const dg_matrix *x,
                                const dg_matrix *y)
{
    dg_matrix wide = layer_widen(w);
    layer_multiply_wide(r->job->peer, x, &wide, y);
    free(wide.data);
}

/* First pass: goes on with the reference's product, and holds the result's against it. */
static void product_compared(void *user, int block, llama_kind kind, const dg_matrix *x,
                             const dg_matrix *y)
{
    run *r = user;
    dg_stored_weight weight;
    if (find_fp8(r, block, kind, &weight)) {
        float *gains = gains_of(r, block, kind);
        compare_add_row(r->report, compare_layer(r->job, &weight, x, gains, y));
        free(gains);
    } else {
        multiply_in_16_bits(r, matrix_of(&r->reference, block, kind), x, y);
    }
    cli_progress_update(&r->progress, ++r->done);
}

/* Second pass: the result by itself. */
static void product_of_result(void *user, int block, llama_kind kind, const dg_matrix *x,
                              const dg_matrix *y)
{
    run *r = user;
    dg_stored_weight weight;
    if (find_fp8(r, block, kind, &weight))
        compare_multiply(r->job, &weight, x, y);
    else
        multiply_in_16_bits(r, matrix_of(&r->result, block, kind), x, y);
    cli_progress_update(&r->progress, ++r->done);
}

static void check_same_model(const llama *a, const llama *b)
{
    if (a->block_count != b->block_count || a->hidden != b->hidden ||
        a->intermediate != b->intermediate || a->vocabulary != b->vocabulary ||
        a->heads != b->heads || a->kv_heads != b->kv_heads || a->head_dim != b->head_dim)
        cli_die("the two config.json are not of the same model");
}

void compare_models(const compare_job *job, const char *reference, const char *result,
                    compare_report *report)
{
    run r = {.job = job, .report = report};
    r.reference = llama_open(reference);
    r.result = llama_open_quantized(result);
    check_same_model(&r.reference, &r.result);
    llama_text text = llama_read_text(&r.reference, report->text);
    int64_t tokens = text.tokens < job->tokens ? text.tokens : job->tokens;
    if (tokens < 2)
        cli_die("%s: a prediction needs at least 2 tokens", report->text);
    report->tokens = tokens;

    dg_matrix wide = layer_new(tokens, r.reference.vocabulary);
    dg_matrix fp8 = layer_new(tokens, r.reference.vocabulary);
    double layers = (double)r.reference.block_count * LLAMA_BLOCK_KINDS + 1;
    r.progress = cli_progress_start("layers", 2 * layers);
    llama_forward(&r.reference, text.ids, 1, tokens, product_compared, &r, wide.data);
    llama_forward(&r.result, text.ids, 1, tokens, product_of_result, &r, fp8.data);
    cli_progress_end(&r.progress);
    predict_reference predicted = predict_reference_new(text.ids, 1, tokens, &wide);
    predict_add(&report->whole, &predicted, &fp8);
    predict_reference_free(&predicted);
    free(wide.data);
    free(fp8.data);
    free(text.ids);
    llama_close(&r.reference);
    llama_close(&r.result);
}
