/* SPDX-License-Identifier: MIT */
/*
 * A context's pool of scratch memory, for any number of threads at once. A buffer that has been
 * given back serves the next call that fits in it, so a repeated call allocates nothing.
 */
#ifndef DGI_WORKSPACE_H
#define DGI_WORKSPACE_H

#include "core/status.h"

#include <pthread.h>

typedef struct dgi_workspace dgi_workspace;

typedef struct dgi_workspaces {
    pthread_mutex_t mutex;
    dgi_workspace *idle;
} dgi_workspaces;

void dgi_workspaces_open(dgi_workspaces *pool);
void dgi_workspaces_close(dgi_workspaces *pool);

/* Lends at least `bytes` bytes, DGI_WORKSPACE_ALIGNMENT aligned, until they are given back. */
enum { DGI_WORKSPACE_ALIGNMENT = 256 };
dg_status dgi_workspace_take(dgi_workspaces *pool, size_t bytes, void **memory);
void dgi_workspace_give_back(dgi_workspaces *pool, void *memory);

#endif
