/* SPDX-License-Identifier: MIT */
/*
 * Results by their arguments, for many threads and without a lock. It forgets: a result takes the
 * place of another. What it gives is what was kept for exactly these arguments.
 */
#ifndef DGI_MEMO_H
#define DGI_MEMO_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { DGI_MEMO_SLOTS = 2048, DGI_MEMO_KEY = 6, DGI_MEMO_VALUE = 16 }; /* words of 64 bits */

typedef struct dgi_memo_slot {
    _Atomic uint64_t version; /* 0: empty; odd: a thread is writing it */
    _Atomic uint64_t key[DGI_MEMO_KEY], value[DGI_MEMO_VALUE];
} dgi_memo_slot;

/* Begins as zeros. */
typedef struct dgi_memo {
    dgi_memo_slot slots[DGI_MEMO_SLOTS];
} dgi_memo;

bool dgi_memo_find(const dgi_memo *memo, const uint64_t key[DGI_MEMO_KEY],
                   uint64_t value[DGI_MEMO_VALUE]);
void dgi_memo_keep(dgi_memo *memo, const uint64_t key[DGI_MEMO_KEY],
                   const uint64_t value[DGI_MEMO_VALUE]);

#endif
