/* SPDX-License-Identifier: MIT */
/* Quantise and dequantise on the GPU, host side. */
#include "cuda/context.h"

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

static int64_t block_size(int32_t block, int64_t size)
{
    return block == 0 || block > size ? size : block;
}

static dg_status run_quantize(dgi_cuda *cuda, const dg_quantize *q, CUstream stream)
{
    const int64_t width = block_size(q->scale.block_cols, q->input.cols);
    const int64_t elements = width * block_size(q->scale.block_rows, q->input.rows);
    const int32_t group = elements <= 4096 ? 32 : DGI_SMALL_THREADS;
    int32_t lanes_x = 1;
    while (lanes_x < group && lanes_x < width)
        lanes_x *= 2;
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
        .group = group,
        .lanes_x = lanes_x,
    };
    if (q->counts != NULL)
        DGI_TRY(dgi_driver_check(&cuda->driver,
                                 cuda->driver.cuMemsetD8Async((CUdeviceptr)(uintptr_t)q->counts, 0,
                                                              sizeof *q->counts, stream),
                                 "clearing the counts"));
    return dgi_cuda_launch_small(cuda, DGI_SMALL_quantize, &args,
                                 args.scale_rows * args.scale_cols * group, stream);
}

dg_status dgi_cuda_quantize(dg_context *context, const dg_quantize *quantize, void *stream)
{
    dgi_cuda *cuda = context->state;
    DGI_TRY(check_size(&quantize->input));
    DGI_TRY(dgi_cuda_enter(cuda));
    return dgi_cuda_leave(cuda, run_quantize(cuda, quantize, stream));
}

dg_status dgi_cuda_dequantize(dg_context *context, const dg_dequantize *q, void *stream)
{
    dgi_cuda *cuda = context->state;
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
    DGI_TRY(check_size(&q->input));
    DGI_TRY(dgi_cuda_check_scale(&q->scale, "scale"));
    DGI_TRY(dgi_cuda_enter(cuda));
    return dgi_cuda_leave(cuda, dgi_cuda_launch_small(cuda, DGI_SMALL_dequantize, &args,
                                                      args.rows * args.cols, stream));
}
