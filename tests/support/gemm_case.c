/* SPDX-License-Identifier: MIT */
/* A GEMM under test: its data, its run, its comparison with the oracle. See gemm_case.h. */
#include "gemm_case.h"

#include "backend.h"
#include "core/formats.h"
#include "oracle.h"
#include "tensor_cores.h"
#include "test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INPUT_FILL = 0xFF, OUTPUT_FILL = 0xA5 }; /* 0xFF is a NaN in every type */

/* ---- data ---------------------------------------------------------------------------- */

static size_t matrix_bytes(const dg_matrix *m)
{
    if (m->dtype == DG_NONE || m->rows == 0 || m->cols == 0)
        return 0;
    int64_t elements = (m->rows > 1 ? (m->rows - 1) * m->ld : 0) + m->cols;
    return (size_t)elements * dg_dtype_bytes(m->dtype);
}

static size_t scale_bytes(const dg_scale *s)
{
    if (s->dtype == DG_NONE || s->rows == 0 || s->cols == 0)
        return 0;
    int64_t elements = (s->rows - 1) * s->row_stride + (s->cols - 1) * s->col_stride + 1;
    return (size_t)elements * dg_dtype_bytes(s->dtype);
}

static unsigned char *row_of(const dg_matrix *m, int64_t row)
{
    return (unsigned char *)m->data + (size_t)(row * m->ld) * dg_dtype_bytes(m->dtype);
}

static guard new_guard(rng *r, size_t bytes, int fill)
{
    return guard_new(bytes, rng_chance(r, 0.7) ? GUARD_AFTER : GUARD_BEFORE, fill);
}

/* `deviation` 0 means: any finite codes. */
static guard new_matrix(rng *r, dg_matrix *m, double deviation)
{
    guard g = new_guard(r, matrix_bytes(m), INPUT_FILL);
    m->data = g.data;
    for (int64_t row = 0; g.bytes != 0 && row < m->rows; row++)
        if (deviation == 0.0)
            rng_fill_codes(r, row_of(m, row), m->dtype, m->cols);
        else
            rng_fill_normal(r, row_of(m, row), m->dtype, m->cols, deviation);
    return g;
}

static guard new_scale(rng *r, dg_scale *s)
{
    guard g = new_guard(r, scale_bytes(s), INPUT_FILL);
    size_t element = dg_dtype_bytes(s->dtype);
    s->data = g.data;
    for (int64_t i = 0; g.bytes != 0 && i < s->rows; i++)
        for (int64_t j = 0; j < s->cols; j++) {
            int64_t place = i * s->row_stride + j * s->col_stride;
            rng_fill_scales(r, (char *)s->data + (size_t)place * element, s->dtype, 1);
        }
    return g;
}

gemm_case *gemm_case_new(rng *r, const dg_gemm *shape, gemm_case_options options)
{
    gemm_case *made = calloc(1, sizeof *made);
    assert_non_null(made);
    dg_gemm *g = &made->gemm;
    *g = *shape;
    made->device = DG_CPU;
    double deviation = rng_chance(r, 0.25) ? 0.0 : 1.0;
    double typical = sqrt((double)g->a.cols + 1.0);
    made->a = new_matrix(r, &g->a, deviation);
    made->b = new_matrix(r, &g->b, deviation);
    made->scale_a = new_scale(r, &g->scale_a);
    made->scale_b = new_scale(r, &g->scale_b);
    made->scale_d = new_scale(r, &g->scale_d);
    made->bias = new_matrix(r, &g->bias, typical);

    made->d = new_guard(r, matrix_bytes(&g->d), OUTPUT_FILL);
    g->d.data = made->d.data;
    if (options & CASE_IN_PLACE) {
        g->c = g->d;
    } else {
        /* C that is not read (beta = 0) stays NaN: it must have no influence. */
        made->c = new_matrix(r, &g->c, typical);
        if (g->beta == 0.0f && made->c.bytes != 0)
            memset(made->c.data, INPUT_FILL, made->c.bytes);
    }
    for (int64_t row = 0; made->d.bytes != 0 && row < g->d.rows; row++)
        if ((options & CASE_IN_PLACE) && g->beta != 0.0f)
            rng_fill_normal(r, row_of(&g->d, row), g->d.dtype, g->d.cols, typical);
        else
            memset(row_of(&g->d, row), INPUT_FILL, (size_t)g->d.cols * dg_dtype_bytes(g->d.dtype));
    made->d_before = guard_new(made->d.bytes, GUARD_AFTER, 0);
    memcpy(made->d_before.data, made->d.data, made->d.bytes);
    return made;
}

void gemm_case_free(gemm_case *c)
{
    guard *guards[] = {&c->a,       &c->b,       &c->c,    &c->d,       &c->scale_a,
                       &c->scale_b, &c->scale_d, &c->bias, &c->d_before};
    for (size_t i = 0; i < sizeof guards / sizeof guards[0]; i++)
        guard_free(guards[i]);
    free(c->reference);
    free(c->magnitude);
    free(c);
}

/* ---- running ------------------------------------------------------------------------- */

static dg_status run(gemm_case *c, dg_context *context, bool packed)
{
    memcpy(c->d.data, c->d_before.data, c->d.bytes);
    c->device = context->device;
    dg_gemm g = c->gemm;
    struct {
        guard *memory;
        void **data;
    } operands[] = {
        {&c->a, &g.a.data},
        {&c->b, &g.b.data},
        {&c->c, &g.c.data},
        {&c->scale_a, &g.scale_a.data},
        {&c->scale_b, &g.scale_b.data},
        {&c->scale_d, &g.scale_d.data},
        {&c->bias, &g.bias.data},
        {&c->d, &g.d.data},
    };
    size_t count = sizeof operands / sizeof operands[0];
    bool in_place = g.c.data == g.d.data;
    void *device[sizeof operands / sizeof operands[0]];
    for (size_t i = 0; i < count; i++)
        device[i] = *operands[i].data =
            test_to_device(context, operands[i].memory->data, operands[i].memory->bytes);
    if (in_place)
        g.c.data = g.d.data;

    dg_weights *weights = NULL;
    dg_status status = DG_OK;
    if (packed) {
        status = dg_weights_pack(context, &g.b, &g.scale_b, NULL, 0, NULL, &weights);
        g.weights = weights;
        g.b = (dg_matrix){0};
        g.scale_b = (dg_scale){0};
    }
    if (status == DG_OK)
        status = dg_gemm_run(context, &g, NULL);
    if (status == DG_OK)
        status = dg_synchronize(context, NULL);
    for (size_t i = 0; i + 1 < count; i++)
        test_release(context, device[i], operands[i].memory->data);
    test_from_device(context, device[count - 1], c->d.data, c->d.bytes);
    dg_weights_destroy(weights);
    return status;
}

dg_status gemm_case_run(gemm_case *c, dg_context *context)
{
    return run(c, context, false);
}

bool gemm_case_run_or_refuse(gemm_case *c, dg_context *context)
{
    dg_status status = gemm_case_run(c, context);
    if (test_device() == DG_CPU || status != DG_UNSUPPORTED_SCALE) {
        assert_status(status, DG_OK);
        return true;
    }
    assert_string_not_equal(dg_last_error(), "");
    gemm_case_check_untouched(c);
    return false;
}

dg_status gemm_case_run_packed(gemm_case *c, dg_context *context)
{
    return run(c, context, true);
}

void *gemm_case_copy_d(const gemm_case *c)
{
    void *copy = malloc(c->d.bytes + 1);
    assert_non_null(copy);
    return memcpy(copy, c->d.data, c->d.bytes);
}

/* ---- checking ------------------------------------------------------------------------ */

/* The call with its operands in host memory as they were before it. */
static dg_gemm before(const gemm_case *c)
{
    dg_gemm g = c->gemm;
    if (g.c.data == g.d.data)
        g.c.data = c->d_before.data;
    return g;
}

static double *new_matrix_of_doubles(const dg_matrix *m)
{
    double *values = malloc(((size_t)(m->rows * m->cols) + 1) * sizeof *values);
    assert_non_null(values);
    return values;
}

static void compute_reference(gemm_case *c)
{
    if (c->reference != NULL)
        return;
    dg_gemm g = before(c);
    c->reference = new_matrix_of_doubles(&g.d);
    c->magnitude = new_matrix_of_doubles(&g.d);
    oracle_gemm(&g, c->reference, c->magnitude);
}

/* The largest error of an element as a share of the magnitudes added up for it: FP32 sums. */
static const double ELEMENT_LIMIT = 1e-5;
/* The same for all elements together. */
static const double SUM_LIMIT = 2e-6, TENSOR_CORE_SUM_LIMIT = 2e-4;

/* The largest error of the whole result, relative: rounding to the result's type dominates. */
static double result_limit(dg_dtype dtype)
{
    return dtype == DG_F32 ? 5e-4 : dtype == DG_BF16 ? 3e-3 : 1e-3;
}

static double element(const gemm_case *c, int64_t i)
{
    const dg_matrix *d = &c->gemm.d;
    return dgi_load_f32(d->data, d->dtype, i / d->cols * d->ld + i % d->cols);
}

/* The first element that is not the one of `reference`, or -1. */
static int64_t first_wrong(const gemm_case *c, const double *reference)
{
    for (int64_t i = 0; i < c->gemm.d.rows * c->gemm.d.cols; i++)
        if (!oracle_close(element(c, i), c->gemm.d.dtype, reference[i],
                          ELEMENT_LIMIT * c->magnitude[i]))
            return i;
    return -1;
}

/*
 * On a GPU the tensor cores' own rounding is part of the reference. How long their sums are is the
 * kernel's choice: 32 or 128 of K, or all of it when fast accumulation is allowed. NaN and
 * infinities are as without it.
 */
static int64_t first_wrong_on_gpu(const gemm_case *c)
{
    const dg_gemm g = before(c);
    const int64_t k = g.a.cols;
    const int64_t segments[] = {128, 32, g.accumulation == DG_ACCUMULATE_FAST ? k : 0};
    double *modelled = new_matrix_of_doubles(&g.d);
    int64_t wrong = -1;
    for (size_t s = 0; s < sizeof segments / sizeof segments[0]; s++) {
        if (segments[s] == 0 || !tensor_core_gemm(&g, segments[s], modelled))
            continue;
        for (int64_t i = 0; i < g.d.rows * g.d.cols; i++)
            if (!isfinite(c->reference[i]))
                modelled[i] = c->reference[i];
        wrong = first_wrong(c, modelled);
        if (wrong < 0)
            break;
    }
    free(modelled);
    return wrong;
}

static void check_elements(gemm_case *c)
{
    const dg_matrix *d = &c->gemm.d;
    const bool gpu = c->device != DG_CPU;
    const int64_t wrong = gpu ? first_wrong_on_gpu(c) : first_wrong(c, c->reference);
    if (wrong >= 0)
        fail_msg("D[%lld,%lld] is %.9g, should be %.9g%s; magnitudes %.9g: %s",
                 (long long)(wrong / d->cols), (long long)(wrong % d->cols), element(c, wrong),
                 c->reference[wrong], gpu ? " but for the tensor cores' rounding" : "",
                 c->magnitude[wrong], gemm_text(&c->gemm));
    double error = 0.0, norm = 0.0, largest = 0.0, magnitudes = 0.0;
    for (int64_t i = 0; i < d->rows * d->cols; i++) {
        const double out = element(c, i), reference = c->reference[i];
        if (isfinite(out) && isfinite(reference)) {
            error += (out - reference) * (out - reference);
            norm += reference * reference;
            largest = fmax(largest, reference * reference);
            magnitudes += c->magnitude[i] * c->magnitude[i];
        }
    }
    /*
     * Rounding errors average out over many elements of like size; where a few dominate, and for
     * FP8, each element has been judged. Sums that cancel are allowed a share of their magnitudes.
     */
    const double sum_limit = gpu ? TENSOR_CORE_SUM_LIMIT : SUM_LIMIT;
    if (norm >= 32.0 * largest && !dgi_is_fp8(d->dtype) &&
        sqrt(error) > result_limit(d->dtype) * sqrt(norm) + sum_limit * sqrt(magnitudes))
        fail_msg("relative error %.3g: %s", sqrt(error / norm), gemm_text(&c->gemm));
}

void gemm_case_check_surroundings(const gemm_case *c)
{
    const dg_matrix *d = &c->gemm.d;
    const unsigned char *now = c->d.data, *before = c->d_before.data;
    size_t element = dg_dtype_bytes(d->dtype);
    size_t pitch = (size_t)d->ld * element, run = (size_t)d->cols * element;
    for (size_t i = 0; d->rows > 1 && i < c->d.bytes; i++)
        if (i % pitch >= run && now[i] != before[i])
            fail_msg("byte %zu behind row %zu of D was written: %s", i % pitch - run, i / pitch,
                     gemm_text(&c->gemm));
}

void gemm_case_check(gemm_case *c)
{
    compute_reference(c);
    check_elements(c);
    gemm_case_check_surroundings(c);
}

void gemm_case_check_untouched(const gemm_case *c)
{
    if (c->d.bytes != 0)
        assert_memory_equal(c->d.data, c->d_before.data, c->d.bytes);
}
