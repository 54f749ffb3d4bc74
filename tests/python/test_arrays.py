# SPDX-License-Identifier: MIT
"""Arrays of any library: DLPack in and out, typed views, lifetimes."""

import ctypes
import gc
import re
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgemm
from conftest import BF16, E4M3, random_codes


class Producer:
    """A library that speaks DLPack only, old (no max_version) or new, and counts what it gave out."""

    def __init__(self, array, versioned=True, dtype=None):
        self.tensor = deepgemm.tensor(array, dtype)
        self.versioned = versioned
        self.exported = 0

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **keywords):
        if not self.versioned and "max_version" in keywords:
            raise TypeError("unexpected keyword max_version")
        self.exported += 1
        return self.tensor.__dlpack__(**keywords)


@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_in(rng, versioned):
    a, b = random_codes(rng, (6, 256)), random_codes(rng, (32, 256))
    one = np.ones((1, 1), np.float32)
    expected = deepgemm.gemm(a, b, one, one, granularity=deepgemm.TENSOR)
    given = [Producer(x, versioned) for x in (a, b, one, one)]
    out = deepgemm.gemm(*given, granularity=deepgemm.TENSOR)
    assert [x.exported for x in given] == [1, 1, 1, 1]
    assert type(out) is deepgemm.Tensor and out.dtype == "bfloat16" and out.device == "cpu"
    assert (out.numpy() == expected).all()
    into = np.zeros((6, 32), np.float32)
    given_out = Producer(into, versioned)
    assert deepgemm.gemm(*given, out=given_out, granularity=deepgemm.TENSOR) is given_out
    assert (into.astype(BF16) == expected).all() and given_out.exported == 1


def test_nothing_is_kept(rng):
    """References to operands are gone after the call, after a refused call too."""
    a, b = random_codes(rng, (6, 256)), random_codes(rng, (32, 256))
    one = np.ones((1, 1), np.float32)
    arrays = (a, b, one)
    givers = [Producer(a), Producer(b), Producer(one, False)]
    tensors = [giver.tensor for giver in givers]
    before = [sys.getrefcount(x) for x in (*arrays, *tensors)]
    for _ in range(10):
        deepgemm.gemm(*givers, one, granularity=deepgemm.TENSOR)
        deepgemm.gemm(*arrays, one, granularity=deepgemm.TENSOR)
        with pytest.raises(deepgemm.InvalidArgument):
            deepgemm.gemm(givers[0], givers[1], givers[2], one, granularity=((1, 1), (1, 1)))
        with pytest.raises(TypeError):
            deepgemm.gemm(givers[0], givers[1], givers[2], "text", granularity=deepgemm.TENSOR)
    gc.collect()
    assert [sys.getrefcount(x) for x in (*arrays, *tensors)] == before


def test_bytes_with_a_type(rng):
    codes = random_codes(rng, (4, 64))
    view = deepgemm.tensor(codes.view(np.uint8), "float8_e4m3fn")
    assert (view.shape, view.strides, view.dtype) == ((4, 64), (64, 1), "float8_e4m3fn")
    assert view.data_ptr == codes.ctypes.data
    assert np.shares_memory(view.numpy(), codes) and view.numpy().dtype == E4M3
    with pytest.raises(deepgemm.InvalidArgument, match="1 bytes.*float32 has 4"):
        deepgemm.tensor(codes.view(np.uint8), "float32")
    with pytest.raises(TypeError, match="data is a"):
        deepgemm.tensor([1, 2, 3])


@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn", "uint8", "int32"]
)
def test_tensor_out_and_in_again(dtype):
    one = deepgemm.empty((3, 5), dtype)
    array = one.numpy()
    array.view(np.uint8)[:] = np.arange(array.nbytes).reshape(3, -1) % 100
    again = deepgemm.tensor(one)
    del one  # its memory lives on
    gc.collect()
    assert again.dtype == dtype and (again.numpy().view(np.uint8) == array.view(np.uint8)).all()
    capsule = again.__dlpack__(max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    del capsule, again  # a capsule that nobody takes lets go
    assert "dltensor" in repr(deepgemm.empty((1,), dtype).__dlpack__())


def test_memory_outlives_its_tensor():
    array = deepgemm.empty((1000, 1000), "float32").numpy()
    gc.collect()
    array[:] = 1.0
    assert array.sum() == 1e6


def test_strides_and_read_only_memory():
    array = np.arange(48, dtype=np.float32).reshape(6, 8)
    view = deepgemm.tensor(array[::2, 1:5])
    assert view.shape == (3, 4) and view.strides == (16, 1)
    assert (view.numpy() == array[::2, 1:5]).all()
    array.setflags(write=False)
    fixed = deepgemm.tensor(array)
    assert not np.from_dlpack(fixed).flags.writeable
    with pytest.raises(BufferError, match="read-only"):
        fixed.__dlpack__()


def test_copies(rng):
    codes = random_codes(rng, (3, 5))
    same = deepgemm.copy(codes, "cpu")
    assert (same.numpy().view(np.uint8) == codes.view(np.uint8)).all()
    assert not np.shares_memory(same.numpy(), codes)
    assert deepgemm.copy(np.zeros((0, 4), np.float32), "cpu").shape == (0, 4)
    for wrong in (codes.T, None):
        with pytest.raises(deepgemm.InvalidArgument, match="contiguous array"):
            deepgemm.copy(wrong, "cpu")
    with pytest.raises(ValueError, match="device is 'tpu'"):
        deepgemm.copy(codes, "tpu")


def test_export_refusals():
    one = deepgemm.empty((2, 2), "float32")
    with pytest.raises(BufferError, match="copy"):
        one.__dlpack__(copy=True)
    with pytest.raises(BufferError, match="device"):
        one.__dlpack__(dl_device=(2, 0))
    with pytest.raises(deepgemm.InvalidArgument, match="stream"):
        one.__dlpack__(stream=1)
    assert one.__dlpack_device__() == (1, 0)


class Capsule:
    """A producer of one capsule made by hand."""

    def __init__(self, code, bits, device=1, ndim=2, major=1):
        class Tensor(ctypes.Structure):
            _fields_ = [
                ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
                ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("offset", ctypes.c_uint64),
            ]  # fmt: skip

        self.shape = (ctypes.c_int64 * ndim)(*[2] * ndim)
        self.memory = ctypes.create_string_buffer(4096)
        self.tensor = Tensor(
            major=major, data=ctypes.addressof(self.memory), device_type=device, ndim=ndim, code=code,
            bits=bits, lanes=1, shape=ctypes.addressof(self.shape), offset=16,
        )  # fmt: skip
        self.device = device

    def __dlpack_device__(self):
        return (self.device, 0)

    def __dlpack__(self, **_):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        return new(ctypes.addressof(self.tensor), b"dltensor_versioned", None)


def test_capsules_by_hand():
    """Types by their DLPack number, the byte offset, missing strides; and what is refused."""
    good = Capsule(10, 8)
    view = deepgemm.tensor(good)
    assert view.dtype == "float8_e4m3fn" and view.strides == (2, 1)
    assert view.data_ptr == ctypes.addressof(good.memory) + 16
    names = {12: "float8_e5m2", 14: "float8_e8m0fnu", 1: "uint8"}
    assert {c: deepgemm.tensor(Capsule(c, 8)).dtype for c in names} == names
    assert deepgemm.tensor(Capsule(4, 16)).dtype == "bfloat16"
    for code in (11, 13):
        with pytest.raises(deepgemm.UnsupportedType, match="FNUZ"):
            deepgemm.tensor(Capsule(code, 8))
    with pytest.raises(deepgemm.UnsupportedType, match="code 5, 128 bits"):
        deepgemm.tensor(Capsule(5, 128))
    with pytest.raises(deepgemm.UnsupportedDevice, match="DLPack type 10"):
        deepgemm.tensor(Capsule(10, 8, device=10))
    with pytest.raises(deepgemm.InvalidArgument, match="9 dimensions"):
        deepgemm.tensor(Capsule(10, 8, ndim=9))
    with pytest.raises(deepgemm.UnsupportedType, match="DLPack 2"):
        deepgemm.tensor(Capsule(10, 8, major=2))


def test_devices_are_compared():
    """Without a GPU: an operand that says it is on one is refused before anything is read."""
    one = np.ones((1, 1), np.float32)
    on_gpu = Capsule(10, 8, device=2)
    with pytest.raises(deepgemm.DeviceMismatch, match="b is on cuda:0, but a is on cpu"):
        deepgemm.gemm(np.ones((2, 2), E4M3), on_gpu, one, one, granularity=deepgemm.TENSOR)
    with pytest.raises(deepgemm.DeviceMismatch, match="context is for cpu.*cuda:0"):
        gpu_one = Capsule(2, 32, device=2)
        deepgemm.gemm(
            on_gpu,
            on_gpu,
            gpu_one,
            gpu_one,
            granularity=deepgemm.TENSOR,
            context=deepgemm.Context(),
        )


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "cuda:-1", -1, None, 2**40])
def test_bad_devices(device):
    with pytest.raises(ValueError, match="device is"):
        deepgemm.Context(device)


def test_big_endian_and_odd_strides():
    with pytest.raises(deepgemm.UnsupportedType):
        deepgemm.tensor(np.ones((2, 2), ">f4"))
    raw = np.zeros(64, np.uint8)
    odd = np.ndarray((3, 2), np.float32, raw.data, strides=(10, 4))
    with pytest.raises(deepgemm.Misaligned, match="10 bytes"):
        deepgemm.tensor(odd)


def test_jax():
    """A library that speaks DLPack's protocol, FP8 and bfloat16 too, both ways."""
    jnp = pytest.importorskip("jax.numpy", reason="JAX is not installed")
    x = np.random.default_rng(1).standard_normal((8, 256)).astype(np.float32)
    codes, one = jnp.asarray(x).astype(jnp.float8_e4m3fn), jnp.ones((1, 1), jnp.float32)
    out = deepgemm.gemm(codes, codes, one, one, granularity=deepgemm.TENSOR)
    known = np.asarray(codes)
    expected = deepgemm.gemm(known, known, *[np.ones((1, 1), np.float32)] * 2,
                             granularity=deepgemm.TENSOR)  # fmt: skip
    assert type(out) is deepgemm.Tensor and (np.asarray(jnp.from_dlpack(out)) == expected).all()
    half = jnp.asarray(x).astype(jnp.bfloat16)
    assert (deepgemm.quantize(half, granularity=(1, 0))[0].numpy().view(np.uint8) ==
            deepgemm.quantize(np.asarray(half), granularity=(1, 0))[0].view(np.uint8)).all()  # fmt: skip


steps = st.sampled_from([1, 2, 3, -1, -2])


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(0, 9)),
    step=st.tuples(steps, steps),
    leading=st.sampled_from([(), (1,), (3,), (2, 2)]),
    transposed=st.booleans(),
    repeated=st.booleans(),
    source=st.sampled_from([np.float32, np.float16, BF16]),
    library=st.sampled_from(["numpy", "dlpack", "tensor"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_view(shape, step, leading, transposed, repeated, source, library, seed):
    """A view is taken as it lies, or refused: never read as if it lay in another way."""
    rng = np.random.default_rng(seed)
    sizes = [size * abs(n) for size, n in zip(shape, step)]
    whole = rng.standard_normal((*leading, *sizes)).astype(source)
    view = whole[..., :: step[0], :: step[1]]
    if repeated and not leading:
        view = np.broadcast_to(view[:1], view.shape)
    if transposed:
        view = view.swapaxes(-1, -2)
    take = {"numpy": lambda x: x, "dlpack": Producer, "tensor": deepgemm.tensor}[library]
    try:
        codes, scale = deepgemm.quantize(take(view), granularity=(1, 0))
    except deepgemm.InvalidArgument as refusal:
        assert re.search("contiguous|no single stride|ld is", str(refusal)), refusal
        assert view.size > 0 and not view.flags.c_contiguous
        return
    expected, expected_scale = deepgemm.quantize(np.ascontiguousarray(view), granularity=(1, 0))
    if library != "numpy":
        codes, scale = codes.numpy(), scale.numpy()
    assert codes.shape == view.shape
    assert (codes.view(np.uint8) == expected.view(np.uint8)).all()
    assert (scale == expected_scale).all()


def test_without_ml_dtypes(monkeypatch, rng):
    """Results of types that NumPy does not have come as deepgemm.Tensor then."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    codes, scale = deepgemm.quantize(x, granularity=(1, 32))
    assert type(codes) is deepgemm.Tensor and type(scale) is np.ndarray
    with pytest.raises(TypeError, match="ml_dtypes"):
        codes.numpy()
    back = deepgemm.dequantize(codes, scale, granularity=(1, 32))
    assert type(back) is deepgemm.Tensor and np.abs(back.numpy() - x).max() < 0.2
