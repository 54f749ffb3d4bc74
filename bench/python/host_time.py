# SPDX-License-Identifier: MIT
"""Host time of an eager call from PyTorch: docs/python.md has its last results.

    python bench/python/host_time.py [--device cuda:0] [--rounds 25] [--calls 400] [--json FILE]

The product is small (M, N, K = 16, 128, 128), so that on a GPU it is not what is waited for, and the
queue is emptied before each round; on the CPU its time, and the library's, are part of the call, as
"M = 0", where the library returns at once, shows. The best and the median round count, in
microseconds a call, each round of all calls in turn, so that a busy moment falls on all of them.
"""

import argparse
import json
import statistics
import time

import torch

import deepgemm
import deepgemm.torch


def calls(device):
    """What is timed: name to function."""
    m, n, k = 16, 128, 128
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    w = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    granularity = deepgemm.BLOCK128
    a, sa = deepgemm.quantize(x, granularity=granularity[0])
    b, sb = deepgemm.quantize(w, granularity=granularity[1])
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    none, snone, nothing = a[:0], sa[:0], out[:0]
    plain = torch.nn.Linear(k, n, device=device, dtype=torch.bfloat16)
    linear = deepgemm.torch.Linear.from_linear(plain)
    flat = [*granularity[0], *granularity[1]]
    gemm, op = deepgemm.gemm, torch.ops.deepgemm.gemm
    yield "gemm, out given", lambda: gemm(a, b, sa, sb, granularity=granularity, out=out)
    yield "of it: M = 0", lambda: gemm(none, b, snone, sb, granularity=granularity, out=nothing)
    yield "gemm, new result", lambda: gemm(a, b, sa, sb, granularity=granularity)
    yield "torch.ops.deepgemm.gemm, new result", lambda: op(a, sa, b, sb, flat)
    yield "quantize, new results", lambda: deepgemm.quantize(x, granularity=(1, 128))
    yield "deepgemm.torch.Linear", lambda: linear(x)
    yield "torch.nn.Linear, BF16", lambda: plain(x)
    yield "torch.mm, BF16, out given", lambda: torch.mm(x, w.t(), out=out)
    yield "torch.empty", lambda: torch.empty(m, n, device=device, dtype=torch.bfloat16)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--only", help="the calls whose name has this")
    parser.add_argument("--json", help="write the results to this file, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cuda = options.device != "cpu"
    with torch.inference_mode():
        timed = {n: f for n, f in calls(options.device) if not options.only or options.only in n}
        for function in timed.values():
            for _ in range(options.calls):
                function()
        times = {name: [] for name in timed}
        for _ in range(options.rounds):
            for name, function in timed.items():
                if cuda:
                    torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(options.calls):
                    function()
                times[name].append((time.perf_counter() - start) / options.calls * 1e6)
    results = {name: (min(t), statistics.median(t)) for name, t in times.items()}
    print(f"PyTorch {torch.__version__}, {options.device}: microseconds a call, best and median")
    for name, (best, median) in results.items():
        print(f"{name:38} {best:8.2f} {median:8.2f}")
    if options.json:
        report = {
            "version": deepgemm.__version__,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "chip": deepgemm.Context(options.device).name,
            "host": deepgemm.Context().name,
            "torch": torch.__version__,
            "rows": [
                {"call": n, "us": round(us, 2), "min_us": round(best, 2)}
                for n, (best, us) in results.items()
            ],
        }
        with open(options.json, "w") as file:
            file.write(json.dumps(report, indent=1) + "\n")


main()
