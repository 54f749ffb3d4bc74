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
        return dgi_sm90_choose_grouped(typical, cuda->units, cuda->batch_invariant, kernel);
    *kernel = cuda->forced_grouped;
    return dgi_sm90_accepts(&dgi_sm90_grouped_kernels[*kernel], &typical->gemm);
}

static int32_t clusters_of(const dgi_cuda *cuda, const dgi_sm90_kernel *kernel)
{
    const int32_t clusters = cuda->units / kernel->cluster;
    return clusters < DGI_MOST_CLUSTERS ? clusters : DGI_MOST_CLUSTERS;
}

/* Counters of arrivals: one for each warp that adds up a tile. A tile's parts take two slots or
 * more. */
static int32_t arrivals_of(const dgi_cuda *cuda, const dgi_sm90_kernel *kernel)
{
    return dgi_slots(clusters_of(cuda, kernel)) / 2 * kernel->cluster * kernel->groups * 4;
}

/* The next part of `memory`, if there is any yet; *used counts its bytes. */
static void *next(char *memory, size_t *used, size_t bytes)
{
    void *part = memory == NULL ? NULL : memory + *used;
    *used += (bytes + 255) / 256 * 256;
    return part;
}

size_t dgi_cuda_prepare(const dgi_cuda *cuda, const dgi_sm90_kernel *kernel, int32_t count,
                        int64_t k, char *memory, dgi_prepared *p)
{
    const size_t products = (size_t)count, clusters = (size_t)clusters_of(cuda, kernel);
    const size_t launches = (products + DGI_MOST_PRODUCTS - 1) / DGI_MOST_PRODUCTS;
    dgi_device_schedule *s = &p->schedule;
    size_t used = 0;
    *p = (dgi_prepared){.count = count};
    p->records = next(memory, &used, products * sizeof *p->records);
    s->turns = next(memory, &used, products * sizeof *s->turns);
    s->cuts = next(memory, &used, launches * (clusters + 1) * sizeof *s->cuts);
    if (!cuda->batch_invariant && dgi_can_cut(k)) {
        const size_t tile = (size_t)(kernel->tile_m * kernel->tile_n * kernel->cluster);
        const size_t slots = (size_t)dgi_slots((int32_t)clusters);
        s->arrivals = next(memory, &used, (size_t)arrivals_of(cuda, kernel) * sizeof *s->arrivals);
        s->slots = next(memory, &used, slots * tile * sizeof *s->slots);
    }
    return used;
}

/* Of the launch that begins with product `first`. */
static dgi_device_schedule schedule_from(const dgi_prepared *p, int32_t first, int32_t clusters)
{
    dgi_device_schedule s = p->schedule;
    s.turns += first;
    s.cuts += first / DGI_MOST_PRODUCTS * (clusters + 1);
    return s;
}

dg_status dgi_cuda_launch_setup(dgi_cuda *cuda, const dgi_sm90_kernel *kernel,
                                const dgi_prepared *p, dgi_grouped_setup_args *args,
                                CUstream stream)
{
    args->rates = dgi_sm90_rates(kernel);
    args->clusters = clusters_of(cuda, kernel);
    args->arrivals = p->schedule.slots != NULL ? arrivals_of(cuda, kernel) : 0;
    args->records = p->records;
    for (args->first = 0; args->first < p->count; args->first += DGI_MOST_PRODUCTS) {
        const int32_t here = dgi_products_from(p->count, args->first);
        args->schedule = schedule_from(p, args->first, args->clusters);
        DGI_TRY(dgi_cuda_launch_blocks(cuda, DGI_SMALL_grouped_setup, args,
                                       1 + (here + DGI_SETUP_RECORDS - 1) / DGI_SETUP_RECORDS,
                                       DGI_MOST_PRODUCTS, stream));
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

dg_status dgi_cuda_launch_records(dgi_cuda *cuda, int32_t index, const dgi_prepared *p,
                                  CUstream stream)
{
    const int32_t clusters = clusters_of(cuda, &dgi_sm90_grouped_kernels[index]);
    for (int32_t first = 0; first < p->count; first += DGI_MOST_PRODUCTS) {
        dgi_grouped_args args = {.groups.count = dgi_products_from(p->count, first),
                                 .records = p->records + first,
                                 .schedule = schedule_from(p, first, clusters)};
        DGI_TRY(dgi_cuda_launch_grouped(cuda, index, &args, stream));
    }
    return DG_OK;
}
