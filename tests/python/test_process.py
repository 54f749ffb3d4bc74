# SPDX-License-Identifier: MIT
"""The package in its process: import, leaks, threads, fork."""

import functools
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import deepgemm
from conftest import CALLS, E4M3, assert_no_growth, random_codes, random_scale
from test_checkpoint import save


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()


def test_import_needs_nothing():
    """No framework is imported, no driver opened, no thread started."""
    loaded = run(
        "import deepgemm, sys; print(*[m for m in ('numpy', 'torch', 'ml_dtypes') if m in sys.modules]);"
        "print(*[line.split()[-1] for line in open('/proc/self/maps') if 'libcuda' in line])"
    )
    assert loaded == []
    tasks = run("import deepgemm, os; print(len(os.listdir('/proc/self/task')))")
    assert tasks == ["1"]


def test_without_numpy():
    """The whole path with nothing installed but this package."""
    out = run(
        "import sys; sys.modules['numpy'] = None\n"
        "import deepgemm as dg, ctypes\n"
        "x = dg.empty((4, 32), 'float32')\n"
        "v = (ctypes.c_float * 128).from_address(x.data_ptr)\n"
        "v[:] = [i % 7 for i in range(128)]\n"
        "q, s = dg.quantize(x, granularity=(0, 0))\n"
        "y = dg.gemm(q, q, s, s, granularity=dg.TENSOR, out_dtype='float32')\n"
        "r = (ctypes.c_float * 16).from_address(y.data_ptr)\n"
        "print(all(abs(r[i*4+j] - sum(v[i*32+k]*v[j*32+k] for k in range(32))) < 12"
        " for i in range(4) for j in range(4)), y.shape == (4, 4), 'numpy' in y.dtype)"
    )
    assert out == ["True", "True", "False"]


def refused(call):
    try:
        call()
    except deepgemm.Error:
        return
    raise AssertionError("was not refused")


def test_calls_do_not_leak(rng, tmp_path):
    """Each function, with operands of each kind; refused calls too."""
    context = deepgemm.Context(threads=1)
    a, one = random_codes(rng, (2, 16)), np.ones((1, 1), np.float32)
    ta, tone = deepgemm.tensor(a), deepgemm.tensor(one)
    out = deepgemm.empty((2, 2), "float32")
    x = deepgemm.tensor(np.ones((2, 16), np.float32))
    weights = deepgemm.pack(a, one, granularity=(0, 0))
    experts = (deepgemm.tensor(a[None]), deepgemm.tensor(one[None]))
    groups = deepgemm.Groups("by_end", deepgemm.tensor(np.array([2], np.int32)))
    grouped = deepgemm.GroupedGEMM(granularity=deepgemm.TENSOR, context=context)
    plan = grouped.prepare(1, [(2, 2, 16)])
    lists = dict(a_list=[ta], b_list=[ta], scales_a=[tone], scales_b=[tone], out_list=[out])
    statistics = deepgemm.Statistics(block_cols=0)
    save(tmp_path / "a.safetensors", {"a.weight": a, "a.weight_scale": one})
    checkpoint = deepgemm.Checkpoint(tmp_path / "a.safetensors")

    class Speaks:
        def __dlpack_device__(self):
            return ta.__dlpack_device__()

        def __dlpack__(self, **keywords):
            return ta.__dlpack__(**keywords)

    gemm = functools.partial(deepgemm.gemm, granularity=deepgemm.TENSOR, context=context)
    choose = functools.partial(deepgemm.choose_scale, granularity=(1, 8), context=context)
    options = {"granularity": (1, 8), "context": context}
    calls = {
        "into out": lambda: gemm(ta, ta, tone, tone, out=out),
        "a new result": lambda: gemm(ta, ta, tone, tone),
        "packed": lambda: gemm(ta, weights, tone, out=out),
        "numpy": lambda: gemm(a, a, one, one),
        "dlpack": lambda: gemm(Speaks(), a, one, one),
        "refused": lambda: refused(lambda: gemm(ta, ta, tone, x)),
        "explain": lambda: deepgemm.explain(ta, ta, tone, tone, granularity=deepgemm.TENSOR),
        "groups": lambda: gemm(ta, experts[0], tone, experts[1], groups=groups),
        "packed groups": lambda: gemm(ta, [weights], tone, groups=groups),
        "plan": lambda: grouped.forward(plan=plan, **lists),
        "linear": lambda: deepgemm.linear(
            x, weights, granularity=deepgemm.TENSOR, context=context
        ),
        "quantize": lambda: deepgemm.quantize(x, counts=True, **options),
        "dequantize": lambda: deepgemm.dequantize(ta, tone, granularity=(0, 0), context=context),
        "convert": lambda: deepgemm.convert(x, "bfloat16"),
        "compare": lambda: deepgemm.compare(x, x),
        "pack": lambda: deepgemm.pack(ta, tone, granularity=(0, 0)).unpack(),
        "views": lambda: deepgemm.tensor(deepgemm.tensor(a), "uint8").__dlpack__(),
        "context": lambda: deepgemm.Context(threads=1).name,
        "choose_scale": lambda: choose(x),
        "observe": lambda: statistics.observe("layer", x, context=context),
        "statistics": lambda: (statistics["layer"], statistics.choose("layer"), list(statistics)),
        "checkpoint": lambda: (checkpoint.weight("a.weight"), checkpoint.scales()),
        "precisions": lambda: deepgemm.choose_precisions([[(2.0, 0.0), (1.0, 1.0)]], limit=1.0),
    }  # fmt: skip
    assert_no_growth(calls)


def test_threads(rng):
    """Many Python threads on one default context give the serial results, bit for bit."""
    granularity = deepgemm.BLOCK128
    cases = []
    for i in range(8):
        a, b = random_codes(rng, (3 + i, 256)), random_codes(rng, (4 + i, 256))
        scales = [random_scale(rng, x.shape, g) for x, g in zip((a, b), granularity)]
        cases.append((a, b, *scales))
    serial = [deepgemm.gemm(*case, granularity=granularity) for case in cases]
    wrong, done = [], []

    def work(index):
        for _ in range(CALLS // 8):
            out = deepgemm.gemm(*cases[index], granularity=granularity)
            if not (out == serial[index]).all():
                wrong.append(index)
        done.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and sorted(done) == list(range(8))


def test_other_threads_run_meanwhile(rng):
    """The library runs without the GIL: a thread counts on while a long product is computed."""
    a, b = random_codes(rng, (512, 2048)), random_codes(rng, (2048, 2048))
    one = np.ones((1, 1), np.float32)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    context = deepgemm.Context(threads=1, isa="generic")
    start = counted[0]
    deepgemm.gemm(a, b, one, one, granularity=deepgemm.TENSOR, context=context)
    during = counted[0] - start
    stop.set()
    thread.join()
    assert during > 10_000


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork(rng):
    """A child goes on with contexts and weights that its parent made and used."""
    a = random_codes(rng, (4, 128))
    one = np.ones((1, 1), np.float32)
    weights = deepgemm.pack(a, one, granularity=(0, 0))
    expected = deepgemm.gemm(a, weights, one, granularity=deepgemm.TENSOR)
    for _ in range(max(1, CALLS // 1000)):
        child = os.fork()
        if child == 0:
            try:
                out = deepgemm.gemm(a, weights, one, granularity=deepgemm.TENSOR)
                os._exit(0 if (out == expected).all() else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        again = deepgemm.gemm(a, weights, one, granularity=deepgemm.TENSOR)
        assert (again == expected).all()


def test_exceptions_are_what_python_expects():
    kinds = {
        deepgemm.InvalidArgument: ValueError,
        deepgemm.UnsupportedType: TypeError,
        deepgemm.OutOfMemory: MemoryError,
        deepgemm.NotFound: LookupError,
        deepgemm.InputOutputError: OSError,
    }
    for ours, builtin in kinds.items():
        assert issubclass(ours, deepgemm.Error) and issubclass(ours, builtin)
        assert ours.__module__ == "deepgemm" and ours.__doc__
    assert deepgemm.InvalidArgument.status == "DG_INVALID_ARGUMENT"


def test_every_public_name_is_documented():
    for name in deepgemm.__all__:
        value = getattr(deepgemm, name)
        if callable(value):
            assert value.__doc__, name
    assert deepgemm.__version__.count(".") == 2
    assert np.zeros(1, E4M3).dtype.name == "float8_e4m3fn"
