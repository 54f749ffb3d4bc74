/* SPDX-License-Identifier: MIT */
/*
 * The libraries that deepgemm is compared with. Each is opened at run time, so none is needed to
 * build or to use the tool, and runs in the same process on the same values in its own types.
 */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <deepgemm.h>

/* D[m,n] = A[m,k] B[n,k]^T, all contiguous. The values stay the caller's and alive. */
typedef struct bench_product {
    int64_t m, n, k;
    const float *a, *b;
    int copies; /* of B, each at its own address */
    void *d;    /* in the peer's d type          */
} bench_product;

typedef struct bench_peer {
    const char *name;
    dg_dtype d;
    /*
     * Opens the library for so many threads, capped at an instruction set where the library can
     * be. NULL when it is ready; otherwise the reason, a string that lives on.
     */
    const char *(*open)(int threads, const char *isa);
    /* Version and code path of the opened library, for people. */
    const char *(*about)(void);
    /* Makes everything ready; NULL when the peer does not take such a product. */
    void *(*prepare)(const bench_product *product);
    /* Multiplies with copy `index` modulo the copies. */
    void (*run)(void *prepared, int64_t index);
    void (*release)(void *prepared);
} bench_peer;

extern const bench_peer bench_openblas_sgemv; /* m = 1   */
extern const bench_peer bench_openblas_sgemm; /* m > 1   */
extern const bench_peer bench_onednn_bf16;

/* All of them, bench_peer_count many (gemm.c). */
extern const bench_peer *const bench_peers[];

#endif
