/* SPDX-License-Identifier: MIT */
/* The plots of `deepgemm report`: each looks for the fields that it needs. */
#include "report.h"

#include "tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the error of each layer --------------------------------------------------------- */

typedef struct point {
    double x, y;
    int series;
    const char *name;
} point;

/* What a layer is judged by. */
typedef bool judged(const cJSON *row, double *value);

/* Whether finite values became NaN or infinite: such a layer's error is infinite, and no number. */
static bool is_spoiled(const cJSON *row, const char *path)
{
    double pairs;
    return report_number(row, path, &pairs) && pairs > 0;
}

/* Per cent: of its output where there is one. */
static bool error_of(const cJSON *row, double *error)
{
    if (is_spoiled(row, "output.spoiled") || is_spoiled(row, "weight.spoiled") ||
        is_spoiled(row, "spoiled")) {
        *error = INFINITY;
        return true;
    }
    bool found = report_number(row, "output.relative_error", error) ||
                 report_number(row, "weight.relative_error", error) ||
                 report_number(row, "relative_error", error);
    *error = found ? 100 * *error : 0.0;
    return found;
}

static bool divergence_of(const cJSON *row, double *nats)
{
    return report_number(row, "divergence", nats);
}

/* The first number between dots: the block of "model.layers.3.mlp.up_proj.weight"; or -1. */
static double block_of(const cJSON *row)
{
    double block;
    if (report_number(row, "block", &block))
        return block;
    const char *name = report_string(row, "name");
    for (const char *at = name; at != NULL; at = strchr(at, '.')) {
        at += *at == '.';
        size_t digits = strspn(at, "0123456789");
        if (digits > 0 && at[digits] == '.')
            return strtod(at, NULL);
    }
    return -1;
}

/* "self_attn.v_proj" of "model.layers.3.self_attn.v_proj.weight": of malloc's, or NULL. */
static char *kind_of(const cJSON *row)
{
    const char *kind = report_string(row, "kind"), *name = report_string(row, "name");
    if (kind != NULL || name == NULL)
        return kind == NULL ? NULL : cli_format("%s", kind);
    char *text = tensors_kind(name);
    char *start = strrchr(text, '*');
    start = start != NULL && start[1] == '.' ? start + 2 : text;
    size_t length = strlen(start), cut = strlen(".weight");
    if (length > cut && strcmp(start + length - cut, ".weight") == 0)
        start[length - cut] = '\0';
    char *kept = cli_format("%s", start);
    free(text);
    return kept;
}

/* "3 self_attn.v_proj", short enough for a phone: of malloc's. */
static char *short_name(const cJSON *row)
{
    double block = block_of(row);
    char *kind = kind_of(row);
    char *text = block >= 0 && kind != NULL ? cli_format("%g %s", block, kind)
                                            : cli_format("%s", kind != NULL ? kind : "");
    free(kind);
    return text;
}

static int series_named(char **series, int *count, char *name)
{
    for (int i = 0; i < *count; i++)
        if (strcmp(series[i], name) == 0) {
            free(name);
            return i;
        }
    if (*count == REPORT_COLORS) { /* the last colour is for all others */
        free(name);
        free(series[REPORT_COLORS - 1]);
        series[REPORT_COLORS - 1] = cli_format("others");
        return REPORT_COLORS - 1;
    }
    series[*count] = name;
    return (*count)++;
}

static int by_series_and_x(const void *a, const void *b)
{
    const point *p = a, *q = b;
    if (p->series != q->series)
        return p->series - q->series;
    return (p->x > q->x) - (p->x < q->x);
}

/* Points, sorted, with a line through those of a series. */
static void draw_points(FILE *out, const point *points, int count, char *const *series,
                        const report_axis *x, const report_axis *y)
{
    enum { pixels = 300 };
    report_field_begin(out, x, y, pixels);
    for (int i = 0; i < count; i++) {
        const point *p = &points[i];
        double px = report_place(x, p->x), py = report_place(y, p->y);
        if (i > 0 && p->series == p[-1].series)
            report_line(out, report_place(x, p[-1].x), report_place(y, p[-1].y), px, py, p->series);
        char *text = cli_format("%s %g: %.3g%s", series[p->series], p->x, p->y, y->unit);
        report_point(out, px, py, p->series, text);
        free(text);
    }
    report_field_end(out, x);
}

static void plot_by_layer(FILE *out, const cJSON *rows, judged *value_of, const char *unit,
                          const char *title, const char *about)
{
    point *points = cli_alloc((size_t)cJSON_GetArraySize(rows) * sizeof *points);
    char *series[REPORT_COLORS] = {0};
    int count = 0, series_count = 0, spoiled = 0;
    double highest = 0.0, last_block = 0.0;
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        point p = {.x = block_of(row)};
        if (p.x < 0 || !value_of(row, &p.y) || !(p.y > 0.0))
            continue;
        if (isinf(p.y)) {
            spoiled++;
            continue;
        }
        char *kind = kind_of(row);
        p.series = series_named(series, &series_count, kind != NULL ? kind : cli_format("layer"));
        p.name = report_string(row, "name");
        highest = fmax(highest, p.y);
        last_block = fmax(last_block, p.x);
        points[count++] = p;
    }
    if (count > 1) {
        qsort(points, (size_t)count, sizeof *points, by_series_and_x);
        const double margin = 0.5; /* blocks, so that no point lies on the frame */
        report_axis x = {-margin, last_block + margin, false, ""};
        report_axis y = {0, highest * 1.1, false, unit};
        char *missing = cli_format("%s Not shown: %d with NaN or infinities.", about, spoiled);
        report_figure_begin(out, title, spoiled > 0 ? missing : about, (const char *const *)series,
                            series_count);
        free(missing);
        draw_points(out, points, count, series, &x, &y);
        report_figure_end(out);
    }
    for (int i = 0; i < series_count; i++)
        free(series[i]);
    free(points);
}

/* ---- what caused it ------------------------------------------------------------------ */

static void plot_causes(FILE *out, const cJSON *rows)
{
    static const char *const names[] = {"weights", "activations", "accumulation"};
    enum { causes = 3, shown = 20 };
    double worst = 0.0, error;
    const cJSON *row;
    cJSON_ArrayForEach(row, rows) if (cJSON_HasObjectItem(row, "caused_by") &&
                                      report_number(row, "output.relative_error", &error)) worst =
        fmax(worst, error);
    if (worst <= 0.0)
        return;
    report_figure_begin(out, "What caused the error",
                        "Relative error of the output, split by cause; the worst layers first.",
                        names, causes);
    const report_axis axis = {0, 100 * worst, false, " %"};
    int count = 0;
    cJSON_ArrayForEach(row, rows)
    {
        bool spoiled = is_spoiled(row, "output.spoiled");
        if ((!report_number(row, "output.relative_error", &error) && !spoiled) || count == shown)
            continue;
        count++;
        char *name = short_name(row);
        report_row_begin(out, name);
        free(name);
        double shares[causes], sum = 0.0, left = 0.0; /* a small one may be negative: no box */
        for (int i = 0; i < causes; i++) {
            char *path = cli_format("caused_by.%s.share", names[i]);
            shares[i] = 0.0;
            report_number(row, path, &shares[i]);
            sum += fmax(0, shares[i]);
            free(path);
        }
        for (int i = 0; i < causes && !spoiled; i++) {
            char *text = cli_format("%s: %.1f %% of the error", names[i], 100 * shares[i]);
            double width = sum > 0 ? 100 * error * fmax(0, shares[i]) / sum : 0;
            double right = fmin(100, left + report_place(&axis, width));
            report_box(out, left, right, 10, 90, i, text);
            left = right;
            free(text);
        }
        char *value = spoiled ? cli_format("NaN, Inf") : cli_format("%.2f %%", 100 * error);
        report_row_end(out, value);
        free(value);
    }
    report_scale_row(out, &axis);
    report_figure_end(out);
}

/* ---- speed against the floor --------------------------------------------------------- */

static void plot_speed(FILE *out, const cJSON *rows)
{
    char *series[REPORT_COLORS] = {cli_format("deepgemm")};
    int series_count = 1, count = 0;
    double highest = 100, us, floor_us;
    const cJSON *row, *peer;
    cJSON_ArrayForEach(row, rows)
    {
        if (!report_number(row, "us", &us) || !report_number(row, "floor_us", &floor_us) || us <= 0)
            continue;
        count++;
        highest = fmax(highest, 100 * floor_us / us);
        cJSON_ArrayForEach(peer, cJSON_GetObjectItem(row, "peer_us"))
        {
            if (!cJSON_IsNumber(peer) || peer->valuedouble <= 0)
                continue;
            series_named(series, &series_count, cli_format("%s", peer->string));
            highest = fmax(highest, 100 * floor_us / peer->valuedouble);
        }
    }
    if (count > 0) {
        report_axis axis = {0, highest, false, " %"};
        report_figure_begin(
            out, "Speed against the floor",
            "Share of the speed that the machine's memory or arithmetic allows; longer is faster. "
            "The bar is deepgemm, the points are its peers, the number is deepgemm's time.",
            (const char *const *)series, series_count);
        cJSON_ArrayForEach(row, rows)
        {
            if (!report_number(row, "us", &us) || !report_number(row, "floor_us", &floor_us) ||
                us <= 0)
                continue;
            const char *name = report_string(row, "case");
            report_row_begin(out, name != NULL ? name : "");
            char *text = cli_format("deepgemm: %.4g us, %.1f %% of the floor's speed", us,
                                    100 * floor_us / us);
            report_box(out, 0, report_place(&axis, 100 * floor_us / us), 15, 85, 0, text);
            free(text);
            cJSON_ArrayForEach(peer, cJSON_GetObjectItem(row, "peer_us"))
            {
                if (!cJSON_IsNumber(peer) || peer->valuedouble <= 0)
                    continue;
                int s = series_named(series, &series_count, cli_format("%s", peer->string));
                text = cli_format("%s: %.4g us", peer->string, peer->valuedouble);
                report_point(out, report_place(&axis, 100 * floor_us / peer->valuedouble), 50, s,
                             text);
                free(text);
            }
            char *value = cli_format("%.4g us", us);
            report_row_end(out, value);
            free(value);
        }
        report_scale_row(out, &axis);
        report_figure_end(out);
    }
    for (int i = 0; i < series_count; i++)
        free(series[i]);
}

/* ---- utilisation by depth of the pipeline -------------------------------------------- */

/* One case: a line for each main loop. */
static void plot_depth(FILE *out, const cJSON *rows, const char *name)
{
    point *points = cli_alloc((size_t)cJSON_GetArraySize(rows) * sizeof *points);
    char *series[REPORT_COLORS] = {0};
    int count = 0, series_count = 0;
    double most = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        point p = {0};
        const char *main_loop = report_string(row, "main_loop");
        if (main_loop == NULL || !tensors_same(report_string(row, "case"), name) ||
            !report_number(row, "stages", &p.x) || !report_number(row, "floor_share", &p.y))
            continue;
        p.y *= 100;
        p.series = series_named(series, &series_count, cli_format("%s", main_loop));
        most = fmax(most, p.x);
        points[count++] = p;
    }
    qsort(points, (size_t)count, sizeof *points, by_series_and_x);
    char *title = cli_format("Utilisation by depth: %s", name);
    const report_axis x = {1, most + 1, false, ""}, y = {0, 100, false, " %"};
    report_figure_begin(out, title,
                        "Share of the speed that arithmetic or memory allows, over the stages of "
                        "the pipeline; higher is faster.",
                        (const char *const *)series, series_count);
    free(title);
    draw_points(out, points, count, series, &x, &y);
    report_figure_end(out);
    for (int i = 0; i < series_count; i++)
        free(series[i]);
    free(points);
}

/* Rows of a case follow each other. */
static void plot_depths(FILE *out, const cJSON *rows)
{
    const char *last = NULL;
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        const char *name = report_string(row, "case");
        double value;
        if (name == NULL || tensors_same(name, last) || report_string(row, "main_loop") == NULL ||
            !report_number(row, "stages", &value) || !report_number(row, "floor_share", &value))
            continue;
        last = name;
        plot_depth(out, rows, name);
    }
}

/* ---- histograms and clip points ------------------------------------------------------ */

static double pair_at(const cJSON *pair, int index)
{
    const cJSON *item = cJSON_GetArrayItem(pair, index);
    return cJSON_IsNumber(item) ? item->valuedouble : 0.0;
}

/* One layer's histogram with a line where each method clips. */
static void plot_histogram(FILE *out, const cJSON *row)
{
    const cJSON *bins = cJSON_GetObjectItem(row, "histogram"), *pair, *method;
    const double largest_code = 448.0; /* of E4M3 */
    double low = INFINITY, high = 0.0, most = 1.0;
    cJSON_ArrayForEach(pair, bins)
    {
        double magnitude = pair_at(pair, 0);
        if (magnitude <= 0.0)
            continue;
        low = fmin(low, magnitude);
        high = fmax(high, magnitude);
        most = fmax(most, pair_at(pair, 1));
    }
    cJSON_ArrayForEach(method, cJSON_GetObjectItem(row, "methods"))
    {
        double scale;
        if (report_number(method, "scale", &scale))
            high = fmax(high, scale * largest_code);
    }
    if (!(high > low))
        return;
    const double bin = exp2(0.25); /* as wide as the bins of `calibrate` */
    report_axis x = {low, high * bin, true, ""}, y = {0.8, most * 1.2, true, ""};
    char *name = short_name(row);
    fputs("<div><h3>", out);
    report_text(out, name);
    fputs("</h3>", out);
    free(name);
    enum { pixels = 120 };
    report_field_begin(out, &x, &y, pixels);
    cJSON_ArrayForEach(pair, bins)
    {
        double magnitude = pair_at(pair, 0), number = pair_at(pair, 1);
        if (magnitude <= 0.0 || number <= 0.0)
            continue;
        char *text = cli_format("%.3g: %.0f", magnitude, number);
        report_box(out, report_place(&x, magnitude), report_place(&x, magnitude * bin), 0,
                   report_place(&y, number), REPORT_COLORS - 1, text);
        free(text);
    }
    int series = 0;
    cJSON_ArrayForEach(method, cJSON_GetObjectItem(row, "methods"))
    {
        double scale;
        if (report_number(method, "scale", &scale)) {
            char *text = cli_format("%s clips at %.4g", method->string, scale * largest_code);
            report_rule(out, report_place(&x, scale * largest_code), series, text);
            free(text);
        }
        series++;
    }
    report_field_end(out, &x);
    fputs("</div>\n", out);
}

static void plot_histograms(FILE *out, const cJSON *rows)
{
    const cJSON *row, *method, *first = NULL;
    cJSON_ArrayForEach(row, rows) if (first == NULL &&
                                      cJSON_IsArray(cJSON_GetObjectItem(row, "histogram"))) first =
        row;
    if (first == NULL)
        return;
    const char *names[REPORT_COLORS];
    int count = 0;
    cJSON_ArrayForEach(method, cJSON_GetObjectItem(first, "methods")) if (count < REPORT_COLORS - 1)
        names[count++] = method->string;
    report_figure_begin(out, "Magnitudes and clip points",
                        "How often each magnitude was met, both axes logarithmic, and where each "
                        "method's scale clips.",
                        names, count);
    enum { open = 6 };
    int shown = 0;
    fputs("<div class='many'>", out);
    cJSON_ArrayForEach(row, rows)
    {
        if (!cJSON_IsArray(cJSON_GetObjectItem(row, "histogram")))
            continue;
        if (shown++ == open)
            fputs("</div><details><summary>The other layers</summary><div class='many'>", out);
        plot_histogram(out, row);
    }
    fputs(shown > open ? "</div></details>" : "</div>", out);
    report_figure_end(out);
}

/* ---- methods by granularity ---------------------------------------------------------- */

/* Points of each method on a line for each kind of scales. */
static void plot_methods(FILE *out, const cJSON *rows, const char *path, double factor, double base,
                         const char *title, const char *about)
{
    char *series[REPORT_COLORS] = {0};
    int series_count = 0;
    double low = INFINITY, high = 0.0, value;
    const cJSON *row, *other;
    cJSON_ArrayForEach(row, rows)
    {
        if (report_string(row, "scales") == NULL || report_string(row, "method") == NULL ||
            !report_number(row, path, &value))
            continue;
        series_named(series, &series_count, cli_format("%s", report_string(row, "method")));
        value = base + factor * value;
        low = fmin(low, fmax(value, 1e-3));
        high = fmax(high, value);
    }
    if (high > 0.0) {
        const double far = 5; /* apart: decades tell more */
        const double margin = 0.05 * (high - low);
        report_axis axis = {low - margin, high + margin, false, ""};
        if (high > far * low)
            axis = (report_axis){pow(10, floor(log10(low))), pow(10, ceil(log10(high))), true, ""};
        report_figure_begin(out, title, about, (const char *const *)series, series_count);
        const char *last = "";
        cJSON_ArrayForEach(row, rows)
        {
            const char *scales = report_string(row, "scales");
            if (scales == NULL || strcmp(scales, last) == 0)
                continue;
            last = scales;
            double best = INFINITY;
            report_row_begin(out, scales);
            cJSON_ArrayForEach(other, rows)
            {
                const char *method = report_string(other, "method");
                if (!tensors_same(report_string(other, "scales"), scales) || method == NULL ||
                    !report_number(other, path, &value))
                    continue;
                value = base + factor * value;
                best = fmin(best, value);
                char *text = cli_format("%s: %.4g", method, value);
                report_point(out, report_place(&axis, fmax(value, axis.low)), 50,
                             series_named(series, &series_count, cli_format("%s", method)), text);
                free(text);
            }
            char *value_text = cli_format("best %.4g", best);
            report_row_end(out, value_text);
            free(value_text);
        }
        report_scale_row(out, &axis);
        report_figure_end(out);
    }
    for (int i = 0; i < series_count; i++)
        free(series[i]);
}

/* ---- all of them --------------------------------------------------------------------- */

void report_plots(FILE *out, const cJSON *rows)
{
    plot_by_layer(out, rows, error_of, " %", "Error by layer",
                  "Relative error of each layer, over the number of its block.");
    plot_by_layer(out, rows, divergence_of, "", "Divergence by layer",
                  "How far predictions move, in nats a token, over the number of the block.");
    plot_causes(out, rows);
    plot_speed(out, rows);
    plot_depths(out, rows);
    plot_histograms(out, rows);
    plot_methods(out, rows, "top1_agreement", -100, 100, "Other predictions",
                 "Per cent of the tokens for which FP8 and 16 bits predict another next token; "
                 "further left is better.");
    plot_methods(out, rows, "logits.mean_error", 1, 0, "Error of the logits",
                 "Mean absolute error; further left is better.");
    plot_methods(out, rows, "fp8_perplexity", 1, 0, "Perplexity", "Further left is better.");
}
