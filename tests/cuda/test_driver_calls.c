/* SPDX-License-Identifier: MIT */
/*
 * What the CUDA backend asks of the driver, with a driver that only counts: how many calls a
 * product takes, whose context is current, which pointers are refused, and that nothing is loaded
 * during a capture. Only in builds with the CUDA backend.
 */
#include "backend.h"
#include "cuda/context.h"
#include "gemm_case.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

/* ---- the driver -------------------------------------------------------------------------- */

/* Memory of device 0 and of device 1; all else belongs to the host. */
static const uintptr_t ours = 0x7f0000000000, other = 0x7f8000000000, memory_end = 0x7fc000000000;
static const CUcontext primary = (CUcontext)16, callers = (CUcontext)32;

static CUcontext current;
static bool capturing;
static CUresult launch_result;
static struct {
    int get_current, push, pop, pointers, maps, loads, launches;
} count;

static int all(void)
{
    return count.get_current + count.push + count.pop + count.pointers + count.maps + count.loads +
           count.launches;
}

static CUresult get_current(CUcontext *context)
{
    count.get_current++;
    *context = current;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    count.push++;
    assert_ptr_equal(current, callers); /* a push while ours is current is not needed */
    current = context;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context)
{
    count.pop++;
    *context = current;
    current = callers;
    return CUDA_SUCCESS;
}

static CUresult pointer(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    count.pointers++;
    assert_int_equal(attribute, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
    if (address < ours || address >= memory_end)
        return CUDA_ERROR_INVALID_VALUE;
    *(int *)data = address >= other;
    return CUDA_SUCCESS;
}

/* A map that shows what it was made of. */
static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *data,
                       const cuuint64_t *sizes, const cuuint64_t *pitch, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                       CUtensorMapFloatOOBfill fill)
{
    (void)rank, (void)steps, (void)interleave, (void)promotion, (void)fill;
    count.maps++;
    *map = (CUtensorMap){.opaque = {(uintptr_t)data, sizes[0], sizes[1], *pitch, box[0], box[1],
                                    (cuuint64_t)type, (cuuint64_t)swizzle}};
    return CUDA_SUCCESS;
}

static CUresult load(CUmodule *module, const void *image)
{
    (void)image;
    count.loads++;
    *module = (CUmodule)48;
    return CUDA_SUCCESS;
}

static CUresult unload(CUmodule module)
{
    (void)module;
    return CUDA_SUCCESS;
}

static CUresult find(CUfunction *function, CUmodule module, const char *name)
{
    (void)module, (void)name;
    *function = (CUfunction)64;
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    (void)stream;
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

static dgi_gemm_args launched; /* of a kernel for many tokens */

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters,
                       void **extra)
{
    (void)extra;
    count.launches++;
    assert_true(config->gridDimX > 0 && config->blockDimX > 0);
    assert_ptr_equal(current, primary);
    assert_ptr_equal(function, (CUfunction)64);
    memcpy(&launched, parameters[0], sizeof launched);
    return launch_result;
}

static CUresult allocate(CUdeviceptr *memory, size_t bytes)
{
    assert_true(bytes > 0);
    *memory = ours + ((uintptr_t)99 << 32);
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr memory)
{
    (void)memory;
    return CUDA_SUCCESS;
}

static CUresult set_bytes(CUdeviceptr memory, unsigned char value, size_t bytes, CUstream stream)
{
    (void)memory, (void)value, (void)bytes, (void)stream;
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream)
{
    (void)target, (void)source, (void)bytes, (void)stream;
    assert_false(capturing);
    return CUDA_SUCCESS;
}

static CUresult wait_for(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult name_error(CUresult result, const char **text)
{
    (void)result;
    *text = "CUDA_ERROR_OF_TEST";
    return CUDA_SUCCESS;
}

/* A context on that driver, whose caller has another one current. */
static int open_context(void **state)
{
    dgi_cuda *cuda = calloc(1, sizeof *cuda);
    dg_context *context = calloc(1, sizeof *context);
    *context = (dg_context){.backend = &dgi_backend_cuda, .device = 0, .state = cuda};
    cuda->driver = (dgi_driver){
        .cuCtxGetCurrent = get_current,
        .cuCtxPushCurrent = push,
        .cuCtxPopCurrent = pop,
        .cuPointerGetAttribute = pointer,
        .cuTensorMapEncodeTiled = encode,
        .cuModuleLoadData = load,
        .cuModuleUnload = unload,
        .cuModuleGetFunction = find,
        .cuFuncSetAttribute = set_attribute,
        .cuStreamIsCapturing = is_capturing,
        .cuLaunchKernelEx = launch,
        .cuMemAlloc = allocate,
        .cuMemFree = release,
        .cuMemsetD8Async = set_bytes,
        .cuMemcpyAsync = copy,
        .cuStreamSynchronize = wait_for,
        .cuGetErrorName = name_error,
        .cuGetErrorString = name_error,
    };
    cuda->primary = primary;
    cuda->units = 132;
    cuda->forced_many = cuda->forced_few = -1;
    pthread_mutex_init(&cuda->lock, NULL);
    cuda->kernels = calloc((size_t)dgi_sm90_kernel_count, sizeof *cuda->kernels);
    cuda->decode = calloc((size_t)dgi_decode_kernel_count, sizeof *cuda->decode);
    cuda->grouped = calloc((size_t)dgi_sm90_grouped_kernel_count, sizeof *cuda->grouped);
    current = callers;
    capturing = false;
    launch_result = CUDA_SUCCESS;
    memset(&count, 0, sizeof count);
    *state = context;
    return 0;
}

static int close_context(void **state)
{
    dg_context *context = *state;
    dgi_cuda *cuda = context->state;
    pthread_mutex_destroy(&cuda->lock);
    free(cuda->kernels);
    free(cuda->decode);
    free(cuda->grouped);
    free(cuda);
    free(context);
    return 0;
}

/* ---- products ---------------------------------------------------------------------------- */

/* Operands in device memory, each far from the others, `place` bytes into it. */
static dg_gemm product(const char *recipe, int64_t m, uintptr_t place)
{
    dg_gemm g = gemm_of(recipe_named(recipe), m, 8192, 7168, DG_BF16);
    void **const data[] = {&g.a.data, &g.b.data, &g.d.data, &g.scale_a.data, &g.scale_b.data};
    for (uintptr_t i = 0; i < sizeof data / sizeof data[0]; i++)
        *data[i] = (void *)(ours + (i << 32) + place);
    return g;
}

static void run(dg_context *context, const dg_gemm *g)
{
    memset(&count, 0, sizeof count);
    assert_ok(dg_gemm_run(context, g, NULL));
    assert_int_equal(count.launches, 1);
}

/* A call like an earlier one asks for the current context and launches. */
static void repeated_calls(void **state)
{
    dg_context *context = *state;
    static const struct {
        const char *recipe;
        int64_t m;
        int maps;
    } cases[] = {
        {"block128", 2048, 3}, {"token_channel", 2048, 3}, {"block128", 16, 2}, {"mx", 1, 2}};
    current = primary;
    for (uintptr_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dg_gemm g = product(cases[i].recipe, cases[i].m, i << 20);
        run(context, &g);
        assert_int_equal(count.pointers, 5);
        assert_int_equal(count.maps, cases[i].maps);
        const dgi_gemm_args first = launched;
        for (int round = 0; round < 3; round++) {
            run(context, &g);
            assert_int_equal(all(), 2);
            assert_memory_equal(&launched.a_map, &first.a_map, sizeof first.a_map);
            assert_memory_equal(&launched.b_map, &first.b_map, sizeof first.b_map);
        }
    }
    /* Other tokens in the same memory: new maps of A and D, the weights' is still there. */
    dg_gemm g = product("block128", 1024, 0);
    run(context, &g);
    assert_int_equal(count.pointers, 0);
    assert_int_equal(count.maps, 2);
    assert_int_equal(launched.a_map.opaque[2], 1024);
    assert_int_equal(launched.b_map.opaque[2], 8192);
}

/* The caller's context is current again after each call, also after one that failed. */
static void contexts_are_restored(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    for (int round = 0; round < 2; round++) {
        run(context, &g);
        assert_int_equal(count.push, 1);
        assert_int_equal(count.pop, 1);
        assert_ptr_equal(current, callers);
    }
    launch_result = CUDA_ERROR_LAUNCH_FAILED;
    assert_refused(dg_gemm_run(context, &g, NULL), DG_DRIVER_ERROR, "CUDA_ERROR_OF_TEST");
    assert_ptr_equal(current, callers);
}

/* Memory of the host or of another device is refused, whatever was asked before. */
static void wrong_pointers(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 16, 0);
    run(context, &g);
    static const struct {
        uintptr_t address;
        const char *part;
    } wrong[] = {{4096, "is not memory of CUDA device 0"},
                 {0x7f8000001000, "is memory of CUDA device 1"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (int round = 0; round < 2; round++) {
            void **const data[] = {&g.a.data, &g.b.data, &g.d.data, &g.scale_a.data,
                                   &g.scale_b.data};
            for (size_t j = 0; j < sizeof data / sizeof data[0]; j++) {
                void *good = *data[j];
                *data[j] = (void *)wrong[i].address;
                const int launches = count.launches;
                assert_refused(dg_gemm_run(context, &g, NULL), DG_DEVICE_MISMATCH, wrong[i].part);
                assert_int_equal(count.launches, launches);
                *data[j] = good;
            }
        }
    run(context, &g);
    assert_int_equal(count.pointers, 0);
    /* After memory was released, every pointer is asked about again. */
    assert_ok(dg_memory_free(context, (void *)(ours + ((uintptr_t)9 << 32))));
    run(context, &g);
    assert_int_equal(count.pointers, 5);
}

/* During a capture nothing is loaded; what is loaded already runs. */
static void captures(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    capturing = true;
    assert_refused(dg_gemm_run(context, &g, NULL), DG_NOT_PREPARED, "is not loaded");
    assert_int_equal(count.loads + count.launches, 0);
    capturing = false;
    assert_ok(dg_gemm_prepare(context, &g));
    assert_true(count.loads > 0);
    capturing = true;
    run(context, &g);
    assert_int_equal(count.loads, 0);
}

/* After one prepare call every smaller M can be captured, from addresses that need a copy too. */
static void prepared_for_smaller_m(void **state)
{
    dg_context *context = *state;
    dgi_cuda *cuda = context->state;
    enum { MOST = 4096 };
    current = primary;
    for (int i = 0; i < recipe_count; i++)
        for (int invariant = 0; invariant < 2; invariant++) {
            dg_gemm g = product(recipes[i].name, MOST, 0);
            g.a.dtype = i % 2 ? DG_E5M2 : DG_E4M3;
            dgi_cuda_unload(cuda);
            memset(cuda->kernels, 0, (size_t)dgi_sm90_kernel_count * sizeof *cuda->kernels);
            memset(cuda->decode, 0, (size_t)dgi_decode_kernel_count * sizeof *cuda->decode);
            memset(cuda->small, 0, sizeof cuda->small);
            cuda->batch_invariant = invariant;
            capturing = false;
            assert_ok(dg_gemm_prepare(context, &g));
            capturing = true;
            for (int64_t m = 1; m <= MOST; m += m < 300 ? 1 : 61) {
                dg_gemm fewer = g;
                fewer.a.rows = fewer.d.rows = m;
                fewer.scale_a = scale_of(g.scale_a.dtype, m, g.a.cols, g.scale_a.block_rows,
                                         g.scale_a.block_cols, 0, 0);
                fewer.scale_a.data = g.scale_a.data;
                if (dg_gemm_run(context, &fewer, NULL) != DG_OK)
                    fail_msg("%s: %s", gemm_text(&fewer), dg_last_error());
            }
        }
}

/* A stream of another device is named as what it is. */
static void wrong_stream(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 2048, 0);
    launch_result = CUDA_ERROR_INVALID_HANDLE;
    assert_refused(dg_gemm_run(context, &g, (void *)0x1234), DG_DEVICE_MISMATCH,
                   "stream at 0x1234 is not one of CUDA device 0");
    g.a.rows = g.d.rows = g.scale_a.rows = 16;
    assert_refused(dg_gemm_run(context, &g, (void *)0x1234), DG_DEVICE_MISMATCH, "stream at");
}

/* Quantisers refuse the host's memory, and launch nothing for an empty matrix. */
static void quantisers(void **state)
{
    dg_context *context = *state;
    dg_quantize q = DG_QUANTIZE_INIT;
    q.input = dg_matrix_of((void *)ours, DG_BF16, 64, 256);
    q.output = dg_matrix_of((void *)(ours + ((uintptr_t)1 << 32)), DG_E4M3, 64, 256);
    q.scale = scale_of(DG_F32, 64, 256, 1, 128, 0, 0);
    q.scale.data = (void *)(ours + ((uintptr_t)2 << 32));
    assert_ok(dg_quantize_run(context, &q, NULL));
    assert_int_equal(count.launches, 1);
    void **const data[] = {&q.input.data, &q.output.data, &q.scale.data, (void **)&q.counts};
    static const char *const names[] = {"input at", "output at", "scale at", "counts at"};
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++) {
        void *good = *data[i];
        *data[i] = (void *)4096;
        assert_refused(dg_quantize_run(context, &q, NULL), DG_DEVICE_MISMATCH, names[i]);
        *data[i] = good;
    }
    dg_dequantize d = DG_DEQUANTIZE_INIT;
    d.input = q.output;
    d.output = q.input;
    d.scale = q.scale;
    d.scale.data = (void *)4096;
    assert_refused(dg_dequantize_run(context, &d, NULL), DG_DEVICE_MISMATCH, "scale at");
    assert_int_equal(count.launches, 1);
    q.input.rows = q.output.rows = 0;
    q.scale = scale_of(DG_F32, 0, 256, 0, 0, 0, 0);
    q.scale.data = d.input.data;
    q.source = DG_SCALE_GIVEN;
    assert_ok(dg_quantize_run(context, &q, NULL));
    assert_int_equal(count.launches, 1);
}

/* A table is brought up to date from the host's memory, which a graph must not read later. */
static void tables(void **state)
{
    dg_context *context = *state;
    dg_gemm g = product("block128", 256, 0), largest = g;
    largest.a.data = largest.b.data = largest.d.data = NULL;
    largest.scale_a.data = largest.scale_b.data = NULL;
    dg_table *table;
    assert_ok(dg_table_create(context, &largest, 2, &table));
    assert_ok(dg_table_set(table, 1, &g));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_run(table, NULL));
    capturing = true;
    assert_refused(dg_table_update(table, NULL), DG_NOT_PREPARED, "cannot be captured");
    assert_ok(dg_table_run(table, NULL));
    capturing = false;
    g.scale_b.data = (void *)4096;
    assert_ok(dg_table_set(table, 0, &g));
    assert_refused(dg_table_update(table, NULL), DG_DEVICE_MISMATCH, "scale_b at");
    dg_gemm empty = product("block128", 256, 0); /* whose A, with no rows, may be anywhere */
    empty.a.rows = empty.d.rows = empty.scale_a.rows = 0;
    empty.a.data = empty.d.data = empty.scale_a.data = (void *)4096;
    assert_ok(dg_table_set(table, 0, &empty));
    assert_ok(dg_table_update(table, NULL));
    assert_ok(dg_table_set(table, 0, NULL));
    assert_ok(dg_table_update(table, NULL));
    dg_table_destroy(table);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(repeated_calls, open_context, close_context),
        cmocka_unit_test_setup_teardown(contexts_are_restored, open_context, close_context),
        cmocka_unit_test_setup_teardown(wrong_pointers, open_context, close_context),
        cmocka_unit_test_setup_teardown(captures, open_context, close_context),
        cmocka_unit_test_setup_teardown(prepared_for_smaller_m, open_context, close_context),
        cmocka_unit_test_setup_teardown(wrong_stream, open_context, close_context),
        cmocka_unit_test_setup_teardown(quantisers, open_context, close_context),
        cmocka_unit_test_setup_teardown(tables, open_context, close_context),
    };
    return test_run(argc, argv, tests);
}
