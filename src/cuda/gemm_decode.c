/* SPDX-License-Identifier: MIT */
/* The GEMM for few tokens on Hopper, host side: arguments and launch. */
#include "cuda/context.h"

#include "cuda/device/decode_args.h"

static int32_t ctas_of(const dgi_decode_plan *plan)
{
    return plan->clusters * plan->split * plan->token_tiles;
}

/*
 * When a CTA lets in the next kernel: early, where the next one's CTAs cannot all begin before some
 * of this one's have ended; late, where there is a place beside each, to read from from then on.
 */
static int32_t stages_left(const dgi_cuda *cuda, const dgi_decode_plan *plan)
{
    return ctas_of(plan) <= cuda->units ? 2 : dgi_decode_kernels[plan->kernel].stages;
}

static dg_status fill_args(dgi_cuda *cuda, const dg_gemm *gemm, const dgi_decode_plan *plan,
                           dgi_decode_args *args)
{
    const dgi_decode_kernel *kernel = &dgi_decode_kernels[plan->kernel];
    *args = (dgi_decode_args){
        .product = dgi_cuda_product_args(kernel->scale_k, gemm, dgi_cuda_varying(gemm)),
        .tiles = plan->tiles,
        .token_tiles = plan->token_tiles,
        .split = plan->split,
        .early = gemm->weights != NULL || gemm->b_is_constant,
        .last = stages_left(cuda, plan),
    };
    if (args->product.k == 0)
        return DG_OK; /* A and B are empty and have no address */
    DGI_TRY(dgi_cuda_describe(cuda, &gemm->a, (uint32_t)kernel->tokens, &args->a_map));
    return args->product.packed != NULL
               ? DG_OK
               : dgi_cuda_describe(cuda, &gemm->b, DGI_DECODE_ROWS, &args->b_map);
}

dg_status dgi_cuda_decode(dgi_cuda *cuda, const dg_gemm *gemm, const dgi_decode_plan *plan,
                          CUstream stream)
{
    const dgi_decode_kernel *kernel = &dgi_decode_kernels[plan->kernel];
    CUfunction function;
    dgi_decode_args args;
    DGI_TRY(dgi_cuda_decode_kernel(cuda, plan->kernel, stream, &function));
    DGI_TRY(fill_args(cuda, gemm, plan, &args));
    const dgi_launch launch = {
        .name = kernel->name,
        .function = function,
        .ctas = ctas_of(plan),
        .cluster = plan->split,
        .threads = DGI_DECODE_THREADS(kernel->scale_k),
        .shared_bytes = DGI_DECODE_SHARED_BYTES(kernel->tokens, kernel->stages, kernel->scale_k),
    };
    return dgi_cuda_launch_clusters(cuda, &launch, &args, stream);
}
