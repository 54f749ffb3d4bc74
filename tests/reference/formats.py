# SPDX-License-Identifier: MIT
"""Files that the tool writes, read by the reference implementations of their formats.

A small Llama model with random weights is quantised into every layout. What `transformers`,
`compressed-tensors` and Model Optimizer make of it must be the product of each code and its scale,
and nothing may be missing or unexpected. Model Optimizer also quantises the model itself: the tool's
checkpoint must have the same tensors, and must read that one. `make reference` calls this with the
tool's path, in an environment that has the packages of scripts/requirements-reference.txt.
"""

import copy
import importlib.metadata
import json
import pathlib
import subprocess
import sys
import tempfile

import modelopt.torch.quantization as modelopt
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor
from safetensors.torch import load_file, save_file

BLOCK = 128
COMPRESSED = ["channel", "ct-tensor", "ct-block", "ct-mxfp8"]
# Layout: what Model Optimizer calls it.
MODELOPT = {
    "modelopt": "FP8_DEFAULT_CFG",
    "modelopt-channel": "FP8_PER_CHANNEL_PER_TOKEN_CFG",
    "modelopt-block": "FP8_2D_BLOCKWISE_WEIGHT_ONLY_CFG",
    "modelopt-mxfp8": "MXFP8_DEFAULT_CFG",
}


def make_model(folder, hidden, width, heads, kv_heads):
    """A Llama of two layers, saved as transformers saves it."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=width, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=100,
        max_position_embeddings=64, tie_word_embeddings=False, dtype=torch.bfloat16)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    return model


def expand(scale, shape, block):
    """The scale of each weight, by the definition of its granularity."""
    rows, cols = block
    scale = scale.double()
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(shape)
    scale = scale.reshape(scale.shape[0], -1)  # also of [n, 1, k, 1], as Model Optimizer has blocks
    return scale.repeat_interleave(rows or shape[0], 0)[:shape[0]].repeat_interleave(
        cols or shape[1], 1)[:, :shape[1]]


def stored_values(folder):
    """Code times scale, in double precision, for each FP8 weight in a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    values = {}
    for name, codes in tensors.items():
        if codes.dtype != torch.float8_e4m3fn:
            continue
        module = name.removesuffix(".weight")
        scale = next(tensors[module + end] for end in (".weight_scale_inv", ".weight_scale", ".scale")
                     if module + end in tensors)
        if scale.dtype == torch.uint8:
            scale = 2.0 ** (scale.double() - 127)
        elif scale.dtype == torch.float8_e8m0fnu:
            scale = scale.float()
        rows, cols = codes.shape
        if scale.numel() == 1:
            block = (0, 0)
        elif scale.numel() == rows:
            block = (1, 0)
        elif scale.shape[0] == rows:
            block = (1, 32)
        else:
            block = (BLOCK, BLOCK)
        values[module] = codes.double() * expand(scale, codes.shape, block)
    return values


def expect_equal(what, module, value, expected, rounding=0.0):
    """Within `rounding` of each value, and nothing that is not a number."""
    difference = (value.double() - expected).abs()
    if not bool((difference <= rounding * expected.abs()).all()):
        sys.exit(f"{what}: {module} differs by {difference.max().item():g}")


def check_compressor(folder, layout):
    """The package's own decompressor, fed with each layer's tensors."""
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    parsed = QuantizationConfig.model_validate(config)
    scheme = parsed.config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(parsed.format)
    tensors = load_file(folder / "model.safetensors")
    expected = stored_values(folder)
    for module, values in expected.items():
        layer = {end: tensors[f"{module}.{end}"] for end in ("weight", "weight_scale")}
        weight = compressor.decompress(layer, scheme)["weight"]
        # FP32 products are rounded once; the exponents' are exact in BF16.
        expect_equal(layout, module, weight, values, 2.0 ** -24)
    print(f"compressed-tensors reads {layout}: {len(expected)} layers, equal")


def check_model(folder, layout, input_scale=None, **options):
    """The whole model, loaded by transformers; widened, or with static scales in FP8."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[kind]:
            sys.exit(f"{layout}: {kind}: {sorted(report[kind])[:5]}")
    modules = dict(model.named_modules())
    expected = stored_values(folder)
    for module, values in expected.items():
        weight = modules[module].weight
        if (weight.dtype == torch.float8_e4m3fn) != (input_scale is not None):
            sys.exit(f"{layout}: transformers has {module} in {weight.dtype}")
        if input_scale is not None:
            weight = weight.double() * modules[module].weight_scale.double()
            if modules[module].input_scale.item() != input_scale:
                sys.exit(f"{layout}: {module} has another input scale")
        expect_equal(layout, module, weight, values, 2.0 ** -24)
    print(f"transformers reads {layout}: {len(expected)} layers, equal")


def dequantized_by_modelopt(layout, codes, scale):
    """By the package's own classes, in FP32."""
    if layout == "modelopt-mxfp8":
        return MXFP8QTensor(codes.shape, torch.float32, codes).dequantize(scale=scale)
    stored = FP8QTensor(codes.shape, torch.float32, codes)
    blocks = {-1: BLOCK, -2: BLOCK} if layout == "modelopt-block" else None
    scale = scale.reshape(-1, 1) if layout == "modelopt-channel" else scale
    return stored.dequantize(scale=scale, block_sizes=blocks)


def check_modelopt(place, model, layout, quantize, tool):
    """Against what Model Optimizer makes of the same model: both ways."""
    theirs = place / f"theirs-{layout}"
    quantized = copy.deepcopy(model)
    modelopt.quantize(quantized, getattr(modelopt, MODELOPT[layout]),
                      lambda m: m(torch.arange(64).reshape(1, 64)))
    export_hf_checkpoint(quantized, dtype=torch.bfloat16, export_dir=theirs)
    their_tensors = load_file(theirs / "model.safetensors")
    scales = place / f"{layout}-inputs.safetensors"
    save_file({name: value for name, value in their_tensors.items()
               if name.endswith(".input_scale")}, scales)
    static = ["--scales", scales] if layout == "modelopt" else []
    ours = quantize("even", layout, *static)
    tensors = load_file(ours / "model.safetensors")
    if static:  # `tensor`, for which there is no reader without a GPU, has the same bytes
        plain = (quantize("even", "tensor", *static) / "model.safetensors").read_bytes()
        if plain != (ours / "model.safetensors").read_bytes():
            sys.exit("tensor: other tensors than modelopt has")

    if tensors.keys() != their_tensors.keys():
        sys.exit(f"{layout}: other tensors: {sorted(tensors.keys() ^ their_tensors.keys())[:5]}")
    for name, value in tensors.items():
        other = their_tensors[name]
        if value.dtype != other.dtype or value.squeeze().shape != other.squeeze().shape:
            sys.exit(f"{layout}: {name} is {value.dtype} {value.shape}, not "
                     f"{other.dtype} {other.shape}")
    for file, path in (("hf_quant_config.json", "quantization"),
                       ("config.json", "quantization_config")):
        mine, other = (json.loads((folder / file).read_text())[path] for folder in (ours, theirs))
        for key in ("quant_algo", "exclude_modules", "ignore", "quant_method", "group_size"):
            if str(mine.get(key)).lower() != str(other.get(key)).lower():
                sys.exit(f"{layout}: {file} has {key} {mine.get(key)}, not {other.get(key)}")

    expected, their_values = stored_values(ours), stored_values(theirs)
    worst = 0.0
    for module, values in expected.items():
        weight = dequantized_by_modelopt(layout, tensors[f"{module}.weight"],
                                         tensors[f"{module}.weight_scale"])
        expect_equal(layout, module, weight, values, 2.0 ** -23)
        difference = (values - their_values[module]).norm() / values.norm()
        worst = max(worst, difference.item())
    if worst > 0.03:  # a rounding apart at most
        sys.exit(f"{layout}: {100 * worst:.2g} % from what Model Optimizer makes of the model")

    widened = place / f"widened-{layout}"
    subprocess.run([tool, "convert", theirs, widened, "--to", "bf16"], check=True,
                   stdout=subprocess.DEVNULL)
    back = load_file(widened / "model.safetensors")
    for module, values in their_values.items():
        expect_equal(f"{layout} to bf16", module, back[f"{module}.weight"], values, 2.0 ** -8)
    print(f"Model Optimizer reads {layout}: {len(expected)} layers, equal; it makes the same "
          f"tensors, with values {100 * worst:.2g} % away, and those are read here", flush=True)


def main():
    tool = sys.argv[1]
    for package in ("torch", "transformers", "compressed-tensors", "nvidia-modelopt"):
        print(package, importlib.metadata.version(package))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        model = make_model(place / "even", 256, 384, 4, 2)
        make_model(place / "ragged", 96, 200, 4, 2)  # edges of blocks everywhere
        # Static scales of the inputs, for the formats that have them.
        layers = stored_layers(place / "even")
        save_file({f"{name}.input_scale": torch.tensor(0.5) for name in layers},
                  place / "scales.safetensors")

        def quantize(model, layout, *options):
            output = place / f"{model}-{layout}"
            subprocess.run([tool, "quantize", place / model, output, "--format", layout, *options],
                           check=True, stdout=subprocess.DEVNULL)
            return output

        for layout in COMPRESSED:
            check_compressor(quantize("even", layout), layout)
            if layout != "ct-mxfp8":  # groups of 32 must divide the columns in that package
                check_compressor(quantize("ragged", layout), layout)
        widen = transformers.CompressedTensorsConfig(dequantize=True)
        for layout in COMPRESSED:
            check_model(place / f"even-{layout}", layout, quantization_config=widen)
        static = quantize("even", "ct-tensor", "--scales", place / "scales.safetensors", "--force")
        check_model(static, "ct-tensor, static", 0.5)
        for layout in ["block", "block-pow2", "block-ue8m0"]:  # without a GPU transformers widens these by itself
            check_model(quantize("even", layout), layout)
        for layout in MODELOPT:
            check_modelopt(place, model, layout, quantize, tool)


def stored_layers(folder):
    """Names of the linear layers of a checkpoint."""
    return [name.removesuffix(".weight") for name in load_file(folder / "model.safetensors")
            if "_proj" in name]


main()
