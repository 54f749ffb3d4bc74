/* SPDX-License-Identifier: MIT */
/* The metrics by which a result is judged against its reference. The tool and tests call this. */
#include "api/check.h"
#include "core/formats.h"

#include <math.h>

/* Adds one pair of which both are finite. */
static void add_finite(dg_comparison *c, double reference, double result)
{
    double error = fabs(result - reference);
    c->finite++;
    c->reference_squares += reference * reference;
    c->result_squares += result * result;
    c->products += reference * result;
    c->error_squares += error * error;
    c->errors += error;
    if (error > c->max_error)
        c->max_error = error;
}

static void add_non_finite(dg_comparison *c, float reference, float result)
{
    c->reference_nan += isnan(reference);
    c->reference_inf += isinf(reference) != 0;
    c->result_nan += isnan(result);
    c->result_inf += isinf(result) != 0;
    c->spoiled += isfinite(reference);
}

/* A row at a time: its own partial sums keep the rounding of long sums down. */
static void add_row(dg_comparison *c, const dg_matrix *reference, const dg_matrix *result,
                    int64_t row)
{
    dg_comparison part = DG_COMPARISON_INIT;
    for (int64_t col = 0; col < reference->cols; col++) {
        float x = dgi_load_f32(reference->data, reference->dtype, row * reference->ld + col);
        float y = dgi_load_f32(result->data, result->dtype, row * result->ld + col);
        if (dgi_f32_is_finite(x) && dgi_f32_is_finite(y))
            add_finite(&part, x, y);
        else
            add_non_finite(c, x, y);
    }
    c->finite += part.finite;
    c->reference_squares += part.reference_squares;
    c->result_squares += part.result_squares;
    c->products += part.products;
    c->error_squares += part.error_squares;
    c->errors += part.errors;
    if (part.max_error > c->max_error)
        c->max_error = part.max_error;
}

/* A result that lost values has no distance from its reference: no metric of it passes a limit. */
static void spoil_metrics(dg_comparison *c)
{
    c->relative_error = c->max_error = c->mean_error = INFINITY;
    c->snr_db = -INFINITY;
    c->cosine = 0.0;
}

static void derive_metrics(dg_comparison *c)
{
    if (c->spoiled > 0) {
        spoil_metrics(c);
        return;
    }
    double reference = sqrt(c->reference_squares), result = sqrt(c->result_squares);
    if (c->error_squares == 0.0)
        c->relative_error = 0.0;
    else
        c->relative_error = reference > 0.0 ? sqrt(c->error_squares) / reference : INFINITY;
    c->snr_db = c->relative_error > 0.0 ? -20.0 * log10(c->relative_error) : INFINITY;
    if (reference > 0.0 && result > 0.0)
        c->cosine = fmax(-1.0, fmin(1.0, c->products / (reference * result)));
    else
        c->cosine = reference == result ? 1.0 : 0.0;
    c->mean_error = c->finite > 0 ? c->errors / (double)c->finite : 0.0;
}

dg_status dg_compare(const dg_matrix *reference, const dg_matrix *result, dg_comparison *comparison)
{
    dg_comparison complete = DG_COMPARISON_INIT;
    DGI_TRY(dgi_take(&complete, sizeof complete, sizeof complete, comparison, "comparison"));
    DGI_TRY(dgi_check_comparison(reference, result));
    for (int64_t row = 0; row < reference->rows; row++)
        add_row(&complete, reference, result, row);
    derive_metrics(&complete);
    *comparison = complete;
    return DG_OK;
}
