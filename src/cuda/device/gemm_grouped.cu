/* SPDX-License-Identifier: MIT */
/*
 * The grouped GEMM for Hopper: the roles of gemm_dense.cu, which says what the build sets, for one
 * product after another out of a table in device memory. The rings and barriers go on from product
 * to product, so a cluster's next product is being loaded while it finishes the last one.
 */
#include "gemm_feed.cuh"
#include "gemm_multiply.cuh"
#include "grouped_args.h"
#include "ptx/dependent.cuh"

/* Walks over the products of which this cluster computes tiles, in the same order for every role. */
struct product_walk {
    const dgi_grouped_args &args;
    const dgi_gemm_args *gemm = nullptr;
    int32_t product = 0, tile;

    __device__ __forceinline__ explicit product_walk(const dgi_grouped_args &arguments)
        : args(arguments), tile(blockIdx.x / CLUSTER)
    {
    }
    /* All lanes of a warp look at 32 products together: whose tiles end behind this cluster's next? */
    __device__ __forceinline__ bool next()
    {
        for (; product < args.count; product += 32) {
            const int32_t mine = product + threadIdx.x % 32;
            const int32_t end = mine < args.count ? args.before[mine + 1] : INT32_MAX;
            const uint32_t found = __ballot_sync(0xFFFFFFFF, end > tile);
            if (found == 0)
                continue;
            const int lane = __ffs(found) - 1;
            const int32_t at = product + lane;
            if (at >= args.count)
                return false;
            gemm = &args.records[at].gemm;
            tile = dgi_next_tile(tile, __shfl_sync(0xFFFFFFFF, end, lane), gridDim.x / CLUSTER);
            product = at + 1;
            return true;
        }
        return false;
    }
};

__device__ __forceinline__ void feed(const dgi_grouped_args &args, const shared_memory &shared,
                                     int role)
{
    stage_place place;
    factor_place set;
    uint32_t turn = role % 2;
    for (product_walk walk(args); walk.next();) {
        const dgi_gemm_args &gemm = *walk.gemm;
        if (role == 0) {
            tensor_map_acquire(&gemm.a_map);
            tensor_map_acquire(&gemm.b_map);
            feed_tiles(gemm, shared, place);
        } else if (role == 1) {
            feed_factors(gemm, shared, set);
        } else if (SPAN != 0) {
            feed_scales(gemm, shared, place, turn);
        }
    }
}

__device__ __forceinline__ void multiply_all(const dgi_grouped_args &args,
                                             const shared_memory &shared, int group)
{
    stage_place place;
    factor_place set;
    for (product_walk walk(args); walk.next();) {
        if (walk.gemm->copy_out) {
            tensor_map_acquire(&walk.gemm->d_map);
        } else { /* the copy engine may still read the panels of the product before */
            if (threadIdx.x % 32 == 0)
                copy_out_wait_read<0>();
            __syncwarp();
        }
        multiply_tiles<true>(*walk.gemm, shared, group, place, set);
    }
    if (threadIdx.x % 32 == 0)
        copy_out_wait();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    DGI_KERNEL(const __grid_constant__ dgi_grouped_args args)
{
    DYNAMIC_SHARED(memory);
    const shared_memory shared(memory);
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    start_barriers(shared);
    wait_for_earlier_kernels(); /* which write the records */
    if (warp >= MATH_THREADS / 32) {
        registers_release<FEED_REGISTERS>();
        feed(args, shared, warp - MATH_THREADS / 32);
    } else {
        registers_take<MATH_REGISTERS>();
        multiply_all(args, shared, warp / 4);
    }
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync(); /* a CTA's shared memory must outlive what the others send to it */
    }
}
