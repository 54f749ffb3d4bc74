/* SPDX-License-Identifier: MIT */
/* Text in pieces: see pieces.h. */
#include "pieces.h"

#include <stdlib.h>
#include <string.h>

pieces pieces_read(const llama *model, const char *folder, const pieces_source *source)
{
    int64_t length = source->length, most_tokens = source->tokens;
    if (length < 1 || most_tokens < 1)
        cli_misuse("--%s must be at least 1", length < 1 ? "length" : "tokens");
    char *file = source->text != NULL ? cli_format("%s", source->text)
                                      : cli_format("%s/tokens.safetensors", folder);
    llama_text text = llama_read_text(model, file);
    if (length > text.tokens)
        length = text.tokens;
    int64_t each = text.tokens / length, count = text.sequences * each;
    if (count * length > most_tokens)
        count = most_tokens / length;
    if (count == 0)
        cli_die("%s: at most %lld tokens of it make no piece of %lld", file, (long long)most_tokens,
                (long long)length);
    pieces p = {cli_alloc((size_t)(count * length) * sizeof *p.ids), count, length};
    for (int64_t i = 0; i < count; i++)
        memcpy(p.ids + i * length, text.ids + i / each * text.tokens + i % each * length,
               (size_t)length * sizeof *p.ids);
    free(text.ids);
    free(file);
    return p;
}

void pieces_hold_out(pieces *p, int64_t count)
{
    int32_t *ids = cli_alloc((size_t)(p->count * p->tokens) * sizeof *ids);
    int64_t front = 0, back = p->count - count;
    for (int64_t i = 0; i < p->count; i++) {
        bool out = (i + 1) * count / p->count != i * count / p->count;
        int64_t place = out ? back++ : front++;
        memcpy(ids + place * p->tokens, p->ids + i * p->tokens, (size_t)p->tokens * sizeof *ids);
    }
    free(p->ids);
    p->ids = ids;
}

void pieces_free(pieces *p)
{
    free(p->ids);
}
