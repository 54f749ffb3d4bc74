/* SPDX-License-Identifier: MIT */
#include "api/text.h"

#include "core/status.h"

#include <stdlib.h>

static dg_status no_memory(void)
{
    return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the explanation");
}

dg_status dgi_text_open(dgi_text *text)
{
    *text = (dgi_text){NULL, NULL, 0};
    text->stream = open_memstream(&text->whole, &text->length);
    return text->stream == NULL ? no_memory() : DG_OK;
}

dg_status dgi_text_close(dgi_text *text, dg_status status, char *buffer, size_t *bytes)
{
    const bool failed = ferror(text->stream) != 0;
    if (fclose(text->stream) != 0 || failed)
        status = status == DG_OK ? no_memory() : status;
    if (status == DG_OK) {
        const size_t capacity = buffer == NULL ? 0 : *bytes;
        if (capacity != 0)
            snprintf(buffer, capacity, "%s", text->whole);
        *bytes = text->length + 1;
    }
    free(text->whole);
    return status;
}
