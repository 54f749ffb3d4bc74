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
#include "grouped_args.h"
#include "ptx/dependent.cuh"
#include "ptx/tensor_map.cuh"

constexpr int THREADS = DGI_MOST_PRODUCTS, WARPS = THREADS / 32;

/* ---- scans over all threads ------------------------------------------------------------ */

static_assert(WARPS == 32, "a warp scans the sums of all warps");

/* The inclusive scan of a warp's values; `join(earlier, later)` must be associative. */
template <typename Join> __device__ __forceinline__ int64_t scan_warp(int64_t value, Join join)
{
#pragma unroll 1
    for (int distance = 1; distance < 32; distance *= 2) {
        const int64_t earlier = __shfl_up_sync(0xFFFFFFFF, value, distance);
        if (threadIdx.x % 32 >= distance)
            value = join(earlier, value);
    }
    return value;
}

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
    int32_t k[DGI_MOST_PRODUCTS], tiles[DGI_MOST_PRODUCTS]; /* tiles: in the schedule's order   */
    int32_t rank[DGI_MOST_PRODUCTS], before[DGI_MOST_PRODUCTS + 1];
    product_size sizes[DGI_MOST_PRODUCTS];
};

__device__ __forceinline__ int32_t round_up(int64_t value, int32_t unit)
{
    return (int32_t)min((value + unit - 1) / unit * unit, (int64_t)INT32_MAX);
}

/* What stands at `index` of an array of sizes, 0 behind its end. */
__device__ __forceinline__ int32_t size_at(const dgi_grouped_setup_args &args, int32_t index)
{
    return index < args.count ? max(args.sizes[index], 0) : 0;
}

/*
 * Group g begins at b = round_up(end of g - 1) and ends at max(b, its end). As a function of the
 * cursor c that is max(end, round_up(c)), and two such functions joined are another one of them:
 * max(end_2, round_up(end_1), round_up(c)). The groups of earlier launches only move the cursor.
 */
__device__ __forceinline__ void size_by_end(const dgi_grouped_setup_args &args,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t alignment = args.alignment, rows = args.like.gemm.m;
    const auto join = [alignment](int64_t x, int64_t y) {
        const int64_t begin = round_up(x, alignment);
        return begin > y ? begin : y;
    };
    int64_t earlier = 0, end, all = 0;
#pragma unroll 1
    for (int32_t base = 0; base <= args.first; base += THREADS) {
        earlier = join(earlier, all);
        end = scan((int64_t)min(size_at(args, base + (int32_t)threadIdx.x), rows), shared.of_warps,
                   join);
        all = shared.of_warps[WARPS - 1];
    }
    end = join(earlier, end);
    shared.rank[threadIdx.x] = (int32_t)end;
    __syncthreads();
    const int32_t cursor = threadIdx.x == 0 ? (int32_t)earlier : shared.rank[threadIdx.x - 1];
    size.first = round_up(cursor, alignment);
    size.m = max(0, min((int32_t)end, rows) - size.first);
}

/*
 * A group's rows are its first run of equal indices; `rank` and `before` hold what they begin and
 * end at.
 */
__device__ __forceinline__ void size_by_row(const dgi_grouped_setup_args &args,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t rows = args.like.gemm.m;
    const int32_t count = dgi_products_from(args.count, args.first);
    shared.rank[threadIdx.x] = shared.before[threadIdx.x] = INT32_MAX;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int64_t group = (int64_t)args.sizes[r] - args.first;
        if (group >= 0 && group < count && (r == 0 || args.sizes[r - 1] != args.sizes[r]))
            atomicMin(&shared.rank[group], r);
    }
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int64_t group = (int64_t)args.sizes[r] - args.first;
        if (group >= 0 && group < count && r >= shared.rank[group] &&
            (r == rows - 1 || args.sizes[r + 1] != args.sizes[r]))
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
    const int64_t k = args.like.gemm.k;
    const bool blocks = args.grouping == DGI_DEVICE_K_BLOCKS;
    const int32_t m = size.m;
    int64_t earlier = 0, a_earlier = 0, b_earlier = 0;
    bool readable = true;
#pragma unroll 1
    for (int32_t base = 0; base < args.count; base += THREADS) { /* those of later launches too */
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
    const dgi_gemm_args &gemm = args.problems[index].gemm;
    size.m = size.n = size.k = 0;
    if (gemm.d.dtype == DGI_DEVICE_NONE) /* never set */
        return;
    size.m = new_size(args.values.m, index, gemm.m, args.like.gemm.m);
    size.n = gemm.n;
    size.k = gemm.k;
    if (gemm.packed != nullptr) /* whose shape does not change */
        return;
    size.n = new_size(args.values.n, index, gemm.n, args.like.gemm.n);
    size.k = new_size(args.values.k, index, gemm.k, args.like.gemm.k);
}

/* ---- records --------------------------------------------------------------------------- */

__device__ __forceinline__ void *moved(const void *data, int64_t bytes)
{
    return data == nullptr ? nullptr : (uint8_t *)data + bytes;
}

__device__ __forceinline__ int32_t bytes_of(int32_t dtype)
{
    return dtype == DGI_DEVICE_F32                                ? 4
           : dtype == DGI_DEVICE_F16 || dtype == DGI_DEVICE_BF16 ? 2
                                                                  : 1;
}

__device__ __forceinline__ void move_rows(dgi_device_matrix &matrix, int32_t rows)
{
    matrix.data = moved(matrix.data, rows * matrix.ld * bytes_of(matrix.dtype));
}

/* A scale array for a matrix that begins `rows` rows further down. */
__device__ __forceinline__ void move_scale_rows(dgi_device_scale &scale, int32_t rows)
{
    if (scale.block_rows == 0)
        return;
    const int32_t at = rows + scale.row_phase;
    scale.data = moved(scale.data,
                       at / scale.block_rows * scale.row_stride * bytes_of(scale.dtype));
    scale.row_phase = at % scale.block_rows;
}

/* What differs from the first group. */
__device__ __forceinline__ void move_to_group(const dgi_grouped_setup_args &args, int32_t group,
                                              const product_size &size, dgi_grouped_product &p)
{
    dgi_gemm_args &g = p.gemm;
    const bool one_d = args.grouping == DGI_DEVICE_BY_END || args.grouping == DGI_DEVICE_BY_ROW;
    g.bias.data = moved(g.bias.data, group * args.bias_stride);
    if (one_d) {
        p.a += size.first * p.lda;
        move_rows(g.c, size.first);
        move_rows(g.d, size.first);
        move_scale_rows(g.scale_a, size.first);
        if (g.scale_d.data != nullptr)
            move_scale_rows(g.scale_d, size.first);
    } else {
        g.c.data = moved(g.c.data, group * args.c_stride);
        g.d.data = moved(g.d.data, group * args.d_stride);
        g.scale_d.data = moved(g.scale_d.data, group * args.scale_d_stride);
    }
    if (args.grouping == DGI_DEVICE_MASKED) {
        p.a += group * args.a_stride;
        g.scale_a.data = moved(g.scale_a.data, group * args.scale_a_stride);
    }
    if (args.packed != nullptr) {
        g.packed = args.packed[group];
        g.scale_b.data = moved(g.packed, args.packed_scales);
        return;
    }
    if (args.grouping <= DGI_DEVICE_MASKED) {
        p.b += group * args.b_stride;
        g.scale_b.data = moved(g.scale_b.data, group * args.scale_b_stride);
        return;
    }
    g.scale_a.data = moved(g.scale_a.data,
                           size.a_scale * g.scale_a.col_stride * bytes_of(g.scale_a.dtype));
    g.scale_b.data = moved(g.scale_b.data,
                           size.b_scale * g.scale_b.col_stride * bytes_of(g.scale_b.dtype));
    if (args.grouping == DGI_DEVICE_K_COLUMNS) {
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
    p.gemm.m = size.m;
    p.gemm.n = size.n;
    p.gemm.k = size.k;
    take(p.a, values.a, index);
    take(p.gemm.c.data, values.c, index);
    take(p.gemm.d.data, values.d, index);
    take(p.gemm.bias.data, values.bias, index);
    take(p.gemm.scale_a.data, values.scale_a, index);
    if (p.gemm.packed == nullptr) {
        take(p.b, values.b, index);
        take(p.gemm.scale_b.data, values.scale_b, index);
    }
    take(p.gemm.scale_d.data, values.scale_d, index);
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
    dgi_gemm_args &g = record->gemm;
    const int32_t element = bytes_of(p.gemm.d.dtype);
    const int32_t tile_cols = (size.n + args.cluster_n - 1) / args.cluster_n;
    const int32_t tile_rows = dgi_tile_rows(size.m, args.tile_m);
    const int64_t pitch = p.gemm.d.ld * element;
    g.c = p.gemm.c;
    g.d = p.gemm.d;
    g.bias = p.gemm.bias;
    g.scale_a = p.gemm.scale_a;
    g.scale_b = p.gemm.scale_b;
    g.scale_d = p.gemm.scale_d;
    g.packed = p.gemm.packed;
    g.m = size.m;
    g.n = size.n;
    g.k = size.k;
    g.first_k = p.gemm.first_k;
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
    g.copy_out = p.gemm.copy_out && dgi_can_map((uintptr_t)p.gemm.d.data, size.m, pitch) &&
                 size.n * element % DGI_COPY_UNIT == 0;
    if (!readable || size.m == 0 || size.n == 0 || (map == 1 && packed) ||
        (map == 2 ? !g.copy_out : size.k == 0))
        return;
    const int32_t end = p.gemm.first_k + size.k, one_row = round_up(end, 16);
    const int32_t cols = map == 2 ? size.n : end, rows = map == 1 ? size.n : size.m;
    const int64_t several = map == 0 ? p.lda : map == 1 ? p.ldb : pitch;
    const int64_t single = map == 2 ? size.n * element : one_row;
    tensor_map_replace(map == 0 ? &g.a_map : map == 1 ? &g.b_map : &g.d_map,
                       map == 0 ? p.a : map == 1 ? p.b : (const uint8_t *)p.gemm.d.data, cols, rows,
                       rows > 1 ? several : single);
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
    const uint4 *from = (const uint4 *)(problem == nullptr ? &args.like.gemm : &problem->gemm);
    for (int i = lane; i < (int)(sizeof(dgi_gemm_args) / sizeof *from); i += 32)
        ((uint4 *)&record->gemm)[i] = from[i];
    __syncwarp();
    if (lane > 2)
        return;
    if (problem != nullptr) {
        take_values(args.values, product, size, *problem);
        complete(args, size, shared.before[rank], *problem, record);
    } else {
        dgi_grouped_product p = args.like;
        move_to_group(args, product, size, p);
        complete(args, size, shared.before[rank], p, record);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_setup(const __grid_constant__ dgi_grouped_setup_args args)
{
    __shared__ shared_sizes shared;
    const int32_t index = threadIdx.x, product = args.first + index;
    const int32_t count = dgi_products_from(args.count, args.first);
    const bool there = index < count;
    const dgi_gemm_args &like = args.like.gemm;
    launch_dependents(); /* the products wait for this kernel's end */
    product_size size = {like.m, like.n, like.k, 0, 0, 0};
    if (args.grouping == DGI_DEVICE_BY_END)
        size_by_end(args, shared, size);
    else if (args.grouping == DGI_DEVICE_BY_ROW)
        size_by_row(args, shared, size);
    else if (args.grouping == DGI_DEVICE_MASKED)
        size.m = min(size_at(args, product), like.m);
    else if (args.grouping != DGI_DEVICE_TABLE)
        size_along_k(args, shared, size);
    else if (there)
        size_of_problem(args, product, size);

    /* The schedule: longest first. */
    const bool varies = args.grouping >= DGI_DEVICE_K_COLUMNS;
    int32_t rank = index;
    shared.k[index] = size.k;
    __syncthreads();
    if (varies && there) {
        rank = 0;
        for (int32_t i = 0; i < count; i++)
            rank += dgi_comes_before(shared.k[i], i, size.k, index);
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
    for (int32_t i = blockIdx.x * WARPS + index / 32; i < count; i += gridDim.x * WARPS)
        write_record(args, i, shared);
}
