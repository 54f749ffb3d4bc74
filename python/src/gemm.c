/* SPDX-License-Identifier: MIT */
/* The GEMM: run, prepare, explain and workspace share their arguments. */
#include "gemm.h"

#include <string.h>

static const char *const names[] = {"a", "b",    "scale_a",   "scale_b",  "out",
                                    "c", "bias", "scale_out", "workspace"};

int dgp_gemm_blocks(PyObject *const *args, dgp_blocks *blocks)
{
    return dgp_granularity(args[GRANULARITY], blocks->a, blocks->b) < 0 ||
                   dgp_pair(args[PHASE_A], "phase_a", blocks->phase_a) < 0 ||
                   dgp_pair(args[PHASE_B], "phase_b", blocks->phase_b) < 0 ||
                   dgp_pair(args[OUT_GRANULARITY], "out_granularity", blocks->out) < 0
               ? -1
               : 0;
}

int dgp_gemm_options(PyObject *const *args, dg_gemm *gemm)
{
    static const char *const accumulations[] = {"precise", "fast", NULL};
    const int accumulation = dgp_choice(args[ACCUMULATION], "accumulation", accumulations);
    if (accumulation < 0)
        return -1;
    gemm->accumulation = (dg_accumulation)accumulation;
    gemm->alpha = (float)PyFloat_AsDouble(args[ALPHA]);
    gemm->beta = (float)PyFloat_AsDouble(args[BETA]);
    return PyErr_Occurred() ? -1 : 0;
}

/* Packed weights in place of B, checked against what the call says. */
static int take_weights(PyObject *const *args, const int32_t block_b[2], dg_gemm *gemm, int64_t *n)
{
    int32_t block[2];
    if (args[SCALE_B] != Py_None)
        return dgp_fail(DG_INVALID_ARGUMENT, "scale_b is given, but packed weights hold their own");
    gemm->weights = dgp_weights_get(args[B], n, block);
    if (block[0] != block_b[0] || block[1] != block_b[1])
        return dgp_fail(DG_UNSUPPORTED_SCALE,
                        "granularity[1] is (%d, %d), but the weights were packed with (%d, %d)",
                        (int)block_b[0], (int)block_b[1], (int)block[0], (int)block[1]);
    return 0;
}

static int take_result(PyObject *const *args, int64_t n, void *stream, dgp_operand *o,
                       PyObject **out)
{
    if (o[OUT].dtype != DG_NONE) {
        *out = Py_NewRef(args[OUT]);
        return dgp_check_writable(&o[OUT], "out");
    }
    const int dtype = dgp_dtype_from_object(args[OUT_DTYPE], "out_dtype");
    if (dtype < 0)
        return -1;
    if (o[A].rank < 2) /* as dgp_as_matrix says it */
        return dgp_fail(DG_INVALID_ARGUMENT, "a has %d dimensions: expected [rows, columns]",
                        (int)o[A].rank);
    int64_t shape[DGP_MAX_RANK];
    memcpy(shape, o[A].shape, sizeof shape);
    shape[o[A].rank - 1] = n;
    *out = dgp_output_new(args[A], &o[A], dtype, o[A].rank, shape, stream, &o[OUT]);
    return *out == NULL ? -1 : 0;
}

static int fill(const dgp_blocks *blocks, const dgp_operand *o, dg_gemm *gemm)
{
    static const int32_t no_phase[2] = {0, 0};
    if (dgp_as_matrix(&o[A], "a", &gemm->a) < 0 || dgp_as_matrix(&o[B], "b", &gemm->b) < 0 ||
        dgp_as_matrix(&o[OUT], "out", &gemm->d) < 0 || dgp_as_matrix(&o[C], "c", &gemm->c) < 0 ||
        dgp_as_vector(&o[BIAS], "bias", &gemm->bias) < 0 ||
        dgp_as_scale(&o[SCALE_A], "scale_a", blocks->a, blocks->phase_a, &gemm->scale_a) < 0 ||
        dgp_as_scale(&o[SCALE_B], "scale_b", blocks->b, blocks->phase_b, &gemm->scale_b) < 0 ||
        dgp_as_scale(&o[SCALE_OUT], "scale_out", blocks->out, no_phase, &gemm->scale_d) < 0)
        return -1;
    if (o[WORKSPACE].dtype != DG_NONE) {
        gemm->workspace = o[WORKSPACE].data;
        gemm->workspace_bytes = dgp_dtype_bytes(o[WORKSPACE].dtype);
        for (int i = 0; i < o[WORKSPACE].rank; i++)
            gemm->workspace_bytes *= (size_t)o[WORKSPACE].shape[i];
    }
    return 0;
}

static dg_status explain(void *user, char *text, size_t *bytes)
{
    const dgp_gemm_call *call = user;
    return dg_gemm_explain(call->context, &call->gemm, text, bytes);
}

static PyObject *perform(dgp_gemm_call *call, long mode)
{
    dg_context *context = call->context;
    const dg_gemm *gemm = &call->gemm;
    void *stream = call->stream.handle;
    dg_status status;
    size_t bytes = 0;
    if (mode == EXPLAIN)
        return dgp_text(explain, call);
    PyThreadState *python = PyEval_SaveThread();
    status = mode == RUN       ? dg_gemm_run(context, gemm, stream)
             : mode == PREPARE ? dg_gemm_prepare(context, gemm)
                               : dg_gemm_workspace(context, gemm, &bytes);
    PyEval_RestoreThread(python);
    if (status != DG_OK)
        return dgp_raise(status);
    if (mode == WORKSPACE_BYTES)
        return PyLong_FromSize_t(bytes);
    dgp_tensor_written(call->out, stream);
    return Py_NewRef(mode == RUN ? call->out : Py_None);
}

int dgp_gemm_begin(dgp_gemm_call *call, PyObject *const *args)
{
    dgp_operand *o = call->operands;
    dgp_blocks blocks;
    call->out = NULL;
    call->gemm = (dg_gemm)DG_GEMM_INIT;
    if (dgp_gemm_blocks(args, &blocks) < 0 || dgp_gemm_options(args, &call->gemm) < 0 ||
        dgp_stream_from_object(args[STREAM], &call->stream) < 0)
        return -1;
    const bool packed = dgp_weights_check(args[B]);
    PyObject *objects[OPERANDS];
    memcpy(objects, args, sizeof objects);
    if (packed)
        objects[B] = Py_None;
    if (dgp_operands_take(objects, names, OPERANDS, &call->stream, o) < 0)
        return -1;
    int64_t n = o[B].rank >= 2 ? o[B].shape[o[B].rank - 2] : 0;
    dg_device device;
    if ((!packed || take_weights(args, blocks.b, &call->gemm, &n) == 0) &&
        dgp_common_device(o, names, OPERANDS, &device) == 0 &&
        (call->context = dgp_context_get(args[CONTEXT], device)) != NULL &&
        take_result(args, n, call->stream.handle, o, &call->out) == 0 &&
        fill(&blocks, o, &call->gemm) == 0)
        return 0;
    dgp_gemm_end(call);
    return -1;
}

void dgp_gemm_end(dgp_gemm_call *call)
{
    Py_XDECREF(call->out);
    dgp_operands_release(call->operands, OPERANDS);
}

/* _C.gemm(*arguments) -> out, in the order of gemm.h's enums. */
PyObject *dgp_gemm(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    (void)module;
    dgp_gemm_call call;
    if (dgp_check_count(count, GEMM_ARGUMENTS) < 0)
        return NULL;
    const long mode = PyLong_AsLong(args[MODE]);
    if (mode == -1 && PyErr_Occurred())
        return NULL;
    if (args[GROUPS] != Py_None)
        return dgp_grouped(args, mode);
    const int constant = PyObject_IsTrue(args[B_IS_CONSTANT]);
    if (constant < 0 || dgp_gemm_begin(&call, args) < 0)
        return NULL;
    call.gemm.b_is_constant = constant;
    PyObject *result = perform(&call, mode);
    dgp_gemm_end(&call);
    return result;
}
