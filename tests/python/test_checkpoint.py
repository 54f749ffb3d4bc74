# SPDX-License-Identifier: MIT
"""Checkpoints, written by hand as safetensors and read, quantised and converted."""

import json
import os

import numpy as np
import pytest

import deepgemm
from conftest import BF16, E4M3, dequantized

NAMES = {"float32": "F32", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "int64": "I64"}


def save(path, tensors):
    header, data = {}, b""
    for name, array in tensors.items():
        part = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(part)],
        }
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.fixture
def model(tmp_path, rng):
    folder = tmp_path / "model"
    folder.mkdir()
    weights = {
        "model.layers.0.mlp.up_proj.weight": rng.standard_normal((200, 300)).astype(BF16),
        "model.layers.0.mlp.down_proj.weight": rng.standard_normal((300, 200)).astype(BF16),
        "model.layers.0.input_layernorm.weight": np.ones(300, BF16),
        "lm_head.weight": rng.standard_normal((50, 300)).astype(BF16),
        "steps": np.arange(3, dtype=np.int64),
    }
    save(folder / "model.safetensors", weights)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return folder, weights


def test_reading(model):
    folder, weights = model
    checkpoint = deepgemm.Checkpoint(folder)
    assert {t.name: t.shape for t in checkpoint} == {n: w.shape for n, w in weights.items()}
    types = {t.name: (t.stored_type, t.dtype) for t in checkpoint}
    assert types["lm_head.weight"] == ("BF16", "bfloat16") and types["steps"] == ("I64", None)
    head = checkpoint.read("lm_head.weight")
    wide = checkpoint.read("lm_head.weight", "float32")
    del checkpoint
    assert (head.numpy() == weights["lm_head.weight"]).all()
    assert wide.dtype == "float32" and (wide.numpy() == weights["lm_head.weight"]).all()


def test_refusals(model, tmp_path):
    folder, _ = model
    checkpoint = deepgemm.Checkpoint(str(folder / "model.safetensors"))
    with pytest.raises(deepgemm.NotFound, match="nothing.weight"):
        checkpoint.read("nothing.weight")
    with pytest.raises(deepgemm.UnsupportedType, match="I64"):
        checkpoint.read("steps")
    with pytest.raises(LookupError, match="no such file|nowhere"):
        deepgemm.Checkpoint(tmp_path / "nowhere")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\xff" * 100)
    with pytest.raises(deepgemm.BadFile):
        deepgemm.Checkpoint(broken)
    with pytest.raises(TypeError):
        deepgemm.Checkpoint(5)
    with pytest.raises(ValueError, match="format is 'gguf'"):
        deepgemm.quantize_checkpoint(folder, tmp_path / "out", format="gguf")
    for write in (deepgemm.quantize_checkpoint, deepgemm.write_scales):
        with pytest.raises(TypeError, match="keep is 'down_proj'"):
            write(folder, tmp_path / "out", keep="down_proj")
    assert not (tmp_path / "out").exists()


def test_names_that_c_would_cut(model, tmp_path):
    folder, _ = model
    checkpoint, out = deepgemm.Checkpoint(folder), tmp_path / "out"
    statistics, x = deepgemm.Statistics(), np.ones((2, 4), np.float32)
    statistics.observe("a", x)
    kernel = deepgemm.kernels()[0].name
    for argument, call in (
        ("name", lambda: checkpoint.read("steps\0junk")),
        ("name", lambda: checkpoint.weight("lm_head.weight\0junk")),
        ("name", lambda: deepgemm.Context().why_not(kernel + "\0junk")),
        ("kernel", lambda: deepgemm.Context(kernel=kernel + "\0junk")),
        ("isa", lambda: deepgemm.Context(isa="generic\0junk")),
        ("device", lambda: deepgemm.Context("cpu\0junk")),
        ("overflow", lambda: deepgemm.convert(x, "float16", overflow="ieee\0junk")),
        ("layer", lambda: statistics.observe("a\0b", x)),
        ("layer", lambda: statistics["a\0b"]),
        ("layer", lambda: statistics.choose("a\0b")),
        ("layer", lambda: statistics.judge("a\0b", np.ones((1, 1), np.float32))),
        ("layer", lambda: statistics.histogram("a\0b")),
        ("path", lambda: statistics.save(f"{out}\0junk")),
        ("path", lambda: deepgemm.Statistics.load(f"{out}\0junk")),
        ("path", lambda: deepgemm.Checkpoint(f"{folder}\0junk")),
        ("path", lambda: deepgemm.Checkpoint(os.fsencode(folder) + b"\0junk")),
        ("keep", lambda: deepgemm.quantize_checkpoint(folder, out, keep=["up\0junk"])),
        ("input", lambda: deepgemm.quantize_checkpoint(f"{folder}\0junk", out)),
        ("output", lambda: deepgemm.quantize_checkpoint(folder, f"{out}\0junk")),
        ("scales", lambda: deepgemm.quantize_checkpoint(folder, out, scales="x\0junk")),
        ("format", lambda: deepgemm.quantize_checkpoint(folder, out, format="block\0junk")),
        ("factors", lambda: deepgemm.rescale_checkpoint(folder, out, {"steps\0": (None, None)})),
        ("output", lambda: deepgemm.rescale_checkpoint(folder, f"{out}\0junk", {})),
        ("output", lambda: deepgemm.write_scales(folder, f"{out}\0junk")),
    ):
        with pytest.raises(deepgemm.InvalidArgument, match=rf"^{argument} is .*zero byte"):
            call()
    assert not out.exists() and list(statistics) == ["a"]
    for bad in (1, None):
        with pytest.raises(TypeError, match=f"name is {bad}: expected a str"):
            checkpoint.read(bad)


def test_names_that_are_not_utf8(model, tmp_path):
    folder, weights = model
    with pytest.raises(deepgemm.NotFound, match=r"nowhere\\xff"):
        deepgemm.Checkpoint(tmp_path / "nowhere\udcff")
    file = os.fsencode(tmp_path) + b"/\xff.safetensors"
    with open(file, "wb") as copy:
        copy.write((folder / "model.safetensors").read_bytes())
    for path in (file, os.fsdecode(file)):
        checkpoint = deepgemm.Checkpoint(path)
        assert {t.name: t.file for t in checkpoint} == dict.fromkeys(weights, "\udcff.safetensors")
    data = (folder / "model.safetensors").read_bytes()
    (tmp_path / "latin1.safetensors").write_bytes(data.replace(b'"steps"', b'"st\xe9ps"'))
    with pytest.raises(deepgemm.BadFile, match="latin1.safetensors.* not UTF-8"):
        deepgemm.Checkpoint(tmp_path / "latin1.safetensors")


def test_problems_with_long_names(tmp_path):
    # The message about a scale cuts a name of more than 100 bytes, here within a letter.
    name = "x" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 100 + ".weight"
    save(tmp_path / "a.safetensors", {name: np.ones((2, 2), E4M3)})
    (record,) = deepgemm.Checkpoint(tmp_path / "a.safetensors").scales()
    assert record.layer == name.removesuffix(".weight")
    assert record.state == "missing" and "without a scale" in record.problem


def test_parts_that_share_a_scale(tmp_path, rng):
    weight = rng.uniform(-1, 1, (64, 96)).astype(np.float32)
    weight[:32] *= 1e-5
    (tmp_path / "in").mkdir()
    save(tmp_path / "in" / "model.safetensors", {"a.gate_up_proj.weight": weight})
    seen = []
    for format in ("tensor", "channel"):
        deepgemm.quantize_checkpoint(
            tmp_path / "in", tmp_path / format, format=format, report=seen.append
        )
    ratio = np.abs(weight[32:]).max() / float(np.abs(weight[:32]).max())
    assert seen[0].part_ratio == pytest.approx(ratio) and seen[0].relative_error > 0.1
    assert seen[1].part_ratio == 0 and seen[1].relative_error < 0.04


def test_quantize_and_convert(model, tmp_path):
    folder, weights = model
    seen = []
    matches = deepgemm.quantize_checkpoint(
        folder, tmp_path / "fp8", keep=["down_proj", "re:nothing"], report=seen.append
    )
    assert matches == {"down_proj": 1, "re:nothing": 0}
    by_name = {r.name: r for r in seen}
    assert set(by_name) == set(weights) and seen[-1].done == seen[-1].total
    assert by_name["model.layers.0.mlp.up_proj.weight"].action == "quantized"
    assert by_name["lm_head.weight"].action == "kept" and by_name["lm_head.weight"].kept_because
    name = "model.layers.0.mlp.up_proj.weight"
    codes, scale, granularity = deepgemm.Checkpoint(tmp_path / "fp8").weight(name)
    assert granularity == (128, 128) and scale.shape == (2, 3)
    expected, expected_scale = deepgemm.quantize(weights[name], granularity=granularity)
    assert (codes.numpy().view(np.uint8) == expected.view(np.uint8)).all()
    assert (scale.numpy() == expected_scale).all()
    error = dequantized(codes.numpy(), scale.numpy(), granularity) - weights[name].astype(float)
    relative = np.linalg.norm(error) / np.linalg.norm(weights[name].astype(float))
    assert by_name[name].relative_error == pytest.approx(relative, rel=1e-3)
    kept = deepgemm.Checkpoint(tmp_path / "fp8").weight("model.layers.0.mlp.down_proj.weight")
    assert kept.scale is None and kept.weight.dtype == "bfloat16"

    with pytest.raises(deepgemm.Error, match="fp8"):
        deepgemm.quantize_checkpoint(folder, tmp_path / "fp8")
    deepgemm.convert_checkpoint(tmp_path / "fp8", tmp_path / "ct", format="ct-block")
    same = deepgemm.Checkpoint(tmp_path / "ct").weight(name)
    assert (same.weight.numpy().view(np.uint8) == expected.view(np.uint8)).all()
    assert (same.scale.numpy() == expected_scale).all()


def test_reports_may_stop_or_raise(model, tmp_path):
    folder, _ = model
    with pytest.raises(deepgemm.Cancelled):
        deepgemm.quantize_checkpoint(folder, tmp_path / "a", report=lambda r: False)

    def fails(report):
        raise KeyError(report.name)

    with pytest.raises(KeyError):
        deepgemm.quantize_checkpoint(folder, tmp_path / "b", report=fails)
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()
    deepgemm.quantize_checkpoint(folder, tmp_path / "b")
