/* SPDX-License-Identifier: MIT */
/* FP8 codes to 16 or 32 bits: scale * code, one element a thread. Launched by src/cuda/quantize.c.
 */
#include "scales.cuh"
#include "small_args.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    dequantize(const __grid_constant__ dgi_dequantize_args args)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.rows * args.cols;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / args.cols, col = i % args.cols;
        const scale_rows<1> scales(args.scale, (int32_t)row, 0, (int32_t)row);
        float scale[1];
        scales.load(args.scale,
                    scale_index((int32_t)col, args.scale.block_cols, args.scale.col_phase), scale);
        const __half code = __half(
            __nv_cvt_fp8_to_halfraw(args.input[row * args.input_ld + col],
                                    args.input_dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2));
        const float value = __fmul_rn(scale[0], __half2float(code));
        const int64_t place = row * args.output_ld + col;
        if (args.output_dtype == DGI_DEVICE_F32)
            ((float *)args.output)[place] = value;
        else if (args.output_dtype == DGI_DEVICE_F16)
            ((__half *)args.output)[place] = __float2half_rn(value);
        else
            ((__nv_bfloat16 *)args.output)[place] = __float2bfloat16_rn(value);
    }
}
