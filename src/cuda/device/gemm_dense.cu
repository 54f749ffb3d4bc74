/* SPDX-License-Identifier: MIT */
/*
 * The dense GEMM for Hopper, D = epilogue(A B^T), one kernel for each row of the kernel table. The
 * build compiles this file once a row and sets:
 *
 *   DGI_KERNEL               the kernel's name
 *   DGI_A_TYPE, DGI_B_TYPE   "e4m3" or "e5m2"
 *   DGI_TILE_M, DGI_TILE_N   the tile of D that a CTA computes
 *   DGI_GROUPS               math warpgroups; each computes TILE_M / GROUPS rows, 64 at a time
 *   DGI_CLUSTER              CTAs side by side along N, which share the loading of A
 *   DGI_STAGES               depth of the ring of A and B tiles, each 128 of K
 *   DGI_PROMOTE_K            K after which partial sums are added up in FP32; 0: never
 *   DGI_SPAN                 neighbouring columns that share one scale of B inside the main loop;
 *                            0: scales act only in the epilogue
 *   DGI_ROWS                 neighbouring rows that share one scale of A inside the main loop; when
 *                            more than 1, scales of A and B are multiplied before they are stored
 *
 * A CTA is persistent and its warps have fixed roles. One warpgroup feeds: warp 0 drives the copy
 * engine, warp 1 gathers the epilogue's factors, warps 2 and 3 gather scales. The others multiply.
 * They meet at mbarriers in shared memory: `full` and `empty` for each stage and each set of
 * factors.
 *
 * With programmatic dependent launch a CTA begins as soon as one of the kernel before has ended on
 * its multiprocessor. It sets itself up, and waits for all of that kernel before it touches
 * anything that it may write.
 */
#include "gemm_feed.cuh"
#include "gemm_multiply.cuh"
#include "ptx/dependent.cuh"

/*
 * One thread, while earlier kernels may still run: brings B's first stages to L2, which everybody's
 * writes go through, so that it does no harm if they write B.
 */
__device__ __forceinline__ void fetch_weights(const dgi_gemm_product &product)
{
    tile_walk<false> tile(product.args);
    if (!tile.next())
        return;
    const weight_tile b(product.maps, product.args, tile.n0);
    for (int32_t i = 0; i < min(STAGES, stage_count(product.args)); i++)
        b.fetch(i);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    DGI_KERNEL(const __grid_constant__ dgi_gemm_product product)
{
    const dgi_gemm_maps &maps = product.maps;
    const dgi_gemm_args &args = product.args;
    DYNAMIC_SHARED(memory);
    const shared_memory shared(memory);
    /* The same for all threads of a warp, which the compiler cannot know of threadIdx.x / 32. */
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    launch_dependents();
    if (threadIdx.x == MATH_THREADS) { /* not the thread that prepares the barriers */
        if (args.k > 0) {
            tensor_map_prefetch(&maps.a);
            if (args.packed == nullptr)
                tensor_map_prefetch(&maps.b);
        }
        if (args.copy_scales)
            tensor_map_prefetch(&maps.scale_a);
        if (args.copy_out)
            tensor_map_prefetch(&maps.d);
        fetch_weights(product);
    }
    start_barriers(shared);
    wait_for_earlier_kernels();

    if (warp >= MATH_THREADS / 32) {
        registers_release<FEED_REGISTERS>();
        const int role = warp - MATH_THREADS / 32;
        stage_place place;
        factor_place set;
        uint32_t turn = role % 2;
        if (role == 0)
            feed_tiles<false>(maps, args, shared, place);
        else if (role == 1)
            feed_factors<false>(args, shared, set);
        else if (ROWS > 1)
            feed_products(args, shared, place, turn);
        else if (FEW_B_SCALES && args.copy_scales) {
            if (role == 2)
                feed_scales_b(args, shared, place);
        } else if (SPAN != 0)
            feed_scales<false>(args, shared, place, turn);
    } else {
        registers_take<MATH_REGISTERS>();
        stage_place place;
        factor_place set;
        multiply_tiles<false>(maps, args, shared, warp / 4, place, set, {});
        if (threadIdx.x % 32 == 0)
            copy_out_wait();
    }
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync(); /* a CTA's shared memory must outlive what the others send to it */
    }
}
