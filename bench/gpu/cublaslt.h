/* SPDX-License-Identifier: MIT */
/* The peer of the GPU benchmark: NVIDIA's cuBLASLt, opened at run time. */
#ifndef BENCH_GPU_CUBLASLT_H
#define BENCH_GPU_CUBLASLT_H

#include "gpu.h"

typedef enum peer_kind {
    PEER_BF16,        /* 16-bit operands                                  */
    PEER_TENSOR,      /* FP8, one scale each, precise accumulation        */
    PEER_TENSOR_FAST, /* the same with the tensor cores' own accumulation */
    PEER_ROW,         /* FP8, token x channel                             */
    PEER_BLOCK,       /* FP8, 1x128 . 128x128                             */
    PEER_NONE         /* it has no such product                           */
} peer_kind;

typedef struct peer peer;

/* NULL where there is none; `*why` says so, or gets the version. */
peer *peer_open(gpu *g, const char **why);

/*
 * Operands of one problem: D[M,N] = A[M,K] B[N,K]^T with BF16 results. Scales of 1x128 blocks lie
 * with rows side by side, those of 128x128 blocks with blocks of K side by side, each row of them
 * padded to a multiple of four.
 */
typedef struct peer_operands {
    const void *a, *b, *scale_a, *scale_b;
    void *d;
} peer_operands;

/*
 * Takes the algorithm that the library itself prefers for operands like these; false when it has
 * none for this problem.
 */
bool peer_begin(peer *p, peer_kind kind, int64_t m, int64_t n, int64_t k,
                const peer_operands *operands);
/* Enqueues the problem of the last peer_begin(). */
bool peer_run(peer *p, const peer_operands *operands, CUstream stream);
void peer_end(peer *p);

#endif
