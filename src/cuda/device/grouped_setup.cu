/* SPDX-License-Identifier: MIT */
/*
 * The first of a grouped call's two launches: from the sizes in device memory to one record for
 * each product and their schedule. Every CTA works out all sizes, a thread for each product, which
 * takes less time than sharing them would; then each writes some of the records, a warp for each.
 * More products than a CTA has threads take a pair of launches for each DGI_MOST_PRODUCTS of them.
 *
 * The code runs once, so its length costs more than its loops: they are not unrolled.
 */
#include "../../core/copy_rules.h"
#include "../../core/grouped_schedule.h"
#include "group.cuh"
#include "ptx/dependent.cuh"
#include "ptx/tensor_map.cuh"

constexpr int THREADS = DGI_MOST_PRODUCTS, WARPS = THREADS / 32;

/* ---- scans over all threads ------------------------------------------------------------ */

static_assert(WARPS == 32, "a warp scans the sums of all warps");

/* That of all threads' values; `of_warps` then holds that of all warps, the last what all make. */
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
    alignas(16) int32_t k[DGI_MOST_PRODUCTS]; /* -1 where there is no product */
    int32_t tiles[DGI_MOST_PRODUCTS];         /* in the schedule's order      */
    int32_t rank[DGI_MOST_PRODUCTS], before[DGI_MOST_PRODUCTS + 1];
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
    shared.rank[threadIdx.x] = last;
    __syncthreads();
    const int64_t before = threadIdx.x == 0 ? 0 : shared.rank[threadIdx.x - 1];
    size.first = round_up((int32_t)join(earlier, before), args.groups.alignment);
    size.m = max(0, end - size.first);
}

/*
 * A group's rows are its first run of equal indices; `rank` and `before` hold what they begin and
 * end at.
 */
__device__ __forceinline__ void size_by_row(const dgi_grouped_setup_args &args,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t rows = args.like.gemm.args.m;
    const int32_t count = dgi_products_from(args.groups.count, args.first);
    const int32_t *sizes = args.groups.sizes;
    shared.rank[threadIdx.x] = shared.before[threadIdx.x] = INT32_MAX;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int64_t group = (int64_t)sizes[r] - args.first;
        if (group >= 0 && group < count && (r == 0 || sizes[r - 1] != sizes[r]))
            atomicMin(&shared.rank[group], r);
    }
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int64_t group = (int64_t)sizes[r] - args.first;
        if (group >= 0 && group < count && r >= shared.rank[group] &&
            (r == rows - 1 || sizes[r + 1] != sizes[r]))
            atomicMin(&shared.before[group], r + 1);
    }
    __syncthreads();
    size.first = shared.rank[threadIdx.x];
    size.m = size.first == INT32_MAX ? 0 : shared.before[threadIdx.x] - size.first;
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
        here.a_scale = scale_start(here.k, args.scale_a_block, args.scale_a_cols, &a_earlier,
                                   shared.of_warps);
        here.b_scale = scale_start(here.k, args.scale_b_block, args.scale_b_cols, &b_earlier,
                                   shared.of_warps);
        readable = readable && dgi_can_copy_columns(here.first, blocks ? mine : here.k, blocks);
        if (base == args.first)
            size = here;
    }
    /* What the copy engine cannot address would end the kernel: nothing is computed. */
    if (__syncthreads_or(!readable))
        size.m = 0;
}

__device__ __forceinline__ int32_t new_size(const int32_t *values, int32_t index, int32_t old,
                                            int32_t most)
{
    return values == nullptr ? old : max(0, min(values[index], most));
}

__device__ __forceinline__ void size_of_problem(const dgi_grouped_setup_args &args, int32_t index,
                                                product_size &size)
{
    const dgi_gemm_args &gemm = args.problems[index].gemm.args;
    size.m = size.n = size.k = 0;
    if (gemm.d.dtype == DGI_DEVICE_NONE) /* never set */
        return;
    size.m = new_size(args.values.m, index, gemm.m, args.like.gemm.args.m);
    size.n = gemm.n;
    size.k = gemm.k;
    if (gemm.packed != nullptr) /* whose shape does not change */
        return;
    size.n = new_size(args.values.n, index, gemm.n, args.like.gemm.args.n);
    size.k = new_size(args.values.k, index, gemm.k, args.like.gemm.args.k);
}

/*
 * Each product's place in the schedule, the longest first, to shared.rank. Where they are few, the
 * threads that have none compare for the others: each of them with every so many.
 */
__device__ __forceinline__ void rank_products(shared_sizes &shared, int32_t count)
{
    int32_t side = 32; /* threads side by side that have each another product */
    while (side < count)
        side *= 2;
    const int32_t product = threadIdx.x % side, k = shared.k[product];
    int32_t rank = 0;
    shared.rank[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x / side * 4; i < count; i += THREADS / side * 4) {
        const int4 other = *(const int4 *)(shared.k + i);
        rank += dgi_comes_before(other.x, i, k, product);
        rank += dgi_comes_before(other.y, i + 1, k, product);
        rank += dgi_comes_before(other.z, i + 2, k, product);
        rank += dgi_comes_before(other.w, i + 3, k, product);
    }
    atomicAdd(&shared.rank[product], rank);
    __syncthreads();
}

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
    g.scale_a.data = moved(g.scale_a.data,
                           size.a_scale * g.scale_a.col_stride * bytes_of(g.scale_a.dtype));
    g.scale_b.data = moved(g.scale_b.data,
                           size.b_scale * g.scale_b.col_stride * bytes_of(g.scale_b.dtype));
    if (groups.grouping == DGI_DEVICE_K_COLUMNS) {
        g.first_k = size.first; /* their maps begin where the whole matrices do */
    } else {
        p.a += (int64_t)size.first * g.m;
        p.b += (int64_t)size.first * g.n;
        p.lda = p.ldb = size.k;
    }
}

template <typename T>
__device__ __forceinline__ void take(T *&data, void *const *values, int32_t index)
{
    if (values != nullptr)
        data = (T *)values[index];
}

__device__ __forceinline__ void take_values(const dgi_device_values &values, int32_t index,
                                            const product_size &size, dgi_grouped_product &p)
{
    p.gemm.args.m = size.m;
    p.gemm.args.n = size.n;
    p.gemm.args.k = size.k;
    take(p.a, values.a, index);
    take(p.gemm.args.c.data, values.c, index);
    take(p.gemm.args.d.data, values.d, index);
    take(p.gemm.args.bias.data, values.bias, index);
    take(p.gemm.args.scale_a.data, values.scale_a, index);
    if (p.gemm.args.packed == nullptr) {
        take(p.b, values.b, index);
        take(p.gemm.args.scale_b.data, values.scale_b, index);
    }
    take(p.gemm.args.scale_d.data, values.scale_d, index);
}

/*
 * Sizes, schedule and maps. By three lanes, which write the same but each another one of the maps:
 * that of A, of B or of D.
 */
__device__ __forceinline__ void complete(const dgi_grouped_setup_args &args,
                                         const product_size &size, int32_t before,
                                         const dgi_grouped_product &p, dgi_grouped_record *record)
{
    const int map = threadIdx.x % 32;
    dgi_gemm_args &g = record->gemm.args;
    dgi_gemm_maps &maps = record->gemm.maps;
    const int32_t element = bytes_of(p.gemm.args.d.dtype);
    const int32_t tile_cols = (size.n + args.cluster_n - 1) / args.cluster_n;
    const int32_t tile_rows = dgi_tile_rows(size.m, args.tile_m);
    const int64_t pitch = p.gemm.args.d.ld * element;
    g.c = p.gemm.args.c;
    g.d = p.gemm.args.d;
    g.bias = p.gemm.args.bias;
    g.scale_a = p.gemm.args.scale_a;
    g.scale_b = p.gemm.args.scale_b;
    g.scale_d = p.gemm.args.scale_d;
    g.packed = p.gemm.args.packed;
    g.m = size.m;
    g.n = size.n;
    g.k = size.k;
    g.first_k = p.gemm.args.first_k;
    /* An address that the copy engine cannot use would end the kernel: nothing is computed. */
    const bool packed = g.packed != nullptr;
    const bool readable =
        size.k == 0 || (dgi_can_map((uintptr_t)p.a, size.m, p.lda) &&
                        (packed || dgi_can_map((uintptr_t)p.b, size.n, p.ldb)));
    g.tile_rows = readable ? tile_rows : 0;
    g.tile_cols = tile_cols;
    g.band = dgi_band(tile_rows, tile_rows * tile_cols, args.clusters, args.tile_m, args.cluster_n);
    g.first_cluster = dgi_first_cluster(before, args.clusters);
    /* As the host decides for dense products. */
    g.copy_out = p.gemm.args.copy_out &&
                 dgi_can_map((uintptr_t)p.gemm.args.d.data, size.m, pitch) &&
                 size.n * element % DGI_COPY_UNIT == 0;
    if (!readable || size.m == 0 || size.n == 0 || (map == 1 && packed) ||
        (map == 2 ? !g.copy_out : size.k == 0))
        return;
    const int32_t end = p.gemm.args.first_k + size.k, one_row = round_up(end, 16);
    const int32_t cols = map == 2 ? size.n : end, rows = map == 1 ? size.n : size.m;
    const int64_t several = map == 0 ? p.lda : map == 1 ? p.ldb : pitch;
    const int64_t single = map == 2 ? size.n * element : one_row;
    tensor_map_replace(map == 0 ? &maps.a : map == 1 ? &maps.b : &maps.d,
                       map == 0 ? p.a : map == 1 ? p.b : (const uint8_t *)p.gemm.args.d.data, cols,
                       rows, rows > 1 ? several : single);
    tensor_map_release();
}

/* The record of a product, by one warp. */
__device__ __forceinline__ void write_record(const dgi_grouped_setup_args &args, int32_t index,
                                             const shared_sizes &shared)
{
    const int lane = threadIdx.x % 32;
    const product_size size = shared.sizes[index];
    const int32_t rank = shared.rank[index], product = args.first + index;
    dgi_grouped_record *record = args.records + args.first + rank;
    dgi_grouped_product *problem = args.problems == nullptr ? nullptr : args.problems + product;
    const dgi_gemm_product *base = problem == nullptr ? &args.like.gemm : &problem->gemm;
    const uint64_t *from = (const uint64_t *)base;
    for (int i = lane; i < (int)(sizeof(dgi_gemm_product) / sizeof *from); i += 32)
        ((uint64_t *)&record->gemm)[i] = from[i];
    __syncwarp();
    if (lane > 2)
        return;
    if (problem != nullptr) {
        take_values(args.values, product, size, *problem);
        complete(args, size, shared.before[rank], *problem, record);
    } else {
        dgi_grouped_product p = args.like;
        move_product(args, product, size, p);
        complete(args, size, shared.before[rank], p, record);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_setup(const __grid_constant__ dgi_grouped_setup_args args)
{
    __shared__ shared_sizes shared;
    const int32_t index = threadIdx.x, product = args.first + index;
    const int32_t count = dgi_products_from(args.groups.count, args.first);
    const bool there = index < count;
    const dgi_gemm_args &like = args.like.gemm.args;
    launch_dependents(); /* the products wait for this kernel's end */
    product_size size = {like.m, like.n, like.k, 0, 0, 0};
    if (args.groups.grouping == DGI_DEVICE_BY_END)
        size_by_end(args, shared, size);
    else if (args.groups.grouping == DGI_DEVICE_BY_ROW)
        size_by_row(args, shared, size);
    else if (args.groups.grouping == DGI_DEVICE_MASKED)
        size.m = min(size_at(args, product), like.m);
    else if (args.groups.grouping != DGI_DEVICE_TABLE)
        size_along_k(args, shared, size);
    else if (there)
        size_of_problem(args, product, size);

    /* The schedule: longest first. */
    const bool varies = args.groups.grouping >= DGI_DEVICE_K_COLUMNS;
    int32_t rank = index;
    shared.k[index] = there ? size.k : -1;
    __syncthreads();
    if (varies) {
        rank_products(shared, count);
        if (there)
            rank = shared.rank[index];
    }
    const int32_t tiles = !there ? 0
                                 : dgi_tile_rows(size.m, args.tile_m) *
                                       ((size.n + args.cluster_n - 1) / args.cluster_n);
    shared.tiles[rank] = tiles;
    shared.sizes[index] = size;
    shared.rank[index] = rank;
    __syncthreads();
    const int64_t end = scan_sum(shared.tiles[index], shared.of_warps);
    shared.before[index + 1] = (int32_t)end;
    if (index == 0)
        shared.before[0] = 0;
    __syncthreads();
    if (blockIdx.x == 0) {
        for (int32_t i = index; i <= count; i += THREADS)
            args.before[dgi_before_place(args.first) + i] = shared.before[i];
        if (there && args.ranges != nullptr) {
            args.ranges[2 * product] = size.first;
            args.ranges[2 * product + 1] = size.first + size.m;
        }
    }
    for (int32_t i = index / 32 * gridDim.x + blockIdx.x; i < count; i += gridDim.x * WARPS)
        write_record(args, i, shared);
}
