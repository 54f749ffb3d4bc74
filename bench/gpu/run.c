/* SPDX-License-Identifier: MIT */
/* deepgemm bench on a GPU: which cases, and in which order. */
#include "bench_gpu.h"

#include <stdlib.h>
#include <string.h>

/* Projections of large transformer models, and square ones for comparison. */
static const int64_t usual_shapes[][3] = {
    {512, 4096, 4096},   {512, 8192, 8192},  {512, 12288, 4096},  {512, 4096, 8192},
    {2048, 4096, 4096},  {2048, 8192, 8192}, {2048, 12288, 4096}, {2048, 4096, 8192},
    {4096, 4096, 4096},  {4096, 8192, 8192}, {4096, 12288, 4096}, {4096, 4096, 8192},
    {4096, 2112, 7168},  {4096, 576, 7168},  {4096, 24576, 1536}, {4096, 32768, 512},
    {4096, 7168, 16384}, {4096, 4096, 7168}, {4096, 7168, 2048},
};
enum { USUAL_SHAPES = sizeof usual_shapes / sizeof usual_shapes[0] };

static const char *const usual_recipes[] = {
    "tensor", "tensor_fast", "token_channel", "block128", "block1x128", "block32", "mx"};
enum { USUAL_RECIPES = sizeof usual_recipes / sizeof usual_recipes[0] };

static void add_usual(bench_cases *cases, const char *only, bool quantize)
{
    for (int s = quantize ? USUAL_SHAPES - 1 : 0; s < USUAL_SHAPES; s++)
        for (int i = 0; i < USUAL_RECIPES; i++) {
            if (only != NULL ? strcmp(only, usual_recipes[i]) != 0
                             : quantize && strcmp(usual_recipes[i], "tensor_fast") == 0)
                continue;
            const int64_t *shape = usual_shapes[s];
            char *line = cli_format("%s %lld %lld %lld", usual_recipes[i], (long long)shape[0],
                                    quantize ? 1 : (long long)shape[1], (long long)shape[2]);
            bench_case item;
            if (bench_case_parse(line, line, &item))
                bench_cases_add(cases, item);
            free(line);
        }
}

bench_cases gpu_cases(const gpu_request *request)
{
    bench_cases cases = request->cases;
    if (cases.count == 0)
        add_usual(&cases, request->recipe, request->quantize);
    return cases;
}

void gpu_bench_open(gpu_bench *b, const gpu_request *request)
{
    *b = (gpu_bench){.about_peer = "not asked for",
                     .fill = request->fill,
                     .packed = request->packed,
                     .changing = request->changing,
                     .warm = request->warm,
                     .seconds = request->seconds > 0 ? request->seconds : 0.03};
    cli_check(dg_create(&b->context, request->device, &request->options), "opening the GPU");
    cli_check(dg_get_device_info(b->context, &b->device), "asking for the GPU");
    gpu_open(&b->gpu, request->device, request->sustained);
    if (!request->no_peers && !request->quantize)
        b->peer = peer_open(&b->gpu, &b->about_peer);
}

void gpu_bench_close(gpu_bench *b)
{
    dg_destroy(b->context);
}

bool gpu_same_shape(const bench_case *x, const bench_case *y)
{
    return x->m == y->m && x->n == y->n && x->k == y->k;
}

static void save(const gpu_request *request, const gpu_bench *b, const gpu_result *results,
                 int count)
{
    if (request->output != NULL)
        cli_json_save(request->output, gpu_report_json(b, results, count, request->commit));
}

int gpu_bench_run(const gpu_request *request)
{
    bench_cases cases = gpu_cases(request);
    gpu_bench b;
    gpu_bench_open(&b, request);
    b.cases = cases.count;
    gpu_result *results = cli_alloc((size_t)(cases.count + 1) * sizeof *results);
    cli_progress progress = cli_progress_start("bench", cases.count);
    gpu_operands *operands = NULL;
    bench_time bf16 = {0};
    save(request, &b, results, 0); /* where that fails, before the work */
    for (int i = 0; i < cases.count; i++) {
        const bench_case *item = &cases.items[i];
        if (i == 0 || !gpu_same_shape(item, item - 1)) {
            if (operands != NULL)
                gpu_operands_free(&b, operands);
            operands = gpu_operands_new(&b, item->m, item->n, item->k);
            bf16 = request->quantize ? (bench_time){0} : gpu_bench_bf16(&b, operands);
        }
        results[i] = (request->quantize ? gpu_bench_quantize : gpu_bench_gemm)(&b, operands, item);
        results[i].bf16 = bf16;
        save(request, &b, results, i + 1);
        cli_progress_update(&progress, i + 1);
    }
    cli_progress_end(&progress);
    if (operands != NULL)
        gpu_operands_free(&b, operands);

    if (request->json)
        cli_json_print(gpu_report_json(&b, results, cases.count, request->commit));
    else
        gpu_report(&b, results, cases.count, request->quantize);
    free(results);
    gpu_bench_close(&b);
    return CLI_OK;
}
