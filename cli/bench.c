/* SPDX-License-Identifier: MIT */
/* deepgemm bench: times products of given shapes beside their floor and their peers. */
#include "bench.h"
#include "grouped.h"
#include "peers/peer.h"
#ifdef BENCH_GPU
#include "gpu/bench_gpu.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What runs when nothing is asked for: one decode and one prefill shape of small and large layers.
 */
static const char *const default_cases[] = {
    "block128 1 1536 576",   "block128 1 4096 4096",   "block128 4 4096 4096",
    "block128 128 1536 576", "block128 128 4096 4096", "token_channel 128 4096 4096",
};

/* Powers of two, and sizes beside them where a kernel might fall off its tile. */
static const int64_t sweep_sizes[] = {1,  2,  3,  4,   5,   6,   8,   12,  16,  17,  24,  32,  48,
                                      64, 65, 96, 128, 129, 192, 256, 384, 512, 513, 768, 1024};

#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

typedef struct request {
    const char *file, *grouped, *recipe, *commit, *plot, *device, *output;
    int64_t m, n, k, threads;
    int weights, fill;
    bool quantize, sweep, warm, sustained, no_peers, json;
    dg_context_options options;
} request;

static void add_line(bench_cases *cases, const char *line)
{
    bench_case item;
    if (bench_case_parse(line, line, &item))
        bench_cases_add(cases, item);
}

static void add_shape(bench_cases *cases, const request *r, int64_t m)
{
    int64_t n = r->quantize && r->n == 0 ? 1 : r->n; /* which has no N */
    char *line = cli_format("%s %lld %lld %lld", r->recipe == NULL ? "block128" : r->recipe,
                            (long long)m, (long long)n, (long long)r->k);
    add_line(cases, line);
    free(line);
}

static bench_cases find_cases(const request *r)
{
    bench_cases cases = {0};
    bool shape = r->recipe != NULL || r->m > 0 || r->n > 0 || r->k > 0;
    if (r->file != NULL && shape)
        cli_misuse("either --cases, or --recipe, --m, --n and --k");
    if (r->sweep && (r->m > 0 || r->n == 0 || r->k == 0))
        cli_misuse("--sweep needs --n and --k, and chooses M itself");
    if (!r->sweep && shape && (r->m == 0 || (r->n == 0 && !r->quantize) || r->k == 0))
        cli_misuse("a shape is --m, --n and --k together, each at least 1");

    if (r->file != NULL)
        bench_cases_read(&cases, r->file);
    else if (r->sweep)
        for (int i = 0; i < COUNT(sweep_sizes); i++)
            add_shape(&cases, r, sweep_sizes[i]);
    else if (shape)
        add_shape(&cases, r, r->m);
    else
        for (int i = 0; i < COUNT(default_cases); i++)
            add_line(&cases, default_cases[i]);
    return cases;
}

static void open_peers(bench_setup *setup, const request *r)
{
    for (int p = 0; p < bench_peer_count; p++)
        setup->peer_missing[p] =
            r->no_peers || r->quantize
                ? "not asked for"
                : bench_peers[p]->open(setup->device.units, setup->device.architecture);
}

/* GFLOP/s over M; peer -1 is deepgemm itself. */
static bench_series series_of(const bench_result *results, int count, int peer)
{
    double *y = cli_alloc((size_t)count * sizeof *y);
    for (int i = 0; i < count; i++) {
        double seconds = peer < 0 ? results[i].time.median : results[i].peer[peer].median;
        y[i] = seconds > 0 ? results[i].flops / seconds * 1e-9 : 0;
    }
    return (bench_series){peer < 0 ? "deepgemm" : bench_peers[peer]->name, y};
}

static void plot_sweep(const char *path, const bench_result *results, int count)
{
    const bench_case *first = &results[0].item;
    bench_series series[1 + bench_peer_count];
    int series_count = 0;
    for (int p = -1; p < bench_peer_count; p++)
        if (p < 0 || bench_peer_ran(results, count, p))
            series[series_count++] = series_of(results, count, p);
    double *x = cli_alloc((size_t)count * sizeof *x);
    for (int i = 0; i < count; i++)
        x[i] = (double)results[i].item.m;
    char *title = cli_format("%s, N = %lld, K = %lld", first->recipe->name, (long long)first->n,
                             (long long)first->k);
    bench_plot(path, title, "M", "GFLOP/s", x, count, series, series_count);
    free(title);
    for (int s = 0; s < series_count; s++)
        free((void *)series[s].y);
    free(x);
}

static void save(const request *r, const bench_setup *setup, const bench_result *results, int count)
{
    if (r->output != NULL)
        cli_json_save(r->output, bench_report_json(setup, results, count, r->commit));
}

static int run(const request *r, double seconds)
{
    bench_cases cases = find_cases(r);
    bench_setup setup = {.fill = (bench_fill)r->fill,
                         .packed = r->weights == 0,
                         .warm = r->warm,
                         .seconds = seconds,
                         .cases = cases.count};
    cli_check(dg_create(&setup.context, DG_CPU, &r->options), "opening the processor");
    cli_check(dg_get_device_info(setup.context, &setup.device), "asking for the processor");
    open_peers(&setup, r);
    setup.peak = bench_peak(setup.device.architecture, setup.device.units, &setup.peak_what);
    setup.bandwidth = bench_read_bandwidth(setup.device.units);

    bench_result *results = cli_alloc((size_t)cases.count * sizeof *results);
    cli_progress progress = cli_progress_start("bench", cases.count);
    save(r, &setup, results, 0); /* where that fails, before the work */
    for (int i = 0; i < cases.count; i++) {
        results[i] = (r->quantize ? bench_quantize : bench_gemm)(&setup, &cases.items[i]);
        save(r, &setup, results, i + 1);
        cli_progress_update(&progress, i + 1);
    }
    cli_progress_end(&progress);

    if (r->json)
        cli_json_print(bench_report_json(&setup, results, cases.count, r->commit));
    else
        (r->quantize ? bench_report_quantize : bench_report_gemm)(&setup, results, cases.count);
    if (r->plot != NULL)
        plot_sweep(r->plot, results, cases.count);
    free(results);
    free(cases.items);
    dg_destroy(setup.context);
    return CLI_OK;
}

/* On CUDA device `ordinal`. Given only a recipe, or nothing, the usual shapes. */
static int run_gpu(const request *r, int ordinal, double seconds)
{
#ifdef BENCH_GPU
    gpu_request gpu = {.device = ordinal,
                       .recipe = r->recipe,
                       .quantize = r->quantize,
                       .packed = r->weights == 0,
                       .changing = r->weights == 2,
                       .warm = r->warm,
                       .sustained = r->sustained,
                       .no_peers = r->no_peers,
                       .json = r->json,
                       .fill = (bench_fill)r->fill,
                       .seconds = seconds,
                       .commit = r->commit,
                       .output = r->output,
                       .options = r->options};
    if (r->file != NULL || r->sweep || r->m > 0 || r->n > 0 || r->k > 0)
        gpu.cases = find_cases(r);
    return gpu_bench_run(&gpu);
#else
    (void)r, (void)seconds;
    cli_die("this build is for the CPU only: it cannot run on cuda:%d", ordinal);
#endif
}

/* On a CUDA device, or on the processors where `ordinal` is DG_CPU. */
static int run_grouped(const request *r, int ordinal, double seconds)
{
    const grouped_request grouped = {.file = r->grouped,
                                     .packed = r->weights == 0,
                                     .warm = r->warm,
                                     .sustained = r->sustained,
                                     .no_peers = r->no_peers,
                                     .json = r->json,
                                     .fill = (bench_fill)r->fill,
                                     .seconds = seconds,
                                     .commit = r->commit,
                                     .output = r->output,
                                     .options = r->options};
    if (r->file != NULL || r->recipe != NULL || r->m > 0 || r->n > 0 || r->k > 0 || r->sweep ||
        r->quantize)
        cli_misuse("--grouped takes all its cases from its file");
    if (ordinal == DG_CPU)
        return grouped_bench_cpu(&grouped);
#ifdef BENCH_GPU
    return grouped_bench_gpu(&grouped, ordinal);
#else
    cli_die("this build is for the CPU only: it cannot run on cuda:%d", ordinal);
#endif
}

int cli_bench(int argc, char **argv)
{
    request r = {.weights = -1, .options = DG_CONTEXT_OPTIONS_INIT};
    double seconds = 0;
    const cli_option options[] = {
        {"device", "cpu|cuda:N", CLI_TEXT, &r.device, "where to run (default cpu)"},
        {"cases", "FILE", CLI_TEXT, &r.file, "one case a line: recipe m n k [a b d types]"},
        {"grouped", "FILE", CLI_TEXT, &r.grouped,
         "grouped products, beside separate calls: recipe contiguous|masked n k rows,..."},
        {"m", "M", CLI_COUNT, &r.m, "rows of A and D, the tokens"},
        {"n", "N", CLI_COUNT, &r.n, "rows of B, the output features"},
        {"k", "K", CLI_COUNT, &r.k, "columns of A and B, the input features"},
        {"recipe", "NAME", CLI_TEXT, &r.recipe,
         "tensor, tensor_fast, token_channel, block128 (default), block1x128, block32, mx"},
        {"weights", "packed|rows|changing", CLI_CHOICE, &r.weights,
         "the layout of B (default packed on the CPU, rows on a GPU); changing: rows, not "
         "promised to be constant"},
        {"sweep", NULL, CLI_FLAG, &r.sweep, "M from 1 to 1024 at the given --n and --k"},
        {"plot", "FILE.svg", CLI_OUTPUT, &r.plot, "write the sweep as a plot"},
        {"quantize", NULL, CLI_FLAG, &r.quantize,
         "time quantising M x K BF16 values instead, against a copy"},
        {"fill", "random|zeros|ones", CLI_CHOICE, &r.fill, "the values (default random)"},
        {"warm", NULL, CLI_FLAG, &r.warm, "one copy of the weights: in the caches if they fit"},
        {"sustained", NULL, CLI_FLAG, &r.sustained,
         "GPU: without the pauses that keep it from its power limit"},
        {"seconds", "S", CLI_REAL, &seconds, "for each measurement (default 0.5; GPU 0.03)"},
        {"no-peers", NULL, CLI_FLAG, &r.no_peers, "do not run OpenBLAS, oneDNN and cuBLASLt"},
        {"threads", "N", CLI_COUNT, &r.threads, "threads, for the peers too (default all)"},
        {"isa", "NAME", CLI_TEXT, &r.options.isa,
         "cap the instructions: generic, avx2, avx512, avx512_bf16"},
        {"kernel", "NAME", CLI_TEXT, &r.options.kernel, "use this kernel only (see info)"},
        {"commit", "ID", CLI_TEXT, &r.commit, "the source's commit, noted in the JSON"},
        {"output", "FILE.json", CLI_OUTPUT, &r.output,
         "keep the JSON here, after each case: an interruption loses one case at most"},
        CLI_JSON(&r.json),
        {0},
    };
    cli_parse(&(cli_usage){"bench", "", 0, 0,
                           "Times FP8 products beside the machine's floor and beside OpenBLAS and "
                           "oneDNN in 16 and\n32 bits, or on a GPU beside cuBLASLt in FP8 and "
                           "BF16, where those libraries are found.",
                           options},
              argc, argv);
    bool gpu = r.device != NULL && strcmp(r.device, "cpu") != 0;
    int ordinal = gpu ? cli_cuda_ordinal(r.device) : DG_CPU;
    if (gpu && ordinal < 0)
        cli_misuse("--device takes cpu or cuda:N, not '%s'", r.device);
    if (r.plot != NULL && (!r.sweep || gpu))
        cli_misuse("--plot goes with --sweep on the CPU");
    if (seconds < 0)
        cli_misuse("--seconds must be above 0");
    r.options.threads = (int32_t)r.threads;
    if (!gpu && r.weights < 0)
        r.weights = 0;
    if (r.grouped != NULL)
        return run_grouped(&r, ordinal, seconds);
    if (gpu)
        return run_gpu(&r, ordinal, seconds);
    return run(&r, seconds > 0 ? seconds : 0.5);
}
