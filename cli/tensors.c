/* SPDX-License-Identifier: MIT */
/* Tensors as people read them: see tensors.h. */
#include "tensors.h"

#include <stdlib.h>
#include <string.h>

char *tensors_shape(const int64_t *shape, int32_t rank)
{
    char *text = cli_format("%s", rank == 0 ? "scalar" : "");
    for (int32_t i = 0; i < rank; i++) {
        char *longer = cli_format("%s%s%lld", text, i == 0 ? "" : " x ", (long long)shape[i]);
        free(text);
        text = longer;
    }
    return text;
}

char *tensors_kind(const char *name)
{
    char *kind = cli_format("%s", name), *to = kind;
    for (const char *from = name; *from != '\0';) {
        size_t digits = strspn(from, "0123456789");
        bool whole = digits > 0 && (from == name || from[-1] == '.') &&
                     (from[digits] == '.' || from[digits] == '\0');
        if (whole) {
            *to++ = '*';
            from += digits;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
    return kind;
}

bool tensors_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}
