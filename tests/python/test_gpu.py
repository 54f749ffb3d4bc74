# SPDX-License-Identifier: MIT
"""The package on a GPU with nothing but NumPy: what PyTorch's tests do not need it for."""

import numpy as np
import pytest

import deepgemm
from conftest import assert_close, random_codes, random_scale, reference
from deepgemm import Groups

try:
    deepgemm.Context("cuda")
    WHY_NOT = ""
except deepgemm.UnsupportedDevice as error:
    WHY_NOT = str(error)
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no GPU: {WHY_NOT}")

G128 = deepgemm.BLOCK128
SUM_ERROR = 1e-3  # of the terms' magnitudes


def up(array):
    return deepgemm.copy(array, "cuda")


def down(tensor):
    assert tensor.device == "cuda:0"
    return deepgemm.copy(tensor, "cpu").numpy()


def operands(rng, m, n, k, granularity):
    a, b = random_codes(rng, (m, k)), random_codes(rng, (n, k))
    scales = [random_scale(rng, x.shape, g) for x, g in zip((a, b), granularity)]
    return a, b, *scales


@pytest.mark.parametrize("recipe", ["TENSOR", "TOKEN_CHANNEL", "BLOCK128", "BLOCK32", "MX"])
def test_gemm(rng, recipe):
    granularity = getattr(deepgemm, recipe)
    for m, n, k in ((1, 128, 256), (33, 72, 300), (0, 16, 16), (4, 8, 0)):
        a, b, sa, sb = operands(rng, m, n, k, granularity)
        given = [up(x) for x in (a, b, sa, sb)]
        deepgemm.prepare(*given, granularity=granularity)
        out = deepgemm.gemm(*given, granularity=granularity, out_dtype="float32")
        assert type(out) is deepgemm.Tensor
        assert_close(down(out), *reference(a, sa, b, sb, granularity), SUM_ERROR)
        same = deepgemm.gemm(
            *given, granularity=granularity, out_dtype="float32", b_is_constant=True
        )
        assert (down(same) == down(out)).all()


def test_quantize_gives_the_cpu_bits(rng):
    x = (rng.standard_normal((40, 300)) * 10.0 ** rng.integers(-3, 3, (40, 1))).astype(np.float32)
    for granularity in ((1, 128), (128, 128), (0, 0), (1, 0)):
        codes, scale, counts = deepgemm.quantize(up(x), granularity=granularity, counts=True)
        same, same_scale, same_counts = deepgemm.quantize(x, granularity=granularity, counts=True)
        assert (down(codes).view(np.uint8) == same.view(np.uint8)).all()
        assert (down(scale) == same_scale).all() and (down(counts) == same_counts).all()
        wide = down(deepgemm.dequantize(codes, scale, granularity=granularity))
        assert (wide == deepgemm.dequantize(same, same_scale, granularity=granularity)).all()


def test_packed_weights_and_linear(rng):
    a, b, sa, sb = operands(rng, 5, 128, 256, G128)
    weights = deepgemm.pack(up(b), up(sb), granularity=G128[1])
    assert weights.device == "cuda:0"
    packed = deepgemm.gemm(up(a), weights, up(sa), granularity=G128)
    plain = deepgemm.gemm(up(a), up(b), up(sa), up(sb), granularity=G128)
    assert (down(packed) == down(plain)).all()
    codes, scales = weights.unpack()
    assert (down(codes).view(np.uint8) == b.view(np.uint8)).all() and (down(scales) == sb).all()
    x = rng.standard_normal((3, 256)).astype(np.float32)
    codes, scale = deepgemm.quantize(x, granularity=G128[0])
    y = deepgemm.linear(up(x), weights, granularity=G128, out_dtype="float32")
    assert_close(down(y), *reference(codes, scale, b, sb, G128), SUM_ERROR)


def test_groups(rng):
    b = random_codes(rng, (3, 64, 256))
    sb = np.stack([random_scale(rng, (64, 256), G128[1]) for _ in range(3)])
    a = random_codes(rng, (10, 256))
    sa = random_scale(rng, a.shape, G128[0])
    given = [up(x) for x in (a, b, sa, sb)]
    ends = np.array([2, 2, 9], np.int32)
    options = {"granularity": G128, "out_dtype": "float32"}
    out = down(deepgemm.gemm(*given, groups=Groups("by_end", up(ends), padding="zero"), **options))
    for g, rows in ((0, slice(0, 2)), (2, slice(2, 9))):
        assert_close(out[rows], *reference(a[rows], sa[rows], b[g], sb[g], G128), SUM_ERROR)
    assert (out[9] == 0).all()
    # Explained with sizes on the host, wherever the operands are.
    text = deepgemm.explain(*given, groups=Groups("by_end", ends), **options)
    assert "balance " in text
    text = deepgemm.explain(*given, groups=Groups("by_end", up(ends)), **options)
    assert "kernel " in text and "balance " not in text


def test_plan(rng):
    shapes = [(8, 64, 128), (3, 32, 256)]
    given = [operands(rng, m, n, k, G128) for m, n, k in shapes]
    plan = deepgemm.GroupedGEMM(granularity=G128).prepare(2, shapes)
    out = [up(np.full((m, n), 77, np.float32)) for m, n, _ in shapes]
    on_gpu = [[up(x) for x in one] for one in given]
    a, b, sa, sb = zip(*on_gpu)
    deepgemm.GroupedGEMM(granularity=G128).forward(
        plan=plan, a_list=a, b_list=b, scales_a=sa, scales_b=sb, out_list=out
    )
    first = [down(x) for x in out]
    for (a, b, sa, sb), result in zip(given, first):
        assert_close(result, *reference(a, sa, b, sb, G128), SUM_ERROR)
    fresh = up(np.full((8, 64), 77, np.float32))
    addresses = up(np.array([fresh.data_ptr, out[1].data_ptr], np.int64))
    plan.update_device(m=up(np.array([5, 0], np.int32)), out=addresses)
    plan.run()
    result = down(fresh)
    assert (result[:5] == first[0][:5]).all() and (result[5:] == 77).all()
    assert "kernel " in plan.explain()


def test_devices_are_checked(rng):
    a, b, sa, sb = operands(rng, 4, 16, 128, G128)
    with pytest.raises(deepgemm.DeviceMismatch, match="scale_a is on cpu, but a is on cuda:0"):
        deepgemm.gemm(up(a), up(b), sa, up(sb), granularity=G128)
    with pytest.raises(deepgemm.DeviceMismatch, match="context is for cpu"):
        given = [up(x) for x in (a, b, sa, sb)]
        deepgemm.gemm(*given, granularity=G128, context=deepgemm.Context())
    for context in (deepgemm.Context("cuda", serial_launch=True, batch_invariant=True), None):
        out = deepgemm.gemm(*given, granularity=G128, context=context, out_dtype="float32")
        assert_close(down(out), *reference(a, sa, b, sb, G128), SUM_ERROR)
    with pytest.raises(deepgemm.DeviceMismatch, match="on cuda:0.*copy"):
        given[0].numpy()
    for function in (lambda x: deepgemm.convert(x, "float32"), lambda x: deepgemm.compare(x, x)):
        with pytest.raises(deepgemm.DeviceMismatch, match="works on the CPU"):
            function(given[0])
