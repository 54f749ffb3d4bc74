/* SPDX-License-Identifier: MIT */
/* Grouped products: many groups of rows, or of K, in one call. */
#include "gemm.h"

#include <string.h>

/* The fields of a deepgemm.Groups. */
enum { GROUPING, SIZES, ALIGNMENT, PADDING, GATHER, SCATTER, EXPECTED_ROWS, FIELDS };
/* Its arrays, behind the operands of a GEMM. */
enum { O_SIZES = OPERANDS, O_GATHER, O_SCATTER, ALL_OPERANDS };
static const char *const names[] = {"a",         "b",     "scale_a", "scale_b",
                                    "out",       "c",     "bias",    "scale_out",
                                    "workspace", "sizes", "gather",  "scatter"};
static const char *const groupings[] = {"by_end",    "by_row",   "masked",
                                        "k_columns", "k_blocks", NULL};

enum { MOST_GROUPS = 4096 }; /* with packed weights: their handles go through the stack */

typedef struct grouped_call {
    dgp_operand o[ALL_OPERANDS];
    dgp_blocks blocks;
    dgp_stream stream;
    dg_context *context;
    dg_gemm gemm;
    dg_groups groups;
    const dg_weights *weights[MOST_GROUPS];
    int64_t n; /* of packed weights */
    PyObject *out;
} grouped_call;

/* The operand of group 0 of [G, ...], and the stride to the next one's. */
static int first_group(const dgp_operand *all, const char *name, int32_t count, dgp_operand *one,
                       int64_t *stride)
{
    *one = *all;
    *stride = 0;
    if (all->dtype == DG_NONE)
        return 0;
    if (all->rank < 1 || all->shape[0] != count)
        return dgp_fail(DG_INVALID_ARGUMENT,
                        "%s has %lld groups along its first dimension: expected %d", name,
                        all->rank < 1 ? 0LL : (long long)all->shape[0], (int)count);
    one->rank--;
    memmove(one->shape, all->shape + 1, sizeof one->shape - sizeof one->shape[0]);
    memmove(one->strides, all->strides + 1, sizeof one->strides - sizeof one->strides[0]);
    int64_t extent = 1; /* a single group's stride means nothing: any that fits does */
    for (int i = 0; i < one->rank; i++)
        extent += one->shape[i] > 0 ? (one->shape[i] - 1) * one->strides[i] : 0;
    *stride = count > 1 ? all->strides[0] : extent;
    return 0;
}

static int group_matrix(const dgp_operand *all, const char *name, int32_t count, dg_matrix *matrix,
                        int64_t *stride)
{
    dgp_operand one;
    return first_group(all, name, count, &one, stride) < 0 ? -1 : dgp_as_matrix(&one, name, matrix);
}

static int group_scale(const dgp_operand *all, const char *name, int32_t count,
                       const int32_t block[2], const int32_t phase[2], dg_scale *scale,
                       int64_t *stride)
{
    dgp_operand one;
    return first_group(all, name, count, &one, stride) < 0
               ? -1
               : dgp_as_scale(&one, name, block, phase, scale);
}

/* Packed weights: a tuple of G of them in place of b. */
static int take_weights(grouped_call *call, PyObject *tuple)
{
    const Py_ssize_t count = PyTuple_Size(tuple);
    if (count < 0)
        return -1;
    if (count < 1 || count > MOST_GROUPS)
        return dgp_fail(DG_INVALID_ARGUMENT, "b has %zd packed weights: expected 1 to %d", count,
                        (int)MOST_GROUPS);
    for (Py_ssize_t g = 0; g < count; g++) {
        PyObject *item = PyTuple_GetItem(tuple, g);
        const bool good = item != NULL && dgp_weights_check(item);
        int32_t block[2] = {0, 0};
        if (good)
            call->weights[g] = dgp_weights_get(item, &call->n, block);
        else if (item != NULL)
            PyErr_Format(PyExc_TypeError, "b[%zd] is a %R: expected a deepgemm.Weights", g,
                         Py_TYPE(item));
        if (!good)
            return -1;
        if (block[0] != call->blocks.b[0] || block[1] != call->blocks.b[1])
            return dgp_fail(DG_UNSUPPORTED_SCALE,
                            "granularity[1] is (%d, %d), but b[%zd] was packed with (%d, %d)",
                            (int)call->blocks.b[0], (int)call->blocks.b[1], g, (int)block[0],
                            (int)block[1]);
    }
    call->groups.weights = call->weights;
    call->groups.count = (int32_t)count;
    return 0;
}

static int take_index(const dgp_operand *o, const char *name, int64_t count, const int32_t **data)
{
    const void *array;
    const int result = dgp_as_array(o, name, DGP_INT32, count, &array);
    *data = array;
    return result;
}

/* One of K_BLOCKS' operands: all groups' elements, one after another, `rows` rows in each. */
static int flat_matrix(const dgp_operand *o, const char *name, int64_t rows, dg_matrix *matrix)
{
    if (dgp_as_vector(o, name, matrix) < 0)
        return -1;
    if (rows > 0 && matrix->cols % rows != 0)
        return dgp_fail(DG_INVALID_ARGUMENT, "%s has %lld elements, not a multiple of %lld rows",
                        name, (long long)matrix->cols, (long long)rows);
    const int64_t k = rows > 0 ? matrix->cols / rows : 0;
    matrix->rows = rows;
    matrix->cols = matrix->ld = k;
    return 0;
}

static int take_out(grouped_call *call, PyObject *const *args, int64_t rows, int64_t n)
{
    dgp_operand *o = call->o;
    const dg_grouping kind = call->groups.grouping;
    if (o[OUT].dtype != DG_NONE) {
        call->out = Py_NewRef(args[OUT]);
        return dgp_check_writable(&o[OUT], "out");
    }
    if (o[O_SCATTER].dtype != DG_NONE || kind == DG_GROUPS_K_BLOCKS)
        return dgp_fail(DG_INVALID_ARGUMENT, "out is None: with %s it must be given",
                        kind == DG_GROUPS_K_BLOCKS ? "grouping \"k_blocks\"" : "scatter");
    const int dtype = dgp_dtype_from_object(args[OUT_DTYPE], "out_dtype");
    if (dtype < 0)
        return -1;
    const int64_t flat[2] = {rows, n}, deep[3] = {call->groups.count, rows, n};
    const bool shared = kind == DG_GROUPS_BY_END || kind == DG_GROUPS_BY_ROW;
    call->out = dgp_output_new(args[A], &o[A], dtype, shared ? 2 : 3, shared ? flat : deep,
                               call->stream.handle, &o[OUT]);
    return call->out == NULL ? -1 : 0;
}

/* What all groupings have in common. */
static int fill_options(grouped_call *call, PyObject *const *fields)
{
    static const char *const paddings[] = {"untouched", "zero", NULL};
    const int kind = dgp_choice(fields[GROUPING], "grouping", groupings);
    const int padding = kind < 0 ? -1 : dgp_choice(fields[PADDING], "padding", paddings);
    if (padding < 0)
        return -1;
    call->groups.grouping = (dg_grouping)kind;
    call->groups.padding = (dg_padding)padding;
    const long alignment = PyLong_AsLong(fields[ALIGNMENT]);
    call->groups.expected_rows = PyLong_AsLongLong(fields[EXPECTED_ROWS]);
    if (PyErr_Occurred())
        return -1;
    if (alignment < 1 || alignment > INT32_MAX)
        return dgp_fail(DG_INVALID_ARGUMENT, "alignment is %ld: it must be 1 or more", alignment);
    call->groups.alignment = (int32_t)alignment;
    return 0;
}

/* Groups of rows: BY_END, BY_ROW and MASKED. B and its scales belong to a group each. */
static int fill_rows(grouped_call *call, PyObject *const *args)
{
    static const int32_t no_phase[2] = {0, 0};
    dgp_operand *o = call->o;
    dg_gemm *gemm = &call->gemm;
    dg_groups *groups = &call->groups;
    const bool masked = groups->grouping == DG_GROUPS_MASKED;
    if (groups->weights == NULL) {
        groups->count = o[B].rank > 0 ? (int32_t)o[B].shape[0] : 0;
        if (group_matrix(&o[B], "b", groups->count, &gemm->b, &groups->b_stride) < 0 ||
            group_scale(&o[SCALE_B], "scale_b", groups->count, call->blocks.b, call->blocks.phase_b,
                        &gemm->scale_b, &groups->scale_b_stride) < 0)
            return -1;
        call->n = gemm->b.rows;
    }
    const int32_t count = groups->count;
    if (masked ? group_matrix(&o[A], "a", count, &gemm->a, &groups->a_stride) < 0 ||
                     group_scale(&o[SCALE_A], "scale_a", count, call->blocks.a,
                                 call->blocks.phase_a, &gemm->scale_a, &groups->scale_a_stride) < 0
               : dgp_as_matrix(&o[A], "a", &gemm->a) < 0 ||
                     dgp_as_scale(&o[SCALE_A], "scale_a", call->blocks.a, call->blocks.phase_a,
                                  &gemm->scale_a) < 0)
        return -1;
    const int64_t rows =
        o[O_GATHER].dtype != DG_NONE && o[O_GATHER].rank > 0 ? o[O_GATHER].shape[0] : gemm->a.rows;
    groups->rows = rows;
    if (take_index(&o[O_SIZES], "sizes", groups->grouping == DG_GROUPS_BY_ROW ? rows : count,
                   &groups->sizes) < 0 ||
        take_index(&o[O_GATHER], "gather", -1, &groups->gather) < 0 ||
        take_index(&o[O_SCATTER], "scatter", rows, &groups->scatter) < 0 ||
        take_out(call, args, rows, call->n) < 0)
        return -1;
    if (masked)
        return group_matrix(&o[OUT], "out", count, &gemm->d, &groups->d_stride) < 0 ||
                       group_matrix(&o[C], "c", count, &gemm->c, &groups->c_stride) < 0 ||
                       group_scale(&o[SCALE_OUT], "scale_out", count, call->blocks.out, no_phase,
                                   &gemm->scale_d, &groups->scale_d_stride) < 0
                   ? -1
                   : 0;
    return dgp_as_matrix(&o[OUT], "out", &gemm->d) < 0 || dgp_as_matrix(&o[C], "c", &gemm->c) < 0 ||
                   dgp_as_scale(&o[SCALE_OUT], "scale_out", call->blocks.out, no_phase,
                                &gemm->scale_d) < 0
               ? -1
               : 0;
}

/* Groups of K: K_COLUMNS and K_BLOCKS. D belongs to a group each. */
static int fill_columns(grouped_call *call, PyObject *const *args)
{
    static const int32_t no_phase[2] = {0, 0};
    dgp_operand *o = call->o;
    dg_gemm *gemm = &call->gemm;
    dg_groups *groups = &call->groups;
    if (groups->weights != NULL)
        return dgp_fail(DG_INVALID_ARGUMENT, "b is packed: groups along K take arrays");
    groups->count = o[O_SIZES].rank > 0 ? (int32_t)o[O_SIZES].shape[0] : 0;
    const bool blocks = groups->grouping == DG_GROUPS_K_BLOCKS;
    const int64_t rows = o[A].rank > 1 ? o[A].shape[0] : 0, n = o[B].rank > 1 ? o[B].shape[0] : 0;
    if (take_index(&o[O_SIZES], "sizes", groups->count, &groups->sizes) < 0 ||
        take_out(call, args, rows, n) < 0 ||
        group_matrix(&o[OUT], "out", groups->count, &gemm->d, &groups->d_stride) < 0 ||
        group_matrix(&o[C], "c", groups->count, &gemm->c, &groups->c_stride) < 0 ||
        (blocks
             ? flat_matrix(&o[A], "a", gemm->d.rows, &gemm->a) < 0 ||
                   flat_matrix(&o[B], "b", gemm->d.cols, &gemm->b) < 0
             : dgp_as_matrix(&o[A], "a", &gemm->a) < 0 || dgp_as_matrix(&o[B], "b", &gemm->b) < 0))
        return -1;
    return dgp_as_scale(&o[SCALE_A], "scale_a", call->blocks.a, call->blocks.phase_a,
                        &gemm->scale_a) < 0 ||
                   dgp_as_scale(&o[SCALE_B], "scale_b", call->blocks.b, call->blocks.phase_b,
                                &gemm->scale_b) < 0 ||
                   group_scale(&o[SCALE_OUT], "scale_out", groups->count, call->blocks.out,
                               no_phase, &gemm->scale_d, &groups->scale_d_stride) < 0
               ? -1
               : 0;
}

static int fill_bias(grouped_call *call)
{
    dgp_operand one;
    return first_group(&call->o[BIAS], "bias", call->groups.count, &one,
                       &call->groups.bias_stride) < 0
               ? -1
               : dgp_as_vector(&one, "bias", &call->gemm.bias);
}

/* Sizes on the host also say how the work is dealt out. */
static dg_status explain(void *user, char *text, size_t *bytes)
{
    const grouped_call *call = user;
    const int32_t *sizes = call->o[O_SIZES].device == DG_CPU ? call->groups.sizes : NULL;
    return dg_grouped_explain(call->context, &call->gemm, &call->groups, sizes, text, bytes);
}

static PyObject *perform(grouped_call *call, long mode)
{
    if (mode == EXPLAIN)
        return dgp_text(explain, call);
    if (mode == WORKSPACE_BYTES) {
        dgp_fail(DG_INVALID_ARGUMENT, "groups are given: their scratch memory is the context's");
        return NULL;
    }
    PyThreadState *python = PyEval_SaveThread();
    const dg_status status =
        mode == RUN ? dg_grouped_run(call->context, &call->gemm, &call->groups, call->stream.handle)
                    : dg_grouped_prepare(call->context, &call->gemm, &call->groups);
    PyEval_RestoreThread(python);
    if (status != DG_OK)
        return dgp_raise(status);
    dgp_tensor_written(call->out, call->stream.handle);
    return Py_NewRef(mode == RUN ? call->out : Py_None);
}

PyObject *dgp_grouped(PyObject *const *args, long mode)
{
    grouped_call call;
    PyObject *fields[FIELDS], *objects[ALL_OPERANDS], *packed = NULL;
    call.out = NULL;
    call.n = 0;
    call.gemm = (dg_gemm)DG_GEMM_INIT;
    call.groups = (dg_groups)DG_GROUPS_INIT;
    if (!PyTuple_Check(args[GROUPS]) || PyTuple_Size(args[GROUPS]) != FIELDS)
        return PyErr_Format(PyExc_TypeError, "groups is %R: expected a deepgemm.Groups",
                            args[GROUPS]);
    for (Py_ssize_t i = 0; i < FIELDS; i++)
        fields[i] = PyTuple_GetItem(args[GROUPS], i);
    if (fill_options(&call, fields) < 0 || dgp_gemm_blocks(args, &call.blocks) < 0 ||
        dgp_gemm_options(args, &call.gemm) < 0 ||
        dgp_stream_from_object(args[STREAM], &call.stream) < 0)
        return NULL;
    memcpy(objects, args, sizeof objects[0] * OPERANDS);
    objects[O_SIZES] = fields[SIZES];
    objects[O_GATHER] = fields[GATHER];
    objects[O_SCATTER] = fields[SCATTER];
    if (PyList_Check(args[B]) || PyTuple_Check(args[B])) {
        /* A tuple of our own: another thread may change a list meanwhile. */
        packed = PySequence_Tuple(args[B]);
        objects[B] = Py_None;
    }
    if (PyErr_Occurred() || (packed != NULL && take_weights(&call, packed) < 0) ||
        dgp_operands_take(objects, names, ALL_OPERANDS, &call.stream, call.o) < 0) {
        Py_XDECREF(packed);
        return NULL;
    }

    PyObject *result = NULL;
    dg_device device;
    call.context = NULL;
    if (call.o[WORKSPACE].dtype != DG_NONE)
        dgp_fail(DG_INVALID_ARGUMENT, "workspace is given, but that of groups is the context's");
    else if (dgp_common_device(call.o, names, mode == EXPLAIN ? (int)O_SIZES : (int)ALL_OPERANDS,
                               &device) == 0 &&
             (call.groups.grouping < DG_GROUPS_K_COLUMNS ? fill_rows : fill_columns)(&call, args) ==
                 0 &&
             fill_bias(&call) == 0)
        call.context = dgp_context_get(args[CONTEXT], device);
    if (call.context != NULL)
        result = perform(&call, mode);
    Py_XDECREF(packed);
    Py_XDECREF(call.out);
    dgp_operands_release(call.o, ALL_OPERANDS);
    return result;
}
