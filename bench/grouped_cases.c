/* SPDX-License-Identifier: MIT */
/* The case files of grouped products; grouped.h describes a line. */
#include "grouped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const form_names[] = {"contiguous", "masked", "table"};

const char *grouped_form_name(grouped_form form)
{
    return form_names[form];
}

/* So many products of a case are more than any backend takes. */
enum { MOST_PRODUCTS = 65536 };

static void add_product(grouped_case *c, grouped_product product, const char *where)
{
    if (c->count == MOST_PRODUCTS)
        cli_misuse("%s: a case has at most %d products", where, MOST_PRODUCTS);
    if ((c->count & (c->count - 1)) == 0) { /* a power of two: the memory is full */
        const size_t room = c->count == 0 ? 1 : 2 * (size_t)c->count;
        c->products = realloc(c->products, room * sizeof *c->products);
        if (c->products == NULL)
            cli_die("out of memory");
    }
    c->products[c->count++] = product;
}

/* "[COUNTx]M[:N:K]"; N and K are the line's unless they are given. */
static void parse_sizes(grouped_case *c, char *sizes, grouped_product common, const char *where)
{
    char *rest, *item = strtok_r(sizes, ",", &rest);
    for (; item != NULL; item = strtok_r(NULL, ",", &rest)) {
        long long count = 1, m, n = common.n, k = common.k;
        int end = 0;
        if (sscanf(item, "%lldx%n", &count, &end) != 1 || end == 0) {
            count = 1;
            end = 0;
        }
        const char *size = item + end;
        end = 0;
        if (c->form == GROUPED_TABLE)
            sscanf(size, "%lld:%lld:%lld%n", &m, &n, &k, &end);
        else
            sscanf(size, "%lld%n", &m, &end);
        if (end == 0 || size[end] != '\0' || count < 1 || m < 0 || n < 1 || k < 1 ||
            m > INT32_MAX || n > INT32_MAX || k > INT32_MAX)
            cli_misuse(
                "%s: '%s' is no size: it is %s, with COUNTx before it where several are alike",
                where, item, c->form == GROUPED_TABLE ? "M:N:K" : "M");
        for (long long i = 0; i < count; i++)
            add_product(c, (grouped_product){m, n, k}, where);
    }
}

static bool parse(char *line, const char *where, grouped_case *c)
{
    static const char blanks[] = " \t\r\n";
    char *fields[6], *rest, *whole = cli_format("%.*s", (int)strcspn(line, "\r\n"), line);
    int count = 0;
    for (char *field = strtok_r(line, blanks, &rest); field != NULL && count < 6;
         field = strtok_r(NULL, blanks, &rest))
        fields[count++] = field;
    if (count == 0 || fields[0][0] == '#') {
        free(whole);
        return false;
    }
    *c = (grouped_case){.line = whole, .form = GROUPED_CONTIGUOUS};
    while (count > 1 && c->form <= GROUPED_TABLE && strcmp(fields[1], form_names[c->form]) != 0)
        c->form++;
    if (count < 2 || c->form > GROUPED_TABLE || count != (c->form == GROUPED_TABLE ? 3 : 5))
        cli_misuse("%s: a case is 'recipe contiguous|masked n k sizes' or 'recipe table sizes'",
                   where);
    c->recipe = bench_recipe_named(fields[0], where);
    grouped_product common = {0, 0, 0};
    if (c->form != GROUPED_TABLE) {
        common.n = strtoll(fields[2], NULL, 10);
        common.k = strtoll(fields[3], NULL, 10);
        if (common.n < 1 || common.k < 1)
            cli_misuse("%s: n and k are numbers of at least 1, not '%s' and '%s'", where, fields[2],
                       fields[3]);
    }
    parse_sizes(c, fields[count - 1], common, where);
    return true;
}

grouped_cases grouped_cases_read(const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        cli_die("%s: %m", path);
    grouped_cases cases = {NULL, 0};
    char *line = NULL;
    size_t capacity = 0;
    for (int number = 1; getline(&line, &capacity, file) >= 0; number++) {
        char *where = cli_format("%s:%d", path, number);
        grouped_case item;
        if (parse(line, where, &item)) {
            cases.items = realloc(cases.items, (size_t)(cases.count + 1) * sizeof item);
            if (cases.items == NULL)
                cli_die("out of memory");
            cases.items[cases.count++] = item;
        }
        free(where);
    }
    if (ferror(file))
        cli_die("%s: %m", path);
    free(line);
    fclose(file);
    if (cases.count == 0)
        cli_misuse("%s has no case", path);
    return cases;
}

void grouped_cases_free(grouped_cases *cases)
{
    for (int i = 0; i < cases->count; i++) {
        free(cases->items[i].line);
        free(cases->items[i].products);
    }
    free(cases->items);
}
