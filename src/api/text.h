/* SPDX-License-Identifier: MIT */
/* Texts that grow as they are written and then go to a caller's buffer: the explanations. */
#ifndef DGI_TEXT_H
#define DGI_TEXT_H

#include "deepgemm.h"

#include <stdio.h>

typedef struct dgi_text {
    FILE *stream;
    char *whole; /* complete when the stream is closed */
    size_t length;
} dgi_text;

dg_status dgi_text_open(dgi_text *text);
/*
 * Closes the text. When `status`, that of who wrote it, is DG_OK, the caller gets it by the
 * contract of dg_gemm_explain().
 */
dg_status dgi_text_close(dgi_text *text, dg_status status, char *buffer, size_t *bytes);

#endif
