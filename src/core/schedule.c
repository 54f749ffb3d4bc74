/* SPDX-License-Identifier: MIT */
#include "core/schedule.h"

#include "core/status.h"

#include <stdlib.h>

/* A product that is to be ranked. */
typedef struct ranked {
    dgi_product_work work;
    int32_t product;
} ranked;

static int compare(const void *x, const void *y)
{
    const ranked *p = x, *q = y;
    return dgi_comes_before(p->work.tile, p->product, q->work.tile, q->product) ? -1 : 1;
}

static dg_status rank(dgi_schedule *s, const dgi_rates *rates, const dgi_product_size *products)
{
    ranked *all = malloc(((size_t)s->count + 1) * sizeof *all);
    if (all == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory to rank %d products", s->count);
    for (int32_t i = 0; i < s->count; i++)
        all[i] = (ranked){dgi_work_of(rates, products[i].m, products[i].n, products[i].k), i};
    qsort(all, (size_t)s->count, sizeof *all, compare);
    for (int32_t i = 0; i < s->count; i++) {
        s->work[i] = all[i].work;
        s->turns[i] = (dgi_turn){.product = all[i].product, .tiles = all[i].work.tiles};
    }
    free(all);
    return DG_OK;
}

/* Whether tiles are to be cut; *all is the work of all of them. */
static bool must_stretch(const dgi_schedule *s, const dgi_rates *rates, int64_t *all)
{
    int64_t most = 0;
    *all = 0;
    for (int32_t i = 0, before = 0; i < s->count; before += s->work[i++].tiles) {
        most += dgi_most_in_turn(before, &s->work[i], s->clusters);
        *all += (int64_t)s->work[i].tiles * s->work[i].tile;
    }
    return dgi_must_stretch(most, *all, rates, s->clusters);
}

/* Numbers the tiles that are dealt out in turn. */
static void number_turns(dgi_schedule *s, bool stretch)
{
    int64_t before = 0;
    int32_t end = 0;
    for (int32_t i = 0; i < s->count; i++) {
        const dgi_product_work *w = &s->work[i];
        const int32_t stretched = stretch ? dgi_stretched_tiles(before, w, s->clusters) : 0;
        s->turns[i].offset = end - stretched;
        s->turns[i].end = end += w->tiles - stretched;
        before += (int64_t)w->tiles * w->tile;
    }
}

static int64_t work_in_turn(const dgi_schedule *s, int32_t cluster)
{
    int64_t work = 0;
    int32_t tile = cluster;
    for (int32_t i = 0; i < s->count; i++)
        for (; tile < s->turns[i].end; tile += s->clusters)
            work += s->work[i].tile;
    return work;
}

static void cut(dgi_schedule *s, int64_t all)
{
    int64_t in_turn = 0, before = 0; /* of the clusters so far; of the products so far */
    int32_t i = 0;
    for (int32_t c = 0; c <= s->clusters; c++) {
        const int64_t border = c * all / s->clusters - in_turn;
        while (i + 1 < s->count && s->work[i + 1].tiles > 0 &&
               before + (int64_t)s->work[i].tiles * s->work[i].tile <= border) {
            before += (int64_t)s->work[i].tiles * s->work[i].tile;
            i++;
        }
        s->cuts[c] = dgi_cut_at(border - before, i, &s->work[i]);
        s->cuts[c].product = s->turns[i].product;
        in_turn += work_in_turn(s, c);
    }
    for (int32_t c = 0; c <= s->clusters; c++) {
        dgi_cut complete = s->cuts[c];
        dgi_find_parts(s->cuts, c, s->clusters + 1, &complete);
        s->cuts[c].part = complete.part;
        s->cuts[c].parts = complete.parts;
        s->cuts[c].slot = complete.slot;
    }
}

dg_status dgi_schedule_make(dgi_schedule *s, const dgi_rates *rates,
                            const dgi_product_size *products, int32_t count, int32_t clusters,
                            bool may_cut)
{
    *s = (dgi_schedule){
        .count = count,
        .clusters = clusters,
        .work = malloc(((size_t)count + 1) * sizeof *s->work),
        .turns = malloc(((size_t)count + 1) * sizeof *s->turns),
        .cuts = calloc((size_t)clusters + 1, sizeof *s->cuts),
    };
    if (s->work == NULL || s->turns == NULL || s->cuts == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the schedule of %d products", count);
    DGI_TRY(rank(s, rates, products));
    int64_t all = 0;
    const bool stretch = may_cut && must_stretch(s, rates, &all);
    number_turns(s, stretch);
    if (stretch)
        cut(s, all);
    return DG_OK;
}

void dgi_schedule_release(dgi_schedule *s)
{
    free(s->work);
    free(s->turns);
    free(s->cuts);
}
