/* SPDX-License-Identifier: MIT */
/*
 * From the partial sums of a tile to D. The CTAs of a cluster each have partial sums of the whole
 * tile, which they leave in their shared memory. Each one owns a share of its rows: it reads what
 * all have for them, adds that up in the order of their ranks, so that the bits are the same on
 * every run, and writes D.
 */
#pragma once
#include "decode_common.cuh"
#include "decode_multiply.cuh"
#include "scales.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

constexpr uint32_t MATH_BARRIER = 1; /* a named barrier */

/* ---- partial sums -------------------------------------------------------------------- */

/* A token's sums lie side by side, `PITCH` from the next one's: no bank is met twice. */
constexpr int PITCH = DGI_DECODE_PITCH;

__device__ __forceinline__ void leave_sums(const accumulators &sum, const dgi_decode_args &args,
                                           const shared_memory &shared, const thread_place &thread)
{
    float *target = shared.sums + thread.token * PITCH + thread.row;
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int32_t token = i / 4 * 8 + i % 2;
        if (thread.token + token < args.m)
            target[token * PITCH + i / 2 % 2 * 8] = sum[i];
    }
}

/* All math threads: arrives at the same barrier of all CTAs of the cluster. */
__device__ __forceinline__ void arrive_everywhere(const dgi_decode_args &args, uint32_t barrier)
{
    named_barrier(MATH_BARRIER, MATH_THREADS);
    if (args.split > 1 && threadIdx.x < args.split)
        remote_arrive(remote_address(barrier, threadIdx.x));
}

/* Four neighbouring sums, at `place` of each CTA's, added up. */
__device__ __forceinline__ float4 add_sums(const dgi_decode_args &args, uint32_t place)
{
    constexpr int TOGETHER = TOKENS > 32 ? 2 : 4; /* loads under way */
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int32_t first = 0; first < args.split; first += TOGETHER) {
        float4 part[TOGETHER];
#pragma unroll
        for (int i = 0; i < TOGETHER; i++)
            if (first + i < args.split)
                part[i] = remote_load(remote_address(place, first + i));
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            if (first + i >= args.split)
                break;
            sum.x += part[i].x;
            sum.y += part[i].y;
            sum.z += part[i].z;
            sum.w += part[i].w;
        }
    }
    return sum;
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
        float scale[1] = {1.0f}, values[4] = {0.0f};
        factor = 1.0f;
        if (SCALE_K == 0 && args.k > 0) {
            const dgi_device_scale &from = of_row ? args.scale_b : args.scale_a;
            scale_rows<1>(from, of_row ? n : index, 0, of_row ? n : args.m - 1)
                .load(from, 0, scale);
            factor = scale[0];
        }
        if (args.bias.dtype != DGI_DEVICE_NONE && of_row)
            load_four(args.bias, n, false, 1, values);
        bias = values[0];
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

/* Adds up this CTA's share and writes D: four neighbouring columns of a token at a time. */
__device__ __forceinline__ void finish(const dgi_decode_args &args, const shared_memory &shared,
                                       int32_t share, int32_t first_row, int32_t first_n)
{
    const int32_t quads = share / 4, row = threadIdx.x % quads * 4;
    const int32_t n = first_n + row, count = args.n - n;
    if (count <= 0)
        return;
    const float4 row_factor = *(const float4 *)(shared.row_factors + row);
    const float4 row_bias = *(const float4 *)(shared.row_bias + row);
    for (int32_t token = threadIdx.x / quads; token < args.m; token += MATH_THREADS / quads) {
        const float4 sum = add_sums(args, shared.sums_at + 4 * (token * PITCH + first_row + row));
        const float factor = shared.token_factors[token];
        float values[4];
        values[0] = sum.x * (factor * row_factor.x) + row_bias.x;
        values[1] = sum.y * (factor * row_factor.y) + row_bias.y;
        values[2] = sum.z * (factor * row_factor.z) + row_bias.z;
        values[3] = sum.w * (factor * row_factor.w) + row_bias.w;
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

/* One math warpgroup: its rows of each tile of this CTA, from the first stage to D. */
__device__ __forceinline__ void multiply_tiles(const dgi_decode_args &args,
                                               const shared_memory &shared,
                                               const share_of_work &work, int group)
{
    const thread_place thread;
    const int32_t share = ROWS / args.split, first_row = work.rank * share;
    ring_place place;
    uint32_t parity = 0;
    if (SCALE_K == 0 && args.k > 0 && threadIdx.x < ROWS) { /* safe at any time, as it ends in L2 */
        const int32_t n = min(work.first_tile * ROWS + first_row + (int)threadIdx.x, args.n - 1);
        scale_rows<1>(args.scale_b, n, 0, n).fetch(args.scale_b, 0);
    }
    wait_for_earlier_kernels();
    for (int32_t tile = work.first_tile; tile < args.tiles; tile += work.tile_step, parity ^= 1) {
        const bool first = tile == work.first_tile;
        const int32_t first_n = tile * ROWS + first_row;
        factors factors;
        accumulators sum;
        if (SCALE_K == 0)
            factors.read(args, first_n);
        multiply_tile(sum, shared, thread, work.end - work.begin, group, place);
        if (SCALE_K != 0) /* only the bias: not worth registers meanwhile */
            factors.read(args, first_n);

        /* The tile before must have been read, here and by the whole cluster. */
        if (args.split > 1 && first)
            cluster_wait(); /* all CTAs have set up their barriers */
        else if (args.split > 1)
            mbarrier_wait_cluster(shared.all_read(), parity ^ 1);
        else
            named_barrier(MATH_BARRIER, MATH_THREADS);
        leave_sums(sum, args, shared, thread);
        factors.leave(args, shared);
        arrive_everywhere(args, shared.all_left());
        if (args.split > 1)
            mbarrier_wait_cluster(shared.all_left(), parity);
        finish(args, shared, share, first_row, first_n);
        if (args.split > 1)
            arrive_everywhere(args, shared.all_read());
    }
    if (args.split > 1) /* the others may still be reading here */
        mbarrier_wait_cluster(shared.all_read(), parity ^ 1);
}
