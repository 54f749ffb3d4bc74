/* SPDX-License-Identifier: MIT */
/*
 * The grouped GEMM for Hopper: the roles of gemm_dense.cu, which says what the build sets, for one
 * product after another. The rings and barriers go on from product to product, so a cluster's next
 * product is being loaded while it finishes the last one.
 *
 * The products are records that grouped_setup has left in device memory with a schedule, or groups
 * of rows, whose sizes every warp adds up itself.
 */
#include "gemm_feed.cuh"
#include "gemm_multiply.cuh"
#include "group.cuh"
#include "ptx/dependent.cuh"

constexpr int SHARED_BYTES =
    DGI_SHARED_BYTES(TILE_M, TILE_N, GROUPS, STAGES, PROMOTE_K, SPAN, ROWS);
static_assert(SHARED_BYTES + DGI_WARP_WALKS_BYTES(GROUPS) <= DGI_SHARED_LIMIT, "both fit");

/*
 * Walks over the products of which this cluster computes tiles, in one order for every role, and
 * leaves in now.args.range which tiles these are.
 */
struct product_walk {
    const dgi_grouped_args &all;
    dgi_warp_walk &now;
    const int32_t cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;

    __device__ __forceinline__ product_walk(const dgi_grouped_args &arguments,
                                            dgi_warp_walk &memory)
        : all(arguments), now(memory)
    {
        const int lane = threadIdx.x % 32;
        now.tile = cluster;
        if (all.records == nullptr) {
            now.batch = -32;
            now.end[lane] = now.first[lane] = now.rows[lane] = 0;
            copy(all.like);
        } else { /* both from memory at once */
            const dgi_turn turn = turn_of(lane);
            now.rank = first_of_stretch();
            now.batch = 0;
            keep(turn);
        }
        __syncwarp();
    }
    __device__ __forceinline__ bool next()
    {
        return (all.records != nullptr && next_of_stretch()) || next_in_turn();
    }

  private:
    __device__ __forceinline__ void copy(const dgi_gemm_product &from)
    {
        for (int i = threadIdx.x % 32; i < (int)(sizeof now.args / sizeof(uint64_t)); i += 32)
            ((uint64_t *)&now.args)[i] = ((const uint64_t *)&from.args)[i];
        now.maps = &from.maps;
        __syncwarp();
    }
    /* A product whose operands cannot be read has no rows of tiles. */
    __device__ __forceinline__ void take_range(int32_t first, int32_t end, int32_t step)
    {
        dgi_tile_range &range = now.args.range;
        range.first = first;
        range.end = now.args.tile_rows == 0 ? 0 : end;
        range.step = step;
        range.begin_stage = 0;
        range.end_stage = INT32_MAX;
    }
    __device__ __forceinline__ int32_t first_of_stretch() const
    {
        const dgi_cut &from = all.schedule.cuts[cluster], &to = all.schedule.cuts[cluster + 1];
        const bool none = from.rank == to.rank && from.tile == to.tile && from.stage == to.stage;
        return none ? INT32_MAX : from.rank;
    }
    __device__ __forceinline__ bool next_of_stretch()
    {
        const int32_t rank = now.rank;
        if (rank == INT32_MAX)
            return false;
        const dgi_cut &from = all.schedule.cuts[cluster], &to = all.schedule.cuts[cluster + 1];
        const bool is_first = rank == from.rank, is_last = rank == to.rank;
        const dgi_turn &turn = all.schedule.turns[rank];
        __syncwarp(); /* no lane reads the last product any more */
        copy(all.records[is_first ? from.product : turn.product].gemm);
        take_range(is_first ? from.tile : 0, is_last ? to.tile + (to.stage > 0) : turn.tiles, 1);
        dgi_tile_range &range = now.args.range;
        if (is_first)
            range.begin_stage = from.stage;
        if (is_last && to.stage > 0)
            range.end_stage = to.stage;
        range.head = {from.part, from.parts, from.slot};
        range.tail = {to.part - 1, to.parts, to.slot};
        now.rank = is_last ? INT32_MAX : rank + 1;
        __syncwarp();
        return true;
    }
    __device__ __forceinline__ bool next_in_turn()
    {
        const int32_t tile = now.tile;
        int32_t batch = now.batch;
        uint32_t found;
        while ((found = __ballot_sync(0xFFFFFFFF, now.end[threadIdx.x % 32] > tile)) == 0) {
            batch += 32;
            if (batch >= all.groups.count)
                return false;
            if (all.records != nullptr)
                keep(turn_of(batch + threadIdx.x % 32));
            else
                look_at_groups(batch);
        }
        const int lane = __ffs(found) - 1;
        if (all.records != nullptr)
            take_record(lane, tile);
        else
            take_group(batch, lane, tile);
        now.batch = batch;
        now.tile = dgi_next_tile(tile, now.end[lane], clusters);
        __syncwarp();
        return true;
    }
    __device__ __forceinline__ dgi_turn turn_of(int32_t rank) const
    {
        const dgi_turn none = {0, 0, 0, 0};
        return rank < all.groups.count ? all.schedule.turns[rank] : none;
    }
    __device__ __forceinline__ void keep(const dgi_turn &turn)
    {
        const int lane = threadIdx.x % 32;
        now.end[lane] = turn.end;
        now.first[lane] = turn.offset;
        now.rows[lane] = turn.product;
        __syncwarp();
    }
    __device__ __forceinline__ void take_record(int lane, int32_t tile)
    {
        copy(all.records[now.rows[lane]].gemm);
        take_range(tile - now.first[lane], now.end[lane] - now.first[lane], clusters);
    }
    __device__ __forceinline__ void look_at_groups(int32_t batch)
    {
        const int lane = threadIdx.x % 32;
        const group_rows group = next_group(all.groups, all.like.args, TILE_M, batch,
                                            now.first[31] + now.rows[31], now.end[31]);
        now.first[lane] = group.first;
        now.rows[lane] = group.rows;
        now.end[lane] = group.end;
        __syncwarp();
    }
    /* All lanes do the same. */
    __device__ __forceinline__ void take_group(int32_t batch, int lane, int32_t tile)
    {
        dgi_gemm_args &args = now.args;
        const int32_t group = batch + lane, first = now.first[lane], rows = now.rows[lane];
        const int32_t tile_rows = dgi_tile_rows(rows, TILE_M);
        const int32_t tiles = tile_rows * all.like.args.tile_cols;
        args.m = rows;
        args.tile_rows = tile_rows;
        args.band = dgi_band(tile_rows, tiles, clusters, TILE_M, TILE_N * CLUSTER);
        take_range(tile - (now.end[lane] - tiles), tiles, clusters);
        args.a_row = all.groups.grouping == DGI_DEVICE_MASKED ? group * all.like.args.m : first;
        args.d_row = args.a_row;
        args.b_row = group * all.like.args.n;
        move_to_group(all.groups, all.like.args, group, first, args);
    }
};

__device__ __forceinline__ void feed(product_walk &walk, const shared_memory &shared, int role)
{
    stage_place place;
    factor_place set;
    uint32_t turn = role % 2;
    while (walk.next()) {
        if (role == 0) {
            if (walk.all.records != nullptr) {
                tensor_map_acquire(&walk.now.maps->a);
                tensor_map_acquire(&walk.now.maps->b);
            }
            feed_tiles<true>(*walk.now.maps, walk.now.args, shared, place);
        } else if (role == 1) {
            feed_factors<true>(walk.now.args, shared, set);
        } else if (SPAN != 0) {
            feed_scales<true>(walk.now.args, shared, place, turn);
        }
    }
}

__device__ __forceinline__ void multiply_all(product_walk &walk, const shared_memory &shared,
                                             int group)
{
    const part_memory parts = {walk.all.schedule.arrivals, (float4 *)walk.all.schedule.slots};
    stage_place place;
    factor_place set;
    while (walk.next()) {
        if (!walk.now.args.copy_out) { /* the copy engine may still read the last one's panels */
            if (threadIdx.x % 32 == 0)
                copy_out_wait_read<0>();
            __syncwarp();
        } else if (walk.all.records != nullptr) {
            tensor_map_acquire(&walk.now.maps->d);
        }
        multiply_tiles<true>(*walk.now.maps, walk.now.args, shared, group, place, set, parts);
    }
    if (threadIdx.x % 32 == 0)
        copy_out_wait();
}

__device__ __forceinline__ void prefetch_maps(const dgi_gemm_product &product)
{
    if (product.args.k > 0) {
        tensor_map_prefetch(&product.maps.a);
        if (product.args.packed == nullptr)
            tensor_map_prefetch(&product.maps.b);
    }
    if (product.args.copy_out)
        tensor_map_prefetch(&product.maps.d);
}

/*
 * The schedule and all records to L2, by one warp, each CTA its share of the records: what a walk
 * reads hangs on what it has read before, and each trip to memory would hold up its tiles.
 */
__device__ __forceinline__ void fetch_records(const dgi_grouped_args &args)
{
    constexpr int LINE = 128, LINES = sizeof *args.records / LINE;
    const int32_t count = args.groups.count, lane = threadIdx.x % 32;
    const int32_t records = (count - (int32_t)blockIdx.x + (int32_t)gridDim.x - 1) / gridDim.x;
    const dgi_cut *cut = args.schedule.cuts + blockIdx.x / CLUSTER;
    if (lane < 2)
        fetch_line(cut + lane);
#pragma unroll 1
    for (int32_t i = lane * (LINE / sizeof(dgi_turn)); i < count;
         i += 32 * (LINE / sizeof(dgi_turn)))
        fetch_line(args.schedule.turns + i);
#pragma unroll 1
    for (int32_t i = lane; i < records * LINES; i += 32)
        fetch_line((const uint8_t *)&args.records[blockIdx.x + i / LINES * gridDim.x] +
                   i % LINES * LINE);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    DGI_KERNEL(const __grid_constant__ dgi_grouped_args args)
{
    DYNAMIC_SHARED(memory);
    const shared_memory shared(memory);
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    launch_dependents();
    if (warp == MATH_THREADS / 32 && args.records != nullptr)
        fetch_records(args);
    else if (threadIdx.x == MATH_THREADS)
        prefetch_maps(args.like);
    start_barriers(shared);
    wait_for_earlier_kernels(); /* which write the records, or the sizes */
    product_walk walk(args, ((dgi_warp_walk *)(memory + SHARED_BYTES))[warp]);
    if (warp >= MATH_THREADS / 32) {
        registers_release<FEED_REGISTERS>();
        feed(walk, shared, warp - MATH_THREADS / 32);
    } else {
        registers_take<MATH_REGISTERS>();
        multiply_all(walk, shared, warp / 4);
    }
    if (CLUSTER > 1) {
        __syncwarp();
        cluster_sync(); /* a CTA's shared memory must outlive what the others send to it */
    }
}
