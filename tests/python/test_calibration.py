# SPDX-License-Identifier: MIT
"""Statistics, and the choices of scales, smoothing and precisions, against NumPy."""

import itertools
import math
import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgemm
from conftest import BF16, E4M3, E5M2, blocks, expand
from deepgemm import ScaleChoice
from test_checkpoint import model, save  # noqa: F401 # a fixture

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def error(x, scale, granularity, dtype=E4M3, weights=1.0):
    """The squared error that quantising `x` with these scales makes."""
    codes, _ = deepgemm.quantize(x, granularity=granularity, scale=scale, dtype=dtype)
    exact = codes.astype(np.float64) * expand(scale, x.shape, granularity)
    wide = exact.astype(np.float32).astype(np.float64)
    return (weights * (wide - x) ** 2).sum()


# ---- scales of what is at hand -----------------------------------------------------------


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 100)),
    granularity=st.tuples(st.sampled_from([0, 1, 32]), st.sampled_from([0, 1, 32, 128])),
    dtype=st.sampled_from(sorted(LARGEST)),
    source=st.sampled_from([np.float32, np.float16, BF16]),
    rounding=st.sampled_from(["exact", "pow2_up", "pow2_down"]),
    pad=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_choosing(shape, granularity, dtype, source, rounding, pad, seed):
    """From the largest magnitude the scales are those of `quantize`; "mse" is never worse."""
    rng = np.random.default_rng(seed)
    wide = rng.standard_normal((shape[0], shape[1] + pad)).astype(source)
    x = wide[:, pad:]
    choice = ScaleChoice("amax", dtype=dtype, rounding=rounding)
    scale, quality = deepgemm.choose_scale(x, granularity=granularity, choice=choice)
    _, expected = deepgemm.quantize(x, granularity=granularity, dtype=dtype, rounding=rounding)
    assert scale.dtype == np.float32 and (scale == expected).all()
    assert quality.elements == x.size and quality.origin == "layer"
    assert rounding == "pow2_down" or quality.clipped == 0
    codes = E4M3 if dtype == "float8_e4m3fn" else E5M2
    made = error(x, scale, granularity, codes)
    norm = (x.astype(np.float64) ** 2).sum()
    assert quality.relative_error == pytest.approx(math.sqrt(made / norm), rel=1e-5, abs=1e-12)
    best, _ = deepgemm.choose_scale(
        x, granularity=granularity, choice=choice._replace(method="mse")
    )
    assert error(x, best, granularity, codes) <= made * (1 + 1e-6)


def test_percentile_and_kl(rng):
    x = rng.standard_normal((1, 1000)).astype(BF16)  # magnitudes that the histogram's bins hold
    magnitudes = np.sort(np.abs(x[0].astype(np.float32)))
    for percentile in (100.0, 99.0, 50.05):
        choice = ScaleChoice("percentile", percentile)
        scale, quality = deepgemm.choose_scale(x, granularity=(0, 0), choice=choice)
        rank = math.ceil(percentile / 100 * 1000)
        assert scale == magnitudes[rank - 1] / np.float32(448)
        assert quality.clipped <= 1 - percentile / 100
    x[0, 0] = 1e5  # an outlier that the divergence gives up
    scale, _ = deepgemm.choose_scale(x, granularity=(0, 0), choice=ScaleChoice("kl"))
    assert scale < np.float32(1e5) / np.float32(448)


def test_options_of_choosing(rng):
    x = rng.standard_normal((33, 70)).astype(np.float32)
    x[:, 35:] *= 1e-3
    weights = np.where(np.arange(70) < 35, 0.0, 1.0)
    choice = ScaleChoice("mse")
    plain, _ = deepgemm.choose_scale(x, granularity=(0, 0), choice=choice)
    out = np.zeros((1, 1), np.float32)
    weighed, quality = deepgemm.choose_scale(
        x, granularity=(0, 0), choice=choice, column_weights=weights, scale_out=out
    )
    assert weighed is out and quality.elements == 33 * 35
    assert error(x, out, (0, 0), weights=weights) < error(x, plain, (0, 0), weights=weights)
    powers, _ = deepgemm.choose_scale(
        x, granularity=(0, 32), phase=(0, 8), scale_dtype="float8_e8m0fnu",
        choice=ScaleChoice("mse", rounding="pow2_up"),
    )  # fmt: skip
    assert powers.dtype == ml_dtypes.float8_e8m0fnu and powers.shape == (1, blocks(70, 32, 8))
    zeros, quality = deepgemm.choose_scale(np.zeros((2, 2), np.float32), granularity=(1, 0))
    assert (zeros == 1).all() and quality.relative_error == 0


def test_refusals_of_choosing(rng):
    x = rng.standard_normal((4, 8)).astype(np.float32)
    with pytest.raises(ValueError, match='method is .best.: expected "amax" or'):
        deepgemm.choose_scale(x, granularity=(0, 0), choice=ScaleChoice("best"))
    with pytest.raises(deepgemm.InvalidArgument, match="percentile"):
        deepgemm.choose_scale(x, granularity=(0, 0), choice=ScaleChoice("percentile", 0.0))
    with pytest.raises(TypeError, match="expected a deepgemm.ScaleChoice"):
        deepgemm.choose_scale(x, granularity=(0, 0), choice="mse")
    with pytest.raises(deepgemm.InvalidArgument, match="column_weights has 7 elements: expected 8"):
        deepgemm.choose_scale(x, granularity=(0, 0), column_weights=np.ones(7))
    with pytest.raises(deepgemm.InvalidArgument, match="contiguous array of float64"):
        deepgemm.choose_scale(x, granularity=(0, 0), column_weights=np.ones(8, np.float32))
    with pytest.raises(deepgemm.UnsupportedType, match="float64: expected float32"):
        deepgemm.choose_scale(x.astype(np.float64), granularity=(0, 0))
    with pytest.raises(deepgemm.Error, match="block"):
        deepgemm.choose_scale(x, granularity=(-1, 0))
    with pytest.raises(deepgemm.Error):
        deepgemm.choose_scale(None, granularity=(0, 0))


# ---- statistics --------------------------------------------------------------------------


@given(
    batches=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    features=st.integers(1, 70),
    block=st.sampled_from([0, 1, 32, 128]),
    source=st.sampled_from([np.float32, np.float16, BF16]),
    seed=st.integers(0, 2**32 - 1),
)
def test_statistics(batches, features, block, source, seed):
    """What they know is what NumPy finds in all batches together, whoever saw them."""
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal((rows, features)).astype(source) for rows in batches]
    whole, other = (deepgemm.Statistics(block_cols=block, bits=7) for _ in range(2))
    merged = deepgemm.Statistics(block_cols=block, bits=7)
    for i, part in enumerate(parts):
        whole.observe("layer", part)
        (other if i % 2 else merged).observe("layer", part)
    merged.merge(other)
    x = np.concatenate(parts).astype(np.float64)
    for statistics in (whole, merged):
        o = statistics["layer"]
        assert (o.layer, o.features, o.tokens, o.batches) == ("layer", features, *x.shape[:1],
                                                              sum(rows > 0 for rows in batches))  # fmt: skip
        assert o.amax == np.abs(x).max(initial=0) and o.non_finite == 0
        assert (o.amaxes.numpy() == np.abs(x).max(axis=0, initial=0)).all()
        np.testing.assert_allclose(o.squares.numpy(), (x * x).sum(axis=0), rtol=1e-12)
        magnitudes, counts = (bins.numpy() for bins in statistics.histogram("layer"))
        assert counts.sum() == (x != 0).sum() and (np.diff(magnitudes) > 0).all()
        scale, quality = statistics.choose("layer")
        expected = np.float32(o.amax) / np.float32(448) if o.amax else np.float32(1)
        assert scale.shape == (1,) and scale.numpy()[0] == expected
        assert quality.origin == ("layer" if len(x) else "nothing")
    assert (whole.block_cols, whole.bits, list(whole), len(whole)) == (block, 7, ["layer"], 1)


def test_blocks_of_features(rng):
    statistics = deepgemm.Statistics(block_cols=32)
    x = rng.standard_normal((50, 96)).astype(BF16)
    statistics.observe("layer", x)
    scale, _ = statistics.choose("layer", granularity=(0, 32))
    expected = np.abs(x.astype(np.float32)).reshape(50, 3, 32).max(axis=(0, 2)) / np.float32(448)
    assert (scale.numpy() == expected).all()
    quality = statistics.judge("layer", scale, granularity=(0, 32))
    assert quality.clipped == 0 and 0 < quality.relative_error < 0.04
    tight = statistics.judge("layer", np.float32([1e-4]), dtype="float8_e4m3fn")
    assert tight.clipped == pytest.approx((np.abs(x.astype(float)) > 0.0464).mean(), abs=0.02)
    powers, _ = statistics.choose(
        "layer", choice=ScaleChoice("mse", rounding="pow2_up"), scale_dtype="float8_e8m0fnu"
    )
    assert powers.dtype == "float8_e8m0fnu" and powers.shape == (1,)
    for granularity, wrong in (((0, 48), "block_cols"), ((1, 0), "block_rows"), ((0, -1), "block")):
        with pytest.raises(deepgemm.Error, match=wrong):
            statistics.choose("layer", granularity=granularity)


def test_experts_that_met_nothing(rng):
    statistics = deepgemm.Statistics()
    for expert in range(3):
        rows = 9 if expert == 1 else 0
        x = rng.standard_normal((rows, 16)).astype(np.float32)
        statistics.observe(f"model.layers.0.mlp.experts.{expert}.up_proj", x)
    scale, quality = statistics.choose("model.layers.0.mlp.experts.2.up_proj")
    assert quality.origin == "siblings"
    assert scale.numpy() == statistics.choose("model.layers.0.mlp.experts.1.up_proj")[0].numpy()


def test_files_of_statistics(rng, tmp_path):
    statistics = deepgemm.Statistics(block_cols=1)
    x = rng.standard_normal((5, 7)).astype(np.float32)
    x[0, 0] = np.nan
    statistics.observe("a", x)
    statistics.observe("b", x[:, :3])
    statistics.save(tmp_path / "stats.safetensors")
    again = deepgemm.Statistics.load(tmp_path / "stats.safetensors")
    assert list(again) == ["a", "b"] and "a" in again and "c" not in again
    assert (again.block_cols, again.bits) == (1, 5) and again["a"].non_finite == 1
    assert (again["a"].squares.numpy() == statistics["a"].squares.numpy()).all()
    with pytest.raises(deepgemm.NotFound, match="c"):
        again["c"]
    with pytest.raises(deepgemm.NotFound):
        deepgemm.Statistics.load(tmp_path / "absent")
    (tmp_path / "bad").write_bytes(b"12345678")
    with pytest.raises(deepgemm.BadFile):
        deepgemm.Statistics.load(tmp_path / "bad")
    with pytest.raises(deepgemm.NotFound, match="No such file"):
        again.save(tmp_path / "no" / "folder")
    with pytest.raises(deepgemm.InvalidArgument, match="7"):
        again.observe("a", x[:, :3])
    with pytest.raises(deepgemm.InvalidArgument):
        again.merge(deepgemm.Statistics())
    with pytest.raises(ValueError, match="themselves"):
        again.merge(again)
    with pytest.raises(deepgemm.InvalidArgument, match="bits"):
        deepgemm.Statistics(bits=9)


def test_statistics_from_many_threads(rng):
    """Also while two merge crosswise."""
    x = rng.standard_normal((40, 64)).astype(np.float32)
    one, other = deepgemm.Statistics(), deepgemm.Statistics()

    def work(index):
        for _ in range(25):
            (one, other)[index % 2].observe("layer", x)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    threads += [
        threading.Thread(target=a.merge, args=(b,)) for a, b in ((one, other), (other, one))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    counts = one["layer"].batches + other["layer"].batches
    assert counts >= 200 and one["layer"].tokens == 40 * one["layer"].batches
    assert one["layer"].amax == np.abs(x).max()


# ---- from statistics to a checkpoint -----------------------------------------------------


def test_writing_scales(model, tmp_path, rng):  # noqa: F811
    folder, weights = model
    statistics = deepgemm.Statistics()
    up, down = (f"model.layers.0.mlp.{name}" for name in ("up_proj", "down_proj"))
    x = rng.standard_normal((64, 300)).astype(BF16)
    statistics.observe(up, x)
    reports, output = [], tmp_path / "scales.safetensors"
    options = dict(statistics=statistics, weights=ScaleChoice("mse"), granularity=(0, 0))
    deepgemm.write_scales(folder, output, report=reports.append, **options)
    written = {tensor.name: tensor.shape for tensor in deepgemm.Checkpoint(output)}
    assert written == {
        f"{up}.weight_scale": (1, 1), f"{up}.input_scale": (1,), f"{down}.weight_scale": (1, 1)
    }  # fmt: skip
    read = deepgemm.Checkpoint(output).read
    expected, quality = deepgemm.choose_scale(
        weights[f"{up}.weight"], granularity=(0, 0), choice=ScaleChoice("mse")
    )
    assert read(f"{up}.weight_scale").numpy() == expected
    assert read(f"{up}.input_scale").numpy() == statistics.choose(up)[0].numpy()
    by_layer = {report.layer: report for report in reports}
    assert by_layer[up].shape == (200, 300) and by_layer[up].weight == quality
    assert by_layer[up].input.elements == x.size and by_layer[down].input_scale == 0
    assert reports[-1].done == reports[-1].total == 2 * 200 * 300
    deepgemm.quantize_checkpoint(folder, tmp_path / "fp8", format="ct-tensor", scales=output)
    quantized = deepgemm.Checkpoint(tmp_path / "fp8")
    assert quantized.weight(f"{up}.weight").scale.numpy() == expected
    assert {(record.role, record.state) for record in quantized.scales()} >= {("weight", "loaded")}
    weighed = tmp_path / "weighed.safetensors"
    deepgemm.write_scales(folder, weighed, weigh_columns=True, keep=["down_proj"], **options)
    names = {tensor.name for tensor in deepgemm.Checkpoint(weighed)}
    assert names == {f"{up}.input_scale", f"{up}.weight_scale"}


def test_writing_scales_is_stopped(model, tmp_path):  # noqa: F811
    folder, _ = model
    output, statistics = tmp_path / "scales.safetensors", deepgemm.Statistics()
    with pytest.raises(deepgemm.Cancelled):
        deepgemm.write_scales(folder, output, report=lambda layer: False)
    with pytest.raises(ZeroDivisionError):
        deepgemm.write_scales(folder, output, report=lambda layer: 1 / 0)
    with pytest.raises(RuntimeError, match="in use by write_scales"):
        deepgemm.write_scales(
            folder, output, statistics=statistics,
            report=lambda layer: statistics.observe("x", np.zeros((1, 1), np.float32)),
        )  # fmt: skip
    statistics.observe("x", np.zeros((1, 1), np.float32))  # and not any longer
    with pytest.raises(deepgemm.Error, match="not in the statistics"):
        deepgemm.write_scales(folder, output, statistics=statistics, strict=True)
    with pytest.raises(deepgemm.InvalidArgument, match="needs options.statistics"):
        deepgemm.write_scales(folder, output, weigh_columns=True)
    with pytest.raises(TypeError, match="1: expected a str"):
        deepgemm.write_scales(folder, output, keep=[1])
    assert not output.exists()


# ---- smoothing ---------------------------------------------------------------------------


def test_smoothing(rng, model, tmp_path):  # noqa: F811
    x = rng.standard_normal((40, 300)).astype(np.float32)
    x[:, :3] *= 3e4  # beyond what one scale of FP8 can serve
    w = [rng.standard_normal((n, 300)).astype(BF16) for n in (20, 30)]
    factors, smoothing = deepgemm.choose_smoothing(x, w, granularity=deepgemm.TENSOR)
    assert factors.shape == (300,) and (np.frexp(factors)[0] == 0.5).all()
    assert smoothing.error_after < smoothing.error_before and 0 <= smoothing.strength <= 1
    assert factors[:3].min() >= factors[3:].max() and factors[:3].mean() > factors[3:].mean()
    channels = (np.arange(300) // 100).astype(np.int32)
    shared, _ = deepgemm.choose_smoothing(
        x, w, granularity=deepgemm.TENSOR, channels=channels, amaxes=np.abs(x).max(axis=0)
    )
    assert all(len(set(shared[channels == i])) == 1 for i in range(3))
    with pytest.raises(deepgemm.InvalidArgument, match="amaxes has 3 elements: expected 300"):
        deepgemm.choose_smoothing(x, w, granularity=deepgemm.TENSOR, amaxes=np.ones(3, np.float32))
    with pytest.raises(deepgemm.InvalidArgument):
        deepgemm.choose_smoothing(x, [], granularity=deepgemm.TENSOR)
    with pytest.raises(deepgemm.Error):
        deepgemm.choose_smoothing(x, [w[0][:, :5]], granularity=deepgemm.TENSOR)

    folder, weights = model
    up, norm = "model.layers.0.mlp.up_proj.weight", "model.layers.0.input_layernorm.weight"
    inverse = (1 / factors).astype(np.float32)
    folded = {up: (None, factors), norm: (inverse, None)}
    rounded = deepgemm.rescale_checkpoint(folder, tmp_path / "smooth", folded)
    read = deepgemm.Checkpoint(tmp_path / "smooth").read
    assert rounded == 0
    assert (read(up).numpy() == weights[up] * factors.astype(BF16)).all()
    assert (read(norm).numpy() == inverse.astype(BF16)).all()
    assert (read("lm_head.weight").numpy() == weights["lm_head.weight"]).all()
    thirds = np.full(200, 1 / 3, np.float32)
    many = deepgemm.rescale_checkpoint(
        folder, tmp_path / "smooth", {up: (thirds, None)}, replace=True
    )
    assert many > 0.9 * weights[up].size


def test_refusals_of_rescaling(model, tmp_path):  # noqa: F811
    folder, _ = model
    up, one = "model.layers.0.mlp.up_proj.weight", np.ones(200, np.float32)
    for factors, kind, message in (
        ({up: (one[:7], None)}, deepgemm.InvalidArgument, "7 elements: expected 200"),
        ({up: (None, one)}, deepgemm.InvalidArgument, "200 elements: expected 300"),
        ({up: (one.astype(np.float64), None)}, deepgemm.InvalidArgument, "array of float32"),
        ({"absent": (one, None)}, deepgemm.NotFound, "absent"),
        ({up: (one,)}, ValueError, "a pair"),
        ({up: ("x", None)}, TypeError, up),
        ({1: (one, None)}, TypeError, "1: expected a str"),
    ):
        with pytest.raises(kind, match=message):
            deepgemm.rescale_checkpoint(folder, tmp_path / "out", factors)
        assert not (tmp_path / "out").exists()
    deepgemm.rescale_checkpoint(folder, tmp_path / "out", {})
    assert (tmp_path / "out").exists()


def test_an_account_of_scales(tmp_path):
    weight = np.ones((200, 128), E4M3)
    save(tmp_path / "a.safetensors", {
        "a.weight": weight, "a.weight_scale_inv": np.full((2, 1), 0.5, np.float32),
        "b.weight": weight, "c.k_scale": np.full((1,), -1, np.float32),
    })  # fmt: skip
    records = {record.layer: record for record in
               deepgemm.Checkpoint(tmp_path / "a.safetensors").scales()}  # fmt: skip
    a, b = records["a"], records["b"]
    assert (a.role, a.state, a.name, a.stored_type) == (
        "weight", "loaded", "a.weight_scale_inv", "F32"
    )  # fmt: skip
    assert a.smallest == a.largest == 0.5 and a.granularity == (128, 128) and a.problem is None
    assert b.state == "missing" and b.name is None and b.problem


# ---- precisions --------------------------------------------------------------------------


def test_precisions(rng):
    """Off the best of all choices by less than the largest step saves, under any budget."""
    costs = [[(float(2 * i + 2), 0.0), (float(i + 1), rng.uniform(1, 9))] for i in range(7)]
    largest = max(layer[1][1] for layer in costs)
    for limit in range(28, 57):
        found = deepgemm.choose_precisions(costs, limit=limit)
        pairs = [layer[index] for layer, index in zip(costs, found.chosen)]
        assert found.bytes == sum(b for b, _ in pairs) <= limit
        assert found.error == pytest.approx(sum(e for _, e in pairs))
        best = min(
            sum(e for _, e in choice)
            for choice in itertools.product(*costs)
            if sum(b for b, _ in choice) <= limit
        )
        assert best - 1e-9 <= found.error <= best + largest
    assert deepgemm.choose_precisions(costs, limit=56).chosen == [0] * 7
    bounded = deepgemm.choose_precisions(costs, limit=0.0, budget="error")
    assert bounded.chosen == [0] * 7 and bounded.bytes == 56
    assert deepgemm.choose_precisions([], limit=0.0).chosen == []
    with pytest.raises(deepgemm.InvalidArgument, match="28"):
        deepgemm.choose_precisions(costs, limit=27.0)
    with pytest.raises(ValueError, match="2 pairs"):
        deepgemm.choose_precisions([*costs, [(1.0, 1.0)]], limit=99.0)
    with pytest.raises(ValueError, match='"bytes" or "error"'):
        deepgemm.choose_precisions(costs, limit=99.0, budget="time")
