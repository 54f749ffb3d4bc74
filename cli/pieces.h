/* SPDX-License-Identifier: MIT */
/* Text cut into pieces of the same length, to be run side by side; what does not fill one is left
 * out. */
#ifndef CLI_PIECES_H
#define CLI_PIECES_H

#include "llama.h"

typedef struct pieces {
    int32_t *ids; /* [count, tokens], of malloc's */
    int64_t count, tokens;
} pieces;

/*
 * At most `most_tokens` tokens of the model's text in pieces of `length`, or of the length of its
 * texts where they are shorter; dies when not even one is left. `path` NULL is tokens.safetensors
 * in the model's folder.
 */
pieces pieces_read(const llama *model, const char *folder, const char *path, int64_t length,
                   int64_t most_tokens);
/* Moves `count` of the pieces, evenly spread, to the end. */
void pieces_hold_out(pieces *p, int64_t count);
void pieces_free(pieces *p);

#endif
