# SPDX-License-Identifier: MIT
"""The module surface of `deep_gemm` on Hopper, for servers and tests that import it.

What computes in FP8 with FP32 scales is here; everything else of that surface raises
NotImplementedError with its name. Operands ``a`` and ``b`` are pairs (codes, scales); the result
goes to ``d``, row-major. Scales are taken by their strides, in any layout: the layout functions
are there because callers call them, and their results are as good as their arguments.

Signatures that have `compiled_dims`, `disable_ue8m0_cast` and the like accept them: nothing is
compiled here and no scale is ever cast.
"""

from typing import Any, NoReturn

import torch
from torch import Tensor

from ... import _C, Groups, __version__, gemm
from . import legacy, testing, utils
from .utils import *  # noqa: F403
from .utils import get_mk_alignment_for_contiguous_layout

Operand = tuple[Tensor, Tensor]
Recipe = tuple[int, ...] | None

__all__ = ["__version__", "legacy", "testing", "utils"]

# ---- what one scale covers ---------------------------------------------------------------


def _granularity(recipe: Recipe, recipe_a: Recipe = None, recipe_b: Recipe = None) -> Any:
    """((rows, columns) of A, of B) from (rows of A, rows of B, columns), or from a pair of each."""
    if recipe is not None and (recipe_a is not None or recipe_b is not None):
        raise ValueError("recipe is given beside recipe_a or recipe_b")
    rows_a, rows_b, columns = recipe or (1, 128, 128)
    return (
        tuple(recipe_a) if recipe_a is not None else (rows_a, columns),
        tuple(recipe_b) if recipe_b is not None else (rows_b, columns),
    )


def _split(operand: Operand, name: str, function: str) -> Operand:
    codes, scale = operand
    if codes.dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise NotImplementedError(f"{function}: {name} has type {codes.dtype}, expected FP8")
    if scale.dtype == torch.int32:
        raise NotImplementedError(f"{function}: scales of {name} packed as UE8M0 are for SM100")
    return codes, scale


def _gemm(
    function: str,
    a: Operand,
    b: Operand,
    d: Tensor,
    c: Tensor | None,
    granularity: Any,
    **options: Any,
) -> None:
    (a_codes, a_scale), (b_codes, b_scale) = _split(a, "a", function), _split(b, "b", function)
    beta = 0.0 if c is None else 1.0
    gemm(
        a_codes,
        b_codes,
        a_scale,
        b_scale,
        out=d,
        c=c,
        beta=beta,
        granularity=granularity,
        **options,
    )


# ---- dense -------------------------------------------------------------------------------


def fp8_gemm_nt(
    a: Operand,
    b: Operand,
    d: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    alpha: float | None = None,
) -> None:
    """d = alpha * a b^T + c: a [M, K], b [N, K]; `c` may be `d`.

    The recipe (rows of A, rows of B, columns) that one scale covers is (1, 128, 128) unless given;
    (1, 1, 128) is that of weight gradients.
    """
    factor = 1.0 if alpha is None else float(alpha)
    _gemm("fp8_gemm_nt", a, b, d, c, _granularity(recipe, recipe_a, recipe_b), alpha=factor)


def _transposed(operand: Operand) -> Operand:
    return operand[0].transpose(-1, -2), operand[1].transpose(-1, -2)


def fp8_gemm_nn(a: Operand, b: Operand, d: Tensor, *args: Any, **options: Any) -> None:
    """As `fp8_gemm_nt` with b [K, N], which must be contiguous along K, and its scales likewise."""
    fp8_gemm_nt(a, _transposed(b), d, *args, **options)


def fp8_gemm_tn(a: Operand, b: Operand, d: Tensor, *args: Any, **options: Any) -> None:
    """As `fp8_gemm_nt` with a [K, M] and b [K, N], contiguous along K."""
    fp8_gemm_nt(_transposed(a), _transposed(b), d, *args, **options)


def fp8_gemm_tt(a: Operand, b: Operand, d: Tensor, *args: Any, **options: Any) -> None:
    """As `fp8_gemm_nt` with a [K, M], contiguous along K."""
    fp8_gemm_nt(_transposed(a), b, d, *args, **options)


def cublaslt_gemm_nt(a: Tensor, b: Tensor, d: Tensor, c: Tensor | None = None) -> None:
    """d = a b^T (+ c) of codes without scales, by PyTorch's cuBLASLt: a peer to compare with."""
    one = torch.ones((), device=a.device)
    if c is None:
        torch._scaled_mm(a, b.t(), one, one, out_dtype=d.dtype, out=d)
    else:
        torch.add(torch._scaled_mm(a, b.t(), one, one, out_dtype=d.dtype), c, out=d)


# ---- grouped -----------------------------------------------------------------------------


def m_grouped_fp8_gemm_nt_contiguous(
    a: Operand,
    b: Operand,
    d: Tensor,
    grouped_layout: Tensor,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    use_psum_layout: bool = False,
    ensure_zero_padding: bool = True,
    expected_m_for_psum_layout: int | None = None,
) -> None:
    """d[r] = a[r] b[group of r]^T: a [M, K], b [G, N, K], d [M, N].

    `grouped_layout`, int32 on the device, is the group of each row, -1 on padding rows, which become
    zeros. With `use_psum_layout` it is each group's end [G], and groups begin at multiples of the
    contiguous layout's alignment; padding rows become zeros if `ensure_zero_padding`, and are left
    as they are otherwise.
    """
    name = "m_grouped_fp8_gemm_nt_contiguous"
    groups = Groups(
        "by_end" if use_psum_layout else "by_row",
        grouped_layout,
        alignment=get_mk_alignment_for_contiguous_layout() if use_psum_layout else 1,
        padding="zero" if ensure_zero_padding or not use_psum_layout else "untouched",
        expected_rows=expected_m_for_psum_layout or 0,
    )
    _gemm(name, a, b, d, None, _granularity(recipe, recipe_a, recipe_b), groups=groups)


def m_grouped_fp8_gemm_nn_contiguous(
    a: Operand, b: Operand, d: Tensor, grouped_layout: Tensor, *args: Any, **options: Any
) -> None:
    """As `m_grouped_fp8_gemm_nt_contiguous` with b [G, K, N], contiguous along K."""
    m_grouped_fp8_gemm_nt_contiguous(a, _transposed(b), d, grouped_layout, *args, **options)


def m_grouped_fp8_gemm_nt_masked(
    a: Operand,
    b: Operand,
    d: Tensor,
    masked_m: Tensor,
    expected_m: int,
    recipe: Recipe = None,
    recipe_a: Recipe = None,
    recipe_b: Recipe = None,
    compiled_dims: str = "nk",
    disable_ue8m0_cast: bool = False,
    enable_overlap: bool = False,
    max_block_n: int = 256,
    signal: Tensor | None = None,
) -> None:
    """d[g, r] = a[g, r] b[g]^T for r < masked_m[g]: a [G, R, K], b [G, N, K], d [G, R, N].

    `masked_m`, int32 [G], stays on the device; `expected_m` is a typical value of it. Other rows of
    `d` are left as they are.
    """
    name = "m_grouped_fp8_gemm_nt_masked"
    if enable_overlap or signal is not None:
        raise NotImplementedError(f"{name}: enable_overlap")
    groups = Groups("masked", masked_m, expected_rows=int(expected_m))
    _gemm(name, a, b, d, None, _granularity(recipe, recipe_a, recipe_b), groups=groups)


def k_grouped_fp8_gemm_nt_contiguous(
    a: Operand,
    b: Operand,
    d: Tensor,
    ks: list[int],
    grouped_layout: Tensor,
    c: Tensor | None = None,
    recipe: Recipe = (1, 1, 128),
    compiled_dims: str = "mn",
    use_psum_layout: bool = False,
) -> None:
    """d[g] = a_g b_g^T + c[g], for weight gradients: d [G, M, N] in FP32; `c` may be `d`.

    a and b are flat: each group's [M, K_g] and [N, K_g], one behind another; their scales are
    [M, sum K / 128] and [N, sum K / 128]. `grouped_layout` holds the K_g as int32 [G] on the device;
    each is a multiple of 128, and may be 0.
    """
    name = "k_grouped_fp8_gemm_nt_contiguous"
    if use_psum_layout:
        raise NotImplementedError(f"{name}: use_psum_layout")
    _gemm(
        name,
        a,
        b,
        d,
        c,
        _granularity(recipe or (1, 1, 128)),
        groups=Groups("k_blocks", grouped_layout),
    )


# Other names of the same functions.
fp8_fp4_gemm_nt, fp8_fp4_gemm_nn = fp8_gemm_nt, fp8_gemm_nn
fp8_fp4_gemm_tn, fp8_fp4_gemm_tt = fp8_gemm_tn, fp8_gemm_tt
m_grouped_fp8_fp4_gemm_nt_contiguous = m_grouped_fp8_gemm_nt_contiguous
m_grouped_fp8_fp4_gemm_nn_contiguous = m_grouped_fp8_gemm_nn_contiguous
m_grouped_fp8_fp4_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked
fp8_m_grouped_gemm_nt_masked = m_grouped_fp8_gemm_nt_masked

# ---- settings ----------------------------------------------------------------------------

# This library plans each call by itself and compiles nothing, so these are kept and returned, and
# change nothing else.
_settings: dict[str, Any] = {"num_sms": None, "tc_util": 100, "pdl": False}


def set_num_sms(count: int) -> None:
    """Kept for `get_num_sms`; every call uses what its plan says."""
    _settings["num_sms"] = int(count)


def get_num_sms() -> int:
    """What was set, or the current device's multiprocessors; without a GPU the CPU's threads."""
    if _settings["num_sms"] is not None:
        return int(_settings["num_sms"])
    cuda = torch.cuda.is_available()
    return _C.Context(f"cuda:{torch.cuda.current_device()}" if cuda else "cpu").units


def set_tc_util(percent: int) -> None:
    """Kept for `get_tc_util`; without effect."""
    _settings["tc_util"] = int(percent)


def get_tc_util() -> int:
    """What was set, or 100."""
    return int(_settings["tc_util"])


def set_pdl(enabled: bool) -> None:
    """Kept for `get_pdl`; without effect."""
    _settings["pdl"] = bool(enabled)


def get_pdl() -> bool:
    """What was set, or False."""
    return bool(_settings["pdl"])


def set_ignore_compile_dims(ignore: bool) -> None:
    """Without effect: nothing is compiled."""


def set_block_size_multiple_of(value: int | tuple[int, int]) -> None:
    """Without effect: every shape has the same results in any tile."""


# ---- out of scope ------------------------------------------------------------------------


def _refuse(name: str) -> Any:
    def refused(*args: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"deep_gemm.{name} is not part of deepgemm.compat")

    refused.__name__ = refused.__qualname__ = name
    refused.__doc__ = "Raises NotImplementedError."
    return refused


_OUT_OF_SCOPE = (
    "bf16_gemm_nn", "bf16_gemm_nt", "bf16_gemm_tn", "bf16_gemm_tt", "bf16_m_grouped_gemm_nt_masked",
    "cublaslt_gemm_nn", "cublaslt_gemm_tn", "cublaslt_gemm_tt", "einsum", "fp4_gemm_nt",
    "fp8_einsum", "fp8_fp4_mqa_logits", "fp8_fp4_paged_mqa_logits", "fp8_mqa_logits",
    "fp8_paged_mqa_logits", "get_paged_mqa_logits_metadata", "k_grouped_bf16_gemm_tn_contiguous",
    "k_grouped_fp8_gemm_tn_contiguous", "m_grouped_bf16_gemm_nn_contiguous",
    "m_grouped_bf16_gemm_nt_contiguous", "m_grouped_bf16_gemm_nt_masked",
    "m_grouped_fp4_gemm_nt_contiguous", "m_grouped_fp4_gemm_nt_masked", "tf32_hc_prenorm_gemm",
)  # fmt: skip
globals().update({name: _refuse(name) for name in _OUT_OF_SCOPE})
