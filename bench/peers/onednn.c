/* SPDX-License-Identifier: MIT */
/*
 * oneDNN's BF16 matrix product with weights laid out as the library likes them, through its C
 * interface of version 3, opened at run time. The declarations below are what that interface
 * fixes; its own headers are not needed to build.
 */
#include "peers/peer.h"

#include "bench.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *handle; /* every object of oneDNN's is an opaque pointer */
typedef const void *const_handle;
typedef int64_t dims[12]; /* dnnl_dims_t */
typedef struct exec_arg {
    int arg;
    handle memory;
} exec_arg;
typedef struct version {
    int major, minor, patch;
} version; /* the first fields */

enum { engine_cpu = 1, stream_in_order = 1, type_bf16 = 2, tag_any = 1 };
enum { query_impl_info = 8, query_weights = 131 };
enum { arg_src = 1, arg_dst = 17, arg_weights = 33 };
enum { isa_avx512_core = 0x27 };

#define FUNCTIONS(X)                                                                               \
    X(const version *, version, (void))                                                            \
    X(int, set_max_cpu_isa, (int isa))                                                             \
    X(int, engine_create, (handle * engine, int kind, size_t index))                               \
    X(int, stream_create, (handle * stream, handle engine, unsigned flags))                        \
    X(int, stream_wait, (handle stream))                                                           \
    X(int, memory_desc_create_with_tag,                                                            \
      (handle * md, int rank, const int64_t *shape, int type, int tag))                            \
    X(int, memory_desc_create_with_strides,                                                        \
      (handle * md, int rank, const int64_t *shape, int type, const int64_t *strides))             \
    X(size_t, memory_desc_get_size, (const_handle md))                                             \
    X(int, memory_desc_destroy, (handle md))                                                       \
    X(int, memory_create, (handle * memory, const_handle md, handle engine, void *data))           \
    X(int, memory_destroy, (handle memory))                                                        \
    X(int, matmul_primitive_desc_create,                                                           \
      (handle * pd, handle engine, const_handle src, const_handle weights, const_handle bias,      \
       const_handle dst, const_handle attributes))                                                 \
    X(int, reorder_primitive_desc_create,                                                          \
      (handle * pd, const_handle src, handle src_engine, const_handle dst, handle dst_engine,      \
       const_handle attributes))                                                                   \
    X(const_handle, primitive_desc_query_md, (const_handle pd, int what, int index))               \
    X(int, primitive_desc_query, (const_handle pd, int what, int index, void *result))             \
    X(int, primitive_desc_destroy, (handle pd))                                                    \
    X(int, primitive_create, (handle * primitive, const_handle pd))                                \
    X(int, primitive_execute,                                                                      \
      (handle primitive, handle stream, int count, const exec_arg *arguments))                     \
    X(int, primitive_destroy, (handle primitive))

static struct onednn {
    void *library;
    handle engine, stream;
    char about[160];
#define MEMBER(result, name, parameters) result(*name) parameters;
    FUNCTIONS(MEMBER)
} dnnl;

static bool find_functions(void)
{
    void *symbol;
#define FIND(result, name, parameters)                                                             \
    if ((symbol = dlsym(dnnl.library, "dnnl_" #name)) == NULL)                                     \
        return false;                                                                              \
    memcpy(&dnnl.name, &symbol, sizeof symbol);
    FUNCTIONS(FIND)
    return true;
}

/* The library with an engine, or why there is none. */
static const char *load(const char *isa)
{
    const char *chosen = getenv("DEEPGEMM_ONEDNN");
    dnnl.library = dlopen(chosen != NULL ? chosen : "libdnnl.so.3", RTLD_NOW);
    if (dnnl.library == NULL)
        return chosen != NULL ? "the library that $DEEPGEMM_ONEDNN names does not open"
                              : "libdnnl.so.3 is not found";
    if (!find_functions())
        return "the library found lacks a function of oneDNN 3";
    if (strcmp(isa, "avx512") == 0)
        dnnl.set_max_cpu_isa(isa_avx512_core);
    if (dnnl.engine_create(&dnnl.engine, engine_cpu, 0) != 0 ||
        dnnl.stream_create(&dnnl.stream, dnnl.engine, stream_in_order) != 0)
        return "oneDNN gives no CPU engine";
    const version *v = dnnl.version();
    snprintf(dnnl.about, sizeof dnnl.about, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return NULL;
}

static const char *open_dnnl(int threads, const char *isa)
{
    if (strcmp(isa, "avx2") == 0)
        return "oneDNN has no BF16 product for AVX2";
    omp_set_num_threads(threads); /* oneDNN's builds for OpenMP ask it for their threads */
    return dnnl.stream == NULL ? load(isa) : NULL;
}

static const char *about_dnnl(void)
{
    return dnnl.about;
}

typedef struct prepared {
    int copies;
    uint16_t *a;
    char *b;
    size_t b_bytes; /* of all copies */
    handle primitive, src, dst, *weights;
} prepared;

static void check(int status, const char *what)
{
    if (status != 0)
        cli_die("oneDNN: %s failed with status %d", what, status);
}

static handle plain_desc(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride)
{
    handle md;
    check(dnnl.memory_desc_create_with_strides(&md, 2, (dims){rows, cols}, type_bf16,
                                               (dims){row_stride, col_stride}),
          "memory_desc_create");
    return md;
}

static handle memory_of(const_handle md, void *data)
{
    handle memory;
    check(dnnl.memory_create(&memory, md, dnnl.engine, data), "memory_create");
    return memory;
}

static void execute(handle primitive, int count, const exec_arg *arguments)
{
    check(dnnl.primitive_execute(primitive, dnnl.stream, count, arguments), "primitive_execute");
    check(dnnl.stream_wait(dnnl.stream), "stream_wait");
}

/* Lays plain [n,k] weights out, once, as `md` says; the other copies are the same bytes. */
static void lay_out_weights(prepared *p, const bench_product *product, const_handle md)
{
    size_t each = dnnl.memory_desc_get_size(md),
           plain_bytes = (size_t)(product->n * product->k) * 2;
    uint16_t *plain = bench_pages(plain_bytes);
    cli_check(dg_convert(product->b, DG_F32, plain, DG_BF16, product->n * product->k, DG_SATURATE),
              "converting to BF16");
    p->b_bytes = each * (size_t)p->copies;
    p->b = bench_pages(p->b_bytes);
    for (int c = 0; c < p->copies; c++)
        p->weights[c] = memory_of(md, p->b + (size_t)c * each);

    handle pd, reorder, from_md = plain_desc(product->k, product->n, 1, product->k);
    handle from = memory_of(from_md, plain);
    check(dnnl.reorder_primitive_desc_create(&pd, from_md, dnnl.engine, md, dnnl.engine, NULL),
          "reorder_primitive_desc_create");
    check(dnnl.primitive_create(&reorder, pd), "primitive_create");
    execute(reorder, 2, (exec_arg[]){{arg_src, from}, {arg_dst, p->weights[0]}});
    for (int c = 1; c < p->copies; c++)
        memcpy(p->b + (size_t)c * each, p->b, each);

    dnnl.primitive_destroy(reorder);
    dnnl.primitive_desc_destroy(pd);
    dnnl.memory_destroy(from);
    dnnl.memory_desc_destroy(from_md);
    bench_pages_free(plain, plain_bytes);
}

static void *prepare(const bench_product *product)
{
    int64_t m = product->m, n = product->n, k = product->k;
    handle pd, any;
    handle src = plain_desc(m, k, k, 1), dst = plain_desc(m, n, n, 1);
    check(dnnl.memory_desc_create_with_tag(&any, 2, (dims){k, n}, type_bf16, tag_any),
          "memory_desc_create");
    int status = dnnl.matmul_primitive_desc_create(&pd, dnnl.engine, src, any, NULL, dst, NULL);
    prepared *p = NULL;
    if (status == 0) {
        const char *implementation;
        p = cli_alloc(sizeof *p);
        p->copies = product->copies;
        p->weights = cli_alloc((size_t)p->copies * sizeof *p->weights);
        p->a = cli_alloc((size_t)(m * k) * sizeof *p->a);
        cli_check(dg_convert(product->a, DG_F32, p->a, DG_BF16, m * k, DG_SATURATE),
                  "converting to BF16");
        p->src = memory_of(src, p->a);
        p->dst = memory_of(dst, product->d);
        lay_out_weights(p, product, dnnl.primitive_desc_query_md(pd, query_weights, 0));
        check(dnnl.primitive_create(&p->primitive, pd), "primitive_create");
        check(dnnl.primitive_desc_query(pd, query_impl_info, 0, &implementation), "query");
        const version *v = dnnl.version();
        snprintf(dnnl.about, sizeof dnnl.about, "oneDNN %d.%d.%d, %s", v->major, v->minor, v->patch,
                 implementation);
        dnnl.primitive_desc_destroy(pd);
    }
    dnnl.memory_desc_destroy(any);
    dnnl.memory_desc_destroy(dst);
    dnnl.memory_desc_destroy(src);
    return p;
}

static void run(void *state, int64_t index)
{
    prepared *p = state;
    execute(p->primitive, 3,
            (exec_arg[]){{arg_src, p->src},
                         {arg_weights, p->weights[index % p->copies]},
                         {arg_dst, p->dst}});
}

static void release(void *state)
{
    prepared *p = state;
    dnnl.primitive_destroy(p->primitive);
    dnnl.memory_destroy(p->src);
    dnnl.memory_destroy(p->dst);
    for (int c = 0; c < p->copies; c++)
        dnnl.memory_destroy(p->weights[c]);
    bench_pages_free(p->b, p->b_bytes);
    free(p->weights);
    free(p->a);
    free(p);
}

const bench_peer bench_onednn_bf16 = {"onednn_bf16", DG_BF16, open_dnnl, about_dnnl,
                                      prepare,       run,     release};
