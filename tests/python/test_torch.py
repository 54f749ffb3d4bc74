# SPDX-License-Identifier: MIT
"""PyTorch: tensors in eager calls, operators under torch.compile, the linear layer, conversion.

Runs on the CPU, and again on a GPU where there is one.
"""

import contextlib
import copy
import functools
import io
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgemm
from conftest import assert_close, assert_no_growth, random_codes, random_scale, reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if torch.cuda.is_available():
    try:
        deepgemm.Context("cuda")
        HAS_GPU = True
    except deepgemm.UnsupportedDevice:
        HAS_GPU = False
else:
    HAS_GPU = False

import deepgemm.torch as dgt  # noqa: E402

needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="no GPU that this build has kernels for")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]
G128 = deepgemm.BLOCK128
#: What a sum may be off by, as a part of its terms' magnitudes.
SUM_ERROR = {"cpu": 1e-5, "cuda": 1e-3}


def to_torch(array, device):
    plain = np.ascontiguousarray(array)
    if array.dtype.name.startswith("float8"):
        made = torch.from_numpy(plain.view(np.uint8)).view(getattr(torch, array.dtype.name))
    else:
        made = torch.from_numpy(plain)
    return made.to(device)


def to_numpy(tensor):
    return deepgemm.tensor(tensor.cpu()).numpy()


def operands(rng, m, n, k, granularity, device):
    a, b = random_codes(rng, (m, k)), random_codes(rng, (n, k))
    scales = [random_scale(rng, x.shape, g) for x, g in zip((a, b), granularity)]
    arrays = (a, b, *scales)
    return arrays, [to_torch(x, device) for x in arrays]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gemm(rng, device, out_dtype):
    for m, n, k in ((1, 128, 256), (33, 200, 300), (130, 64, 1000), (0, 16, 16), (4, 8, 0)):
        (a, b, sa, sb), (ta, tb, tsa, tsb) = operands(rng, m, n, k, G128, device)
        sa /= np.float32(4096)
        tsa /= 4096
        out = deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, out_dtype=out_dtype)
        assert type(out) is torch.Tensor and out.dtype == out_dtype and out.device.type == device
        expected, magnitude = reference(a, sa, b, sb, G128)
        fits = np.abs(expected) < 65000
        result = to_numpy(out)
        assert result.shape == expected.shape
        assert_close(result[fits], expected[fits], magnitude[fits], SUM_ERROR[device])
        again = deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, out=torch.empty_like(out))
        assert torch.equal(again.nan_to_num(), out.nan_to_num())


@pytest.mark.parametrize("device", DEVICES)
def test_views_are_not_copied(rng, device):
    (a, b, sa, sb), (ta, tb, tsa, tsb) = operands(rng, 40, 48, 256, G128, device)
    plain = deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, out_dtype=torch.float32)
    wide_a = torch.full((40, 300), 1, dtype=torch.uint8, device=device)
    wide_a[:, 17:273] = ta.view(torch.uint8)
    wide_out = torch.full((40, 100), 77.0, device=device)
    out = deepgemm.gemm(
        wide_a.view(torch.float8_e4m3fn)[:, 17:273], tb, tsa.t().contiguous().t(), tsb,
        granularity=G128, out=wide_out[:, 3:51],
    )  # fmt: skip
    assert out.data_ptr() == wide_out.data_ptr() + 12
    assert torch.equal(out, plain)
    assert (wide_out[:, :3] == 77).all() and (wide_out[:, 51:] == 77).all()
    with pytest.raises(deepgemm.InvalidArgument, match="last dimension"):
        deepgemm.gemm(ta.t(), tb, tsa, tsb, granularity=G128)


@pytest.mark.parametrize("device", DEVICES)
@given(data=st.data())
def test_any_product(device, data):
    """Random shapes, granularities, types and strides, by the functions and by the operators."""
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    m, n, k = draw(st.integers(0, 40)), draw(st.integers(0, 70)), draw(st.integers(0, 300))
    granularity = draw(
        st.sampled_from([G128, deepgemm.TENSOR, deepgemm.TOKEN_CHANNEL, deepgemm.MX])
    )
    (a, b, sa, sb), (ta, tb, tsa, tsb) = operands(rng, m, n, k, granularity, device)
    if draw(st.booleans()):  # a shard of wider weights
        tb = torch.cat([tb.view(torch.uint8)] * 2, dim=1).view(tb.dtype)[:, :k]
    if draw(st.booleans()):
        tsa, tsb = tsa.mT.contiguous().mT, tsb.mT.contiguous().mT
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    out = torch.full((m, n + 3), 77, dtype=dtype, device=device)
    result = deepgemm.gemm(ta, tb, tsa, tsb, granularity=granularity, out=out[:, 1 : n + 1])
    expected = reference(a, sa, b, sb, granularity)
    assert_close(to_numpy(result), *expected, SUM_ERROR[device])
    assert (out[:, 0] == 77).all() and (out[:, n + 1 :] == 77).all()
    flat = [*granularity[0], *granularity[1]]
    assert torch.equal(torch.ops.deepgemm.gemm(ta, tsa, tb, tsb, flat, dtype), result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("granularity", [(1, 128), (128, 128), (0, 0), (1, 0), (1, 32), (32, 32)])
def test_quantize_gives_the_cpu_bits(rng, device, granularity):
    x = (rng.standard_normal((50, 300)) * 10.0 ** rng.integers(-3, 3, (50, 1))).astype(np.float32)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        on_cpu = torch.from_numpy(x).to(dtype)
        codes, scale = deepgemm.quantize(on_cpu.to(device), granularity=granularity)
        same, same_scale = deepgemm.quantize(on_cpu, granularity=granularity)
        assert codes.device.type == device and codes.dtype == torch.float8_e4m3fn
        assert torch.equal(codes.cpu().view(torch.uint8), same.view(torch.uint8))
        assert torch.equal(scale.cpu(), same_scale)
        back = deepgemm.dequantize(codes, scale, granularity=granularity, dtype=dtype)
        assert back.dtype == dtype and back.device.type == device


def test_mixed_libraries(rng):
    (a, b, sa, sb), (ta, tb, tsa, tsb) = operands(rng, 5, 16, 128, G128, "cpu")
    out = deepgemm.gemm(ta, b, sa, tsb, granularity=G128)
    assert type(out) is torch.Tensor
    mirrored = deepgemm.gemm(a, tb, tsa, sb, granularity=G128)
    assert type(mirrored) is np.ndarray and (to_numpy(out) == mirrored).all()
    exported = deepgemm.tensor(a)
    assert torch.equal(torch.from_dlpack(exported).view(torch.uint8), ta.view(torch.uint8))
    parameter = torch.nn.Parameter(torch.ones(16))  # a subclass, which wants a gradient
    assert deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, bias=parameter).shape == (5, 16)


@pytest.mark.parametrize("device", DEVICES)
def test_operators(rng, device):
    """What PyTorch checks of an operator: schema, fake implementation, dynamic shapes."""
    _, (ta, tb, tsa, tsb) = operands(rng, 6, 32, 256, G128, device)
    ops = torch.ops.deepgemm
    flat = [1, 128, 128, 128]
    x = torch.randn(6, 256, device=device)
    traced = ("test_faketensor", "test_aot_dispatch_static")
    every = ("test_schema", *traced)  # PyTorch cannot compare arguments in FP8
    cases = [
        (ops.gemm.default, (ta, tsa, tb, tsb, flat, torch.bfloat16), traced),
        (ops.quantize.default, (x, [1, 128], torch.float8_e4m3fn), traced),
        (ops.quantize.default, (x.view(2, 3, 256), [128, 128], torch.float8_e5m2), traced),
        (ops.linear.default, (x, tb, tsb, None, flat), traced),
    ]
    weights = deepgemm.pack(tb, tsb, granularity=(128, 128)) if device == "cpu" else None
    if weights is not None:
        dgt._packed[-1] = weights
        cases.append((ops.linear_packed.default, (x, -1, 32, None, flat), every))
    for operator, args, checks in cases:
        torch.library.opcheck(operator, args, test_utils=checks)
    dgt._packed.pop(-1, None)


def model_of(rng, device="cpu", dtype=torch.float32):
    torch.manual_seed(int(rng.integers(2**31)))
    return torch.nn.Sequential(
        torch.nn.Linear(256, 384), torch.nn.SiLU(), torch.nn.Linear(384, 200, bias=False)
    ).to(device, dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pack", [False, None])
@pytest.mark.parametrize("granularity", [G128, deepgemm.TOKEN_CHANNEL])
def test_linear(rng, device, pack, granularity):
    for dtype, rounding in ((torch.float32, 0), (torch.bfloat16, 2**-7), (torch.float16, 2**-10)):
        plain = torch.nn.Linear(300, 200).to(device, dtype)
        layer = dgt.Linear.from_linear(plain, granularity=granularity, pack=pack)
        x = torch.randn(2, 7, 300, device=device, dtype=dtype)
        with torch.inference_mode():
            y = layer(x)
            assert y.shape == (2, 7, 200) and y.dtype == dtype
            # The same by hand, from the layer's own codes.
            codes, scale = deepgemm.quantize(x.cpu(), granularity=granularity[0])
            state = layer.state_dict()
            weight, weight_scale = state["weight"].cpu(), state["weight_scale"].cpu()
            expected, magnitude = reference(
                to_numpy(codes.view(14, 300)), to_numpy(scale.view(14, -1)), to_numpy(weight),
                to_numpy(weight_scale), granularity,
            )  # fmt: skip
            bias = plain.bias.detach().double().cpu().numpy()
            error = np.abs(y.double().cpu().numpy().reshape(14, 200) - (expected + bias))
            limit = SUM_ERROR[device] * (magnitude + np.abs(bias)) + rounding * np.abs(
                expected + bias
            )
            assert (error <= limit + 1e-6).all()
            # And near what the 16- or 32-bit layer gives.
            true = plain(x).double()
            assert (y.double() - true).norm() / true.norm() < 0.06
            assert torch.equal(layer(x[0, 0]), layer(x[:1, 0])[0])
            assert torch.allclose(layer(x.transpose(0, 1)).transpose(0, 1).float(), y.float())
            wide = torch.cat([x, x], dim=-1)
            assert torch.equal(layer(wide[..., : x.shape[-1]]), y)
            assert torch.equal(layer(x.mT.contiguous().mT), y)


@pytest.mark.parametrize("device", DEVICES)
def test_calls_do_not_leak(rng, device):
    _, (a, b, sa, sb) = operands(rng, 2, 16, 128, G128, device)
    context = deepgemm.Context(device, threads=1)
    out, x = torch.empty(2, 16, device=device), torch.randn(2, 128, device=device)
    plain = torch.nn.Linear(128, 16).to(device)
    layer, packed = (dgt.Linear.from_linear(plain, pack=pack) for pack in (False, None))
    gemm = functools.partial(deepgemm.gemm, granularity=G128, context=context)
    ends = deepgemm.Groups("by_end", torch.full((1,), 2, dtype=torch.int32, device=device))

    def refused():
        with contextlib.suppress(deepgemm.Error):
            gemm(a, b, sb, sa)
            raise AssertionError("was not refused")

    calls = {
        "into out": lambda: gemm(a, b, sa, sb, out=out),
        "a new result": lambda: gemm(a, b, sa, sb),
        "groups": lambda: gemm(a, b[None], sa, sb[None], groups=ends),
        "an operator": lambda: torch.ops.deepgemm.gemm(a, sa, b, sb, [1, 128, 128, 128]),
        "refused": refused,
        "quantize": lambda: deepgemm.quantize(x, granularity=(1, 128), context=context),
        "a layer": lambda: layer(x),
        "a packed layer": lambda: packed(x),
        "a view": lambda: deepgemm.tensor(a),
    }
    with torch.inference_mode():
        assert_no_growth(calls)
        if device == "cuda":  # what torch gave out has come back, and what the device has left
            for call in calls.values():
                call()
            torch.cuda.synchronize()
            given, (left, _) = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()
            for call in calls.values():
                for _ in range(1000):
                    call()
            torch.cuda.synchronize()
            assert torch.cuda.memory_allocated() == given
            assert torch.cuda.mem_get_info()[0] == left


def test_linear_refuses_gradients():
    layer = dgt.Linear.from_linear(torch.nn.Linear(64, 32))
    with pytest.raises(RuntimeError, match="no gradient"):
        layer(torch.randn(3, 64, requires_grad=True))
    assert not list(layer.parameters())


@pytest.mark.parametrize("device", DEVICES)
def test_a_layer_is_saved_copied_and_moved(rng, device):
    layer = dgt.Linear.from_linear(torch.nn.Linear(256, 192).to(device))
    packed = layer._weights is not None
    assert packed or device == "cuda"
    x = torch.randn(5, 256, device=device)
    with torch.inference_mode():
        y = layer(x)
        state = layer.state_dict()
        assert set(state) == {"weight", "weight_scale", "bias"}
        assert state["weight"].dtype == torch.float8_e4m3fn and state["weight"].shape == (192, 256)
        other = dgt.Linear(256, 192, device=device)
        other.load_state_dict(state)
        assert torch.equal(other(x), y)
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        for twin in (
            copy.deepcopy(layer),
            torch.load(file, weights_only=False),
            layer.double().float(),
        ):
            assert torch.equal(twin(x), y) and (twin._weights is not None) == packed
        assert layer.state_dict()["weight"].dtype == torch.float8_e4m3fn
        layer.unpack()
        assert layer.weight is not None and torch.equal(layer(x), y)
        assert torch.equal(layer.to("cpu").state_dict()["weight"], state["weight"].cpu())


def test_packed_weights_go_with_their_layer():
    before = len(dgt._packed)
    layer = dgt.Linear.from_linear(torch.nn.Linear(64, 32))
    assert len(dgt._packed) == before + 1
    del layer
    assert len(dgt._packed) == before


def test_convert():
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj = torch.nn.Linear(64, 96)
            self.gate = torch.nn.Linear(64, 8)
            self.down = torch.nn.Linear(96, 64)
            self.act = torch.nn.Sequential(torch.nn.ReLU())

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList([Block(), Block()])
            self.tied = self.blocks[0].down
            self.lm_head = torch.nn.Linear(64, 100)

    model = Model()
    names = dgt.convert(model, keep=("lm_head", "gate", r"re:blocks\.1\.down"))
    assert names == ["blocks.0.gate_proj", "blocks.0.down", "blocks.1.gate_proj", "tied"]
    assert type(model.blocks[0].down) is dgt.Linear and model.tied is model.blocks[0].down
    for kept in (model.lm_head, model.blocks[0].gate, model.blocks[1].down):
        assert type(kept) is torch.nn.Linear
    assert dgt.convert(Model(), only=["down"]) == ["blocks.0.down", "blocks.1.down"]
    assert "blocks.0.gate" not in dgt.convert(Model())
    with pytest.raises(ValueError, match="itself"):
        dgt.convert(torch.nn.Linear(4, 4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("pack", [False, None])
def test_compile_without_graph_breaks(rng, device, pack):
    """fullgraph=True, with dynamic numbers of tokens. The backend traces through fake tensors."""
    model = model_of(rng, device)
    assert dgt.convert(model, pack=pack) == ["0", "2"]
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch.inference_mode():
        for tokens in (4, 9, 17):
            x = torch.randn(tokens, 256, device=device)
            assert torch.equal(compiled(x), model(x))

    def chain(x, weight, scale):
        codes, scale_x = dgt.quantize(x, granularity=(1, 128))
        return (
            dgt.gemm(codes, weight, scale_x, scale, granularity=G128, out_dtype=torch.float32) * 2
        )

    _, (_, weight, _, scale) = operands(rng, 1, 64, 256, G128, device)
    x = torch.randn(5, 256, device=device)
    fused = torch.compile(chain, fullgraph=True, backend="aot_eager")
    assert torch.equal(fused(x, weight, scale), chain(x, weight, scale))


@needs_gpu
def test_inductor_on_the_gpu(rng):
    model = model_of(rng, "cuda", torch.bfloat16)
    dgt.convert(model)
    compiled = torch.compile(model, fullgraph=True)
    with torch.inference_mode():
        x = torch.randn(16, 256, device="cuda", dtype=torch.bfloat16)
        assert (compiled(x) - model(x)).float().norm() < 0.02 * model(x).float().norm()


@needs_gpu
def test_cuda_graph(rng):
    model = model_of(rng, "cuda", torch.bfloat16)
    dgt.convert(model)
    with torch.inference_mode():
        x = torch.randn(16, 256, device="cuda", dtype=torch.bfloat16)
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        for _ in range(3):
            x.copy_(torch.randn_like(x))
            graph.replay()
            assert torch.equal(y, model(x))


@needs_gpu
def test_streams(rng):
    """Work goes to torch's current stream, or to the one given."""
    _, (ta, tb, tsa, tsb) = operands(rng, 2048, 2048, 2048, G128, "cuda")
    expected = deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    for stream in (None, side, side.cuda_stream):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # what comes behind it on this stream must wait
            out = torch.zeros_like(expected)
            if stream is None:
                deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, out=out)
        if stream is not None:
            deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, out=out, stream=stream)
        assert not side.query()
        side.synchronize()
        assert torch.equal(out, expected)


@needs_gpu
def test_devices_are_checked(rng):
    _, (ta, tb, tsa, tsb) = operands(rng, 4, 16, 128, G128, "cuda")
    with pytest.raises(deepgemm.DeviceMismatch, match="scale_a is on cpu, but a is on cuda:0"):
        deepgemm.gemm(ta, tb, tsa.cpu(), tsb, granularity=G128)
    with pytest.raises(deepgemm.DeviceMismatch, match="context is for cpu"):
        deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128, context=deepgemm.Context())
    assert deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128).shape == (4, 16)


@needs_gpu
def test_own_tensors_on_the_gpu(rng):
    _, (ta, tb, tsa, tsb) = operands(rng, 4, 16, 128, G128, "cuda")
    expected = deepgemm.gemm(ta, tb, tsa, tsb, granularity=G128)
    views = [deepgemm.tensor(x) for x in (ta, tb, tsa, tsb)]
    with torch.cuda.stream(torch.cuda.Stream()):
        views = [deepgemm.tensor(x) for x in (ta, tb, tsa, tsb)]
        out = deepgemm.gemm(*views, granularity=G128)
    assert type(out) is deepgemm.Tensor and out.device == "cuda:0"
    assert torch.equal(torch.from_dlpack(out), expected)  # on another stream: waits
    own = deepgemm.empty((4, 16), "float32", "cuda")
    deepgemm.gemm(*views, granularity=G128, out=own)
    assert torch.equal(torch.from_dlpack(own).bfloat16(), expected)
    with pytest.raises(Exception, match="cpu|CPU|device|Unsupported"):
        own.numpy()


@needs_gpu
def test_a_child_may_use_the_gpu_after_a_fork():
    """The parent imports the package and computes on the CPU; the child is the first on the GPU."""
    code = (
        "import os, numpy as np, deepgemm as dg\n"
        "q, s = dg.quantize(np.ones((4, 64), np.float32), granularity=(0, 0))\n"
        "dg.gemm(q, q, s, s, granularity=dg.TENSOR)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if dg.Context('cuda').architecture == 'sm_90a' else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["0"], done.stderr
