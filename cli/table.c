/* SPDX-License-Identifier: MIT */
/* Tables for people: cells are collected, columns take the width of their widest cell. */
#include "cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cli_table {
    char **cells; /* the titles are the first row */
    int columns, count, capacity;
};

static void append(cli_table *table, char *text)
{
    if (table->count == table->capacity) {
        table->capacity = table->capacity == 0 ? 64 : 2 * table->capacity;
        table->cells = realloc(table->cells, (size_t)table->capacity * sizeof *table->cells);
        if (table->cells == NULL)
            cli_die("out of memory");
    }
    table->cells[table->count++] = text;
}

cli_table *cli_table_new(const char *first, ...)
{
    cli_table *table = cli_alloc(sizeof *table);
    va_list titles;
    va_start(titles, first);
    for (const char *title = first; title != NULL; title = va_arg(titles, const char *))
        cli_table_column(table, title);
    va_end(titles);
    return table;
}

void cli_table_column(cli_table *table, const char *title)
{
    append(table, cli_format("%s", title));
    table->columns = table->count;
}

void cli_table_cell(cli_table *table, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    append(table, cli_printable(cli_vformat(format, arguments)));
    va_end(arguments);
}

/* Characters on the screen: every byte but UTF-8's continuation bytes. */
static int width_of(const char *text)
{
    int width = 0;
    for (; *text != '\0'; text++)
        width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

void cli_table_print(cli_table *table)
{
    int *widths = cli_alloc((size_t)table->columns * sizeof *widths);
    bool *right = cli_alloc((size_t)table->columns * sizeof *right);
    for (int c = 0; c < table->columns; c++) {
        right[c] = table->cells[c][0] == '>';
        if (right[c])
            memmove(table->cells[c], table->cells[c] + 1, strlen(table->cells[c]));
    }
    for (int i = 0; i < table->count; i++) {
        int width = width_of(table->cells[i]);
        if (width > widths[i % table->columns])
            widths[i % table->columns] = width;
    }
    for (int i = 0; i < table->count; i++) {
        int c = i % table->columns;
        bool last = c == table->columns - 1 || i == table->count - 1;
        int padding = widths[c] - width_of(table->cells[i]);
        printf("%s%*s%s%*s%s", c == 0 ? "" : "  ", right[c] ? padding : 0, "", table->cells[i],
               right[c] || last ? 0 : padding, "", last ? "\n" : "");
        free(table->cells[i]);
    }
    free(right);
    free(widths);
    free(table->cells);
    free(table);
}
