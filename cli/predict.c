/* SPDX-License-Identifier: MIT */
/* Predictions in 16 bits beside FP8: see predict.h. */
#include "predict.h"

#include "layer.h"

#include <math.h>
#include <stdlib.h>

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

/* Whether a text goes on after this row. */
static bool has_next(const predict_reference *r, int64_t row)
{
    return row % r->tokens != r->tokens - 1;
}

predict_reference predict_reference_new(const int32_t *ids, int64_t sequences, int64_t tokens,
                                        const dg_matrix *logits)
{
    int64_t rows = sequences * tokens, vocabulary = logits->cols;
    predict_reference r = {
        .ids = ids,
        .sequences = sequences,
        .tokens = tokens,
        .logits = *logits,
        .best = cli_alloc((size_t)rows * sizeof *r.best),
        .nats = cli_alloc((size_t)rows * sizeof *r.nats),
    };
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++) {
        const float *x = (const float *)logits->data + row * logits->ld;
        r.best[row] = largest(x, vocabulary);
        if (has_next(&r, row))
            r.nats[row] = nats(x, vocabulary, x[r.best[row]], ids[row + 1]);
    }
    return r;
}

void predict_reference_free(predict_reference *reference)
{
    free(reference->best);
    free(reference->nats);
}

/* One token's part. */
static predict judge(const predict_reference *r, const dg_matrix *fp8, int64_t row)
{
    int64_t vocabulary = fp8->cols;
    float *x = (float *)r->logits.data + row * r->logits.ld;
    float *y = (float *)fp8->data + row * fp8->ld;
    int64_t best = largest(y, vocabulary);
    predict part = PREDICT_INIT;
    part.tokens = 1;
    part.agreed = best == r->best[row];
    if (has_next(r, row)) {
        part.guesses = 1;
        part.wide_nats = r->nats[row];
        part.fp8_nats = nats(y, vocabulary, y[best], r->ids[row + 1]);
    }
    dg_matrix wide_row = dg_matrix_of(x, DG_F32, 1, vocabulary);
    dg_matrix fp8_row = dg_matrix_of(y, DG_F32, 1, vocabulary);
    cli_check(dg_compare(&wide_row, &fp8_row, &part.logits), "comparing logits");
    return part;
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

void predict_add(predict *p, const predict_reference *r, const dg_matrix *fp8)
{
    int64_t rows = r->sequences * r->tokens;
    predict *parts = cli_alloc((size_t)rows * sizeof *parts);
#pragma omp parallel for
    for (int64_t row = 0; row < rows; row++)
        parts[row] = judge(r, fp8, row);
    for (int64_t row = 0; row < rows; row++) { /* in order, so that the sums are always the same */
        p->tokens += parts[row].tokens;
        p->agreed += parts[row].agreed;
        p->guesses += parts[row].guesses;
        p->wide_nats += parts[row].wide_nats;
        p->fp8_nats += parts[row].fp8_nats;
        merge(&p->logits, &parts[row].logits);
    }
    free(parts);
    const dg_matrix nothing = dg_matrix_of(NULL, DG_F32, 0, fp8->cols);
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
