/* SPDX-License-Identifier: MIT */
/*
 * The benchmark of the dense GEMM on a GPU, beside cuBLASLt in the same process:
 *
 *     bench_gpu [--json FILE] [--kernel NAME] [--recipe NAME] [--seconds S] [MxNxK ...]
 *
 * Operands are random, rotate over copies that together exceed the L2 cache, and are timed by graph
 * replay: medians, in microseconds.
 */
#include "cublaslt.h"
#include "deepgemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct problem {
    int64_t m, n, k;
} problem;

/* The compute-bound shapes: projections of large transformer models. */
static const problem usual[] = {
    {512, 4096, 4096},   {512, 8192, 8192},  {2048, 4096, 4096},  {2048, 8192, 8192},
    {4096, 2112, 7168},  {4096, 576, 7168},  {4096, 24576, 1536}, {4096, 32768, 512},
    {4096, 7168, 16384}, {4096, 4096, 7168}, {4096, 7168, 2048},  {8192, 8192, 8192},
};

/* Our recipes, each with the peer that computes the same; -1 where nothing does. */
typedef struct recipe {
    const char *name;
    int32_t a_rows, a_cols, b_rows, b_cols;
    dg_dtype scale;
    dg_accumulation accumulation;
    int peer;
} recipe;
static const recipe recipes[] = {
    {"block128", 1, 128, 128, 128, DG_F32, DG_ACCUMULATE_PRECISE, PEER_BLOCK},
    {"tensor", 0, 0, 0, 0, DG_F32, DG_ACCUMULATE_PRECISE, PEER_TENSOR},
    {"tensor_fast", 0, 0, 0, 0, DG_F32, DG_ACCUMULATE_FAST, PEER_TENSOR_FAST},
    {"token_channel", 1, 0, 1, 0, DG_F32, DG_ACCUMULATE_PRECISE, PEER_ROW},
    {"block1x128", 1, 128, 1, 128, DG_F32, DG_ACCUMULATE_PRECISE, -1},
    {"block32", 32, 32, 32, 32, DG_F32, DG_ACCUMULATE_PRECISE, -1},
    {"mx", 1, 32, 1, 32, DG_UE8M0, DG_ACCUMULATE_PRECISE, -1},
};
enum { RECIPES = sizeof recipes / sizeof recipes[0], MOST_SETS = 64 };

typedef struct bench {
    gpu gpu;
    peer *peer;
    dg_context *context;
    problem problem;
    const recipe *recipe;
    int sets;
    peer_operands fp8[MOST_SETS], bf16[MOST_SETS];
    const peer_operands *operands; /* those in use */
    void *scales;
    double seconds;
} bench;

/* ---- the work of one call ------------------------------------------------------------ */

static bool run_ours(void *state, int set, CUstream stream)
{
    bench *b = state;
    const problem *p = &b->problem;
    const recipe *r = b->recipe;
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of((void *)b->operands[set].a, DG_E4M3, p->m, p->k);
    g.b = dg_matrix_of((void *)b->operands[set].b, DG_E4M3, p->n, p->k);
    g.d = dg_matrix_of(b->operands[set].d, DG_BF16, p->m, p->n);
    g.scale_a = dg_scale_of(b->scales, r->scale, p->m, p->k, r->a_rows, r->a_cols);
    g.scale_b = dg_scale_of(b->scales, r->scale, p->n, p->k, r->b_rows, r->b_cols);
    /* Scales of A lie with the rows side by side, as quantisers write them. */
    g.scale_a.row_stride = 1;
    g.scale_a.col_stride = g.scale_a.rows;
    g.accumulation = r->accumulation;
    dg_status status = dg_gemm_run(b->context, &g, stream);
    if (status != DG_OK)
        fprintf(stderr, "%s: %s\n", r->name, dg_last_error());
    return status == DG_OK;
}

static bool run_peer(void *state, int set, CUstream stream)
{
    bench *b = state;
    return peer_run(b->peer, &b->operands[set], stream);
}

static double time_peer(bench *b, peer_kind kind)
{
    if (b->peer == NULL)
        return -1.0;
    const problem *p = &b->problem;
    double microseconds = -1.0;
    b->operands = kind == PEER_BF16 ? b->bf16 : b->fp8;
    if (peer_begin(b->peer, kind, p->m, p->n, p->k, b->scales))
        microseconds = gpu_time(&b->gpu, run_peer, b, b->sets, b->seconds);
    peer_end(b->peer);
    return microseconds;
}

/* ---- one problem --------------------------------------------------------------------- */

static void make_operands(bench *b)
{
    const problem *p = &b->problem;
    const size_t a = (size_t)(p->m * p->k), w = (size_t)(p->n * p->k), d = (size_t)(p->m * p->n);
    const size_t rotate = 256u << 20; /* several times the 50 MB of L2 */
    b->sets = (int)(rotate / (a + w + 2 * d)) + 2;
    if (b->sets > MOST_SETS)
        b->sets = MOST_SETS;
    for (int i = 0; i < b->sets; i++) {
        b->fp8[i] = (peer_operands){gpu_random(&b->gpu, a, GPU_E4M3),
                                    gpu_random(&b->gpu, w, GPU_E4M3), gpu_alloc(&b->gpu, 2 * d)};
        b->bf16[i] = (peer_operands){gpu_random(&b->gpu, a, GPU_BF16),
                                     gpu_random(&b->gpu, w, GPU_BF16), b->fp8[i].d};
    }
    b->scales = gpu_random(&b->gpu, (size_t)(p->m + p->n) * (size_t)(p->k / 32 + 8), GPU_SCALES);
}

static void free_operands(bench *b)
{
    for (int i = 0; i < b->sets; i++) {
        gpu_free(&b->gpu, (void *)b->fp8[i].a);
        gpu_free(&b->gpu, (void *)b->fp8[i].b);
        gpu_free(&b->gpu, b->fp8[i].d);
        gpu_free(&b->gpu, (void *)b->bf16[i].a);
        gpu_free(&b->gpu, (void *)b->bf16[i].b);
    }
    gpu_free(&b->gpu, b->scales);
}

static void bench_problem(bench *b, const char *only, FILE *json)
{
    const problem *p = &b->problem;
    const double flop = 2.0 * (double)p->m * (double)p->n * (double)p->k;
    make_operands(b);
    const double bf16 = time_peer(b, PEER_BF16);
    for (int i = 0; i < RECIPES; i++) {
        if (only != NULL && strcmp(only, recipes[i].name) != 0)
            continue;
        b->recipe = &recipes[i];
        double other = recipes[i].peer < 0 ? -1.0 : time_peer(b, (peer_kind)recipes[i].peer);
        b->operands = b->fp8;
        double ours = gpu_time(&b->gpu, run_ours, b, b->sets, b->seconds);
        printf("%5lld %6lld %6lld  %-14s %9.2f %8.0f %9.2f %7.3f %9.2f %7.3f\n", (long long)p->m,
               (long long)p->n, (long long)p->k, recipes[i].name, ours, flop / ours * 1e-6, other,
               other / ours, bf16, bf16 / ours);
        fflush(stdout);
        if (json != NULL)
            fprintf(json,
                    "{\"m\": %lld, \"n\": %lld, \"k\": %lld, \"recipe\": \"%s\", \"us\": %.3f, "
                    "\"cublaslt_us\": %.3f, \"cublas_bf16_us\": %.3f}\n",
                    (long long)p->m, (long long)p->n, (long long)p->k, recipes[i].name, ours, other,
                    bf16);
    }
    free_operands(b);
}

int main(int argc, char **argv)
{
    static bench b = {.seconds = 0.1};
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    const char *only = NULL, *json_path = NULL;
    problem problems[64];
    int count = 0;
    for (int i = 1; i < argc; i++) {
        long long m, n, k;
        if (i + 1 < argc && strcmp(argv[i], "--json") == 0)
            json_path = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--kernel") == 0)
            options.kernel = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--recipe") == 0)
            only = argv[++i];
        else if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0)
            b.seconds = atof(argv[++i]);
        else if (count < 64 && sscanf(argv[i], "%lldx%lldx%lld", &m, &n, &k) == 3)
            problems[count++] = (problem){m, n, k};
        else {
            fprintf(stderr, "%s: unknown argument\n", argv[i]);
            return 2;
        }
    }
    gpu_open(&b.gpu);
    if (dg_create(&b.context, 0, &options) != DG_OK) {
        fprintf(stderr, "%s\n", dg_last_error());
        return 1;
    }
    b.peer = peer_open(&b.gpu);
    FILE *json = json_path != NULL ? fopen(json_path, "w") : NULL;
    const size_t lt_version = b.peer != NULL ? peer_version(b.peer) : 0;
    printf("%s, CUDA driver %d, deepgemm %s, cuBLASLt %zu\n", b.gpu.name, b.gpu.driver_version,
           dg_version(), lt_version);
    if (json != NULL)
        fprintf(json,
                "{\"gpu\": \"%s\", \"cuda_driver\": %d, \"deepgemm\": \"%s\", \"cublaslt\": "
                "%zu, \"data\": \"random\"}\n",
                b.gpu.name, b.gpu.driver_version, dg_version(), lt_version);
    printf("%5s %6s %6s  %-14s %9s %8s %9s %7s %9s %7s\n", "M", "N", "K", "recipe", "us", "TFLOP/s",
           "Lt us", "ratio", "bf16 us", "ratio");
    for (int i = 0; i < (count > 0 ? count : (int)(sizeof usual / sizeof usual[0])); i++) {
        b.problem = count > 0 ? problems[i] : usual[i];
        bench_problem(&b, only, json);
    }
    if (json != NULL)
        fclose(json);
    dg_destroy(b.context);
    return 0;
}
