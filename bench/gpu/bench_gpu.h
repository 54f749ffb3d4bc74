/* SPDX-License-Identifier: MIT */
/* What cli/bench.c and cli/tune.c call, and what the files of the GPU benchmark share. */
#ifndef BENCH_GPU_BENCH_GPU_H
#define BENCH_GPU_BENCH_GPU_H

#include "cublaslt.h"

/* ---- what is timed (gemm.c, quantize.c) ---------------------------------------------- */

typedef struct gpu_bench {
    gpu gpu;
    dg_context *context;
    dg_device_info device;
    peer *peer; /* NULL: none */
    const char *about_peer;
    bench_fill fill;
    bool packed, changing, warm; /* changing: B is not said to be constant */
    double seconds;              /* for each measurement */
    int cases;                   /* of the run           */
} gpu_bench;

typedef struct gpu_result {
    bench_case item;
    char kernel[96];
    bench_time time, bf16, fp8; /* deepgemm, and cuBLASLt in BF16 and with the case's own recipe */
    double launch, host;        /* seconds of a plain launch: for the GPU, for the host          */
    double first;               /* by how much the case's first call took longer than its second */
    double mhz;                 /* the clock that the driver reports meanwhile; 0: unknown       */
    double flops, bytes;        /* work; of operands and result                                  */
    double floor;               /* seconds                                                       */
} gpu_result;

/* Operands of one shape, which the cases of that shape share. */
typedef struct gpu_operands gpu_operands;
gpu_operands *gpu_operands_new(gpu_bench *b, int64_t m, int64_t n, int64_t k);
void gpu_operands_free(gpu_bench *b, gpu_operands *o);

/* Times cuBLASLt on the 16-bit values. */
bench_time gpu_bench_bf16(gpu_bench *b, gpu_operands *o);
/* Checks deepgemm's product, and its peer's, on sampled elements, then times them. */
gpu_result gpu_bench_gemm(gpu_bench *b, gpu_operands *o, const bench_case *item);
/* The same in another context and without peers; no repeats where it refuses. */
gpu_result gpu_time_kernel(gpu_bench *b, gpu_operands *o, const bench_case *item,
                           dg_context *context);
/* The cycles that the planner predicts for the kernel that it chooses, 0 where there is none; and
 * those that would be left if K were 0. `name` may be NULL. */
typedef struct gpu_prediction {
    double whole, without_k;
} gpu_prediction;
gpu_prediction gpu_predict(gpu_bench *b, gpu_operands *o, const bench_case *item,
                           dg_context *context, char *name, size_t name_bytes);
/* Quantises A with the case's scales; the floor is a copy of as many bytes. */
gpu_result gpu_bench_quantize(gpu_bench *b, gpu_operands *o, const bench_case *item);

/*
 * The least time: of the tensor cores with nothing else to do but the promotion that the recipe
 * asks for, and of the memory. Both were measured on an H200 (docs/benchmarks.md).
 */
double gpu_floor(const bench_recipe *recipe, double flops, double bytes);
/* The peer's product of the case's recipe and types. */
peer_kind gpu_peer_of(const bench_case *item);

/* ---- the commands (run.c, report.c, tune.c) -------------------------------------------------- */

typedef struct gpu_request {
    int device;
    bench_cases cases;  /* none: the usual ones */
    const char *recipe; /* of the usual cases, or NULL: all */
    bool quantize, packed, changing, warm, sustained, no_peers, json;
    bench_fill fill;
    double seconds;              /* 0: the default */
    const char *commit, *output; /* output: keeps the JSON after each case, or NULL */
    dg_context_options options;
} gpu_request;

/* deepgemm bench on a GPU. Returns an exit code. */
int gpu_bench_run(const gpu_request *request);

/* deepgemm tune. */
int gpu_tune_run(const gpu_request *request);

/* The request's cases, or the usual ones, with 512 rows or more. */
bench_cases gpu_cases(const gpu_request *request);
bool gpu_same_shape(const bench_case *x, const bench_case *y);

void gpu_bench_open(gpu_bench *b, const gpu_request *request);
void gpu_bench_close(gpu_bench *b);

void gpu_report(const gpu_bench *b, const gpu_result *results, int count, bool quantize);
cJSON *gpu_report_json(const gpu_bench *b, const gpu_result *results, int count,
                       const char *commit);

#endif
