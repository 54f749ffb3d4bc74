# SPDX-License-Identifier: MIT
"""Sizes, and casts to FP8 by this library's quantiser."""

from typing import NoReturn

import torch
from torch import Tensor

from .... import quantize

LEAST_AMAX = 1e-4  # of a block, by the casts' definition


def ceil_div(x: int, y: int) -> int:
    """x / y, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of y that is at least x."""
    return ceil_div(x, y) * y


def ceil_to_ue8m0(x: Tensor) -> Tensor:
    """The least power of two at or above |x|, of those that a UE8M0 byte of 1 to 254 can say."""
    bits = x.abs().float().contiguous().view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def pack_ue8m0_to_int(x: Tensor) -> Tensor:
    """Powers of two, four along the last dimension, as the bytes of one int32."""
    bits = x.contiguous().view(torch.int32)
    if x.shape[-1] % 4 or bool(((bits < 0) | (bits & 0x7FFFFF != 0)).any()):
        raise ValueError("expected a multiple of 4 powers of two along the last dimension")
    return (bits >> 23).to(torch.uint8).view(torch.int32)


def _cast(x: Tensor, block: tuple[int, int], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    if x.dim() != 2:
        raise ValueError(f"x has {x.dim()} dimensions: expected 2")
    rounding = "pow2_up" if use_ue8m0 else "exact"
    return quantize(x.contiguous(), granularity=block, rounding=rounding, amax_floor=LEAST_AMAX)  # type: ignore[return-value]


def per_token_cast_to_fp8(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Codes of x [M, K], and a scale for each row and `gran_k` columns [M, ceil(K / gran_k)]."""
    codes, scale = _cast(x, (1, gran_k), use_ue8m0)
    if not use_packed_ue8m0:
        return codes, scale
    padding = align(scale.shape[1], 4) - scale.shape[1]
    return codes, pack_ue8m0_to_int(torch.nn.functional.pad(scale, (0, padding), value=1.0))


def per_channel_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Codes of x [K, N], and a scale for each `gran_k` rows and column [K / gran_k, N]."""
    if x.shape[0] % gran_k:
        raise ValueError(f"x has {x.shape[0]} rows, not a multiple of {gran_k}")
    return _cast(x, (gran_k, 1), use_ue8m0)


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Codes of x [M, K], and a scale for each square block of `gran_k`."""
    return _cast(x, (gran_k, gran_k), use_ue8m0)


def per_token_cast_to_fp4(*args: object, **options: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError(
        "deep_gemm.utils.per_token_cast_to_fp4 is not part of deepgemm.compat"
    )


def transpose_packed_fp4(*args: object, **options: object) -> NoReturn:
    """Raises NotImplementedError."""
    raise NotImplementedError("deep_gemm.utils.transpose_packed_fp4 is not part of deepgemm.compat")
