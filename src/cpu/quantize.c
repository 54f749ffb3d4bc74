/* SPDX-License-Identifier: MIT */
/*
 * Quantise and dequantise on the CPU: how a matrix is cut into pieces, which thread does which, and
 * the scales. The work on a row is in quantize_body.h.
 *
 * Quantising with dynamic scales reads each block twice, for amax and for the codes. Where a block
 * fits the cache, one thread does both and memory sees one read ("fused"). Where it does not (per
 * tensor, per channel of many rows), all threads find the scales together and then encode as with
 * given scales.
 */
#include "core/formats.h"
#include "cpu/cpu.h"
#include "cpu/quantize_rows.h"

#include <stdatomic.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define PIECE_COLS     2048        /* a piece's multipliers and one row of its output stay in L1 */
#define PIECE_ELEMENTS (1 << 15)   /* the least work that pays for one more thread               */
#define FUSED_BYTES    (256 << 10) /* input that stays in L2 between the two passes over it      */
#define FUSED_COLS     128         /* narrower strips of a matrix are slow to read from memory   */
#define STREAM_BYTES   (8 << 20)   /* an output of more bytes bypasses the caches                */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- how a call is cut --------------------------------------------------------------- */

/* `size` rows or columns in `count` steps, the first of which begins `phase` before 0. */
typedef struct cut {
    int64_t size, step, phase, count;
} cut;

/* Those of one step: [first, last). */
typedef struct range {
    int64_t first, last;
} range;

static cut cut_into(int64_t size, int64_t step, int64_t phase)
{
    return (cut){size, step, phase, (phase + size + step - 1) / step};
}

static range step_of(cut c, int64_t index)
{
    int64_t first = index * c.step - c.phase;
    return (range){most(first, 0), least(first + c.step, c.size)};
}

typedef struct job {
    dg_matrix in, out;
    dg_scale scale;
    const dgi_row_kernels *kernels;
    int threads;
    cut bands;         /* rows: those of one row of scales                          */
    cut blocks;        /* columns: those of one column of scales                    */
    cut strips;        /* columns: whole blocks, or parts of one                    */
    int64_t parts;     /* of a band, by rows ...                                    */
    int64_t part_rows; /* ... so many each                                        */
    bool fused;        /* a strip of a band holds whole blocks and fits the cache   */
    bool stream;       /* the output bypasses the caches                            */
} job;

static const dgi_row_kernels *row_kernels(dgi_isa isa)
{
    return isa >= DGI_ISA_AVX512 ? &dgi_rows_avx512
           : isa == DGI_ISA_AVX2 ? &dgi_rows_avx2
                                 : &dgi_rows_generic;
}

/* The rows or columns of each scale; one step for all of them when the block size is 0. */
static cut cut_blocks(int64_t size, int32_t block, int32_t phase)
{
    return cut_into(size, block == 0 ? most(size, 1) : block, phase);
}

/* `dynamic`: scales are computed, so each block is read twice. The matrix is not empty. */
static job plan(const dg_context *context, const dg_matrix *in, const dg_matrix *out,
                const dg_scale *scale, bool dynamic)
{
    const dgi_cpu *cpu = context->state;
    job job = {.in = *in, .out = *out, .scale = *scale, .threads = cpu->threads};
    job.kernels = row_kernels(cpu->isa);
    job.bands = cut_blocks(in->rows, scale->block_rows, scale->row_phase);
    job.blocks = cut_blocks(in->cols, scale->block_cols, scale->col_phase);

    int64_t band_rows = least(job.bands.step, in->rows), width = job.blocks.step;
    int64_t fitting = FUSED_BYTES / (band_rows * (int64_t)dg_dtype_bytes(in->dtype));
    job.fused = dynamic && fitting >= least(most(width, FUSED_COLS), in->cols);
    int64_t wanted = job.fused ? least(fitting, PIECE_COLS) : PIECE_COLS;
    if (width <= wanted || job.fused)
        job.strips = cut_into(in->cols, most(1, wanted / width) * width, job.blocks.phase);
    else
        job.strips = cut_into(in->cols, wanted, 0);

    job.part_rows = job.fused ? band_rows : most(1, PIECE_ELEMENTS / job.strips.step);
    job.parts = (band_rows + job.part_rows - 1) / job.part_rows;
    job.stream = in->rows * in->cols * (int64_t)dg_dtype_bytes(out->dtype) > STREAM_BYTES;
    return job;
}

/* The rows of a band's part; may be empty. */
static range part_of(const job *job, int64_t band, int64_t part)
{
    range rows = step_of(job->bands, band);
    int64_t first = rows.first + part * job->part_rows;
    return (range){first, least(first + job->part_rows, rows.last)};
}

static int threads_for(const job *job, int64_t elements)
{
    return (int)least(job->threads, 1 + elements / PIECE_ELEMENTS);
}

/* ---- pieces: what the kernels see of a matrix and its scales ------------------------- */

static void *at(const dg_matrix *m, int64_t row, int64_t col)
{
    return (char *)m->data + (row * m->ld + col) * (int64_t)dg_dtype_bytes(m->dtype);
}

/* Neighbouring columns, and the scale columns and blocks that they lie in. */
typedef struct strip {
    range cols, scales;
    dgi_blocks blocks;
} strip;

static strip strip_of(const job *job, range cols)
{
    int64_t phase = job->blocks.phase, step = job->blocks.step, count = cols.last - cols.first;
    range scales = {(cols.first + phase) / step, (cols.last - 1 + phase) / step + 1};
    int64_t head = step_of(job->blocks, scales.first).last - cols.first;
    return (strip){cols, scales, {count, least(head, count), step}};
}

/* How many neighbours can share a multiplier: 2 where all blocks have even sizes. */
static int unit_of(const strip *strip)
{
    const dgi_blocks *b = &strip->blocks;
    return b->count == b->head || (b->head % 2 == 0 && b->block % 2 == 0) ? 2 : 1;
}

/* A multiplier for each `unit` columns of a strip in a band: its scale, or the reciprocal. */
static void load_multipliers(const job *job, int64_t band, const strip *strip, bool reciprocal,
                             int unit, float *multipliers)
{
    float values[PIECE_COLS];
    for (int64_t j = strip->scales.first; j < strip->scales.last; j++) {
        float scale = dgi_scale_at(&job->scale, band, j);
        values[j - strip->scales.first] = reciprocal ? dgi_scale_reciprocal(scale) : scale;
    }
    job->kernels->spread(strip->blocks, values, unit, multipliers);
}

/*
 * Copies past the caches: the target will not be read soon, and a cache line that is written whole
 * need not be fetched first. Lines that are written in part go the ordinary way.
 */
static void stream_out(void *target, const void *source, size_t bytes)
{
#ifdef __SSE2__
    size_t head = (size_t)(-(uintptr_t)target & 63);
    if (head < bytes) {
        memcpy(target, source, head);
        char *to = (char *)target + head;
        const char *from = (const char *)source + head;
        bytes -= head;
        for (; bytes >= 64; bytes -= 64, to += 64, from += 64)
            for (int i = 0; i < 64; i += 16)
                _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
        target = to, source = from;
    }
#endif
    memcpy(target, source, bytes);
}

/* Streamed stores become visible to other threads. */
static void finish_streaming(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/*
 * Asks for the elements behind (row, col) in memory, which are to be read next: the processor's own
 * prefetching stops at the ends of rows and pages. The address need not be one of the matrix.
 */
static void prefetch(const dg_matrix *m, int64_t row, int64_t col, int64_t count)
{
    int64_t bytes = (int64_t)dg_dtype_bytes(m->dtype);
    uintptr_t first = (uintptr_t)m->data + (uintptr_t)((row * m->ld + col) * bytes);
    for (uintptr_t at = first; at < first + (uintptr_t)(count * bytes); at += 64)
        __builtin_prefetch((const void *)at);
}

/* ---- dynamic scales ------------------------------------------------------------------ */

/* amax[], one for each block of the strip, of what the rows hold there. */
static void find_amax(const job *job, range rows, const strip *strip, uint32_t *amax)
{
    memset(amax, 0, sizeof amax[0] * (size_t)(strip->scales.last - strip->scales.first));
    for (int64_t r = rows.first; r < rows.last; r++) {
        if (r + 1 < rows.last)
            prefetch(&job->in, r + 1, strip->cols.first, strip->blocks.count);
        job->kernels->amax(at(&job->in, r, strip->cols.first), job->in.dtype, strip->blocks, amax);
    }
}

/* Writes the scales of whole blocks from their amax[]. */
static void store_scales(const job *job, const dg_quantize *q, int64_t band, range scales,
                         const uint32_t *amax)
{
    const dg_scale *s = &job->scale;
    for (int64_t j = scales.first; j < scales.last; j++)
        dgi_store_f32(s->data, s->dtype, band * s->row_stride + j * s->col_stride,
                      dgi_dynamic_scale(dgi_f32_from_bits(amax[j - scales.first]), q->amax_floor,
                                        job->out.dtype, q->rounding),
                      DG_SATURATE);
}

static void raise(_Atomic uint32_t *shared, uint32_t value)
{
    uint32_t seen = atomic_load_explicit(shared, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak_explicit(
                               shared, &seen, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

/*
 * The scales of one band's whole blocks in `cols`, found by all threads together. At most
 * PIECE_COLS columns, or a single block.
 */
static void find_scales_together(const job *job, const dg_quantize *q, int64_t band, range cols)
{
    cut pieces = cut_into(cols.last - cols.first, PIECE_COLS, 0);
    range rows = step_of(job->bands, band), scales = strip_of(job, cols).scales;
    int threads = threads_for(job, (rows.last - rows.first) * (cols.last - cols.first));
    int64_t count = scales.last - scales.first;
    _Atomic uint32_t shared[PIECE_COLS];
    uint32_t amax[PIECE_COLS];
    for (int64_t i = 0; i < count; i++)
        atomic_init(&shared[i], 0);
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads) private(amax)
    for (int64_t part = 0; part < job->parts; part++)
        for (int64_t piece = 0; piece < pieces.count; piece++) {
            range inside = step_of(pieces, piece);
            strip strip =
                strip_of(job, (range){cols.first + inside.first, cols.first + inside.last});
            find_amax(job, part_of(job, band, part), &strip, amax);
            for (int64_t i = 0; i < count; i++)
                raise(&shared[i], amax[i]);
        }
    for (int64_t i = 0; i < count; i++)
        amax[i] = atomic_load_explicit(&shared[i], memory_order_relaxed);
    store_scales(job, q, band, scales, amax);
}

static void find_all_scales(const job *job, const dg_quantize *q)
{
    cut groups = job->blocks.step > PIECE_COLS ? job->blocks : job->strips;
    for (int64_t band = 0; band < job->bands.count; band++)
        for (int64_t group = 0; group < groups.count; group++)
            find_scales_together(job, q, band, step_of(groups, group));
}

/* A given scale must be positive and finite. */
static dg_status check_scales(const job *job)
{
    const dg_scale *s = &job->scale;
    int64_t bad = s->rows * s->cols; /* the first bad one, in row-major order */
    int threads = threads_for(job, bad);
#pragma omp parallel for reduction(min : bad) schedule(static) num_threads(threads)
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->cols; j++) {
            float scale = dgi_scale_at(s, i, j);
            if (!(scale > 0.0f && dgi_f32_is_finite(scale)))
                bad = least(bad, i * s->cols + j);
        }
    if (bad == s->rows * s->cols)
        return DG_OK;
    int64_t i = bad / s->cols, j = bad % s->cols;
    return dgi_fail(DG_UNSUPPORTED_SCALE,
                    "scale (%lld, %lld) is %g: a given scale must be positive and finite",
                    (long long)i, (long long)j, (double)dgi_scale_at(s, i, j));
}

/* ---- the work on a piece, and who does which ----------------------------------------- */

/* Works on a strip of some rows of a band, and adds to *counts. */
typedef void piece_work(const job *job, const dg_quantize *q, int64_t band, range rows, strip strip,
                        dg_quantize_counts *counts);

static void encode_piece(const job *job, const dg_quantize *q, int64_t band, range rows,
                         strip strip, dg_quantize_counts *counts)
{
    float multipliers[PIECE_COLS];
    uint8_t line[PIECE_COLS];
    int64_t count = strip.blocks.count;
    int unit = job->in.dtype == DG_F32 || q->counts != NULL ? 1 : unit_of(&strip);
    load_multipliers(job, band, &strip, true, unit, multipliers);
    for (int64_t r = rows.first; r < rows.last; r++) {
        const void *input = at(&job->in, r, strip.cols.first);
        uint8_t *codes = at(&job->out, r, strip.cols.first);
        job->kernels->encode(input, job->in.dtype, job->stream ? line : codes, job->out.dtype,
                             count, multipliers, unit, q->overflow);
        if (job->stream)
            stream_out(codes, line, (size_t)count);
        if (q->counts != NULL)
            job->kernels->count(input, job->in.dtype, job->out.dtype, count, multipliers, counts);
    }
}

/* Whole blocks that fit the cache: amax, scales and codes in one go. */
static void quantize_piece(const job *job, const dg_quantize *q, int64_t band, range rows,
                           strip strip, dg_quantize_counts *counts)
{
    uint32_t amax[PIECE_COLS];
    find_amax(job, rows, &strip, amax);
    store_scales(job, q, band, strip.scales, amax);
    prefetch(&job->in, rows.last - 1, strip.cols.last, least(strip.blocks.count, PIECE_COLS));
    for (int64_t c = strip.cols.first; c < strip.cols.last; c += PIECE_COLS)
        encode_piece(job, q, band, rows,
                     strip_of(job, (range){c, least(c + PIECE_COLS, strip.cols.last)}), counts);
}

static void decode_piece(const job *job, const dg_quantize *q, int64_t band, range rows,
                         strip strip, dg_quantize_counts *counts)
{
    (void)q, (void)counts;
    float multipliers[PIECE_COLS], line[PIECE_COLS];
    int64_t count = strip.blocks.count;
    load_multipliers(job, band, &strip, false, 1, multipliers);
    for (int64_t r = rows.first; r < rows.last; r++) {
        void *output = at(&job->out, r, strip.cols.first);
        job->kernels->decode(at(&job->in, r, strip.cols.first), job->in.dtype,
                             job->stream ? line : output, job->out.dtype, count, multipliers);
        if (job->stream)
            stream_out(output, line, (size_t)count * dg_dtype_bytes(job->out.dtype));
    }
}

/* Does `work` on every piece. Pieces are independent, so the result is too of who does them. */
static dg_quantize_counts work_all(const job *job, piece_work *work, const dg_quantize *q)
{
    int threads = threads_for(job, job->in.rows * job->in.cols);
    int64_t saturated = 0, underflow = 0, non_finite = 0;
#pragma omp parallel num_threads(threads) reduction(+ : saturated, underflow, non_finite)
    {
        dg_quantize_counts mine = {0, 0, 0};
#pragma omp for collapse(3) schedule(static)
        for (int64_t band = 0; band < job->bands.count; band++)
            for (int64_t part = 0; part < job->parts; part++)
                for (int64_t i = 0; i < job->strips.count; i++)
                    work(job, q, band, part_of(job, band, part),
                         strip_of(job, step_of(job->strips, i)), &mine);
        finish_streaming();
        saturated += mine.saturated;
        underflow += mine.underflow;
        non_finite += mine.non_finite;
    }
    return (dg_quantize_counts){saturated, underflow, non_finite};
}

/* ---- the calls ----------------------------------------------------------------------- */

/* A matrix without elements may still have scales: one for all of no rows, say. */
static void scale_nothing(const dg_quantize *q)
{
    for (int64_t i = 0; i < q->scale.rows; i++)
        for (int64_t j = 0; j < q->scale.cols; j++)
            dgi_store_f32(
                q->scale.data, q->scale.dtype, i * q->scale.row_stride + j * q->scale.col_stride,
                dgi_dynamic_scale(0.0f, q->amax_floor, q->output.dtype, q->rounding), DG_SATURATE);
}

dg_status dgi_cpu_quantize(dg_context *context, const dg_quantize *q, void *stream)
{
    (void)stream;
    bool dynamic = q->source == DG_SCALE_DYNAMIC;
    dg_quantize_counts counts = {0, 0, 0};
    if (q->input.rows == 0 || q->input.cols == 0) {
        if (dynamic)
            scale_nothing(q);
    } else {
        job job = plan(context, &q->input, &q->output, &q->scale, dynamic);
        if (!dynamic)
            DGI_TRY(check_scales(&job));
        else if (!job.fused)
            find_all_scales(&job, q);
        counts = work_all(&job, job.fused ? quantize_piece : encode_piece, q);
    }
    if (q->counts != NULL)
        *q->counts = counts;
    return DG_OK;
}

dg_status dgi_cpu_dequantize(dg_context *context, const dg_dequantize *d, void *stream)
{
    (void)stream;
    job job = plan(context, &d->input, &d->output, &d->scale, false);
    work_all(&job, decode_piece, NULL);
    return DG_OK;
}
