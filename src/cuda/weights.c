/* SPDX-License-Identifier: MIT */
/*
 * Packed weights on the GPU, host side: codes as in core/packed_sm90.h, then the scales in their
 * own type, at a multiple of 256 bytes.
 */
#include "cuda/context.h"

#include "core/packed_sm90.h"

static size_t scales_offset(const dg_matrix *b)
{
    return (size_t)dgi_packed_padded(dgi_packed_bytes(b->rows, b->cols), 256);
}

dg_status dgi_cuda_weights_bytes(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                 size_t *bytes)
{
    (void)context;
    *bytes =
        scales_offset(b) + (size_t)(scale_b->rows * scale_b->cols) * dg_dtype_bytes(scale_b->dtype);
    return DG_OK;
}

/*
 * Scales that a tile's rows share follow each other along K, so that a line of memory serves
 * several stages; those of single rows lie as the lanes of a warp read them.
 */
dg_scale dgi_cuda_packed_scale(const dg_weights *weights)
{
    dg_scale scale = weights->scale;
    const bool along_k = scale.block_rows == 0 || scale.block_rows >= 32;
    scale.data = (char *)weights->data + scales_offset(&weights->b);
    scale.row_stride = along_k ? scale.cols : 1;
    scale.col_stride = along_k ? 1 : scale.rows;
    return scale;
}

static dg_status check_pointers(dgi_cuda *cuda, const dg_weights *weights, const dg_matrix *b,
                                const dg_scale *scale_b)
{
    const dgi_cuda_operand operands[] = {
        {b->data, b->dtype, b->rows * b->cols > 0, "b"},
        {scale_b->data, scale_b->dtype, scale_b->rows * scale_b->cols > 0, "scale_b"},
        {weights->data, DG_NONE, weights->data_bytes > 0, "buffer"},
    };
    return dgi_cuda_check_operands(cuda, operands, sizeof operands / sizeof operands[0]);
}

static dg_status move(dgi_cuda *cuda, const dg_weights *weights, const dg_matrix *b,
                      const dg_scale *scale_b, bool unpack, CUstream stream)
{
    const dg_scale packed = dgi_cuda_packed_scale(weights);
    const dg_scale *from = unpack ? &packed : scale_b, *to = unpack ? scale_b : &packed;
    dgi_weights_args args = {
        .plain = b->data,
        .packed = weights->data,
        .rows = b->rows,
        .cols = b->cols,
        .ld = b->ld,
        .unpack = unpack,
        .scale_bytes = (int32_t)dg_dtype_bytes(packed.dtype),
        .from = from->data,
        .to = to->data,
        .scale_rows = packed.rows,
        .scale_cols = packed.cols,
        .from_row_stride = from->row_stride,
        .from_col_stride = from->col_stride,
        .to_row_stride = to->row_stride,
        .to_col_stride = to->col_stride,
    };
    const int64_t scales = args.scale_rows * args.scale_cols;
    const int64_t codes = dgi_packed_bytes(b->rows, b->cols) / 128; /* what a thread moves */
    return dgi_cuda_launch_small(cuda, DGI_SMALL_weights, &args, codes > scales ? codes : scales,
                                 stream);
}

/*
 * Waits for the packing, so that from now on the weights do not change: kernels may read them
 * before the work that was enqueued before them has ended.
 */
static dg_status pack(dgi_cuda *cuda, const dg_weights *weights, const dg_matrix *b,
                      const dg_scale *scale_b, CUstream stream)
{
    bool captured;
    DGI_TRY(dgi_cuda_is_captured(cuda, stream, &captured));
    if (captured)
        return dgi_fail(DG_NOT_PREPARED, "weights cannot be packed while the stream is captured: "
                                         "pack them before the capture");
    DGI_TRY(check_pointers(cuda, weights, b, scale_b));
    DGI_TRY(move(cuda, weights, b, scale_b, false, stream));
    return dgi_driver_check(&cuda->driver, cuda->driver.cuStreamSynchronize(stream),
                            "waiting for the packed weights");
}

dg_status dgi_cuda_weights_pack(dg_context *context, const dg_matrix *b, const dg_scale *scale_b,
                                dg_weights *weights, void *stream)
{
    dgi_cuda *cuda = context->state;
    DGI_TRY(dgi_cuda_check_scale(scale_b, "scale_b"));
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, pack(cuda, weights, b, scale_b, stream));
}

static dg_status unpack(dgi_cuda *cuda, const dg_weights *weights, const dg_matrix *b,
                        const dg_scale *scale_b, CUstream stream)
{
    DGI_TRY(check_pointers(cuda, weights, b, scale_b));
    return move(cuda, weights, b, scale_b, true, stream);
}

dg_status dgi_cuda_weights_unpack(dg_context *context, const dg_weights *weights,
                                  const dg_matrix *b, const dg_scale *scale_b, void *stream)
{
    dgi_cuda *cuda = context->state;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(cuda, &pushed));
    return dgi_cuda_leave(cuda, pushed, unpack(cuda, weights, b, scale_b, stream));
}
