/* SPDX-License-Identifier: MIT */
/*
 * deepgemm tune. The planner predicts a kernel's time as two parts: the stages of its tiles, which
 * grow with K, and what each tile costs besides. Both are asked of the library (dg_gemm_explain,
 * for the case and for K = 0), the whole is measured, and the two factors that bring the parts
 * closest to what was measured say how the kernel's constants should change.
 */
#include "bench_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One kernel on one case. */
typedef struct trial {
    int item, kernel;
    double seconds, cycles; /* measured, see find_cycles()           */
    double floor, mhz;      /* as in gpu_result                      */
    double stages, tiles;   /* predicted cycles, their two parts     */
    bool chosen;            /* by the planner                        */
} trial;

typedef struct kernel_fit {
    dg_kernel_info info;
    int trials;
    double stage_factor, tile_factor, error; /* the error is that of today's constants */
} kernel_fit;

typedef struct tuning {
    gpu_bench bench;
    bench_cases cases;
    kernel_fit *kernels;
    int kernel_count;
    trial *trials;
    int trial_count;
} tuning;

static void find_kernels(tuning *t)
{
    dg_kernel_info info;
    for (int i = 0; dg_kernel_at(i, &info) == DG_OK; i++)
        if (strcmp(info.backend, "cuda") == 0 && !info.grouped) {
            t->kernels = realloc(t->kernels, (size_t)(t->kernel_count + 1) * sizeof *t->kernels);
            if (t->kernels == NULL)
                cli_die("out of memory");
            t->kernels[t->kernel_count++] = (kernel_fit){.info = info};
        }
    t->trials = cli_alloc((size_t)(t->cases.count * t->kernel_count + 1) * sizeof *t->trials);
}

static void measure(tuning *t, int item, gpu_operands *operands, dg_context *const contexts[])
{
    const bench_case *c = &t->cases.items[item];
    char chosen[96] = "";
    gpu_predict(&t->bench, operands, c, t->bench.context, chosen, sizeof chosen);
    for (int k = 0; k < t->kernel_count; k++) {
        gpu_prediction predicted = gpu_predict(&t->bench, operands, c, contexts[k], NULL, 0);
        if (predicted.whole <= 0)
            continue;
        const gpu_result result = gpu_time_kernel(&t->bench, operands, c, contexts[k]);
        if (result.time.repeats == 0)
            continue;
        t->trials[t->trial_count++] = (trial){
            .item = item,
            .kernel = k,
            .seconds = result.time.median,
            .floor = result.floor,
            .mhz = result.mhz,
            .stages = predicted.whole - predicted.without_k,
            .tiles = predicted.without_k,
            .chosen = strcmp(t->kernels[k].info.name, chosen) == 0,
        };
    }
}

/*
 * The clock under load is not known well enough, and the planner only compares kernels: seconds
 * become cycles at the one clock for which its predictions are right on average.
 */
static void find_cycles(tuning *t)
{
    double sum = 0;
    for (int i = 0; i < t->trial_count; i++)
        sum += log((t->trials[i].stages + t->trials[i].tiles) / t->trials[i].seconds);
    for (int i = 0; i < t->trial_count; i++)
        t->trials[i].cycles = t->trials[i].seconds * exp(sum / t->trial_count);
}

/*
 * Least squares of (x stages + y tiles) / cycles - 1; one factor for both parts where the cases do
 * not tell them apart.
 */
static void fit(tuning *t, int kernel)
{
    double ss = 0, st = 0, tt = 0, s = 0, u = 0, error = 0;
    kernel_fit *f = &t->kernels[kernel];
    for (int i = 0; i < t->trial_count; i++) {
        const trial *r = &t->trials[i];
        if (r->kernel != kernel || r->cycles <= 0)
            continue;
        const double stages = r->stages / r->cycles, tiles = r->tiles / r->cycles;
        ss += stages * stages, st += stages * tiles, tt += tiles * tiles;
        s += stages, u += tiles;
        error += fabs(stages + tiles - 1);
        f->trials++;
    }
    if (f->trials == 0)
        return;
    f->error = error / f->trials;
    const double determinant = ss * tt - st * st;
    f->stage_factor = f->tile_factor = (s + u) / (ss + 2 * st + tt);
    if (f->trials < 3 || determinant < 1e-3 * ss * tt)
        return;
    const double x = (s * tt - u * st) / determinant, y = (u * ss - s * st) / determinant;
    if (x > 0 && y > 0) { /* or else the cases say too little about the parts */
        f->stage_factor = x;
        f->tile_factor = y;
    }
}

/* The fastest trial of a case, and the one that the planner chose; false when one is missing. */
static bool find_best(const tuning *t, int item, const trial **best, const trial **chosen)
{
    *best = *chosen = NULL;
    for (int i = 0; i < t->trial_count; i++) {
        const trial *r = &t->trials[i];
        if (r->item != item)
            continue;
        if (*best == NULL || r->seconds < (*best)->seconds)
            *best = r;
        if (r->chosen)
            *chosen = r;
    }
    return *best != NULL && *chosen != NULL;
}

/* What all trials so far say about the constants. */
static void judge(tuning *t)
{
    find_cycles(t);
    for (int k = 0; k < t->kernel_count; k++) {
        t->kernels[k] = (kernel_fit){.info = t->kernels[k].info};
        fit(t, k);
    }
}

static void print_tables(const tuning *t)
{
    printf("deepgemm %s on %s, burst\n\n", dg_version(), t->bench.gpu.name);
    cli_table *choices = cli_table_new("recipe", ">m", ">n", ">k", ">us", ">best us", ">lost",
                                       "chosen", "best", NULL);
    for (int i = 0; i < t->cases.count; i++) {
        const bench_case *c = &t->cases.items[i];
        const trial *best, *chosen;
        if (!find_best(t, i, &best, &chosen))
            continue;
        cli_table_cell(choices, "%s", c->recipe->name);
        cli_table_cell(choices, "%lld", (long long)c->m);
        cli_table_cell(choices, "%lld", (long long)c->n);
        cli_table_cell(choices, "%lld", (long long)c->k);
        cli_table_cell(choices, "%.2f", chosen->seconds * 1e6);
        cli_table_cell(choices, "%.2f", best->seconds * 1e6);
        cli_table_cell(choices, "%.1f %%", 100 * (chosen->seconds / best->seconds - 1));
        cli_table_cell(choices, "%s", t->kernels[chosen->kernel].info.name);
        cli_table_cell(choices, "%s",
                       best == chosen ? "the same" : t->kernels[best->kernel].info.name);
    }
    cli_table_print(choices);
    printf("\nThe planner's constants should be multiplied by these factors, relative to each "
           "other:\n\n");
    cli_table *factors =
        cli_table_new("kernel", ">cases", ">of a stage", ">of a tile", ">error today", NULL);
    for (int k = 0; k < t->kernel_count; k++) {
        const kernel_fit *f = &t->kernels[k];
        if (f->trials == 0)
            continue;
        cli_table_cell(factors, "%s", f->info.name);
        cli_table_cell(factors, "%d", f->trials);
        cli_table_cell(factors, "%.3f", f->stage_factor);
        cli_table_cell(factors, "%.3f", f->tile_factor);
        cli_table_cell(factors, "%.0f %%", 100 * f->error);
    }
    cli_table_print(factors);
}

/* Kernels that differ in nothing but the depth of their pipeline are named MAIN_LOOP_sDEPTH__....
 */
static void add_depth(cJSON *row, const char *kernel)
{
    const char *end = strstr(kernel, "__"), *depth = end;
    while (depth != NULL && depth > kernel && depth[-1] >= '0' && depth[-1] <= '9')
        depth--;
    if (depth == NULL || depth == end || depth - kernel < 2 || strncmp(depth - 2, "_s", 2) != 0)
        return;
    char *main_loop = cli_format("%.*s", (int)(depth - 2 - kernel), kernel);
    cJSON_AddStringToObject(row, "main_loop", main_loop);
    cJSON_AddNumberToObject(row, "stages", strtod(depth, NULL));
    free(main_loop);
}

static cJSON *json(const tuning *t, const char *commit)
{
    cJSON *root = cli_json_new("tune");
    cJSON_AddStringToObject(root, "version", dg_version());
    cJSON_AddStringToObject(root, "commit", commit != NULL ? commit : "not stated");
    cJSON_AddStringToObject(root, "chip", t->bench.gpu.name);
    cJSON_AddStringToObject(root, "weights", t->bench.packed ? "packed" : "rows");
    cJSON_AddNumberToObject(root, "cases", t->cases.count);
    cJSON *kernels = cJSON_AddArrayToObject(root, "kernels");
    for (int k = 0; k < t->kernel_count; k++) {
        const kernel_fit *f = &t->kernels[k];
        if (f->trials == 0)
            continue;
        cJSON *row = cJSON_CreateObject();
        cJSON_AddStringToObject(row, "kernel", f->info.name);
        cJSON_AddNumberToObject(row, "cases", f->trials);
        cJSON_AddNumberToObject(row, "stage_factor", f->stage_factor);
        cJSON_AddNumberToObject(row, "tile_factor", f->tile_factor);
        cJSON_AddNumberToObject(row, "error", f->error);
        cJSON_AddItemToArray(kernels, row);
    }
    cJSON *rows = cJSON_AddArrayToObject(root, "rows");
    for (int i = 0; i < t->trial_count; i++) {
        const trial *r = &t->trials[i];
        const bench_case *c = &t->cases.items[r->item];
        cJSON *row = cJSON_CreateObject();
        char *name = cli_format("%s %lld %lld %lld", c->recipe->name, (long long)c->m,
                                (long long)c->n, (long long)c->k);
        cJSON_AddStringToObject(row, "case", name);
        free(name);
        cJSON_AddStringToObject(row, "recipe", c->recipe->name);
        cJSON_AddNumberToObject(row, "m", (double)c->m);
        cJSON_AddNumberToObject(row, "n", (double)c->n);
        cJSON_AddNumberToObject(row, "k", (double)c->k);
        cJSON_AddStringToObject(row, "kernel", t->kernels[r->kernel].info.name);
        add_depth(row, t->kernels[r->kernel].info.name);
        cJSON_AddBoolToObject(row, "chosen", r->chosen);
        cJSON_AddNumberToObject(row, "us", r->seconds * 1e6);
        cJSON_AddNumberToObject(row, "floor_share", r->floor / r->seconds);
        cJSON_AddNumberToObject(row, "sm_mhz", r->mhz);
        cJSON_AddNumberToObject(row, "cycles", r->cycles);
        cJSON_AddNumberToObject(row, "predicted_cycles", r->stages + r->tiles);
        cJSON_AddItemToArray(rows, row);
    }
    return root;
}

static void save(const gpu_request *request, const tuning *t)
{
    if (request->output != NULL)
        cli_json_save(request->output, json(t, request->commit));
}

int gpu_tune_run(const gpu_request *request)
{
    tuning t = {.cases = gpu_cases(request)};
    gpu_bench_open(&t.bench, request);
    find_kernels(&t);
    dg_context **contexts = cli_alloc((size_t)(t.kernel_count + 1) * sizeof(dg_context *));
    for (int k = 0; k < t.kernel_count; k++) {
        dg_context_options options = request->options;
        options.kernel = t.kernels[k].info.name;
        cli_check(dg_create(&contexts[k], request->device, &options), "opening the GPU");
    }
    save(request, &t); /* where that fails, before the work */
    cli_progress progress = cli_progress_start("tune", t.cases.count);
    gpu_operands *operands = NULL;
    for (int i = 0; i < t.cases.count; i++) {
        const bench_case *c = &t.cases.items[i];
        if (i == 0 || !gpu_same_shape(c, c - 1)) {
            if (operands != NULL)
                gpu_operands_free(&t.bench, operands);
            operands = gpu_operands_new(&t.bench, c->m, c->n, c->k);
        }
        measure(&t, i, operands, contexts);
        judge(&t);
        save(request, &t);
        cli_progress_update(&progress, i + 1);
    }
    cli_progress_end(&progress);
    if (operands != NULL)
        gpu_operands_free(&t.bench, operands);
    if (request->json)
        cli_json_print(json(&t, request->commit));
    else
        print_tables(&t);
    for (int k = 0; k < t.kernel_count; k++)
        dg_destroy(contexts[k]);
    free(contexts);
    free(t.kernels);
    free(t.trials);
    free(t.cases.items);
    gpu_bench_close(&t.bench);
    return CLI_OK;
}
