/* SPDX-License-Identifier: MIT */
/* Tensors as people read them: what `quantize` and `inspect` share. */
#ifndef CLI_TENSORS_H
#define CLI_TENSORS_H

#include "cli.h"

/* "576 x 1536", of malloc's. */
char *tensors_shape(const int64_t *shape, int32_t rank);

/*
 * The name with each number between dots as '*', of malloc's: "model.layers.*.mlp.up_proj.weight".
 * It is the same for the layers of a kind, of which a table shows one line.
 */
char *tensors_kind(const char *name);

/* Whether two texts are equal; NULL equals only NULL. */
bool tensors_same(const char *a, const char *b);

#endif
