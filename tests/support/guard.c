/* SPDX-License-Identifier: MIT */
/* Memory between pages that cannot be touched: see guard.h. */
#include "guard.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

guard guard_new(size_t bytes, guard_side side, int fill)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = (bytes + page - 1) / page * page;
    guard g = {.bytes = bytes, .mapping_bytes = inside + 2 * page};
    g.mapping = mmap(NULL, g.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *first = (char *)g.mapping + page;
    if (g.mapping == MAP_FAILED ||
        (inside != 0 && mprotect(first, inside, PROT_READ | PROT_WRITE))) {
        perror("guard_new");
        abort();
    }
    g.data = side == GUARD_BEFORE ? first : first + inside - bytes;
    memset(g.data, fill, bytes);
    return g;
}

void guard_free(guard *g)
{
    if (g->mapping != NULL)
        munmap(g->mapping, g->mapping_bytes);
    *g = (guard){0};
}
