/* SPDX-License-Identifier: MIT */
/*
 * deepgemm: the matrix products of LLM inference in FP8.
 *
 * This header is the whole public API, in one file for that reason, long as it is. It is C11, can
 * be included from C++, and names no CUDA type: a stream is a `void *` (a CUstream on a GPU,
 * ignored on the CPU).
 *
 * The product that everything here is about:
 *
 *     D[M,N] = alpha * (scale_a . A[M,K]) (scale_b . B[N,K])^T + beta * C[M,N] + bias[N]
 *
 * A holds activations (tokens by features), B holds weights (output by input features).
 * Both are row-major, so both are contiguous along K. A scale is always a multiplier:
 * real value = scale * code.
 *
 * Rules that hold for every function:
 *
 *  - It returns a dg_status. On anything but DG_OK nothing has been written to the caller's
 *    outputs, nothing leaks, and every object stays usable; dg_last_error() says what was
 *    wrong and what would be right.
 *  - Sizes, strides and leading dimensions count elements, unless the name ends in `_bytes`.
 *  - The caller owns every buffer that he passes in and keeps it alive until the work that
 *    uses it has finished (on the CPU: until the call returns).
 *  - M, N or K of 0 is not an error. Pointers of empty operands may be NULL.
 *  - A dg_context may be used by many threads at once, each with its own stream. No other
 *    state is shared between threads.
 *  - A struct that begins with `struct_bytes` is initialised with its DG_..._INIT macro. Fields
 *    are only ever added at the end, so programs built against an older header keep working.
 */
#ifndef DEEPGEMM_H
#define DEEPGEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) || !defined(__GNUC__)
#define DG_API
#else
#define DG_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- version ------------------------------------------------------------------------- */

#define DG_VERSION_MAJOR 0
#define DG_VERSION_MINOR 1
#define DG_VERSION_PATCH 0

/** The version of the library that is running: "0.1.0". Semantic versioning. */
DG_API const char *dg_version(void);

/* ---- status -------------------------------------------------------------------------- */

typedef enum dg_status {
    DG_OK = 0,
    DG_INVALID_ARGUMENT,   /* a null pointer, a size or an enum out of range, overlapping output */
    DG_UNSUPPORTED_SHAPE,  /* well formed, but this build or device has no kernel for the shape  */
    DG_UNSUPPORTED_TYPE,   /* a data type that this call does not take                           */
    DG_UNSUPPORTED_SCALE,  /* a scale granularity, type or value that this call does not take    */
    DG_UNSUPPORTED_DEVICE, /* no such device, no driver, or a GPU that this build has no code for */
    DG_DEVICE_MISMATCH,    /* a pointer or a stream that belongs to another device               */
    DG_MISALIGNED,         /* an address or a pitch that no kernel can take                      */
    DG_NOT_PREPARED,       /* the call would have to allocate or load during graph capture       */
    DG_OUT_OF_MEMORY,
    DG_NOT_FOUND,    /* a file, a tensor or a kernel of that name does not exist           */
    DG_IO_ERROR,     /* the operating system refused: the message carries its reason       */
    DG_BAD_FILE,     /* a file that is truncated, malformed or inconsistent                */
    DG_DRIVER_ERROR, /* the GPU driver failed: the message carries its name for the error  */
    DG_CANCELLED     /* a callback of the caller's asked to stop                           */
} dg_status;

/** "DG_INVALID_ARGUMENT" and so on; "unknown status" for a value out of range. Never NULL. */
DG_API const char *dg_status_name(dg_status status);

/**
 * The calling thread's message for its last call that did not return DG_OK: it names the
 * argument, its value and what was expected. Never NULL; "" when no call has failed yet.
 * Read it before the same thread's next call: one that succeeds may leave another text.
 */
DG_API const char *dg_last_error(void);

/* ---- data types ---------------------------------------------------------------------- */

typedef enum dg_dtype {
    DG_NONE = 0, /* absent: a matrix or a scale that the call does without */
    DG_F32,
    DG_F16,
    DG_BF16,
    DG_E4M3, /* E4M3FN: largest 448, no infinity, NaN is 0x7F and 0xFF */
    DG_E5M2, /* like IEEE: largest 57344, infinity 0x7C, NaN above it */
    DG_UE8M0 /* a scale only: byte b is 2^(b-127), 0xFF is NaN        */
} dg_dtype;

/** Bytes of one element: 4, 2 or 1; 0 for DG_NONE and for values out of range. */
DG_API size_t dg_dtype_bytes(dg_dtype dtype);
/** "f32", "e4m3" and so on; "none" for DG_NONE, "unknown" for values out of range. */
DG_API const char *dg_dtype_name(dg_dtype dtype);

/** What a conversion does with a value beyond the largest finite one of the target type. */
typedef enum dg_overflow {
    DG_SATURATE = 0, /* +-largest finite value; infinities too                             */
    DG_OVERFLOW_IEEE /* infinity where the type has one, NaN where it has none (E4M3)       */
} dg_overflow;

/**
 * Converts `count` contiguous elements on the host. Rounds to nearest, ties to even; NaN stays
 * NaN. `overflow` applies to FP8 targets; BF16 and FP16 targets overflow to infinity, as IEEE
 * says. Any pair of F32, F16, BF16, E4M3, E5M2 and UE8M0 is accepted, except that UE8M0 as a
 * target must be exact: a value that is not a power of two in 2^-127..2^127 or NaN is refused
 * with DG_UNSUPPORTED_SCALE before anything is written.
 * `source` and `target` must not overlap.
 */
DG_API dg_status dg_convert(const void *source, dg_dtype source_dtype, void *target,
                            dg_dtype target_dtype, int64_t count, dg_overflow overflow);

/* ---- matrices and scales ------------------------------------------------------------- */

/**
 * A row-major matrix: element (r, c) is data[r * ld + c]. `ld` >= cols; it may be anything when
 * rows <= 1. Any alignment of `data` is accepted, but on a GPU elements of 16 and of 32 bits,
 * scales too, lie at multiples of their size (else DG_MISALIGNED). An input's data is never
 * written.
 */
typedef struct dg_matrix {
    void *data;
    dg_dtype dtype;
    int64_t rows, cols, ld;
} dg_matrix;

/**
 * The scales of a matrix: one multiplier for each block of block_rows x block_cols elements.
 * A block size of 0 means "all": (0,0) is per tensor, (1,0) per row, (1,128) per row and 128
 * columns, (128,128) per square block.
 *
 * The multiplier of matrix element (r, c) is
 *
 *     data[((r + row_phase) / block_rows) * row_stride +
 *          ((c + col_phase) / block_cols) * col_stride]
 *
 * A phase is the place inside its block at which the matrix begins: a shard that starts at
 * column 192 of a weight with blocks of 128 has col_phase 64, and `data` points at the scale of
 * its first column. 0 <= phase < block; 0 where the block size is 0.
 *
 * `rows` x `cols` is the shape of the scale array. It must be exactly what the granularity
 * needs, ceil((phase + size) / block), and is checked: nothing is inferred and nothing is
 * broadcast. Strides are in elements and free: row-major, column-major and padded arrays all
 * work as they are; padding is never read.
 */
typedef struct dg_scale {
    void *data;
    dg_dtype dtype; /* DG_F32 or DG_UE8M0 */
    int32_t block_rows, block_cols;
    int32_t row_phase, col_phase;
    int64_t rows, cols;
    int64_t row_stride, col_stride;
} dg_scale;

/** How many scales `size` rows or columns need: ceil((phase + size) / block), 1 for block 0. */
static inline int64_t dg_scale_count(int64_t size, int32_t block, int32_t phase)
{
    if (block == 0 || size == 0)
        return block == 0 ? 1 : 0;
    return size / block + (size % block + phase + block - 1) / block; /* cannot overflow */
}

/** A contiguous matrix: ld = cols. */
static inline dg_matrix dg_matrix_of(void *data, dg_dtype dtype, int64_t rows, int64_t cols)
{
    dg_matrix m = {data, dtype, rows, cols, cols};
    return m;
}

/** Contiguous row-major scales of that granularity for a matrix of that shape, phase 0. */
static inline dg_scale dg_scale_of(void *data, dg_dtype dtype, int64_t rows, int64_t cols,
                                   int32_t block_rows, int32_t block_cols)
{
    dg_scale s = {data, dtype, block_rows, block_cols, 0, 0, 0, 0, 0, 1};
    s.rows = dg_scale_count(rows, block_rows, 0);
    s.cols = dg_scale_count(cols, block_cols, 0);
    s.row_stride = s.cols;
    return s;
}

/* ---- contexts ------------------------------------------------------------------------ */

/** DG_CPU, or a CUDA device ordinal (0, 1, ...). */
typedef int32_t dg_device;
#define DG_CPU ((dg_device)-1)

typedef struct dg_context dg_context;

typedef struct dg_context_options {
    size_t struct_bytes;
    /** CPU: the most threads of a call; 0 takes OpenMP's default. Results do not depend on it. */
    int32_t threads;
    /**
     * CPU: the widest instruction set to use: "generic", "avx2", "avx512", "avx512_bf16".
     * NULL takes the environment variable DEEPGEMM_CPU_ISA, or else what the machine has.
     */
    const char *isa;
    /**
     * Use this GEMM kernel (a name from dg_kernel_at) and no other. NULL: the planner chooses. A
     * kernel for grouped products alone is for these calls, and one that is not, on a GPU, for all
     * others; the planner chooses for the rest.
     */
    const char *kernel;
    /**
     * A row of D has the same bits whatever M is. The CPU backend always works so; on a GPU it
     * may cost time.
     */
    bool batch_invariant;
    /**
     * CUDA: a kernel begins when those before it in its stream have ended. By default
     * (programmatic dependent launch) it may begin earlier, fetch weights that do not change
     * (packed ones, and those of dg_gemm.b_is_constant) to the processor and others to the L2
     * cache, and then wait. Results are the same.
     */
    bool serial_launch;
} dg_context_options;
#define DG_CONTEXT_OPTIONS_INIT                                                                    \
    {                                                                                              \
        sizeof(dg_context_options), 0, NULL, NULL, false, false                                    \
    }

/**
 * Makes a context for a device. `options` may be NULL. Loading the library does no GPU work;
 * this call is what first touches a driver, and only for a CUDA device. Release it with
 * dg_destroy(). A process may fork while no call is running; the child may go on using its CPU
 * contexts.
 */
DG_API dg_status dg_create(dg_context **context, dg_device device,
                           const dg_context_options *options);

/** Releases a context; NULL is ignored. No call that uses it may be running. */
DG_API void dg_destroy(dg_context *context);

/** Facts about a context's device, for people and logs. The strings live as long as the context. */
typedef struct dg_device_info {
    const char *name;         /* the processor's or GPU's name                         */
    const char *architecture; /* the instruction set in use: "avx512_bf16", "sm_90a"   */
    int32_t units;            /* threads used, or multiprocessors                      */
} dg_device_info;
DG_API dg_status dg_get_device_info(const dg_context *context, dg_device_info *info);

/* ---- memory -------------------------------------------------------------------------- */

/**
 * Device memory (plain memory on the CPU), 256-byte aligned, contents undefined. A convenience
 * for tools and tests: every other call takes memory from any allocator. Size 0 gives NULL.
 */
DG_API dg_status dg_memory_alloc(dg_context *context, size_t bytes, void **memory);
/** Releases memory of dg_memory_alloc; NULL is ignored. Waits for work that uses it. */
DG_API dg_status dg_memory_free(dg_context *context, void *memory);

typedef enum dg_copy_kind {
    DG_HOST_TO_DEVICE = 0,
    DG_DEVICE_TO_HOST,
    DG_DEVICE_TO_DEVICE
} dg_copy_kind;
/** Copies in stream order. A copy to the host has arrived when dg_synchronize() returns. */
DG_API dg_status dg_memory_copy(dg_context *context, void *target, const void *source, size_t bytes,
                                dg_copy_kind kind, void *stream);
/** Waits for all work enqueued on `stream` through this context. */
DG_API dg_status dg_synchronize(dg_context *context, void *stream);

/* ---- quantisation -------------------------------------------------------------------- */

typedef enum dg_scale_source {
    DG_SCALE_DYNAMIC = 0, /* scales are computed from the data and written */
    DG_SCALE_GIVEN        /* scales are read                               */
} dg_scale_source;

/** How a dynamic scale is rounded. UE8M0 scales need one of the powers of two. */
typedef enum dg_scale_rounding {
    DG_SCALE_EXACT = 0, /* amax / largest finite code, in FP32                                 */
    DG_SCALE_POW2_UP,   /* the next power of two at or above it: nothing saturates             */
    DG_SCALE_POW2_DOWN  /* the next at or below it: finer steps, the largest values saturate   */
} dg_scale_rounding;

/** What a quantisation met; every field counts elements. */
typedef struct dg_quantize_counts {
    int64_t saturated;  /* finite inputs whose scaled value lies beyond the largest finite code
                           by more than its rounding reaches (they would overflow), and infinities */
    int64_t underflow;  /* inputs that are not zero and became zero                            */
    int64_t non_finite; /* NaN and infinite inputs                                             */
} dg_quantize_counts;

/**
 * codes = round(input * (1 / scale)), where the reciprocal and the product are each rounded once
 * to FP32 and the code once to nearest even. A reciprocal too large for FP32 becomes FLT_MAX. Both
 * backends give the same bits.
 *
 * Dynamic scales: amax is the largest finite magnitude in the block; NaN and infinite elements
 * have no influence on it. scale = amax / 448 (E4M3) or amax / 57344 (E5M2) in FP32, at least
 * 2^-126; a block without a finite non-zero element gets scale 1. Powers of two are clamped to
 * 2^-126..2^127 (bytes 1 to 254). `amax_floor` replaces a smaller amax (0: none).
 * NaN becomes the code 0x7F with its sign; infinities saturate or, with DG_OVERFLOW_IEEE, become
 * what the type has for them.
 *
 * Given scales must be positive and finite, or DG_UNSUPPORTED_SCALE names the first that is not;
 * on a GPU they are read without this check.
 */
typedef struct dg_quantize {
    size_t struct_bytes;
    dg_matrix input;  /* F32, F16 or BF16                     */
    dg_matrix output; /* E4M3 or E5M2, the shape of `input`   */
    dg_scale scale;   /* F32 or UE8M0, written or read        */
    dg_scale_source source;
    dg_scale_rounding rounding;
    dg_overflow overflow;
    float amax_floor;
    dg_quantize_counts *counts; /* optional, in device memory; overwritten */
} dg_quantize;
#define DG_QUANTIZE_INIT                                                                           \
    {                                                                                              \
        .struct_bytes = sizeof(dg_quantize)                                                        \
    }

DG_API dg_status dg_quantize_run(dg_context *context, const dg_quantize *quantize, void *stream);

/** output = scale * code; the product is rounded to FP32 and then to the output's type. */
typedef struct dg_dequantize {
    size_t struct_bytes;
    dg_matrix input;  /* E4M3 or E5M2     */
    dg_scale scale;   /* F32 or UE8M0     */
    dg_matrix output; /* F32, F16 or BF16 */
} dg_dequantize;
#define DG_DEQUANTIZE_INIT                                                                         \
    {                                                                                              \
        .struct_bytes = sizeof(dg_dequantize)                                                      \
    }

DG_API dg_status dg_dequantize_run(dg_context *context, const dg_dequantize *dequantize,
                                   void *stream);

/* ---- GEMM ---------------------------------------------------------------------------- */

/** Weights laid out for a device: see dg_weights_pack(). */
typedef struct dg_weights dg_weights;

typedef enum dg_accumulation {
    DG_ACCUMULATE_PRECISE = 0, /* FP32, promoted at least each 128 of K                        */
    DG_ACCUMULATE_FAST         /* the device's own, shorter accumulation where that is faster  */
} dg_accumulation;

/**
 * D = alpha * (scale_a . A)(scale_b . B)^T + beta * C + bias
 *
 * Types: A and B are E4M3 or E5M2 in any mix; D is F32, BF16, F16, E4M3 or E5M2; C is F32, BF16
 * or F16; bias is F32, BF16 or F16. Everything between the codes and D is FP32; scales act before
 * the result is narrowed. F16 results beyond 65504 become infinity; FP8 results saturate.
 *
 * An FP8 result needs `scale_d`: code = round(value * (1 / scale_d)). With any other result
 * type scale_d must be absent.
 *
 * beta = 0: C is not read and may be absent, and NaN in it has no influence. C may be D itself
 * (same address, type and ld); otherwise D overlaps no input. K = 0: D = beta * C + bias.
 * Exactly the M x N elements of D are written, each once.
 *
 * Weights come either as `b` with `scale_b` or, packed, as `weights` with b and scale_b left
 * absent. Both give the same bits.
 *
 * The same call gives the same bits on every run, on any number of threads.
 */
typedef struct dg_gemm {
    size_t struct_bytes;
    dg_matrix a; /* [M, K] */
    dg_matrix b; /* [N, K] */
    dg_matrix c; /* [M, N], optional */
    dg_matrix d; /* [M, N] */
    dg_scale scale_a, scale_b;
    dg_scale scale_d; /* FP8 results only */
    dg_matrix bias;   /* [1, N], optional */
    float alpha, beta;
    dg_accumulation accumulation;
    const dg_weights *weights; /* instead of b and scale_b */
    /** The caller's scratch memory, dg_gemm_workspace() bytes; NULL takes it from the context. */
    void *workspace;
    size_t workspace_bytes;
    /**
     * A promise that `b` and `scale_b` are constant: all work that writes them had ended when this
     * call was enqueued or, where it is captured, when the graph was launched. A GPU may then read
     * them before earlier work in the stream has ended, as it reads packed weights, which takes
     * less time for few tokens. Where the promise is broken, old values may be read. Without effect
     * on the CPU, with `weights`, and in grouped calls.
     */
    bool b_is_constant;
} dg_gemm;
#define DG_GEMM_INIT                                                                               \
    {                                                                                              \
        .struct_bytes = sizeof(dg_gemm), .alpha = 1.0f                                             \
    }

/** Enqueues the product (on the CPU: computes it). */
DG_API dg_status dg_gemm_run(dg_context *context, const dg_gemm *gemm, void *stream);

/**
 * Bytes of scratch memory that dg_gemm_run needs for this call; may be 0. A GPU copies `a` and `b`
 * whose address or ld is not a multiple of 16, and reads packed weights as they lie.
 */
DG_API dg_status dg_gemm_workspace(dg_context *context, const dg_gemm *gemm, size_t *bytes);

/**
 * Does now what a first dg_gemm_run would do once: loads the kernels and grows the context's
 * workspace, so that later calls of this shape or a smaller M never allocate and can always be
 * captured in a graph.
 */
DG_API dg_status dg_gemm_prepare(dg_context *context, const dg_gemm *gemm);

/**
 * Writes, as text lines, the kernel that dg_gemm_run would choose and why each one before it in
 * the table was refused. `text` may be NULL to ask for the length. `*text_bytes` is the capacity
 * on entry and the length needed, with the final zero, on return; a short buffer gets a
 * truncated, terminated text.
 */
DG_API dg_status dg_gemm_explain(dg_context *context, const dg_gemm *gemm, char *text,
                                 size_t *text_bytes);

/** One row of the kernel table. The strings are constants. */
typedef struct dg_kernel_info {
    const char *name;         /* as in messages, profiles and dg_context_options.kernel   */
    const char *backend;      /* "cpu" or "cuda"                                          */
    const char *architecture; /* "generic", "avx2", "avx512", "avx512_bf16", "sm_90a"     */
    int32_t tile_m, tile_n, tile_k;
    bool grouped; /* for dg_grouped_run and tables alone; those of the CPU do all calls */
} dg_kernel_info;
/** Row `index` of the table (0, 1, ...); DG_NOT_FOUND after the last. Needs no context. */
DG_API dg_status dg_kernel_at(int32_t index, dg_kernel_info *info);
/** Whether this context can run that kernel: DG_OK, or a status whose message says why not. */
DG_API dg_status dg_kernel_usable(const dg_context *context, const char *name);

/* ---- packed weights ------------------------------------------------------------------ */

/**
 * Lays B and its scales out for the context's device, once, so that each dg_gemm_run streams
 * them at memory speed. Lossless: dg_weights_unpack() gives the same codes and scales back.
 *
 * `buffer` is device memory of the caller's, at least dg_weights_bytes() long and 256-byte
 * aligned, and must outlive *weights; NULL lets the library allocate. b and scale_b may be
 * released when the call has finished. On a GPU it packs in stream order and waits for that, so it
 * cannot be captured in a graph (DG_NOT_PREPARED). The result may be used by any context of the
 * same device, from many threads, and must not be written by anybody: a GEMM may read it before
 * the work that was enqueued before it has finished.
 */
DG_API dg_status dg_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                 void *buffer, size_t buffer_bytes, void *stream,
                                 dg_weights **weights);
/** Bytes that dg_weights_pack needs for these weights. The data pointers may be NULL. */
DG_API dg_status dg_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                  size_t *bytes);
/** Writes the codes and scales back; shapes, types and granularity must be those packed. */
DG_API dg_status dg_weights_unpack(dg_context *context, const dg_weights *weights,
                                   const dg_matrix *b, const dg_scale *scale_b, void *stream);
/**
 * Releases packed weights (not a caller's buffer); NULL is ignored. Those whose memory the library
 * has allocated are released before the context that packed them.
 */
DG_API void dg_weights_destroy(dg_weights *weights);

/* ---- grouped GEMM -------------------------------------------------------------------- */

/*
 * Many products in one call, for mixtures of experts: the groups (experts) share their types,
 * granularities and most sizes, and how large each group is stands in device memory, where the
 * host never reads it. A call may therefore be captured in a graph once and replayed with other
 * sizes. Products that have nothing in common but their types go into a dg_table, below.
 *
 * A dg_gemm describes the groups' operands and a dg_groups how they divide; G is groups.count, and
 * "sizes" are what groups.sizes points at. Alpha, beta and accumulation hold for all groups.
 *
 *  grouping    | sizes          | a           | b, bias of a group  | d (and c)
 *  ------------+----------------+-------------+---------------------+----------------------------
 *  BY_END      | ends [G]       | [M, K]      | [N, K], [1, N]      | [M, N]
 *  BY_ROW      | group of row   | [M, K]      | [N, K], [1, N]      | [M, N]
 *              | [M]            |             |                     |
 *  MASKED      | rows in use    | [R, K] of a | [N, K], [1, N]      | [R, N] of a group
 *              | [G]            | group       |                     |
 *  K_COLUMNS   | K of each      | [M, all K]  | [N, all K], [1, N]  | [M, N] of a group
 *  K_BLOCKS    | group [G]      |             |                     |
 *
 * "of a group" describes the first group; a stride of dg_groups, in elements, leads from each to
 * the next. The scales of an operand follow it: those of a [M, K] matrix cover it whole, those of
 * a group have a stride. So does the phase: scale_b describes each group alone, whatever N is.
 *
 * BY_END: the rows of all groups lie one after another. Group g begins at the end of group g - 1
 *     (0 for the first) rounded up to a multiple of `alignment`, and ends before row sizes[g]. An
 *     end beyond M counts as M; one at or before its group's beginning makes the group empty.
 * BY_ROW: row r belongs to group sizes[r]. A value outside 0..G-1 (say -1) makes it a padding row.
 *     The rows of a group are one run; groups may lie in any order, with padding rows around them.
 *     A second run of a group is refused on the CPU; a GPU, where nobody looks, computes the first.
 * MASKED: of R rows each group uses the first sizes[g]; less than 0 counts as 0, more than R as R.
 * K_COLUMNS: D[g] = alpha * A_g B_g^T + beta * C[g] + bias[g], where A_g and B_g are neighbouring
 *     columns of `a` and `b`: those of group g begin where those of g - 1 end. For weight gradients
 *     (FP32 D, beta 1 and c = d accumulates). Less than 0 counts as 0; columns behind the last are
 *     not there. A group of K = 0 gives beta * C[g] + bias[g]: in place with beta 1 and no bias,
 *     D[g] keeps its values. On a GPU each group of K > 0 begins at a column that is a multiple of
 *     16, so that all sizes but the last are such; where one does not, every group is left alone.
 * K_BLOCKS: the same, but A_g is contiguous [M, sizes[g]], one group behind another, and so is B_g;
 *     a.ld and b.ld have no meaning. Sizes are multiples of 16. Others are refused on the CPU; a
 *     GPU then leaves every group alone, and gives DG_UNSUPPORTED_SHAPE where K, which may cut a
 *     block off, is no multiple of 16.
 * In both, where scales change along K each group begins with a column of scales of its own, so
 * that the arrays may have up to G - 1 more than all of K needs; their col_phase is 0. A size that
 * needs more columns than there are is refused on the CPU; a GPU uses the last ones instead.
 *
 * What is written: the elements of the rows (BY_END, BY_ROW, MASKED) that belong to a group, or all
 * of every group's D (K_...), each once. Padding rows, those that belong to no group, are left as
 * they are; with DG_PADDING_ZERO they become zeros. Nothing else is touched, and what lies in
 * padding rows of A and its scales (NaN, anything) has no influence.
 *
 * The same call gives the same bits on every run. On the CPU a row has those that dg_gemm_run gives
 * it; on a GPU its rounding may depend on the other groups' sizes, unless the context is
 * batch_invariant.
 */
typedef enum dg_grouping {
    DG_GROUPS_BY_END = 0,
    DG_GROUPS_BY_ROW,
    DG_GROUPS_MASKED,
    DG_GROUPS_K_COLUMNS,
    DG_GROUPS_K_BLOCKS
} dg_grouping;

typedef enum dg_padding {
    DG_PADDING_UNTOUCHED = 0,
    DG_PADDING_ZERO /* BY_END, BY_ROW and MASKED only */
} dg_padding;

typedef struct dg_groups {
    size_t struct_bytes;
    dg_grouping grouping;
    int32_t count;        /* G                                                                */
    const int32_t *sizes; /* device memory, read when the work runs                           */
    int32_t alignment;    /* BY_END: 1 or more                                                */
    dg_padding padding;
    /** From one group's to the next one's; needed where the table above says "of a group". */
    int64_t a_stride, b_stride, c_stride, d_stride, bias_stride;
    int64_t scale_a_stride, scale_b_stride, scale_d_stride;
    /**
     * BY_END and BY_ROW, optional: `rows` row numbers each, in device memory. With `gather` the
     * products' row r is row gather[r] of `a` (and of scale_a); M above is `rows`, and `a` may have
     * any number of rows. An entry outside `a` makes r a padding row. With `scatter` its result is
     * row scatter[r] of `d` (and c and scale_d belong to that row); an entry outside `d` leaves it
     * out. No two may be the same. `rows` is 0 or a.rows where there is no gather.
     */
    const int32_t *gather, *scatter;
    int64_t rows;
    /**
     * BY_END, BY_ROW and MASKED: G packed weights of one shape and kind instead of b, scale_b.
     */
    const dg_weights *const *weights;
    /** A typical group's rows, 0 when unknown. It may change the time, on a GPU also rounding. */
    int64_t expected_rows;
} dg_groups;
#define DG_GROUPS_INIT                                                                             \
    {                                                                                              \
        sizeof(dg_groups), DG_GROUPS_BY_END, 0, NULL, 1, DG_PADDING_UNTOUCHED, 0, 0, 0, 0, 0, 0,   \
            0, 0, NULL, NULL, 0, NULL, 0                                                           \
    }

/** Elements from the beginning of one matrix to the next when they lie one after another. */
static inline int64_t dg_matrix_stride(const dg_matrix *matrix)
{
    return matrix->rows * (matrix->rows > 1 ? matrix->ld : matrix->cols);
}
/** The same for scales, row-major or column-major. */
static inline int64_t dg_scale_stride(const dg_scale *scale)
{
    int64_t by_rows = scale->rows * scale->row_stride, by_cols = scale->cols * scale->col_stride;
    return by_rows > by_cols ? by_rows : by_cols;
}

/** `count` groups with strides for operands that lie one after another, as `gemm` describes one. */
static inline dg_groups dg_groups_of(dg_grouping grouping, int32_t count, const int32_t *sizes,
                                     const dg_gemm *gemm)
{
    dg_groups groups = DG_GROUPS_INIT;
    groups.grouping = grouping;
    groups.count = count;
    groups.sizes = sizes;
    groups.a_stride = dg_matrix_stride(&gemm->a);
    groups.b_stride = dg_matrix_stride(&gemm->b);
    groups.c_stride = dg_matrix_stride(&gemm->c);
    groups.d_stride = dg_matrix_stride(&gemm->d);
    groups.bias_stride = dg_matrix_stride(&gemm->bias);
    groups.scale_a_stride = dg_scale_stride(&gemm->scale_a);
    groups.scale_b_stride = dg_scale_stride(&gemm->scale_b);
    groups.scale_d_stride = dg_scale_stride(&gemm->scale_d);
    return groups;
}

/**
 * Enqueues the products of all groups (on the CPU: computes them). gemm->weights and
 * gemm->workspace are NULL: packed weights are given by `groups`, scratch memory is the context's.
 */
DG_API dg_status dg_grouped_run(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                                void *stream);
/**
 * As dg_gemm_prepare(): afterwards a call like this one, or with fewer rows, never allocates and
 * can be captured.
 */
DG_API dg_status dg_grouped_prepare(dg_context *context, const dg_gemm *gemm,
                                    const dg_groups *groups);
/**
 * As dg_gemm_explain(): the kernel that such a call takes, and why not another. Where `sizes` is
 * not NULL it also says how the work would be dealt out if groups.sizes held them: it is host
 * memory, and groups.sizes itself is not read.
 */
DG_API dg_status dg_grouped_explain(dg_context *context, const dg_gemm *gemm,
                                    const dg_groups *groups, const int32_t *sizes, char *text,
                                    size_t *text_bytes);

/**
 * A table of problems, each a dg_gemm with sizes, addresses, strides, alpha, beta, C and bias of
 * its own, that one launch computes. It lies at one place in device memory from create to destroy,
 * and the launch does not depend on what it holds: a captured dg_table_run stays valid while the
 * table changes. One thread at a time may use a table.
 */
typedef struct dg_table dg_table;

/**
 * Makes a table of `problems` empty problems (at most 65536). `largest` is a GEMM
 * without data that says what the problems share: the types of a, b and d, the granularities of
 * their scales, and the accumulation; no problem may be larger than it in M, N or K. All memory is
 * allocated and all kernels are loaded here. Release it with dg_table_destroy(), before the
 * context.
 */
DG_API dg_status dg_table_create(dg_context *context, const dg_gemm *largest, int32_t problems,
                                 dg_table **table);
/** Releases a table; NULL is ignored. Waits for work that uses it. */
DG_API void dg_table_destroy(dg_table *table);

/**
 * Describes problem `index`, with all checks of dg_gemm_run; NULL makes it empty. Nothing is copied
 * to the device yet. No problem's D may overlap what another one reads or writes, which is not
 * checked. gemm->workspace is NULL. On a GPU a, b and their ld are multiples of 16: else
 * dg_table_update() gives DG_MISALIGNED, and a problem whose a or b dg_table_update_device() has
 * moved elsewhere is left alone. There the kernel is chosen for `largest`, phases included: a
 * problem whose scales, by other phases, change where that kernel takes none is
 * DG_UNSUPPORTED_SCALE.
 */
DG_API dg_status dg_table_set(dg_table *table, int32_t index, const dg_gemm *gemm);
/**
 * Brings the device's table up to date with all that was set, in stream order. Cannot be captured:
 * it reads memory of the host.
 */
DG_API dg_status dg_table_update(dg_table *table, void *stream);

/**
 * New values for all problems, each an array of one entry a problem in device memory; NULL leaves
 * that property as it is. A size below 0 counts as 0, one above the table's largest as that.
 * Leading dimensions, strides, types and the rest are as they were set; problems that were never
 * set stay empty. Where weights are packed, N, K, `b` and `scale_b` do not change.
 */
typedef struct dg_table_values {
    size_t struct_bytes;
    const int32_t *m, *n, *k;
    void *const *a, *const *b, *const *c, *const *d, *const *bias;
    void *const *scale_a, *const *scale_b, *const *scale_d;
} dg_table_values;
#define DG_TABLE_VALUES_INIT                                                                       \
    {                                                                                              \
        .struct_bytes = sizeof(dg_table_values)                                                    \
    }

/**
 * Changes the device's table from arrays that are read there, in stream order, with no copy to the
 * host and no wait; can be captured. It has no effect on what dg_table_set described: the next
 * dg_table_update() replaces all.
 */
DG_API dg_status dg_table_update_device(dg_table *table, const dg_table_values *values,
                                        void *stream);

/**
 * Enqueues all problems as the device's table describes them. Exactly the elements of their D are
 * written, as dg_gemm_run does. Runs of one table must not overlap on different streams: on a GPU
 * they share memory for the sums of long products, whose K is divided, unless the context is
 * batch_invariant. Equal sizes give equal bits.
 */
DG_API dg_status dg_table_run(dg_table *table, void *stream);
/** As dg_grouped_explain(), for the problems that dg_table_set() has described. */
DG_API dg_status dg_table_explain(dg_table *table, char *text, size_t *text_bytes);

/* ---- comparison ---------------------------------------------------------------------- */

/**
 * How far a result lies from its reference. The metrics and the sums behind them are double
 * precision and cover the pairs of which both elements are finite; all other pairs are counted.
 * Where a finite reference became NaN or infinite (`spoiled`), the errors are infinity, the SNR is
 * -infinity and the cosine 0; the sums are still those of the finite pairs.
 */
typedef struct dg_comparison {
    size_t struct_bytes;
    double relative_error; /* ||result - reference|| / ||reference||; 0 when both are zero,
                              infinity when only the reference is                            */
    double snr_db;         /* signal-to-noise: -20 log10(relative_error)                      */
    double cosine;         /* of the angle between the two, in [-1, 1]; 1 when both are zero,
                              0 when one is                                                  */
    double max_error;      /* max |result - reference|                                        */
    double mean_error;     /* mean |result - reference|                                       */
    int64_t finite;        /* pairs that the sums cover                                       */
    int64_t reference_nan, reference_inf;
    int64_t result_nan, result_inf;
    int64_t spoiled; /* pairs whose reference is finite and whose result is not              */
    double reference_squares, result_squares, products, error_squares, errors; /* the sums    */
} dg_comparison;
#define DG_COMPARISON_INIT                                                                         \
    {                                                                                              \
        .struct_bytes = sizeof(dg_comparison)                                                      \
    }

/**
 * Adds the pairs of two matrices of the same shape, in host memory, to a comparison and brings
 * its metrics up to date: begin with DG_COMPARISON_INIT and add a tensor whole or in pieces.
 * F32, F16 and BF16 in any mix. The sums follow the order of the elements, so the same pieces
 * give the same bits. Before the first call the metrics have no meaning.
 */
DG_API dg_status dg_compare(const dg_matrix *reference, const dg_matrix *result,
                            dg_comparison *comparison);

/* ---- calibration --------------------------------------------------------------------- */

/** How a scale is chosen from the magnitudes it is for: docs/calibration.md has the formulas. */
typedef enum dg_scale_method {
    DG_METHOD_AMAX = 0, /* the largest magnitude gets the largest code: nothing clips             */
    DG_METHOD_PERCENTILE, /* so many per cent of the magnitudes that are not zero do not clip */
    DG_METHOD_MSE, /* the least mean squared error, rounding and clipping as FP8 codes do    */
    DG_METHOD_KL   /* the least Kullback-Leibler divergence of the codes from the magnitudes */
} dg_scale_method;

typedef struct dg_scale_choice {
    size_t struct_bytes;
    dg_scale_method method;
    double percentile; /* DG_METHOD_PERCENTILE: above 0, up to 100                               */
    dg_dtype code;     /* DG_E4M3 or DG_E5M2                                                     */
    /**
     * Powers of two where it is not DG_SCALE_EXACT. MSE and KL then take the best of them and do
     * not care whether that lies above or below.
     */
    dg_scale_rounding rounding;
} dg_scale_choice;
#define DG_SCALE_CHOICE_INIT                                                                       \
    {                                                                                              \
        .struct_bytes = sizeof(dg_scale_choice), .percentile = 99.99, .code = DG_E4M3              \
    }

/** Where a scale that was chosen from statistics comes from. */
typedef enum dg_scale_origin {
    DG_FROM_LAYER = 0, /* what the layer has met                                                  */
    DG_FROM_SIBLINGS,  /* an expert that saw no token: what the other experts of its kind and block
                          have met, all together                                                  */
    DG_FROM_NOTHING    /* nobody has met anything: the scale is 1                                 */
} dg_scale_origin;

/** What scales do to values. The rates are shares of `elements`. */
typedef struct dg_scale_quality {
    size_t struct_bytes;
    double elements;       /* finite ones; the sum of their weights where there are weights       */
    double clipped;        /* beyond the largest code by more than its rounding reaches           */
    double underflow;      /* not zero, and become zero                                           */
    double relative_error; /* sqrt(sum (x - x')^2 / sum x^2)                                      */
    dg_scale_origin origin;
} dg_scale_quality;
#define DG_SCALE_QUALITY_INIT                                                                      \
    {                                                                                              \
        .struct_bytes = sizeof(dg_scale_quality)                                                   \
    }

/**
 * Chooses the scales of a matrix that is at hand (a weight) and writes them to `scale`, which may
 * have any granularity, phase and strides. All are positive and finite; a block without a finite
 * non-zero element gets 1. dg_quantize_run() with DG_SCALE_GIVEN applies them.
 *
 * `column_weights`, optional, has a weight >= 0 for each column: with the mean squares of the
 * activations that meet the column (dg_observed.squares), DG_METHOD_MSE makes the error of the
 * product least and not that of the weight. The amax of a block does not depend on them.
 *
 * DG_METHOD_MSE is never worse than DG_METHOD_AMAX in any block. The same data give the same scales
 * on any number of threads. `context` is a CPU context; `choice` NULL is DG_SCALE_CHOICE_INIT;
 * `quality` may be NULL.
 */
DG_API dg_status dg_scale_choose(dg_context *context, const dg_matrix *matrix,
                                 const dg_scale_choice *choice, const double *column_weights,
                                 const dg_scale *scale, dg_scale_quality *quality);

/**
 * Statistics of the activations that layers have met: for each layer, by name, the exact absmax and
 * the sum of squares of each feature, histograms of magnitudes for each `block_cols` features, and
 * counts. Batches may come in any number and order. One thread at a time may use it.
 */
typedef struct dg_statistics dg_statistics;

typedef struct dg_statistics_options {
    size_t struct_bytes;
    /**
     * Features that share a histogram: the finest scales that can be chosen later. 1 is per
     * channel; 0 has one histogram for a layer. A histogram takes 256 * 2^bits bytes.
     */
    int32_t block_cols;
    /** Mantissa bits of the histograms' bins, 4 to 7. With 7 nothing is lost of BF16 data. */
    int32_t bits;
} dg_statistics_options;
#define DG_STATISTICS_OPTIONS_INIT                                                                 \
    {                                                                                              \
        .struct_bytes = sizeof(dg_statistics_options), .block_cols = 128, .bits = 5                \
    }

/** `options` may be NULL. Release with dg_statistics_destroy(). */
DG_API dg_status dg_statistics_create(dg_statistics **statistics,
                                      const dg_statistics_options *options);
/** NULL is ignored. */
DG_API void dg_statistics_destroy(dg_statistics *statistics);

/**
 * Adds a batch of a layer's activations, [tokens, features] in F32, F16 or BF16. A layer's first
 * batch fixes its number of features. A batch of no rows makes the layer known: one that then never
 * meets a token is listed and gets the scale of its siblings. NaN and infinities are counted and
 * have no other influence. `context` is a CPU context, whose threads do the work.
 */
DG_API dg_status dg_statistics_observe(dg_context *context, dg_statistics *statistics,
                                       const char *layer, const dg_matrix *x);

/**
 * Adds what `other` has met, which must have the same options and where a layer is in both the same
 * number of features. Whoever splits the data and merges gets what one run over all of it gives:
 * the same but for the rounding of the sums of squares.
 */
DG_API dg_status dg_statistics_merge(dg_statistics *statistics, const dg_statistics *other);

/**
 * Writes or reads a file of statistics (safetensors; docs/calibration.md has the format). A file
 * that is there is replaced, in one step. Reading checks everything: DG_BAD_FILE says what is
 * wrong.
 */
DG_API dg_status dg_statistics_save(const dg_statistics *statistics, const char *path);
DG_API dg_status dg_statistics_load(dg_statistics **statistics, const char *path);

/** What is known of a layer. The pointers live until the statistics change or are destroyed. */
typedef struct dg_observed {
    size_t struct_bytes;
    const char *layer;
    int64_t features;
    int64_t tokens, batches;
    int64_t non_finite;    /* elements that were NaN or infinite                                */
    float amax;            /* of all finite elements; 0 where there are none                    */
    const float *amaxes;   /* [features]                                                        */
    const double *squares; /* [features], the sum over all tokens of x^2                        */
} dg_observed;
#define DG_OBSERVED_INIT                                                                           \
    {                                                                                              \
        .struct_bytes = sizeof(dg_observed)                                                        \
    }

/** Layer `index` (0, 1, ...) in the order of the names; DG_NOT_FOUND after the last. */
DG_API dg_status dg_statistics_layer_at(const dg_statistics *statistics, int64_t index,
                                        dg_observed *observed);
/** The layer of that name, or DG_NOT_FOUND. */
DG_API dg_status dg_statistics_layer(const dg_statistics *statistics, const char *layer,
                                     dg_observed *observed);
/** The options that the statistics were made with. */
DG_API dg_status dg_statistics_get_options(const dg_statistics *statistics,
                                           dg_statistics_options *options);

/**
 * Chooses static scales for a layer's activations and writes them to `scale`: block_rows 0, and
 * block_cols 0 or a multiple of the statistics' block_cols, phases 0. All are positive and finite.
 * A layer that has met no token gets what quality->origin says (docs/calibration.md); to refuse
 * that is the caller's choice. `choice` and `quality` may be NULL.
 */
DG_API dg_status dg_statistics_choose(const dg_statistics *statistics, const char *layer,
                                      const dg_scale_choice *choice, const dg_scale *scale,
                                      dg_scale_quality *quality);

/**
 * What given scales of that kind would do to the values that a layer has met: with statistics of
 * data that the scales were not chosen from, the clip rate on held-out data. `code` is DG_E4M3 or
 * DG_E5M2.
 */
DG_API dg_status dg_statistics_judge(const dg_statistics *statistics, const char *layer,
                                     const dg_scale *scale, dg_dtype code,
                                     dg_scale_quality *quality);

/** One of the values of a layer's histogram, all of its blocks together. */
typedef struct dg_bin {
    float magnitude; /* that the bin stands for */
    double count;
} dg_bin;

/**
 * Copies the occupied bins of a layer's histogram, by ascending magnitude, to `bins`, which holds
 * *count of them; *count becomes the number there are. `bins` may be NULL to ask for it. The bins
 * cover 32 octaves below the largest magnitude; what is smaller, or zero, is in none.
 */
DG_API dg_status dg_statistics_histogram(const dg_statistics *statistics, const char *layer,
                                         dg_bin *bins, int64_t *count);

/** What was chosen for a layer. The strings live until the callback returns. */
typedef struct dg_layer_scales {
    const char *layer;
    int64_t rows, cols;      /* of its weight                                                  */
    float input_scale;       /* 0: the statistics do not know the layer, or there are none     */
    dg_scale_quality input;  /* on the data that the statistics have met                       */
    dg_scale_quality weight; /* with weigh_columns: each element with its column's weight      */
    int64_t done, total;     /* elements: this layer and those before it, all layers           */
} dg_layer_scales;

/** Options of dg_scales_write(). */
typedef struct dg_scales_options {
    size_t struct_bytes;
    const dg_statistics *statistics; /* NULL: no scales of inputs                              */
    dg_scale_choice inputs, weights;
    int32_t block_rows, block_cols; /* of the weights' scales, as in dg_scale                 */
    bool weigh_columns; /* weights by what their columns meet: dg_observed.squares. Needs
                           statistics                                                           */
    bool strict;        /* fail when a layer has met no token                                   */
    const char *const *keep; /* layers to leave out, as for dg_checkpoint_quantize()            */
    int32_t keep_count;
    /** Optional: called once per layer when it is done. Returns false to stop: DG_CANCELLED. */
    bool (*report)(void *user, const dg_layer_scales *layer);
    void *user;
} dg_scales_options;
#define DG_SCALES_OPTIONS_INIT                                                                     \
    {                                                                                              \
        .struct_bytes = sizeof(dg_scales_options), .inputs = DG_SCALE_CHOICE_INIT,                 \
        .weights = DG_SCALE_CHOICE_INIT, .block_rows = 128, .block_cols = 128                      \
    }

/**
 * Chooses scales for the linear layers of a 16-bit checkpoint and writes them to the safetensors
 * file `output`, in F32: "<layer>.weight_scale" [N / block_rows, K / block_cols], rounded up, and,
 * for layers that the statistics know, "<layer>.input_scale" [1]. The layers are those that
 * dg_checkpoint_quantize() would quantise. A file that is there is replaced, in one step. `context`
 * is a CPU context; `options` may be NULL.
 */
DG_API dg_status dg_scales_write(dg_context *context, const char *checkpoint, const char *output,
                                 const dg_scales_options *options);

/* ---- smoothing ----------------------------------------------------------------------- */

/**
 * Linear layers that meet the same activations, and how they will be quantised. Smoothing divides
 * each feature of the activations by a factor and multiplies the weights' column by it, so that
 * outliers of the activations move to the weights; the product stays what it was. Factors are
 * powers of two: dividing and multiplying by them rounds nothing.
 */
typedef struct dg_smooth {
    size_t struct_bytes;
    dg_matrix x;              /* a sample of the activations, [tokens, K]: F32, F16 or BF16       */
    const dg_matrix *weights; /* [N, K] each: F32, F16 or BF16                                    */
    int32_t weight_count;
    const float *amaxes; /* [K] of the activations (dg_observed.amaxes); NULL: those of x         */
    /**
     * [K], 0 to K - 1: the channel that makes a feature, where what comes before can only scale
     * whole channels (several query heads share a value head). Features of one channel get one
     * factor. NULL: each its own.
     */
    const int32_t *channels;
    int32_t x_block_rows, x_block_cols; /* of the scales that x will have, as in dg_scale */
    int32_t weight_block_rows, weight_block_cols; /* and the weights */
} dg_smooth;
#define DG_SMOOTH_INIT                                                                             \
    {                                                                                              \
        .struct_bytes = sizeof(dg_smooth)                                                          \
    }

typedef struct dg_smooth_report {
    size_t struct_bytes;
    double strength;                  /* 0 to 1; -1: nothing helped, all factors are 1       */
    double error_before, error_after; /* of the products of the sample, |y - y'| / |y|        */
} dg_smooth_report;
#define DG_SMOOTH_REPORT_INIT                                                                      \
    {                                                                                              \
        .struct_bytes = sizeof(dg_smooth_report)                                                   \
    }

/**
 * Chooses factors[K]: for strengths 0, 0.1, ... 1 the power of two nearest to
 * amax(x_j)^strength / amax(w_j)^(1 - strength), scaled as a whole to lie around 1; quantises the
 * sample and the weights with each, multiplies, and keeps the one with the least error of the
 * products, or factors of 1 where none is better. A feature that is zero in x or in all weights
 * gets 1. `context` is a CPU context.
 */
DG_API dg_status dg_smooth_choose(dg_context *context, const dg_smooth *smooth, float *factors,
                                  dg_smooth_report *report);

/* ---- mixed precision ----------------------------------------------------------------- */

/** What keeping a layer in one of several precisions costs, or, summed, a model. */
typedef struct dg_precision {
    double bytes; /* stored; infinite for a precision that the layer cannot have */
    double error; /* in any measure that adds up over layers, e.g. squared errors or nats */
} dg_precision;

typedef enum dg_budget {
    DG_BUDGET_BYTES = 0, /* at most so many bytes, and the least error  */
    DG_BUDGET_ERROR      /* at most so much error, and the least bytes  */
} dg_budget;

/**
 * Chooses a precision for each layer. `precisions` is [layers, count]; chosen[layer] becomes an
 * index from 0 to count - 1, and `total`, which may be NULL, the sums over the choice.
 *
 * A layer only gets precisions on the lower convex hull of its (bytes, error); bytes are spent
 * where they save the most error each. With a budget of bytes the error is above the least possible
 * by at most what the first step that did not fit would have saved: where every step fitted until
 * the budget was spent it is the least. A budget that no choice meets is DG_INVALID_ARGUMENT, and
 * the message says what is possible.
 */
DG_API dg_status dg_precision_choose(const dg_precision *precisions, int64_t layers, int32_t count,
                                     dg_budget budget, double limit, int32_t *chosen,
                                     dg_precision *total);

/* ---- checkpoints --------------------------------------------------------------------- */

/**
 * A model's tensors on disk: one safetensors file, or several (shards) with their index. It is
 * read-only and may be used by many threads at once.
 */
typedef struct dg_checkpoint dg_checkpoint;

/**
 * A tensor of a checkpoint. Everything it points at belongs to the checkpoint and lives until
 * dg_checkpoint_close().
 */
typedef struct dg_tensor {
    const char *name;
    const char *stored_type; /* as the file spells it: "BF16", "F8_E4M3", "I64"            */
    dg_dtype dtype;          /* DG_NONE where the library computes with no such type       */
    int32_t rank;            /* 0 for a scalar                                             */
    const int64_t *shape;    /* `rank` sizes; the last one is contiguous                   */
    int64_t elements;
    const void *data; /* little-endian, mapped from the file, at any alignment; the file
                         must not be shortened while the checkpoint is open               */
    size_t bytes;
    const char *file; /* the name of the file that holds it, without its folder            */
} dg_tensor;

/**
 * Opens `path`: a .safetensors file, an index (....safetensors.index.json), or a folder that
 * holds one of the two. Every header is checked before the call returns: what the checkpoint
 * lists can be read. Shards or tensors that the index names and that are not there give
 * DG_NOT_FOUND, and the message lists them; a malformed file gives DG_BAD_FILE. Tensors of a
 * type that nobody knows do no harm until they are asked for. Release with dg_checkpoint_close().
 */
DG_API dg_status dg_checkpoint_open(dg_checkpoint **checkpoint, const char *path);
/** Releases a checkpoint and everything its tensors point at; NULL is ignored. */
DG_API void dg_checkpoint_close(dg_checkpoint *checkpoint);

/** Tensor `index` (0, 1, ...) in the order of the files; DG_NOT_FOUND after the last. */
DG_API dg_status dg_checkpoint_tensor_at(const dg_checkpoint *checkpoint, int64_t index,
                                         dg_tensor *tensor);
/** The tensor of that name, or DG_NOT_FOUND. */
DG_API dg_status dg_checkpoint_find(const dg_checkpoint *checkpoint, const char *name,
                                    dg_tensor *tensor);

/**
 * Copies the tensor of that name to `buffer`, which holds buffer_bytes. As `dtype` (saturating),
 * or, with DG_NONE, as the bytes are stored. A stored type that cannot be converted gives
 * DG_UNSUPPORTED_TYPE. The mapped pages are dropped from this process's memory afterwards.
 */
DG_API dg_status dg_checkpoint_read(const dg_checkpoint *checkpoint, const char *name,
                                    dg_dtype dtype, void *buffer, size_t buffer_bytes);

/** A weight matrix and the scales that belong to it. */
typedef struct dg_stored_weight {
    dg_tensor weight; /* [N, K], in F32, F16, BF16, E4M3 or E5M2                               */
    dg_tensor scale;  /* F32, F16, BF16 or UE8M0; `name` is NULL where the weight has none     */
    int32_t block_rows, block_cols; /* what one scale covers, as in dg_scale                   */
} dg_stored_weight;

/**
 * Finds the weight `name` ("....weight") and its scales, by any of the names in use:
 * `name`_scale_inv, `name`_scale, and "....scale". All of them are multipliers, whatever the name
 * says. The granularity follows from the scale's shape and the block size in config.json
 * (quantization_config; 128 x 128 where it says nothing), and is checked against the weight.
 *
 * An FP8 weight without scales is DG_BAD_FILE unless `unscaled_is_one`. "lm_head.weight" in a
 * checkpoint without one is the embedding that it is tied to. The scales as F32:
 *
 *     dg_convert(w.scale.data, w.scale.dtype, scales, DG_F32, w.scale.elements, DG_SATURATE);
 *     dg_scale_of(scales, DG_F32, w.weight.shape[0], w.weight.shape[1],
 *                 w.block_rows, w.block_cols);
 */
DG_API dg_status dg_checkpoint_weight(const dg_checkpoint *checkpoint, const char *name,
                                      bool unscaled_is_one, dg_stored_weight *weight);

/**
 * The same for one expert's matrix of a fused weight [experts, N, K] ("....experts.gate_up_proj",
 * "....experts.down_proj"): the tensors of the result are views, of two dimensions.
 */
DG_API dg_status dg_checkpoint_expert(const dg_checkpoint *checkpoint, const char *name,
                                      int64_t expert, bool unscaled_is_one,
                                      dg_stored_weight *weight);

/** What a scale in a checkpoint belongs to. */
typedef enum dg_scale_role {
    DG_SCALE_OF_WEIGHT = 0,
    DG_SCALE_OF_INPUT,  /* of a layer's activations: "input_scale", "activation_scale" */
    DG_SCALE_OF_KEYS,   /* of the key cache: "k_scale"                                 */
    DG_SCALE_OF_VALUES, /* of the value cache: "v_scale"                               */
    DG_SCALE_OF_NOTHING /* named like a scale, but nothing there takes it              */
} dg_scale_role;

typedef enum dg_scale_state {
    DG_SCALE_LOADED = 0, /* it is there, fits, and its values are finite and positive            */
    DG_SCALE_DEFAULTED,  /* it is not there, and 1 is right: caches of keys and values           */
    DG_SCALE_UNUSED,     /* it is there, and nothing takes it                                    */
    DG_SCALE_MISSING,    /* codes without a scale, or static activations (config.json) without   */
    DG_SCALE_WRONG       /* it is there and cannot be used: shape, type, or a value              */
} dg_scale_state;

/** A scale, or its absence. The strings live until the callback returns. */
typedef struct dg_scale_record {
    dg_scale_role role;
    dg_scale_state state;
    const char *layer;              /* the module: "model.layers.0.mlp.up_proj"                 */
    dg_tensor scale;                /* `name` is NULL where there is none                       */
    int32_t block_rows, block_cols; /* of weights' scales, as in dg_scale                       */
    float smallest, largest;        /* values, where it is loaded                               */
    const char *problem;            /* a sentence for missing and wrong ones, or NULL           */
} dg_scale_record;

/**
 * Accounts for every scale of a checkpoint: calls `report` once for each that is there or should
 * be. All values are read. Returns DG_CANCELLED when `report` returns
 * false. A wrong scale is a record, not a failure of this call.
 */
DG_API dg_status dg_checkpoint_scales(const dg_checkpoint *checkpoint,
                                      bool (*report)(void *user, const dg_scale_record *scale),
                                      void *user);

/**
 * The layouts of FP8 checkpoints that servers load; docs/checkpoints.md has their tensors and
 * config.json. Codes are E4M3, scales multipliers. The comments give quant_method, what a scale
 * covers, and its name and type.
 */
typedef enum dg_checkpoint_format {
    DG_CHECKPOINT_BLOCK = 0,        /* "block": fp8, 128 x 128, weight_scale_inv, F32            */
    DG_CHECKPOINT_CHANNEL,          /* "channel": compressed-tensors, a row, weight_scale, F32   */
    DG_CHECKPOINT_BLOCK_POW2,       /* "block-pow2": as "block", with powers of two              */
    DG_CHECKPOINT_BLOCK_UE8M0,      /* "block-ue8m0": fp8, 128 x 128, scale, F8_E8M0             */
    DG_CHECKPOINT_TENSOR,           /* "tensor": fp8, the tensor, weight_scale, F32              */
    DG_CHECKPOINT_CT_TENSOR,        /* "ct-tensor": compressed-tensors, the tensor               */
    DG_CHECKPOINT_CT_BLOCK,         /* "ct-block": compressed-tensors, 128 x 128                 */
    DG_CHECKPOINT_CT_MXFP8,         /* "ct-mxfp8": compressed-tensors, 1 x 32, U8 exponents      */
    DG_CHECKPOINT_MODELOPT,         /* "modelopt": the tensor, static activations                */
    DG_CHECKPOINT_MODELOPT_CHANNEL, /* "modelopt-channel": modelopt, a row                       */
    DG_CHECKPOINT_MODELOPT_BLOCK,   /* "modelopt-block": modelopt, 128 x 128                     */
    DG_CHECKPOINT_MODELOPT_MXFP8,   /* "modelopt-mxfp8": modelopt, 1 x 32, U8 exponents          */
    DG_CHECKPOINT_BF16,             /* "bf16": not FP8; only dg_checkpoint_convert() writes it   */
    DG_CHECKPOINT_FORMATS           /* how many there are                                        */
} dg_checkpoint_format;

/** "block" and so on, as in the comments above; NULL for a value out of range. */
DG_API const char *dg_checkpoint_format_name(dg_checkpoint_format format);

/** Whether layers that a server multiplies as one are one weight in the output, or several. */
typedef enum dg_checkpoint_fusion {
    DG_FUSION_AS_IT_IS = 0,
    DG_FUSION_SPLIT, /* qkv_proj becomes q_proj, k_proj, v_proj; gate_up_proj becomes gate_proj and
                        up_proj; experts.gate_up_proj and .down_proj become a layer per expert    */
    DG_FUSION_FUSED  /* the inverse for qkv_proj and gate_up_proj; q_a_proj and
                        kv_a_proj_with_mqa become fused_qkv_a_proj_with_mqa                       */
} dg_checkpoint_fusion;

/** What became of a tensor. */
typedef enum dg_tensor_action {
    DG_TENSOR_KEPT = 0,    /* copied                                                             */
    DG_TENSOR_QUANTIZED,   /* 16 bits became FP8                                                 */
    DG_TENSOR_REPACKED,    /* FP8 codes as they were, scales in the new layout: no value changed */
    DG_TENSOR_REQUANTIZED, /* FP8 codes and scales are new: relative_error says what it cost     */
    DG_TENSOR_WIDENED      /* FP8 became 16 bits                                                 */
} dg_tensor_action;

/** What became of a tensor. The strings live until the callback returns. */
typedef struct dg_tensor_report {
    const char *name;
    const char *kept_because; /* NULL: it was not kept as it was                                */
    const char *stored_type;  /* before                                                         */
    int32_t rank;
    const int64_t *shape;
    size_t bytes_before, bytes_after; /* with its scales                                        */
    double relative_error; /* |w - w'| / |w|, 0 where it was kept; of the worst part (gate, up, or
                              an expert's) where several layers are one tensor                  */
    dg_quantize_counts counts;
    int64_t done, total; /* elements: this tensor and those before it, all of the checkpoint    */
    dg_tensor_action action;
    bool resumed; /* an earlier run had done it                                                 */
    double part_ratio; /* where parts of a fused weight share one scale: the largest value of the
                          largest part over that of the smallest; otherwise 0                   */
} dg_tensor_report;

/** Options of dg_checkpoint_quantize() and dg_checkpoint_convert(). */
typedef struct dg_checkpoint_options {
    size_t struct_bytes;
    dg_checkpoint_format format;
    /**
     * Layers to keep as they are, beside those kept by default. A plain pattern matches a tensor
     * whose name has it between dots: "mlp.gate" matches "model.layers.0.mlp.gate.weight" and not
     * "model.layers.0.mlp.gate_proj.weight". A pattern that begins with "re:" is a POSIX extended
     * regular expression; it matches a layer (the tensor's name without ".weight") whose name it
     * describes from the first character on, as Python's re.match does. Of no effect when
     * converting.
     */
    const char *const *keep;
    int32_t keep_count;
    int64_t *keep_matches; /* optional, keep_count entries: how many tensors each one matches     */
    bool replace; /* an `output` that is a checkpoint already is replaced, in one step            */
    /** Optional: called once per tensor when it is done. Returns false to stop: DG_CANCELLED. */
    bool (*report)(void *user, const dg_tensor_report *tensor);
    void *user;
    /**
     * Optional: a safetensors file with scales from calibration, F32. "<layer>.input_scale" (one
     * number) becomes the static scale of the layer's activations in formats that have one;
     * "<layer>.weight_scale" is used for the layer's weight in place of one from its largest value,
     * and has the shape that the format's granularity needs; "....k_scale" and "....v_scale" are
     * added to the checkpoint. Scales of layers that stay in 16 bits are left out.
     */
    const char *scales;
    dg_checkpoint_fusion fusion;
    bool strict; /* converting fails unless every scale of the input is loaded            */
    bool unscaled_is_one; /* converting takes 1 for the scale of FP8 codes without one            */
} dg_checkpoint_options;
#define DG_CHECKPOINT_OPTIONS_INIT                                                                 \
    {                                                                                              \
        .struct_bytes = sizeof(dg_checkpoint_options)                                              \
    }

/**
 * Quantises the checkpoint `input` (as for dg_checkpoint_open) into the folder `output`.
 *
 * Quantised are the weights of linear layers: two-dimensional F32, F16 or BF16 tensors named
 * "....weight", and the fused weights of experts. Kept by default: everything else, and layers
 * named like an embedding, a norm, an output head or a router (docs/checkpoints.md has the list).
 * One input file gives one file, shards give shards of the same names with their index; config.json
 * gets the field quantization_config. When `input` is a folder, its other files (the tokenizer's
 * and so on) are copied along. An input that is quantised already is refused.
 *
 * `output` must not exist or be empty, unless options->replace. It appears in one step when
 * everything is on disk: a run that is killed or meets a full disk leaves none (with `replace`:
 * the old one). A run that is killed or cancelled leaves a folder named ".<output>.deepgemm-..."
 * beside it; the same call on the same files goes on from there, any other call for the same
 * output removes it. Tensors stream through: memory in use stays below a few hundred megabytes,
 * whatever the size of the model.
 *
 * `context` is a CPU context; its threads do the work. `options` may be NULL.
 */
DG_API dg_status dg_checkpoint_quantize(dg_context *context, const char *input, const char *output,
                                        const dg_checkpoint_options *options);

/**
 * Converts the FP8 checkpoint `input` into another format, otherwise as dg_checkpoint_quantize():
 * every FP8 weight is written in options->format, all other tensors are copied.
 *
 * Codes are kept as they are, and no value changes, wherever the new layout can express the old
 * scales: where all scales inside each of its blocks are equal, and powers of two if it stores
 * exponents. Otherwise the blocks in which that is not so get new scales and codes (in FP32, not by
 * way of 16 bits), and the weight's report says REQUANTIZED and the error. Input scales go along
 * to formats that have them and are dropped for those whose activations are scaled dynamically.
 *
 * An input scale, a key or a value scale that is not one finite positive number is DG_BAD_FILE.
 */
DG_API dg_status dg_checkpoint_convert(dg_context *context, const char *input, const char *output,
                                       const dg_checkpoint_options *options);

/** Factors for a tensor of a checkpoint: its element (r, c) becomes itself * rows[r] * cols[c]. */
typedef struct dg_rescale {
    const char *tensor;
    const float *rows; /* [shape[0]]; NULL: 1                        */
    const float *cols; /* [shape[1]]; NULL: 1, and for a vector      */
} dg_rescale;

/**
 * Writes the 16-bit checkpoint `input` to the folder `output` with some of its tensors, F32, F16 or
 * BF16 vectors and matrices, multiplied by factors; everything else is copied. For folding what
 * dg_smooth_choose() finds into a model: 1 / factor into the rows that make a feature (the norm's,
 * the layer's before), the factor into the columns that take it. *rounded, which may be NULL,
 * becomes the number of elements whose products are not exact in the tensor's type: 0 for powers of
 * two, unless a value leaves the type's range. `output` appears as that of dg_checkpoint_quantize()
 * does; `replace` as there.
 */
DG_API dg_status dg_checkpoint_rescale(dg_context *context, const char *input, const char *output,
                                       const dg_rescale *rescales, int64_t count, bool replace,
                                       int64_t *rounded);

#ifdef __cplusplus
}
#endif

#endif /* DEEPGEMM_H */
