/* SPDX-License-Identifier: MIT */
/*
 * From the partial sums of a tile to D. The CTAs of a cluster each hold partial sums of the whole
 * tile. Each one owns a share of its rows: the others send it what they have for them, it adds all
 * up in the order of the senders, so that the bits are the same on every run, and writes D.
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

/* The rows of a tile that a CTA owns, and how the sums for them lie in its shared memory. */
struct row_share {
    int32_t rows, pitch; /* [sender][token][row], a token's rows `pitch` apart */

    __device__ __forceinline__ explicit row_share(const dgi_decode_args &args)
        : rows(ROWS / args.split), pitch(ROWS / args.split + 4) /* no bank is met twice */
    {
    }
    __device__ __forceinline__ int32_t place(int32_t sender, int32_t token, int32_t row) const
    {
        return (sender * TOKENS + token) * pitch + row;
    }
};

__device__ __forceinline__ void send(const accumulators &sum, const dgi_decode_args &args,
                                     const shared_memory &shared, const row_share &share,
                                     const thread_place &thread, int32_t rank)
{
    uint32_t target[2], barrier[2]; /* for this thread's two rows */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int32_t row = thread.row + 8 * i, owner = row / share.rows;
        const int32_t place = share.place(rank, thread.token, row % share.rows);
        target[i] = shared.received_at + 4 * place;
        if (args.split == 1)
            continue;
        target[i] = remote_address(target[i], owner);
        barrier[i] = remote_address(shared.all_received(), owner);
    }
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int32_t token = i / 4 * 8 + i % 2;
        const uint32_t offset = 4 * token * share.pitch;
        if (thread.token + token >= args.m)
            continue;
        if (args.split == 1)
            shared_store(target[i / 2 % 2] + offset, sum[i]);
        else
            remote_store(target[i / 2 % 2] + offset, sum[i], barrier[i / 2 % 2]);
    }
}

/* ---- the result ---------------------------------------------------------------------- */

template <typename T> struct alignas(4 * sizeof(T)) four {
    T element[4];
};

/* Four neighbouring elements of a row of a matrix, as floats; `whole`: at a multiple of their size.
 */
template <typename T>
__device__ __forceinline__ void load_four_as(const T *from, bool whole, int32_t count,
                                             float (&values)[4])
{
    four<T> read = {};
    if (whole)
        read = *(const four<T> *)from;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (!whole && i < count)
            read.element[i] = from[i];
        values[i] = (float)read.element[i];
    }
}

__device__ __forceinline__ void load_four(const dgi_device_matrix &matrix, int64_t place,
                                          bool whole, int32_t count, float (&values)[4])
{
    if (matrix.dtype == DGI_DEVICE_F32)
        load_four_as((const float *)matrix.data + place, whole, count, values);
    else if (matrix.dtype == DGI_DEVICE_F16)
        load_four_as((const __half *)matrix.data + place, whole, count, values);
    else
        load_four_as((const __nv_bfloat16 *)matrix.data + place, whole, count, values);
}

template <typename T>
__device__ __forceinline__ void store_four_as(T *to, bool whole, int32_t count,
                                              const float (&values)[4])
{
    four<T> written;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        written.element[i] = (T)values[i];
        if (!whole && i < count)
            to[i] = written.element[i];
    }
    if (whole)
        *(four<T> *)to = written;
}

/* FP8 results: code = round(value * (1 / scale)), saturating. */
__device__ __forceinline__ void store_four_codes(const dgi_decode_args &args, int32_t token,
                                                 int32_t n, int32_t count, const float (&values)[4])
{
    const dgi_device_scale &scale = args.scale_d;
    const scale_rows<1> row(scale, token, 0, token);
    uint8_t *d = (uint8_t *)args.d.data + token * args.d.ld + n;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < count) {
            float factor[1];
            row.load(scale, scale_index(n + i, scale.block_cols, scale.col_phase), factor);
            d[i] = __nv_cvt_float_to_fp8(__fmul_rn(values[i], __frcp_rn(factor[0])), __NV_SATFINITE,
                                         args.d.dtype == DGI_DEVICE_E4M3 ? __NV_E4M3 : __NV_E5M2);
        }
}

__device__ __forceinline__ void store_four(const dgi_decode_args &args, int32_t token, int32_t n,
                                           int32_t count, const float (&values)[4])
{
    const int64_t place = token * args.d.ld + n;
    const bool whole = args.quads && count >= 4;
    if (args.d.dtype == DGI_DEVICE_F32)
        store_four_as((float *)args.d.data + place, whole, count, values);
    else if (args.d.dtype == DGI_DEVICE_F16)
        store_four_as((__half *)args.d.data + place, whole, count, values);
    else if (args.d.dtype == DGI_DEVICE_BF16)
        store_four_as((__nv_bfloat16 *)args.d.data + place, whole, count, values);
    else
        store_four_codes(args, token, n, count, values);
}

/*
 * What a row's sums are multiplied by, and its bias. A thread reads those of one row of its CTA's
 * share before the sums are there, and hands them to the others through shared memory.
 */
struct row_factors {
    float factor, bias;

    __device__ __forceinline__ row_factors(const dgi_decode_args &args, int32_t n)
        : factor(args.alpha), bias(0.0f)
    {
        const int32_t row = min(n, args.n - 1);
        if (SCALE_K == 0 && args.k > 0) {
            float scale[1];
            scale_rows<1>(args.scale_b, row, 0, row).load(args.scale_b, 0, scale);
            factor *= scale[0];
        }
        if (args.bias.dtype == DGI_DEVICE_NONE)
            return;
        float values[4];
        load_four(args.bias, row, false, 1, values);
        bias = values[0];
    }
};

/* Adds up what has been received and writes D: four neighbouring columns of a token at a time. */
__device__ __forceinline__ void finish(const dgi_decode_args &args, const shared_memory &shared,
                                       const row_share &share, int32_t first_n)
{
    const int32_t quads = share.rows / 4, row = threadIdx.x % quads * 4;
    const int32_t n = first_n + row, count = args.n - n;
    if (count <= 0)
        return;
    for (int32_t token = threadIdx.x / quads; token < args.m; token += MATH_THREADS / quads) {
        const float *from = shared.received + share.place(0, token, row);
        float4 sum = *(const float4 *)from;
        for (int32_t i = 1; i < args.split; i++) {
            from += TOKENS * share.pitch;
            const float4 more = *(const float4 *)from;
            sum.x += more.x;
            sum.y += more.y;
            sum.z += more.z;
            sum.w += more.w;
        }
        float values[4] = {sum.x, sum.y, sum.z, sum.w};
        const float token_factor = shared.token_factors[token];
#pragma unroll
        for (int i = 0; i < 4; i++)
            values[i] =
                values[i] * (token_factor * shared.row_factors[row + i]) + shared.row_bias[row + i];
        if (args.beta != 0.0f) {
            float c[4];
            load_four(args.c, token * args.c.ld + n, args.quads && count >= 4, count, c);
#pragma unroll
            for (int i = 0; i < 4; i++)
                values[i] += args.beta * c[i];
        }
        store_four(args, token, n, count, values);
    }
}

/* What the tokens' sums are multiplied by, to shared memory, once for all tiles. */
__device__ __forceinline__ void load_token_factors(const dgi_decode_args &args,
                                                   const shared_memory &shared)
{
    const int32_t token = threadIdx.x;
    if (token >= TOKENS)
        return;
    float factor[1] = {1.0f};
    if (SCALE_K == 0 && args.k > 0)
        scale_rows<1>(args.scale_a, token, 0, args.m - 1).load(args.scale_a, 0, factor);
    shared.token_factors[token] = factor[0];
}

/* One math warpgroup: its rows of each tile of this CTA, from the first stage to D. */
__device__ __forceinline__ void multiply_tiles(const dgi_decode_args &args,
                                               const shared_memory &shared,
                                               const share_of_work &work, int group)
{
    const thread_place thread;
    const row_share share(args);
    ring_place place;
    uint32_t parity = 0;
    wait_for_earlier_kernels();
    load_token_factors(args, shared);
    for (int32_t tile = work.first_tile; tile < args.tiles; tile += work.tile_step, parity ^= 1) {
        const int32_t first_n = tile * ROWS + work.rank * share.rows;
        const row_factors factors(args, first_n + threadIdx.x % ROWS);
        accumulators sum;
        multiply_tile(sum, shared, thread, work.end - work.begin, group, place);

        /* What this tile's sums and factors replace must have been read, in the whole cluster. */
        named_barrier(MATH_BARRIER, MATH_THREADS);
        if (args.split > 1 && tile == work.first_tile)
            cluster_wait(); /* all CTAs have set up their barriers */
        else if (args.split > 1)
            mbarrier_wait_cluster(shared.all_ready(), parity ^ 1);
        if (args.split > 1 && threadIdx.x == 0)
            mbarrier_arrive_expect(shared.all_received(), ROWS * 4 * args.m);
        send(sum, args, shared, share, thread, work.rank);
        if (threadIdx.x < share.rows) {
            shared.row_factors[threadIdx.x] = factors.factor;
            shared.row_bias[threadIdx.x] = factors.bias;
        }
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
