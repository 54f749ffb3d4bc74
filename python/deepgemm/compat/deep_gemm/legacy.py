# SPDX-License-Identifier: MIT
"""Grouped products of BF16 operands, which this FP8 library does not have."""

from typing import Any, NoReturn


def _refuse(name: str) -> Any:
    def refused(*args: Any, **options: Any) -> NoReturn:
        raise NotImplementedError(f"deep_gemm.legacy.{name} is not part of deepgemm.compat")

    refused.__name__ = refused.__qualname__ = name
    return refused


globals().update(
    {
        name: _refuse(name)
        for name in (
            "a_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
            "a_fused_m_grouped_bf16_gemm_nn_contiguous_tl",
            "a_fused_m_grouped_bf16_gemm_nt_contiguous_tl",
            "b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
            "m_grouped_bf16_gemm_nn_contiguous_tl",
            "m_grouped_bf16_gemm_nt_contiguous_tl",
        )
    }
)
