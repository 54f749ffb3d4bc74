/* SPDX-License-Identifier: MIT */
/*
 * Quantise and dequantise on the GPU, host side: which of the kernels in device/quantize.cu and
 * device/dequantize.cu does the work, and how it is cut.
 */
#include "cuda/context.h"

#include "core/ceil_div.h"
#include "core/formats.h"

_Static_assert((int)DGI_ROUND_UP == (int)DG_SCALE_POW2_UP, "device code numbers the modes alike");
_Static_assert(sizeof(dgi_device_counts) == sizeof(dg_quantize_counts), "the same struct");

/* Device code counts rows and columns in 32 bits. */
static dg_status check_size(const dg_matrix *matrix)
{
    if (matrix->rows > INT32_MAX / 2 || matrix->cols > INT32_MAX / 2)
        return dgi_fail(DG_UNSUPPORTED_SHAPE, "input is %lld x %lld: up to %d each are supported",
                        (long long)matrix->rows, (long long)matrix->cols, INT32_MAX / 2);
    return DG_OK;
}

/* ---- pieces -------------------------------------------------------------------------- */

static int64_t block_size(int32_t block, int64_t size)
{
    return block == 0 || block > size ? size : block;
}

/* Whether each row begins at a multiple of 16 bytes. */
static bool rows_are_aligned(const dg_matrix *matrix)
{
    const size_t pitch = (size_t)matrix->ld * dg_dtype_bytes(matrix->dtype);
    return (uintptr_t)matrix->data % 16 == 0 && (matrix->rows <= 1 || pitch % 16 == 0);
}

/* Whether no scale changes inside one of the pieces of so many columns, and pieces can be counted.
 */
static bool falls_into_pieces(const dg_matrix *input, const dg_matrix *output,
                              const dg_scale *scale, int32_t piece)
{
    const bool one_block = scale->cols <= 1;
    return rows_are_aligned(input) && rows_are_aligned(output) &&
           (one_block || (scale->block_cols % piece == 0 && scale->col_phase % piece == 0)) &&
           input->rows * dgi_ceil_div(input->cols, piece) < INT32_MAX;
}

/* ---- quantise ------------------------------------------------------------------------ */

static dgi_small_kernel encode_kernel(const dgi_quantize_args *args)
{
    return args->input_dtype == DG_F32 ? DGI_SMALL_quantize_encode_32
                                       : DGI_SMALL_quantize_encode_16;
}

/* One thread for each piece of the matrix. */
static dg_status launch_pieces(dgi_cuda *cuda, dgi_small_kernel kernel, void *args, int64_t rows,
                               int64_t cols, int32_t piece, CUstream stream)
{
    return dgi_cuda_launch_blocks(cuda, kernel, args,
                                  dgi_ceil_div(rows * dgi_ceil_div(cols, piece), DGI_SMALL_THREADS),
                                  DGI_SMALL_THREADS, stream);
}

enum { MOST_HELD = 4 * DGI_QUANTIZE_THREADS }; /* pieces of a block that registers hold */

/*
 * Such blocks are read once. A thread holds as few pieces as the largest group allows, but up to
 * four when that keeps the group inside a warp.
 */
static dg_status quantize_blocks(dgi_cuda *cuda, dgi_quantize_args *args, int64_t pieces,
                                 CUstream stream)
{
#define WAY(pieces, held, group)                                                                   \
    {                                                                                              \
        pieces, held, group, DGI_SMALL_quantize_block_16_##held,                                   \
            DGI_SMALL_quantize_block_32_##held                                                     \
    }
    static const struct {
        int32_t pieces, held, group;
        dgi_small_kernel narrow, wide;
    } ways[] = {WAY(32, 1, 32),   WAY(64, 2, 32),    WAY(128, 4, 32),       WAY(256, 1, 256),
                WAY(512, 2, 256), WAY(1024, 4, 256), WAY(MOST_HELD, 4, 512)};
#undef WAY
    int way = 0;
    while (ways[way].pieces < pieces)
        way++;
    args->group = ways[way].group;
    while (args->group > 1 && args->group / 2 * ways[way].held >= pieces)
        args->group /= 2;
    const int32_t threads = args->group > DGI_SMALL_THREADS ? args->group : DGI_SMALL_THREADS;
    return dgi_cuda_launch_blocks(
        cuda, args->input_dtype == DG_F32 ? ways[way].wide : ways[way].narrow, args,
        dgi_ceil_div(args->scale_rows * args->scale_cols, threads / args->group), threads, stream);
}

/* Larger blocks: the largest magnitudes, in scratch memory, and then the codes. */
static dg_status quantize_large(dgi_cuda *cuda, dgi_quantize_args *args, int64_t pieces,
                                CUstream stream)
{
    const int64_t blocks = args->scale_rows * args->scale_cols;
    const size_t bytes = (size_t)blocks * sizeof *args->amax;
    void *amax;
    args->parts = (uint32_t)dgi_ceil_div(pieces, DGI_QUANTIZE_PART);
    DGI_TRY(dgi_cuda_scratch_take(cuda, bytes, stream, &amax));
    args->amax = amax;
    dg_status status = dgi_driver_check(
        &cuda->driver, cuda->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)amax, 0, bytes, stream),
        "clearing scratch memory");
    if (status == DG_OK)
        status = dgi_cuda_launch_blocks(cuda,
                                        args->input_dtype == DG_F32 ? DGI_SMALL_quantize_amax_32
                                                                    : DGI_SMALL_quantize_amax_16,
                                        args, blocks * args->parts, DGI_SMALL_THREADS, stream);
    if (status == DG_OK)
        status = launch_pieces(cuda, encode_kernel(args), args, args->rows, args->cols,
                               DGI_QUANTIZE_PIECE, stream);
    return dgi_cuda_scratch_give(cuda, amax, stream, status);
}

/* What does not fall into pieces. */
static dg_status quantize_any(dgi_cuda *cuda, dgi_quantize_args *args, int64_t width,
                              int64_t height, CUstream stream)
{
    args->group = width * height <= 4096 ? 32 : DGI_SMALL_THREADS;
    args->lanes_x = 1;
    while (args->lanes_x < args->group && args->lanes_x < width)
        args->lanes_x *= 2;
    return dgi_cuda_launch_small(cuda, DGI_SMALL_quantize, args,
                                 args->scale_rows * args->scale_cols * args->group, stream);
}

/* Memory of the host or of another device would fault in the kernel. */
static dg_status check_pointers(dgi_cuda *cuda, const dg_matrix *input, const dg_matrix *output,
                                const dg_scale *scale)
{
    const bool elements = input->rows * input->cols > 0, scales = scale->rows * scale->cols > 0;
    const dgi_cuda_operand operands[] = {
        {input->data, input->dtype, elements, "input"},
        {output->data, output->dtype, elements, "output"},
        {scale->data, scale->dtype, scales, "scale"},
    };
    return dgi_cuda_check_operands(cuda, operands, sizeof operands / sizeof operands[0]);
}

static dg_status run_quantize(dgi_cuda *cuda, const dg_quantize *q, CUstream stream)
{
    const int64_t width = block_size(q->scale.block_cols, q->input.cols);
    const int64_t height = block_size(q->scale.block_rows, q->input.rows);
    dgi_quantize_args args = {
        .input = q->input.data,
        .output = q->output.data,
        .rows = q->input.rows,
        .cols = q->input.cols,
        .input_ld = q->input.ld,
        .output_ld = q->output.ld,
        .input_dtype = q->input.dtype,
        .output_dtype = q->output.dtype,
        .scale = dgi_device_scale_of(&q->scale, 1),
        .scale_rows = q->scale.rows,
        .scale_cols = q->scale.cols,
        .dynamic = q->source == DG_SCALE_DYNAMIC,
        .saturate = q->overflow == DG_SATURATE,
        .rounding = q->rounding,
        .amax_floor = q->amax_floor,
        .largest = dgi_fp8_max(q->output.dtype),
        .counts = (dgi_device_counts *)q->counts,
        .pieces_x = (uint32_t)dgi_ceil_div(width > 0 ? width : 1, DGI_QUANTIZE_PIECE),
    };
    DGI_TRY(check_pointers(cuda, &q->input, &q->output, &q->scale));
    if (q->counts != NULL) {
        if ((uintptr_t)q->counts % _Alignof(dg_quantize_counts) != 0)
            return dgi_fail(DG_MISALIGNED, "counts is at %p: its numbers are 8-byte aligned",
                            (void *)q->counts);
        DGI_TRY(dgi_cuda_check_pointer(cuda, q->counts, "counts"));
        DGI_TRY(dgi_driver_check(&cuda->driver,
                                 cuda->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)q->counts, 0,
                                                              sizeof *q->counts, stream),
                                 "clearing the counts"));
    }
    if (!falls_into_pieces(&q->input, &q->output, &q->scale, DGI_QUANTIZE_PIECE))
        return quantize_any(cuda, &args, width, height, stream);
    if (!args.dynamic)
        return launch_pieces(cuda, encode_kernel(&args), &args, args.rows, args.cols,
                             DGI_QUANTIZE_PIECE, stream);
    const int64_t pieces = height * args.pieces_x;
    return pieces <= MOST_HELD ? quantize_blocks(cuda, &args, pieces, stream)
                               : quantize_large(cuda, &args, pieces, stream);
}

dg_status dgi_cuda_quantize(dg_context *context, const dg_quantize *quantize, void *stream)
{
    dgi_cuda *cuda = context->state;
    DGI_TRY(check_size(&quantize->input));
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, run_quantize(cuda, quantize, stream));
}

/* ---- dequantise ---------------------------------------------------------------------- */

static dg_status run_dequantize(dgi_cuda *cuda, const dg_dequantize *q, CUstream stream)
{
    dgi_dequantize_args args = {
        .input = q->input.data,
        .output = q->output.data,
        .rows = q->input.rows,
        .cols = q->input.cols,
        .input_ld = q->input.ld,
        .output_ld = q->output.ld,
        .input_dtype = q->input.dtype,
        .output_dtype = q->output.dtype,
        .scale = dgi_device_scale_of(&q->scale, 1),
    };
    DGI_TRY(check_pointers(cuda, &q->input, &q->output, &q->scale));
    return falls_into_pieces(&q->input, &q->output, &q->scale, DGI_DEQUANTIZE_PIECE)
               ? launch_pieces(cuda, DGI_SMALL_dequantize_pieces, &args, args.rows, args.cols,
                               DGI_DEQUANTIZE_PIECE, stream)
               : dgi_cuda_launch_small(cuda, DGI_SMALL_dequantize, &args, args.rows * args.cols,
                                       stream);
}

dg_status dgi_cuda_dequantize(dg_context *context, const dg_dequantize *dequantize, void *stream)
{
    dgi_cuda *cuda = context->state;
    DGI_TRY(check_size(&dequantize->input));
    DGI_TRY(dgi_cuda_check_scale(&dequantize->scale, "scale"));
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, run_dequantize(cuda, dequantize, stream));
}
