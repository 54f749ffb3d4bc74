/* SPDX-License-Identifier: MIT */
/* The page of `deepgemm report`: its frame, the facts of a result, and a table for each list. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    ":root{--back:#fff;--text:#1c2024;--soft:#5b6570;--line:#dfe3e7;--tile:#f4f6f8;"
    "--c0:#0068a8;--c1:#c8501e;--c2:#00805e;--c3:#b0508f;--c4:#8a6d00;--c5:#3e9fd0;--c6:#5e3c99;"
    "--c7:#666}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#14171a;--text:#e6e9ec;--soft:#9aa5b0;"
    "--line:#2f363d;--tile:#1d2226;--c0:#4aa8e0;--c1:#f08a4b;--c2:#3cc79a;--c3:#e59cc4;"
    "--c4:#d9b84a;--c5:#8fd0f7;--c6:#a993e0;--c7:#aaa}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:1100px;padding:16px;background:var(--back);color:var(--text);"
    "font:15px/1.45 system-ui,sans-serif;-webkit-text-size-adjust:100%}\n"
    "h1{font-size:24px;margin:8px 0}h2{font-size:20px;margin:40px 0 8px;overflow-wrap:anywhere;"
    "border-top:2px solid var(--line);padding-top:16px}h3{font-size:16px;margin:24px 0 8px}\n"
    "a{color:var(--c0)}small,figcaption{color:var(--soft)}figcaption b{color:var(--text)}\n"
    "dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:8px;margin:12px "
    "0}\n"
    "dl div{background:var(--tile);border-radius:6px;padding:8px 10px;min-width:0}\n"
    "dt{font-size:12px;color:var(--soft);overflow-wrap:anywhere}"
    "dd{margin:0;overflow-wrap:anywhere;font-weight:600}\n"
    "figure{margin:20px 0}svg{display:block;width:100%;height:100%;overflow:visible}\n"
    ".key{list-style:none;display:flex;flex-wrap:wrap;gap:4px 14px;margin:6px 0;padding:0;"
    "font-size:13px}.key i{display:inline-block;width:10px;height:10px;border-radius:5px;"
    "margin-right:5px;background:currentColor}.key li{color:var(--text)}\n"
    ".field{display:flex;margin:10px 8px 0 0}.y{position:relative;flex:0 0 56px}"
    ".y span{position:absolute;right:8px;transform:translateY(50%);font-size:12px;"
    "color:var(--soft);white-space:nowrap}\n"
    ".x{position:relative;height:20px;margin:4px 8px 0 56px;font-size:12px;color:var(--soft)}"
    ".x span{position:absolute;transform:translateX(-50%);white-space:nowrap}\n"
    ".row{display:grid;grid-template-columns:minmax(90px,28%) 1fr 84px;gap:10px;align-items:center;"
    "min-height:24px;padding:2px 0;font-size:13px}.row>span{overflow-wrap:anywhere;line-height:1.2}"
    ".row>span:last-child{text-align:right;color:var(--soft);font-variant-numeric:tabular-nums}"
    ".row svg{height:20px}.row .x{margin:0}\n"
    ".grid{stroke:var(--line)}circle,rect{fill:currentColor}circle{stroke:var(--back)}line{stroke:"
    "currentColor;"
    "stroke-width:1}line.s0,line.s1,line.s2,line.s3,line.s4,line.s5,line.s6,line.s7{opacity:.45}"
    ".rule{stroke-width:2;opacity:1!important}.mark{stroke-width:3;opacity:1!important}\n"
    ".s0 i,svg .s0{color:var(--c0)}.s1 i,svg .s1{color:var(--c1)}.s2 i,svg .s2{color:var(--c2)}"
    ".s3 i,svg .s3{color:var(--c3)}.s4 i,svg .s4{color:var(--c4)}.s5 i,svg .s5{color:var(--c5)}"
    ".s6 i,svg .s6{color:var(--c6)}.s7 i,svg .s7{color:var(--c7)}\n"
    ".many{display:grid;grid-template-columns:repeat(auto-fill,minmax(290px,1fr));gap:8px 24px}\n"
    "details{margin:12px 0}summary{cursor:pointer;font-weight:600}\n"
    ".scroll{overflow-x:auto;max-height:70vh;border:1px solid var(--line);border-radius:6px;"
    "margin-top:8px}table{border-collapse:collapse;font-size:13px;width:100%}"
    "th{position:sticky;top:0;background:var(--tile);text-align:left;font-weight:600}"
    "th,td{padding:4px 10px;white-space:nowrap;border-bottom:1px solid var(--line)}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}\n";

/* ---- text and numbers ---------------------------------------------------------------- */

void report_text(FILE *out, const char *text)
{
    for (; *text != '\0'; text++) {
        switch (*text) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        case '\'':
            fputs("&#39;", out);
            break;
        default:
            fputc(*text, out);
        }
    }
}

char *report_format(char *text, double value)
{
    const double exact = 1e15; /* a whole number below it is shown whole */
    if (value == floor(value) && fabs(value) < exact)
        snprintf(text, CLI_NUMBER, "%.0f", value);
    else
        snprintf(text, CLI_NUMBER, "%.4g", value);
    return text;
}

/* ---- fields -------------------------------------------------------------------------- */

static const cJSON *item_at(const cJSON *row, const char *path)
{
    const cJSON *item = row;
    while (item != NULL) {
        size_t span = strcspn(path, ".");
        const cJSON *child;
        const cJSON *found = NULL;
        cJSON_ArrayForEach(child, item)
        {
            /* a name may have dots of its own */
            if (child->string != NULL && strcmp(child->string, path) == 0)
                return child;
            if (child->string != NULL && strlen(child->string) == span &&
                strncmp(child->string, path, span) == 0)
                found = child;
        }
        if (path[span] == '\0')
            return found;
        item = found;
        path += span + 1;
    }
    return NULL;
}

bool report_number(const cJSON *row, const char *path, double *value)
{
    const cJSON *item = item_at(row, path);
    if (!cJSON_IsNumber(item))
        return false;
    *value = item->valuedouble;
    return true;
}

const char *report_string(const cJSON *row, const char *name)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, name));
}

/* ---- facts --------------------------------------------------------------------------- */

static bool is_plain(const cJSON *item)
{
    return cJSON_IsNumber(item) || cJSON_IsString(item) || cJSON_IsBool(item);
}

static void plain_value(FILE *out, const cJSON *item)
{
    char text[CLI_NUMBER];
    if (cJSON_IsString(item))
        report_text(out, item->valuestring);
    else if (cJSON_IsNumber(item))
        fputs(report_format(text, item->valuedouble), out);
    else if (cJSON_IsBool(item))
        fputs(cJSON_IsTrue(item) ? "yes" : "no", out);
}

typedef void visitor(void *user, const cJSON *item, const char *path);

/* Visits all that is in an object and in the objects in it, with its path. */
// NOLINTNEXTLINE(misc-no-recursion): JSON nests, and cJSON reads no more than 1,000 levels
static void walk(const cJSON *object, const char *prefix, visitor *visit, void *user)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, object)
    {
        char *path = cli_format("%s%s", prefix, item->string);
        if (cJSON_IsObject(item)) {
            char *longer = cli_format("%s.", path);
            walk(item, longer, visit, user);
            free(longer);
        } else {
            visit(user, item, path);
        }
        free(path);
    }
}

static void fact(void *user, const cJSON *item, const char *path)
{
    FILE *out = user;
    if (!is_plain(item) || strcmp(path, "command") == 0) /* the heading has it */
        return;
    fputs("<div><dt>", out);
    report_text(out, path);
    fputs("</dt><dd>", out);
    plain_value(out, item);
    fputs("</dd></div>\n", out);
}

/* ---- tables -------------------------------------------------------------------------- */

typedef struct columns {
    char **paths; /* "output.cosine" */
    int count;
} columns;

static void add_column(columns *c, const char *path)
{
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->paths[i], path) == 0)
            return;
    c->paths = realloc(c->paths, (size_t)(c->count + 1) * sizeof *c->paths);
    if (c->paths == NULL)
        cli_die("out of memory");
    c->paths[c->count++] = cli_format("%s", path);
}

/* A list of numbers, such as a shape, fits a cell; longer lists and lists of lists do not. */
static bool is_short_list(const cJSON *item)
{
    enum { most = 4 };
    return cJSON_IsArray(item) && cJSON_GetArraySize(item) <= most &&
           (item->child == NULL || cJSON_IsNumber(item->child));
}

static void find_column(void *user, const cJSON *item, const char *path)
{
    if (is_plain(item) || is_short_list(item))
        add_column(user, path);
}

static void cell(FILE *out, const cJSON *item)
{
    fputs(cJSON_IsNumber(item) ? "<td class='n'>" : "<td>", out);
    if (item != NULL && is_plain(item))
        plain_value(out, item);
    const cJSON *number;
    if (item != NULL && is_short_list(item))
        cJSON_ArrayForEach(number, item)
        {
            fputs(number == item->child ? "" : " × ", out);
            plain_value(out, number);
        }
    fputs("</td>", out);
}

static void table(FILE *out, const cJSON *rows, const char *name)
{
    columns c = {0};
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) if (cJSON_IsObject(row)) walk(row, "", find_column, &c);
    fputs("<details><summary>", out);
    report_text(out, name);
    fprintf(out, ": %d rows</summary><div class='scroll'><table>\n<tr>", cJSON_GetArraySize(rows));
    for (int i = 0; i < c.count; i++) {
        fputs("<th>", out);
        report_text(out, c.paths[i]);
        fputs("</th>", out);
    }
    fputs("</tr>\n", out);
    cJSON_ArrayForEach(row, rows)
    {
        fputs("<tr>", out);
        for (int i = 0; i < c.count; i++)
            cell(out, item_at(row, c.paths[i]));
        fputs("</tr>\n", out);
    }
    fputs("</table></div></details>\n", out);
    for (int i = 0; i < c.count; i++)
        free(c.paths[i]);
    free(c.paths);
}

static void list(FILE *out, const cJSON *items, const char *name)
{
    fputs("<details open><summary>", out);
    report_text(out, name);
    fputs("</summary><ul>\n", out);
    const cJSON *item;
    cJSON_ArrayForEach(item, items)
    {
        fputs("<li>", out);
        if (is_plain(item))
            plain_value(out, item);
        fputs("</li>\n", out);
    }
    fputs("</ul></details>\n", out);
}

/* ---- a result ------------------------------------------------------------------------ */

static void show_list(void *user, const cJSON *item, const char *path)
{
    FILE *out = user;
    if (cJSON_IsArray(item) && cJSON_IsObject(item->child)) {
        report_plots(out, item);
        table(out, item, path);
    } else if (cJSON_IsArray(item) && item->child != NULL) {
        list(out, item, path);
    }
}

void report_result(FILE *out, const cJSON *result, const char *name, int index)
{
    const char *command = report_string(result, "command");
    fprintf(out, "<section id='result%d'><h2>", index);
    if (command != NULL) {
        report_text(out, command);
        fputs(": ", out);
    }
    report_text(out, name);
    fputs("</h2>\n<dl>\n", out);
    walk(result, "", fact, out);
    fputs("</dl>\n", out);
    walk(result, "", show_list, out);
    fputs("</section>\n", out);
}

void report_begin(FILE *out, const char *title)
{
    fputs("<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
          "<meta name='viewport' content='width=device-width,initial-scale=1'><title>",
          out);
    report_text(out, title);
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body><h1>", style);
    report_text(out, title);
    fprintf(out, "</h1>\n<p><small>Made by deepgemm %s.</small></p>\n", dg_version());
}

void report_end(FILE *out)
{
    fputs("</body></html>\n", out);
}
