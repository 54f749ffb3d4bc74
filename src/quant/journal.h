/* SPDX-License-Identifier: MIT */
/*
 * The journal of a run, in its temporary folder: who it is, and which items are on the disk with
 * what result. A later run of the same identity goes on from there.
 */
#ifndef DGI_JOURNAL_H
#define DGI_JOURNAL_H

#include "quant/stream.h"

#include <stdio.h>

typedef struct dgi_journal {
    char *path;
    FILE *file;
    size_t items;        /* of the plan */
    bool *done;          /* those that an earlier run had finished ... */
    dgi_result *results; /* ... and what it found; this run's are put here too */
    size_t *pending;     /* items that are not noted in the file yet */
    size_t pending_count;
} dgi_journal;

/*
 * The text that tells runs apart: the library's version, the options, and names, sizes and times of
 * the files that are read. To be freed; NULL without memory.
 */
char *dgi_journal_identity(const dg_checkpoint *input, const dg_checkpoint *scales,
                           const dg_checkpoint_options *options, bool convert);

/* Opens the journal in the folder and reads what is behind the identity. Close it also after a
 * failure. */
dg_status dgi_journal_open(const char *folder, const char *identity, size_t items,
                           dgi_journal *journal);
/* Notes that an item is done; it counts when dgi_journal_sync() has returned, which must come after
 * the item's data are on the disk. */
void dgi_journal_add(dgi_journal *journal, size_t item, const dgi_result *result);
dg_status dgi_journal_sync(dgi_journal *journal);
void dgi_journal_close(dgi_journal *journal);

#endif
