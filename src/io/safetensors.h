/* SPDX-License-Identifier: MIT */
/*
 * The safetensors format: 8 bytes with the length of the header (little-endian), the header (a JSON
 * object: name -> dtype, shape, data_offsets; offsets count from the header's end), the data. The
 * tensors' data follow one another without a gap and fill the file.
 */
#ifndef DGI_SAFETENSORS_H
#define DGI_SAFETENSORS_H

#include "deepgemm.h"

/* What one file holds. */
typedef struct dgi_safetensors {
    dg_tensor **tensors; /* in the order of their data; each one is an allocation of its own */
    dg_tensor **by_name; /* the same, ordered by name */
    size_t count;
    char *metadata; /* the member __metadata__ as JSON text, or NULL */
} dgi_safetensors;

/*
 * Reads and checks the header of a file of `bytes` bytes at `data`. The tensors point into the
 * data and have `file` as their file; both must outlive them. Called with hostile input.
 */
dg_status dgi_safetensors_parse(const void *data, size_t bytes, const char *file,
                                dgi_safetensors *parsed);
void dgi_safetensors_free(dgi_safetensors *parsed);

/* Bits of an element of a stored type ("BF16"), and its dg_dtype where it has one; 0: unknown. */
int32_t dgi_stored_type(const char *name, dg_dtype *dtype);
/*
 * Orders tensors by name; DG_BAD_FILE when two have the same one (`where` is for the message).
 * Finds one among tensors so ordered, or NULL.
 */
dg_status dgi_order_by_name(dg_tensor **tensors, size_t count, const char *where);
dg_tensor *dgi_find_by_name(dg_tensor *const *tensors, size_t count, const char *name);
/* Its place among them, `count` when it is not there. */
size_t dgi_index_by_name(dg_tensor *const *tensors, size_t count, const char *name);

/* Orders tensors by the name of their file, then by their place in it. */
void dgi_order_by_place(dg_tensor **tensors, size_t count);

/*
 * A new tensor with copies of its name and type, and a shape of zeros to be filled in. NULL without
 * memory; released with free().
 */
dg_tensor *dgi_tensor_new(const char *name, const char *stored_type, int32_t rank);

#endif
