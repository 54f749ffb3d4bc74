/* SPDX-License-Identifier: MIT */
/* What statistics of activations consist of: see dg_statistics. */
#ifndef DGI_STATISTICS_H
#define DGI_STATISTICS_H

#include "quant/histogram.h"

/* One layer. An allocation of its own, with everything that it points at; released with free(). */
typedef struct dgi_observer {
    const char *layer;
    int64_t features;
    int64_t tokens, batches, non_finite;
    float *amaxes;             /* [features] */
    double *squares;           /* [features] */
    dgi_histogram *histograms; /* [groups] */
    int64_t groups;
} dgi_observer;

struct dg_statistics {
    int32_t block_cols, bits;
    dgi_observer **observers; /* ordered by name */
    int64_t count, room;
};

dg_status dgi_check_statistics_options(const dg_statistics_options *options);

/* The layer of that name, or NULL. */
dgi_observer *dgi_statistics_find(const dg_statistics *statistics, const char *layer);
/* The same; made, with nothing seen, where there is none. */
dg_status dgi_statistics_need(dg_statistics *statistics, const char *layer, int64_t features,
                              dgi_observer **observer);

/*
 * Whether both names are of experts of one kind in one block: they differ in nothing but the number
 * after "experts.".
 */
bool dgi_are_siblings(const char *layer, const char *other);

#endif
