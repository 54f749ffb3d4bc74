/* SPDX-License-Identifier: MIT */
/* JSON as checkpoints use it: see json.h. cJSON does the parsing. */
#include "io/json.h"

#include "core/status.h"
#include "io/file.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cJSON notes its last error in a variable of its own that all threads share. */
static pthread_mutex_t parser = PTHREAD_MUTEX_INITIALIZER;

/* Whether a text holds a zero as an escape, where the strings that cJSON makes would end. */
static bool has_escaped_zero(const char *text, size_t bytes)
{
    static const char zero[] = "u0000";
    for (size_t i = 0; i + sizeof zero <= bytes; i++)
        if (text[i] == '\\' && memcmp(text + ++i, zero, sizeof zero - 1) == 0)
            return true;
    return false;
}

/* How many bytes of a text are UTF-8 (RFC 3629): all, or those before the first that is not. */
static size_t utf8_bytes(const char *text, size_t bytes)
{
    const unsigned char *at = (const unsigned char *)text, *end = at + bytes;
    while (at < end) {
        int more = *at < 0x80 ? 0 : *at < 0xC2 ? -1 : *at < 0xE0 ? 1 : *at < 0xF0 ? 2 : 3;
        if (more < 0 || *at > 0xF4 || end - at <= more)
            break;
        /* Not what fewer bytes could say, nor surrogates, nor beyond U+10FFFF. */
        if ((*at == 0xE0 && at[1] < 0xA0) || (*at == 0xED && at[1] > 0x9F) ||
            (*at == 0xF0 && at[1] < 0x90) || (*at == 0xF4 && at[1] > 0x8F))
            break;
        int good = 1;
        while (good <= more && (at[good] & 0xC0) == 0x80)
            good++;
        if (good <= more)
            break;
        at += good;
    }
    return (size_t)(at - (const unsigned char *)text);
}

dg_status dgi_json_parse(const char *text, size_t bytes, const char *what, cJSON **object)
{
    if (bytes == 0)
        return dgi_fail(DG_BAD_FILE, "%s is empty", what);
    if (memchr(text, '\0', bytes) != NULL) /* cJSON would let it pass inside a string */
        return dgi_fail(DG_BAD_FILE, "%s is not JSON: it holds a zero byte", what);
    if (has_escaped_zero(text, bytes))
        return dgi_fail(DG_BAD_FILE, "%s: a text in it holds a zero byte (\\u0000)", what);
    size_t good = utf8_bytes(text, bytes);
    if (good < bytes)
        return dgi_fail(DG_BAD_FILE, "%s is not JSON: it is not UTF-8 at byte %zu of %zu", what,
                        good, bytes);
    /* A copy with a final zero: cJSON before 1.7.18 may read one byte beyond the length. */
    char *copy = malloc(bytes + 1);
    if (copy == NULL)
        return dgi_no_memory(what);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';

    const char *end = copy;
    pthread_mutex_lock(&parser);
    cJSON *parsed = cJSON_ParseWithLengthOpts(copy, bytes, &end, false);
    pthread_mutex_unlock(&parser);
    size_t used = (size_t)(end - copy);
    bool whole = used + strspn(copy + used, " \t\r\n") == bytes;
    free(copy);
    if (parsed == NULL)
        return dgi_fail(DG_BAD_FILE, "%s is not JSON: wrong at byte %zu of %zu", what, used, bytes);
    if (!whole || !cJSON_IsObject(parsed)) {
        cJSON_Delete(parsed);
        return dgi_fail(DG_BAD_FILE, "%s is not one JSON object", what);
    }
    *object = parsed;
    return DG_OK;
}

dg_status dgi_json_parse_file(const char *path, cJSON **object)
{
    dgi_map map;
    DGI_TRY(dgi_file_map(path, &map));
    dg_status status = dgi_json_parse(map.data, map.bytes, path, object);
    dgi_file_unmap(&map);
    return status;
}

int64_t dgi_json_size(const cJSON *item)
{
    const double limit = 9007199254740992.0; /* 2^53 */
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0.0 && item->valuedouble < limit))
        return -1;
    int64_t value = (int64_t)item->valuedouble;
    return (double)value == item->valuedouble ? value : -1;
}

const cJSON *dgi_json_get(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

const char *dgi_json_string(const cJSON *item)
{
    return cJSON_GetStringValue(item);
}

char *dgi_json_quote(const char *text)
{
    cJSON *item = cJSON_CreateString(text);
    char *quoted = cJSON_PrintUnformatted(item);
    cJSON_Delete(item);
    return quoted;
}
