# SPDX-License-Identifier: MIT
"""deepgemm: the matrix products of LLM inference in FP8.

    D[M,N] = alpha * (scale_a . A[M,K]) (scale_b . B[N,K])^T + beta * C[M,N] + bias[N]

A holds activations (tokens by features), B holds weights (output by input features), both
contiguous along K. A scale is always a multiplier: real value = scale * code. The *granularity* of
a scale is the pair (rows, columns) that one value covers; 0 means all.

Arrays may come from PyTorch, NumPy (with ``ml_dtypes``), JAX, CuPy, or anything else that speaks
DLPack, on the CPU or a CUDA device; they are used where they lie, by their strides. Results come
from the library that ``a`` came from. Importing this module touches no GPU.
"""

from . import _C
from ._api import (
    BLOCK32,
    BLOCK128,
    MX,
    TENSOR,
    TOKEN_CHANNEL,
    Comparison,
    Groups,
    Kernel,
    compare,
    convert,
    dequantize,
    empty,
    explain,
    forward,
    gemm,
    kernels,
    linear,
    pack,
    prepare,
    quantize,
    tensor,
    workspace_bytes,
)
from ._C import (
    BadFile,
    Cancelled,
    Context,
    DeviceMismatch,
    DriverError,
    Error,
    InputOutputError,
    InvalidArgument,
    Misaligned,
    NotFound,
    NotPrepared,
    OutOfMemory,
    Tensor,
    UnsupportedDevice,
    UnsupportedScale,
    UnsupportedShape,
    UnsupportedType,
    Weights,
)
from ._calibration import (
    LayerScales,
    Observed,
    PrecisionChoice,
    ScaleChoice,
    ScaleQuality,
    Smoothing,
    Statistics,
    choose_precisions,
    choose_scale,
    choose_smoothing,
    write_scales,
)
from ._checkpoint import (
    Checkpoint,
    ScaleRecord,
    StoredTensor,
    StoredWeight,
    TensorReport,
    convert_checkpoint,
    quantize_checkpoint,
    rescale_checkpoint,
)
from ._grouped import GroupedGEMM, Plan

__version__ = _C.version

__all__ = [
    "BLOCK128",
    "BLOCK32",
    "MX",
    "TENSOR",
    "TOKEN_CHANNEL",
    "BadFile",
    "Cancelled",
    "Checkpoint",
    "Comparison",
    "Context",
    "DeviceMismatch",
    "DriverError",
    "Error",
    "GroupedGEMM",
    "Groups",
    "InputOutputError",
    "InvalidArgument",
    "Kernel",
    "LayerScales",
    "Misaligned",
    "NotFound",
    "NotPrepared",
    "Observed",
    "OutOfMemory",
    "Plan",
    "PrecisionChoice",
    "ScaleChoice",
    "ScaleQuality",
    "ScaleRecord",
    "Smoothing",
    "Statistics",
    "StoredTensor",
    "StoredWeight",
    "Tensor",
    "TensorReport",
    "UnsupportedDevice",
    "UnsupportedScale",
    "UnsupportedShape",
    "UnsupportedType",
    "Weights",
    "choose_precisions",
    "choose_scale",
    "choose_smoothing",
    "compare",
    "convert",
    "convert_checkpoint",
    "dequantize",
    "empty",
    "explain",
    "forward",
    "gemm",
    "kernels",
    "linear",
    "pack",
    "prepare",
    "quantize",
    "quantize_checkpoint",
    "rescale_checkpoint",
    "tensor",
    "workspace_bytes",
    "write_scales",
]
