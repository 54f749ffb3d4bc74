/* SPDX-License-Identifier: MIT */
/* The module deepgemm._C. Importing it touches no driver. */
#include "extension.h"

#define FUNCTION(name, function)                                                                   \
    {                                                                                              \
        name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL                           \
    }

static PyMethodDef functions[] = {
    FUNCTION("gemm", dgp_gemm),
    FUNCTION("linear", dgp_linear),
    FUNCTION("table", dgp_table_new),
    FUNCTION("checkpoint_write", dgp_checkpoint_write),
    FUNCTION("checkpoint_rescale", dgp_checkpoint_rescale),
    FUNCTION("scale_choose", dgp_scale_choose),
    FUNCTION("scales_write", dgp_scales_write),
    FUNCTION("smooth_choose", dgp_smooth_choose),
    FUNCTION("precision_choose", dgp_precision_choose),
    FUNCTION("quantize", dgp_quantize),
    FUNCTION("dequantize", dgp_dequantize),
    FUNCTION("convert", dgp_convert),
    FUNCTION("copy", dgp_copy),
    FUNCTION("compare", dgp_compare),
    FUNCTION("pack", dgp_weights_pack),
    FUNCTION("tensor", dgp_tensor_view),
    FUNCTION("empty", dgp_tensor_empty),
    {"kernels", dgp_kernels, METH_NOARGS, NULL},
    {"statistics_load", dgp_statistics_load, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* One state a process: a second interpreter cannot load the module. */
static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "deepgemm._C",
    .m_doc = "The extension behind deepgemm: positional arguments only, see deepgemm._api.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__C(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (dgp_operand_init() < 0 || dgp_errors_init(module) < 0 || dgp_tensor_init(module) < 0 ||
        dgp_context_init(module) < 0 || dgp_weights_init(module) < 0 ||
        dgp_table_init(module) < 0 || dgp_checkpoint_init(module) < 0 ||
        dgp_statistics_init(module) < 0 ||
        PyModule_AddStringConstant(module, "version", dg_version()) < 0)
        Py_CLEAR(module);
    return module;
}
