/* SPDX-License-Identifier: MIT */
/*
 * Memory that catches a stray access: a page that cannot be touched lies directly behind it (or
 * before it), so reading or writing one byte too far ends the program. For host memory only.
 */
#ifndef TEST_GUARD_H
#define TEST_GUARD_H

#include <stddef.h>

typedef enum guard_side {
    GUARD_AFTER, /* the last byte is followed by the guard page  */
    GUARD_BEFORE /* the first byte is preceded by the guard page */
} guard_side;

typedef struct guard {
    void *data;
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
} guard;

/* Every byte of the memory holds `fill`. Aborts when there is no memory. */
guard guard_new(size_t bytes, guard_side side, int fill);
void guard_free(guard *g);

#endif
