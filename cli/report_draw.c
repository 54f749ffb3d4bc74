/* SPDX-License-Identifier: MIT */
/*
 * Drawing for `deepgemm report`. An SVG here has no size of its own: marks are placed in per cent
 * of it, and labels are text of the page beside it, so that a plot fills a phone and a wide screen
 * alike and its letters stay readable on both.
 */
#include "report.h"

#include <math.h>

double report_place(const report_axis *axis, double value)
{
    double low = axis->low, high = axis->high;
    if (axis->log10) {
        low = log10(low);
        high = log10(high);
        value = value > 0.0 ? log10(value) : low;
    }
    double place = high > low ? 100 * (value - low) / (high - low) : 50;
    return fmin(100, fmax(0, place));
}

/* ---- axes ---------------------------------------------------------------------------- */

/* The step of 1, 2 or 5 times a power of ten that gives about so many labels. */
static double nice_step(double span, int labels)
{
    double rough = span / labels, power = pow(10, floor(log10(rough)));
    double digits = rough / power;
    return power * (digits <= 1 ? 1 : digits <= 2 ? 2 : digits <= 5 ? 5 : 10);
}

enum { most_labels = 12 };

static int axis_labels(const report_axis *axis, double labels[most_labels])
{
    int count = 0;
    if (axis->log10) {
        double from = ceil(log10(axis->low) - 1e-9), to = floor(log10(axis->high) + 1e-9);
        const double about = 4; /* labels such as 1e-05 are wide */
        double step = fmax(1, ceil((to - from) / about));
        for (double e = from; e <= to && count < most_labels; e += step)
            labels[count++] = pow(10, e);
        return count;
    }
    enum { about = 5 };
    double step = nice_step(axis->high - axis->low, about);
    for (double v = ceil(axis->low / step - 1e-9) * step;
         v <= axis->high + step * 1e-9 && count < most_labels; v += step)
        labels[count++] = fabs(v) < step * 1e-9 ? 0 : v;
    return count;
}

static void label(FILE *out, const report_axis *axis, const char *side, double value)
{
    char text[CLI_NUMBER];
    fprintf(out, "<span style='%s:%.2f%%'>%s%s</span>", side, report_place(axis, value),
            report_format(text, value), axis->unit);
}

/* ---- figures ------------------------------------------------------------------------- */

void report_figure_begin(FILE *out, const char *title, const char *about, const char *const *series,
                         int series_count)
{
    fputs("<figure><figcaption><b>", out);
    report_text(out, title);
    fputs("</b><br>", out);
    report_text(out, about);
    fputs("</figcaption>\n", out);
    if (series_count > 0) {
        fputs("<ul class='key'>", out);
        for (int i = 0; i < series_count; i++) {
            fprintf(out, "<li class='s%d'><i></i>", i % REPORT_COLORS);
            report_text(out, series[i]);
            fputs("</li>", out);
        }
        fputs("</ul>\n", out);
    }
}

void report_figure_end(FILE *out)
{
    fputs("</figure>\n", out);
}

/* ---- fields -------------------------------------------------------------------------- */

void report_field_begin(FILE *out, const report_axis *x, const report_axis *y, int pixels)
{
    double labels[most_labels];
    int count = axis_labels(y, labels);
    fprintf(out, "<div class='field' style='height:%dpx'><div class='y'>", pixels);
    for (int i = 0; i < count; i++)
        label(out, y, "bottom", labels[i]);
    fputs("</div><svg>", out);
    for (int i = 0; i < count; i++) {
        double at = 100 - report_place(y, labels[i]);
        fprintf(out, "<line class='grid' x1='0' x2='100%%' y1='%.2f%%' y2='%.2f%%'/>", at, at);
    }
    count = axis_labels(x, labels);
    for (int i = 0; i < count; i++) {
        double at = report_place(x, labels[i]);
        fprintf(out, "<line class='grid' x1='%.2f%%' x2='%.2f%%' y1='0' y2='100%%'/>", at, at);
    }
    fputc('\n', out);
}

void report_field_end(FILE *out, const report_axis *x)
{
    double labels[most_labels];
    int count = axis_labels(x, labels);
    fputs("</svg></div><div class='x'>", out);
    for (int i = 0; i < count; i++)
        label(out, x, "left", labels[i]);
    fputs("</div>\n", out);
}

static void mark_end(FILE *out, const char *element, const char *text)
{
    if (text == NULL) {
        fputs("/>", out);
        return;
    }
    fputs("><title>", out);
    report_text(out, text);
    fprintf(out, "</title></%s>\n", element);
}

void report_point(FILE *out, double x, double y, int series, const char *text)
{
    fprintf(out, "<circle class='s%d' cx='%.2f%%' cy='%.2f%%' r='4'", series % REPORT_COLORS, x,
            100 - y);
    mark_end(out, "circle", text);
}

void report_line(FILE *out, double x1, double y1, double x2, double y2, int series)
{
    fprintf(out, "<line class='s%d' x1='%.2f%%' y1='%.2f%%' x2='%.2f%%' y2='%.2f%%'/>",
            series % REPORT_COLORS, x1, 100 - y1, x2, 100 - y2);
}

void report_box(FILE *out, double left, double right, double low, double high, int series,
                const char *text)
{
    fprintf(out, "<rect class='s%d' x='%.2f%%' width='%.2f%%' y='%.2f%%' height='%.2f%%'",
            series % REPORT_COLORS, left, fmax(0, right - left), 100 - high, fmax(0, high - low));
    mark_end(out, "rect", text);
}

void report_rule(FILE *out, double x, int series, const char *text)
{
    fprintf(out, "<line class='rule s%d' x1='%.2f%%' x2='%.2f%%' y1='0' y2='100%%'",
            series % REPORT_COLORS, x, x);
    mark_end(out, "line", text);
}

/* ---- rows ---------------------------------------------------------------------------- */

void report_row_begin(FILE *out, const char *text)
{
    fputs("<div class='row'><span>", out);
    report_text(out, text);
    fputs("</span><svg><line class='grid' x1='0' x2='100%' y1='50%' y2='50%'/>", out);
}

void report_row_end(FILE *out, const char *value)
{
    fputs("</svg><span>", out);
    report_text(out, value);
    fputs("</span></div>\n", out);
}

void report_scale_row(FILE *out, const report_axis *axis)
{
    double labels[most_labels];
    int count = axis_labels(axis, labels);
    fputs("<div class='row'><span></span><div class='x'>", out);
    for (int i = 0; i < count; i++)
        label(out, axis, "left", labels[i]);
    fputs("</div><span></span></div>\n", out);
}
