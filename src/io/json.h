/* SPDX-License-Identifier: MIT */
/* JSON as checkpoints use it: strict where a wrong number would become a wrong address. */
#ifndef DGI_JSON_H
#define DGI_JSON_H

#include "deepgemm.h"

#include <cJSON.h>

/*
 * Parses an object that takes up all of `text`; spaces may follow it. `what` names the text in the
 * message. Release with cJSON_Delete().
 */
dg_status dgi_json_parse(const char *text, size_t bytes, const char *what, cJSON **object);
dg_status dgi_json_parse_file(const char *path, cJSON **object);

/* The value of an integer from 0 to 2^53 - 1, which a double holds exactly; -1 for all else. */
int64_t dgi_json_size(const cJSON *item);

/* Member of an object by its exact name, or NULL. */
const cJSON *dgi_json_get(const cJSON *object, const char *name);
/* A string's text, or NULL for anything else. */
const char *dgi_json_string(const cJSON *item);

/* `text` as a JSON string with its quotes, to be released with cJSON_free(); NULL without memory.
 */
char *dgi_json_quote(const char *text);

#endif
