/* SPDX-License-Identifier: MIT */
/*
 * grouped_setup: the schedule (core/grouped_schedule.h) of all products of a launch, by one CTA. A
 * thread has a product, later a place in the schedule, later a cluster. core/schedule.c does the
 * same on the host.
 */
#pragma once
#include "setup_sizes.cuh"

struct shared_schedule {
    int64_t of_warps[32];
    alignas(16) int32_t tile[DGI_MOST_PRODUCTS]; /* work of a product's tiles; -1: no product */
    int32_t rank[DGI_MOST_PRODUCTS];
    /* In the order of the schedule: */
    int32_t product[DGI_MOST_PRODUCTS];
    dgi_product_work work[DGI_MOST_PRODUCTS];
    /* Of stretches only: */
    int64_t end[DGI_MOST_PRODUCTS];      /* of each one's work, counted through all */
    int32_t last;                        /* the last product that has tiles */
    int64_t more[DGI_MOST_CLUSTERS + 1]; /* work in turn: more than the cluster before has */
    dgi_cut cuts[DGI_MOST_CLUSTERS + 1];
};

/*
 * Each product's place, the longest tiles first, to shared.rank. Where they are few, the threads
 * that have none compare for the others: each of them with every so many.
 */
__device__ __forceinline__ void rank_products(shared_schedule &shared, int32_t count)
{
    int32_t side = 32; /* threads side by side that have each another product */
    while (side < count)
        side *= 2;
    const int32_t product = threadIdx.x % side, tile = shared.tile[product];
    int32_t rank = 0;
    for (int32_t i = threadIdx.x / side * 4; i < count; i += THREADS / side * 4) {
        const int4 other = *(const int4 *)(shared.tile + i);
        rank += dgi_comes_before(other.x, i, tile, product);
        rank += dgi_comes_before(other.y, i + 1, tile, product);
        rank += dgi_comes_before(other.z, i + 2, tile, product);
        rank += dgi_comes_before(other.w, i + 3, tile, product);
    }
    atomicAdd(&shared.rank[product], rank);
    __syncthreads();
}

/* The work of `n` tiles, from number `begin` on, that clusters take in turn: what each gets is the
 * result, and those that get one more are noted in shared.more. */
__device__ __forceinline__ int64_t deal(shared_schedule &shared, int32_t begin, int32_t n,
                                        int64_t tile, int32_t clusters)
{
    const auto note = [&](int32_t cluster, int64_t work) {
        atomicAdd((unsigned long long *)&shared.more[cluster], (unsigned long long)work);
    };
    const int32_t rest = n % clusters, from = begin % clusters, to = from + rest;
    if (rest > 0) {
        note(from, tile);
        note(to <= clusters ? to : to - clusters, -tile);
        if (to > clusters)
            note(0, tile);
    }
    return n / clusters * tile;
}

/* Where each cluster's stretch begins. `here`: what follows this thread's product, `all`: of all.
 */
__device__ __forceinline__ void cut_stretches(const dgi_grouped_setup_args &args,
                                              shared_schedule &shared, int32_t in_turn_end,
                                              int32_t in_turn, int64_t all)
{
    const int32_t cluster = threadIdx.x, clusters = args.clusters;
    const bool is_border = cluster <= clusters;
    if (is_border)
        shared.more[cluster] = 0;
    __syncthreads();
    const int64_t tile = shared.work[threadIdx.x].tile;
    const int64_t each = deal(shared, in_turn_end - in_turn, in_turn, tile, clusters);
    scan_sum(each, shared.of_warps);
    const int64_t even = shared.of_warps[WARPS - 1];
    const int64_t more = scan_sum(is_border ? shared.more[cluster] : 0, shared.of_warps);
    const int64_t earlier = scan_sum(is_border ? more : 0, shared.of_warps) - more;
    if (!is_border)
        return;
    const int64_t border = cluster * all / clusters - (cluster * even + earlier);
    int32_t low = 0, high = shared.last; /* the first product that ends behind the border */
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (shared.end[middle] <= border)
            low = middle + 1;
        else
            high = middle;
    }
    shared.cuts[cluster] =
        dgi_cut_at(border - (low > 0 ? shared.end[low - 1] : 0), low, &shared.work[low]);
}

/* The schedule of the launch's products, of which this thread's has that work. */
__device__ __forceinline__ void write_schedule(const dgi_grouped_setup_args &args,
                                               shared_schedule &shared,
                                               const dgi_product_work &mine, int32_t count)
{
    const int32_t index = threadIdx.x, clusters = args.clusters;
    shared.tile[index] = index < count ? mine.tile : -1;
    shared.rank[index] = 0;
    __syncthreads();
    rank_products(shared, count);
    if (index < count) {
        shared.work[shared.rank[index]] = mine;
        shared.product[shared.rank[index]] = index;
    } else {
        shared.work[index] = {0, 0, 0, 0};
    }
    __syncthreads();

    const dgi_product_work work = shared.work[index];
    int32_t end = (int32_t)scan_sum(work.tiles, shared.of_warps), in_turn = work.tiles;
    bool stretch = args.schedule.slots != nullptr;
    if (stretch) {
        scan_sum(dgi_most_in_turn(end - work.tiles, &work, clusters), shared.of_warps);
        const int64_t most = shared.of_warps[WARPS - 1], here = (int64_t)work.tiles * work.tile;
        const int64_t so_far = scan_sum(here, shared.of_warps);
        const int64_t all = shared.of_warps[WARPS - 1];
        stretch = dgi_must_stretch(most, all, &args.rates, clusters);
        if (stretch) {
            shared.end[index] = so_far;
            if (work.tiles > 0 && (index == THREADS - 1 || shared.work[index + 1].tiles == 0))
                shared.last = index;
            in_turn -= dgi_stretched_tiles(so_far - here, &work, clusters);
            end = (int32_t)scan_sum(in_turn, shared.of_warps);
            cut_stretches(args, shared, end, in_turn, all);
            __syncthreads();
        }
    }
    if (index < count)
        args.schedule.turns[index] = {end, end - work.tiles, shared.product[index], work.tiles};
    if (index <= clusters) {
        dgi_cut cut = {0, 0, 0, 0, 0, 1, 0, 0};
        if (stretch) {
            cut = shared.cuts[index];
            cut.product = shared.product[cut.rank];
            dgi_find_parts(shared.cuts, index, clusters + 1, &cut);
        }
        args.schedule.cuts[index] = cut;
    }
    for (int32_t i = index; i < args.arrivals; i += THREADS)
        args.schedule.arrivals[i] = 0;
}
