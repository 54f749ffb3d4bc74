/* SPDX-License-Identifier: MIT */
/*
 * The kernels that quantise; src/cuda/quantize.c chooses among them:
 *
 *   quantize_block_16_1 ...   dynamic scales of blocks that the registers of a group of threads
 *                             hold: memory is read once. A thread holds 1, 2 or 4 pieces.
 *   quantize_amax_16          dynamic scales of larger blocks: the largest magnitudes first, ...
 *   quantize_encode_16        ... then the codes. Given scales: the codes only.
 *   quantize                  whatever does not fall into pieces: one element at a time
 *
 * Those for pieces exist for inputs of 16 and of 32 bits.
 */
#include "quantize.cuh"

/* ---- blocks in registers ------------------------------------------------------------- */

/* The largest of the threads of a group, whose size is a power of two. All threads call it. */
__device__ __forceinline__ uint32_t group_max(uint32_t value, int group)
{
    __shared__ uint32_t of_warp[DGI_QUANTIZE_THREADS / 32];
    for (int offset = min(group, 32) / 2; offset > 0; offset /= 2)
        value = max(value, __shfl_xor_sync(0xFFFFFFFF, value, offset));
    if (group <= 32)
        return value;
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    const int first = threadIdx.x / group * (group / 32);
    for (int i = 0; i < group / 32; i++)
        value = max(value, of_warp[first + i]);
    return value;
}

template <int BITS, int COUNT>
__device__ __forceinline__ void quantize_block(const dgi_quantize_args &args)
{
    const uint32_t index = blockIdx.x * (blockDim.x / args.group) + threadIdx.x / args.group;
    const bool exists = index < args.scale_rows * args.scale_cols;
    const uint32_t lane = threadIdx.x % args.group, scale_cols = (uint32_t)args.scale_cols;
    const uint32_t scale_row = index / scale_cols, scale_col = index % scale_cols;
    const scale_block block(args, scale_row, scale_col);
    piece_place place[COUNT];
    piece<BITS> pieces[COUNT];
    uint32_t most[COUNT], amax = 0;
#pragma unroll
    for (int p = 0; p < COUNT; p++) { /* all loads are under way before the first is waited for */
        place[p] = piece_of(args, block, lane + p * args.group);
        if (!exists)
            place[p].count = 0;
        pieces[p].load(args, place[p]);
    }
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
        if (place[p].count < PIECE)
            pieces[p].load_end(args, place[p]);
        most[p] = pieces[p].largest(args);
        amax = max(amax, pieces[p].finite_amax(args, most[p]));
    }
    const float scale = dynamic_scale(group_max(amax, args.group), args);
    if (lane == 0 && exists)
        write_scale(args, scale_place(args, scale_row, scale_col), scale);
    const float inverse = scale_reciprocal(scale);
    tally counts = {0, 0, 0};
#pragma unroll
    for (int p = 0; p < COUNT; p++)
        pieces[p].store(args, place[p], most[p], inverse, counts);
    add_counts(args, counts);
}

#define QUANTIZE_BLOCK(bits, count)                                                                \
    extern "C" __global__ void __launch_bounds__(DGI_QUANTIZE_THREADS)                             \
        quantize_block_##bits##_##count(const __grid_constant__ dgi_quantize_args args)            \
    {                                                                                              \
        quantize_block<bits, count>(args);                                                         \
    }
QUANTIZE_BLOCK(16, 1)
QUANTIZE_BLOCK(16, 2)
QUANTIZE_BLOCK(16, 4)
QUANTIZE_BLOCK(32, 1)
QUANTIZE_BLOCK(32, 2)
QUANTIZE_BLOCK(32, 4)

/* ---- larger blocks, and given scales ------------------------------------------------- */

/* A CTA for each part of a block. args.amax has been set to 0, one for each scale, row by row. */
template <int BITS> __device__ __forceinline__ void find_amax(const dgi_quantize_args &args)
{
    constexpr int COUNT = DGI_QUANTIZE_PART / DGI_SMALL_THREADS; /* pieces of a thread */
    const uint32_t index = blockIdx.x / args.parts, part = blockIdx.x % args.parts;
    const uint32_t scale_cols = (uint32_t)args.scale_cols;
    const scale_block block(args, index / scale_cols, index % scale_cols);
    piece_place place[COUNT];
    piece<BITS> pieces[COUNT];
    uint32_t amax = 0;
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
        place[p] = piece_of(args, block,
                            part * DGI_QUANTIZE_PART + p * DGI_SMALL_THREADS + threadIdx.x);
        pieces[p].load(args, place[p]);
    }
#pragma unroll
    for (int p = 0; p < COUNT; p++) {
        if (place[p].count < PIECE)
            pieces[p].load_end(args, place[p]);
        amax = max(amax, pieces[p].finite_amax(args, pieces[p].largest(args)));
    }
    amax = group_max(amax, DGI_SMALL_THREADS);
    if (threadIdx.x == 0 && amax != 0)
        atomicMax(&args.amax[index], amax);
}

/*
 * A thread for each piece of the matrix, the last first: what quantize_amax read last is still in
 * L2.
 */
template <int BITS> __device__ __forceinline__ void encode(const dgi_quantize_args &args)
{
    const uint32_t pieces_x = (uint32_t)((args.cols + PIECE - 1) / PIECE);
    const int64_t index = args.rows * pieces_x - 1 -
                          ((int64_t)blockIdx.x * DGI_SMALL_THREADS + threadIdx.x);
    tally counts = {0, 0, 0};
    if (index >= 0) {
        const uint32_t row = (uint32_t)index / pieces_x, col = (uint32_t)index % pieces_x * PIECE;
        const piece_place place = {row, col, (int)min((int64_t)PIECE, args.cols - col)};
        const int64_t scale_row =
            scale_index((int32_t)row, args.scale.block_rows, args.scale.row_phase);
        const int64_t scale_col =
            scale_index((int32_t)col, args.scale.block_cols, args.scale.col_phase);
        const int64_t at = scale_place(args, scale_row, scale_col);
        piece<BITS> piece;
        piece.load(args, place);
        float scale;
        if (args.dynamic) {
            const scale_block block(args, scale_row, scale_col);
            scale = dynamic_scale(args.amax[scale_row * args.scale_cols + scale_col], args);
            if (row == block.rows.first && col == block.cols.first)
                write_scale(args, at, scale);
        } else {
            scale = read_scale(args, at);
        }
        if (place.count < PIECE)
            piece.load_end(args, place);
        piece.store(args, place, piece.largest(args), scale_reciprocal(scale), counts);
    }
    add_counts(args, counts);
}

#define QUANTIZE_LARGE(bits)                                                                       \
    extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)                                \
        quantize_amax_##bits(const __grid_constant__ dgi_quantize_args args)                       \
    {                                                                                              \
        find_amax<bits>(args);                                                                     \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)                                \
        quantize_encode_##bits(const __grid_constant__ dgi_quantize_args args)                     \
    {                                                                                              \
        encode<bits>(args);                                                                        \
    }
QUANTIZE_LARGE(16)
QUANTIZE_LARGE(32)

/* ---- anything ------------------------------------------------------------------------ */

/*
 * A group of threads, a warp or a whole CTA, takes one block of the scales at a time: it finds the
 * block's largest magnitude, makes the scale, and reads the block again to make its codes.
 */
extern "C" __global__ void __launch_bounds__(DGI_SMALL_THREADS)
    quantize(const __grid_constant__ dgi_quantize_args args)
{
    const int group = args.group, lane = threadIdx.x % group;
    const int x_lane = lane % args.lanes_x, y_lane = lane / args.lanes_x;
    const int lanes_x = args.lanes_x, lanes_y = group / args.lanes_x;
    const int groups = DGI_SMALL_THREADS / group;
    tally counts = {0, 0, 0};
    for (int64_t i = (int64_t)blockIdx.x * groups + threadIdx.x / group;
         i < args.scale_rows * args.scale_cols; i += (int64_t)gridDim.x * groups) {
        const int64_t scale_row = i / args.scale_cols, scale_col = i % args.scale_cols;
        const scale_block block(args, scale_row, scale_col);
        const int64_t place = scale_place(args, scale_row, scale_col);
        float scale;
        if (args.dynamic) {
            uint32_t amax = 0;
            for (int64_t r = block.rows.first + y_lane; r < block.rows.last; r += lanes_y)
                for (int64_t c = block.cols.first + x_lane; c < block.cols.last; c += lanes_x) {
                    const uint32_t bits =
                        __float_as_uint(input_at(args, r * args.input_ld + c)) & MAGNITUDE;
                    amax = bits < INFINITE ? max(amax, bits) : amax;
                }
            if (group > 32)
                __syncthreads(); /* the last round's maxima have been read */
            scale = dynamic_scale(group_max(amax, group), args);
            if (lane == 0)
                write_scale(args, place, scale);
        } else {
            scale = read_scale(args, place);
        }
        const float inverse = scale_reciprocal(scale);
        for (int64_t r = block.rows.first + y_lane; r < block.rows.last; r += lanes_y)
            for (int64_t c = block.cols.first + x_lane; c < block.cols.last; c += lanes_x)
                args.output[r * args.output_ld + c] =
                    code_of(input_at(args, r * args.input_ld + c), inverse, args, counts);
    }
    add_counts(args, counts);
}
