/* SPDX-License-Identifier: MIT */
/* What grouped_setup gets of a product, and the launches of grouped products. */
#include "cuda/grouped.h"

/* A map of the right kind; grouped_setup says where and how large. */
static dg_status encode_any(dgi_cuda *cuda, dg_dtype dtype, uint32_t box_rows, CUtensorMap *map)
{
    dg_matrix any = dg_matrix_of((void *)(uintptr_t)256, dtype, 256, 256);
    return dgi_cuda_describe(cuda, &any, box_rows, map);
}

dg_status dgi_cuda_describe_product(dgi_cuda *cuda, const dgi_sm90_kernel *kernel,
                                    const dg_gemm *gemm, dgi_varying vary,
                                    dgi_grouped_product *product)
{
    dgi_gemm_maps *maps = &product->gemm.maps;
    *product = (dgi_grouped_product){
        .gemm.args = dgi_cuda_product_args(dgi_cuda_scale_k(kernel), gemm, vary),
        .a = gemm->a.data,
        .b = gemm->b.data,
        .lda = gemm->a.ld,
        .ldb = gemm->b.ld,
    };
    /* Where addresses and pitches allow it. */
    product->gemm.args.copy_out = dg_dtype_bytes(gemm->d.dtype) == 2 && gemm->beta == 0.0f;
    if (product->gemm.args.copy_out)
        DGI_TRY(encode_any(cuda, gemm->d.dtype, 16, &maps->d));
    DGI_TRY(encode_any(cuda, gemm->a.dtype, DGI_RAGGED_BOX, &maps->a));
    return encode_any(cuda, gemm->b.dtype, (uint32_t)kernel->tile_n, &maps->b);
}

dg_status dgi_cuda_choose_grouped(const dgi_cuda *cuda, const dgi_typical *typical, int32_t *kernel)
{
    if (cuda->forced_grouped < 0)
        return dgi_sm90_choose_grouped(typical, cuda->units, kernel);
    *kernel = cuda->forced_grouped;
    return dgi_sm90_accepts(&dgi_sm90_grouped_kernels[*kernel], &typical->gemm);
}

static int32_t clusters_of(const dgi_cuda *cuda, const dgi_sm90_kernel *kernel)
{
    return cuda->units / kernel->cluster;
}

dg_status dgi_cuda_launch_setup(dgi_cuda *cuda, const dgi_sm90_kernel *kernel,
                                dgi_grouped_setup_args *args, CUstream stream)
{
    enum { RECORDS = 4 }; /* of a CTA: fewer than it has warps, for they take long */
    args->tile_m = kernel->tile_m;
    args->cluster_n = kernel->tile_n * kernel->cluster;
    args->clusters = clusters_of(cuda, kernel);
    for (args->first = 0; args->first < args->groups.count; args->first += DGI_MOST_PRODUCTS) {
        const int32_t here = dgi_products_from(args->groups.count, args->first);
        DGI_TRY(dgi_cuda_launch_blocks(cuda, DGI_SMALL_grouped_setup, args,
                                       (here + RECORDS - 1) / RECORDS, DGI_MOST_PRODUCTS, stream));
    }
    return DG_OK;
}

dg_status dgi_cuda_launch_grouped(dgi_cuda *cuda, int32_t index, dgi_grouped_args *args,
                                  CUstream stream)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[index];
    CUfunction function;
    DGI_TRY(dgi_cuda_grouped_kernel(cuda, index, stream, &function));
    return dgi_cuda_launch_tiles(cuda, kernel, function,
                                 clusters_of(cuda, kernel) * kernel->cluster,
                                 dgi_cuda_grouped_shared_bytes(kernel), args, stream);
}

dg_status dgi_cuda_launch_grouped_few(dgi_cuda *cuda, const dgi_decode_plan *plan,
                                      dgi_grouped_few_args *args, CUstream stream)
{
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[plan->kernel];
    dgi_launch launch = {
        .name = kernel->name,
        .ctas = plan->clusters * plan->split,
        .cluster = plan->split,
        .threads = DGI_DECODE_THREADS(kernel->scale_k),
        .shared_bytes =
            DGI_GROUPED_FEW_SHARED_BYTES(kernel->tokens, kernel->stages, kernel->scale_k),
    };
    DGI_TRY(dgi_cuda_grouped_few_kernel(cuda, plan->kernel, stream, &launch.function));
    return dgi_cuda_launch_clusters(cuda, &launch, args, stream);
}

dg_status dgi_cuda_launch_records(dgi_cuda *cuda, int32_t kernel, const dgi_grouped_record *records,
                                  const int32_t *before, int32_t count, CUstream stream)
{
    for (int32_t first = 0; first < count; first += DGI_MOST_PRODUCTS) {
        dgi_grouped_args args = {.groups.count = dgi_products_from(count, first),
                                 .records = records + first,
                                 .before = before + dgi_before_place(first)};
        DGI_TRY(dgi_cuda_launch_grouped(cuda, kernel, &args, stream));
    }
    return DG_OK;
}
