/* SPDX-License-Identifier: MIT */
/*
 * Each key has two slots. A reader copies one and then looks whether its version is still the one
 * from before. Acquiring and releasing every word keeps these steps in order; on x86 it is free.
 */
#include "core/memo.h"

/* The first of a key's slots; the other follows. */
static uint64_t slot_of(const uint64_t key[DGI_MEMO_KEY])
{
    const uint64_t odd = 0x9E3779B97F4A7C15; /* 2^64 over the golden ratio: mixes into high bits */
    uint64_t mixed = 0;
    for (int i = 0; i < DGI_MEMO_KEY; i++)
        mixed = (mixed ^ (mixed >> 32) ^ key[i]) * odd;
    return (mixed >> 32) % (DGI_MEMO_SLOTS / 2) * 2;
}

static bool read_slot(const dgi_memo_slot *slot, const uint64_t key[DGI_MEMO_KEY],
                      uint64_t value[DGI_MEMO_VALUE])
{
    const uint64_t version = atomic_load_explicit(&slot->version, memory_order_acquire);
    if (version == 0 || version % 2 != 0)
        return false;
    for (int i = 0; i < DGI_MEMO_KEY; i++)
        if (atomic_load_explicit(&slot->key[i], memory_order_acquire) != key[i])
            return false;
    for (int i = 0; i < DGI_MEMO_VALUE; i++)
        value[i] = atomic_load_explicit(&slot->value[i], memory_order_acquire);
    return atomic_load_explicit(&slot->version, memory_order_relaxed) == version;
}

bool dgi_memo_find(const dgi_memo *memo, const uint64_t key[DGI_MEMO_KEY],
                   uint64_t value[DGI_MEMO_VALUE])
{
    const dgi_memo_slot *slot = &memo->slots[slot_of(key)];
    return read_slot(slot, key, value) || read_slot(slot + 1, key, value);
}

void dgi_memo_keep(dgi_memo *memo, const uint64_t key[DGI_MEMO_KEY],
                   const uint64_t value[DGI_MEMO_VALUE])
{
    dgi_memo_slot *slot = &memo->slots[slot_of(key)];
    uint64_t version = atomic_load_explicit(&slot->version, memory_order_relaxed);
    const uint64_t other = atomic_load_explicit(&slot[1].version, memory_order_relaxed);
    if (other < version) { /* the one that has changed less often */
        slot++;
        version = other;
    }
    if (version % 2 != 0 ||
        !atomic_compare_exchange_strong_explicit(&slot->version, &version, version + 1,
                                                 memory_order_acquire, memory_order_relaxed))
        return; /* another thread is writing here: its result is as good */
    for (int i = 0; i < DGI_MEMO_KEY; i++)
        atomic_store_explicit(&slot->key[i], key[i], memory_order_release);
    for (int i = 0; i < DGI_MEMO_VALUE; i++)
        atomic_store_explicit(&slot->value[i], value[i], memory_order_release);
    atomic_store_explicit(&slot->version, version + 2, memory_order_release);
}
