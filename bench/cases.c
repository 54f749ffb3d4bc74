/* SPDX-License-Identifier: MIT */
/* Recipes by name, and the case files that the tests and the benchmark share. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bench_recipe recipes[] = {
    {"tensor", 0, 0, 0, 0, DG_F32, DG_ACCUMULATE_PRECISE},
    {"tensor_fast", 0, 0, 0, 0, DG_F32, DG_ACCUMULATE_FAST},
    {"token_channel", 1, 0, 1, 0, DG_F32, DG_ACCUMULATE_PRECISE},
    {"block128", 1, 128, 128, 128, DG_F32, DG_ACCUMULATE_PRECISE},
    {"block1x128", 1, 128, 1, 128, DG_F32, DG_ACCUMULATE_PRECISE},
    {"block32", 32, 32, 32, 32, DG_F32, DG_ACCUMULATE_PRECISE},
    {"mx", 1, 32, 1, 32, DG_UE8M0, DG_ACCUMULATE_PRECISE},
};

const bench_recipe *bench_recipe_named(const char *name, const char *where)
{
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++)
        if (strcmp(recipes[i].name, name) == 0)
            return &recipes[i];
    cli_misuse("%s: there is no recipe '%s'; there are tensor, tensor_fast, "
               "token_channel, block128, block1x128, block32 and mx",
               where, name);
}

dg_scale bench_scale_layout(const bench_recipe *recipe, bool of_a, int64_t rows, int64_t k)
{
    const int32_t block_rows = of_a ? recipe->a_rows : recipe->b_rows;
    dg_scale s = dg_scale_of(NULL, recipe->scale, rows, k, block_rows,
                             of_a ? recipe->a_cols : recipe->b_cols);
    if (block_rows == 1) {
        s.row_stride = 1;
        s.col_stride = s.rows;
    } else {
        s.row_stride = (s.cols + 3) / 4 * 4;
    }
    return s;
}

static dg_dtype find_dtype(const char *name, const char *where)
{
    for (dg_dtype type = DG_F32; type <= DG_E5M2; type++)
        if (strcmp(dg_dtype_name(type), name) == 0)
            return type;
    cli_misuse("%s: there is no data type '%s'", where, name);
}

bool bench_case_parse(const char *line, const char *where, bench_case *item)
{
    char recipe[32], a[8] = "e4m3", b[8] = "e4m3", d[8] = "bf16", rest;
    long long m, n, k;
    line += strspn(line, " \t\r\n");
    if (*line == '\0' || *line == '#')
        return false;
    int fields =
        sscanf(line, "%31s %lld %lld %lld %7s %7s %7s %c", recipe, &m, &n, &k, a, b, d, &rest);
    if ((fields != 4 && fields != 7) || m < 1 || n < 1 || k < 1)
        cli_misuse("%s: a case is 'recipe m n k [a b d]' with sizes of at least 1", where);
    if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX) /* bytes of a matrix fit 64 bits */
        cli_misuse("%s: a size is at most %d", where, INT32_MAX);
    *item = (bench_case){bench_recipe_named(recipe, where),
                         m,
                         n,
                         k,
                         find_dtype(a, where),
                         find_dtype(b, where),
                         find_dtype(d, where)};
    return true;
}

void bench_cases_add(bench_cases *cases, bench_case item)
{
    bench_case *items = realloc(cases->items, (size_t)(cases->count + 1) * sizeof *items);
    if (items == NULL)
        cli_die("out of memory");
    items[cases->count++] = item;
    cases->items = items;
}

void bench_cases_read(bench_cases *cases, const char *path)
{
    FILE *file = fopen(path, "r");
    if (file == NULL)
        cli_die("%s: %m", path);
    char line[256];
    for (int number = 1; fgets(line, sizeof line, file) != NULL; number++) {
        char *where = cli_format("%s:%d", path, number);
        bench_case item;
        if (bench_case_parse(line, where, &item))
            bench_cases_add(cases, item);
        free(where);
    }
    if (ferror(file))
        cli_die("%s: %m", path);
    fclose(file);
    if (cases->count == 0)
        cli_misuse("%s has no case", path);
}
