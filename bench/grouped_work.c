/* SPDX-License-Identifier: MIT */
/*
 * The operands of a case of grouped products, and its calls. All operands of a set lie in one block
 * of device memory; the blocks are copies of each other that take turns, so that each call finds
 * the caches cold. Random BF16 values, alike for no two operands, are quantised on the device.
 */
#include "grouped.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where a product's operands lie in a block, in bytes. */
typedef struct place {
    size_t a, b, d, scale_a, scale_b, own_scale_a;
    int64_t first; /* row of the whole A and D, where the products share them */
} place;

struct grouped_work {
    dg_context *context, *serial;
    void *stream;
    const grouped_case *item;
    int sets;
    char **blocks;
    size_t bytes, sizes_at, d_at, d_bytes; /* of a block */
    place *places;
    int64_t rows; /* of the whole A, or masked: of each group's */
    int32_t *sizes;
    dg_weights **weights; /* [sets][count], NULL: row-major */
    dg_table **tables;    /* [sets] */
};

/* ---- layout -------------------------------------------------------------------------- */

static size_t take(grouped_work *w, int64_t bytes)
{
    const size_t at = w->bytes;
    w->bytes += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

static size_t take_scale(grouped_work *w, const dg_scale *s)
{
    return take(w, dg_scale_stride(s) * (int64_t)dg_dtype_bytes(s->dtype));
}

/* Rows of a product's A and D in memory. */
static int64_t rows_of(const grouped_work *w, int i)
{
    return w->item->form == GROUPED_MASKED ? w->rows : w->item->products[i].m;
}

int64_t grouped_peer_rows(int64_t m)
{
    return (m + GROUPED_PEER_ROWS - 1) / GROUPED_PEER_ROWS * GROUPED_PEER_ROWS;
}

static void place_operands(grouped_work *w)
{
    const grouped_case *c = w->item;
    const grouped_product *p = c->products;
    const bool shared = c->form == GROUPED_CONTIGUOUS;
    int64_t sum = 0, largest = 1, widest = 1;
    for (int i = 0; i < c->count; i++) {
        w->places[i].first = shared ? sum : 0;
        sum += p[i].m;
        largest = p[i].m > largest ? p[i].m : largest;
        widest = p[i].n > widest ? p[i].n : widest;
        w->sizes[i] = (int32_t)(shared ? sum : p[i].m);
    }
    w->rows = shared ? sum : largest;
    w->sizes_at = take(w, c->count * (int64_t)sizeof *w->sizes);
    const dg_scale whole = bench_scale_layout(c->recipe, true, w->rows, p[0].k);
    const size_t a = take(w, shared ? w->rows * p[0].k : 0);
    const size_t scale_a = shared ? take_scale(w, &whole) : 0;
    /* Operand by operand, so that groups of one shape lie one behind another, as in a server. */
    for (int i = 0; i < c->count; i++)
        w->places[i].a =
            shared ? a + (size_t)(w->places[i].first * p[i].k) : take(w, rows_of(w, i) * p[i].k);
    for (int i = 0; i < c->count; i++)
        w->places[i].b = take(w, p[i].n * p[i].k);
    for (int i = 0; i < c->count; i++) {
        const dg_scale of_a = bench_scale_layout(c->recipe, true, rows_of(w, i), p[i].k);
        const dg_scale of_b = bench_scale_layout(c->recipe, false, p[i].n, p[i].k);
        w->places[i].scale_a = shared ? scale_a : take_scale(w, &of_a);
        w->places[i].scale_b = take_scale(w, &of_b);
    }
    for (int i = 0; i < c->count; i++) {
        const dg_scale own = bench_scale_layout(c->recipe, true, grouped_peer_rows(p[i].m), p[i].k);
        w->places[i].own_scale_a =
            c->recipe->a_rows == 1 ? take_scale(w, &own) : w->places[i].scale_a;
    }
    w->d_at = w->bytes;
    const size_t d = take(w, shared ? w->rows * p[0].n * 2 : 0);
    for (int i = 0; i < c->count; i++)
        w->places[i].d = shared ? d + (size_t)(w->places[i].first * p[i].n * 2)
                                : take(w, rows_of(w, i) * p[i].n * 2);
    w->d_bytes = w->bytes - w->d_at;
    take(w, GROUPED_PEER_ROWS * widest * 2); /* what the peer's last product computes too much */
}

/* ---- the products -------------------------------------------------------------------- */

/* Rows `first` to `first + rows` of a scale. */
static void view_rows(dg_scale *s, int64_t first, int64_t rows)
{
    if (s->block_rows == 0)
        return;
    s->data =
        (char *)s->data + first / s->block_rows * s->row_stride * (int64_t)dg_dtype_bytes(s->dtype);
    s->row_phase = (int32_t)(first % s->block_rows);
    s->rows = dg_scale_count(rows, s->block_rows, s->row_phase);
}

/* A product with as many rows as its operands have in memory, or only those of `m`. */
static dg_gemm product_of(const grouped_work *w, const char *block, int i, int64_t m, bool own)
{
    const grouped_case *c = w->item;
    const grouped_product *p = &c->products[i];
    const place *at = &w->places[i];
    char *base = (char *)block;
    dg_gemm g = DG_GEMM_INIT;
    g.a = dg_matrix_of(base + at->a, DG_E4M3, m, p->k);
    g.b = dg_matrix_of(base + at->b, DG_E4M3, p->n, p->k);
    g.d = dg_matrix_of(base + at->d, DG_BF16, m, p->n);
    g.accumulation = c->recipe->accumulation;
    if (own && c->recipe->a_rows == 1) {
        g.scale_a = bench_scale_layout(c->recipe, true, grouped_peer_rows(m), p->k);
        g.scale_a.rows = m;
        g.scale_a.data = base + at->own_scale_a;
    } else {
        const bool shared = c->form == GROUPED_CONTIGUOUS;
        g.scale_a = bench_scale_layout(c->recipe, true, shared ? w->rows : rows_of(w, i), p->k);
        g.scale_a.data = base + at->scale_a;
        view_rows(&g.scale_a, at->first, m);
    }
    g.scale_b = bench_scale_layout(c->recipe, false, p->n, p->k);
    g.scale_b.data = base + at->scale_b;
    return g;
}

dg_gemm grouped_work_product(const grouped_work *w, int set, int i, bool own)
{
    return product_of(w, w->blocks[set], i, w->item->products[i].m, own);
}

static void use_weights(const grouped_work *w, int set, int i, dg_gemm *g)
{
    if (w->weights == NULL)
        return;
    g->weights = w->weights[set * w->item->count + i];
    g->b = (dg_matrix){0};
    g->scale_b = (dg_scale){0};
}

/* From the first product's operand to the second's, in elements. */
static int64_t stride(size_t first, size_t second, size_t element)
{
    return ((int64_t)second - (int64_t)first) / (int64_t)element;
}

/* The call of all groups. */
static dg_gemm groups_of(const grouped_work *w, int set, dg_groups *groups)
{
    const grouped_case *c = w->item;
    const place *at = w->places, *next = c->count > 1 ? at + 1 : at;
    const bool masked = c->form == GROUPED_MASKED;
    const char *block = w->blocks[set];
    dg_gemm g = product_of(w, block, 0, w->rows, false);
    *groups = dg_groups_of(masked ? DG_GROUPS_MASKED : DG_GROUPS_BY_END, c->count,
                           (const int32_t *)(block + w->sizes_at), &g);
    const size_t scale = dg_dtype_bytes(g.scale_a.dtype);
    groups->a_stride = stride(at->a, next->a, 1);
    groups->b_stride = stride(at->b, next->b, 1);
    groups->d_stride = stride(at->d, next->d, 2);
    groups->scale_a_stride = stride(at->scale_a, next->scale_a, scale);
    groups->scale_b_stride = stride(at->scale_b, next->scale_b, scale);
    int64_t sum = 0;
    for (int i = 0; i < c->count; i++)
        sum += c->products[i].m;
    groups->expected_rows = (sum + c->count - 1) / c->count;
    if (w->weights != NULL) {
        groups->weights = (const dg_weights *const *)(w->weights + set * c->count);
        g.b = (dg_matrix){0};
        g.scale_b = (dg_scale){0};
    }
    return g;
}

/* ---- values -------------------------------------------------------------------------- */

static void copy(const grouped_work *w, void *target, const void *source, size_t bytes,
                 dg_copy_kind kind)
{
    cli_check(dg_memory_copy(w->context, target, source, bytes, kind, w->stream), "copying");
}

static void finish(const grouped_work *w)
{
    cli_check(dg_synchronize(w->context, w->stream), "waiting for the device");
}

static void *device_memory(const grouped_work *w, size_t bytes)
{
    void *memory;
    cli_check(dg_memory_alloc(w->context, bytes, &memory), "allocating operands");
    return memory;
}

/* Random values repeat after so many, a prime, and each operand begins OFFSET later than the last.
 */
enum { PERIOD = 4194301, OFFSET = 4099 };

/* `count` random BF16 values in device memory. */
static char *random_values(const grouped_work *w, int64_t count, bench_fill fill)
{
    const int64_t made = count < PERIOD ? count : PERIOD;
    float *wide = cli_alloc((size_t)made * sizeof *wide);
    char *narrow = cli_alloc((size_t)made * 2), *values = device_memory(w, (size_t)count * 2);
    bench_fill_values(wide, made, fill, (uint64_t)count);
    cli_check(dg_convert(wide, DG_F32, narrow, DG_BF16, made, DG_SATURATE), "making values");
    for (int64_t done = 0; done < count; done += made) {
        const int64_t more = count - done < made ? count - done : made;
        copy(w, values + 2 * done, narrow, (size_t)more * 2, DG_HOST_TO_DEVICE);
    }
    finish(w);
    free(wide);
    free(narrow);
    return values;
}

static void quantize(const grouped_work *w, const char *values, const dg_matrix *codes,
                     const dg_scale *scale)
{
    if (codes->rows == 0)
        return;
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of((void *)values, DG_BF16, codes->rows, codes->cols);
    q.output = *codes;
    q.scale = *scale;
    q.rounding = scale->dtype == DG_UE8M0 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;
    cli_check(dg_quantize_run(w->context, &q, w->stream), "quantising");
}

/* Fills the first block. */
static void fill_block(const grouped_work *w, bench_fill fill)
{
    const grouped_case *c = w->item;
    int64_t largest = c->form == GROUPED_CONTIGUOUS ? w->rows * c->products[0].k : 0;
    for (int i = 0; i < c->count; i++) {
        const grouped_product *p = &c->products[i];
        const int64_t a = rows_of(w, i) * p->k, b = p->n * p->k;
        largest = a > largest ? a : largest;
        largest = b > largest ? b : largest;
    }
    char *values = random_values(w, largest + (2 * (int64_t)c->count + 1) * OFFSET, fill);
    copy(w, w->blocks[0] + w->sizes_at, w->sizes, (size_t)c->count * sizeof *w->sizes,
         DG_HOST_TO_DEVICE);
    if (c->form == GROUPED_CONTIGUOUS) {
        const dg_gemm whole = product_of(w, w->blocks[0], 0, w->rows, false);
        quantize(w, values, &whole.a, &whole.scale_a);
    }
    for (int i = 0; i < c->count; i++) {
        const char *of_a =
            values + (c->form == GROUPED_CONTIGUOUS ? w->places[i].first * c->products[i].k
                                                    : (2 * (int64_t)i + 1) * OFFSET) *
                         2;
        const dg_gemm all = product_of(w, w->blocks[0], i, rows_of(w, i), false);
        const dg_gemm own = grouped_work_product(w, 0, i, true);
        if (c->form != GROUPED_CONTIGUOUS)
            quantize(w, of_a, &all.a, &all.scale_a);
        if (c->recipe->a_rows == 1) /* the same codes once more */
            quantize(w, of_a, &own.a, &own.scale_a);
        quantize(w, values + (2 * (int64_t)i + 2) * OFFSET * 2, &all.b, &all.scale_b);
    }
    finish(w);
    cli_check(dg_memory_free(w->context, values), "releasing values");
}

/* ---- making and releasing ------------------------------------------------------------ */

static void pack_weights(grouped_work *w)
{
    const int count = w->item->count;
    w->weights = cli_alloc((size_t)(w->sets * count) * sizeof *w->weights);
    for (int set = 0; set < w->sets; set++)
        for (int i = 0; i < count; i++) {
            const dg_gemm g = grouped_work_product(w, set, i, false);
            cli_check(dg_weights_pack(w->context, &g.b, &g.scale_b, NULL, 0, w->stream,
                                      &w->weights[set * count + i]),
                      "packing weights");
        }
}

static void make_tables(grouped_work *w)
{
    const grouped_case *c = w->item;
    grouped_product most = c->products[0];
    for (int i = 1; i < c->count; i++) {
        const grouped_product *p = &c->products[i];
        most.m = p->m > most.m ? p->m : most.m;
        most.n = p->n > most.n ? p->n : most.n;
        most.k = p->k > most.k ? p->k : most.k;
    }
    dg_gemm largest = DG_GEMM_INIT;
    largest.a = dg_matrix_of(NULL, DG_E4M3, most.m, most.k);
    largest.b = dg_matrix_of(NULL, DG_E4M3, most.n, most.k);
    largest.d = dg_matrix_of(NULL, DG_BF16, most.m, most.n);
    largest.scale_a = bench_scale_layout(c->recipe, true, most.m, most.k);
    largest.scale_b = bench_scale_layout(c->recipe, false, most.n, most.k);
    largest.accumulation = c->recipe->accumulation;
    w->tables = cli_alloc((size_t)w->sets * sizeof *w->tables);
    for (int set = 0; set < w->sets; set++) {
        dg_table **table = &w->tables[set];
        cli_check(dg_table_create(w->context, &largest, c->count, table), "making a table");
        for (int i = 0; i < c->count; i++) {
            dg_gemm g = grouped_work_product(w, set, i, false);
            use_weights(w, set, i, &g);
            cli_check(dg_table_set(*table, i, &g), "filling a table");
        }
        cli_check(dg_table_update(*table, w->stream), "filling a table");
        finish(w);
    }
}

grouped_work *grouped_work_new(dg_context *context, dg_context *serial, void *stream,
                               const grouped_case *item, bench_fill fill, bool packed,
                               int (*copies)(size_t bytes))
{
    grouped_work *w = cli_alloc(sizeof *w);
    *w = (grouped_work){.context = context, .serial = serial, .stream = stream, .item = item};
    w->places = cli_alloc((size_t)item->count * sizeof *w->places);
    w->sizes = cli_alloc((size_t)item->count * sizeof *w->sizes);
    place_operands(w);
    w->sets = copies(w->bytes);
    w->blocks = cli_alloc((size_t)w->sets * sizeof *w->blocks);
    for (int i = 0; i < w->sets; i++) {
        w->blocks[i] = device_memory(w, w->bytes);
        if (i == 0)
            fill_block(w, fill);
        else
            copy(w, w->blocks[i], w->blocks[0], w->bytes, DG_DEVICE_TO_DEVICE);
    }
    if (packed)
        pack_weights(w);
    if (item->form == GROUPED_TABLE)
        make_tables(w);
    finish(w);
    return w;
}

void grouped_work_free(grouped_work *w)
{
    for (int set = 0; set < w->sets; set++) {
        if (w->tables != NULL)
            dg_table_destroy(w->tables[set]);
        for (int i = 0; w->weights != NULL && i < w->item->count; i++)
            dg_weights_destroy(w->weights[set * w->item->count + i]);
        cli_check(dg_memory_free(w->context, w->blocks[set]), "releasing operands");
    }
    free(w->tables);
    free(w->weights);
    free(w->blocks);
    free(w->places);
    free(w->sizes);
    free(w);
}

int grouped_work_sets(const grouped_work *w)
{
    return w->sets;
}

/* ---- calls --------------------------------------------------------------------------- */

bool grouped_run_together(void *state, int set, void *stream)
{
    const grouped_work *w = state;
    dg_groups groups;
    if (w->tables != NULL) {
        cli_check(dg_table_run(w->tables[set], stream), "multiplying");
        return true;
    }
    const dg_gemm g = groups_of(w, set, &groups);
    cli_check(dg_grouped_run(w->context, &g, &groups, stream), "multiplying");
    return true;
}

bool grouped_run_separately(void *state, int set, void *stream)
{
    const grouped_work *w = state;
    for (int i = 0; i < w->item->count; i++) {
        dg_gemm g = grouped_work_product(w, set, i, false);
        use_weights(w, set, i, &g);
        cli_check(dg_gemm_run(w->serial, &g, stream), "multiplying one product");
    }
    return true;
}

bool grouped_run_update(void *state, int set, void *stream)
{
    const grouped_work *w = state;
    dg_table_values values = DG_TABLE_VALUES_INIT;
    values.m = (const int32_t *)(w->blocks[set] + w->sizes_at);
    cli_check(dg_table_update_device(w->tables[set], &values, stream), "updating a table");
    return true;
}

grouped_schedule grouped_work_schedule(const grouped_work *w)
{
    grouped_schedule schedule = {"", 1.0, 1.0};
    dg_groups groups;
    size_t bytes = 16384;
    char *text = cli_alloc(bytes), *rest;
    if (w->tables != NULL) {
        cli_check(dg_table_explain(w->tables[0], text, &bytes), "asking for the schedule");
    } else {
        const dg_gemm g = groups_of(w, 0, &groups);
        cli_check(dg_grouped_explain(w->context, &g, &groups, w->sizes, text, &bytes),
                  "asking for the schedule");
    }
    for (char *line = strtok_r(text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest)) {
        sscanf(line, "kernel %95[^: ]", schedule.kernel);
        sscanf(line, "balance %lf %lf", &schedule.busiest, &schedule.idlest);
    }
    free(text);
    return schedule;
}

/* ---- checking ------------------------------------------------------------------------ */

/* Sampled rows of an operand in a copy of the block, as doubles. */
static void sample(double *out, const dg_matrix *codes, const dg_scale *scale, const int64_t *rows)
{
    const void *picked[bench_sample_count];
    int64_t in_scale[bench_sample_count]; /* row_phase counts as rows before the first */
    for (int i = 0; i < bench_sample_count; i++) {
        picked[i] = (const char *)codes->data + rows[i] * codes->ld;
        in_scale[i] = rows[i] + scale->row_phase;
    }
    bench_sample_codes(out, picked, codes->dtype, scale, in_scale, codes->cols);
}

bool grouped_work_check(grouped_work *w, const char *who, grouped_call *call, void *state)
{
    const grouped_case *c = w->item;
    char *block = cli_alloc(w->bytes);
    memset(block, 0xFF, w->d_bytes);
    copy(w, w->blocks[0] + w->d_at, block, w->d_bytes, DG_HOST_TO_DEVICE);
    finish(w);
    const bool possible = call(state, 0, w->stream);
    copy(w, block, w->blocks[0], w->bytes, DG_DEVICE_TO_HOST);
    finish(w);
    for (int i = 0; possible && i < c->count; i++) {
        const grouped_product *p = &c->products[i];
        if (p->m == 0)
            continue;
        const bench_case one = {c->recipe, p->m, p->n, p->k, DG_E4M3, DG_E4M3, DG_BF16};
        const dg_gemm g = product_of(w, block, i, p->m, false);
        bench_samples samples = bench_samples_new(&one);
        const void *picked[bench_sample_count];
        sample(samples.a, &g.a, &g.scale_a, samples.rows);
        sample(samples.b, &g.b, &g.scale_b, samples.cols);
        for (int r = 0; r < bench_sample_count; r++)
            picked[r] = (const char *)g.d.data + samples.rows[r] * g.d.ld * 2;
        /* As in gpu/gemm.c: the tensor cores' own accumulation is less precise. */
        const double tolerance = c->recipe->accumulation == DG_ACCUMULATE_FAST ? 5e-3 : 1e-3;
        bench_check_result(who, &samples, picked, DG_BF16, tolerance);
        bench_samples_free(&samples);
    }
    free(block);
    return possible;
}
