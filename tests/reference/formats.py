# SPDX-License-Identifier: MIT
"""Files that the tool writes, read by the reference implementations of their formats.

A small Llama model with random weights is quantised into every layout. What `transformers` and
`compressed-tensors` make of it must be the product of each code and its scale, and nothing may be
missing or unexpected. Called with the tool's path; ends with 77, and the name of what is missing,
where these packages are not installed.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    print(f"skipped: {missing.name} is not installed")
    sys.exit(77)

BLOCK = 128
COMPRESSED = ["channel", "ct-tensor", "ct-block", "ct-mxfp8"]


def make_model(folder, hidden, width, heads, kv_heads):
    """A Llama of two layers, saved as transformers saves it."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=hidden, intermediate_size=width, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=100,
        max_position_embeddings=64, tie_word_embeddings=False, dtype="bfloat16")
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def expand(scale, shape, block):
    """The scale of each weight, by the definition of its granularity."""
    rows, cols = block
    scale = scale.double()
    if scale.numel() == 1:
        return scale.reshape(1, 1).expand(shape)
    scale = scale.reshape(scale.shape[0], -1)
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


def main():
    tool = sys.argv[1]
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        make_model(place / "even", 256, 384, 4, 2)
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
        for layout in ["channel", "ct-tensor", "ct-block"]:
            check_model(place / f"even-{layout}", layout, quantization_config=widen)
        static = quantize("even", "ct-tensor", "--scales", place / "scales.safetensors", "--force")
        check_model(static, "ct-tensor, static", 0.5)
        for layout in ["block", "block-pow2"]:  # without a GPU transformers widens these by itself
            check_model(quantize("even", layout), layout)


def stored_layers(folder):
    """Names of the linear layers of a checkpoint."""
    return [name.removesuffix(".weight") for name in load_file(folder / "model.safetensors")
            if "_proj" in name]


main()
