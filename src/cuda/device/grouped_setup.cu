/* SPDX-License-Identifier: MIT */
/*
 * The first of a grouped call's two launches: from the sizes in device memory to one record for
 * each product and their schedule. The first CTA makes the schedule, a thread for each product; the
 * others write records, a warp for each. Where the sizes of groups depend on each other, every CTA
 * works out all of them, which takes less time than sharing them would. More products than a CTA
 * has threads take a pair of launches for each DGI_MOST_PRODUCTS of them.
 *
 * The code runs once, so its length costs more than its loops: they are not unrolled. What takes
 * the time is memory: so all that a record is made of is loaded at once, the record is put together
 * in shared memory, and leaves at once.
 */
#include "ptx/dependent.cuh"
#include "ptx/tensor_map.cuh"
#include "setup_schedule.cuh"

/* ---- records --------------------------------------------------------------------------- */

/* What differs from the first group. */
__device__ __forceinline__ void move_product(const dgi_grouped_setup_args &args, int32_t group,
                                             const product_size &size, dgi_grouped_product &p)
{
    const dgi_device_groups &groups = args.groups;
    dgi_gemm_args &g = p.gemm.args;
    move_to_group(groups, args.like.gemm.args, group, size.first, g);
    if (groups.grouping <= DGI_DEVICE_MASKED) {
        p.a += groups.grouping == DGI_DEVICE_MASKED ? group * groups.a_stride : size.first * p.lda;
        p.b += group * groups.b_stride; /* unused when packed */
        return;
    }
    g.scale_a.data =
        moved(g.scale_a.data, size.a_scale * g.scale_a.col_stride * bytes_of(g.scale_a.dtype));
    g.scale_b.data =
        moved(g.scale_b.data, size.b_scale * g.scale_b.col_stride * bytes_of(g.scale_b.dtype));
    if (groups.grouping == DGI_DEVICE_K_COLUMNS) {
        g.first_k = size.first; /* their maps begin where the whole matrices do */
    } else {
        p.a += (int64_t)size.first * g.m;
        p.b += (int64_t)size.first * g.n;
        p.lda = p.ldb = size.k;
    }
}

/* A new value, where an update has one, to the description and to this copy of it. */
template <typename T>
__device__ __forceinline__ void take(void *const *values, void *value, T *&described, T *&copy)
{
    if (values != nullptr)
        described = copy = (T *)value;
}

__device__ __forceinline__ void take_values(const dgi_device_values &v, const new_values &value,
                                            const product_size &size, dgi_grouped_product &problem,
                                            dgi_grouped_product &p)
{
    dgi_gemm_args &described = problem.gemm.args, &g = p.gemm.args;
    described.m = size.m;
    described.n = size.n;
    described.k = size.k;
    take(v.a, value.a, problem.a, p.a);
    take(v.c, value.c, described.c.data, g.c.data);
    take(v.d, value.d, described.d.data, g.d.data);
    take(v.bias, value.bias, described.bias.data, g.bias.data);
    take(v.scale_a, value.scale_a, described.scale_a.data, g.scale_a.data);
    take(v.scale_d, value.scale_d, described.scale_d.data, g.scale_d.data);
    if (g.packed != nullptr)
        return;
    take(v.b, value.b, problem.b, p.b);
    take(v.scale_b, value.scale_b, described.scale_b.data, g.scale_b.data);
}

/* What follows from the sizes. */
__device__ __forceinline__ void complete(const dgi_grouped_setup_args &args,
                                         const product_size &size, dgi_grouped_product &p)
{
    const dgi_rates &tile = args.rates;
    dgi_gemm_args &g = p.gemm.args;
    const int32_t element = bytes_of(g.d.dtype);
    const int32_t tile_rows = dgi_tile_rows(size.m, tile.tile_m);
    const int32_t tile_cols = (size.n + tile.cluster_n - 1) / tile.cluster_n;
    /* An address that the copy engine cannot use would end the kernel: nothing is computed. */
    const bool readable =
        size.k == 0 || (dgi_can_map((uintptr_t)p.a, size.m, p.lda) &&
                        (g.packed != nullptr || dgi_can_map((uintptr_t)p.b, size.n, p.ldb)));
    g.m = size.m;
    g.n = size.n;
    g.k = size.k;
    g.tile_rows = readable ? tile_rows : 0;
    g.tile_cols = tile_cols;
    g.band = dgi_band(tile_rows, tile_rows * tile_cols, args.clusters, tile.tile_m, tile.cluster_n);
    /* As the host decides for dense products. */
    g.copy_out = g.copy_out && dgi_can_map((uintptr_t)g.d.data, size.m, g.d.ld * element) &&
                 size.n * element % DGI_COPY_UNIT == 0;
}

/* The map of A (0), of B (1) or of D (2), where the product needs it. */
__device__ __forceinline__ void replace_map(dgi_grouped_product &p, int which)
{
    const dgi_gemm_args &g = p.gemm.args;
    dgi_gemm_maps &maps = p.gemm.maps;
    const int32_t element = which == 2 ? bytes_of(g.d.dtype) : 1;
    const int32_t cols = which == 2 ? g.n : g.first_k + g.k, rows = which == 1 ? g.n : g.m;
    const int64_t several = which == 0 ? p.lda : which == 1 ? p.ldb : g.d.ld * element;
    if (g.tile_rows * g.tile_cols == 0 || (which == 1 && g.packed != nullptr) ||
        (which == 2 ? !g.copy_out : g.k == 0))
        return;
    tensor_map_replace(which == 0   ? &maps.a
                       : which == 1 ? &maps.b
                                    : &maps.d,
                       which == 0   ? p.a
                       : which == 1 ? p.b
                                    : (const uint8_t *)g.d.data,
                       cols, rows, rows > 1 ? several : round_up(cols * element, 16));
}

/* The record of a product, by one warp, which puts it together at `p` in shared memory. */
__device__ __forceinline__ void write_record(const dgi_grouped_setup_args &args, int32_t index,
                                             product_size size, dgi_grouped_product &p)
{
    constexpr int CHUNKS = sizeof p / sizeof(uint4), EACH = (CHUNKS + 31) / 32;
    const int lane = threadIdx.x % 32;
    const int32_t product = args.first + index;
    dgi_grouped_product *problem = args.problems == nullptr ? nullptr : args.problems + product;
    const uint4 *from = (const uint4 *)(problem == nullptr ? &args.like : problem);
    uint4 chunks[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++)
        chunks[i] = from[min(lane + 32 * i, CHUNKS - 1)];
    const new_values values(args.values, product);
#pragma unroll
    for (int i = 0; i < EACH; i++)
        ((uint4 *)&p)[min(lane + 32 * i, CHUNKS - 1)] = chunks[i];
    __syncwarp();
    if (lane == 0) {
        if (problem != nullptr) {
            size = size_of_problem(args, p.gemm.args, values);
            take_values(args.values, values, size, *problem, p);
        } else {
            move_product(args, product, size, p);
        }
        complete(args, size, p);
    }
    __syncwarp();
    if (lane < 3)
        replace_map(p, lane);
    __syncwarp();
    static_assert(sizeof p >= sizeof *args.records, "a record is copied in whole chunks");
    uint4 *record = (uint4 *)&args.records[product];
#pragma unroll
    for (int i = lane; i < (int)(sizeof *args.records / sizeof *record); i += 32)
        record[i] = ((const uint4 *)&p.gemm)[i];
    tensor_map_release();
}

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_setup(const __grid_constant__ dgi_grouped_setup_args args)
{
    __shared__ union {
        shared_sizes sizes;
        shared_schedule schedule;
    } shared;
    __shared__ dgi_grouped_product products[DGI_SETUP_RECORDS];
    const int32_t index = threadIdx.x, product = args.first + index, warp = index / 32;
    const int32_t count = dgi_products_from(args.groups.count, args.first);
    const bool is_table = args.groups.grouping == DGI_DEVICE_TABLE;
    product_size size = {0, 0, 0, 0, 0, 0};
    launch_dependents(); /* the products wait for this kernel's end */
    if (!is_table)
        size = size_of_group(args, shared.sizes);
    else if (blockIdx.x == 0 && index < count)
        size = size_of_problem(args, args.problems[product].gemm.args,
                               new_values(args.values, product));
    if (blockIdx.x == 0) {
        if (index < count && args.ranges != nullptr) {
            args.ranges[2 * product] = size.first;
            args.ranges[2 * product + 1] = size.first + size.m;
        }
        __syncthreads(); /* the sizes are done with */
        write_schedule(args, shared.schedule, dgi_work_of(&args.rates, size.m, size.n, size.k),
                       count);
        return;
    }
    if (!is_table) {
        shared.sizes.sizes[index] = size;
        __syncthreads();
    }
    const int32_t record = (blockIdx.x - 1) * DGI_SETUP_RECORDS + warp;
    if (warp < DGI_SETUP_RECORDS && record < count)
        write_record(args, record, shared.sizes.sizes[record], products[warp]);
}
