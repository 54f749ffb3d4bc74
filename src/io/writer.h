/* SPDX-License-Identifier: MIT */
/*
 * Writing a safetensors file as its tensors become ready: the header follows from names, types and
 * shapes, so it is written first, and every tensor has its place before any data exist.
 */
#ifndef DGI_WRITER_H
#define DGI_WRITER_H

#include "deepgemm.h"

typedef struct dgi_writer dgi_writer;

/*
 * Creates the file at `path`, which must not exist, and reserves all of its space, so that a disk
 * that is too small is found out now. The tensors' names, types, shapes and bytes count; they must
 * outlive the writer. Wide types come first in the file, so that each tensor is aligned for its
 * type. `metadata` is the JSON text of __metadata__, or NULL.
 */
dg_status dgi_writer_open(const char *path, dg_tensor *const *tensors, size_t count,
                          const char *metadata, dgi_writer **writer);
/*
 * The same, but takes up a file that an earlier run began for the same tensors: *resumed says
 * whether there was one. A file that is something else is overwritten.
 */
dg_status dgi_writer_resume(const char *path, dg_tensor *const *tensors, size_t count,
                            const char *metadata, bool *resumed, dgi_writer **writer);
/* Writes bytes at an offset inside tensor `index`. Threads may do so at the same time. */
dg_status dgi_writer_write(dgi_writer *writer, size_t index, size_t offset, const void *data,
                           size_t bytes);
/* Brings what has been written to the disk. */
dg_status dgi_writer_sync(const dgi_writer *writer);
/* Brings the file to the disk and releases the writer; also after an error of the above. */
dg_status dgi_writer_close(dgi_writer *writer);

#endif
