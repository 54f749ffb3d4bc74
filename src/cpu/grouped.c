/* SPDX-License-Identifier: MIT */
/*
 * Many products at once on the CPU. All are cut into pieces, rows by panels of one product, and the
 * threads take the pieces one by one, the longest first: so a call of many small products keeps
 * them as busy as one large product does. How the work is cut has no influence on the bits.
 */
#include "core/grouped.h"
#include "cpu/cpu.h"
#include "cpu/operands.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

/* ---- the products of a call ---------------------------------------------------------- */

/* A product: some rows of a group, or all of a group along K or of a problem in a table. */
typedef struct product {
    int64_t first, rows;      /* of A and D                                                   */
    int32_t group;            /* or problem                                                   */
    bool zero;                /* these are padding rows that become zeros                     */
    int32_t depth;            /* groups along K: the group's K, and                           */
    int64_t k;                /* where it begins in A and B                                   */
    int64_t a_scale, b_scale; /* and in their scales                                         */
    int64_t block_rows, panels, cost; /* how it may be cut, and the work                     */
} product;

typedef struct call {
    const dgi_cpu *cpu;
    const dg_gemm *gemm;     /* of all groups, or the problems of a table */
    const dg_groups *groups; /* NULL: a table                             */
    int32_t problems;
} call;

static void *moved(void *data, int64_t elements, dg_dtype dtype)
{
    return data == NULL ? NULL : (char *)data + elements * (int64_t)dg_dtype_bytes(dtype);
}

/* Moves an operand from the first group to `group`. */
static void move_matrix(dg_matrix *matrix, int64_t stride, int32_t group)
{
    matrix->data = moved(matrix->data, stride * group, matrix->dtype);
}

static void move_scale(dg_scale *scale, int64_t stride, int32_t group)
{
    scale->data = moved(scale->data, stride * group, scale->dtype);
}

/* One operand of a group along K: some columns of the whole one and of its scales. */
static void take_columns(const product *p, bool blocks, dg_matrix *matrix, dg_scale *scale,
                         int64_t scale_col)
{
    matrix->data = moved(matrix->data, p->k * (blocks ? matrix->rows : 1), matrix->dtype);
    matrix->cols = p->depth;
    if (blocks)
        matrix->ld = p->depth;
    if (scale->block_cols == 0)
        return;
    scale->data = moved(scale->data, scale_col * scale->col_stride, scale->dtype);
    scale->cols = dg_scale_count(p->depth, scale->block_cols, 0);
}

/* The GEMM of which a product's rows are rows. */
static dg_gemm gemm_of(const call *c, const product *p)
{
    const dg_groups *q = c->groups;
    if (q == NULL)
        return c->gemm[p->group];
    dg_gemm g = *c->gemm;
    move_matrix(&g.bias, q->bias_stride, p->group);
    if (dgi_groups_divide_k(q)) {
        const bool blocks = q->grouping == DG_GROUPS_K_BLOCKS;
        take_columns(p, blocks, &g.a, &g.scale_a, p->a_scale);
        take_columns(p, blocks, &g.b, &g.scale_b, p->b_scale);
    } else if (q->weights != NULL) {
        g.weights = q->weights[p->group];
    } else {
        move_matrix(&g.b, q->b_stride, p->group);
        move_scale(&g.scale_b, q->scale_b_stride, p->group);
    }
    if (dgi_groups_share_rows(q))
        return g;
    if (q->grouping == DG_GROUPS_MASKED) {
        move_matrix(&g.a, q->a_stride, p->group);
        move_scale(&g.scale_a, q->scale_a_stride, p->group);
    }
    move_matrix(&g.c, q->c_stride, p->group);
    move_matrix(&g.d, q->d_stride, p->group);
    move_scale(&g.scale_d, q->scale_d_stride, p->group);
    return g;
}

/* ---- listing them -------------------------------------------------------------------- */

/* Without memory it only counts. */
typedef struct list {
    product *items;
    int64_t count;
} list;

static void add(list *l, product p)
{
    if (p.rows <= 0)
        return;
    if (l->items != NULL)
        l->items[l->count] = p;
    l->count++;
}

/* Rows that belong to a group or, when that is -1, to none. */
static void add_rows(const call *c, list *l, int64_t first, int64_t end, int32_t group)
{
    if (group >= 0)
        add(l, (product){.first = first, .rows = end - first, .group = group});
    else if (c->groups->padding == DG_PADDING_ZERO)
        add(l, (product){.first = first, .rows = end - first, .zero = true});
}

/* The same where rows of A that are not there make padding rows. */
static void add_gathered(const call *c, list *l, int64_t first, int64_t end, int32_t group)
{
    const int32_t *gather = c->groups->gather;
    if (gather == NULL || group < 0) {
        add_rows(c, l, first, end, group);
        return;
    }
    while (first < end) {
        const bool there = gather[first] >= 0 && gather[first] < c->gemm->a.rows;
        int64_t stop = first + 1;
        while (stop < end && (gather[stop] >= 0 && gather[stop] < c->gemm->a.rows) == there)
            stop++;
        add_rows(c, l, first, stop, there ? group : -1);
        first = stop;
    }
}

static void list_by_end(const call *c, list *l)
{
    const dg_groups *q = c->groups;
    const int64_t rows = dgi_groups_rows(c->gemm, q);
    int64_t cursor = 0, first;
    for (int32_t g = 0; g < q->count; g++) {
        const int64_t end = dgi_groups_next_end(cursor, q->sizes[g], q->alignment, rows, &first);
        add_rows(c, l, cursor, first < rows ? first : rows, -1);
        add_gathered(c, l, first, end, g);
        cursor = end;
    }
    add_rows(c, l, cursor, rows, -1);
}

/* Whether no group has two runs of rows. */
static dg_status check_runs(const call *c)
{
    const dg_groups *q = c->groups;
    const int64_t rows = dgi_groups_rows(c->gemm, q);
    bool *seen = calloc((size_t)q->count + 1, sizeof *seen);
    if (seen == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory to check %d groups", q->count);
    dg_status status = DG_OK;
    for (int64_t r = 0; r < rows && status == DG_OK; r++) {
        const int32_t group = q->sizes[r];
        if (group < 0 || group >= q->count || (r > 0 && q->sizes[r - 1] == group))
            continue;
        if (seen[group])
            status = dgi_fail(DG_INVALID_ARGUMENT,
                              "groups.sizes[%lld] is %d, whose rows ended before: the rows of a "
                              "group are one run",
                              (long long)r, group);
        seen[group] = true;
    }
    free(seen);
    return status;
}

static dg_status list_by_row(const call *c, list *l)
{
    const dg_groups *q = c->groups;
    const int64_t rows = dgi_groups_rows(c->gemm, q);
    if (l->items == NULL)
        DGI_TRY(check_runs(c));
    for (int64_t first = 0, end; first < rows; first = end) {
        const int32_t group = q->sizes[first];
        end = first + 1;
        while (end < rows && q->sizes[end] == group)
            end++;
        add_gathered(c, l, first, end, group < q->count ? group : -1);
    }
    return DG_OK;
}

static void list_masked(const call *c, list *l)
{
    const dg_groups *q = c->groups;
    const int64_t rows = c->gemm->a.rows;
    for (int32_t g = 0; g < q->count; g++) {
        const int64_t used = dgi_clamp_size(q->sizes[g], rows);
        add(l, (product){.rows = used, .group = g});
        if (q->padding == DG_PADDING_ZERO)
            add(l, (product){.first = used, .rows = rows - used, .group = g, .zero = true});
    }
}

static dg_status check_k_scale(const dg_scale *scale, const char *name, int64_t need, int32_t group)
{
    if (need <= scale->cols)
        return DG_OK;
    return dgi_fail(DG_INVALID_ARGUMENT,
                    "groups.sizes need %lld columns of %s up to group %d, but it has %lld",
                    (long long)need, name, group, (long long)scale->cols);
}

static dg_status list_along_k(const call *c, list *l)
{
    const dg_gemm *g = c->gemm;
    product p = {.rows = g->a.rows};
    for (p.group = 0; p.group < c->groups->count; p.group++) {
        p.depth = (int32_t)dgi_clamp_size(c->groups->sizes[p.group], g->a.cols - p.k);
        if (c->groups->grouping == DG_GROUPS_K_BLOCKS && c->groups->sizes[p.group] > 0 &&
            c->groups->sizes[p.group] % 16 != 0)
            return dgi_fail(DG_INVALID_ARGUMENT,
                            "groups.sizes[%d] is %d: blocks along K are multiples of 16", p.group,
                            c->groups->sizes[p.group]);
        const int64_t a_end = p.a_scale + dg_scale_count(p.depth, g->scale_a.block_cols, 0);
        const int64_t b_end = p.b_scale + dg_scale_count(p.depth, g->scale_b.block_cols, 0);
        add(l, p);
        p.k += p.depth;
        if (g->scale_a.block_cols != 0) {
            DGI_TRY(check_k_scale(&g->scale_a, "scale_a", a_end, p.group));
            p.a_scale = a_end;
        }
        if (g->scale_b.block_cols != 0) {
            DGI_TRY(check_k_scale(&g->scale_b, "scale_b", b_end, p.group));
            p.b_scale = b_end;
        }
    }
    return DG_OK;
}

static dg_status list_products(const call *c, list *l)
{
    l->count = 0;
    if (c->groups == NULL) {
        for (int32_t i = 0; i < c->problems; i++)
            if (c->gemm[i].d.cols != 0)
                add(l, (product){.rows = c->gemm[i].d.rows, .group = i});
        return DG_OK;
    }
    switch (c->groups->grouping) {
    case DG_GROUPS_BY_END:
        list_by_end(c, l);
        return DG_OK;
    case DG_GROUPS_BY_ROW:
        return list_by_row(c, l);
    case DG_GROUPS_MASKED:
        list_masked(c, l);
        return DG_OK;
    default:
        return list_along_k(c, l);
    }
}

/* ---- pieces -------------------------------------------------------------------------- */

typedef struct piece {
    int64_t product, row, rows, panel, end, cost;
} piece;

enum {
    ZERO_ROWS = 1024,      /* rows of zeros in a piece                                          */
    ZERO_COST = 64,        /* stores are quick: this many elements cost as much as one product  */
    THREAD_PIECES = 8,     /* of each thread: enough to even out, and each of at least          */
    PIECE_STRIPS = 4,      /* of N where there are threads enough, since each decodes its A     */
    THREAD_COST = 1 << 12, /* work that repays starting a thread                                */
    DECODE_ROWS = 4        /* decoding a panel costs as much as multiplying it by so many rows  */
};

static int64_t least(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t greatest(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

/* How the product can be cut and what it costs; the scratch memory that a piece needs. */
static size_t measure(const call *c, product *p)
{
    const dg_gemm g = gemm_of(c, p);
    if (p->zero) {
        p->block_rows = least(p->rows, ZERO_ROWS);
        p->cost = p->rows * g.d.cols / ZERO_COST;
        return 0;
    }
    const dgi_cpu_job job = dgi_cpu_job_of(c->cpu, &g, p->rows, 1);
    p->block_rows = job.plan.block_rows;
    p->panels = job.plan.panels;
    p->cost = (p->rows + DECODE_ROWS) * p->panels * (job.plan.depth + 1);
    return job.at.total;
}

static int64_t blocks_of(const product *p)
{
    return dgi_ceil_div(p->rows, p->block_rows);
}

/* Cuts a product into pieces of about `target` cost, along N in strips of packed weights. */
static int64_t cut(const product *p, int64_t index, int64_t target, int64_t threads, piece *pieces)
{
    const int64_t blocks = blocks_of(p), strips = dgi_ceil_div(p->panels, DGI_STRIP);
    const int64_t block_cost = p->cost / blocks;
    int64_t parts = 1 + block_cost / target, count = 0;
    parts = least(parts, greatest(strips / PIECE_STRIPS, threads));
    parts = strips == 0 ? 1 : least(parts, strips);
    for (int64_t i = 0; i < blocks; i++)
        for (int64_t j = 0; j < parts; j++) {
            const int64_t row = dgi_share(p->rows, blocks, i);
            pieces[count++] = (piece){
                .product = index,
                .row = p->first + row,
                .rows = dgi_share(p->rows, blocks, i + 1) - row,
                .panel = dgi_share(strips, parts, j) * DGI_STRIP,
                .end = least(dgi_share(strips, parts, j + 1) * DGI_STRIP, p->panels),
                .cost = block_cost / parts,
            };
        }
    return count;
}

/* The longest first; equal ones in order, in which neighbours share operands. */
static int compare(const void *x, const void *y)
{
    const piece *p = x, *q = y;
    if (p->cost != q->cost)
        return p->cost < q->cost ? 1 : -1;
    return p < q ? -1 : p > q;
}

static void zero_rows(const call *c, const dg_gemm *g, const piece *piece)
{
    const size_t element = dg_dtype_bytes(g->d.dtype);
    for (int64_t r = piece->row; r < piece->row + piece->rows; r++) {
        const int64_t row = c->groups->scatter != NULL ? c->groups->scatter[r] : r;
        if (row >= 0 && row < g->d.rows)
            memset((char *)g->d.data + row * g->d.ld * (int64_t)element, 0,
                   (size_t)g->d.cols * element);
    }
}

static void compute_piece(const call *c, const product *p, const piece *piece, char *memory)
{
    const dg_gemm g = gemm_of(c, p);
    if (p->zero) {
        zero_rows(c, &g, piece);
        return;
    }
    dgi_cpu_job job = dgi_cpu_job_of(c->cpu, &g, p->rows, 1);
    if (c->groups != NULL) {
        job.gather = c->groups->gather;
        job.scatter = c->groups->scatter;
    }
    dgi_cpu_compute_piece(&job, piece->row, piece->rows, piece->panel, piece->end, memory);
}

/* ---- computing ----------------------------------------------------------------------- */

/*
 * Says what the pieces are and how evenly the threads would take them, were each as fast as its
 * cost says.
 */
static dg_status explain_pieces(const call *c, const list *l, const piece *pieces, int64_t count,
                                int32_t threads, FILE *text)
{
    int64_t *work = calloc((size_t)threads + 1, sizeof *work), sum = 0, busiest = 0,
            idlest = INT64_MAX;
    if (work == NULL)
        return dgi_fail(DG_OUT_OF_MEMORY, "no memory for the work of %d threads", threads);
    for (int64_t i = 0; i < count; i++) {
        int32_t free_first = 0;
        for (int32_t t = 1; t < threads; t++)
            free_first = work[t] < work[free_first] ? t : free_first;
        work[free_first] += pieces[i].cost;
    }
    for (int32_t t = 0; t < threads; t++) {
        sum += work[t];
        busiest = greatest(busiest, work[t]);
        idlest = least(idlest, work[t]);
    }
    free(work);
    const double mean = sum > 0 ? (double)sum / threads : 1.0;
    fprintf(text, "products %lld in %lld pieces for %d threads of %d\n", (long long)l->count,
            (long long)count, threads, c->cpu->threads);
    fprintf(text, DGI_BALANCE_LINE, (double)busiest / mean, (double)idlest / mean, "thread");
    return DG_OK;
}

/* Computes the products or, with `text`, says how it would. */
static dg_status compute_list(const call *c, dgi_workspaces *pool, const list *l, FILE *text)
{
    int64_t cost = 0, blocks = 0;
    size_t scratch = 0;
    for (int64_t i = 0; i < l->count; i++) {
        const size_t need = measure(c, &l->items[i]);
        scratch = need > scratch ? need : scratch;
        cost += l->items[i].cost;
        blocks += blocks_of(&l->items[i]);
    }
    const int64_t target = cost / ((int64_t)c->cpu->threads * THREAD_PIECES) + 1;
    const size_t most = (size_t)(blocks + cost / target); /* pieces: see cut() */
    const size_t list_bytes =
        dgi_ceil_div(most * sizeof(piece), DGI_WORKSPACE_ALIGNMENT) * DGI_WORKSPACE_ALIGNMENT;
    void *memory;
    DGI_TRY(dgi_workspace_take(pool, list_bytes + (size_t)c->cpu->threads * scratch, &memory));
    piece *pieces = memory;
    int64_t count = 0;
    for (int64_t i = 0; i < l->count; i++)
        count += cut(&l->items[i], i, target, c->cpu->threads, pieces + count);
    qsort(pieces, (size_t)count, sizeof *pieces, compare);
    const int32_t threads = (int32_t)least(least(c->cpu->threads, count), 1 + cost / THREAD_COST);
    if (text != NULL) {
        dg_status status = explain_pieces(c, l, pieces, count, threads, text);
        dgi_workspace_give_back(pool, memory);
        return status;
    }
#pragma omp parallel num_threads(threads)
    {
        char *mine = (char *)memory + list_bytes + (size_t)omp_get_thread_num() * scratch;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < count; i++)
            compute_piece(c, &l->items[pieces[i].product], &pieces[i], mine);
    }
    dgi_workspace_give_back(pool, memory);
    return DG_OK;
}

static dg_status compute(const call *c, dgi_workspaces *pool, FILE *text)
{
    list l = {NULL, 0};
    void *memory;
    DGI_TRY(list_products(c, &l));
    if (l.count == 0)
        return DG_OK;
    DGI_TRY(dgi_workspace_take(pool, (size_t)l.count * sizeof *l.items, &memory));
    l.items = memory;
    dg_status status = list_products(c, &l);
    if (status == DG_OK)
        status = compute_list(c, pool, &l, text);
    dgi_workspace_give_back(pool, memory);
    return status;
}

dg_status dgi_cpu_grouped(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                          void *stream)
{
    (void)stream;
    dgi_cpu *cpu = context->state;
    const call c = {.cpu = cpu, .gemm = gemm, .groups = groups};
    return compute(&c, &cpu->workspaces, NULL);
}

/* There is nothing to load, and the sizes that say how much memory is needed may change. */
dg_status dgi_cpu_grouped_prepare(dg_context *context, const dg_gemm *gemm, const dg_groups *groups)
{
    (void)context, (void)gemm, (void)groups;
    return DG_OK;
}

dg_status dgi_cpu_grouped_explain(dg_context *context, const dg_gemm *gemm, const dg_groups *groups,
                                  const int32_t *sizes, FILE *text)
{
    dgi_cpu *cpu = context->state;
    dg_groups with_sizes = *groups;
    with_sizes.sizes = sizes;
    const call c = {.cpu = cpu, .gemm = gemm, .groups = &with_sizes};
    dgi_cpu_explain_choice(cpu, text);
    return sizes == NULL ? DG_OK : compute(&c, &cpu->workspaces, text);
}

dg_status dgi_cpu_many(dgi_cpu *cpu, const dg_gemm *gemms, int32_t count)
{
    const call c = {.cpu = cpu, .gemm = gemms, .problems = count};
    return compute(&c, &cpu->workspaces, NULL);
}

dg_status dgi_cpu_explain_many(dgi_cpu *cpu, const dg_gemm *gemms, int32_t count, FILE *text)
{
    const call c = {.cpu = cpu, .gemm = gemms, .problems = count};
    dgi_cpu_explain_choice(cpu, text);
    return compute(&c, &cpu->workspaces, text);
}
