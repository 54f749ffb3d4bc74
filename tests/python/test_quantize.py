# SPDX-License-Identifier: MIT
"""Quantise, dequantise, convert and compare, against rules written out in NumPy."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgemm
from conftest import BF16, E4M3, E5M2, E8M0, blocks, dequantized, expand


@given(
    shape=st.tuples(st.integers(0, 40), st.integers(0, 150)),
    granularity=st.tuples(st.sampled_from([0, 1, 32]), st.sampled_from([0, 1, 32, 128])),
    dtype=st.sampled_from([E4M3, E5M2]),
    source=st.sampled_from([np.float32, np.float16, BF16]),
    rounding=st.sampled_from(["exact", "pow2_up", "pow2_down"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rules(shape, granularity, dtype, source, rounding, seed):
    """Scales are the largest magnitude over the largest code; codes are rounded quotients."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 6, shape)).astype(source)
    codes, scale = deepgemm.quantize(x, granularity=granularity, dtype=dtype, rounding=rounding)
    assert codes.dtype == dtype and codes.shape == shape
    assert scale.shape == tuple(blocks(n, block) for n, block in zip(shape, granularity))
    largest = float(ml_dtypes.finfo(dtype).max)
    wide = x.astype(np.float32)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            rows = (
                slice(i * granularity[0], (i + 1) * granularity[0])
                if granularity[0]
                else slice(None)
            )
            cols = (
                slice(j * granularity[1], (j + 1) * granularity[1])
                if granularity[1]
                else slice(None)
            )
            amax = np.abs(wide[rows, cols]).max(initial=0)
            exact = np.float32(amax) / np.float32(largest) if amax > 0 else np.float32(1)
            if rounding == "exact":
                assert scale[i, j] == exact
            else:
                mantissa, exponent = np.frexp(exact)
                if rounding == "pow2_up":
                    exponent -= mantissa == 0.5
                else:
                    exponent -= 1
                assert scale[i, j] == np.ldexp(np.float32(1), exponent)
    inverse = (np.float32(1) / scale.astype(np.float32)).astype(np.float64)
    quotient = (wide.astype(np.float64) * expand(inverse, shape, granularity)).astype(np.float32)
    expected = np.clip(quotient, -largest, largest).astype(dtype)
    assert (codes.view(np.uint8) == expected.view(np.uint8)).all()


@given(
    shape=st.tuples(st.integers(0, 30), st.integers(0, 100)),
    granularity=st.tuples(st.sampled_from([0, 1, 8]), st.sampled_from([0, 1, 32])),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_dequantize(shape, granularity, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    codes, scale = deepgemm.quantize(x, granularity=granularity)
    out = deepgemm.dequantize(codes, scale, granularity=granularity, dtype=dtype)
    exact = dequantized(codes, scale, granularity).astype(np.float32)
    assert out.dtype.name == dtype
    assert (out == exact.astype(out.dtype)).all()


def test_leading_dimensions(rng):
    x = rng.standard_normal((2, 3, 256)).astype(np.float32)
    codes, scale = deepgemm.quantize(x, granularity=(1, 128))
    assert codes.shape == (2, 3, 256) and scale.shape == (2, 3, 2)
    codes, scale = deepgemm.quantize(x, granularity=(128, 128))
    assert codes.shape == (2, 3, 256) and scale.shape == (1, 2)


def test_given_scales_outputs_and_counts():
    x = np.array([[10, 500, -1000, np.nan, np.inf, 1e-9]], np.float32)
    one = np.ones((1, 1), np.float32)
    codes, scale, counts = deepgemm.quantize(x, granularity=(0, 0), scale=one, counts=True)
    assert scale is one
    assert codes.view(np.uint8).tolist() == [[0x52, 0x7E, 0xFE, 0x7F, 0x7E, 0x00]]
    assert counts.dtype == np.int64 and counts.tolist() == [3, 1, 2]
    out, scale_out = np.empty((1, 6), E5M2), np.empty((1, 1), np.float32)
    codes, scale = deepgemm.quantize(
        x, granularity=(0, 0), dtype=E5M2, out=out, scale_out=scale_out
    )
    assert (
        codes is out and scale is scale_out and scale[0, 0] == np.float32(1000) / np.float32(57344)
    )
    with pytest.raises(deepgemm.InvalidArgument, match="scale and scale_out"):
        deepgemm.quantize(x, granularity=(0, 0), scale=one, scale_out=scale_out)
    with pytest.raises(deepgemm.UnsupportedScale):
        deepgemm.quantize(x, granularity=(0, 0), scale=np.zeros((1, 1), np.float32))


def test_power_of_two_scales():
    x = np.full((1, 32), 957.0, np.float32)
    for rounding, byte, code in (("pow2_up", 129, 0x77), ("pow2_down", 128, 0x7E)):
        codes, scale = deepgemm.quantize(
            x, granularity=(1, 32), scale_dtype="float8_e8m0fnu", rounding=rounding
        )
        assert scale.dtype == E8M0 and scale.view(np.uint8).tolist() == [[byte]]
        assert (codes.view(np.uint8) == code).all()
    with pytest.raises(deepgemm.Error, match="ue8m0|power"):
        deepgemm.quantize(x, granularity=(1, 32), scale_dtype="float8_e8m0fnu")


def test_column_major_scales(rng):
    x = rng.standard_normal((20, 256)).astype(np.float32)
    plain, scale = deepgemm.quantize(x, granularity=(1, 128))
    other = np.empty((2, 20), np.float32).T
    codes, same = deepgemm.quantize(x, granularity=(1, 128), scale_out=other)
    assert same is other and (other == scale).all()
    assert (codes.view(np.uint8) == plain.view(np.uint8)).all()


@pytest.mark.parametrize("target", ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16"])
def test_convert_is_ml_dtypes_rounding(rng, target):
    x = (rng.standard_normal(4096) * 2.0 ** rng.integers(-12, 5, 4096)).astype(np.float32)
    out = deepgemm.convert(x, target)
    expected = x.astype(out.dtype)
    finite = np.isfinite(expected.astype(np.float32))
    assert finite.sum() > 4000 and (out[finite] == expected[finite]).all()
    back = deepgemm.convert(out, "float32")
    assert (back == out.astype(np.float32)).all()


def test_convert_overflow_and_refusals():
    x = np.array([1e6, -1e6], np.float32)
    assert deepgemm.convert(x, "float8_e5m2").astype(np.float32).tolist() == [57344, -57344]
    ieee = deepgemm.convert(x, "float8_e5m2", overflow="ieee").astype(np.float32)
    assert ieee.tolist() == [np.inf, -np.inf]
    with pytest.raises(deepgemm.UnsupportedScale):
        deepgemm.convert(np.array([3.0], np.float32), "float8_e8m0fnu")
    with pytest.raises(deepgemm.InvalidArgument, match="contiguous"):
        deepgemm.convert(np.ones((4, 4), np.float32).T[:, :2], "float16")


def test_a_granularity_is_never_left_out():
    x = np.ones((4, 8), np.float32)
    codes, scale = deepgemm.quantize(x, granularity=(0, 0))
    for call in (
        lambda: deepgemm.quantize(x, granularity=None),
        lambda: deepgemm.dequantize(codes, scale, granularity=None),
        lambda: deepgemm.pack(codes, scale, granularity=None),
        lambda: deepgemm.choose_scale(x, granularity=None),
        lambda: deepgemm.gemm(codes, codes, scale, scale, granularity=(None, None)),
    ):
        with pytest.raises(TypeError, match="granularity.* is None: expected a pair"):
            call()


def test_types_that_are_not_taken():
    for dtype in (">f4", "int8", "bool"):
        with pytest.raises(deepgemm.UnsupportedType, match="expected float32") as refused:
            deepgemm.quantize(np.ones((4, 8), dtype), granularity=(1, 0))
        assert "codes" not in str(refused.value)


def test_what_cannot_be_none():
    one = np.ones((1, 1), np.float32)
    for name, call in (
        ("x", lambda: deepgemm.quantize(None, granularity=(1, 0))),
        ("codes", lambda: deepgemm.dequantize(None, one, granularity=(1, 0))),
        ("x", lambda: deepgemm.convert(None, "float16")),
        ("x", lambda: deepgemm.choose_scale(None, granularity=(0, 0))),
    ):
        with pytest.raises(deepgemm.UnsupportedType, match=f"^{name} is None: expected an array"):
            call()


def test_compare(rng):
    x = rng.standard_normal((30, 40)).astype(np.float32)
    y = (x + 0.01 * rng.standard_normal(x.shape)).astype(np.float32)
    c = deepgemm.compare(x, y)
    error = y.astype(np.float64) - x
    assert np.isclose(c.relative_error, np.linalg.norm(error) / np.linalg.norm(x), rtol=1e-12)
    assert np.isclose(c.snr_db, -20 * np.log10(c.relative_error))
    assert c.max_error == np.abs(error).max() and c.finite == 1200 and c.spoiled == 0
    y[3, 4] = np.nan
    c = deepgemm.compare(x, y)
    assert c.spoiled == 1 and c.cosine == 0
    assert c.relative_error == c.max_error == c.mean_error == -c.snr_db == np.inf
