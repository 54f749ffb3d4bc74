/* SPDX-License-Identifier: MIT */
/* Which layers of a checkpoint stay as they are: patterns over tensor names. */
#ifndef DGI_KEEP_H
#define DGI_KEEP_H

#include "deepgemm.h"

#include <regex.h>

typedef struct dgi_pattern {
    const char *text;
    bool is_expression;
    regex_t expression; /* of "re:" patterns */
    int64_t matches;
} dgi_pattern;

/* The caller's patterns, and the library's own after them. */
typedef struct dgi_keep {
    dgi_pattern *patterns;
    int32_t count;
} dgi_keep;

dg_status dgi_keep_open(const char *const *texts, int32_t count, dgi_keep *keep);
void dgi_keep_close(dgi_keep *keep);

/*
 * The first pattern that keeps the weight of that name ("....weight", and without that end), or
 * NULL. Counts a match for each pattern that does.
 */
const char *dgi_keep_match(dgi_keep *keep, const char *tensor, const char *layer);
/* Whether there is one, without counting. */
bool dgi_keep_finds(const dgi_keep *keep, const char *tensor, const char *layer);

#endif
