# SPDX-License-Identifier: MIT
"""Products of NumPy operands against the oracle."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgemm
from conftest import (
    BF16,
    E4M3,
    E5M2,
    E8M0,
    assert_close,
    blocks,
    random_codes,
    random_scale,
    reference,
)

RECIPES = {
    "tensor": deepgemm.TENSOR,
    "token x channel": deepgemm.TOKEN_CHANNEL,
    "1x128 . 128x128": deepgemm.BLOCK128,
    "32x32 . 32x32": deepgemm.BLOCK32,
    "1x32 . 1x32": deepgemm.MX,
}


def operands(rng, m, n, k, granularity, **options):
    a, b = random_codes(rng, (m, k)), random_codes(rng, (n, k))
    scale_a = random_scale(rng, a.shape, granularity[0], **options)
    scale_b = random_scale(rng, b.shape, granularity[1], **options)
    return a, b, scale_a, scale_b


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float16"])
def test_recipes(rng, recipe, out_dtype):
    granularity = RECIPES[recipe]
    a, b, scale_a, scale_b = operands(rng, 33, 200, 300, granularity)
    scale_a = scale_a / np.float32(4096)  # so that float16 holds the results
    out = deepgemm.gemm(a, b, scale_a, scale_b, granularity=granularity, out_dtype=out_dtype)
    assert type(out) is np.ndarray and out.dtype.name == out_dtype
    expected, magnitude = reference(a, scale_a, b, scale_b, granularity)
    overflows = np.abs(expected) > 65000 if out_dtype == "float16" else np.zeros(out.shape, bool)
    assert_close(out[~overflows], expected[~overflows], magnitude[~overflows])


def test_forward_as_in_the_article(rng):
    a, b, scale_a, scale_b = operands(rng, 64, 96, 128, deepgemm.BLOCK32)
    scale_a = scale_a / np.float32(4096)
    assert scale_a.shape == (64 // 32, 128 // 32) and scale_b.shape == (96 // 32, 128 // 32)
    out = deepgemm.forward(A_q=a, B_q=b, scale_a=scale_a, scale_b=scale_b, out_dtype=np.float16)
    assert out.dtype == np.float16
    assert_close(out, *reference(a, scale_a, b, scale_b, deepgemm.BLOCK32))


def test_forward_never_guesses(rng):
    """A scale that would fit another granularity is refused unless that one is asked for."""
    a, b = random_codes(rng, (128, 128)), random_codes(rng, (128, 128))
    one = np.ones((1, 1), np.float32)
    with pytest.raises(deepgemm.InvalidArgument, match=r"rows is 1.*need 4"):
        deepgemm.forward(A_q=a, B_q=b, scale_a=one, scale_b=one, out_dtype="float32")
    out = deepgemm.forward(
        A_q=a, B_q=b, scale_a=one, scale_b=one, out_dtype="float32",
        granularity=((128, 128), (128, 128)),
    )  # fmt: skip
    assert_close(out, *reference(a, one, b, one, ((128, 128), (128, 128))))


sizes = st.integers(0, 70)


@given(data=st.data())
def test_any_product(data):
    """Random shapes, granularities, phases, types, layouts and padding of every operand."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n, k = draw(sizes), draw(sizes), draw(st.integers(0, 300))
    block = st.sampled_from([0, 1, 3, 32, 128])
    granularity = ((draw(block), draw(block)), (draw(block), draw(block)))
    phases = [
        tuple(draw(st.integers(0, size - 1)) if size else 0 for size in pair)
        for pair in granularity
    ]
    scale_types = [draw(st.sampled_from([np.float32, E8M0])) for _ in range(2)]
    arrays = []
    for shape, dtype in (((m, k), draw(st.sampled_from([E4M3, E5M2]))), ((n, k), E4M3)):
        pad = draw(st.integers(0, 5))
        every = draw(st.sampled_from([1, 1, 3]))  # rows
        wide = random_codes(rng, (shape[0] * every, shape[1] + pad), dtype)
        arrays.append(wide[::every, draw(st.integers(0, pad)) :][:, : shape[1]])
    scales = []
    for array, pair, phase, dtype in zip(arrays, granularity, phases, scale_types):
        scale = random_scale(rng, array.shape, pair, dtype, phase)
        layout = draw(st.sampled_from(["row", "column", "padded", "sparse"]))
        if layout == "column":
            scale = np.asfortranarray(scale)
        elif layout == "padded":
            wide = np.empty((scale.shape[0], scale.shape[1] + 3), scale.dtype)
            wide.view(np.uint8)[:] = 0xFF  # NaN
            wide[:, : scale.shape[1]] = scale
            scale = wide[:, : scale.shape[1]]
        elif layout == "sparse":
            scale = scale.repeat(2, 0).repeat(3, 1)[::2, ::3]
        scales.append(scale)
    dtype = draw(st.sampled_from([np.float32, BF16]))
    store = np.full((m, n + 4), 77, dtype)
    out = deepgemm.gemm(
        arrays[0], arrays[1], scales[0], scales[1], granularity=granularity, out=store[:, 2 : n + 2],
        phase_a=phases[0], phase_b=phases[1],
    )  # fmt: skip
    assert np.shares_memory(out, store) or out.size == 0
    expected, magnitude = reference(
        arrays[0], scales[0], arrays[1], scales[1], granularity, phases[0], phases[1]
    )
    assert_close(out, expected, magnitude)
    assert (store[:, :2] == 77).all() and (store[:, n + 2 :] == 77).all()


def test_leading_dimensions_are_rows(rng):
    a, b, scale_a, scale_b = operands(rng, 24, 40, 256, deepgemm.BLOCK128)
    flat = deepgemm.gemm(a, b, scale_a, scale_b, granularity=deepgemm.BLOCK128)
    deep = deepgemm.gemm(
        a.reshape(2, 3, 4, 256), b, scale_a.reshape(2, 3, 4, 2), scale_b,
        granularity=deepgemm.BLOCK128,
    )  # fmt: skip
    assert deep.shape == (2, 3, 4, 40)
    assert (deep.reshape(24, 40) == flat).all()
    with pytest.raises(deepgemm.InvalidArgument, match="no single stride"):
        deepgemm.gemm(
            a.reshape(2, 12, 256)[:, :5], b, scale_a.reshape(2, 12, 2)[:, :5], scale_b,
            granularity=deepgemm.BLOCK128,
        )  # fmt: skip


def test_bias_alpha_beta_and_c(rng):
    a, b, scale_a, scale_b = operands(rng, 9, 31, 64, deepgemm.BLOCK32)
    bias = rng.standard_normal(31).astype(BF16)
    c = rng.standard_normal((9, 31)).astype(np.float32)
    product, magnitude = reference(a, scale_a, b, scale_b, deepgemm.BLOCK32)
    expected = 0.5 * product - 2.0 * c + bias.astype(np.float64)
    options = dict(granularity=deepgemm.BLOCK32, bias=bias, alpha=0.5, beta=-2.0)
    out = deepgemm.gemm(a, b, scale_a, scale_b, c=c, out_dtype="float32", **options)
    assert_close(out, expected, magnitude + np.abs(expected))
    assert deepgemm.gemm(a, b, scale_a, scale_b, c=c, out=c, **options) is c  # in place
    assert (c == out).all()


def test_fp8_result(rng):
    a, b, scale_a, scale_b = operands(rng, 16, 48, 96, deepgemm.BLOCK32)
    options = dict(granularity=deepgemm.BLOCK32, out_dtype=E4M3)
    with pytest.raises(deepgemm.UnsupportedScale, match="scale_d"):
        deepgemm.gemm(a, b, scale_a, scale_b, **options)
    step = np.array([2.0**14], np.float32)
    out = deepgemm.gemm(a, b, scale_a, scale_b, scale_out=step, **options)
    exact = deepgemm.gemm(a, b, scale_a, scale_b, granularity=deepgemm.BLOCK32, out_dtype="float32")
    expected, _ = deepgemm.quantize(exact, granularity=(0, 0), scale=step)
    assert out.dtype == E4M3 and (out.view(np.uint8) == expected.view(np.uint8)).all()


@given(
    n=st.integers(1, 150),
    k=st.integers(0, 300),
    recipe=st.sampled_from(sorted(RECIPES)),
    seed=st.integers(0, 2**32 - 1),
)
def test_packed_weights_give_the_same_bits(n, k, recipe, seed):
    granularity = RECIPES[recipe]
    rng = np.random.default_rng(seed)
    a, b, scale_a, scale_b = operands(rng, 5, n, k, granularity)
    weights = deepgemm.pack(b, scale_b, granularity=granularity[1])
    assert weights.shape == (n, k) and weights.granularity == granularity[1]
    plain = deepgemm.gemm(a, b, scale_a, scale_b, granularity=granularity, out_dtype="float32")
    packed = deepgemm.gemm(a, weights, scale_a, granularity=granularity, out_dtype="float32")
    constant = deepgemm.gemm(
        a, b, scale_a, scale_b, granularity=granularity, out_dtype="float32", b_is_constant=True
    )
    assert (plain == packed).all() and (plain == constant).all()
    codes, scales = weights.unpack()
    assert (codes.numpy().view(np.uint8) == b.view(np.uint8)).all()
    assert (scales.numpy() == scale_b).all()


def test_packed_weights_say_their_granularity(rng):
    a, b, scale_a, scale_b = operands(rng, 5, 64, 128, deepgemm.BLOCK128)
    weights = deepgemm.pack(b, scale_b, granularity=(128, 128))
    with pytest.raises(deepgemm.UnsupportedScale, match=r"\(32, 32\).*\(128, 128\)"):
        deepgemm.forward(A_q=a, B_q=weights, scale_a=scale_a, out_dtype="float32")
    with pytest.raises(deepgemm.InvalidArgument, match="scale_b"):
        deepgemm.gemm(a, weights, scale_a, scale_b, granularity=deepgemm.BLOCK128)


def test_prepare_explain_workspace(rng):
    a, b, scale_a, scale_b = operands(rng, 5, 64, 128, deepgemm.BLOCK128)
    options = dict(granularity=deepgemm.BLOCK128, out_dtype="float32")
    assert deepgemm.prepare(a, b, scale_a, scale_b, **options) is None
    text = deepgemm.explain(a, b, scale_a, scale_b, **options)
    chosen = text.splitlines()
    assert any(line.startswith("kernel ") for line in chosen)
    assert any(kernel.name in text for kernel in deepgemm.kernels())
    need = deepgemm.workspace_bytes(a, b, scale_a, scale_b, **options)
    scratch = deepgemm.empty([max(need, 1)], "uint8")
    out = deepgemm.gemm(a, b, scale_a, scale_b, workspace=scratch, **options)
    assert (out == deepgemm.gemm(a, b, scale_a, scale_b, **options)).all()
    if need > 1:
        with pytest.raises(deepgemm.InvalidArgument, match="workspace_bytes"):
            deepgemm.gemm(
                a, b, scale_a, scale_b, workspace=deepgemm.empty([need - 1], "uint8"), **options
            )


def test_contexts(rng):
    context = deepgemm.Context("cpu", threads=1, isa="generic")
    assert (context.device, context.architecture, context.units) == ("cpu", "generic", 1)
    a, b, scale_a, scale_b = operands(rng, 5, 64, 128, deepgemm.BLOCK128)
    options = dict(granularity=deepgemm.BLOCK128, out_dtype="float32", context=context)
    out = deepgemm.gemm(a, b, scale_a, scale_b, **options)
    assert_close(out, *reference(a, scale_a, b, scale_b, deepgemm.BLOCK128))
    assert "generic" in deepgemm.explain(a, b, scale_a, scale_b, **options)
    usable = [kernel for kernel in deepgemm.kernels() if context.why_not(kernel.name) is None]
    assert usable and {kernel.architecture for kernel in usable} == {"generic"}
    with pytest.raises(deepgemm.NotFound):
        context.why_not("no such kernel")
    forced = deepgemm.Context(kernel=usable[0].name)
    assert (deepgemm.gemm(a, b, scale_a, scale_b, **{**options, "context": forced}) == out).all()
    weights = deepgemm.pack(b, scale_b, granularity=(128, 128), context=context)
    del context, options  # the weights keep their context
    assert (deepgemm.gemm(a, weights, scale_a, granularity=deepgemm.BLOCK128, context=None,
                          out_dtype="float32").shape == (5, 64))  # fmt: skip


REFUSED = {
    "uint8 without a type": (
        lambda o: dict(a=o["a"].view(np.uint8)), deepgemm.UnsupportedType, "deepgemm.tensor"),
    "FNUZ codes": (
        lambda o: dict(a=o["a"].view(np.uint8).view(ml_dtypes.float8_e4m3fnuz)),
        deepgemm.UnsupportedType, "float8_e4m3fnuz"),
    "no array": (lambda o: dict(a="text"), TypeError, "a is a .*str"),
    "float64": (lambda o: dict(a=o["a"].astype(np.float64)), deepgemm.UnsupportedType, "float64"),
    "codes in 16 bits": (
        lambda o: dict(a=o["a"].astype(np.float16)), deepgemm.UnsupportedType, "a.dtype is f16"),
    "one dimension": (lambda o: dict(a=o["a"][0]), deepgemm.InvalidArgument, "a has 1 dimensions"),
    "K of A and B": (
        lambda o: dict(a=o["a"][:, :100]), deepgemm.InvalidArgument, "100"),
    "not contiguous along K": (
        lambda o: dict(b=np.asfortranarray(o["b"])), deepgemm.InvalidArgument, "last dimension"),
    "too few scales": (
        lambda o: dict(scale_a=o["scale_a"][:, :1]), deepgemm.InvalidArgument,
        "scale_a.cols is 1.*need 2"),
    "no scale": (lambda o: dict(scale_a=None), deepgemm.UnsupportedScale, "scale_a"),
    "scales in float16": (
        lambda o: dict(scale_a=o["scale_a"].astype(np.float16)), deepgemm.UnsupportedScale,
        "scale_a.dtype is f16"),
    "a flat array of block scales": (
        lambda o: dict(scale_b=o["scale_b"].reshape(-1)), deepgemm.InvalidArgument,
        "scale_b has one dimension"),
    "the shape of out": (
        lambda o: dict(out=np.empty((5, 63), np.float32)), deepgemm.InvalidArgument, "63"),
    "out in read-only memory": (
        lambda o: dict(out=o["read_only"]), deepgemm.InvalidArgument, "out is read-only"),
    "out over an input": (
        lambda o: dict(out=o["a"].view(np.float32)[:, :16], b=o["b"][:16], scale_b=o["scale_b"]),
        deepgemm.InvalidArgument, "overlap"),
    "granularity": (lambda o: dict(granularity=128), TypeError, "granularity is 128"),
    "a pair in it": (lambda o: dict(granularity=((1, 128), 128)), TypeError, r"granularity\[1\]"),
    "a negative block": (
        lambda o: dict(granularity=((1, -1), (128, 128))), deepgemm.UnsupportedScale, "-1"),
    "a phase outside its block": (
        lambda o: dict(phase_a=(0, 128)), deepgemm.InvalidArgument, "128"),
    "out_dtype": (lambda o: dict(out_dtype="int3"), TypeError, "out_dtype is 'int3'"),
    "an integer out_dtype": (
        lambda o: dict(out_dtype="int32"), deepgemm.UnsupportedType, "int32"),
    "accumulation": (lambda o: dict(accumulation="loose"), ValueError, "precise"),
    "context": (lambda o: dict(context="cpu"), TypeError, "deepgemm.Context"),
    "stream": (lambda o: dict(stream="s"), TypeError, "stream is 's'"),
    "bias": (lambda o: dict(bias=np.ones(63, np.float32)), deepgemm.InvalidArgument, "bias"),
    "an alpha that is no number": (lambda o: dict(alpha="1"), TypeError, "number"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(rng, case):
    """Each names what was wrong, writes nothing, and leaves everything usable."""
    change, error, text = REFUSED[case]
    a, b, scale_a, scale_b = operands(rng, 5, 64, 256, deepgemm.BLOCK128)
    out = np.full((5, 64), 77, np.float32)
    read_only = out.copy()
    read_only.setflags(write=False)
    good = dict(a=a, b=b, scale_a=scale_a, scale_b=scale_b, out=out, granularity=deepgemm.BLOCK128)
    bad = {**good, **change({**good, "read_only": read_only})}
    if "out_dtype" in bad:
        del bad["out"]
    with pytest.raises(error, match=text) as raised:
        deepgemm.gemm(**bad)
    if issubclass(error, deepgemm.Error):
        assert raised.value.status.startswith("DG_")
    assert (out == 77).all() and (read_only == 77).all()
    assert deepgemm.gemm(**good) is out and not (out == 77).any()


def test_empty_products():
    zero = np.zeros((0, 64), E4M3)
    b, scale_b = np.ones((32, 64), E4M3), np.ones((1, 2), np.float32)
    out = deepgemm.forward(
        A_q=zero, B_q=b, scale_a=np.ones((0, 2), np.float32), scale_b=scale_b, out_dtype="float32"
    )
    assert out.shape == (0, 32)
    out = deepgemm.forward(
        A_q=np.ones((4, 0), E4M3), B_q=np.ones((3, 0), E4M3), scale_a=np.ones((1, 0), np.float32),
        scale_b=np.ones((1, 0), np.float32), out_dtype="float32",
    )  # fmt: skip
    assert out.shape == (4, 3) and (out == 0).all()


def test_scale_counts():
    assert [blocks(576, 128), blocks(0, 128), blocks(5, 0), blocks(64, 128, 100)] == [5, 0, 1, 2]
