/* SPDX-License-Identifier: MIT */
/* Text cut into pieces of the same length, to be run side by side; what does not fill one is left
 * out. */
#ifndef CLI_PIECES_H
#define CLI_PIECES_H

#include "cli.h"
#include "llama.h"

typedef struct pieces {
    int32_t *ids; /* [count, tokens], of malloc's */
    int64_t count, tokens;
} pieces;

/* Which text, set by options; `text` NULL is tokens.safetensors in the model's folder. */
typedef struct pieces_source {
    const char *text;
    int64_t length, tokens; /* of a piece, and of all of them at most */
} pieces_source;

/* The options of a source; the defaults, as texts, are what it holds before. */
#define PIECES_OPTIONS(source, default_length, default_tokens)                                     \
    ((cli_option){"text", "file", CLI_TEXT, &(source).text,                                        \
                  "token ids: `ids`, I32, of a safetensors file (default: "                        \
                  "<model>/tokens.safetensors)"}),                                                 \
        ((cli_option){"length", "n", CLI_COUNT, &(source).length,                                  \
                      "tokens of a piece of text (default " default_length ")"}),                  \
        ((cli_option){"tokens", "n", CLI_COUNT, &(source).tokens,                                  \
                      "the most tokens to run (default " default_tokens ")"})

/*
 * The text of that model, opened from that folder, in pieces, or in the pieces that its texts are
 * where they are shorter; dies when not even one is left.
 */
pieces pieces_read(const llama *model, const char *folder, const pieces_source *source);
/* Moves `count` of the pieces, evenly spread, to the end. */
void pieces_hold_out(pieces *p, int64_t count);
void pieces_free(pieces *p);

#endif
