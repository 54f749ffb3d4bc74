/* SPDX-License-Identifier: MIT */
/* What the files of the CUDA backend share: the state of a context. */
#ifndef DGI_CUDA_CONTEXT_H
#define DGI_CUDA_CONTEXT_H

#include "backend.h"
#include "core/memo.h"
#include "core/plan_decode_sm90.h"
#include "core/plan_grouped_few_sm90.h"
#include "core/plan_grouped_sm90.h"
#include "core/plan_sm90.h"
#include "cuda/device/gemm_args.h"
#include "cuda/device/small_args.h"
#include "cuda/driver.h"

#include <pthread.h>

/* The kernels beside the GEMMs. */
typedef enum dgi_small_kernel {
#define DGI_SMALL_ID(kernel, file) DGI_SMALL_##kernel,
    DGI_SMALL_KERNELS(DGI_SMALL_ID)
#undef DGI_SMALL_ID
        DGI_SMALL_COUNT
} dgi_small_kernel;

/* A kernel's code, loaded on its first use. */
typedef struct dgi_loaded_kernel {
    CUmodule module;
    CUfunction function; /* NULL until it is loaded */
} dgi_loaded_kernel;

/* All kernels are numbered through, table by table; where each begins. */
#define DGI_SM90(...)        +1
#define DGI_SM90_DECODE(...) +1
enum {
    DGI_FIRST_MANY = 0,
    DGI_FIRST_FEW = DGI_FIRST_MANY
#include "core/kernels_sm90.def"
    ,
    DGI_FIRST_GROUPED = DGI_FIRST_FEW
#include "core/kernels_sm90_decode.def"
    ,
    DGI_FIRST_GROUPED_FEW = DGI_FIRST_GROUPED
#include "core/kernels_sm90_grouped.def"
    ,
    DGI_FIRST_SMALL = DGI_FIRST_GROUPED_FEW
#include "core/kernels_sm90_grouped_few.def"
    ,
    DGI_ALL_KERNELS = DGI_FIRST_SMALL + DGI_SMALL_COUNT
};
#undef DGI_SM90
#undef DGI_SM90_DECODE

enum { DGI_KNOWN_POINTERS = 4096 };

typedef struct dgi_cuda {
    dgi_driver driver;
    CUdevice device;
    CUcontext primary; /* the device's primary context, retained */
    CUmemoryPool pool; /* of scratch memory, or NULL where the device has no pools */
    char name[96];
    int32_t units;
    int32_t forced_many;        /* dg_context_options.kernel: a row of kernels_sm90.def, or -1 */
    int32_t forced_few;         /* of kernels_sm90_decode.def, or -1 */
    int32_t forced_grouped;     /* of kernels_sm90_grouped.def, or -1 */
    int32_t forced_grouped_few; /* of kernels_sm90_grouped_few.def, or -1 */
    bool batch_invariant;       /* dg_context_options.batch_invariant */
    bool dependent_launch;      /* kernels may begin before earlier ones have ended */
    pthread_mutex_t lock;       /* guards what follows */
    dgi_loaded_kernel kernels[DGI_ALL_KERNELS];
    /* Without the lock, see operands.c: pointers of this device's memory; tensor maps. */
    _Atomic uint64_t pointers[DGI_KNOWN_POINTERS];
    dgi_memo maps;
} dgi_cuda;

/*
 * Makes the primary context current for this thread, unless it is so already, and restores the
 * caller's. Every use of the driver lies between the two:
 *     bool pushed;
 *     DGI_TRY(dgi_cuda_enter(cuda, &pushed));
 *     ...
 *     return dgi_cuda_leave(cuda, pushed, status);
 */
dg_status dgi_cuda_enter(dgi_cuda *cuda, bool *pushed);
/* Returns `status`, or the failure to restore. */
dg_status dgi_cuda_leave(dgi_cuda *cuda, bool pushed, dg_status status);

/*
 * The function of row `index` of a kernel table, or of a small kernel, loaded now when need be.
 * During a capture of `stream` nothing is loaded: DG_NOT_PREPARED.
 */
dg_status dgi_cuda_kernel(dgi_cuda *cuda, int32_t index, CUstream stream, CUfunction *function);
dg_status dgi_cuda_decode_kernel(dgi_cuda *cuda, int32_t index, CUstream stream,
                                 CUfunction *function);
dg_status dgi_cuda_grouped_kernel(dgi_cuda *cuda, int32_t index, CUstream stream,
                                  CUfunction *function);
dg_status dgi_cuda_grouped_few_kernel(dgi_cuda *cuda, int32_t index, CUstream stream,
                                      CUfunction *function);
/* Shared memory that a GEMM kernel asks for. */
int dgi_cuda_shared_bytes(const dgi_sm90_kernel *row);
int dgi_cuda_grouped_shared_bytes(const dgi_sm90_kernel *row);
dg_status dgi_cuda_small_kernel(dgi_cuda *cuda, dgi_small_kernel kernel, CUstream stream,
                                CUfunction *function);
void dgi_cuda_unload(dgi_cuda *cuda);

dg_status dgi_cuda_is_captured(dgi_cuda *cuda, CUstream stream, bool *captured);
/* Launches a kernel, unless its grid is empty; DG_DEVICE_MISMATCH for a stream of another device.
 */
dg_status dgi_cuda_launch(dgi_cuda *cuda, const char *name, CUfunction function,
                          const CUlaunchConfig *config, void *args);
/* Launches a small kernel. */
dg_status dgi_cuda_launch_blocks(dgi_cuda *cuda, dgi_small_kernel kernel, void *args,
                                 int64_t blocks, int32_t threads, CUstream stream);
/* The same with about one thread for each of `items`; what is left the kernel does in turns. */
dg_status dgi_cuda_launch_small(dgi_cuda *cuda, dgi_small_kernel kernel, void *args, int64_t items,
                                CUstream stream);

/* The scale for device code, which counts `unit` matrix columns as one. */
dgi_device_scale dgi_device_scale_of(const dg_scale *scale, int32_t unit);
/* Device code reads scales with 32-bit offsets; refuses an array that is too large for that. */
dg_status dgi_cuda_check_scale(const dg_scale *scale, const char *name);

dgi_device_matrix dgi_device_matrix_of(const dg_matrix *matrix);

/* Which scales change along K. */
typedef struct dgi_varying {
    bool scale_a, scale_b;
} dgi_varying;
dgi_varying dgi_cuda_varying(const dg_gemm *gemm);
/* K that shares a scale within the kernel; 0 where scales act in the epilogue. */
int32_t dgi_cuda_scale_k(const dgi_sm90_kernel *kernel);
/* What a GEMM kernel of such a `scale_k` gets, but for its maps and what depends on sizes. */
dgi_gemm_args dgi_cuda_product_args(int32_t scale_k, const dg_gemm *gemm, dgi_varying vary);

/*
 * Launches a GEMM kernel, whose clusters stand side by side. It waits itself for those before it,
 * so it may begin while they still run.
 */
typedef struct dgi_launch {
    const char *name;
    CUfunction function;
    int32_t ctas, cluster, threads;
    int shared_bytes;
} dgi_launch;
dg_status dgi_cuda_launch_clusters(dgi_cuda *cuda, const dgi_launch *launch, void *args,
                                   CUstream stream);
/* The same for the kernels of many tokens and of groups. */
dg_status dgi_cuda_launch_tiles(dgi_cuda *cuda, const dgi_sm90_kernel *kernel, CUfunction function,
                                int32_t ctas, int shared_bytes, void *args, CUstream stream);

/*
 * Launches a kernel for few tokens. scale_b is complete also where B is packed. A and B are aligned
 * for the copy engine.
 */
dg_status dgi_cuda_decode(dgi_cuda *cuda, const dg_gemm *gemm, const dgi_decode_plan *plan,
                          CUstream stream);

/* The scales that lie behind packed codes. */
dg_scale dgi_cuda_packed_scale(const dg_weights *weights);
dg_status dgi_cuda_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                 size_t *bytes);
dg_status dgi_cuda_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                dg_weights *weights, void *stream);
dg_status dgi_cuda_weights_unpack(dg_context *context, const dg_weights *weights,
                                  const dg_matrix *b, const dg_scale *scale_b, void *stream);

dg_status dgi_cuda_quantize(dg_context *context, const dg_quantize *quantize, void *stream);
dg_status dgi_cuda_dequantize(dg_context *context, const dg_dequantize *dequantize, void *stream);
/* operands.c */
/* Puts packed weights in the place of b and scale_b; their codes have no address as b. */
dg_gemm dgi_cuda_with_weights(const dg_gemm *gemm);
/* The same product with another M. */
dg_gemm dgi_cuda_with_rows(const dg_gemm *gemm, int64_t m);
/* Whether the copy engine can address the matrix: multiples of 16 bytes. */
bool dgi_cuda_can_copy(const dg_matrix *matrix);
/* Whether D leaves through the copy engine, which writes whole 16 bytes, also where a row ends. */
bool dgi_cuda_can_copy_out(const dg_gemm *gemm);
/* A map of `matrix` for boxes of `box_rows` rows, 128 bytes wide, with the 128-byte swizzle. */
dg_status dgi_cuda_describe(dgi_cuda *cuda, const dg_matrix *matrix, uint32_t box_rows,
                            CUtensorMap *map);
/* A map of FP32 scales whose rows lie side by side. */
dg_status dgi_cuda_describe_scales(dgi_cuda *cuda, const dg_scale *scale, uint32_t box_rows,
                                   uint32_t box_cols, CUtensorMap *map);
/*
 * DG_DEVICE_MISMATCH for a pointer that is not memory of the context's device, which a kernel would
 * fault on. A pointer that passed is remembered and passes until it is forgotten, even when its
 * memory has been released since: such a call faults as it would anywhere.
 */
dg_status dgi_cuda_check_pointer(dgi_cuda *cuda, const void *data, const char *name);
/* What a call reads or writes. */
typedef struct dgi_cuda_operand {
    const void *data;
    dg_dtype dtype; /* DG_NONE: at any address */
    bool used;      /* else it may have any address, or none */
    const char *name;
} dgi_cuda_operand;
/* The same of those used, and DG_MISALIGNED where a load of one of their elements would fault. */
dg_status dgi_cuda_check_operands(dgi_cuda *cuda, const dgi_cuda_operand *operands, size_t count);
void dgi_cuda_forget_pointers(dgi_cuda *cuda);

/* scratch.c */
void dgi_cuda_scratch_open(dgi_cuda *cuda);
void dgi_cuda_scratch_close(dgi_cuda *cuda);
/* Makes room for so many bytes. */
dg_status dgi_cuda_scratch_grow(dgi_cuda *cuda, size_t bytes);
/* Memory for work on the stream that is enqueued before it is given back. */
dg_status dgi_cuda_scratch_take(dgi_cuda *cuda, size_t bytes, CUstream stream, void **memory);
/* Returns `status`, that of the work, or the failure to give back. */
dg_status dgi_cuda_scratch_give(dgi_cuda *cuda, void *memory, CUstream stream, dg_status status);

/* gemm.c */
dg_status dgi_cuda_gemm(dg_context *context, const dg_gemm *gemm, void *stream);
dg_status dgi_cuda_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes);
dg_status dgi_cuda_gemm_prepare(dg_context *context, const dg_gemm *gemm);
dg_status dgi_cuda_gemm_explain(dg_context *context, const dg_gemm *gemm, FILE *text);

/* grouped.c */
dg_status dgi_cuda_grouped(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                           void *stream);
dg_status dgi_cuda_grouped_prepare(dg_context *context, const dg_gemm *gemm,
                                   const dg_groups *groups);
dg_status dgi_cuda_grouped_explain(dg_context *context, const dg_gemm *gemm,
                                   const dg_groups *groups, const int32_t *sizes, FILE *text);
dg_status dgi_cuda_table_open(dg_table *table);
void dgi_cuda_table_close(dg_table *table);
dg_status dgi_cuda_table_update(dg_table *table, void *stream);
dg_status dgi_cuda_table_update_device(dg_table *table, const dg_table_values *values,
                                       void *stream);
dg_status dgi_cuda_table_run(dg_table *table, void *stream);
dg_status dgi_cuda_table_explain(dg_table *table, FILE *text);

#endif
