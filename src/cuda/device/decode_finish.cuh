/* SPDX-License-Identifier: MIT */
/*
 * From the partial sums of a tile to D. The CTAs of a cluster each have partial sums of the whole
 * tile. Each one owns a share of its rows: the others send it what they have for them, it adds all
 * up in the order of their ranks, so that the bits are the same on every run, and writes D.
 */
#pragma once
#include "decode_common.cuh"
#include "decode_multiply.cuh"
#include "ptx/panel.cuh"
#include "scales.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr uint32_t MATH_BARRIER = 1; /* a named barrier */

/* ---- sums in shared memory ------------------------------------------------------------- */

/*
 * A cell is what a warp's accumulators are for 8 rows and 16 tokens (8 where there are no more):
 * lane l has row l / 4 and tokens 2 (l % 4), the next, and the two that follow 8 later, side by
 * side. A CTA receives the cells of [sender][8 rows of its share][16 tokens].
 */
constexpr int CELL = TOKENS == 8 ? 2 : 4;  /* values of a lane */
constexpr int CELLS = TOKENS / (4 * CELL); /* of 8 rows        */
constexpr int CELL_BYTES = 32 * CELL * 4;

/* Where this lane's values of a cell lie; `block`: of 8 rows, of all senders together. */
__device__ __forceinline__ uint32_t cell_place(int32_t block, int32_t cell)
{
    return (block * CELLS + cell) * CELL_BYTES + threadIdx.x % 32 * (CELL * 4);
}

/* The first token of this lane in a cell. */
__device__ __forceinline__ int32_t cell_token(const thread_place &thread, int32_t cell)
{
    return 16 * cell + thread.token;
}

/* Bytes that a CTA receives for a tile from the others. */
__device__ __forceinline__ uint32_t received_bytes(int32_t tokens, int32_t split)
{
    int32_t lanes = 0;
#pragma unroll
    for (int q = 0; q < 4; q++)
        lanes += min(CELLS, max(0, (tokens - 2 * q + 15) / 16));
    return lanes * CELL * 4 * (ROWS - ROWS / split);
}

__device__ __forceinline__ void send(const accumulators &sum, const dgi_gemm_args &args,
                                     const shared_memory &shared, const thread_place &thread,
                                     const share_of_work &work)
{
    const int32_t share = ROWS / work.split, log = __ffs(share) - 1;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int32_t row = threadIdx.x / 32 * 16 + 8 * half, owner = row >> log;
        const int32_t block = (work.rank * share + (row & (share - 1))) / 8;
        const uint32_t local = shared.received + cell_place(block, 0);
        const uint32_t remote = remote_address(local, owner);
        const uint32_t barrier = remote_address(shared.all_received(), owner);
#pragma unroll
        for (int cell = 0; cell < CELLS; cell++) {
            float values[CELL];
            if (work.first_token + cell_token(thread, cell) >= args.m)
                break;
#pragma unroll
            for (int i = 0; i < CELL; i++)
                values[i] = sum[2 * CELL * cell + 4 * (i / 2) + 2 * half + i % 2];
            if (owner == work.rank)
                shared_store(local + cell * CELL_BYTES, values);
            else
                remote_store(remote + cell * CELL_BYTES, values, barrier);
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
__device__ __forceinline__ uint8_t code_of(const dgi_gemm_args &args, int32_t token, int32_t n,
                                           float value)
{
    const dgi_device_scale &scale = args.scale_d;
    const int32_t col = scale_index(n, scale.block_cols, scale.col_phase);
    const float factor = scale_rows<1>(scale, token, 0, token).load_first(scale, col);
    return __nv_cvt_float_to_fp8(__fmul_rn(value, __frcp_rn(factor)), __NV_SATFINITE,
                                 args.d.dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2);
}

__device__ __forceinline__ void store_one(const dgi_gemm_args &args, int32_t token, int32_t n,
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
 * handed to all in shared memory, in one of two sets, as others may still use those of the tile
 * before: a thread of the first warpgroup reads those of one row of its CTA's share, one of the
 * second those of a token.
 */
struct factors {
    float *rows, *bias, *tokens;

    __device__ __forceinline__ factors(const shared_memory &shared, int set)
        : rows(shared.factors + set * DGI_DECODE_FACTORS(TOKENS)), bias(rows + ROWS),
          tokens(bias + ROWS)
    {
    }
};

struct own_factor {
    float factor, bias;

    __device__ __forceinline__ void read(const dgi_gemm_args &args, int32_t first_n,
                                         int32_t first_token)
    {
        const bool of_row = threadIdx.x < ROWS;
        const int32_t index = threadIdx.x % ROWS, n = min(first_n + index, args.n - 1);
        float scale[1] = {1.0f};
        factor = 1.0f;
        if (SCALE_K == 0 && args.k > 0) {
            const dgi_device_scale &from = of_row ? args.scale_b : args.scale_a;
            scale_rows<1>(from, of_row ? n : first_token + index, 0, of_row ? n : args.m - 1)
                .load(from, 0, scale);
            factor = scale[0];
        }
        bias = args.bias.dtype != DGI_DEVICE_NONE && of_row ? load_one(args.bias, n) : 0.0f;
    }
    __device__ __forceinline__ void leave(const dgi_gemm_args &args, const factors &to) const
    {
        const int32_t index = threadIdx.x % ROWS;
        if (threadIdx.x < ROWS) {
            to.rows[index] = factor * args.alpha;
            to.bias[index] = bias;
        } else if (index < TOKENS) {
            to.tokens[index] = factor;
        }
    }
};

/* ---- finishing ------------------------------------------------------------------------- */

/* Sums of two cells, 16 rows: what a warp finishes at a time. */
using unit_sums = float[2][CELL];

struct unit {
    const dgi_gemm_args &args;
    const factors &with;
    const thread_place &thread;
    int32_t first_token;  /* of this CTA's                                                   */
    int32_t n, row, cell; /* its first column of D, the same in this CTA's share, its tokens */

    __device__ __forceinline__ int32_t token(int i) const
    {
        return cell_token(thread, cell) + 8 * (i / 2) + i % 2;
    }
    /* Sums become values of D, but for C. */
    __device__ __forceinline__ void scale(unit_sums &sums) const
    {
        const int32_t lane_row = row + threadIdx.x % 32 / 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float factor = with.rows[(lane_row + 8 * half) % ROWS];
            const float bias = with.bias[(lane_row + 8 * half) % ROWS];
#pragma unroll
            for (int i = 0; i < CELL; i++)
                sums[half][i] = sums[half][i] * (with.tokens[token(i)] * factor) + bias;
        }
    }
    /* Results of 16 bits without C: turned in shared memory, then written 16 bytes at a time. */
    __device__ __forceinline__ void write_narrow(const unit_sums &values, uint32_t panel,
                                                 int32_t rows) const
    {
        const int32_t lane = threadIdx.x % 32;
        const bool f16 = args.d.dtype == DGI_DEVICE_F16;
        uint32_t pairs[4] = {};
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < CELL; i += 2)
                pairs[i + half] = pack_pair(values[half][i], values[half][i + 1], f16);
        /* The panel has 32 bytes for a token. Lane l gives the place of token l % 8, of those 8
         * later for the last two matrices, of the last 8 rows for the second and the fourth. */
        const int32_t at = lane % 8 + lane / 16 * 8;
        __syncwarp(); /* all have read what lay there */
        stmatrix_x4_turned(panel + dgi_decode_panel(at, lane / 8 % 2), pairs);
        __syncwarp();
        const int32_t here = 16 * cell + lane / 2, first = n + lane % 2 * 8;
        const uint4 chunk = load_chunk(panel + dgi_decode_panel(lane / 2, lane % 2));
        if (first_token + here >= args.m || lane % 2 * 8 >= rows || lane / 2 >= 4 * CELL)
            return;
        uint16_t *to = (uint16_t *)args.d.data + (first_token + here) * args.d.ld + first;
        if (first + 8 <= args.n && (uint64_t)to % 16 == 0) {
            *(uint4 *)to = chunk;
            return;
        }
        const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (first + i < args.n)
                to[i] = (uint16_t)(words[i / 2] >> i % 2 * 16);
    }
    __device__ __forceinline__ void write_any(const unit_sums &values, int32_t rows) const
    {
#pragma unroll 1 /* long code, which would have to be read as well */
        for (int i = 0; i < rows / 8 * CELL; i++) {
            const int32_t at = first_token + token(i % CELL);
            const int32_t lane_n = n + threadIdx.x % 32 / 4 + i / CELL * 8;
            float value = 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * CELL; j++)
                value = i == j ? values[j / CELL][j % CELL] : value;
            if (lane_n < args.n && at < args.m)
                store_one(args, at, lane_n, value);
        }
    }
};

/* Adds up this CTA's share, which it has received, and writes D. */
__device__ __forceinline__ void finish(const dgi_gemm_args &args, const shared_memory &shared,
                                       const factors &with, const thread_place &thread,
                                       const share_of_work &work, int32_t first_n, bool narrow)
{
    constexpr int AT_ONCE = 16 / CELL; /* senders whose sums are loaded before any is added */
    const int32_t split = work.split, share = ROWS / split, rows = min(share, 16);
    for (int32_t i = threadIdx.x / 32; i < max(share / 16, 1) * CELLS; i += MATH_THREADS / 32) {
        const int32_t row = i / CELLS * 16, cell = i % CELLS;
        const unit unit = {args, with, thread, work.first_token, first_n + row, row, cell};
        const uint32_t from = shared.received + cell_place(row / 8, cell);
        uint32_t next = from;
        unit_sums sums = {};
        if (work.first_token + 16 * cell >= args.m || unit.n >= args.n)
            continue;
        for (int32_t sender = 0; sender < split; sender += AT_ONCE) {
            unit_sums parts[AT_ONCE] = {};
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++, next += share / 8 * (CELLS * CELL_BYTES))
#pragma unroll
                for (int half = 0; half < 2; half++)
                    if (sender + j < split && 8 * half < rows)
                        shared_load(next + half * (CELLS * CELL_BYTES), parts[j][half]);
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++)
#pragma unroll
                for (int value = 0; value < 2 * CELL; value++)
                    sums[value / CELL][value % CELL] += parts[j][value / CELL][value % CELL];
        }
        unit.scale(sums);
        if (narrow)
            unit.write_narrow(sums, from - threadIdx.x % 32 * (CELL * 4), rows);
        else
            unit.write_any(sums, rows);
    }
}

/* The same where K is not split: a warp has all sums of its rows. */
__device__ __forceinline__ void finish_own(const accumulators &sum, const dgi_gemm_args &args,
                                           const shared_memory &shared, const factors &with,
                                           const thread_place &thread, const share_of_work &work,
                                           int32_t first_n)
{
    const int32_t row = threadIdx.x / 32 * 16;
    const uint32_t panel = shared.received + threadIdx.x / 32 * (16 * TOKENS * 4);
#pragma unroll
    for (int cell = 0; cell < CELLS; cell++) {
        const unit unit = {args, with, thread, work.first_token, first_n + row, row, cell};
        unit_sums sums;
        if (work.first_token + 16 * cell >= args.m || unit.n >= args.n)
            break;
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < CELL; i++)
                sums[half][i] = sum[2 * CELL * cell + 4 * (i / 2) + 2 * half + i % 2];
        unit.scale(sums);
        unit.write_narrow(sums, panel, 16);
    }
}

/*
 * One math warpgroup: its rows of each tile of this CTA, from the first stage to D. The walk says
 * which tile of which product is next.
 */
template <typename tiles>
__device__ __forceinline__ void multiply_tiles(tiles &at, const shared_memory &shared,
                                               const share_of_work &work, int group)
{
    const thread_place thread;
    const int32_t split = work.split;
    ring_place place;
    uint32_t parity = 0;
    if (split > 1)
        cluster_wait(); /* all CTAs have set up their barriers */
    for (bool first = true, more = at.is_there(); more; first = false, parity ^= 1) {
        const dgi_gemm_args &args = at.product();
        const bool narrow = (args.d.dtype == DGI_DEVICE_BF16 || args.d.dtype == DGI_DEVICE_F16) &&
                            args.beta == 0.0f;
        const int32_t first_n = at.tile() * ROWS + work.rank * (ROWS / split);
        const factors factors(shared, (int)parity);
        own_factor own;
        accumulators sum;
        if (split > 1 && threadIdx.x == 0)
            mbarrier_arrive_expect(shared.all_received(),
                                   received_bytes(args.m - work.first_token, split));
        if (SCALE_K == 0)
            own.read(args, first_n, work.first_token);
        multiply_tile(sum, shared, thread, work.end - work.begin, group, place);
        if (SCALE_K != 0) /* only the bias: not worth registers meanwhile */
            own.read(args, first_n, work.first_token);
        own.leave(args, factors);

        /* What this tile's sums replace must have been read, in the whole cluster. */
        if (split > 1 && !first)
            mbarrier_wait_cluster(shared.all_ready(), parity ^ 1);
        const bool keep = split == 1 && narrow;
        if (!keep)
            send(sum, args, shared, thread, work);
        named_barrier(MATH_BARRIER, MATH_THREADS); /* for the factors */
        if (keep) {
            finish_own(sum, args, shared, factors, thread, work, first_n);
        } else {
            if (split > 1)
                mbarrier_wait_cluster(shared.all_received(), parity);
            finish(args, shared, factors, thread, work, first_n, narrow);
        }
        at.advance();
        more = at.is_there();
        if (!more || keep)
            continue;
        named_barrier(MATH_BARRIER, MATH_THREADS);
        if (split > 1 && threadIdx.x < split)
            mbarrier_arrive_cluster(shared.all_ready(), threadIdx.x);
    }
}
