/* SPDX-License-Identifier: MIT */
/* Which layers of a checkpoint stay as they are: see keep.h and docs/checkpoints.md. */
#include "quant/keep.h"

#include "core/status.h"
#include "io/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Layers that lose most by FP8, or that no server multiplies in FP8. */
static const char *const kept_by_default[] = {
    /* output heads, that of multi-token prediction too */
    "lm_head",
    "shared_head.head",
    "classifier",
    "score",
    /* its projection, which servers load in 16 bits */
    "eh_proj",
    /* embeddings */
    "re:.*embed",
    "wte",
    "wpe",
    "re:.*norm",
    /* which experts a token goes to */
    "re:(.*\\.)?(gate|router|shared_expert_gate)$",
};
#define DEFAULTS ((int32_t)(sizeof kept_by_default / sizeof kept_by_default[0]))

#define EXPRESSION_PREFIX "re:"

/* ---- regular expressions ------------------------------------------------------------- */

/*
 * Python and POSIX agree on most of what one writes in such a pattern. What they read differently,
 * or what only Python knows, is refused rather than misunderstood.
 */
static dg_status check_portable(const char *pattern)
{
    for (const char *c = pattern; *c != '\0'; c++) {
        if (*c == '\\') {
            c++;
            if (*c == '\0' || isalnum((unsigned char)*c) || *c == ']')
                return dgi_fail(DG_INVALID_ARGUMENT,
                                "keep pattern re:%s: \\%c has no meaning here; write [0-9] for \\d "
                                "and so on",
                                pattern, *c == '\0' ? ' ' : *c);
        } else if (*c == '(' && c[1] == '?') {
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "keep pattern re:%s: (?...) has no meaning in a POSIX expression",
                            pattern);
        } else if (strchr("*+?}", *c) != NULL && c[1] != '\0' && strchr("+?", c[1]) != NULL) {
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "keep pattern re:%s: %c%c has another meaning in a POSIX expression",
                            pattern, c[0], c[1]);
        }
    }
    return DG_OK;
}

/* re.match finds a match at the start of the name only. */
static dg_status compile(const char *expression, regex_t *compiled)
{
    DGI_TRY(check_portable(expression));
    char *anchored;
    if (asprintf(&anchored, "^(%s)", expression) < 0)
        return dgi_no_memory("a pattern");
    int error = regcomp(compiled, anchored, REG_EXTENDED | REG_NOSUB);
    free(anchored);
    if (error == 0)
        return DG_OK;
    char reason[128];
    regerror(error, compiled, reason, sizeof reason);
    return dgi_fail(DG_INVALID_ARGUMENT, "keep pattern re:%s: %s", expression, reason);
}

/* ---- matching ------------------------------------------------------------------------ */

/* Whether `part` stands in `name` between dots or its ends. */
static bool has_part(const char *name, const char *part)
{
    size_t length = strlen(part);
    for (const char *at = name; (at = strstr(at, part)) != NULL; at++)
        if ((at == name || at[-1] == '.') && (at[length] == '.' || at[length] == '\0'))
            return true;
    return false;
}

static bool matches(const dgi_pattern *pattern, const char *tensor, const char *layer)
{
    return pattern->is_expression ? regexec(&pattern->expression, layer, 0, NULL, 0) == 0
                                  : has_part(tensor, pattern->text);
}

const char *dgi_keep_match(dgi_keep *keep, const char *tensor, const char *layer)
{
    const char *first = NULL;
    for (int32_t i = 0; i < keep->count; i++) {
        dgi_pattern *pattern = &keep->patterns[i];
        if (!matches(pattern, tensor, layer))
            continue;
        pattern->matches++;
        if (first == NULL)
            first = pattern->text;
    }
    return first;
}

bool dgi_keep_finds(const dgi_keep *keep, const char *tensor, const char *layer)
{
    for (int32_t i = 0; i < keep->count; i++)
        if (matches(&keep->patterns[i], tensor, layer))
            return true;
    return false;
}

/* ---- the list ------------------------------------------------------------------------ */

static dg_status add_pattern(dgi_keep *keep, const char *text)
{
    if (text == NULL || *text == '\0')
        return dgi_fail(DG_INVALID_ARGUMENT, "keep pattern %d is empty", keep->count);
    size_t prefix = strlen(EXPRESSION_PREFIX);
    dgi_pattern *pattern = &keep->patterns[keep->count];
    *pattern = (dgi_pattern){.text = text};
    if (strncmp(text, EXPRESSION_PREFIX, prefix) == 0) {
        DGI_TRY(compile(text + prefix, &pattern->expression));
        pattern->is_expression = true;
    }
    keep->count++;
    return DG_OK;
}

dg_status dgi_keep_open(const char *const *texts, int32_t count, dgi_keep *keep)
{
    *keep = (dgi_keep){calloc((size_t)count + DEFAULTS, sizeof *keep->patterns), 0};
    if (keep->patterns == NULL)
        return dgi_no_memory("the patterns");
    dg_status status = DG_OK;
    for (int32_t i = 0; i < count && status == DG_OK; i++)
        status = add_pattern(keep, texts[i]);
    for (int32_t i = 0; i < DEFAULTS && status == DG_OK; i++)
        status = add_pattern(keep, kept_by_default[i]);
    if (status != DG_OK)
        dgi_keep_close(keep);
    return status;
}

void dgi_keep_close(dgi_keep *keep)
{
    for (int32_t i = 0; i < keep->count; i++)
        if (keep->patterns[i].is_expression)
            regfree(&keep->patterns[i].expression);
    free(keep->patterns);
    *keep = (dgi_keep){NULL, 0};
}
