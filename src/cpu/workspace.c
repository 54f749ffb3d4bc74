/* SPDX-License-Identifier: MIT */
/* The pool of scratch memory: a free list under a mutex. Called by gemm.c. */
#include "cpu/workspace.h"

#include <stdlib.h>

/* Stands before the memory it describes, in a block of the alignment of its own. */
struct dgi_workspace {
    dgi_workspace *next;
    size_t bytes;
};

void dgi_workspaces_open(dgi_workspaces *pool)
{
    pthread_mutex_init(&pool->mutex, NULL);
    pool->idle = NULL;
}

void dgi_workspaces_close(dgi_workspaces *pool)
{
    while (pool->idle != NULL) {
        dgi_workspace *next = pool->idle->next;
        free(pool->idle);
        pool->idle = next;
    }
    pthread_mutex_destroy(&pool->mutex);
}

/* Takes the first idle buffer of at least `bytes` off the list, or else the first one at all. */
static dgi_workspace *take_idle(dgi_workspaces *pool, size_t bytes)
{
    pthread_mutex_lock(&pool->mutex);
    dgi_workspace **link = &pool->idle;
    for (dgi_workspace **each = link; *each != NULL; each = &(*each)->next)
        if ((*each)->bytes >= bytes) {
            link = each;
            break;
        }
    dgi_workspace *found = *link;
    if (found != NULL)
        *link = found->next;
    pthread_mutex_unlock(&pool->mutex);
    return found;
}

dg_status dgi_workspace_take(dgi_workspaces *pool, size_t bytes, void **memory)
{
    dgi_workspace *buffer = take_idle(pool, bytes);
    if (buffer != NULL && buffer->bytes < bytes) {
        free(buffer); /* the larger one that replaces it will serve its calls, too */
        buffer = NULL;
    }
    if (buffer == NULL) {
        size_t size = (bytes / DGI_WORKSPACE_ALIGNMENT + 2) * DGI_WORKSPACE_ALIGNMENT;
        buffer = size < bytes ? NULL : aligned_alloc(DGI_WORKSPACE_ALIGNMENT, size);
        if (buffer == NULL)
            return dgi_fail(DG_OUT_OF_MEMORY, "no memory for %zu bytes of workspace", bytes);
        buffer->bytes = size - DGI_WORKSPACE_ALIGNMENT;
    }
    *memory = (char *)buffer + DGI_WORKSPACE_ALIGNMENT;
    return DG_OK;
}

void dgi_workspace_give_back(dgi_workspaces *pool, void *memory)
{
    dgi_workspace *buffer = (dgi_workspace *)((char *)memory - DGI_WORKSPACE_ALIGNMENT);
    pthread_mutex_lock(&pool->mutex);
    buffer->next = pool->idle;
    pool->idle = buffer;
    pthread_mutex_unlock(&pool->mutex);
}
