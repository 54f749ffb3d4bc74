# SPDX-License-Identifier: MIT
"""NumPy, where it is: called by the extension, never at import."""

import sys
from typing import Any

from . import _C


def _numpy_type(name: str) -> Any:
    """NumPy's type of that name, ml_dtypes' where NumPy has none; None where neither is there."""
    import numpy

    found = getattr(numpy, name, None)
    if found is not None:
        return found
    try:
        import ml_dtypes
    except ImportError:
        return None
    return getattr(ml_dtypes, name, None)


def empty_numpy(like: Any, shape: tuple[int, ...], dtype: str) -> Any | None:
    """A new NumPy array where `like` is one and NumPy can name the type; None otherwise."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(like, numpy.ndarray):
        return None
    found = _numpy_type(dtype)
    return None if found is None else numpy.empty(shape, found)


def to_numpy(tensor: _C.Tensor) -> Any:
    """A NumPy array that shares the tensor's memory."""
    import numpy

    if tensor.device != "cpu":
        raise _C.DeviceMismatch(
            f'the tensor is on {tensor.device}: deepgemm.copy(x, "cpu").numpy() has its values'
        )
    if hasattr(numpy, tensor.dtype):
        return numpy.from_dlpack(tensor)
    found = _numpy_type(tensor.dtype)
    if found is None:
        raise TypeError(f"NumPy has no {tensor.dtype}: install ml_dtypes")
    # NumPy's DLPack knows integers: the same bytes as those, and then by their own type.
    plain = "uint16" if tensor.dtype == "bfloat16" else "uint8"
    return numpy.from_dlpack(_C.tensor(tensor, plain)).view(found)
