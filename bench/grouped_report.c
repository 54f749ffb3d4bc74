/* SPDX-License-Identifier: MIT */
/* The results of grouped products, for people and for programs. */
#include "grouped.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The least and the largest of one size of all products. */
static void cell_range(cli_table *table, const grouped_case *c, int64_t (*size)(grouped_product))
{
    int64_t least = size(c->products[0]), most = least;
    for (int i = 1; i < c->count; i++) {
        const int64_t value = size(c->products[i]);
        least = value < least ? value : least;
        most = value > most ? value : most;
    }
    if (least == most)
        cli_table_cell(table, "%lld", (long long)least);
    else
        cli_table_cell(table, "%lld-%lld", (long long)least, (long long)most);
}

static int64_t m_of(grouped_product p)
{
    return p.m;
}

static int64_t n_of(grouped_product p)
{
    return p.n;
}

static int64_t k_of(grouped_product p)
{
    return p.k;
}

static void cell_other(cli_table *table, const bench_time *other, const bench_time *time)
{
    if (other->repeats > 0)
        cli_table_cell(table, "%.1f us %.2fx", other->median * 1e6, other->median / time->median);
    else
        cli_table_cell(table, "-");
}

void grouped_report(const grouped_request *request, const grouped_machine *machine,
                    const grouped_result *results, int count)
{
    printf("deepgemm %s on %s; %s weights, %s, %s\n", dg_version(), machine->name,
           request->packed ? "packed" : "row-major",
           request->warm ? "warm: one copy, in the caches if it fits"
                         : "cold: copies of more than 256 MB rotate",
           machine->regime);
    printf("floor: the sum of the products' own floors (docs/benchmarks.md); GB/s: of weights\n"
           "busiest, idlest: the work of whom has most and least, where the mean is 1\n"
           "separate: a call for each product; x: its time over that of one call\n"
           "peer: %s\n\n",
           machine->peer);
    cli_table *table = cli_table_new(
        "recipe", "form", ">products", ">m", ">n", ">k", ">us", ">spread", ">host", ">TFLOP/s",
        ">GB/s", ">of floor", ">busiest", ">idlest", ">separate", ">cublaslt", ">update us", NULL);
    for (int i = 0; i < count; i++) {
        const grouped_result *r = &results[i];
        const bench_time *t = &r->together.time;
        cli_table_cell(table, "%s", r->item->recipe->name);
        cli_table_cell(table, "%s", grouped_form_name(r->item->form));
        cli_table_cell(table, "%d", r->item->count);
        cell_range(table, r->item, m_of);
        cell_range(table, r->item, n_of);
        cell_range(table, r->item, k_of);
        cli_table_cell(table, "%.1f", t->median * 1e6);
        cli_table_cell(table, "%.0f %%", 100 * (t->p90 - t->p10) / t->median);
        cli_table_cell(table, "%.1f", r->together.host * 1e6);
        cli_table_cell(table, "%.3g", r->flops / t->median * 1e-12);
        cli_table_cell(table, "%.0f", r->weights / t->median * 1e-9);
        cli_table_cell(table, "%.2f", r->floor / t->median);
        cli_table_cell(table, "%.2f", r->schedule.busiest);
        cli_table_cell(table, "%.2f", r->schedule.idlest);
        cell_other(table, &r->separate, t);
        cell_other(table, &r->peer, t);
        if (r->update.repeats > 0)
            cli_table_cell(table, "%.1f", r->update.median * 1e6);
        else
            cli_table_cell(table, "-");
    }
    cli_table_print(table);
}

static void add_time(cJSON *object, const char *name, const bench_time *time)
{
    if (time->repeats > 0)
        bench_add_measured(object, name, time->median * 1e6);
}

static cJSON *row_json(const grouped_result *r)
{
    cJSON *row = cJSON_CreateObject();
    const bench_time *t = &r->together.time;
    cJSON_AddStringToObject(row, "case", r->item->line);
    cJSON_AddStringToObject(row, "recipe", r->item->recipe->name);
    cJSON_AddStringToObject(row, "form", grouped_form_name(r->item->form));
    cJSON_AddNumberToObject(row, "products", r->item->count);
    cJSON_AddStringToObject(row, "kernel", r->schedule.kernel);
    bench_add_time(row, t);
    bench_add_measured(row, "launch_us", r->together.launch * 1e6);
    bench_add_measured(row, "host_us", r->together.host * 1e6);
    bench_add_measured(row, "sm_mhz", r->together.mhz);
    bench_add_measured(row, "tflops", r->flops / t->median * 1e-12);
    bench_add_measured(row, "weight_gbps", r->weights / t->median * 1e-9);
    bench_add_measured(row, "floor_us", r->floor * 1e6);
    bench_add_measured(row, "floor_share", r->floor / t->median);
    bench_add_measured(row, "busiest", r->schedule.busiest);
    bench_add_measured(row, "idlest", r->schedule.idlest);
    add_time(row, "separate_us", &r->separate);
    add_time(row, "update_us", &r->update);
    cJSON *peers = cJSON_AddObjectToObject(row, "peer_us");
    add_time(peers, "cublaslt_fp8", &r->peer);
    return row;
}

cJSON *grouped_report_json(const grouped_request *request, const grouped_machine *machine,
                           const grouped_result *results, int count, int cases)
{
    static const char *const fill_names[] = {"random", "zeros", "ones"};
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    cJSON *root = cli_json_new("bench");
    cJSON_AddStringToObject(root, "version", dg_version());
    cJSON_AddStringToObject(root, "commit",
                            request->commit != NULL ? request->commit : "not stated");
    cJSON_AddStringToObject(root, "date", date);
    cJSON_AddStringToObject(root, "chip", machine->name);
    cJSON_AddStringToObject(root, "grouped", machine->regime);
    cJSON_AddStringToObject(root, "fill", fill_names[request->fill]);
    cJSON_AddStringToObject(root, "weights", request->packed ? "packed" : "rows");
    cJSON_AddStringToObject(root, "caches", request->warm ? "warm" : "cold");
    cJSON_AddNumberToObject(root, "cases", cases);
    cJSON *peers = cJSON_AddObjectToObject(root, "peers");
    cJSON_AddStringToObject(peers, "cublaslt_fp8", machine->peer);
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < count; i++)
        cJSON_AddItemToArray(rows, row_json(&results[i]));
    return root;
}
