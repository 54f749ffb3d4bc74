/* SPDX-License-Identifier: MIT */
/*
 * One case of the GPU benchmark. All libraries get the same values: BF16, or FP8 codes and scales
 * made of them by deepgemm's own quantiser. Copies of all operands rotate, so that each call finds
 * the L2 cache cold.
 */
#include "bench_gpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SETS = 64 };

typedef struct operand_set {
    void *a16, *b16, *a, *b, *scale_a, *scale_b, *d;
    dg_weights *weights;
} operand_set;

struct gpu_operands {
    int64_t m, n, k;
    int sets;
    operand_set set[MOST_SETS];
};

/* ---- memory -------------------------------------------------------------------------- */

/* Random BF16 values repeat after so many: a prime, so that no two rows are alike. */
enum { PERIOD = 4194301 };

static void fill_values(gpu_bench *b, void *target, int64_t count, uint64_t seed)
{
    float *values = cli_alloc(PERIOD * sizeof *values);
    char *codes = cli_alloc(PERIOD * (size_t)2);
    bench_fill_values(values, PERIOD, b->fill, seed);
    cli_check(dg_convert(values, DG_F32, codes, DG_BF16, PERIOD, DG_SATURATE), "making values");
    const size_t bytes = (size_t)count * 2;
    size_t filled = bytes < (size_t)PERIOD * 2 ? bytes : (size_t)PERIOD * 2;
    gpu_upload(&b->gpu, target, codes, filled);
    while (filled < bytes) {
        const size_t more = bytes - filled < filled ? bytes - filled : filled;
        gpu_copy(&b->gpu, (char *)target + filled, target, more);
        filled += more;
    }
    free(values);
    free(codes);
}

/* Enough for any recipe's FP32 scales, padded rows too. */
static size_t scale_capacity(int64_t rows, int64_t k)
{
    return (size_t)(rows + 4) * (size_t)(k / 32 + 8) * 4;
}

gpu_operands *gpu_operands_new(gpu_bench *b, int64_t m, int64_t n, int64_t k)
{
    gpu_operands *o = cli_alloc(sizeof *o);
    gpu *g = &b->gpu;
    const size_t a = (size_t)(m * k), w = (size_t)(n * k), d = (size_t)(m * n);
    *o = (gpu_operands){.m = m, .n = n, .k = k, .sets = bench_copies(a + w + 2 * d) + 1};
    if (o->sets > MOST_SETS)
        o->sets = MOST_SETS;
    if (b->warm)
        o->sets = 1;
    /* A copy of as many bytes as quantising A reads and writes goes to D's memory. */
    const size_t results = 4 * d > 2 * a ? 4 * d : 2 * a;
    for (int i = 0; i < o->sets; i++) {
        operand_set *s = &o->set[i];
        *s = (operand_set){gpu_alloc(g, 2 * a),
                           gpu_alloc(g, 2 * w),
                           gpu_alloc(g, a),
                           gpu_alloc(g, w),
                           gpu_alloc(g, scale_capacity(m, k)),
                           gpu_alloc(g, scale_capacity(n, k)),
                           gpu_alloc(g, results),
                           NULL};
        if (i == 0) {
            fill_values(b, s->a16, m * k, (uint64_t)(m + k));
            fill_values(b, s->b16, n * k, ~(uint64_t)(n + k));
        } else {
            gpu_copy(g, s->a16, o->set[0].a16, 2 * a);
            gpu_copy(g, s->b16, o->set[0].b16, 2 * w);
        }
    }
    return o;
}

static void free_weights(gpu_operands *o)
{
    for (int i = 0; i < o->sets; i++) {
        dg_weights_destroy(o->set[i].weights);
        o->set[i].weights = NULL;
    }
}

void gpu_operands_free(gpu_bench *b, gpu_operands *o)
{
    free_weights(o);
    for (int i = 0; i < o->sets; i++) {
        void *memory[] = {o->set[i].a16,     o->set[i].b16,     o->set[i].a, o->set[i].b,
                          o->set[i].scale_a, o->set[i].scale_b, o->set[i].d};
        for (size_t j = 0; j < sizeof memory / sizeof memory[0]; j++)
            gpu_free(&b->gpu, memory[j]);
    }
    free(o);
}

/* ---- a case as calls ----------------------------------------------------------------- */

/* One case on some operands: deepgemm's call without its addresses. */
typedef struct run {
    gpu_bench *bench;
    gpu_operands *operands;
    dg_context *context;
    dg_gemm gemm;
    const char *refusal;
    peer_kind kind;
} run;

static void quantize(const run *r, void *values, const dg_matrix *codes, void *code_memory,
                     const dg_scale *scale, void *scale_memory)
{
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of(values, DG_BF16, codes->rows, codes->cols);
    q.output = *codes;
    q.output.data = code_memory;
    q.scale = *scale;
    q.scale.data = scale_memory;
    q.rounding = scale->dtype == DG_UE8M0 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;
    cli_check(dg_quantize_run(r->bench->context, &q, r->bench->gpu.stream), "quantising");
}

/* The case's call, on operands as they are. */
static run run_of(gpu_bench *b, gpu_operands *o, const bench_case *item, dg_context *context)
{
    const bench_recipe *recipe = item->recipe;
    run r = {.bench = b, .operands = o, .context = context, .gemm = DG_GEMM_INIT};
    r.gemm.a = dg_matrix_of(NULL, item->a, o->m, o->k);
    r.gemm.b = dg_matrix_of(NULL, item->b, o->n, o->k);
    r.gemm.d = dg_matrix_of(NULL, item->d, o->m, o->n);
    r.gemm.scale_a = bench_scale_layout(recipe, true, o->m, o->k);
    r.gemm.scale_b = bench_scale_layout(recipe, false, o->n, o->k);
    r.gemm.accumulation = recipe->accumulation;
    return r;
}

/* The same, with operands quantised for it. */
static run run_new(gpu_bench *b, gpu_operands *o, const bench_case *item, dg_context *context)
{
    run r = run_of(b, o, item, context);
    for (int i = 0; i < o->sets; i++) {
        operand_set *s = &o->set[i];
        quantize(&r, s->a16, &r.gemm.a, s->a, &r.gemm.scale_a, s->scale_a);
        quantize(&r, s->b16, &r.gemm.b, s->b, &r.gemm.scale_b, s->scale_b);
    }
    gpu_wait(&b->gpu);
    r.gemm.b_is_constant = !b->changing;
    return r;
}

static dg_gemm gemm_of_set(const run *r, int set)
{
    const operand_set *s = &r->operands->set[set];
    dg_gemm g = r->gemm;
    g.a.data = s->a;
    g.scale_a.data = s->scale_a;
    g.d.data = s->d;
    if (s->weights != NULL) {
        g.weights = s->weights;
        g.b = (dg_matrix){0};
        g.scale_b = (dg_scale){0};
    } else {
        g.b.data = s->b;
        g.scale_b.data = s->scale_b;
    }
    return g;
}

static bool call_deepgemm(void *state, int set, CUstream stream)
{
    run *r = state;
    dg_gemm g = gemm_of_set(r, set);
    dg_status status = dg_gemm_run(r->context, &g, stream);
    if (status != DG_OK)
        r->refusal = dg_last_error();
    return status == DG_OK;
}

static peer_operands operands_of(const run *r, int set)
{
    const operand_set *s = &r->operands->set[set];
    return r->kind == PEER_BF16 ? (peer_operands){s->a16, s->b16, NULL, NULL, s->d}
                                : (peer_operands){s->a, s->b, s->scale_a, s->scale_b, s->d};
}

static bool call_peer(void *state, int set, CUstream stream)
{
    const run *r = state;
    const peer_operands operands = operands_of(r, set);
    return peer_run(r->bench->peer, &operands, stream);
}

static void pack_weights(const run *r)
{
    for (int i = 0; i < r->operands->sets; i++) {
        operand_set *s = &r->operands->set[i];
        dg_matrix b = r->gemm.b;
        dg_scale scale = r->gemm.scale_b;
        b.data = s->b;
        scale.data = s->scale_b;
        cli_check(
            dg_weights_pack(r->context, &b, &scale, NULL, 0, r->bench->gpu.stream, &s->weights),
            "packing weights");
    }
}

/* ---- checking ------------------------------------------------------------------------ */

/* Sampled rows of a matrix in device memory. */
static char *download_rows(gpu *g, const void *memory, const int64_t *rows, size_t row_bytes,
                           const void *picked[])
{
    char *copy = cli_alloc(bench_sample_count * row_bytes);
    for (int i = 0; i < bench_sample_count; i++) {
        picked[i] = copy + (size_t)i * row_bytes;
        gpu_download(g, copy + (size_t)i * row_bytes,
                     (const char *)memory + (size_t)rows[i] * row_bytes, row_bytes);
    }
    return copy;
}

static void sample_operand(run *r, double *out, const dg_matrix *m, const void *codes,
                           const void *values, const dg_scale *layout, const void *scales,
                           const int64_t *rows)
{
    gpu *g = &r->bench->gpu;
    const void *picked[bench_sample_count];
    const size_t k = (size_t)m->cols;
    if (r->kind == PEER_BF16) {
        char *copy = download_rows(g, values, rows, 2 * k, picked);
        float *wide = cli_alloc(bench_sample_count * k * sizeof *wide);
        const float *wide_rows[bench_sample_count];
        for (int i = 0; i < bench_sample_count; i++) {
            wide_rows[i] = wide + (size_t)i * k;
            cli_check(
                dg_convert(picked[i], DG_BF16, wide + (size_t)i * k, DG_F32, m->cols, DG_SATURATE),
                "decoding");
        }
        bench_sample_values(out, wide_rows, m->cols);
        free(wide);
        free(copy);
        return;
    }
    char *copy = download_rows(g, codes, rows, k, picked);
    dg_scale scale = *layout;
    const int64_t span = (scale.rows - 1) * scale.row_stride + (scale.cols - 1) * scale.col_stride;
    const size_t bytes = (size_t)(span + 1) * dg_dtype_bytes(scale.dtype);
    scale.data = cli_alloc(bytes);
    gpu_download(g, scale.data, scales, bytes);
    bench_sample_codes(out, picked, m->dtype, &scale, rows, m->cols);
    free(scale.data);
    free(copy);
}

/* Makes one call on the first operands and checks it. False when it is not possible. */
static bool check(run *r, const char *who, gpu_work *call, const bench_case *item)
{
    gpu *g = &r->bench->gpu;
    const gpu_operands *o = r->operands;
    const operand_set *s = &o->set[0];
    const dg_dtype type = call == call_peer ? DG_BF16 : item->d;
    const size_t row_bytes = (size_t)o->n * dg_dtype_bytes(type);
    gpu_set(g, s->d, 0xFF, row_bytes * (size_t)o->m);
    if (!call(r, 0, g->stream))
        return false;
    bench_samples samples = bench_samples_new(item);
    sample_operand(r, samples.a, &r->gemm.a, s->a, s->a16, &r->gemm.scale_a, s->scale_a,
                   samples.rows);
    sample_operand(r, samples.b, &r->gemm.b, s->b, s->b16, &r->gemm.scale_b, s->scale_b,
                   samples.cols);
    const void *picked[bench_sample_count];
    char *rows = download_rows(g, s->d, samples.rows, row_bytes, picked);
    /* Tensor cores cut products to 13 bits; without promotion this adds up over K. */
    const double tolerance = item->recipe->accumulation == DG_ACCUMULATE_FAST ? 5e-3 : 1e-3;
    bench_check_result(who, &samples, picked, type, tolerance);
    free(rows);
    bench_samples_free(&samples);
    return true;
}

/* ---- timing -------------------------------------------------------------------------- */

static bench_time time_peer(run *r, const char *who, peer_kind kind, const bench_case *item)
{
    gpu_bench *b = r->bench;
    const gpu_operands *o = r->operands;
    bench_time time = {0};
    double mhz;
    r->kind = kind;
    if (b->peer == NULL || kind == PEER_NONE)
        return time;
    const peer_operands operands = operands_of(r, 0);
    if (peer_begin(b->peer, kind, o->m, o->n, o->k, &operands) && check(r, who, call_peer, item))
        time = gpu_time(&b->gpu, call_peer, r, o->sets, b->seconds, &mhz);
    peer_end(b->peer);
    return time;
}

bench_time gpu_bench_bf16(gpu_bench *b, gpu_operands *o)
{
    const bench_recipe recipe = {.name = "bf16"};
    const bench_case item = {&recipe, o->m, o->n, o->k, DG_E4M3, DG_E4M3, DG_BF16};
    run r = {.bench = b, .operands = o};
    r.gemm.a = dg_matrix_of(NULL, DG_BF16, o->m, o->k);
    r.gemm.b = dg_matrix_of(NULL, DG_BF16, o->n, o->k);
    return time_peer(&r, "cuBLASLt in BF16", PEER_BF16, &item);
}

peer_kind gpu_peer_of(const bench_case *item)
{
    static const struct {
        const char *recipe;
        peer_kind kind;
    } peers[] = {{"tensor", PEER_TENSOR},
                 {"tensor_fast", PEER_TENSOR_FAST},
                 {"token_channel", PEER_ROW},
                 {"block128", PEER_BLOCK}};
    if (item->a != DG_E4M3 || item->b != DG_E4M3 || item->d != DG_BF16)
        return PEER_NONE;
    for (size_t i = 0; i < sizeof peers / sizeof peers[0]; i++)
        if (strcmp(peers[i].recipe, item->recipe->name) == 0)
            return peers[i].kind;
    return PEER_NONE;
}

double gpu_floor(const bench_recipe *recipe, double flops, double bytes)
{
    const double straight = 1850e12, each_128 = 1700e12, each_32 = 1050e12, memory = 4.65e12;
    const double peak = recipe->a_cols == 32 || recipe->b_cols == 32 ? each_32
                        : recipe->accumulation == DG_ACCUMULATE_FAST ? straight
                                                                     : each_128;
    return fmax(flops / peak, bytes / memory);
}

static size_t scale_bytes(const dg_scale *s)
{
    return (size_t)(s->rows * s->cols) * dg_dtype_bytes(s->dtype);
}

/* The line of the kernel that the library would choose, without "kernel "; to be freed. */
static char *explain(dg_context *context, const dg_gemm *gemm)
{
    size_t length = 0;
    cli_check(dg_gemm_explain(context, gemm, NULL, &length), "asking for the kernel");
    char *text = cli_alloc(length + 1);
    cli_check(dg_gemm_explain(context, gemm, text, &length), "asking for the kernel");
    char *rest, *found = NULL, *line = strtok_r(text, "\n", &rest);
    for (; line != NULL && found == NULL; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "kernel ", 7) == 0)
            found = cli_format("%s", line + 7);
    free(text);
    return found;
}

/* Cuts "name: ... cycles predicted" in two; gives the number of cycles. */
static double split_explanation(char *line)
{
    double cycles = 0;
    char *colon = line == NULL ? NULL : strchr(line, ':');
    if (colon != NULL) {
        *colon = '\0';
        cycles = strtod(colon + 1, NULL);
    }
    return cycles;
}

/* The cycles that the library predicts, and the name of the kernel that it would choose. */
static double predict(const run *r, char *name, size_t name_bytes)
{
    dg_gemm g = gemm_of_set(r, 0);
    char *line = explain(r->context, &g);
    double cycles = split_explanation(line);
    if (name != NULL && line != NULL)
        snprintf(name, name_bytes, "%s", line);
    free(line);
    return cycles;
}

gpu_prediction gpu_predict(gpu_bench *b, gpu_operands *o, const bench_case *item,
                           dg_context *context, char *name, size_t name_bytes)
{
    gpu_operands empty = *o;
    empty.k = 0;
    const run whole = run_of(b, o, item, context), without_k = run_of(b, &empty, item, context);
    return (gpu_prediction){.whole = predict(&whole, name, name_bytes),
                            .without_k = predict(&without_k, NULL, 0)};
}

/* What a case asks for; nothing is measured yet. */
static gpu_result result_of(const run *r, const bench_case *item)
{
    const gpu_operands *o = r->operands;
    gpu_result result = {.item = *item, .flops = 2.0 * item->m * item->n * item->k};
    result.bytes = (double)(o->m * o->k + o->n * o->k) +
                   (double)(o->m * o->n) * (double)dg_dtype_bytes(item->d) +
                   (double)(scale_bytes(&r->gemm.scale_a) + scale_bytes(&r->gemm.scale_b));
    result.floor = gpu_floor(item->recipe, result.flops, result.bytes);
    return result;
}

gpu_result gpu_time_kernel(gpu_bench *b, gpu_operands *o, const bench_case *item,
                           dg_context *context)
{
    run r = run_new(b, o, item, context);
    gpu_result result = result_of(&r, item);
    r.kind = PEER_NONE;
    if (b->packed)
        pack_weights(&r);
    if (check(&r, "deepgemm", call_deepgemm, item))
        result.time = gpu_time(&b->gpu, call_deepgemm, &r, o->sets, b->seconds, &result.mhz);
    free_weights(o);
    return result;
}

/* Seconds until one call on the first operands has ended; a refusal shows in check(). */
static double call_and_wait(run *r)
{
    const double start = cli_now();
    call_deepgemm(r, 0, r->bench->gpu.stream);
    gpu_wait(&r->bench->gpu);
    return cli_now() - start;
}

gpu_result gpu_bench_gemm(gpu_bench *b, gpu_operands *o, const bench_case *item)
{
    run r = run_new(b, o, item, b->context);
    gpu_result result = result_of(&r, item);
    r.kind = PEER_NONE;
    if (b->packed)
        pack_weights(&r);
    gpu_wait(&b->gpu);
    result.first = call_and_wait(&r);
    result.first -= call_and_wait(&r);
    if (!check(&r, "deepgemm", call_deepgemm, item))
        cli_die("%s %lld x %lld x %lld: %s", item->recipe->name, (long long)item->m,
                (long long)item->n, (long long)item->k, r.refusal);
    predict(&r, result.kernel, sizeof result.kernel);
    result.time = gpu_time(&b->gpu, call_deepgemm, &r, o->sets, b->seconds, &result.mhz);
    gpu_time_launches(&b->gpu, call_deepgemm, &r, o->sets, &result.launch, &result.host);
    free_weights(o);
    result.fp8 = time_peer(&r, "cuBLASLt in FP8", gpu_peer_of(item), item);
    return result;
}

/* ---- quantising ---------------------------------------------------------------------- */

static bool call_quantize(void *state, int set, CUstream stream)
{
    (void)stream; /* the benchmark's own */
    const run *r = state;
    const operand_set *s = &r->operands->set[set];
    quantize(r, s->a16, &r->gemm.a, s->a, &r->gemm.scale_a, s->scale_a);
    return true;
}

/* Reads and writes as many bytes as quantising A does. */
static bool call_copy(void *state, int set, CUstream stream)
{
    const run *r = state;
    const gpu *g = &r->bench->gpu;
    const operand_set *s = &r->operands->set[set];
    const size_t bytes =
        ((size_t)(r->operands->m * r->operands->k) * 3 + scale_bytes(&r->gemm.scale_a)) / 2;
    return g->cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)s->d, (CUdeviceptr)(uintptr_t)s->a16, bytes,
                                stream) == CUDA_SUCCESS;
}

gpu_result gpu_bench_quantize(gpu_bench *b, gpu_operands *o, const bench_case *item)
{
    gpu_result result = {.item = *item};
    double mhz;
    run r = run_new(b, o, item, b->context);
    result.bytes = (double)(o->m * o->k * 3) + (double)scale_bytes(&r.gemm.scale_a);
    result.time = gpu_time(&b->gpu, call_quantize, &r, o->sets, b->seconds, &result.mhz);
    gpu_time_launches(&b->gpu, call_quantize, &r, o->sets, &result.launch, &result.host);
    result.floor = gpu_time(&b->gpu, call_copy, &r, o->sets, b->seconds, &mhz).median;
    if (result.floor <= 0)
        cli_die("the copy beside quantising failed");
    return result;
}
