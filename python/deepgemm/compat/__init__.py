# SPDX-License-Identifier: MIT
"""Modules that look like those of other libraries and run on this one."""

import importlib
import sys

_MODULES = (
    "deep_gemm",
    "deep_gemm.legacy",
    "deep_gemm.testing",
    "deep_gemm.testing.bench",
    "deep_gemm.testing.numeric",
    "deep_gemm.testing.utils",
    "deep_gemm.utils",
    "deep_gemm.utils.layout",
    "deep_gemm.utils.math",
)


def install() -> None:
    """Makes ``import deep_gemm`` and its submodules mean `deepgemm.compat.deep_gemm`.

    Call it before anything imports another `deep_gemm`: RuntimeError when that has happened.
    """
    for name in _MODULES:
        module = importlib.import_module(f"{__name__}.{name}")
        if sys.modules.setdefault(name, module) is not module:
            raise RuntimeError(f"another {name} is imported already, from {sys.modules[name]}")


def uninstall() -> None:
    """Undoes `install`."""
    for name in _MODULES:
        if getattr(sys.modules.get(name), "__name__", "").startswith(__name__):
            del sys.modules[name]
