/* SPDX-License-Identifier: MIT */
/*
 * The feeding warps of the decode kernel: tiles and scales.
 *
 * What the kernels before this one may still be writing is read only after they have ended. B is
 * fetched before that: to shared memory where the host says that it does not change, and to L2,
 * which everybody's writes go through, where it might.
 */
#pragma once
#include "../../core/packed_sm90.h"
#include "decode_codes.cuh"
#include "decode_common.cuh"
#include "ptx/async.cuh"
#include "ptx/bulk.cuh"
#include "ptx/copy.cuh"
#include "scales.cuh"

/* Walks over the stages of a share: tile by tile, each along K. */
struct stage_walk {
    int32_t tile, part;

    __device__ __forceinline__ explicit stage_walk(const share_of_work &work)
        : tile(work.cluster), part(work.begin)
    {
    }
    /* Returns whether another tile begins. */
    __device__ __forceinline__ bool advance(const share_of_work &work)
    {
        if (++part != work.end)
            return false;
        part = work.begin;
        tile += work.clusters;
        return true;
    }
};

/* How many there are. */
__device__ __forceinline__ int32_t count_stages(const dgi_decode_args &args,
                                                const share_of_work &work)
{
    int32_t stages = 0; /* without a division, as the first copies wait for this */
    for (int32_t tile = work.cluster; tile < args.tiles; tile += work.clusters)
        stages += work.end - work.begin;
    return stages;
}

/* Walks over the tiles of B that this CTA's stages hold. */
struct weight_walk {
    const dgi_decode_args &args;
    const share_of_work &work;
    stage_walk at;
    const uint8_t *packed; /* the tile, when B is packed */
    uint32_t bytes;        /* of it; a box counts in full, also where it passes the end of B */
    int64_t step;          /* from one part of K to the next */

    __device__ __forceinline__ weight_walk(const dgi_decode_args &arguments,
                                           const share_of_work &share)
        : args(arguments), work(share), at(share), step(dgi_packed_row(0, 1, arguments.product.n))
    {
        begin_tile();
    }
    __device__ __forceinline__ void begin_tile()
    {
        const int32_t row = at.tile * ROWS;
        packed = args.product.packed + dgi_packed_row(row, at.part, args.product.n);
        bytes = STAGE_K * ROWS;
        if (args.product.packed != 0 && args.product.n - row <= ROWS / 2)
            bytes /= 2;
    }
    __device__ __forceinline__ void advance()
    {
        packed += step;
        if (at.advance(work))
            begin_tile();
    }
    /* To shared memory; the stage also waits for its tile of A. */
    __device__ __forceinline__ void copy(uint32_t target, uint32_t barrier, uint64_t policy) const
    {
        mbarrier_arrive_expect(barrier, TOKENS * STAGE_K + bytes);
        if (args.product.packed != 0)
            copy_bytes_in(target, packed, bytes, barrier, policy);
        else
            copy_box_in(target, &args.b_map, at.part * STAGE_K, at.tile * ROWS, barrier);
    }
    /* To L2. */
    __device__ __forceinline__ void fetch() const
    {
        if (args.product.packed != 0)
            fetch_bytes(packed, bytes);
        else
            fetch_box(&args.b_map, at.part * STAGE_K, at.tile * ROWS);
    }
};

/* One thread, first of all: tiles of B for the stages of the ring. */
__device__ __forceinline__ void feed_first(const dgi_decode_args &args, const shared_memory &shared,
                                           const share_of_work &work)
{
    const uint64_t policy = read_once_policy();
    const int32_t first = min(STAGES, count_stages(args, work));
    weight_walk weights(args, work);
#pragma unroll 1
    for (int32_t i = 0; i < first; i++, weights.advance())
        if (args.early)
            weights.copy(shared.weights(i), shared.full(i), policy);
        else
            weights.fetch();
}

/* The same thread: fills the stages with tiles of A, and of B from then on. */
__device__ __forceinline__ void feed_tiles(const dgi_decode_args &args, const shared_memory &shared,
                                           const share_of_work &work)
{
    const uint64_t policy = read_once_policy();
    const int32_t stages = count_stages(args, work), first = min(STAGES, stages);
    stage_walk tokens(work);
    weight_walk weights(args, work);
    ring_place place;
    int32_t i = 0;
    for (int32_t j = 0; j < first; j++, tokens.advance(work))
        fetch_box(&args.a_map, tokens.part * STAGE_K, work.first_token);
    if (args.early) {
        for (; i < first; i++)
            weights.advance();
        place.advance_by_ring();
    }
    tokens = stage_walk(work);
    wait_for_earlier_kernels();
#pragma unroll
    for (int32_t j = 0; j < STAGES; j++, tokens.advance(work))
        if (j < first)
            copy_box_in(shared.tokens(j), &args.a_map, tokens.part * STAGE_K, work.first_token,
                        shared.full(j));
    /* The next kernel's reading of B follows on this one's: as long as this one has much to read,
     * it would only take memory and multiprocessors from it. */
    const int32_t let_in = stages - args.last;
    if (let_in <= STAGES)
        launch_dependents();
#pragma unroll 1
    for (; i < stages; i++, weights.advance(), place.advance()) {
        const uint32_t full = shared.full(place.stage);
        mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
        weights.copy(shared.weights(place.stage), full, policy);
        if (i >= first)
            copy_box_in(shared.tokens(place.stage), &args.a_map, weights.at.part * STAGE_K,
                        work.first_token, full);
        if (i > STAGES && i == let_in)
            launch_dependents();
    }
}

/*
 * One operand's scales, of every 32nd of its rows a lane, to the stages. Rows and parts of K
 * outside the operand get the nearest scale that exists; their codes are 0.
 */
template <int ROW_COUNT> struct scale_feed {
    static constexpr int COUNT = (ROW_COUNT + 31) / 32;
    using stage_words = uint32_t[PARTS][COUNT];
    scale_rows<COUNT> rows;
    int32_t last_part;

    __device__ __forceinline__ scale_feed(const dgi_device_scale &scale, int32_t first_row,
                                          int32_t last_row, int32_t k)
        : rows(scale, first_row + threadIdx.x % 32, 32, last_row), last_part((k - 1) / PART_K)
    {
    }
    /* Does something for each scale of a stage that begins at `part` of K. */
    template <typename action>
    __device__ __forceinline__ void each(const dgi_device_scale &from, int32_t part,
                                         action &&with) const
    {
        /* Usual, and cheap: each part has a scale of its own, or all share one. */
        if (from.block_cols <= 1)
            each_in(
                from, part, [&](int32_t unit) { return unit * from.block_cols; }, with);
        else
            each_in(
                from, part,
                [&](int32_t unit) { return scale_index(unit, from.block_cols, from.col_phase); },
                with);
    }
    static __device__ __forceinline__ uint32_t place(uint32_t stage, int j, int i)
    {
        return stage + (j * PART_SCALES + 32 * i + threadIdx.x % 32) * 4;
    }
    /* Floats go there by themselves. */
    __device__ __forceinline__ void copy(const dgi_device_scale &from, int32_t part,
                                         uint32_t target) const
    {
        each(from, part,
             [&](int j, int i, const void *source) { copy_word_in(place(target, j, i), source); });
    }
    /* Codes that are no floats have to be converted: all are loaded before one is waited for. */
    __device__ __forceinline__ void load(const dgi_device_scale &from, int32_t part,
                                         stage_words &words) const
    {
        if (rows.ue8m0)
            each(from, part, [&](int j, int i, const void *source) {
                words[j][i] = __ldg((const uint8_t *)source);
            });
        else
            each(from, part, [&](int j, int i, const void *source) {
                words[j][i] = __ldg((const uint32_t *)source);
            });
    }
    __device__ __forceinline__ void store(const stage_words &words, uint32_t target) const
    {
#pragma unroll
        for (int j = 0; j < PARTS; j++)
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (ROW_COUNT % 32 == 0 || threadIdx.x % 32 + 32 * i < ROW_COUNT)
                    shared_store(place(target, j, i), rows.ue8m0 ? scale_from_ue8m0(words[j][i])
                                                                 : __uint_as_float(words[j][i]));
    }

  private:
    template <typename index, typename action>
    __device__ __forceinline__ void each_in(const dgi_device_scale &from, int32_t part,
                                            index &&col_of, action &&with) const
    {
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            const int32_t col = col_of(min(part * PARTS + j, last_part));
#pragma unroll
            for (int i = 0; i < COUNT; i++)
                if (ROW_COUNT % 32 == 0 || threadIdx.x % 32 + 32 * i < ROW_COUNT)
                    with(j, i, rows.place(from, col, i));
        }
    }
};

/* The scales of a stage that begins at `part` of K; those of B only `with_b`. */
__device__ __forceinline__ void
feed_stage_scales(const scale_feed<TOKENS> &a, const dgi_device_scale &of_a,
                  const scale_feed<ROWS> &b, const dgi_device_scale &of_b, int32_t part,
                  bool with_b, const shared_memory &shared, const ring_place &place)
{
    const uint32_t target = shared_address(shared.scales) + place.stage * (STAGE_SCALES * 4);
    const uint32_t target_b = target + TOKENS * 4;
    const uint32_t full = shared.full(place.stage), empty = shared.empty(place.stage);
    if (a.rows.ue8m0 || b.rows.ue8m0) {
        scale_feed<TOKENS>::stage_words of_tokens = {};
        scale_feed<ROWS>::stage_words of_rows;
        a.load(of_a, part, of_tokens);
        b.load(of_b, part, of_rows);
        mbarrier_wait(empty, place.parity ^ 1);
        a.store(of_tokens, target);
        b.store(of_rows, target_b);
        mbarrier_arrive(full);
    } else {
        mbarrier_wait(empty, place.parity ^ 1);
        a.copy(of_a, part, target);
        if (with_b)
            b.copy(of_b, part, target_b);
        arrive_when_copied(full);
    }
}

/* Walks over the scales of B that this CTA's stages hold. */
struct scale_walk {
    const dgi_gemm_args &args;
    const share_of_work &work;
    stage_walk at;
    scale_feed<ROWS> feed;

    __device__ __forceinline__ scale_walk(const dgi_gemm_args &arguments,
                                          const share_of_work &share)
        : args(arguments), work(share), at(share),
          feed(arguments.scale_b, share.cluster * ROWS, arguments.n - 1, arguments.k)
    {
    }
    __device__ __forceinline__ void advance()
    {
        if (at.advance(work))
            feed = scale_feed<ROWS>(args.scale_b, at.tile * ROWS, args.n - 1, args.k);
    }
};

/*
 * One warp: the scales of the stages where those of B are codes. All have to be converted on the
 * way, so they are loaded some stages ahead.
 */
__device__ __forceinline__ void feed_codes(const dgi_decode_args &all, const shared_memory &shared,
                                           const share_of_work &work)
{
    constexpr int AHEAD = 3;
    const dgi_gemm_args &args = all.product;
    const uint32_t scales = shared_address(shared.scales), of_b = TOKENS * 4;
    const int32_t stages = count_stages(all, work);
    const scale_feed<TOKENS> a(args.scale_a, 0, args.m - 1, args.k);
    code_feed b(args.scale_b, work.cluster * ROWS, args.n);
    scale_feed<TOKENS>::stage_words of_tokens[AHEAD] = {};
    code_feed::stage_words of_rows[AHEAD];
    stage_walk at(work);
    ring_place place;
    const auto load = [&](int slot) {
        a.load(args.scale_a, at.part, of_tokens[slot]);
        b.load(at.part, of_rows[slot]);
        if (at.advance(work))
            b.begin_tile(at.tile * ROWS, args.n);
    };
    wait_for_earlier_kernels();
#pragma unroll
    for (int slot = 0; slot < AHEAD; slot++)
        if (slot < stages)
            load(slot);
#pragma unroll 1
    for (int32_t first = 0; first < stages; first += AHEAD) {
#pragma unroll
        for (int slot = 0; slot < AHEAD; slot++) {
            if (first + slot >= stages)
                break;
            const uint32_t target = scales + place.stage * (STAGE_SCALES * 4);
            mbarrier_wait(shared.empty(place.stage), place.parity ^ 1);
            a.store(of_tokens[slot], target);
            b.store(of_rows[slot], target + of_b);
            mbarrier_arrive(shared.full(place.stage));
            place.advance();
            if (first + slot + AHEAD < stages)
                load(slot);
        }
    }
}

/* One warp: gathers the scales of the stages. */
__device__ __forceinline__ void feed_scales(const dgi_decode_args &all, const shared_memory &shared,
                                            const share_of_work &work)
{
    const dgi_gemm_args &args = all.product;
    const uint32_t scales = shared_address(shared.scales), of_b = TOKENS * 4;
    if (code_feed::fits(args.scale_b, args.n, args.k)) {
        feed_codes(all, shared, work);
        return;
    }
    const bool convert =
        args.scale_a.dtype == DGI_DEVICE_UE8M0 || args.scale_b.dtype == DGI_DEVICE_UE8M0;
    const int32_t stages = count_stages(all, work);
    const int32_t early = all.early && !convert ? min(STAGES, stages) : 0;
    scale_walk ahead(args, work), b(args, work);
#pragma unroll 1
    for (int32_t i = 0; i < early; i++, ahead.advance())
        ahead.feed.copy(args.scale_b, ahead.at.part, scales + i * (STAGE_SCALES * 4) + of_b);
    wait_for_earlier_kernels();
    const scale_feed<TOKENS> a(args.scale_a, work.first_token, args.m - 1, args.k);
    ring_place place;
#pragma unroll 1
    for (int32_t i = 0; i < stages; i++, b.advance(), place.advance())
        feed_stage_scales(a, args.scale_a, b.feed, args.scale_b, b.at.part, i >= early, shared,
                          place);
}
