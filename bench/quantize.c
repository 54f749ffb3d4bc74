/* SPDX-License-Identifier: MIT */
/* Quantising activations, timed against a copy of as many bytes. */
#include "bench.h"

typedef struct quantize_rotation {
    dg_context *context;
    dg_quantize quantize;
    char *memory;
    size_t each, codes_offset, scale_offset;
    int copies;
} quantize_rotation;

static void quantize_run(void *state, int64_t index)
{
    quantize_rotation *r = state;
    char *copy = r->memory + (size_t)(index % r->copies) * r->each;
    r->quantize.input.data = copy;
    r->quantize.output.data = copy + r->codes_offset;
    r->quantize.scale.data = copy + r->scale_offset;
    cli_check(dg_quantize_run(r->context, &r->quantize, NULL), "quantising");
}

bench_result bench_quantize(const bench_setup *setup, const bench_case *item)
{
    const bench_recipe *recipe = item->recipe;
    int64_t count = item->m * item->k;
    quantize_rotation r = {.context = setup->context, .quantize = DG_QUANTIZE_INIT};
    r.quantize.input = dg_matrix_of(NULL, DG_BF16, item->m, item->k);
    r.quantize.output = dg_matrix_of(NULL, item->a, item->m, item->k);
    r.quantize.scale =
        dg_scale_of(NULL, recipe->scale, item->m, item->k, recipe->a_rows, recipe->a_cols);
    r.quantize.rounding = recipe->scale == DG_UE8M0 ? DG_SCALE_POW2_UP : DG_SCALE_EXACT;
    r.codes_offset = (size_t)count * dg_dtype_bytes(DG_BF16);
    r.scale_offset = (r.codes_offset + (size_t)count + 255) / 256 * 256;
    size_t scale_bytes =
        (size_t)(r.quantize.scale.rows * r.quantize.scale.cols) * dg_dtype_bytes(recipe->scale);
    r.each = (r.scale_offset + scale_bytes + 255) / 256 * 256;
    r.copies = setup->warm ? 1 : bench_copies(r.each);
    r.memory = bench_pages(r.each * (size_t)r.copies);

    size_t values_bytes = (size_t)count * sizeof(float);
    float *values = bench_pages(values_bytes);
    bench_fill_values(values, count, setup->fill, (uint64_t)item->m);
    for (int c = 0; c < r.copies; c++)
        cli_check(
            dg_convert(values, DG_F32, r.memory + (size_t)c * r.each, DG_BF16, count, DG_SATURATE),
            "converting to BF16");
    bench_pages_free(values, values_bytes);

    bench_result result = {.item = *item};
    result.bytes = (double)(r.codes_offset + (size_t)count + scale_bytes);
    result.bandwidth = bench_copy_bandwidth(setup->device.units);
    result.time = bench_measure(quantize_run, &r, setup->seconds);
    result.floor = result.bytes / result.bandwidth;
    bench_pages_free(r.memory, r.each * (size_t)r.copies);
    return result;
}
