/* SPDX-License-Identifier: MIT */
/* The benchmark's results, for people and for programs. */
#include "bench.h"
#include "peers/peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const char *const fill_names[] = {"random", "zeros", "ones"};

static const char *about_peer(const bench_setup *setup, int p)
{
    return setup->peer_missing[p] != NULL ? setup->peer_missing[p] : bench_peers[p]->about();
}

bool bench_peer_ran(const bench_result *results, int count, int p)
{
    for (int i = 0; i < count; i++)
        if (results[i].peer[p].repeats > 0)
            return true;
    return false;
}

static void print_header(const bench_setup *setup)
{
    printf("deepgemm %s on %s, %s, %d threads; %s values, %s\n", dg_version(), setup->device.name,
           setup->device.architecture, setup->device.units, fill_names[setup->fill],
           setup->warm ? "warm: one copy, in the caches if it fits"
                       : "cold: copies of more than 256 MB rotate");
    printf("medians; spread: 10th to 90th percentile; GB/s max: measured here\n");
}

static bool disturbed(const bench_result *r)
{
    bool any = r->time.disturbed;
    for (int p = 0; p < bench_peer_count; p++)
        any = any || r->peer[p].disturbed;
    return any;
}

static void cell_recipe(cli_table *table, const bench_result *r)
{
    cli_table_cell(table, "%s%s", r->item.recipe->name, disturbed(r) ? " *" : "");
}

static void cell_size(cli_table *table, int64_t size)
{
    cli_table_cell(table, "%lld", (long long)size);
}

/* The columns that both tables share. */
static void cells_time(cli_table *table, const bench_result *r)
{
    const bench_time *t = &r->time;
    cli_table_cell(table, "%.1f", t->median * 1e6);
    cli_table_cell(table, "%.0f %%", 100 * (t->p90 - t->p10) / t->median);
    cli_table_cell(table, "%dx%lld", t->repeats, (long long)t->calls);
    cli_table_cell(table, "%.1f", r->bytes / t->median * 1e-9);
    cli_table_cell(table, "%.1f", r->bandwidth * 1e-9);
    cli_table_cell(table, "%.1f", r->floor * 1e6);
    cli_table_cell(table, "%.2f", r->floor / t->median);
}

static void print_table(cli_table *table, const bench_result *results, int count)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        any = any || disturbed(&results[i]);
    cli_table_print(table);
    if (any)
        printf("* other processes kept a tenth of a processor or more busy meanwhile\n");
}

void bench_report_quantize(const bench_setup *setup, const bench_result *results, int count)
{
    print_header(setup);
    printf("floor: a copy that reads and writes as many bytes\n\n");
    cli_table *table = cli_table_new("recipe", ">m", ">k", ">us", ">spread", ">repeats", ">GB/s",
                                     ">GB/s max", ">floor us", ">of floor", NULL);
    for (int i = 0; i < count; i++) {
        cell_recipe(table, &results[i]);
        cell_size(table, results[i].item.m);
        cell_size(table, results[i].item.k);
        cells_time(table, &results[i]);
    }
    print_table(table, results, count);
}

void bench_report_gemm(const bench_setup *setup, const bench_result *results, int count)
{
    print_header(setup);
    printf("floor: the larger of work / peak and bytes of weights / bandwidth; peak %.0f GFLOP/s "
           "(%s)\n%s weights; x: a peer's time over deepgemm's\n",
           setup->peak * 1e-9, setup->peak_what, setup->packed ? "packed" : "row-major");
    for (int p = 0; p < bench_peer_count; p++)
        printf("%s: %s\n", bench_peers[p]->name, about_peer(setup, p));
    putchar('\n');

    cli_table *table =
        cli_table_new("recipe", ">m", ">n", ">k", ">us", ">spread", ">repeats", ">GB/s",
                      ">GB/s max", ">floor us", ">of floor", ">GFLOP/s", NULL);
    for (int p = 0; p < bench_peer_count; p++)
        if (bench_peer_ran(results, count, p)) {
            char *title = cli_format(">%s", bench_peers[p]->name);
            cli_table_column(table, title);
            free(title);
        }
    for (int i = 0; i < count; i++) {
        const bench_result *r = &results[i];
        cell_recipe(table, r);
        cell_size(table, r->item.m);
        cell_size(table, r->item.n);
        cell_size(table, r->item.k);
        cells_time(table, r);
        cli_table_cell(table, "%.1f", r->flops / r->time.median * 1e-9);
        for (int p = 0; p < bench_peer_count; p++)
            if (r->peer[p].repeats > 0)
                cli_table_cell(table, "%.1f us %.2fx", r->peer[p].median * 1e6,
                               r->peer[p].median / r->time.median);
            else if (bench_peer_ran(results, count, p))
                cli_table_cell(table, "-");
    }
    print_table(table, results, count);
}

void bench_add_measured(cJSON *object, const char *name, double value)
{
    char *text = cli_format("%.5g", value);
    cJSON_AddRawToObject(object, name, text);
    free(text);
}

void bench_add_time(cJSON *row, const bench_time *time)
{
    bench_add_measured(row, "us", time->median * 1e6);
    bench_add_measured(row, "min_us", time->min * 1e6);
    bench_add_measured(row, "p10_us", time->p10 * 1e6);
    bench_add_measured(row, "p90_us", time->p90 * 1e6);
    cJSON_AddNumberToObject(row, "repeats", time->repeats);
    cJSON_AddNumberToObject(row, "calls", (double)time->calls);
}

static cJSON *row_json(const bench_setup *setup, const bench_result *r)
{
    cJSON *row = cJSON_CreateObject();
    char *name =
        cli_format("%s %lld %lld %lld %s %s %s", r->item.recipe->name, (long long)r->item.m,
                   (long long)r->item.n, (long long)r->item.k, dg_dtype_name(r->item.a),
                   dg_dtype_name(r->item.b), dg_dtype_name(r->item.d));
    cJSON_AddStringToObject(row, "case", name);
    free(name);
    cJSON_AddStringToObject(row, "recipe", r->item.recipe->name);
    cJSON_AddNumberToObject(row, "m", (double)r->item.m);
    cJSON_AddNumberToObject(row, "n", (double)r->item.n);
    cJSON_AddNumberToObject(row, "k", (double)r->item.k);
    if (r->kernel[0] != '\0')
        cJSON_AddStringToObject(row, "kernel", r->kernel);
    bench_add_time(row, &r->time);
    bench_add_measured(row, "others", r->time.others);
    cJSON_AddBoolToObject(row, "disturbed", disturbed(r));
    bench_add_measured(row, "tflops", r->flops / r->time.median * 1e-12);
    bench_add_measured(row, "gbps", r->bytes / r->time.median * 1e-9);
    bench_add_measured(row, "bandwidth_gbps", r->bandwidth * 1e-9);
    bench_add_measured(row, "floor_us", r->floor * 1e6);
    bench_add_measured(row, "floor_share", r->floor / r->time.median);
    cJSON *peers = cJSON_AddObjectToObject(row, "peer_us");
    for (int p = 0; p < bench_peer_count; p++)
        if (setup->peer_missing[p] == NULL && r->peer[p].repeats > 0)
            bench_add_measured(peers, bench_peers[p]->name, r->peer[p].median * 1e6);
    return row;
}

cJSON *bench_report_json(const bench_setup *setup, const bench_result *results, int count,
                         const char *commit)
{
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    cJSON *root = cli_json_new("bench");
    cJSON_AddStringToObject(root, "version", dg_version());
    cJSON_AddStringToObject(root, "commit", commit != NULL ? commit : "not stated");
    cJSON_AddStringToObject(root, "date", date);
    cJSON_AddStringToObject(root, "chip", setup->device.name);
    cJSON_AddStringToObject(root, "isa", setup->device.architecture);
    cJSON_AddNumberToObject(root, "threads", setup->device.units);
    cJSON_AddStringToObject(root, "compiler", "C " __VERSION__);
    bench_add_measured(root, "peak_gflops", setup->peak * 1e-9);
    cJSON_AddStringToObject(root, "peak", setup->peak_what);
    cJSON_AddStringToObject(root, "fill", fill_names[setup->fill]);
    cJSON_AddStringToObject(root, "weights", setup->packed ? "packed" : "rows");
    cJSON_AddStringToObject(root, "caches", setup->warm ? "warm" : "cold");
    cJSON_AddNumberToObject(root, "cases", setup->cases);
    cJSON *peers = cJSON_AddObjectToObject(root, "peers");
    for (int p = 0; p < bench_peer_count; p++)
        cJSON_AddStringToObject(peers, bench_peers[p]->name, about_peer(setup, p));
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < count; i++)
        cJSON_AddItemToArray(rows, row_json(setup, &results[i]));
    return root;
}
