/* SPDX-License-Identifier: MIT */
/*
 * Files for the tests of checkpoints: a folder that goes away again, and safetensors files put
 * together here, byte by byte, so that the library's reader is not tested by its own writer.
 */
#ifndef TEST_FILES_H
#define TEST_FILES_H

#include "deepgemm.h"

/* A new empty folder. The tests's folders and all in them are removed when the program ends. */
const char *files_folder(void);
/* "folder/name", valid until the program ends. */
const char *files_path(const char *folder, const char *name);
void files_make_folder(const char *path);
void files_write(const char *path, const void *data, size_t bytes);
void files_write_text(const char *path, const char *text);
/* A file's bytes with a zero behind them; the test fails when it cannot be read. */
char *files_read(const char *path, size_t *bytes);
bool files_exist(const char *path);
/* Removes a file, or a folder with all in it; nothing when there is none. */
void files_remove(const char *path);
/* How many entries of the folder have names that begin with `prefix`. */
int files_count(const char *folder, const char *prefix);
/* Both folders hold files of the same names with the same bytes. */
void files_expect_same(const char *folder, const char *other);

/* The checkpoint there; the test fails when it does not open. */
dg_checkpoint *open_checkpoint(const char *path);
/* dg_checkpoint_convert() or dg_checkpoint_quantize() with a context of its own. */
dg_status write_as(bool convert, const char *input, const char *output,
                   const dg_checkpoint_options *options);

/* The bytes of a safetensors file with this header and data: to be freed. */
char *safetensors_bytes(const char *header, const void *data, size_t data_bytes, size_t *bytes);

/* A tensor to be stored; bytes follow from the shape and element_bytes. */
typedef struct stored {
    const char *name, *type;
    size_t element_bytes;
    int64_t rows, cols; /* cols 0: a vector of `rows` */
    const void *data;
} stored;
/* Writes a safetensors file with these tensors, in this order. */
void safetensors_write(const char *path, const stored *tensors, size_t count);
/* The same with that JSON text as its metadata; NULL: none. */
void safetensors_write_with(const char *path, const char *metadata, const stored *tensors,
                            size_t count);

#endif
