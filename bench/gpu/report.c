/* SPDX-License-Identifier: MIT */
/* The GPU benchmark's results, for people and for programs. */
#include "bench_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const fill_names[] = {"random", "zeros", "ones"};

static const char *regime(const gpu_bench *b)
{
    return b->gpu.sustained ? "sustained" : "burst";
}

static void cell_ratio(cli_table *table, const bench_time *peer, const bench_time *time)
{
    if (peer->repeats > 0)
        cli_table_cell(table, "%.1f us %.2fx", peer->median * 1e6, peer->median / time->median);
    else
        cli_table_cell(table, "-");
}

/* The geometric mean of a peer's time over ours, over the cases of a recipe; 0 when there is none.
 */
static double mean_ratio(const gpu_result *results, int count, const char *recipe, bool bf16)
{
    double sum = 0;
    int cases = 0;
    for (int i = 0; i < count; i++) {
        const bench_time *peer = bf16 ? &results[i].bf16 : &results[i].fp8;
        if (strcmp(results[i].item.recipe->name, recipe) != 0 || peer->repeats == 0)
            continue;
        sum += log(peer->median / results[i].time.median);
        cases++;
    }
    return cases > 0 ? exp(sum / cases) : 0;
}

static double mean_share(const gpu_result *results, int count, const char *recipe)
{
    double sum = 0;
    int cases = 0;
    for (int i = 0; i < count; i++)
        if (strcmp(results[i].item.recipe->name, recipe) == 0) {
            sum += log(results[i].floor / results[i].time.median);
            cases++;
        }
    return exp(sum / cases);
}

/* One row for each recipe, in the order in which they first appear. */
static void print_means(const gpu_result *results, int count)
{
    cli_table *table =
        cli_table_new("geometric means", ">of floor", ">x cublaslt fp8", ">x cublas bf16", NULL);
    for (int i = 0; i < count; i++) {
        const char *recipe = results[i].item.recipe->name;
        bool first = true;
        for (int j = 0; j < i; j++)
            first = first && strcmp(results[j].item.recipe->name, recipe) != 0;
        if (!first)
            continue;
        cli_table_cell(table, "%s", recipe);
        cli_table_cell(table, "%.2f", mean_share(results, count, recipe));
        for (int bf16 = 0; bf16 < 2; bf16++) {
            const double ratio = mean_ratio(results, count, recipe, bf16);
            cli_table_cell(table, ratio > 0 ? "%.3f" : "-", ratio);
        }
    }
    putchar('\n');
    cli_table_print(table);
}

void gpu_report(const gpu_bench *b, const gpu_result *results, int count, bool quantize)
{
    printf("deepgemm %s on %s, CUDA driver %d.%d; %s values, %s, %s\n", dg_version(), b->gpu.name,
           b->gpu.driver_version / 1000, b->gpu.driver_version % 1000 / 10, fill_names[b->fill],
           b->warm ? "warm: one copy, in the cache if it fits"
                   : "cold: copies of more than 256 MB rotate",
           b->gpu.sustained
               ? "sustained: without a pause"
               : "burst: some milliseconds at a time, then three times as long a rest");
    printf("us: median of graph replays; spread: 10th to 90th percentile; launch, host: a plain "
           "launch, for the GPU and for the host\n");
    printf(quantize
               ? "floor: a copy that reads and writes as many bytes\n\n"
               : "floor: the larger of arithmetic and memory (docs/benchmarks.md); x: a peer's "
                 "time over deepgemm's\npeer: %s\n\n",
           b->about_peer);
    cli_table *table =
        cli_table_new("recipe", ">m", ">n", ">k", ">us", ">spread", ">launch", ">host", ">MHz",
                      ">TFLOP/s", ">GB/s", ">of floor", ">cublaslt fp8", ">cublas bf16", NULL);
    for (int i = 0; i < count; i++) {
        const gpu_result *r = &results[i];
        const bench_time *t = &r->time;
        cli_table_cell(table, "%s", r->item.recipe->name);
        cli_table_cell(table, "%lld", (long long)r->item.m);
        cli_table_cell(table, "%lld", (long long)r->item.n);
        cli_table_cell(table, "%lld", (long long)r->item.k);
        cli_table_cell(table, "%.2f", t->median * 1e6);
        cli_table_cell(table, "%.0f %%", 100 * (t->p90 - t->p10) / t->median);
        cli_table_cell(table, "%.2f", r->launch * 1e6);
        cli_table_cell(table, "%.2f", r->host * 1e6);
        cli_table_cell(table, "%.0f", r->mhz);
        cli_table_cell(table, "%.0f", r->flops / t->median * 1e-12);
        cli_table_cell(table, "%.0f", r->bytes / t->median * 1e-9);
        cli_table_cell(table, "%.2f", r->floor / t->median);
        cell_ratio(table, &r->fp8, t);
        cell_ratio(table, &r->bf16, t);
    }
    cli_table_print(table);
    if (!quantize && count > 1)
        print_means(results, count);
}

static cJSON *row_json(const gpu_result *r)
{
    cJSON *row = cJSON_CreateObject();
    const bench_case *item = &r->item;
    const bench_time *t = &r->time;
    char *name = cli_format("%s %lld %lld %lld %s %s %s", item->recipe->name, (long long)item->m,
                            (long long)item->n, (long long)item->k, dg_dtype_name(item->a),
                            dg_dtype_name(item->b), dg_dtype_name(item->d));
    cJSON_AddStringToObject(row, "case", name);
    free(name);
    cJSON_AddStringToObject(row, "recipe", item->recipe->name);
    cJSON_AddNumberToObject(row, "m", (double)item->m);
    cJSON_AddNumberToObject(row, "n", (double)item->n);
    cJSON_AddNumberToObject(row, "k", (double)item->k);
    if (r->kernel[0] != '\0')
        cJSON_AddStringToObject(row, "kernel", r->kernel);
    bench_add_time(row, t);
    bench_add_measured(row, "launch_us", r->launch * 1e6);
    bench_add_measured(row, "host_us", r->host * 1e6);
    if (r->kernel[0] != '\0')
        bench_add_measured(row, "first_call_ms", r->first * 1e3);
    bench_add_measured(row, "sm_mhz", r->mhz);
    bench_add_measured(row, "tflops", r->flops / t->median * 1e-12);
    bench_add_measured(row, "gbps", r->bytes / t->median * 1e-9);
    bench_add_measured(row, "floor_us", r->floor * 1e6);
    bench_add_measured(row, "floor_share", r->floor / t->median);
    cJSON *peers = cJSON_AddObjectToObject(row, "peer_us");
    if (r->fp8.repeats > 0)
        bench_add_measured(peers, "cublaslt_fp8", r->fp8.median * 1e6);
    if (r->bf16.repeats > 0)
        bench_add_measured(peers, "cublas_bf16", r->bf16.median * 1e6);
    return row;
}

cJSON *gpu_report_json(const gpu_bench *b, const gpu_result *results, int count, const char *commit)
{
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime(&now));
    double mhz = 0;
    for (int i = 0; i < count; i++)
        mhz += results[i].mhz / count;
    cJSON *root = cli_json_new("bench");
    cJSON_AddStringToObject(root, "version", dg_version());
    cJSON_AddStringToObject(root, "commit", commit != NULL ? commit : "not stated");
    cJSON_AddStringToObject(root, "date", date);
    cJSON_AddStringToObject(root, "chip", b->gpu.name);
    cJSON_AddStringToObject(root, "isa", b->device.architecture);
    cJSON_AddNumberToObject(root, "cuda_driver", b->gpu.driver_version);
    cJSON_AddStringToObject(root, "regime", regime(b));
    bench_add_measured(root, "sm_mhz", mhz);
    cJSON_AddStringToObject(root, "fill", fill_names[b->fill]);
    cJSON_AddStringToObject(root, "weights",
                            b->packed     ? "packed"
                            : b->changing ? "changing"
                                          : "rows");
    cJSON_AddStringToObject(root, "caches", b->warm ? "warm" : "cold");
    cJSON_AddNumberToObject(root, "cases", b->cases);
    cJSON *peers = cJSON_AddObjectToObject(root, "peers");
    cJSON_AddStringToObject(peers, "cublaslt_fp8", b->about_peer);
    cJSON_AddStringToObject(peers, "cublas_bf16", b->about_peer);
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < count; i++)
        cJSON_AddItemToArray(rows, row_json(&results[i]));
    return root;
}
