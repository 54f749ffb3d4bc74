/* SPDX-License-Identifier: MIT */
/* What a change of the logits means for a model's predictions: 16 bits beside FP8. */
#ifndef CLI_PREDICT_H
#define CLI_PREDICT_H

#include "cli.h"

/* Sums over the tokens seen so far; begin with PREDICT_INIT. All are double precision. */
typedef struct predict {
    int64_t tokens;             /* whose predictions were compared                         */
    int64_t agreed;             /* tokens for which both put the same next token first     */
    int64_t guesses;            /* tokens that have a next one in the text                 */
    double wide_nats, fp8_nats; /* sums of -log(probability of the token that comes next)  */
    dg_comparison logits;       /* FP8 against 16 bits                                     */
} predict;
#define PREDICT_INIT                                                                               \
    {                                                                                              \
        .logits = DG_COMPARISON_INIT                                                               \
    }

/* What the 16-bit model predicts for some texts: worked out once, compared with many times. */
typedef struct predict_reference {
    const int32_t *ids; /* [sequences, tokens], the caller's */
    int64_t sequences, tokens;
    dg_matrix logits; /* [sequences * tokens, vocabulary], the caller's */
    int64_t *best;    /* each token's most likely next one */
    double *nats;     /* of the one that comes next; 0 for the last of a text */
} predict_reference;

predict_reference predict_reference_new(const int32_t *ids, int64_t sequences, int64_t tokens,
                                        const dg_matrix *logits);
void predict_reference_free(predict_reference *reference);

/* Adds the FP8 model's logits for these texts. The sums do not depend on the number of threads. */
void predict_add(predict *p, const predict_reference *reference, const dg_matrix *fp8);

double predict_top1_agreement(const predict *p); /* a share, 0 to 1 */
double predict_wide_perplexity(const predict *p);
double predict_fp8_perplexity(const predict *p);

/* Adds all of it to a JSON object: the fields "logits", "top1_agreement" and both perplexities. */
void predict_add_to(cJSON *object, const predict *p);

#endif
