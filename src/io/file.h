/* SPDX-License-Identifier: MIT */
/* Files and paths, for the readers and writers of checkpoints. */
#ifndef DGI_FILE_H
#define DGI_FILE_H

#include "deepgemm.h"

/* A whole file, mapped read-only. An empty file has data NULL. */
typedef struct dgi_map {
    const void *data;
    size_t bytes;
} dgi_map;

dg_status dgi_file_map(const char *path, dgi_map *map);
void dgi_file_unmap(dgi_map *map);

/*
 * Gives mapped pages back to the system once they have been used; they are read again when they
 * are touched again. Without this a mapped file counts as memory in use.
 */
void dgi_drop_pages(const void *data, size_t bytes);

/* Writes all of `bytes` at `offset`; `path` is for the message. */
dg_status dgi_file_write(int file, const void *data, size_t bytes, int64_t offset,
                         const char *path);
/* A file that did not exist, holding `text`, on disk when the call returns. */
dg_status dgi_file_create(const char *path, const void *text, size_t bytes);

/* "folder/name", to be freed; NULL without memory. */
char *dgi_path_join(const char *folder, const char *name);
/* The folder part of `path` ("." where it has none), to be freed; NULL without memory. */
char *dgi_path_folder(const char *path);
/* Where the last part of `path` begins. */
const char *dgi_path_name(const char *path);
bool dgi_ends_with(const char *text, const char *end);

/* "no memory for <what>" */
dg_status dgi_no_memory(const char *what);
/* "cannot <verb> <path>: <reason>" with the reason from errno. */
dg_status dgi_io_error(const char *verb, const char *path);

#endif
