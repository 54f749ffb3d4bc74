# SPDX-License-Identifier: MIT
"""Checkpoints, written by hand as safetensors and read, quantised and converted."""

import json

import numpy as np
import pytest

import deepgemm
from conftest import BF16, dequantized

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
