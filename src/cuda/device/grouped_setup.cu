/* SPDX-License-Identifier: MIT */
/*
 * The first of a grouped call's two launches: from the sizes in device memory to one record for
 * each product and their schedule. Every CTA works out all sizes, a thread for each product, which
 * takes less time than sharing them would; then each writes some of the records, a warp for each.
 */
#include "../../core/copy_rules.h"
#include "../../core/grouped_schedule.h"
#include "grouped_args.h"
#include "ptx/tensor_map.cuh"

constexpr int THREADS = DGI_MOST_PRODUCTS, WARPS = THREADS / 32;

/* ---- scans over all threads ------------------------------------------------------------ */

/* The inclusive scan of `value`; `join(earlier, later)` must be associative. */
template <typename T, typename Join>
__device__ __forceinline__ T scan(T value, T *of_warps, Join join)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T earlier = __shfl_up_sync(0xFFFFFFFF, value, distance);
        if (lane >= distance)
            value = join(earlier, value);
    }
    __syncthreads();
    if (lane == 31)
        of_warps[warp] = value;
    __syncthreads();
    if (warp == 0) {
        T sum = of_warps[lane];
#pragma unroll
        for (int distance = 1; distance < WARPS; distance *= 2) {
            const T earlier = __shfl_up_sync(0xFFFFFFFF, sum, distance);
            if (lane >= distance)
                sum = join(earlier, sum);
        }
        of_warps[lane] = sum;
    }
    __syncthreads();
    return warp == 0 ? value : join(of_warps[warp - 1], value);
}

__device__ __forceinline__ int64_t scan_sum(int64_t value, int64_t *of_warps)
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

/*
 * Group g begins at b = round_up(end of g - 1) and ends at max(b, its end). As a function of the
 * cursor c that is max(end, round_up(c)), and two such functions joined are another one of them:
 * max(end_2, round_up(end_1), round_up(c)).
 */
__device__ __forceinline__ void size_by_end(const dgi_grouped_setup_args &args, bool there,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t alignment = args.alignment, rows = args.like.gemm.m;
    const int64_t mine = there ? max(min(args.sizes[threadIdx.x], rows), 0) : 0;
    const int64_t end = scan(mine, shared.of_warps, [alignment](int64_t x, int64_t y) {
        const int64_t begin = round_up(x, alignment);
        return begin > y ? begin : y;
    });
    /* The end of the group before: what this one's would be if it were the neutral 0. */
    shared.rank[threadIdx.x] = (int32_t)end;
    __syncthreads();
    const int32_t cursor = threadIdx.x == 0 ? 0 : shared.rank[threadIdx.x - 1];
    size.first = round_up(cursor, alignment);
    size.m = max(0, min((int32_t)end, rows) - size.first);
}

/* A group's rows are its first run of equal indices; `rank` and `before` hold what they begin and end at. */
__device__ __forceinline__ void size_by_row(const dgi_grouped_setup_args &args,
                                            shared_sizes &shared, product_size &size)
{
    const int32_t rows = args.like.gemm.m;
    shared.rank[threadIdx.x] = shared.before[threadIdx.x] = INT32_MAX;
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int32_t group = args.sizes[r];
        if (group >= 0 && group < args.count && (r == 0 || args.sizes[r - 1] != group))
            atomicMin(&shared.rank[group], r);
    }
    __syncthreads();
    for (int32_t r = threadIdx.x; r < rows; r += THREADS) {
        const int32_t group = args.sizes[r];
        if (group >= 0 && group < args.count && r >= shared.rank[group] &&
            (r == rows - 1 || args.sizes[r + 1] != group))
            atomicMin(&shared.before[group], r + 1);
    }
    __syncthreads();
    size.first = shared.rank[threadIdx.x];
    size.m = size.first == INT32_MAX ? 0 : shared.before[threadIdx.x] - size.first;
}

__device__ __forceinline__ int32_t scale_start(int32_t depth, int32_t block, int32_t cols,
                                               int64_t *of_warps)
{
    const int64_t need = block == 0 ? 0 : (depth + block - 1) / block;
    const int64_t start = scan_sum(need, of_warps) - need;
    return (int32_t)max((int64_t)0, min(start, cols - need)); /* never behind the last column */
}

__device__ __forceinline__ void size_along_k(const dgi_grouped_setup_args &args, bool there,
                                             shared_sizes &shared, product_size &size)
{
    const int64_t k = args.like.gemm.k, mine = there ? max(args.sizes[threadIdx.x], 0) : 0;
    const int64_t end = scan_sum(mine, shared.of_warps);
    size.first = (int32_t)min(end - mine, k);
    size.k = (int32_t)(min(end, k) - size.first);
    /* What the copy engine cannot address would end the kernel: nothing is computed. */
    const bool blocks = args.grouping == DGI_DEVICE_K_BLOCKS;
    if (__syncthreads_or(!dgi_can_copy_columns(size.first, blocks ? mine : size.k, blocks)))
        size.m = 0;
    size.a_scale = scale_start(size.k, args.scale_a_block, args.scale_a_cols, shared.of_warps);
    size.b_scale = scale_start(size.k, args.scale_b_block, args.scale_b_cols, shared.of_warps);
}

__device__ __forceinline__ int32_t new_size(const int32_t *values, int32_t old, int32_t most)
{
    return values == nullptr ? old : max(0, min(values[threadIdx.x], most));
}

__device__ __forceinline__ void size_of_problem(const dgi_grouped_setup_args &args,
                                                product_size &size)
{
    const dgi_gemm_args &gemm = args.problems[threadIdx.x].gemm;
    size.m = size.n = size.k = 0;
    if (gemm.d.dtype == DGI_DEVICE_NONE) /* never set */
        return;
    size.m = new_size(args.values.m, gemm.m, args.like.gemm.m);
    size.n = new_size(args.values.n, gemm.n, args.like.gemm.n);
    size.k = new_size(args.values.k, gemm.k, args.like.gemm.k);
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
    take(p.b, values.b, index);
    take(p.gemm.c.data, values.c, index);
    take(p.gemm.d.data, values.d, index);
    take(p.gemm.bias.data, values.bias, index);
    take(p.gemm.scale_a.data, values.scale_a, index);
    take(p.gemm.scale_b.data, values.scale_b, index);
    take(p.gemm.scale_d.data, values.scale_d, index);
}

/* Sizes, schedule and maps; by one thread. */
__device__ __forceinline__ void complete(const dgi_grouped_setup_args &args,
                                         const product_size &size, int32_t before,
                                         const dgi_grouped_product &p, dgi_grouped_record *record)
{
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
    g.m = size.m;
    g.n = size.n;
    g.k = size.k;
    g.first_k = p.gemm.first_k;
    g.tile_rows = tile_rows;
    g.tile_cols = tile_cols;
    g.band = dgi_band(tile_rows, tile_rows * tile_cols, args.clusters, args.tile_m, args.cluster_n);
    g.first_cluster = dgi_first_cluster(before, args.clusters);
    /* As the host decides for dense products. */
    g.copy_out = p.gemm.copy_out && dgi_can_map((uintptr_t)p.gemm.d.data, size.m, pitch) &&
                 size.n * element % DGI_COPY_UNIT == 0;
    if (size.m == 0 || size.n == 0)
        return;
    if (size.k != 0) {
        const int32_t end = p.gemm.first_k + size.k, one_row = round_up(end, 16);
        tensor_map_replace(&g.a_map, p.a, end, size.m, size.m > 1 ? p.lda : one_row);
        tensor_map_replace(&g.b_map, p.b, end, size.n, size.n > 1 ? p.ldb : one_row);
    }
    if (g.copy_out)
        tensor_map_replace(&g.d_map, p.gemm.d.data, size.n, size.m,
                           size.m > 1 ? pitch : size.n * element);
    tensor_map_release();
}

/* The record of a product, by one warp. */
__device__ __forceinline__ void write_record(const dgi_grouped_setup_args &args, int32_t index,
                                             const shared_sizes &shared)
{
    const int lane = threadIdx.x % 32;
    const product_size size = shared.sizes[index];
    const int32_t rank = shared.rank[index];
    dgi_grouped_record *record = args.records + rank;
    dgi_grouped_product *problem = args.problems == nullptr ? nullptr : args.problems + index;
    const uint4 *from = (const uint4 *)(problem == nullptr ? &args.like.gemm : &problem->gemm);
    for (int i = lane; i < (int)(sizeof(dgi_gemm_args) / sizeof *from); i += 32)
        ((uint4 *)&record->gemm)[i] = from[i];
    __syncwarp();
    if (lane != 0)
        return;
    if (problem != nullptr) {
        take_values(args.values, index, size, *problem);
        complete(args, size, shared.before[rank], *problem, record);
    } else {
        dgi_grouped_product p = args.like;
        move_to_group(args, index, size, p);
        complete(args, size, shared.before[rank], p, record);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    grouped_setup(const __grid_constant__ dgi_grouped_setup_args args)
{
    __shared__ shared_sizes shared;
    const int32_t index = threadIdx.x;
    const bool there = index < args.count;
    const dgi_gemm_args &like = args.like.gemm;
    product_size size = {like.m, like.n, like.k, 0, 0, 0};
    if (args.grouping == DGI_DEVICE_BY_END)
        size_by_end(args, there, shared, size);
    else if (args.grouping == DGI_DEVICE_BY_ROW)
        size_by_row(args, shared, size);
    else if (args.grouping == DGI_DEVICE_MASKED)
        size.m = there ? max(0, min(args.sizes[index], like.m)) : 0;
    else if (args.grouping != DGI_DEVICE_TABLE)
        size_along_k(args, there, shared, size);
    else if (there)
        size_of_problem(args, size);

    /* The schedule: longest first. */
    const bool varies = args.grouping >= DGI_DEVICE_K_COLUMNS;
    int32_t rank = index;
    shared.k[index] = size.k;
    __syncthreads();
    if (varies && there) {
        rank = 0;
        for (int32_t i = 0; i < args.count; i++)
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
        for (int32_t i = index; i <= args.count; i += THREADS)
            args.before[i] = shared.before[i];
        if (there && args.ranges != nullptr) {
            args.ranges[2 * index] = size.first;
            args.ranges[2 * index + 1] = size.first + size.m;
        }
    }
    for (int32_t i = blockIdx.x * WARPS + index / 32; i < args.count; i += gridDim.x * WARPS)
        write_record(args, i, shared);
}
