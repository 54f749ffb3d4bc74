# SPDX-License-Identifier: MIT
"""How far two results are apart, and how many bytes they take."""

from typing import Any

from torch import Tensor


def calc_diff(x: Tensor, y: Tensor) -> float:
    """1 - 2 sum(x y) / sum(x^2 + y^2), in double precision; 0 where both are zero."""
    x, y = x.double(), y.double()
    squares = float((x * x + y * y).sum())
    return 0.0 if squares == 0 else 1 - 2 * float((x * y).sum()) / squares


def count_bytes(*tensors: Any) -> int:
    """Bytes of tensors, and of those in tuples and lists; None counts nothing."""
    total = 0
    for item in tensors:
        if isinstance(item, tuple | list):
            total += count_bytes(*item)
        elif item is not None:
            total += item.numel() * item.element_size()
    return total
