/* SPDX-License-Identifier: MIT */
/*
 * From the partial sums of a tile to D. The CTAs of a cluster each have partial sums of the whole
 * tile. Each one owns a share of its rows: the others send it what they have for them, it adds all
 * up in the order of their ranks, so that the bits are the same on every run, and writes D.
 */
#pragma once
#include "decode_common.cuh"
#include "decode_multiply.cuh"
#include "scales.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr uint32_t MATH_BARRIER = 1; /* a named barrier */

/* ---- sending ------------------------------------------------------------------------- */

/*
 * How the sums that a CTA receives lie in its shared memory: [sender][row of the share][column],
 * where the accumulators that a thread has for a row, of tokens 8 j + 2 q and the next, q = thread
 * % 4, lie side by side: column q * TOKENS / 4 + 2 j + token % 2. Four of them (two for 8 tokens)
 * are a group, and sent together.
 */
constexpr int PITCH = DGI_DECODE_PITCH(TOKENS); /* of the rows; no bank is met twice */
constexpr int GROUP = TOKENS == 8 ? 2 : 4, GROUPS_OF_ROW = TOKENS / GROUP;
constexpr int GROUPS_OF_THREAD = GROUPS_OF_ROW / 4;

/* The first token of a group: others are the next one and, in groups of four, those 8 later. */
__device__ __forceinline__ int32_t group_token(int32_t q, int32_t group)
{
    return 16 * group + 2 * q;
}

/* Bytes that a CTA receives for a tile. */
__device__ __forceinline__ uint32_t received_bytes(int32_t tokens)
{
    int32_t groups = 0;
#pragma unroll
    for (int q = 0; q < 4; q++)
        groups += min(GROUPS_OF_THREAD, max(0, (tokens - 2 * q + 15) / 16));
    return groups * GROUP * 4 * ROWS;
}

__device__ __forceinline__ void send(const accumulators &sum, const dgi_decode_args &args,
                                     const shared_memory &shared, const thread_place &thread,
                                     int32_t share, int32_t rank)
{
    const int32_t q = thread.token / 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t row = thread.row + 8 * half, owner = row / share;
        const int32_t place = (rank * share + row % share) * PITCH + q * (TOKENS / 4);
        const uint32_t target = shared.received_at + 4 * place;
        const uint32_t remote = args.split == 1 ? 0 : remote_address(target, owner);
        const uint32_t barrier = args.split == 1 ? 0 : remote_address(shared.all_received(), owner);
#pragma unroll
        for (int group = 0; group < GROUPS_OF_THREAD; group++) {
            float values[GROUP];
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                values[i] = sum[2 * GROUP * group + 4 * (i / 2) + 2 * half + i % 2];
            if (group_token(q, group) >= args.m)
                continue;
            if (args.split == 1)
                shared_store(target + 4 * GROUP * group, values);
            else
                remote_store(remote + 4 * GROUP * group, values, barrier);
        }
    }
}

/* ---- the result ---------------------------------------------------------------------- */

__device__ __forceinline__ float load_one(const dgi_device_matrix &matrix, int64_t place)
{
    if (matrix.dtype == DGI_DEVICE_F32)
        return ((const float *)matrix.data)[place];
    if (matrix.dtype == DGI_DEVICE_F16)
        return __half2float(((const __half *)matrix.data)[place]);
    return __bfloat162float(((const __nv_bfloat16 *)matrix.data)[place]);
}

/* FP8 results: code = round(value * (1 / scale)), saturating. */
__device__ __forceinline__ uint8_t code_of(const dgi_decode_args &args, int32_t token, int32_t n,
                                           float value)
{
    const dgi_device_scale &scale = args.scale_d;
    const int32_t col = scale_index(n, scale.block_cols, scale.col_phase);
    const float factor = scale_rows<1>(scale, token, 0, token).load_first(scale, col);
    return __nv_cvt_float_to_fp8(__fmul_rn(value, __frcp_rn(factor)), __NV_SATFINITE,
                                 args.d.dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

__device__ __forceinline__ void store_one(const dgi_decode_args &args, int32_t token, int32_t n,
                                          float value)
{
    const int64_t place = token * args.d.ld + n;
    if (args.beta != 0.0f)
        value += args.beta * load_one(args.c, token * args.c.ld + n);
    if (args.d.dtype == DGI_DEVICE_F32)
        ((float *)args.d.data)[place] = value;
    else if (args.d.dtype == DGI_DEVICE_F16)
        ((__half *)args.d.data)[place] = __float2half_rn(value);
    else if (args.d.dtype == DGI_DEVICE_BF16)
        ((__nv_bfloat16 *)args.d.data)[place] = __float2bfloat16_rn(value);
    else
        ((uint8_t *)args.d.data)[place] = code_of(args, token, n, value);
}

/*
 * What the sums are multiplied by, and the bias. They are read while the sums are computed, and
 * handed to all in shared memory: a thread of the first warpgroup reads those of one row of its
 * CTA's share, one of the second those of a token.
 */
struct factors {
    float factor, bias;

    __device__ __forceinline__ void read(const dgi_decode_args &args, int32_t first_n)
    {
        const bool of_row = threadIdx.x < ROWS;
        const int32_t index = threadIdx.x % ROWS, n = min(first_n + index, args.n - 1);
        float scale[1] = {1.0f};
        factor = 1.0f;
        if (SCALE_K == 0 && args.k > 0) {
            const dgi_device_scale &from = of_row ? args.scale_b : args.scale_a;
            scale_rows<1>(from, of_row ? n : index, 0, of_row ? n : args.m - 1)
                .load(from, 0, scale);
            factor = scale[0];
        }
        bias = args.bias.dtype != DGI_DEVICE_NONE && of_row ? load_one(args.bias, n) : 0.0f;
    }
    __device__ __forceinline__ void leave(const dgi_decode_args &args,
                                          const shared_memory &shared) const
    {
        const int32_t index = threadIdx.x % ROWS;
        if (threadIdx.x < ROWS) {
            shared.row_factors[index] = factor * args.alpha;
            shared.row_bias[index] = bias;
        } else if (index < TOKENS) {
            shared.token_factors[index] = factor;
        }
    }
};

/* Adds up this CTA's share and writes D: neighbouring threads write neighbouring columns. */
__device__ __forceinline__ void finish(const dgi_decode_args &args, const shared_memory &shared,
                                       int32_t share, int32_t first_n)
{
    const int32_t row = threadIdx.x % share, n = first_n + row;
    if (n >= args.n)
        return;
    const float row_factor = shared.row_factors[row], row_bias = shared.row_bias[row];
    for (int32_t i = threadIdx.x / share; i < GROUPS_OF_ROW; i += MATH_THREADS / share) {
        const int32_t q = i % 4, group = i / 4;
        const float *from = shared.received + row * PITCH + q * (TOKENS / 4) + GROUP * group;
        float sum[GROUP];
        if (group_token(q, group) >= args.m)
            continue;
        for (int32_t sender = 0; sender < args.split; sender++, from += share * PITCH) {
            float part[GROUP];
            shared_load(from, part);
#pragma unroll
            for (int j = 0; j < GROUP; j++)
                sum[j] = sender == 0 ? part[j] : sum[j] + part[j];
        }
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const int32_t token = group_token(q, group) + j / 2 * 8 + j % 2;
            if (token < args.m)
                store_one(args, token, n,
                          sum[j] * (shared.token_factors[token] * row_factor) + row_bias);
        }
    }
}

/* One math warpgroup: its rows of each tile of this CTA, from the first stage to D. */
__device__ __forceinline__ void multiply_tiles(const dgi_decode_args &args,
                                               const shared_memory &shared,
                                               const share_of_work &work, int group)
{
    const thread_place thread;
    const int32_t share = ROWS / args.split;
    ring_place place;
    uint32_t parity = 0;
    if (SCALE_K == 0 && args.k > 0 && threadIdx.x < ROWS) { /* safe at any time, as it ends in L2 */
        const int32_t n =
            min(work.first_tile * ROWS + work.rank * share + (int)threadIdx.x, args.n - 1);
        scale_rows<1>(args.scale_b, n, 0, n).fetch(args.scale_b, 0);
    }
    wait_for_earlier_kernels();
    for (int32_t tile = work.first_tile; tile < args.tiles; tile += work.tile_step, parity ^= 1) {
        const int32_t first_n = tile * ROWS + work.rank * share;
        factors factors;
        accumulators sum;
        if (SCALE_K == 0)
            factors.read(args, first_n);
        multiply_tile(sum, shared, thread, work.end - work.begin, group, place);
        if (SCALE_K != 0) /* only the bias: not worth registers meanwhile */
            factors.read(args, first_n);

        /* What this tile's sums and factors replace must have been read, in the whole cluster. */
        named_barrier(MATH_BARRIER, MATH_THREADS);
        if (args.split > 1 && tile == work.first_tile)
            cluster_wait(); /* all CTAs have set up their barriers */
        else if (args.split > 1)
            mbarrier_wait_cluster(shared.all_ready(), parity ^ 1);
        if (args.split > 1 && threadIdx.x == 0)
            mbarrier_arrive_expect(shared.all_received(), received_bytes(args.m));
        send(sum, args, shared, thread, share, work.rank);
        factors.leave(args, shared);
        named_barrier(MATH_BARRIER, MATH_THREADS);
        if (args.split > 1)
            mbarrier_wait_cluster(shared.all_received(), parity);
        finish(args, shared, share, first_n);
        if (args.split == 1 || tile + work.tile_step >= args.tiles)
            continue;
        named_barrier(MATH_BARRIER, MATH_THREADS);
        if (threadIdx.x < args.split)
            remote_arrive(remote_address(shared.all_ready(), threadIdx.x));
    }
}
