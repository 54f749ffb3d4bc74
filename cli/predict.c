/* SPDX-License-Identifier: MIT */
/* Predictions in 16 bits beside FP8: see predict.h. */
#include "predict.h"

#include "layer.h"

#include <math.h>
#include <stdlib.h>

typedef struct token {
    bool agreed;
    double wide_nats, fp8_nats;
    dg_comparison logits;
} token;

static int64_t largest(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* -log of the probability that the logits, `top` the largest of them, give to `id`. */
static double nats(const float *logits, int64_t count, double top, int32_t id)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += exp(logits[i] - top);
    return log(sum) + top - logits[id];
}

/* `next` is the token that follows, or -1. */
static token judge(float *wide, float *fp8, int64_t vocabulary, int32_t next)
{
    token t = {.logits = DG_COMPARISON_INIT};
    int64_t wide_best = largest(wide, vocabulary), fp8_best = largest(fp8, vocabulary);
    t.agreed = wide_best == fp8_best;
    if (next >= 0) {
        t.wide_nats = nats(wide, vocabulary, wide[wide_best], next);
        t.fp8_nats = nats(fp8, vocabulary, fp8[fp8_best], next);
    }
    dg_matrix x = dg_matrix_of(wide, DG_F32, 1, vocabulary);
    dg_matrix y = dg_matrix_of(fp8, DG_F32, 1, vocabulary);
    cli_check(dg_compare(&x, &y, &t.logits), "comparing logits");
    return t;
}

static void merge(dg_comparison *sum, const dg_comparison *part)
{
    sum->max_error = fmax(sum->max_error, part->max_error);
    sum->finite += part->finite;
    sum->reference_nan += part->reference_nan;
    sum->reference_inf += part->reference_inf;
    sum->result_nan += part->result_nan;
    sum->result_inf += part->result_inf;
    sum->spoiled += part->spoiled;
    sum->reference_squares += part->reference_squares;
    sum->result_squares += part->result_squares;
    sum->products += part->products;
    sum->error_squares += part->error_squares;
    sum->errors += part->errors;
}

void predict_add(predict *p, const int32_t *ids, int64_t sequences, int64_t tokens,
                 const dg_matrix *wide, const dg_matrix *fp8)
{
    int64_t rows = sequences * tokens, vocabulary = wide->cols;
    token *all = cli_alloc((size_t)rows * sizeof *all);
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        bool last = row % tokens == tokens - 1;
        all[row] = judge((float *)wide->data + row * wide->ld, (float *)fp8->data + row * fp8->ld,
                         vocabulary, last ? -1 : ids[row + 1]);
    }
    for (int64_t row = 0; row < rows; row++) { /* in order, so that the sums are always the same */
        p->agreed += all[row].agreed;
        p->wide_nats += all[row].wide_nats;
        p->fp8_nats += all[row].fp8_nats;
        merge(&p->logits, &all[row].logits);
    }
    p->tokens += rows;
    p->guesses += sequences * (tokens - 1);
    free(all);
    const dg_matrix nothing = dg_matrix_of(NULL, DG_F32, 0, vocabulary);
    cli_check(dg_compare(&nothing, &nothing, &p->logits), "comparing logits"); /* the metrics */
}

double predict_top1_agreement(const predict *p)
{
    return (double)p->agreed / (double)p->tokens;
}

double predict_wide_perplexity(const predict *p)
{
    return exp(p->wide_nats / (double)p->guesses);
}

double predict_fp8_perplexity(const predict *p)
{
    return exp(p->fp8_nats / (double)p->guesses);
}

void predict_add_to(cJSON *object, const predict *p)
{
    layer_add_metrics(cJSON_AddObjectToObject(object, "logits"), &p->logits);
    cJSON_AddNumberToObject(object, "top1_agreement", predict_top1_agreement(p));
    cJSON_AddNumberToObject(object, "wide_perplexity", predict_wide_perplexity(p));
    cJSON_AddNumberToObject(object, "fp8_perplexity", predict_fp8_perplexity(p));
}
