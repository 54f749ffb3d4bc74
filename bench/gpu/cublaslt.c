/* SPDX-License-Identifier: MIT */
/* cuBLASLt as a peer. Its matrices are column-major, so it computes D^T[N,M] = B A^T. */
#include "cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>

#define LT_FUNCTIONS(X)                                                                            \
    X(cublasLtCreate)                                                                              \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

struct peer {
#define LT_MEMBER(function) __typeof__(function) *function;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
    cublasLtHandle_t handle;
    void *workspace;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t b, a, d;
    cublasLtMatmulAlgo_t algorithm;
};

enum { WORKSPACE_BYTES = 64 << 20 };

peer *peer_open(gpu *g, const char **why)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && library == NULL; i++)
        library = dlopen(names[i], RTLD_NOW);
    *why = "libcublasLt.so is not on the library path";
    if (library == NULL)
        return NULL;
    peer *p = cli_alloc(sizeof *p);
#define LT_FIND(function)                                                                          \
    *(void **)&p->function = dlsym(library, #function);                                            \
    if (p->function == NULL)                                                                       \
        cli_die("cuBLASLt has no " #function);
    LT_FUNCTIONS(LT_FIND)
#undef LT_FIND
    if (p->cublasLtCreate(&p->handle) != CUBLAS_STATUS_SUCCESS) {
        *why = "cublasLtCreate failed";
        free(p);
        return NULL;
    }
    const size_t version = p->cublasLtGetVersion();
    *why = cli_format("cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    p->workspace = gpu_alloc(g, WORKSPACE_BYTES);
    return p;
}

static void set(peer *p, cublasLtMatmulDescAttributes_t attribute, const void *value, size_t bytes)
{
    p->cublasLtMatmulDescSetAttribute(p->operation, attribute, value, bytes);
}

/* Its first operand is our B. */
static void set_scales(peer *p, const peer_operands *operands)
{
    set(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &operands->scale_b, sizeof(void *));
    set(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &operands->scale_a, sizeof(void *));
}

bool peer_begin(peer *p, peer_kind kind, int64_t m, int64_t n, int64_t k,
                const peer_operands *operands)
{
    const cudaDataType_t type = kind == PEER_BF16 ? CUDA_R_16BF : CUDA_R_8F_E4M3;
    const cublasOperation_t transpose = CUBLAS_OP_T;
    p->cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(p, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose);
    if (kind != PEER_BF16) {
        const int8_t fast = kind == PEER_TENSOR_FAST;
        /* Its first operand is our B. */
        const int32_t b_mode = kind == PEER_ROW     ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                               : kind == PEER_BLOCK ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                                    : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
        const int32_t a_mode =
            kind == PEER_BLOCK ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F : b_mode;
        set(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
        set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &b_mode, sizeof b_mode);
        set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &a_mode, sizeof a_mode);
        set_scales(p, operands); /* without them it finds no algorithm */
    }
    p->cublasLtMatrixLayoutCreate(&p->b, type, (uint64_t)k, (uint64_t)n, k);
    p->cublasLtMatrixLayoutCreate(&p->a, type, (uint64_t)k, (uint64_t)m, k);
    p->cublasLtMatrixLayoutCreate(&p->d, CUDA_R_16BF, (uint64_t)n, (uint64_t)m, n);

    cublasLtMatmulPreference_t preference;
    const size_t bytes = WORKSPACE_BYTES;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    p->cublasLtMatmulPreferenceCreate(&preference);
    p->cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                            &bytes, sizeof bytes);
    cublasStatus_t status = p->cublasLtMatmulAlgoGetHeuristic(
        p->handle, p->operation, p->b, p->a, p->d, p->d, preference, 1, &found, &count);
    p->cublasLtMatmulPreferenceDestroy(preference);
    p->algorithm = found.algo;
    return status == CUBLAS_STATUS_SUCCESS && count > 0;
}

bool peer_run(peer *p, const peer_operands *operands, CUstream stream)
{
    const float one = 1.0f, zero = 0.0f;
    if (operands->scale_a != NULL)
        set_scales(p, operands);
    return p->cublasLtMatmul(p->handle, p->operation, &one, operands->b, p->b, operands->a, p->a,
                             &zero, operands->d, p->d, operands->d, p->d, &p->algorithm,
                             p->workspace, WORKSPACE_BYTES,
                             (cudaStream_t)stream) == CUBLAS_STATUS_SUCCESS;
}

void peer_end(peer *p)
{
    p->cublasLtMatrixLayoutDestroy(p->a);
    p->cublasLtMatrixLayoutDestroy(p->b);
    p->cublasLtMatrixLayoutDestroy(p->d);
    p->cublasLtMatmulDescDestroy(p->operation);
}
