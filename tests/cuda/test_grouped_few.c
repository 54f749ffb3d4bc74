/* SPDX-License-Identifier: MIT */
/*
 * The CUDA kernels for groups with few rows, each by name. Run it with --device cuda:0; without a
 * GPU its tests are skipped.
 */
#include "core/plan_grouped_few_sm90.h"
#include "grouped_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static void need_gpu(void)
{
    if (test_device() == DG_CPU)
        skip();
}

static dg_context *context_of(const char *kernel, bool batch_invariant)
{
    dg_context_options options = DG_CONTEXT_OPTIONS_INIT;
    options.kernel = kernel;
    options.batch_invariant = batch_invariant;
    return test_context(&options);
}

static void *copy_of(const guard *memory)
{
    void *copy = malloc(memory->bytes + 1);
    assert_non_null(copy);
    if (memory->bytes != 0)
        memcpy(copy, memory->data, memory->bytes);
    return copy;
}

/* Right, the same bits on a second run, and the same with packed weights. */
static void check(dg_context *context, grouped_case *c)
{
    assert_ok(grouped_case_run(c, context, false));
    grouped_case_check(c);
    void *first = copy_of(&c->d);
    for (int packed = 0; packed < 2; packed++) {
        assert_ok(grouped_case_run(c, context, packed));
        if (c->d.bytes != 0 && memcmp(first, c->d.data, c->d.bytes) != 0)
            fail_msg("%s other bits: %s", packed ? "packed weights give" : "a second run gives",
                     gemm_text(&c->gemm));
    }
    free(first);
}

/*
 * The same of a shape with kernel `index`, unless that one does not take it; the CTAs that share K
 * then, else 0.
 */
static int32_t check_kernel(rng *r, const grouped_shape *s, int32_t index)
{
    const dgi_typical typical = dgi_groups_typical(&s->gemm, &s->groups);
    dgi_decode_plan plan;
    dg_device_info device;
    dg_context *context = context_of(dgi_grouped_few_kernels[index].name, false);
    assert_ok(dg_get_device_info(context, &device));
    const bool takes =
        dgi_grouped_few_plan_with(&typical, device.units, true, index, &plan) == DG_OK;
    if (takes) {
        grouped_case *c = grouped_case_new(r, s);
        check(context, c);
        grouped_case_free(c);
    }
    dg_destroy(context);
    return takes ? plan.split : 0;
}

/* How many rows a group has: often about as many as a tile. */
static int32_t random_rows(rng *r, int32_t tokens, int64_t most)
{
    const int32_t near = tokens * (int32_t)rng_range(r, 0, 2) + (int32_t)rng_range(r, -1, 1);
    const int32_t rows = rng_chance(r, 0.2)   ? 0
                         : rng_chance(r, 0.4) ? near
                                              : (int32_t)rng_range(r, -1, most + 1);
    return rows < most + 1 ? rows : (int32_t)most;
}

/* A random problem of one launch for the kernel, or NULL when the kernel does not take it. */
static grouped_case *random_case(rng *r, int32_t index, int32_t units)
{
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[index];
    const int64_t most = test_rounds(60000000, 6000000); /* the oracle takes its time */
    int32_t sizes[40];
    grouped_shape s = {.gemm = gemm_random(r, 1000), .sizes = sizes};
    dg_gemm *g = &s.gemm;
    const bool masked = rng_chance(r, 0.5);
    const int32_t count = (int32_t)(rng_chance(r, 0.3) ? rng_range(r, 30, 40) : rng_range(r, 1, 6));
    const int64_t rows = g->a.rows;
    g->a.dtype = kernel->a;
    g->b.dtype = kernel->b;
    s.groups = dg_groups_of(masked ? DG_GROUPS_MASKED : DG_GROUPS_BY_END, count, NULL, g);
    s.groups.scale_d_stride = dg_scale_stride(&g->scale_d);
    const dgi_typical typical = dgi_groups_typical(g, &s.groups);
    dgi_decode_plan plan;
    if (g->d.cols == 0 || rows * g->d.cols * g->a.cols * (masked ? count : 1) > most ||
        count * g->d.cols * g->a.cols > most ||
        dgi_grouped_few_plan_with(&typical, units, true, index, &plan) != DG_OK)
        return NULL;
    s.in_place = g->d.dtype != DG_E4M3 && g->d.dtype != DG_E5M2 && rng_chance(r, 0.3);
    s.groups.alignment = (int32_t)(rng_chance(r, 0.5) ? 1 : rng_range(r, 2, 20));
    int64_t end = 0;
    for (int32_t i = 0; i < count; i++) {
        sizes[i] = random_rows(r, kernel->tokens, rows);
        end += sizes[i] > 0 ? sizes[i] : 0;
        if (!masked)
            sizes[i] = (int32_t)(end < rows ? end : rows);
    }
    if (masked) {
        s.groups.alignment = 1;
        s.groups.padding = rng_chance(r, 0.3) ? DG_PADDING_ZERO : DG_PADDING_UNTOUCHED;
    }
    return grouped_case_new(r, &s);
}

/* On random problems that the kernel accepts, with K split as is best and not at all. */
static void every_kernel(void **state)
{
    (void)state;
    need_gpu();
    rng r = rng_new(1);
    for (int32_t i = 0; i < dgi_grouped_few_kernel_count; i++) {
        const char *name = dgi_grouped_few_kernels[i].name;
        dg_context *free_choice = context_of(name, false), *whole = context_of(name, true);
        dg_device_info device;
        assert_ok(dg_get_device_info(whole, &device));
        int runs = 0;
        for (int attempt = 0; attempt < 5000 && runs < test_rounds(24, 4); attempt++) {
            grouped_case *c = random_case(&r, i, device.units);
            if (c == NULL)
                continue;
            check(runs % 4 == 3 ? whole : free_choice, c);
            grouped_case_free(c);
            runs++;
        }
        print_message("%s: %d problems\n", name, runs);
        assert_true(runs > 0);
        dg_destroy(free_choice);
        dg_destroy(whole);
    }
}

/* Each recipe with sizes around the heights of all tiles. */
static void recipes_and_sizes(void **state)
{
    (void)state;
    need_gpu();
    static const int32_t used[] = {0, 1, 8, 9, 16, 17, 32, 33, 64, 65};
    enum { COUNT = sizeof used / sizeof used[0] };
    rng r = rng_new(2);
    for (int i = 0; i < recipe_count; i++) {
        grouped_shape s = grouped_of(&recipes[i], DG_GROUPS_MASKED, COUNT, 70, 136,
                                     test_rounds(1100, 400), DG_BF16);
        s.sizes = used;
        int kernels = 0;
        for (int32_t j = 0; j < dgi_grouped_few_kernel_count; j++)
            kernels += check_kernel(&r, &s, j) > 0;
        print_message("%s: %d kernels\n", recipes[i].name, kernels);
        assert_true(kernels > 0);
    }
}

/* So few tiles that 4 or 8 CTAs share the K of each, whatever the GPU; a second tile for some. */
static void shared_k(void **state)
{
    (void)state;
    need_gpu();
    static const int32_t used[] = {3, 40};
    rng r = rng_new(6);
    for (int i = 0; i < recipe_count; i++) {
        grouped_shape s =
            grouped_of(&recipes[i], DG_GROUPS_MASKED, 2, 40, 120, 128 * 21 + 40, DG_BF16);
        s.sizes = used;
        s.groups.expected_rows = 8;
        for (int32_t j = 0; j < dgi_grouped_few_kernel_count; j++) {
            const int32_t split = check_kernel(&r, &s, j);
            assert_true(split == 0 || split >= 4);
        }
    }
}

/* More groups than a warp looks at together, most of them empty, and none but empty ones. */
static void hundreds_of_groups(void **state)
{
    (void)state;
    need_gpu();
    enum { COUNT = 300, ROWS = 200 };
    static int32_t sizes[COUNT];
    rng r = rng_new(3);
    for (int form = 0; form < 3; form++) {
        const bool masked = form > 0;
        int32_t sum = 0;
        for (int32_t i = 0; i < COUNT; i++) {
            const int32_t rows =
                form < 2 && rng_chance(&r, 0.06) ? (int32_t)rng_range(&r, 1, 20) : 0;
            sum = sum + rows < ROWS ? sum + rows : ROWS;
            sizes[i] = masked ? rows : sum;
        }
        grouped_shape s =
            grouped_of(recipe_named("block128"), masked ? DG_GROUPS_MASKED : DG_GROUPS_BY_END,
                       COUNT, masked ? 20 : ROWS, 136, 256, DG_BF16);
        s.sizes = sizes;
        for (int32_t j = 0; j < dgi_grouped_few_kernel_count; j++)
            check_kernel(&r, &s, j);
    }
}

/* The D of a case by that kernel, in a batch-invariant context, is the first one bit for bit. */
static void compare_bits(grouped_case *c, const char *kernel, void **first)
{
    dg_context *context = context_of(kernel, true);
    assert_ok(grouped_case_run(c, context, false));
    if (*first == NULL) {
        grouped_case_check(c);
        *first = copy_of(&c->d);
    } else if (memcmp(*first, c->d.data, c->d.bytes) != 0) {
        fail_msg("%s adds up in another order: %s", kernel, gemm_text(&c->gemm));
    }
    dg_destroy(context);
}

/*
 * In batch-invariant contexts a row has the same bits from all kernels that the planner may choose
 * for a recipe, of few rows and of many.
 */
static void all_kernels_agree(void **state)
{
    (void)state;
    need_gpu();
    static const int32_t used[] = {5, 0, 70, 33, 100};
    rng r = rng_new(4);
    for (int i = 0; i < recipe_count; i++) {
        grouped_shape s =
            grouped_of(&recipes[i], DG_GROUPS_MASKED, 5, 100, 150, test_rounds(1100, 600), DG_F32);
        const dgi_typical typical = dgi_groups_typical(&s.gemm, &s.groups);
        s.sizes = used;
        grouped_case *c = grouped_case_new(&r, &s);
        void *first = NULL;
        dgi_decode_plan plan, chosen;
        int32_t many;
        assert_ok(dgi_sm90_choose_grouped(&typical, 132, false, &many));
        compare_bits(c, dgi_sm90_grouped_kernels[many].name, &first);
        assert_true(dgi_grouped_few_choose(&typical, 132, false, &chosen));
        for (int32_t j = 0; j < dgi_grouped_few_kernel_count; j++) {
            const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[j];
            if (kernel->scale_k == dgi_grouped_few_kernels[chosen.kernel].scale_k &&
                dgi_grouped_few_plan_with(&typical, 132, false, j, &plan) == DG_OK)
                compare_bits(c, kernel->name, &first);
        }
        free(first);
        grouped_case_free(c);
    }
}

/* A context with such a kernel takes no other for groups, and any for all else. */
static void what_is_left_to_others(void **state)
{
    (void)state;
    need_gpu();
    static const int32_t ends[] = {3, 9, 20};
    const dgi_decode_kernel *kernel = &dgi_grouped_few_kernels[0];
    rng r = rng_new(5);
    dg_context *context = context_of(kernel->name, false);
    grouped_shape s =
        grouped_of(recipe_named("tensor"), DG_GROUPS_BY_END, 3, 20, 130, 256, DG_BF16);
    s.sizes = ends;
    s.groups.padding = DG_PADDING_ZERO;
    grouped_case *c = grouped_case_new(&r, &s);
    assert_refused(grouped_case_run(c, context, false), DG_UNSUPPORTED_SHAPE, kernel->name);
    grouped_case_check_untouched(c);
    grouped_case_free(c);

    s = grouped_of(recipe_named("block128"), DG_GROUPS_BY_END, 3, 20, 130, 256, DG_BF16);
    s.sizes = ends;
    c = grouped_case_new(&r, &s);
    assert_refused(grouped_case_run(c, context, false), DG_UNSUPPORTED_SCALE, "along K");
    grouped_case_free(c);

    dg_gemm dense = gemm_of(recipe_named("block128"), 40, 130, 256, DG_BF16);
    gemm_case *d = gemm_case_new(&r, &dense, CASE_PLAIN);
    assert_ok(gemm_case_run(d, context));
    gemm_case_check(d);
    gemm_case_free(d);
    dg_destroy(context);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kernel),      cmocka_unit_test(recipes_and_sizes),
        cmocka_unit_test(shared_k),          cmocka_unit_test(hundreds_of_groups),
        cmocka_unit_test(all_kernels_agree), cmocka_unit_test(what_is_left_to_others),
    };
    return test_run(argc, argv, tests);
}
