/* SPDX-License-Identifier: MIT */
/*
 * The GEMM for groups with few rows on Hopper: the roles of gemm_decode.cu, which says what the
 * build sets, for one group after another. Its time is that of reading B.
 *
 * The work of a cluster is units: a tile of 128 rows of a group's B by up to TOKENS of the group's
 * rows. The feeding warp adds up the groups' sizes, finds the cluster's next unit and leaves it in
 * a ring in shared memory, where the others wait for it. So the stages of the next units are loaded
 * while one is multiplied and written.
 */
#include "../../core/tile_order.h"
#include "decode_feed.cuh"
#include "decode_finish.cuh"
#include "group.cuh"
#include "grouped_few_args.h"

constexpr int UNITS = DGI_FEW_UNITS, BOX = DGI_FEW_BOX;
constexpr int UNIT_READERS = MATH_THREADS / 32 + (SCALE_K != 0); /* warps */
constexpr int ALL_SHARED_BYTES = DGI_GROUPED_FEW_SHARED_BYTES(TOKENS, STAGES, SCALE_K);
static_assert(TOKENS % BOX == 0 && sizeof(dgi_few_unit) % 8 == 0, "whole boxes, aligned units");

/* ---- the ring of units ----------------------------------------------------------------- */

/* A place in the ring, behind what all decode kernels have in shared memory. */
struct unit_ring {
    dgi_few_unit *units;
    int at = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ explicit unit_ring(uint8_t *memory)
        : units((dgi_few_unit *)(memory + SHARED_BYTES))
    {
    }
    __device__ __forceinline__ uint32_t full(int unit) const
    {
        return shared_address(units + UNITS) + 8 * unit;
    }
    __device__ __forceinline__ uint32_t empty(int unit) const
    {
        return full(UNITS + unit);
    }
    __device__ __forceinline__ void advance()
    {
        if (++at == UNITS) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* How the warps that do not feed walk over the units: see multiply_tiles(). */
struct unit_walk {
    unit_ring ring;

    __device__ __forceinline__ explicit unit_walk(const unit_ring &from) : ring(from)
    {
        wait();
    }
    __device__ __forceinline__ bool is_there() const
    {
        return ring.units[ring.at].tile >= 0;
    }
    __device__ __forceinline__ const dgi_gemm_args &product() const
    {
        return ring.units[ring.at].args;
    }
    __device__ __forceinline__ int32_t tile() const
    {
        return ring.units[ring.at].tile;
    }
    __device__ __forceinline__ void advance()
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(ring.empty(ring.at));
        ring.advance();
        wait();
    }

  private:
    __device__ __forceinline__ void wait() const
    {
        mbarrier_wait(ring.full(ring.at), ring.parity);
    }
};

/* ---- the feeding warp ------------------------------------------------------------------ */

/* Finds the units of a cluster: those of a group follow each other, and of these those with the
 * same tile of B, which is read from memory once. */
struct unit_search {
    const dgi_grouped_few_args &all;
    group_rows lane = {0, 0, 0}; /* of the groups from `batch` on, a lane each */
    int32_t batch = -32, next;

    __device__ __forceinline__ unit_search(const dgi_grouped_few_args &arguments,
                                           const share_of_work &work)
        : all(arguments), next(work.cluster)
    {
    }
    /* The next one, by all lanes, of which the first writes it. */
    __device__ __forceinline__ bool find(const share_of_work &work, dgi_few_unit &unit)
    {
        const dgi_gemm_args &like = all.like.args;
        uint32_t found;
        while ((found = __ballot_sync(0xFFFFFFFF, lane.end > next)) == 0) {
            batch += 32;
            if (batch >= all.groups.count)
                return false;
            lane = next_group(all.groups, like, TOKENS, batch,
                              __shfl_sync(0xFFFFFFFF, lane.first + lane.rows, 31),
                              __shfl_sync(0xFFFFFFFF, lane.end, 31));
        }
        const int from = __ffs(found) - 1;
        const int32_t first = __shfl_sync(0xFFFFFFFF, lane.first, from);
        const int32_t rows = __shfl_sync(0xFFFFFFFF, lane.rows, from);
        const int32_t end = __shfl_sync(0xFFFFFFFF, lane.end, from);
        const int32_t heights = dgi_tile_rows(rows, TOKENS);
        const dgi_tile tile =
            dgi_tile_at(next - (end - heights * like.tile_cols), heights, like.tile_cols, heights);
        next += work.clusters;
        if (threadIdx.x % 32 == 0) {
            unit.tile = tile.col;
            take(batch + from, first, rows, tile.row * TOKENS, unit.args);
        }
        return true;
    }

  private:
    /* TOKENS of a group's rows, from `row` on, as a product of its own. */
    __device__ __forceinline__ void take(int32_t group, int32_t first, int32_t rows, int32_t row,
                                         dgi_gemm_args &args) const
    {
        const dgi_gemm_args &like = all.like.args;
        args = like;
        args.m = min(rows - row, TOKENS);
        args.a_row = (all.groups.grouping == DGI_DEVICE_MASKED ? group * like.m : first) + row;
        args.b_row = group * like.n;
        move_to_group(all.groups, like, group, first, args);
        if (like.packed != nullptr && all.groups.packed == nullptr) {
            args.packed = all.packed[group];
            args.scale_b.data = moved(args.packed, all.groups.packed_scales);
        }
        move_rows(dgi_gemm_args(args), row, args);
    }
};

/* One thread: the stages of a unit. */
__device__ __forceinline__ void feed_unit(const dgi_gemm_maps &maps, const dgi_few_unit &unit,
                                          const shared_memory &shared, const share_of_work &work,
                                          uint64_t policy, ring_place &place)
{
    const dgi_gemm_args &args = unit.args;
    const int32_t row = unit.tile * ROWS, b_row = args.b_row + row;
    const int32_t a_row = args.a_row, boxes = (args.m + BOX - 1) / BOX;
    const uint8_t *const packed = args.packed;
    const uint8_t *from = packed + dgi_packed_row(row, work.begin, args.n);
    const int64_t step = dgi_packed_row(0, 1, args.n);
    /* A box counts in full, also where it passes the end of B; packed rows end there. */
    const bool half = packed != nullptr && args.n - row <= ROWS / 2;
    const uint32_t bytes = ROWS * STAGE_K >> half;
#pragma unroll 1
    for (int32_t part = work.begin; part < work.end; part++, from += step, place.advance()) {
        const uint32_t weights = shared.weights(place.stage), tokens = shared.tokens(place.stage);
        const uint32_t full = shared.full(place.stage);
        mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
        mbarrier_arrive_expect(full, bytes + boxes * (BOX * STAGE_K));
        if (packed != nullptr)
            copy_bytes_in(weights, from, bytes, full, policy);
        else
            copy_box_in(weights, &maps.b, part * STAGE_K, b_row, full);
#pragma unroll 1
        for (int32_t box = 0; box < boxes; box++)
            copy_box_in(tokens + box * (BOX * STAGE_K), &maps.a, part * STAGE_K, a_row + box * BOX,
                        full);
    }
}

/* One warp: finds the units, and fills the stages. */
__device__ __forceinline__ void feed_units(const dgi_grouped_few_args &all,
                                           const shared_memory &shared, const share_of_work &work,
                                           unit_ring ring)
{
    const uint64_t policy = read_once_policy();
    unit_search search(all, work);
    ring_place place;
    for (bool more = true; more; ring.advance()) {
        dgi_few_unit &unit = ring.units[ring.at];
        mbarrier_wait(ring.empty(ring.at), ring.parity ^ 1);
        more = search.find(work, unit);
        if (threadIdx.x % 32 == 0) {
            if (!more)
                unit.tile = -1;
            mbarrier_arrive(ring.full(ring.at));
            if (more)
                feed_unit(all.like.maps, unit, shared, work, policy, place);
        }
        __syncwarp();
    }
}

/* Another warp: the scales of the stages. */
__device__ __forceinline__ void feed_unit_scales(const shared_memory &shared,
                                                 const share_of_work &work, unit_walk at)
{
    ring_place place;
    for (; at.is_there(); at.advance()) {
        const dgi_gemm_args &args = at.product();
        const dgi_device_scale of_a = args.scale_a, of_b = args.scale_b;
        const scale_feed<TOKENS> a(of_a, 0, args.m - 1, args.k);
        const scale_feed<ROWS> b(of_b, at.tile() * ROWS, args.n - 1, args.k);
#pragma unroll 1
        for (int32_t part = work.begin; part < work.end; part++, place.advance())
            feed_stage_scales(a, of_a, b, of_b, part, true, shared, place);
    }
}

/* ---- the kernel ------------------------------------------------------------------------ */

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT(ALL_SHARED_BYTES))
    DGI_KERNEL(const __grid_constant__ dgi_grouped_few_args args)
{
    DYNAMIC_SHARED(memory);
    const shared_memory shared(memory);
    const unit_ring ring(memory);
    const share_of_work work(args.like.args.k, args.split, false);
    const int warp = __shfl_sync(0xFFFFFFFF, threadIdx.x / 32, 0);
    launch_dependents();
    if (threadIdx.x == MATH_THREADS) {
        start_barriers(shared, args.split);
        for (int unit = 0; unit < UNITS; unit++) {
            mbarrier_init(ring.full(unit), 1);
            mbarrier_init(ring.empty(unit), UNIT_READERS);
        }
        mbarrier_init_fence();
        if (args.like.args.k > 0) {
            tensor_map_prefetch(&args.like.maps.a);
            if (args.like.args.packed == nullptr)
                tensor_map_prefetch(&args.like.maps.b);
        }
    }
    __syncthreads();
    if (args.split > 1)
        cluster_arrive();
    wait_for_earlier_kernels(); /* which write the sizes */

    if (warp < MATH_THREADS / 32) {
        unit_walk units(ring);
        multiply_tiles(units, shared, work, warp / 4);
        return;
    }
    if (warp == MATH_THREADS / 32)
        feed_units(args, shared, work, ring);
    else if (SCALE_K != 0)
        feed_unit_scales(shared, work, unit_walk(ring));
    __syncwarp();
    if (args.split > 1)
        cluster_wait();
}
