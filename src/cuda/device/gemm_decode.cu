/* SPDX-License-Identifier: MIT */
/*
 * The GEMM for few tokens on Hopper, one kernel for each row of kernels_sm90_decode.def. Its time
 * is that of reading B. The build compiles this file once a row and sets:
 *
 *   DGI_KERNEL               the kernel's name
 *   DGI_A_TYPE, DGI_B_TYPE   "e4m3" or "e5m2": wgmma's first operand, which is B, and its second
 *   DGI_TOKENS               rows of A that a CTA takes at most: 8 to 128
 *   DGI_STAGES               depth of the ring, each 128 of K
 *   DGI_SCALE_K              K that shares a scale: 128, 32, or 0 where all of K does; sums are
 *                            promoted to FP32 each 32 of K for 32, else each 128
 *
 * The operands are swapped: 128 rows of B take the side of wgmma that has 64 rows an instruction,
 * the tokens the one that can be as narrow as 8. A CTA takes tiles of 128 rows of B; a cluster
 * shares the K of its tiles, so that all multiprocessors read, whatever N is.
 *
 * Warps have fixed roles: two warpgroups multiply, 64 rows each, and write D; one warp drives the
 * copy engine; one gathers scales where these change along K.
 *
 * With programmatic dependent launch this kernel begins while the one before it still runs, and
 * lets the next one begin when it has not much left to read. All roles wait for the earlier kernels
 * before they touch anything that those may write; see decode_feed.cuh for B.
 */
#include "decode_feed.cuh"
#include "decode_finish.cuh"

/* Walks over the tiles of the product that a cluster computes. */
struct tile_walk {
    const dgi_decode_args &args;
    const share_of_work &work;
    int32_t now;

    __device__ __forceinline__ tile_walk(const dgi_decode_args &arguments,
                                         const share_of_work &share)
        : args(arguments), work(share), now(share.cluster)
    {
    }
    __device__ __forceinline__ bool is_there() const
    {
        return now < args.tiles;
    }
    __device__ __forceinline__ void advance()
    {
        now += work.clusters;
    }
    __device__ __forceinline__ const dgi_gemm_args &product() const
    {
        return args.product;
    }
    __device__ __forceinline__ int32_t tile() const
    {
        return now;
    }
};

/* The scales of B that the first tile is multiplied by at its end: at any time, as it ends in L2.
 */
__device__ __forceinline__ void fetch_factor(const dgi_gemm_args &args, const share_of_work &work)
{
    if (SCALE_K != 0 || args.k == 0 || threadIdx.x >= ROWS)
        return;
    const int32_t first_n = work.cluster * ROWS + work.rank * (ROWS / work.split);
    const int32_t n = min(first_n + (int)threadIdx.x, args.n - 1);
    scale_rows<1>(args.scale_b, n, 0, n).fetch(args.scale_b, 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT(SHARED_BYTES))
    DGI_KERNEL(const __grid_constant__ dgi_decode_args args)
{
    DYNAMIC_SHARED(memory);
    const shared_memory shared(memory);
    const share_of_work work(args.product.k, args.split, args.token_tiles > 1);
    /* The same for all threads of a warp, which the compiler cannot know of threadIdx.x / 32. */
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    if (threadIdx.x == MATH_THREADS) {
        start_barriers(shared, args.split);
        mbarrier_init_fence();
        feed_first(args, shared, work);
    }
    __syncthreads();
    if (args.split > 1)
        cluster_arrive();

    if (warp < MATH_THREADS / 32) {
        tile_walk tiles(args, work);
        fetch_factor(args.product, work);
        wait_for_earlier_kernels();
        multiply_tiles(tiles, shared, work, warp / 4);
        return;
    }
    if (warp == MATH_THREADS / 32) {
        if (threadIdx.x % 32 == 0)
            feed_tiles(args, shared, work);
    } else if (SCALE_K != 0) {
        feed_scales(args, shared, work);
    }
    __syncwarp();
    if (args.split > 1)
        cluster_wait();
}
