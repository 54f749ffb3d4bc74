# SPDX-License-Identifier: MIT
"""What tests of kernels import."""

from . import numeric, utils
from .bench import bench, bench_kineto
from .numeric import calc_diff, count_bytes
from .utils import get_arch_major, ignore_env, test_filter

__all__ = [
    "bench", "bench_kineto", "calc_diff", "count_bytes", "get_arch_major", "ignore_env", "numeric",
    "test_filter", "utils",
]  # fmt: skip
