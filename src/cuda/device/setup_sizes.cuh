/* SPDX-License-Identifier: MIT */
/* grouped_setup: the sizes of all products, a thread for each, from the sizes in device memory. */
#pragma once
#include "../../core/copy_rules.h"
#include "group.cuh"

constexpr int THREADS = DGI_MOST_PRODUCTS, WARPS = THREADS / 32;

/* ---- scans over all threads ------------------------------------------------------------ */

static_assert(WARPS == 32, "a warp scans the sums of all warps");

/* The scan (group.cuh) of all threads' values; `of_warps` then holds that of all warps, the last
 * what all make. */
template <typename Join>
__device__ __forceinline__ int64_t scan(int64_t value, int64_t *of_warps, Join join)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    value = scan_warp(value, join);
    __syncthreads();
    if (lane == 31)
        of_warps[warp] = value;
    __syncthreads();
    if (warp == 0)
        of_warps[lane] = scan_warp(of_warps[lane], join);
    __syncthreads();
    return warp == 0 ? value : join(of_warps[warp - 1], value);
}

__device__ __attribute__((noinline)) int64_t scan_sum(int64_t value, int64_t *of_warps)
{
    return scan(value, of_warps, [](int64_t x, int64_t y) { return x + y; });
}

/* ---- sizes ----------------------------------------------------------------------------- */

/* What this thread's product is. */
struct product_size {
    int32_t m, n, k;
    int32_t first;            /* row, or column of K, of the whole                  */
    int32_t a_scale, b_scale; /* groups along K: the first column of its scales     */
};

struct shared_sizes {
    int64_t of_warps[32];
    int32_t first[DGI_MOST_PRODUCTS], end[DGI_MOST_PRODUCTS];
    product_size sizes[DGI_MOST_PRODUCTS];
};

/* What stands at `index` of an array of sizes, 0 behind its end. */
__device__ __forceinline__ int32_t size_at(const dgi_grouped_setup_args &args, int32_t index)
{
    return index < args.groups.count ? max(args.groups.sizes[index], 0) : 0;
}

/*
 * Group g begins at the next multiple of the alignment behind all ends before it; an end that does
 * not come later makes it empty. The groups of earlier launches only move that beginning.
 */
__device__ __forceinline__ void size_by_end(const dgi_grouped_setup_args &args,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t rows = args.like.gemm.args.m;
    const auto join = [](int64_t x, int64_t y) { return x > y ? x : y; };
    int64_t earlier = 0, all = 0;
    int32_t end, last;
#pragma unroll 1
    for (int32_t base = 0; base <= args.first; base += THREADS) {
        earlier = join(earlier, all);
        end = min(size_at(args, base + (int32_t)threadIdx.x), rows);
        last = (int32_t)scan((int64_t)end, shared.of_warps, join);
        all = shared.of_warps[WARPS - 1];
    }
    shared.first[threadIdx.x] = last;
    __syncthreads();
    const int64_t before = threadIdx.x == 0 ? 0 : shared.first[threadIdx.x - 1];
    size.first = round_up((int32_t)join(earlier, before), args.groups.alignment);
    size.m = max(0, end - size.first);
}

/*
 * A group's rows are its first run of equal indices.
 */
__device__ __forceinline__ void size_by_row(const dgi_grouped_setup_args &args,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t rows = args.like.gemm.args.m;
    const int32_t count = dgi_products_from(args.groups.count, args.first);
    const int32_t *sizes = args.groups.sizes;
    shared.first[threadIdx.x] = shared.end[threadIdx.x] = INT32_MAX;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int64_t group = (int64_t)sizes[r] - args.first;
        if (group >= 0 && group < count && (r == 0 || sizes[r - 1] != sizes[r]))
            atomicMin(&shared.first[group], r);
    }
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int64_t group = (int64_t)sizes[r] - args.first;
        if (group >= 0 && group < count && r >= shared.first[group] &&
            (r == rows - 1 || sizes[r + 1] != sizes[r]))
            atomicMin(&shared.end[group], r + 1);
    }
    __syncthreads();
    size.first = shared.first[threadIdx.x];
    size.m = size.first == INT32_MAX ? 0 : shared.end[threadIdx.x] - size.first;
}

/* The first column of scales of a group of `depth`, of which `earlier` stand before this scan. */
__device__ __forceinline__ int32_t scale_start(int32_t depth, int32_t block, int32_t cols,
                                               int64_t *earlier, int64_t *of_warps)
{
    const int64_t need = block == 0 ? 0 : (depth + block - 1) / block;
    const int64_t start = *earlier + scan_sum(need, of_warps) - need;
    *earlier += of_warps[WARPS - 1];
    return (int32_t)max((int64_t)0, min(start, cols - need)); /* never behind the last column */
}

__device__ __forceinline__ void size_along_k(const dgi_grouped_setup_args &args,
                                             shared_sizes &shared, product_size &size)
{
    const int64_t k = args.like.gemm.args.k;
    const bool blocks = args.groups.grouping == DGI_DEVICE_K_BLOCKS;
    const int32_t m = size.m;
    int64_t earlier = 0, a_earlier = 0, b_earlier = 0;
    bool readable = true;
#pragma unroll 1
    for (int32_t base = 0; base < args.groups.count; base += THREADS) { /* later launches' too */
        const int64_t mine = size_at(args, base + (int32_t)threadIdx.x);
        const int64_t end = earlier + scan_sum(mine, shared.of_warps);
        earlier += shared.of_warps[WARPS - 1];
        product_size here = {m, size.n, 0, (int32_t)min(end - mine, k), 0, 0};
        here.k = (int32_t)(min(end, k) - here.first);
        here.a_scale =
            scale_start(here.k, args.scale_a_block, args.scale_a_cols, &a_earlier, shared.of_warps);
        here.b_scale =
            scale_start(here.k, args.scale_b_block, args.scale_b_cols, &b_earlier, shared.of_warps);
        readable = readable && dgi_can_copy_columns(here.first, blocks ? mine : here.k, blocks);
        if (base == args.first)
            size = here;
    }
    /* What the copy engine cannot address would end the kernel: nothing is computed. */
    if (__syncthreads_or(!readable))
        size.m = 0;
}

/* The size of this thread's group, where the call is no table. */
__device__ __forceinline__ product_size size_of_group(const dgi_grouped_setup_args &args,
                                                      shared_sizes &shared)
{
    const dgi_gemm_args &like = args.like.gemm.args;
    product_size size = {like.m, like.n, like.k, 0, 0, 0};
    if (args.groups.grouping == DGI_DEVICE_BY_END)
        size_by_end(args, shared, size);
    else if (args.groups.grouping == DGI_DEVICE_BY_ROW)
        size_by_row(args, shared, size);
    else if (args.groups.grouping == DGI_DEVICE_MASKED)
        size.m = min(size_at(args, args.first + (int32_t)threadIdx.x), like.m);
    else
        size_along_k(args, shared, size);
    return size;
}

/* What an update gives to a problem of a table: all is loaded before any of it is needed. */
struct new_values {
    int32_t m, n, k;
    void *a, *b, *c, *d, *bias, *scale_a, *scale_b, *scale_d;

    __device__ __forceinline__ new_values(const dgi_device_values &v, int32_t index)
        : m(at(v.m, index)), n(at(v.n, index)), k(at(v.k, index)), a(at(v.a, index)),
          b(at(v.b, index)), c(at(v.c, index)), d(at(v.d, index)), bias(at(v.bias, index)),
          scale_a(at(v.scale_a, index)), scale_b(at(v.scale_b, index)),
          scale_d(at(v.scale_d, index))
    {
    }

  private:
    template <typename T> static __device__ __forceinline__ T at(const T *values, int32_t index)
    {
        return values == nullptr ? T(0) : values[index];
    }
};

/* The sizes of a problem as it is described, with its new values. */
__device__ __forceinline__ product_size size_of_problem(const dgi_grouped_setup_args &args,
                                                        const dgi_gemm_args &problem,
                                                        const new_values &values)
{
    const dgi_gemm_args &most = args.like.gemm.args;
    const bool fixed = problem.packed != nullptr; /* packed weights keep their shape */
    product_size size = {problem.m, problem.n, problem.k, 0, 0, 0};
    if (args.values.m != nullptr)
        size.m = max(0, min(values.m, most.m));
    if (args.values.n != nullptr && !fixed)
        size.n = max(0, min(values.n, most.n));
    if (args.values.k != nullptr && !fixed)
        size.k = max(0, min(values.k, most.k));
    if (problem.d.dtype == DGI_DEVICE_NONE) /* never set */
        size.m = size.n = size.k = 0;
    return size;
}
