# SPDX-License-Identifier: MIT
"""Times of kernels on a GPU."""

import os
import time
from collections.abc import Callable
from typing import Any

import torch

FLUSH_BYTES = 256 << 20  # more than any L2 cache


def _flush() -> None:
    torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda").zero_()


def bench(
    fn: Callable[[], Any], num_warmups: int = 5, num_tests: int = 10, high_precision: bool = False
) -> float:
    """Seconds of one call among `num_tests` back to back, by events; without a GPU by the clock."""
    if not torch.cuda.is_available():
        for _ in range(num_warmups):
            fn()
        begin = time.perf_counter()
        for _ in range(num_tests):
            fn()
        return (time.perf_counter() - begin) / num_tests
    _flush()
    for _ in range(num_warmups):
        fn()
    if high_precision:  # work ahead hides what the host takes to launch
        x = torch.randn(8192, 8192, device="cuda")
        torch.mm(x, x)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(num_tests):
        fn()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / num_tests / 1e3


def bench_kineto(
    fn: Callable[[], Any],
    kernel_names: str | tuple[str, ...],
    num_tests: int = 30,
    suppress_kineto_output: bool = False,
    trace_path: str | None = None,
    flush_l2: bool = True,
    with_multiple_kernels: bool = False,
    barrier: Callable[[], Any] | None = None,
) -> Any:
    """Mean seconds of the kernels whose name contains `kernel_names`, by PyTorch's profiler.

    A name that no kernel has gives 0; one that two kernels have is an AssertionError unless
    `with_multiple_kernels`. With DG_USE_NVIDIA_TOOLS=1, under another profiler, `fn` does not run
    and the answer is 1.
    """
    names = (kernel_names,) if isinstance(kernel_names, str) else kernel_names
    if int(os.environ.get("DG_USE_NVIDIA_TOOLS", "0")):
        return 1 if isinstance(kernel_names, str) else (1,) * len(names)
    if not torch.cuda.is_available():
        raise NotImplementedError("deep_gemm.testing.bench_kineto needs a GPU")
    fn()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(num_tests):
            if flush_l2:
                _flush()
            if barrier is not None:
                torch.cuda._sleep(20_000_000)
                barrier()
            fn()
        torch.cuda.synchronize()
    if trace_path is not None:
        profiler.export_chrome_trace(trace_path)
    times = []
    for name in names:
        found = [event for event in profiler.key_averages() if name in event.key[:100]]
        assert with_multiple_kernels or len(found) <= 1, f"{name}: {[e.key for e in found]}"
        count = sum(event.count for event in found)
        total = sum(event.self_device_time_total for event in found)  # microseconds
        times.append(total / count / 1e6 if count else 0)
    return times[0] if isinstance(kernel_names, str) else tuple(times)
