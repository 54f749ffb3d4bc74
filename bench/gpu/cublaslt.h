/* SPDX-License-Identifier: MIT */
/* The peer of the GPU benchmark: NVIDIA's cuBLASLt, opened at run time. */
#ifndef BENCH_GPU_CUBLASLT_H
#define BENCH_GPU_CUBLASLT_H

#include "gpu.h"

typedef enum peer_kind {
    PEER_BF16,        /* 16-bit operands                                 */
    PEER_TENSOR,      /* FP8, one scale each, precise accumulation       */
    PEER_TENSOR_FAST, /* the same with the tensor cores' own accumulation */
    PEER_ROW,         /* FP8, token x channel                            */
    PEER_BLOCK        /* FP8, 1x128 . 128x128                            */
} peer_kind;

typedef struct peer peer;

/* NULL, with a message on standard error, where there is no cuBLASLt. */
peer *peer_open(gpu *g);
/* The library's version, 130000 for 13.0.0. */
size_t peer_version(const peer *p);

/* Operands of one problem: D[M,N] = A[M,K] B[N,K]^T with BF16 results. */
typedef struct peer_operands {
    const void *a, *b;
    void *d;
} peer_operands;

/* Chooses an algorithm; false when the library has none for this problem. */
bool peer_begin(peer *p, peer_kind kind, int64_t m, int64_t n, int64_t k, const void *scales);
/* Enqueues the problem of the last peer_begin(). */
bool peer_run(peer *p, const peer_operands *operands, CUstream stream);
void peer_end(peer *p);

#endif
