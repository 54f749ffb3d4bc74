/* SPDX-License-Identifier: MIT */
/* A line plot as SVG with logarithmic axes; large enough type for a phone. */
#include "bench.h"

#include <math.h>
#include <stdio.h>

enum { width = 720, height = 520, left = 84, right = 24, top = 56, bottom = 64 };
static const char *const colors[] = {"#0b6e4f", "#c8553d", "#3d5a98", "#8d6a9f", "#7a7a7a"};
enum { color_count = sizeof colors / sizeof *colors };

typedef struct axis {
    double low, high; /* log10 of the first and the last value */
    int from, to;     /* pixels */
} axis;

static double place(const axis *axis, double value)
{
    return axis->from +
           (log10(value) - axis->low) / (axis->high - axis->low) * (axis->to - axis->from);
}

static void draw_grid(FILE *out, const axis *x, const axis *y)
{
    for (double v = pow(10, x->low); v <= pow(10, x->high) * 1.001; v *= 4)
        fprintf(out,
                "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d'/>"
                "<text x='%.1f' y='%d' text-anchor='middle'>%.5g</text>\n",
                place(x, v), place(x, v), y->from, y->to, place(x, v), y->from + 22, v);
    for (double decade = pow(10, floor(y->low)); decade <= pow(10, y->high); decade *= 10)
        for (int step = 1; step < 10; step = step == 1 ? 2 : step == 2 ? 5 : 10) {
            double v = decade * step;
            if (v < pow(10, y->low) * 0.999 || v > pow(10, y->high) * 1.001)
                continue;
            fprintf(out,
                    "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f'/>"
                    "<text x='%d' y='%.1f' text-anchor='end'>%.5g</text>\n",
                    x->from, x->to, place(y, v), place(y, v), x->from - 8, place(y, v) + 5, v);
        }
}

static void draw_series(FILE *out, const axis *x_axis, const axis *y_axis, const double *x,
                        int points, const bench_series *series, int index)
{
    const char *color = colors[index % color_count];
    fprintf(out, "<g stroke='%s' fill='%s'><polyline fill='none' stroke-width='2.5' points='",
            color, color);
    for (int i = 0; i < points; i++)
        if (series->y[i] > 0)
            fprintf(out, "%.1f,%.1f ", place(x_axis, x[i]), place(y_axis, series->y[i]));
    fputs("'/>\n", out);
    for (int i = 0; i < points; i++)
        if (series->y[i] > 0)
            fprintf(out, "<circle r='3' cx='%.1f' cy='%.1f'/>", place(x_axis, x[i]),
                    place(y_axis, series->y[i]));
    fprintf(out, "\n<text stroke='none' x='%d' y='%d' font-weight='bold'>%s</text></g>\n",
            x_axis->to - 190, y_axis->from - 16 - 22 * index, series->name);
}

void bench_plot(const char *path, const char *title, const char *x_label, const char *y_label,
                const double *x, int points, const bench_series *series, int series_count)
{
    double smallest = INFINITY, largest = 0;
    for (int s = 0; s < series_count; s++)
        for (int i = 0; i < points; i++)
            if (series[s].y[i] > 0) {
                smallest = fmin(smallest, series[s].y[i]);
                largest = fmax(largest, series[s].y[i]);
            }
    const double margin = 1.5; /* so that no line touches the frame */
    axis x_axis = {log10(x[0]), log10(x[points - 1]), left, width - right};
    axis y_axis = {log10(smallest / margin), log10(largest * margin), height - bottom, top};

    cli_file file = cli_file_create(path);
    FILE *out = file.stream;
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
            "font-size='16'>\n<rect width='%d' height='%d' fill='white'/>\n"
            "<text x='%d' y='30' font-size='19' font-weight='bold'>%s</text>\n"
            "<text x='%d' y='%d' text-anchor='middle'>%s</text>\n"
            "<text transform='translate(22 %d) rotate(-90)' text-anchor='middle'>%s</text>\n"
            "<g stroke='#dddddd' fill='#444444'><style>text{stroke:none}</style>\n",
            width, height, width, height, left, title, (left + width - right) / 2, height - 14,
            x_label, (top + height - bottom) / 2, y_label);
    draw_grid(out, &x_axis, &y_axis);
    fputs("</g>\n", out);
    for (int s = 0; s < series_count; s++)
        draw_series(out, &x_axis, &y_axis, x, points, &series[s], s);
    fputs("</svg>\n", out);
    cli_file_finish(&file);
}
