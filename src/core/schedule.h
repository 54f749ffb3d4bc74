/* SPDX-License-Identifier: MIT */
/*
 * The schedule of grouped products on the host, step by step as grouped_setup.cu makes it on the
 * device: for explanations and tests.
 */
#ifndef DGI_SCHEDULE_H
#define DGI_SCHEDULE_H

#include "core/grouped.h"
#include "core/grouped_schedule.h"

typedef struct dgi_schedule {
    int32_t count, clusters;
    dgi_product_work *work; /* [count], in the order of the schedule: the longest tiles first */
    dgi_turn *turns;        /* [count] */
    dgi_cut *cuts;          /* [clusters + 1]; all alike where there are no stretches */
} dgi_schedule;

/* With `may_cut` false, all tiles are dealt out in turn. Release it in any case. */
dg_status dgi_schedule_make(dgi_schedule *schedule, const dgi_rates *rates,
                            const dgi_product_size *products, int32_t count, int32_t clusters,
                            bool may_cut);
void dgi_schedule_release(dgi_schedule *schedule);

#endif
