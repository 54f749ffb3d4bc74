/* SPDX-License-Identifier: MIT */
/* The memo: it may forget, and never gives what was not kept; from many threads too. */
#include "core/memo.h"
#include "test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    uint64_t key[DGI_MEMO_KEY], value[DGI_MEMO_VALUE];
} entry;

/* The entry of a number: every word of its value follows from it. */
static entry entry_of(uint64_t number)
{
    entry e = {.key = {4096 * number + 64, 7168, 512, number % 3, 128}};
    for (int i = 0; i < DGI_MEMO_VALUE; i++)
        e.value[i] = number * 0x9E3779B97F4A7C15 + (uint64_t)i;
    return e;
}

/* Whether the memo gives the entry; the test fails when it gives another. */
static bool gives(const dgi_memo *memo, const entry *e)
{
    uint64_t value[DGI_MEMO_VALUE];
    if (!dgi_memo_find(memo, e->key, value))
        return false;
    assert_memory_equal(value, e->value, sizeof value);
    return true;
}

static void keeps_what_was_given(void **state)
{
    (void)state;
    dgi_memo *memo = calloc(1, sizeof *memo);
    enum { ENTRIES = 3 * DGI_MEMO_SLOTS };
    int early = 0;
    for (uint64_t i = 0; i < ENTRIES; i++) {
        const entry e = entry_of(i);
        assert_false(gives(memo, &e));
        dgi_memo_keep(memo, e.key, e.value);
        assert_true(gives(memo, &e));
        /* Of a model's 256 operands nearly all are still there at the end. */
        if (i == 255)
            for (uint64_t j = 0; j <= i; j++) {
                const entry before = entry_of(j);
                early += gives(memo, &before);
            }
    }
    assert_true(early > 250);
    int late = 0;
    for (uint64_t i = 0; i < ENTRIES; i++) {
        const entry e = entry_of(i);
        late += gives(memo, &e);
    }
    assert_in_range(late, DGI_MEMO_SLOTS * 3 / 4, DGI_MEMO_SLOTS);
    /* Each word of the key counts. */
    for (int i = 0; i < DGI_MEMO_KEY; i++) {
        entry e = entry_of(ENTRIES - 1), other = e;
        other.key[i] ^= (uint64_t)1 << 63;
        dgi_memo_keep(memo, e.key, e.value);
        assert_false(dgi_memo_find(memo, other.key, other.value));
    }
    free(memo);
}

enum { THREADS = 4, ROUNDS = 1000000, RIVALS = 4 };

typedef struct worker {
    dgi_memo *memo;
    const entry *rivals;
    uint64_t step;
    int hits, wrong; /* cmocka's assertions belong to the main thread */
} worker;

static void *work(void *argument)
{
    worker *w = argument;
    for (uint64_t i = 0; i < ROUNDS; i++) {
        const entry *e = &w->rivals[i / 5 * w->step % RIVALS];
        uint64_t value[DGI_MEMO_VALUE];
        if (i % 5 == 0)
            dgi_memo_keep(w->memo, e->key, e->value);
        else if (dgi_memo_find(w->memo, e->key, value)) {
            w->hits++;
            w->wrong += memcmp(value, e->value, sizeof value) != 0;
        }
    }
    return NULL;
}

/* All threads read and write the same two slots. */
static void many_threads(void **state)
{
    (void)state;
    dgi_memo *memo = calloc(1, sizeof *memo);
    entry rivals[RIVALS] = {entry_of(0)};
    int count = 1;
    for (uint64_t i = 1; count < RIVALS; i++) {
        const entry e = entry_of(i);
        memset(memo, 0, sizeof *memo);
        dgi_memo_keep(memo, rivals[0].key, rivals[0].value);
        dgi_memo_keep(memo, e.key, e.value);
        dgi_memo_keep(memo, e.key, e.value);
        if (!gives(memo, &rivals[0])) /* it took both of the slots */
            rivals[count++] = e;
    }
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.memo = memo, .rivals = rivals, .step = (uint64_t)i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    int hits = 0;
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
        hits += workers[i].hits;
    }
    assert_true(hits > 0);
    free(memo);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_what_was_given),
        cmocka_unit_test(many_threads),
    };
    return test_run(argc, argv, tests);
}
