# SPDX-License-Identifier: MIT
"""The package in its process: import, leaks, threads, fork."""

import functools
import os
import resource
import subprocess
import sys
import threading

import numpy as np
import pytest

import deepgemm
from conftest import E4M3, random_codes, random_scale


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


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def growth(call, count):
    """Bytes that a third of the calls added: the least of three, since a leak adds in each."""
    grown = []
    for _ in range(3):
        before = resident()
        for _ in range(count // 3):
            call()
        grown.append(resident() - before)
    return min(grown)


def refused(call):
    try:
        call()
    except deepgemm.Error:
        return
    raise AssertionError("was not refused")


def test_a_million_calls_do_not_leak(rng):
    """A million calls in all, of each function, with operands of each kind; refused ones too."""
    g, context = deepgemm.TENSOR, deepgemm.Context(threads=1)
    a, one = random_codes(rng, (2, 16)), np.ones((1, 1), np.float32)
    ta, tone = deepgemm.tensor(a), deepgemm.tensor(one)
    out = deepgemm.empty((2, 2), "float32")
    x = deepgemm.tensor(np.ones((2, 16), np.float32))
    weights = deepgemm.pack(a, one, granularity=(0, 0))

    class Speaks:
        def __dlpack_device__(self):
            return ta.__dlpack_device__()

        def __dlpack__(self, **keywords):
            return ta.__dlpack__(**keywords)

    gemm = functools.partial(deepgemm.gemm, granularity=g, context=context)
    calls = {
        "into out": (lambda: gemm(ta, ta, tone, tone, out=out), 500_000),
        "a new result": (lambda: gemm(ta, ta, tone, tone), 100_000),
        "packed": (lambda: gemm(ta, weights, tone, out=out), 100_000),
        "numpy": (lambda: gemm(a, a, one, one), 30_000),
        "dlpack": (lambda: gemm(Speaks(), a, one, one), 30_000),
        "refused": (lambda: refused(lambda: gemm(ta, ta, tone, x)), 60_000),
        "explain": (lambda: deepgemm.explain(ta, ta, tone, tone, granularity=g), 10_000),
        "quantize": (
            lambda: deepgemm.quantize(x, granularity=(1, 8), counts=True, context=context), 60_000),
        "dequantize": (
            lambda: deepgemm.dequantize(ta, tone, granularity=(0, 0), context=context), 60_000),
        "pack": (lambda: deepgemm.pack(ta, tone, granularity=(0, 0)).unpack(), 30_000),
        "views": (lambda: deepgemm.tensor(deepgemm.tensor(a), "uint8").__dlpack__(), 60_000),
    }  # fmt: skip
    grown = {name: growth(call, count) for name, (call, count) in calls.items()}
    assert sum(count for _, count in calls.values()) >= 1_000_000
    assert max(grown.values()) < 100_000, grown  # 16 bytes a call, of the rarest, would be more


def test_threads(rng):
    """Many Python threads on one default context give the serial results, bit for bit."""
    granularity = deepgemm.BLOCK128
    cases = []
    for i in range(8):
        a, b = random_codes(rng, (3 + i, 256)), random_codes(rng, (40 + i, 256))
        scales = [random_scale(rng, x.shape, g) for x, g in zip((a, b), granularity)]
        cases.append((a, b, *scales))
    serial = [deepgemm.gemm(*case, granularity=granularity) for case in cases]
    wrong = []

    def work(index):
        for _ in range(50):
            out = deepgemm.gemm(*cases[index], granularity=granularity)
            if not (out == serial[index]).all():
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


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
    child = os.fork()
    if child == 0:
        try:
            out = deepgemm.gemm(a, weights, one, granularity=deepgemm.TENSOR)
            os._exit(0 if (out == expected).all() else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (deepgemm.gemm(a, weights, one, granularity=deepgemm.TENSOR) == expected).all()


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
