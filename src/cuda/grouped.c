/* SPDX-License-Identifier: MIT */
/*
 * Grouped products on Hopper, host side: one launch of the GEMM kernel, where need be behind one of
 * grouped_setup. None depends on the sizes in device memory.
 */
#include "cuda/grouped.h"

#include "core/copy_rules.h"
#include "core/formats.h"
#include "core/grouped.h"

#include <stdlib.h>

/* ---- a call and its scratch memory ----------------------------------------------------- */

typedef struct call {
    dgi_cuda *cuda;
    dg_gemm asked; /* with packed weights in the place of b */
    dg_gemm gemm;  /* with operands in scratch memory where they cannot stay where they are */
    dg_groups groups;
    int32_t kernel;
    bool prefers_few;    /* where the groups take one launch, `few` runs instead of `kernel` */
    dgi_decode_plan few; /* if there is one                                                */
    CUstream stream;
    bool staged; /* D is written by grouped_finish */
    size_t used; /* bytes of scratch memory        */
    char *scratch;
    bool counting; /* only how much of it is needed  */
    bool joined;   /* the groups take one launch     */
} call;

static void *take(call *c, size_t bytes)
{
    void *memory = c->counting ? NULL : c->scratch + c->used;
    c->used += (bytes + 255) / 256 * 256;
    return memory;
}

static int64_t groups_of_a(const call *c)
{
    return c->groups.grouping == DG_GROUPS_MASKED ? c->groups.count : 1;
}

static int64_t groups_of_b(const call *c)
{
    return dgi_groups_divide_k(&c->groups) ? 1 : c->groups.count;
}

static bool can_copy_address(const void *data, int64_t pitch_bytes)
{
    return (uintptr_t)data % 16 == 0 && pitch_bytes % 16 == 0;
}

static int64_t pitch_of(int64_t row_bytes)
{
    return (row_bytes + 15) / 16 * 16;
}

/*
 * Rows of `source` (by `index`) to scratch memory, where *matrix then lies. On the counting pass
 * only the memory is counted.
 */
static dg_status gather_matrix(call *c, dg_matrix *matrix, const int32_t *index, int64_t rows)
{
    const int64_t element = (int64_t)dg_dtype_bytes(matrix->dtype);
    const int64_t row_bytes = matrix->cols * element, pitch = pitch_of(row_bytes);
    uint8_t *target = take(c, (size_t)(rows * pitch));
    if (target != NULL && matrix->rows > 0 && matrix->cols > 0) {
        const int64_t source_pitch = matrix->rows > 1 ? matrix->ld * element : pitch;
        const bool wide = row_bytes % 16 == 0 && can_copy_address(matrix->data, source_pitch);
        const int32_t unit = wide ? 16 : (int32_t)element;
        dgi_gather_args args = {
            .source = matrix->data,
            .target = target,
            .index = index,
            .rows = rows,
            .cols = row_bytes / unit,
            .source_rows = matrix->rows,
            .row_stride = source_pitch,
            .col_stride = unit,
            .target_pitch = pitch,
            .block = 1,
            .element = unit,
        };
        DGI_TRY(dgi_cuda_launch_small(c->cuda, DGI_SMALL_gather, &args, args.rows * args.cols,
                                      c->stream));
    }
    matrix->data = target;
    matrix->rows = rows;
    matrix->ld = pitch / element;
    return DG_OK;
}

/* The same for scales, which become one row for each row of the product. */
static dg_status gather_scale(call *c, dg_scale *scale, const int32_t *index, int64_t source_rows,
                              int64_t rows)
{
    if (scale->dtype == DG_NONE || scale->block_rows == 0)
        return DG_OK;
    const int64_t element = (int64_t)dg_dtype_bytes(scale->dtype);
    uint8_t *target = take(c, (size_t)(rows * scale->cols * element));
    if (target != NULL && scale->rows > 0 && scale->cols > 0) {
        dgi_gather_args args = {
            .source = scale->data,
            .target = target,
            .index = index,
            .rows = rows,
            .cols = scale->cols,
            .source_rows = source_rows,
            .row_stride = scale->row_stride * element,
            .col_stride = scale->col_stride * element,
            .target_pitch = scale->cols * element,
            .block = scale->block_rows,
            .phase = scale->row_phase,
            .element = (int32_t)element,
        };
        DGI_TRY(dgi_cuda_launch_small(c->cuda, DGI_SMALL_gather, &args, args.rows * args.cols,
                                      c->stream));
    }
    scale->data = target;
    scale->block_rows = 1;
    scale->row_phase = 0;
    scale->rows = rows;
    scale->row_stride = scale->cols;
    scale->col_stride = 1;
    return DG_OK;
}

/* Rows that are gathered, results that are to be scattered: the product gets all in a row. */
static dg_status stage_rows(call *c)
{
    const dg_groups *q = &c->groups;
    dg_gemm *g = &c->gemm;
    const int64_t rows = dgi_groups_rows(&c->asked, q), d_rows = g->d.rows;
    c->staged = q->gather != NULL || q->scatter != NULL;
    if (!c->staged)
        return DG_OK;
    if (q->gather != NULL) {
        const int64_t a_rows = g->a.rows;
        DGI_TRY(gather_matrix(c, &g->a, q->gather, rows));
        DGI_TRY(gather_scale(c, &g->scale_a, q->gather, a_rows, rows));
    }
    if (q->scatter != NULL) {
        if (g->beta != 0.0f)
            DGI_TRY(gather_matrix(c, &g->c, q->scatter, rows));
        DGI_TRY(gather_scale(c, &g->scale_d, q->scatter, d_rows, rows));
    }
    const int64_t element = (int64_t)dg_dtype_bytes(g->d.dtype);
    g->d.rows = rows;
    g->d.ld = pitch_of(g->d.cols * element) / element;
    g->d.data = take(c, (size_t)(rows * g->d.ld * element));
    return DG_OK;
}

/* Operands that the copy engine cannot address, group after group. */
static dg_status realign(call *c, dg_matrix *matrix, int64_t *stride, int64_t groups)
{
    if (matrix->cols == 0 || matrix->rows == 0 ||
        (dgi_cuda_can_copy(matrix) && (groups == 1 || *stride % 16 == 0)))
        return DG_OK;
    const int64_t pitch = pitch_of(matrix->cols);
    uint8_t *target = take(c, (size_t)(groups * matrix->rows * pitch));
    for (int64_t i = 0; target != NULL && i < groups; i++) {
        dgi_realign_args args = {
            .source = (const uint8_t *)matrix->data + i * *stride,
            .target = target + i * matrix->rows * pitch,
            .rows = matrix->rows,
            .row_bytes = matrix->cols,
            .source_pitch = matrix->rows > 1 ? matrix->ld : matrix->cols,
            .target_pitch = pitch,
        };
        DGI_TRY(dgi_cuda_launch_small(c->cuda, DGI_SMALL_realign, &args,
                                      args.rows * (args.target_pitch / 16), c->stream));
    }
    matrix->data = target;
    matrix->ld = pitch;
    *stride = matrix->rows * pitch;
    return DG_OK;
}

static int64_t bytes(int64_t elements, dg_dtype dtype)
{
    return elements * (int64_t)dg_dtype_bytes(dtype);
}

static bool needs_finish(const call *c)
{
    return c->staged || c->groups.padding == DG_PADDING_ZERO;
}

static dg_status finish(call *c, const int32_t *ranges)
{
    const dg_groups *q = &c->groups;
    const dg_matrix *d = &c->asked.d;
    if (!needs_finish(c))
        return DG_OK;
    const int64_t rows = dgi_groups_rows(&c->asked, q);
    dgi_grouped_finish_args args = {
        .d = d->data,
        .pitch = bytes(d->rows > 1 ? d->ld : d->cols, d->dtype),
        .row_bytes = bytes(d->cols, d->dtype),
        .stride = bytes(q->d_stride, d->dtype),
        .staged = c->staged ? c->gemm.d.data : NULL,
        .staged_pitch = bytes(c->gemm.d.ld, d->dtype),
        .sizes = q->sizes,
        .ranges = ranges,
        .gather = q->gather,
        .scatter = q->scatter,
        .grouping = q->grouping,
        .count = q->count,
        .rows = (int32_t)rows,
        .gather_rows = (int32_t)c->asked.a.rows,
        .d_rows = (int32_t)(d->rows < INT32_MAX ? d->rows : INT32_MAX),
        .zero = q->padding == DG_PADDING_ZERO,
    };
    const int64_t all = rows * (q->grouping == DG_GROUPS_MASKED ? q->count : 1);
    return dgi_cuda_launch_small(c->cuda, DGI_SMALL_grouped_finish, &args, all * 32, c->stream);
}

/* Where each group's packed weights lie. */
static dg_status write_addresses(call *c, const uint8_t **target)
{
    const dg_groups *q = &c->groups;
    for (int32_t first = 0; first < q->count; first += DGI_ADDRESSES) {
        dgi_addresses_args args = {.target = target + first, .count = DGI_ADDRESSES};
        if (q->count - first < DGI_ADDRESSES)
            args.count = (uint32_t)(q->count - first);
        for (uint32_t i = 0; i < args.count; i++)
            args.values[i] = q->weights[first + (int32_t)i]->data;
        DGI_TRY(dgi_cuda_launch_blocks(c->cuda, DGI_SMALL_addresses, &args, 1, DGI_ADDRESSES,
                                       c->stream));
    }
    return DG_OK;
}

static dgi_device_groups device_groups(const call *c, const uint8_t *const *packed)
{
    const dg_groups *q = &c->groups;
    const dg_gemm *g = &c->gemm;
    dgi_device_groups groups = {
        .sizes = q->sizes,
        .grouping = q->grouping,
        .count = q->count,
        .alignment = q->alignment,
        .a_stride = q->a_stride,
        .b_stride = q->b_stride,
        .c_stride = bytes(q->c_stride, g->c.dtype),
        .d_stride = bytes(q->d_stride, g->d.dtype),
        .bias_stride = bytes(q->bias_stride, g->bias.dtype),
        .scale_a_stride = bytes(q->scale_a_stride, g->scale_a.dtype),
        .scale_b_stride = bytes(q->scale_b_stride, g->scale_b.dtype),
        .scale_d_stride = bytes(q->scale_d_stride, g->scale_d.dtype),
    };
    if (q->weights != NULL) {
        groups.packed = packed;
        groups.packed_scales = (char *)g->scale_b.data - (char *)q->weights[0]->data;
    }
    return groups;
}

/* ---- groups that share their maps: one launch -------------------------------------------- */

/* Makes of the first group's matrix that of all, if they lie one directly behind another. */
static bool join(dg_matrix *matrix, int64_t stride, int64_t groups)
{
    if (groups == 1 || matrix->rows == 0)
        return true;
    if (matrix->rows == 1) /* and any ld */
        matrix->ld = stride;
    const int64_t most = INT32_MAX / groups;
    if (stride != matrix->rows * matrix->ld || matrix->ld < matrix->cols || matrix->rows > most)
        return false;
    matrix->rows *= groups;
    return true;
}

/* Whether the kernel can find each group itself; *all is then its call with joined matrices. */
static bool join_groups(const call *c, dg_gemm *all)
{
    const dg_groups *q = &c->groups;
    *all = c->gemm;
    if (q->grouping == DG_GROUPS_BY_END && needs_finish(c))
        return false; /* grouped_finish reads what grouped_setup writes */
    return (q->grouping == DG_GROUPS_BY_END || q->grouping == DG_GROUPS_MASKED) &&
           join(&all->a, q->a_stride, groups_of_a(c)) &&
           join(&all->d, q->d_stride, groups_of_a(c)) &&
           (q->weights != NULL || join(&all->b, q->b_stride, groups_of_b(c)));
}

/*
 * The first group at its largest, with maps of all. `tile_n`: rows of a box of B, `cols` of a
 * cluster's tile; `box`: rows of one of A.
 */
static dg_status describe_joined(const call *c, const dg_gemm *all, int32_t scale_k, int32_t tile_n,
                                 int32_t cols, int32_t box, dgi_gemm_product *like)
{
    like->args = dgi_cuda_product_args(scale_k, &c->gemm, dgi_cuda_varying(&c->gemm));
    like->args.tile_cols = (like->args.n + cols - 1) / cols;
    if (c->groups.weights != NULL)
        like->args.packed = c->groups.weights[0]->data;
    if (like->args.k == 0)
        return DG_OK;
    DGI_TRY(dgi_cuda_describe(c->cuda, &all->a, (uint32_t)box, &like->maps.a));
    return c->groups.weights != NULL
               ? DG_OK
               : dgi_cuda_describe(c->cuda, &all->b, (uint32_t)tile_n, &like->maps.b);
}

static dg_status run_few(call *c, const dg_gemm *all, const uint8_t *const *packed)
{
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[c->few.kernel];
    dgi_grouped_few_args args = {.groups = device_groups(c, packed), .split = c->few.split};
    for (int32_t i = 0; c->groups.weights != NULL && packed == NULL && i < c->groups.count; i++)
        args.packed[i] = c->groups.weights[i]->data;
    DGI_TRY(describe_joined(c, all, kernel->scale_k, DGI_DECODE_ROWS, DGI_DECODE_ROWS, DGI_FEW_BOX,
                            &args.like));
    return dgi_cuda_launch_grouped_few(c->cuda, &c->few, &args, c->stream);
}

static dg_status run_joined(call *c, const dg_gemm *all, const uint8_t *const *packed)
{
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[c->kernel];
    if (c->gemm.d.rows == 0 || c->gemm.d.cols == 0)
        return DG_OK;
    if (c->prefers_few)
        return run_few(c, all, packed);
    dgi_grouped_args args = {.groups = device_groups(c, packed)};
    DGI_TRY(describe_joined(c, all, dgi_cuda_scale_k(kernel), kernel->tile_n,
                            kernel->tile_n * kernel->cluster, DGI_RAGGED_BOX, &args.like));
    args.like.args.copy_out = dgi_cuda_can_copy_out(all);
    if (args.like.args.copy_out)
        DGI_TRY(dgi_cuda_describe(c->cuda, &all->d, 16, &args.like.maps.d));
    return dgi_cuda_launch_grouped(c->cuda, c->kernel, &args, c->stream);
}

/* ---- all others: two launches ---------------------------------------------------------- */

static dg_status run_prepared(call *c, const dgi_prepared *p, int32_t *ranges,
                              const uint8_t *const *packed)
{
    const dg_gemm *g = &c->gemm;
    const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[c->kernel];
    const dgi_varying vary = dgi_cuda_varying(g);
    dgi_grouped_setup_args setup = {
        .groups = device_groups(c, packed),
        .scale_a_block = vary.scale_a ? g->scale_a.block_cols : 0,
        .scale_b_block = vary.scale_b ? g->scale_b.block_cols : 0,
        .scale_a_cols = (int32_t)g->scale_a.cols,
        .scale_b_cols = (int32_t)g->scale_b.cols,
        .ranges = ranges,
    };
    DGI_TRY(dgi_cuda_describe_product(c->cuda, kernel, g, vary, &setup.like));
    DGI_TRY(dgi_cuda_launch_setup(c->cuda, kernel, p, &setup, c->stream));
    return dgi_cuda_launch_records(c->cuda, c->kernel, p, c->stream);
}

/* All of a call, or only a count of the scratch memory that it needs. */
static dg_status pass(call *c, bool counting, char *scratch)
{
    c->gemm = c->asked;
    c->used = 0;
    c->counting = counting;
    c->scratch = scratch;
    const size_t count = (size_t)c->groups.count;
    const bool is_packed = c->groups.weights != NULL;
    const int64_t a_stride = c->groups.a_stride, b_stride = c->groups.b_stride;
    DGI_TRY(stage_rows(c));
    if (c->groups.grouping != DG_GROUPS_K_BLOCKS) {
        DGI_TRY(realign(c, &c->gemm.a, &c->groups.a_stride, groups_of_a(c)));
        if (!is_packed)
            DGI_TRY(realign(c, &c->gemm.b, &c->groups.b_stride, groups_of_b(c)));
    }
    dg_gemm all;
    dgi_prepared p = {0};
    int32_t *ranges = NULL;
    c->joined = join_groups(c, &all);
    if (!c->joined && c->cuda->forced_grouped_few >= 0)
        return dgi_fail(DG_UNSUPPORTED_SHAPE,
                        "%s takes groups by end and masked ones whose operands lie one directly "
                        "behind another, without a gather, a scatter or padding to write",
                        dgi_grouped_few_kernels[c->cuda->forced_grouped_few].name);
    if (!c->joined) {
        const dgi_sm90_kernel *kernel = &dgi_sm90_grouped_kernels[c->kernel];
        const int64_t k = c->gemm.a.cols;
        ranges = take(c, count * 2 * sizeof *ranges);
        const size_t more = dgi_cuda_prepare(c->cuda, kernel, c->groups.count, k, NULL, &p);
        dgi_cuda_prepare(c->cuda, kernel, c->groups.count, k, take(c, more), &p);
    }
    dg_status status = DG_OK;
    /* Packed weights' addresses are written to memory where the kernel does not get them itself. */
    const bool listed = is_packed && !(c->joined && c->prefers_few && count <= DGI_FEW_ADDRESSES);
    const uint8_t **packed = listed ? take(c, count * sizeof *packed) : NULL;
    if (!counting && count != 0) {
        if (listed)
            status = write_addresses(c, packed);
        if (status == DG_OK)
            status = c->joined ? run_joined(c, &all, packed) : run_prepared(c, &p, ranges, packed);
    }
    if (!counting && status == DG_OK)
        status = finish(c, ranges);
    c->groups.a_stride = a_stride;
    c->groups.b_stride = b_stride;
    return status;
}

/* ---- the backend's functions ----------------------------------------------------------- */

static dg_status check_pointers(dgi_cuda *cuda, const dg_gemm *g, const dg_groups *q)
{
    const bool empty = g->a.cols == 0 || q->count == 0;
    const dgi_cuda_operand operands[] = {
        {g->d.data, g->d.dtype, true, "d"},
        {g->a.data, g->a.dtype, !empty && g->a.rows != 0, "a"},
        {g->b.data, g->b.dtype, !empty && q->weights == NULL, "b"},
        {g->scale_a.data, g->scale_a.dtype, !empty && g->a.rows != 0, "scale_a"},
        {g->scale_b.data, g->scale_b.dtype, !empty && q->weights == NULL, "scale_b"},
        {g->scale_d.data, g->scale_d.dtype, g->scale_d.dtype != DG_NONE, "scale_d"},
        {g->bias.data, g->bias.dtype, g->bias.dtype != DG_NONE, "bias"},
        {g->c.data, g->c.dtype, g->beta != 0.0f, "c"},
        {q->sizes, DG_NONE, q->count != 0, "groups.sizes"},
        {q->gather, DG_NONE, q->gather != NULL, "groups.gather"},
        {q->scatter, DG_NONE, q->scatter != NULL, "groups.scatter"},
    };
    return dgi_cuda_check_operands(cuda, operands, sizeof operands / sizeof operands[0]);
}

static dg_status choose(call *c)
{
    const dgi_typical typical = dgi_groups_typical(&c->asked, &c->groups);
    const dgi_cuda *cuda = c->cuda;
    const bool may_split = !cuda->batch_invariant;
    DGI_TRY(dgi_cuda_choose_grouped(cuda, &typical, &c->kernel));
    if (cuda->forced_grouped_few >= 0) {
        c->prefers_few = true;
        return dgi_grouped_few_plan_with(&typical, cuda->units, may_split, cuda->forced_grouped_few,
                                         &c->few);
    }
    c->prefers_few = cuda->forced_grouped < 0 &&
                     dgi_grouped_few_choose(&typical, cuda->units, may_split, &c->few) &&
                     dgi_grouped_few_is_faster(&c->few, &dgi_sm90_grouped_kernels[c->kernel],
                                               &typical, cuda->units);
    return DG_OK;
}

/* Blocks along K, which cannot be moved, since nobody here knows where each begins. */
static dg_status check_blocks(const dg_gemm *gemm)
{
    const dg_matrix *operands[] = {&gemm->a, &gemm->b};
    for (int i = 0; i < 2; i++)
        if (!dgi_can_map((uintptr_t)operands[i]->data, 1, 0))
            return dgi_fail(DG_MISALIGNED,
                            "%s is at %p: blocks along K begin at multiples of 16 on CUDA devices",
                            i == 0 ? "a" : "b", operands[i]->data);
    if (gemm->a.cols % DGI_COPY_UNIT != 0)
        return dgi_fail(DG_UNSUPPORTED_SHAPE,
                        "a.cols is %lld: blocks along K, also one that the end of a cuts off, are "
                        "multiples of 16 on CUDA devices",
                        (long long)gemm->a.cols);
    return DG_OK;
}

static dg_status begin(call *c, dg_context *context, const dg_gemm *gemm, const dg_groups *groups)
{
    *c = (call){.cuda = context->state, .asked = *gemm, .groups = *groups};
    if (groups->weights != NULL) {
        c->asked.weights = groups->weights[0];
        c->asked = dgi_cuda_with_weights(&c->asked);
        c->asked.weights = NULL;
    }
    if (groups->grouping == DG_GROUPS_K_BLOCKS)
        DGI_TRY(check_blocks(gemm));
    DGI_TRY(dgi_cuda_check_scale(&gemm->scale_a, "scale_a"));
    DGI_TRY(dgi_cuda_check_scale(&c->asked.scale_b, "scale_b"));
    DGI_TRY(dgi_cuda_check_scale(&gemm->scale_d, "scale_d"));
    return choose(c);
}

static dg_status run(call *c)
{
    void *memory;
    DGI_TRY(check_pointers(c->cuda, &c->asked, &c->groups));
    DGI_TRY(pass(c, true, NULL));
    if (c->used == 0)
        return pass(c, false, NULL);
    DGI_TRY(dgi_cuda_scratch_take(c->cuda, c->used, c->stream, &memory));
    return dgi_cuda_scratch_give(c->cuda, memory, c->stream, pass(c, false, memory));
}

dg_status dgi_cuda_grouped(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                           void *stream)
{
    call c;
    DGI_TRY(begin(&c, context, gemm, groups));
    c.stream = stream;
    bool pushed;
    DGI_TRY(dgi_cuda_enter(c.cuda, &pushed));
    return dgi_cuda_leave(c.cuda, pushed, run(&c));
}

/* All kernels that groups of this kind may take, whatever the number of their rows. */
static dg_status load(call *c)
{
    const dgi_cuda *cuda = c->cuda;
    const dg_gemm whole = dgi_groups_typical(&c->asked, &c->groups).gemm;
    const dg_gemm one = dgi_cuda_with_rows(&whole, 1);
    CUfunction function;
    for (int32_t i = 0; i < dgi_sm90_grouped_kernel_count; i++)
        if ((cuda->forced_grouped < 0 || cuda->forced_grouped == i) &&
            (dgi_sm90_can_run(&dgi_sm90_grouped_kernels[i], &whole) ||
             dgi_sm90_can_run(&dgi_sm90_grouped_kernels[i], &one)))
            DGI_TRY(dgi_cuda_grouped_kernel(c->cuda, i, NULL, &function));
    for (int32_t i = 0; cuda->forced_grouped < 0 && i < dgi_grouped_few_kernel_count; i++)
        if ((cuda->forced_grouped_few < 0 || cuda->forced_grouped_few == i) &&
            dgi_decode_can_run(&dgi_grouped_few_kernels[i], &one))
            DGI_TRY(dgi_cuda_grouped_few_kernel(c->cuda, i, NULL, &function));
    static const dgi_small_kernel small[] = {DGI_SMALL_grouped_setup, DGI_SMALL_grouped_finish,
                                             DGI_SMALL_gather, DGI_SMALL_realign,
                                             DGI_SMALL_addresses};
    for (size_t i = 0; i < sizeof small / sizeof small[0]; i++)
        DGI_TRY(dgi_cuda_small_kernel(c->cuda, small[i], NULL, &function));
    return DG_OK;
}

dg_status dgi_cuda_grouped_prepare(dg_context *context, const dg_gemm *gemm,
                                   const dg_groups *groups)
{
    call c;
    DGI_TRY(begin(&c, context, gemm, groups));
    bool pushed;
    DGI_TRY(dgi_cuda_enter(c.cuda, &pushed));
    dg_status status = load(&c);
    if (status == DG_OK)
        status = pass(&c, true, NULL);
    if (status == DG_OK && c.used > 0)
        status = dgi_cuda_scratch_grow(c.cuda, c.used);
    return dgi_cuda_leave(c.cuda, pushed, status);
}

/* ---- explaining ------------------------------------------------------------------------ */

dg_status dgi_cuda_grouped_explain(dg_context *context, const dg_gemm *gemm,
                                   const dg_groups *groups, const int32_t *sizes, FILE *text)
{
    call c;
    DGI_TRY(begin(&c, context, gemm, groups));
    const dgi_typical typical = dgi_groups_typical(&c.asked, groups);
    const bool may_split = !c.cuda->batch_invariant;
    DGI_TRY(pass(&c, true, NULL)); /* whether the groups take one launch */
    const bool few = c.joined && c.prefers_few;
    dgi_grouped_few_explain(&typical, c.cuda->units, may_split, c.joined, few ? c.few.kernel : -1,
                            text);
    dgi_sm90_explain_grouped(&typical, c.cuda->units, few ? -1 : c.kernel, text);
    if (sizes == NULL)
        return DG_OK;
    const size_t count = (size_t)groups->count;
    dgi_product_size *products = malloc((count + 1) * sizeof *products);
    if (products == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the sizes of %zu groups", count);
    dgi_groups_products(gemm, groups, sizes, products);
    dg_status status = DG_OK;
    if (few)
        dgi_grouped_few_explain_balance(&c.few, products, groups->count, text);
    else
        status =
            dgi_sm90_explain_balance(&dgi_sm90_grouped_kernels[c.kernel], products, groups->count,
                                     c.cuda->units, may_split && !c.joined, text);
    free(products);
    return status;
}
