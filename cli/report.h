/* SPDX-License-Identifier: MIT */
/*
 * `deepgemm report`: the command (report.c) walks JSON results and writes one HTML page, with
 * tables of everything (report_page.c) and plots of what can be plotted (report_plots.c, drawn by
 * report_draw.c). Nothing is known of the commands that wrote the results: a plot looks for the
 * fields that it needs.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include "cli.h"

#include <stdio.h>

/* ---- the page (report_page.c) -------------------------------------------------------- */

/* Text as HTML shows it, with <, >, &, ' and " escaped. */
void report_text(FILE *out, const char *text);

void report_begin(FILE *out, const char *title);
/* A result: its facts, its plots, and a table for each list. */
void report_result(FILE *out, const cJSON *result, const char *name, int index);
void report_end(FILE *out);

/* ---- fields -------------------------------------------------------------------------- */

/* The number at "output.relative_error"; false where there is none. */
bool report_number(const cJSON *row, const char *path, double *value);
/* The text at `name`, or NULL. */
const char *report_string(const cJSON *row, const char *name);
/* A number with so many digits as a reader needs: "0.0462", "1536", "3.36e+05". */
char *report_format(char *text, double value); /* a buffer of CLI_NUMBER bytes */

/* ---- plots (report_plots.c) ---------------------------------------------------------- */

/* Every plot for which the rows, an array of objects, have the fields. */
void report_plots(FILE *out, const cJSON *rows);

/* ---- drawing (report_draw.c) --------------------------------------------------------- */

enum { REPORT_COLORS = 8 };

typedef struct report_axis {
    double low, high;
    bool log10;       /* a logarithmic axis */
    const char *unit; /* behind each label: " %" */
} report_axis;

/* Where a value lies on an axis, 0 to 100. */
double report_place(const report_axis *axis, double value);

/* A figure with its title, a sentence below it, and colours for its series. */
void report_figure_begin(FILE *out, const char *title, const char *about, const char *const *series,
                         int series_count);
void report_figure_end(FILE *out);

/* A field with both axes: marks are placed in per cent, so that it fits any screen. */
void report_field_begin(FILE *out, const report_axis *x, const report_axis *y, int pixels);
void report_field_end(FILE *out, const report_axis *x);
/* A point with a text that shows when it is pointed at, and a line from the point before. */
void report_point(FILE *out, double x, double y, int series, const char *text);
void report_line(FILE *out, double x1, double y1, double x2, double y2, int series);
void report_box(FILE *out, double left, double right, double low, double high, int series,
                const char *text);
/* A vertical line through the whole field. */
void report_rule(FILE *out, double x, int series, const char *text);

/* A row of a horizontal plot: its label, then marks within 0 to 100. */
void report_row_begin(FILE *out, const char *label);
void report_row_end(FILE *out, const char *value);
void report_scale_row(FILE *out, const report_axis *axis);

#endif
