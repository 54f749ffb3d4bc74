# SPDX-License-Identifier: MIT
"""Layouts of scales that callers ask for. The products here take any layout by its strides."""

import torch
from torch import Tensor

from .math import align, ceil_div

_alignment = 128  # of groups in contiguous layouts, for the whole process as callers expect


def get_mk_alignment_for_contiguous_layout() -> int:
    """The multiple at which groups of a contiguous layout begin."""
    return _alignment


def set_mk_alignment_for_contiguous_layout(value: int) -> None:
    """Sets it for the whole process."""
    global _alignment
    if value < 1:
        raise ValueError(f"value is {value}: it must be 1 or more")
    _alignment = int(value)


def get_theoretical_mk_alignment_for_contiguous_layout(
    expected_m: int | None = None, num_groups: int | None = None
) -> int:
    """The alignment that tiles of 128 rows suggest, whatever the sizes."""
    return 128


get_m_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout
get_k_alignment_for_contiguous_layout = get_mk_alignment_for_contiguous_layout


def get_tma_aligned_size(size: int, element_size: int) -> int:
    """`size` elements rounded up to whole 16 bytes."""
    return align(size, 16 // element_size)


def _columns_first(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A new [mn, k] or [g, mn, k], contiguous along mn, with columns of whole 16 bytes."""
    mn, k = shape[-2:]
    pitch = get_tma_aligned_size(mn, dtype.itemsize)
    strides = (1, pitch) if len(shape) == 2 else (pitch * k, 1, pitch)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def get_mn_major_tma_aligned_tensor(sf: Tensor) -> Tensor:
    """The FP32 scales [mn, k] or [g, mn, k], contiguous along mn, columns at whole 16 bytes."""
    return _columns_first(sf.shape, sf.dtype, sf.device).copy_(sf)


get_col_major_tma_aligned_tensor = get_mn_major_tma_aligned_tensor


def _words(sf: Tensor) -> Tensor:
    """Powers of two [..., k] as int32 [..., ceil(k / 4)]: the exponent of k = 4 w + j in byte j."""
    k = sf.shape[-1]
    exponents = torch.zeros(*sf.shape[:-1], align(k, 4), dtype=torch.uint8, device=sf.device)
    exponents[..., :k] = sf.contiguous().view(torch.int32) >> 23
    return exponents.view(torch.int32)


def get_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor, psum_layout: Tensor | None = None
) -> Tensor:
    """FP32 powers of two [mn, k] or [g, mn, k] as int32 [.., mn, ceil(k / 4)], contiguous along mn.

    Byte j of a word is the exponent of k = 4 w + j; bytes behind the last are zero.
    """
    if psum_layout is not None:
        raise NotImplementedError("get_mn_major_tma_aligned_packed_ue8m0_tensor: psum_layout")
    words = _words(sf)
    return _columns_first(words.shape, words.dtype, words.device).copy_(words)


def get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
    sf: Tensor,
    grouped_layout: Tensor,
    ks: list[int] | None,
    gran_k: int,
    k_alignment: int | None = None,
    use_psum_layout: bool = False,
) -> Tensor:
    """FP32 powers of two [sum K / gran_k, mn] as int32 [sum of ceil(K_g / (4 gran_k)), mn].

    Four rows of a group become one; no word has rows of two groups.
    """
    if use_psum_layout:
        raise NotImplementedError(
            "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor: use_psum_layout"
        )
    sizes = grouped_layout.tolist() if ks is None else ks
    counts = [ceil_div(k, gran_k) for k in sizes]
    parts = sf[: sum(counts)].split(counts)
    groups = [_words(part.t()).t() for part in parts if part.shape[0]]
    rows = sum(group.shape[0] for group in groups)
    out = _columns_first(torch.Size((sf.shape[1], rows)), torch.int32, sf.device).t()
    return torch.cat(groups, out=out) if groups else out


def transform_sf_into_required_layout(
    sf: Tensor,
    mn: int,
    k: int,
    recipe: tuple[int, ...],
    num_groups: int | None = None,
    is_sfa: bool | None = None,
    disable_ue8m0_cast: bool = False,
    psum_layout: Tensor | None = None,
) -> Tensor:
    """FP32 scales as Hopper kernels want them: a scale for each row goes contiguous along mn.

    `recipe` is (rows of A, rows of B, columns), of which `is_sfa` chooses, or (rows, columns).
    """
    if sf.dtype != torch.float32:
        raise NotImplementedError(f"transform_sf_into_required_layout: scales of {sf.dtype}")
    if len(recipe) == 3:
        if is_sfa is None:
            raise ValueError("is_sfa is None: with a recipe of three it must be given")
        recipe = (recipe[0 if is_sfa else 1], recipe[2])
    shape = (ceil_div(mn, recipe[0]), ceil_div(k, recipe[1]))
    expected = shape if num_groups is None else (num_groups, *shape)
    if tuple(sf.shape) != expected:
        raise ValueError(f"sf has shape {tuple(sf.shape)}: expected {expected}")
    return get_mn_major_tma_aligned_tensor(sf) if recipe[0] == 1 else sf
