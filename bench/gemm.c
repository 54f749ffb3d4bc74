/* SPDX-License-Identifier: MIT */
/*
 * One case of the benchmark: the same random values go to deepgemm, quantised, and to each peer
 * in its own types; every result is checked on sampled elements against double precision before
 * it is timed; libraries run one after the other, never in turns.
 */
#include "bench.h"
#include "peers/peer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const bench_peer *const bench_peers[bench_peer_count] = {
    &bench_openblas_sgemv,
    &bench_openblas_sgemm,
    &bench_onednn_bf16,
};

/* ---- deepgemm ------------------------------------------------------------------------ */

/* A quantised operand with its scales in memory of its own. */
typedef struct operand {
    dg_matrix codes;
    dg_scale scale;
    size_t codes_bytes, scale_bytes;
} operand;

static operand quantized(const bench_setup *setup, const float *values, int64_t rows, int64_t cols,
                         dg_dtype type, dg_dtype scale_type, int32_t block_rows, int32_t block_cols)
{
    operand o;
    o.scale = dg_scale_of(NULL, scale_type, rows, cols, block_rows, block_cols);
    o.codes_bytes = (size_t)(rows * cols);
    o.scale_bytes = (size_t)(o.scale.rows * o.scale.cols) * dg_dtype_bytes(scale_type);
    o.codes = dg_matrix_of(bench_pages(o.codes_bytes), type, rows, cols);
    o.scale.data = bench_pages(o.scale_bytes);
    dg_quantize quantize = DG_QUANTIZE_INIT;
    quantize.input = dg_matrix_of((void *)values, DG_F32, rows, cols);
    quantize.output = o.codes;
    quantize.scale = o.scale;
    quantize.rounding = scale_type == DG_UE8M0 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;
    cli_check(dg_quantize_run(setup->context, &quantize, NULL), "quantising");
    return o;
}

static void operand_free(operand *o)
{
    bench_pages_free(o->codes.data, o->codes_bytes);
    bench_pages_free(o->scale.data, o->scale_bytes);
}

/* ---- checking: whole matrices in host memory ------------------------------------------ */

static void sample_values(double *out, const float *values, const int64_t *rows, int64_t k)
{
    const float *picked[bench_sample_count];
    for (int i = 0; i < bench_sample_count; i++)
        picked[i] = values + rows[i] * k;
    bench_sample_values(out, picked, k);
}

static void sample_codes(double *out, const operand *o, const int64_t *rows)
{
    const void *picked[bench_sample_count];
    for (int i = 0; i < bench_sample_count; i++)
        picked[i] = (const char *)o->codes.data + rows[i] * o->codes.ld;
    bench_sample_codes(out, picked, o->codes.dtype, &o->scale, rows, o->codes.cols);
}

/* NaN throughout, so that a product that writes nothing is not taken for the one before it. */
static void clear_result(void *d, const bench_case *item, dg_dtype type)
{
    memset(d, 0xFF, (size_t)(item->m * item->n) * dg_dtype_bytes(type));
}

static void check_result(const char *who, const bench_samples *s, const void *d, dg_dtype type,
                         int64_t n)
{
    const void *picked[bench_sample_count];
    for (int i = 0; i < bench_sample_count; i++)
        picked[i] = (const char *)d + (size_t)(s->rows[i] * n) * dg_dtype_bytes(type);
    bench_check_result(who, s, picked, type, 1e-3);
}

/* deepgemm's product with weights that rotate over copies, each at its own address. */
typedef struct rotation {
    dg_context *context;
    dg_gemm gemm;
    int copies;
    dg_weights **weights; /* NULL: row-major */
    char *memory;
    size_t each, scale_offset; /* of a copy; of its scales, row-major */
} rotation;

static size_t aligned(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

static rotation rotation_new(const bench_setup *setup, const dg_gemm *gemm, const operand *b)
{
    rotation r = {.context = setup->context, .gemm = *gemm};
    r.scale_offset = aligned(b->codes_bytes);
    r.each = r.scale_offset + aligned(b->scale_bytes);
    if (setup->packed) {
        cli_check(dg_weights_bytes(r.context, &b->codes, &b->scale, &r.each), "sizing weights");
        r.each = aligned(r.each);
    }
    r.copies = setup->warm ? 1 : bench_copies(r.each);
    r.memory = bench_pages(r.each * (size_t)r.copies);
    if (setup->packed) {
        r.weights = cli_alloc((size_t)r.copies * sizeof *r.weights);
        r.gemm.b = (dg_matrix){0};
        r.gemm.scale_b = (dg_scale){0};
    }
    for (int c = 0; c < r.copies; c++) {
        char *copy = r.memory + (size_t)c * r.each;
        if (setup->packed) {
            cli_check(
                dg_weights_pack(r.context, &b->codes, &b->scale, copy, r.each, NULL, &r.weights[c]),
                "packing weights");
        } else {
            memcpy(copy, b->codes.data, b->codes_bytes);
            memcpy(copy + r.scale_offset, b->scale.data, b->scale_bytes);
        }
    }
    return r;
}

static void rotation_run(void *state, int64_t index)
{
    rotation *r = state;
    int64_t copy = index % r->copies;
    if (r->weights != NULL) {
        r->gemm.weights = r->weights[copy];
    } else {
        r->gemm.b.data = r->memory + (size_t)copy * r->each;
        r->gemm.scale_b.data = (char *)r->gemm.b.data + r->scale_offset;
    }
    cli_check(dg_gemm_run(r->context, &r->gemm, NULL), "multiplying");
}

static void rotation_free(rotation *r)
{
    for (int c = 0; c < r->copies && r->weights != NULL; c++)
        dg_weights_destroy(r->weights[c]);
    free(r->weights);
    bench_pages_free(r->memory, r->each * (size_t)r->copies);
}

/* The name after "kernel " in the library's explanation of its choice. */
static void find_kernel(rotation *r, char name[], size_t capacity)
{
    char text[4096];
    size_t length = sizeof text;
    cli_check(dg_gemm_explain(r->context, &r->gemm, text, &length), "asking for the kernel");
    char *rest, *line = strtok_r(text, "\n", &rest);
    for (; line != NULL; line = strtok_r(NULL, "\n", &rest))
        if (strncmp(line, "kernel ", 7) == 0)
            snprintf(name, capacity, "%s", line + 7);
}

static void run_deepgemm(const bench_setup *setup, const float *a, const float *b,
                         const bench_samples *places, void *d, bench_result *result)
{
    const bench_case *item = &result->item;
    const bench_recipe *recipe = item->recipe;
    operand qa = quantized(setup, a, item->m, item->k, item->a, recipe->scale, recipe->a_rows,
                           recipe->a_cols);
    operand qb = quantized(setup, b, item->n, item->k, item->b, recipe->scale, recipe->b_rows,
                           recipe->b_cols);
    dg_gemm gemm = DG_GEMM_INIT;
    gemm.a = qa.codes;
    gemm.b = qb.codes;
    gemm.d = dg_matrix_of(d, item->d, item->m, item->n);
    gemm.scale_a = qa.scale;
    gemm.scale_b = qb.scale;
    gemm.accumulation = recipe->accumulation;
    rotation r = rotation_new(setup, &gemm, &qb);

    clear_result(d, item, item->d);
    rotation_run(&r, 0);
    find_kernel(&r, result->kernel, sizeof result->kernel);
    sample_codes(places->a, &qa, places->rows);
    sample_codes(places->b, &qb, places->cols);
    check_result("deepgemm", places, d, item->d, item->n);

    /* The bandwidth of a shared machine changes: where it sets the floor, measure it again here. */
    int threads = setup->device.units;
    result->bytes = (double)(qb.codes_bytes + qb.scale_bytes);
    bool near = result->bytes / setup->bandwidth > 0.5 * result->flops / setup->peak;
    double before = near ? bench_read_bandwidth(threads) : setup->bandwidth;
    result->time = bench_measure(rotation_run, &r, setup->seconds);
    result->bandwidth = near ? fmax(before, bench_read_bandwidth(threads)) : before;
    rotation_free(&r);
    operand_free(&qa);
    operand_free(&qb);
}

/* ---- the peers ----------------------------------------------------------------------- */

static bench_time run_peer(const bench_setup *setup, const bench_peer *peer, const bench_case *item,
                           const float *a, const float *b, bench_samples *places, void *d)
{
    size_t b_bytes = (size_t)(item->n * item->k) * dg_dtype_bytes(peer->d);
    bench_product product = {
        item->m, item->n, item->k, a, b, setup->warm ? 1 : bench_copies(b_bytes), d};
    void *prepared = peer->prepare(&product);
    if (prepared == NULL)
        return (bench_time){0};
    clear_result(d, item, peer->d);
    peer->run(prepared, 0);
    sample_values(places->a, a, places->rows, item->k);
    sample_values(places->b, b, places->cols, item->k);
    check_result(peer->name, places, d, peer->d, item->n);

    const useconds_t pool_idle = 100000; /* threads of the library before have stopped spinning */
    usleep(pool_idle);
    bench_time time = bench_measure(peer->run, prepared, setup->seconds);
    peer->release(prepared);
    return time;
}

bench_result bench_gemm(const bench_setup *setup, const bench_case *item)
{
    if (item->d != DG_F32 && item->d != DG_BF16 && item->d != DG_F16)
        cli_misuse("the benchmark writes f32, bf16 or f16, not %s", dg_dtype_name(item->d));
    bench_result result = {.item = *item, .flops = 2.0 * item->m * item->n * item->k};
    size_t a_bytes = (size_t)(item->m * item->k) * sizeof(float);
    size_t b_bytes = (size_t)(item->n * item->k) * sizeof(float);
    size_t d_bytes = (size_t)(item->m * item->n) * sizeof(float); /* the widest type's */
    float *a = bench_pages(a_bytes), *b = bench_pages(b_bytes), *d = bench_pages(d_bytes);
    uint64_t seed = (uint64_t)time(NULL) << 32;
    bench_fill_values(a, item->m * item->k, setup->fill, seed);
    bench_fill_values(b, item->n * item->k, setup->fill, ~seed);
    bench_samples places = bench_samples_new(item);

    run_deepgemm(setup, a, b, &places, d, &result);
    result.floor = fmax(result.flops / setup->peak, result.bytes / result.bandwidth);
    for (int p = 0; p < bench_peer_count; p++)
        if (setup->peer_missing[p] == NULL)
            result.peer[p] = run_peer(setup, bench_peers[p], item, a, b, &places, d);

    bench_samples_free(&places);
    bench_pages_free(a, a_bytes);
    bench_pages_free(b, b_bytes);
    bench_pages_free(d, d_bytes);
    return result;
}
