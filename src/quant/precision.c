/* SPDX-License-Identifier: MIT */
/*
 * Mixed precision: dg_precision_choose(). A multiple-choice knapsack, solved greedily over the
 * steps of the layers' convex hulls, which is its relaxation's optimum but for the last step.
 */
#include "core/status.h"
#include "io/file.h"

#include <math.h>
#include <stdlib.h>

/* From one precision of a layer to its next on the hull: more bytes, less error. */
typedef struct step {
    int64_t layer;
    int32_t from, to;
    double bytes, saved; /* both above 0 */
    bool taken;
} step;

typedef struct problem {
    const dg_precision *precisions;
    int64_t layers;
    int32_t count;
    step *steps; /* the most error saved per byte first; a layer's in their order */
    int64_t step_count;
    int32_t *chosen;
    bool *closed; /* layers whose next step did not fit */
} problem;

static const dg_precision *precision_of(const problem *p, int64_t layer, int32_t index)
{
    return &p->precisions[layer * p->count + index];
}

static bool possible(const dg_precision *p)
{
    return isfinite(p->bytes) && isfinite(p->error);
}

/* The layer's precision of the fewest bytes, of those the one of the least error; -1: none. */
static int32_t smallest(const problem *p, int64_t layer)
{
    int32_t best = -1;
    for (int32_t i = 0; i < p->count; i++) {
        const dg_precision *a = precision_of(p, layer, i);
        const dg_precision *b = best < 0 ? NULL : precision_of(p, layer, best);
        if (possible(a) &&
            (b == NULL || a->bytes < b->bytes || (a->bytes == b->bytes && a->error < b->error)))
            best = i;
    }
    return best;
}

/* The step from `from` that saves the most error per byte; of equals, the longest. */
static bool best_step(const problem *p, int64_t layer, int32_t from, step *best)
{
    const dg_precision *a = precision_of(p, layer, from);
    *best = (step){.layer = layer, .from = from, .to = -1};
    for (int32_t i = 0; i < p->count; i++) {
        const dg_precision *b = precision_of(p, layer, i);
        if (!possible(b) || b->bytes <= a->bytes || b->error >= a->error)
            continue;
        double bytes = b->bytes - a->bytes, saved = a->error - b->error;
        double gain = saved * best->bytes - best->saved * bytes; /* against the best, crosswise */
        if (best->to < 0 || gain > 0.0 || (gain == 0.0 && bytes > best->bytes)) {
            best->to = i;
            best->bytes = bytes;
            best->saved = saved;
        }
    }
    return best->to >= 0;
}

static int by_gain(const void *a, const void *b)
{
    const step *x = a, *y = b;
    double left = x->saved / x->bytes, right = y->saved / y->bytes;
    if (left != right)
        return left > right ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* Puts every layer at its smallest precision and lists the steps up from there. */
static dg_status prepare(problem *p)
{
    for (int64_t layer = 0; layer < p->layers; layer++) {
        p->chosen[layer] = smallest(p, layer);
        if (p->chosen[layer] < 0)
            return dgi_fail(DG_INVALID_ARGUMENT, "precisions: layer %lld has none that is finite",
                            (long long)layer);
        step next;
        for (int32_t at = p->chosen[layer]; best_step(p, layer, at, &next); at = next.to)
            p->steps[p->step_count++] = next;
    }
    qsort(p->steps, (size_t)p->step_count, sizeof *p->steps, by_gain);
    return DG_OK;
}

static dg_precision total_of(const problem *p)
{
    dg_precision sum = {0.0, 0.0};
    for (int64_t layer = 0; layer < p->layers; layer++) {
        sum.bytes += precision_of(p, layer, p->chosen[layer])->bytes;
        sum.error += precision_of(p, layer, p->chosen[layer])->error;
    }
    return sum;
}

static void take(problem *p, step *s)
{
    s->taken = true;
    p->chosen[s->layer] = s->to;
}

/* Takes every step that still fits. */
static dg_status spend_bytes(problem *p, double limit)
{
    dg_precision sum = total_of(p);
    if (!(sum.bytes <= limit))
        return dgi_fail(DG_INVALID_ARGUMENT, "limit is %g bytes, but the least possible is %g",
                        limit, sum.bytes);
    for (int64_t i = 0; i < p->step_count; i++) {
        step *s = &p->steps[i];
        if (p->closed[s->layer])
            continue;
        take(p, s);
        dg_precision next = total_of(p);
        if (next.bytes <= limit)
            continue;
        p->chosen[s->layer] = s->from;
        p->closed[s->layer] = true;
    }
    return DG_OK;
}

/* Takes steps until the error is small enough, and gives back those that were not needed. */
static dg_status reach_error(problem *p, double limit)
{
    int64_t taken = 0;
    while (taken < p->step_count && !(total_of(p).error <= limit))
        take(p, &p->steps[taken++]);
    dg_precision sum = total_of(p);
    if (!(sum.error <= limit))
        return dgi_fail(DG_INVALID_ARGUMENT,
                        "limit is an error of %g, but the least possible is %g", limit, sum.error);
    while (taken-- > 0) { /* the least useful first; only a layer's last step can go */
        const step *s = &p->steps[taken];
        if (p->chosen[s->layer] != s->to)
            continue;
        p->chosen[s->layer] = s->from;
        if (!(total_of(p).error <= limit))
            p->chosen[s->layer] = s->to;
    }
    return DG_OK;
}

static dg_status check(const dg_precision *precisions, int64_t layers, int32_t count,
                       dg_budget budget, double limit, const int32_t *chosen)
{
    if (layers < 0 || count < 1 || layers > INT32_MAX)
        return dgi_fail(DG_INVALID_ARGUMENT, "precisions are %lld x %d: no such shape",
                        (long long)layers, count);
    if (layers > 0 && (precisions == NULL || chosen == NULL))
        return dgi_fail(DG_INVALID_ARGUMENT, "%s is NULL",
                        precisions == NULL ? "precisions" : "chosen");
    if (budget != DG_BUDGET_BYTES && budget != DG_BUDGET_ERROR)
        return dgi_fail(DG_INVALID_ARGUMENT, "budget is %d, not a dg_budget", budget);
    if (isnan(limit))
        return dgi_fail(DG_INVALID_ARGUMENT, "limit is not a number");
    for (int64_t i = 0; i < layers * count; i++)
        if (!(precisions[i].bytes >= 0.0 && precisions[i].error >= 0.0))
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "precisions of layer %lld: %g bytes with error %g; both must be 0 or "
                            "more",
                            (long long)(i / count), precisions[i].bytes, precisions[i].error);
    return DG_OK;
}

dg_status dg_precision_choose(const dg_precision *precisions, int64_t layers, int32_t count,
                              dg_budget budget, double limit, int32_t *chosen, dg_precision *total)
{
    DGI_TRY(check(precisions, layers, count, budget, limit, chosen));
    problem p = {.precisions = precisions, .layers = layers, .count = count};
    p.steps = malloc(((size_t)(layers * count) + 1) * sizeof *p.steps);
    p.chosen = malloc(((size_t)layers + 1) * sizeof *p.chosen);
    p.closed = calloc((size_t)layers + 1, sizeof *p.closed);
    dg_status status = p.steps == NULL || p.chosen == NULL || p.closed == NULL
                           ? dgi_no_memory("choosing precisions")
                           : prepare(&p);
    if (status == DG_OK)
        status = budget == DG_BUDGET_BYTES ? spend_bytes(&p, limit) : reach_error(&p, limit);
    if (status == DG_OK) {
        for (int64_t layer = 0; layer < layers; layer++)
            chosen[layer] = p.chosen[layer];
        if (total != NULL)
            *total = total_of(&p);
    }
    free(p.steps);
    free(p.chosen);
    free(p.closed);
    return status;
}
