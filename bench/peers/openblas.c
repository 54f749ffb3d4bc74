/* SPDX-License-Identifier: MIT */
/* OpenBLAS in FP32, opened at run time. */
#include "peers/peer.h"

#include "bench.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { row_major = 101, no_trans = 111, trans = 112 }; /* the CBLAS standard's values */

/* The functions used here; C's CBLAS interface with 32-bit integers. */
static struct openblas {
    void *library;
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                  const float *a, int lda, const float *b, int ldb, float beta, float *c, int ldc);
    void (*sgemv)(int order, int trans, int m, int n, float alpha, const float *a, int lda,
                  const float *x, int incx, float beta, float *y, int incy);
    void (*set_num_threads)(int threads);
    char *(*get_config)(void);
    char *(*get_corename)(void);
    char about[160];
} blas;

/* SciPy's build, the newest that is easily had, puts its own prefix before each name. */
static bool find(void *function, const char *name)
{
    char prefixed[64];
    snprintf(prefixed, sizeof prefixed, "scipy_%s", name);
    void *symbol = dlsym(blas.library, name);
    if (symbol == NULL)
        symbol = dlsym(blas.library, prefixed);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/*
 * OpenBLAS knows processors by their model numbers and takes its oldest kernels (Prescott, SSE3) on
 * one that is newer than itself. So that the peer is not weak, it gets the kernels of the
 * instruction set that deepgemm uses, whatever the environment says; SkylakeX has the best SGEMM of
 * all with AVX-512.
 */
static void choose_core(const char *isa)
{
    unsetenv("OPENBLAS_L2_SIZE");
    if (strcmp(isa, "avx2") == 0)
        setenv("OPENBLAS_CORETYPE", "Haswell", 1);
    else if (strncmp(isa, "avx512", strlen("avx512")) == 0)
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
    else
        unsetenv("OPENBLAS_CORETYPE");
}

static const char *open_blas(int threads, const char *isa)
{
    if (blas.library == NULL) {
        choose_core(isa);
        const char *chosen = getenv("DEEPGEMM_OPENBLAS");
        blas.library = dlopen(chosen != NULL ? chosen : "libscipy_openblas.so", RTLD_NOW);
        if (blas.library == NULL && chosen == NULL)
            blas.library = dlopen("libopenblas.so.0", RTLD_NOW);
        if (blas.library == NULL)
            return chosen != NULL ? "the library that $DEEPGEMM_OPENBLAS names does not open"
                                  : "neither libscipy_openblas.so nor libopenblas.so.0 is found";
        if (!find(&blas.sgemm, "cblas_sgemm") || !find(&blas.sgemv, "cblas_sgemv") ||
            !find(&blas.set_num_threads, "openblas_set_num_threads") ||
            !find(&blas.get_config, "openblas_get_config") ||
            !find(&blas.get_corename, "openblas_get_corename")) {
            blas.library = NULL;
            return "the library found lacks a function of OpenBLAS";
        }
        /* The configuration begins "OpenBLAS 0.3.21 ..." */
        snprintf(blas.about, sizeof blas.about, "%.*s, core %s",
                 (int)strcspn(blas.get_config() + strlen("OpenBLAS "), " ") +
                     (int)strlen("OpenBLAS "),
                 blas.get_config(), blas.get_corename());
    }
    blas.set_num_threads(threads);
    return NULL;
}

static const char *about_blas(void)
{
    return blas.about;
}

typedef struct prepared {
    bench_product product;
    float *b;
    size_t b_bytes;
} prepared;

static void *prepare(const bench_product *product)
{
    prepared *p = cli_alloc(sizeof *p);
    size_t each = (size_t)(product->n * product->k) * sizeof(float);
    p->product = *product;
    p->b_bytes = each * (size_t)product->copies;
    p->b = bench_pages(p->b_bytes);
    for (int c = 0; c < product->copies; c++)
        memcpy((char *)p->b + (size_t)c * each, product->b, each);
    return p;
}

static void *prepare_sgemv(const bench_product *product)
{
    return product->m == 1 ? prepare(product) : NULL;
}

static void *prepare_sgemm(const bench_product *product)
{
    return product->m > 1 ? prepare(product) : NULL;
}

static const float *copy_of_b(const prepared *p, int64_t index)
{
    return p->b + index % p->product.copies * p->product.n * p->product.k;
}

static void run_sgemv(void *state, int64_t index)
{
    const prepared *p = state;
    int n = (int)p->product.n, k = (int)p->product.k;
    blas.sgemv(row_major, no_trans, n, k, 1, copy_of_b(p, index), k, p->product.a, 1, 0,
               p->product.d, 1);
}

static void run_sgemm(void *state, int64_t index)
{
    const prepared *p = state;
    int m = (int)p->product.m, n = (int)p->product.n, k = (int)p->product.k;
    blas.sgemm(row_major, no_trans, trans, m, n, k, 1, p->product.a, k, copy_of_b(p, index), k, 0,
               p->product.d, n);
}

static void release(void *state)
{
    prepared *p = state;
    bench_pages_free(p->b, p->b_bytes);
    free(p);
}

const bench_peer bench_openblas_sgemv = {"openblas_sgemv", DG_F32,    open_blas, about_blas,
                                         prepare_sgemv,    run_sgemv, release};
const bench_peer bench_openblas_sgemm = {"openblas_sgemm", DG_F32,    open_blas, about_blas,
                                         prepare_sgemm,    run_sgemm, release};
