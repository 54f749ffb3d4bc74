# SPDX-License-Identifier: MIT
"""deepgemm in PyTorch: operators that compile, a linear layer, and one call that converts a model.

The functions here take torch tensors on the CPU or a CUDA device and use torch's current stream.
In eager mode they call the library directly; under `torch.compile` they are the operators
``torch.ops.deepgemm.*``, which have fake implementations, so graphs do not break. All can be
captured by `torch.cuda.graph` after one call of the same kind.

They are for inference: nothing here has a gradient.
"""

import itertools
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from . import _C
from ._api import BLOCK128, Pair

Granularity = tuple[Pair, Pair]

# ---- operators ---------------------------------------------------------------------------

_library = torch.library.Library("deepgemm", "DEF")

_library.define(
    "gemm(Tensor a, Tensor scale_a, Tensor b, Tensor scale_b, int[4] granularity, "
    "ScalarType? out_dtype=None, Tensor? bias=None) -> Tensor"
)
_library.define("quantize(Tensor x, int[2] granularity, ScalarType dtype) -> (Tensor, Tensor)")
_library.define(
    "linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias, int[4] granularity) -> Tensor"
)
_library.define(
    "linear_packed(Tensor x, int weights, int out_features, Tensor? bias, int[4] granularity)"
    " -> Tensor"
)

# Packed weights have no tensor to travel in, so a graph holds their number here.
_packed: dict[int, _C.Weights] = {}
_numbers = itertools.count()

# What the operators do, and what eager calls do without them. PyTorch leaves out arguments that have
# their default values, and takes a microsecond for each of a list of integers and a type.


def _flat(granularity: Granularity) -> list[int]:
    return [*granularity[0], *granularity[1]]


def _gemm(
    a: Tensor,
    scale_a: Tensor,
    b: Tensor,
    scale_b: Tensor,
    granularity: Granularity | list[int],
    out_dtype: torch.dtype | None = None,
    bias: Tensor | None = None,
) -> Any:
    return _C.gemm(
        a, b, scale_a, scale_b, None, None, bias, None, None, granularity, None, None, None,
        out_dtype or torch.bfloat16, 1.0, 0.0, "precise", None, None, None, False, 0,
    )  # fmt: skip


def _quantize(x: Tensor, granularity: Pair, dtype: torch.dtype) -> Any:
    return _C.quantize(
        x, granularity, None, dtype, None, "float32", "exact", "saturate", 0.0, None, None, False,
        None, None,
    )  # fmt: skip


def _linear(
    x: Tensor,
    weights: Any,
    scale: Tensor | None,
    bias: Tensor | None,
    granularity: Granularity | list[int],
) -> Any:
    return _C.linear(x, weights, scale, bias, None, None, granularity, "float8_e4m3fn", None)


def _linear_packed(
    x: Tensor, weights: int, out_features: int, bias: Tensor | None, granularity: list[int]
) -> Any:
    return _linear(x, _packed[weights], None, bias, granularity)


for _implementation in (_gemm, _quantize, _linear, _linear_packed):
    _library.impl(_implementation.__name__[1:], _implementation, "CompositeExplicitAutograd")


@torch.library.register_fake("deepgemm::gemm", lib=_library)
def _fake_gemm(
    a: Tensor, scale_a: Tensor, b: Tensor, scale_b: Tensor, granularity: list[int],
    out_dtype: torch.dtype | None = None, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=out_dtype or torch.bfloat16)


@torch.library.register_fake("deepgemm::quantize", lib=_library)
def _fake_quantize(x: Tensor, granularity: list[int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    def blocks(size: Any, block: int) -> Any:
        return 1 if block == 0 else (size + block - 1) // block

    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    leading = x.shape[:-1] if granularity[0] == 1 else (blocks(rows, granularity[0]),)
    scale = x.new_empty((*leading, blocks(x.shape[-1], granularity[1])), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=dtype), scale


@torch.library.register_fake("deepgemm::linear", lib=_library)
def _fake_linear(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, granularity: list[int]
) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


@torch.library.register_fake("deepgemm::linear_packed", lib=_library)
def _fake_linear_packed(
    x: Tensor, weights: int, out_features: int, bias: Tensor | None, granularity: list[int]
) -> Tensor:
    return x.new_empty((*x.shape[:-1], out_features))


# ---- functions ---------------------------------------------------------------------------


def gemm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    granularity: Granularity,
    out_dtype: torch.dtype = torch.bfloat16,
    bias: Tensor | None = None,
) -> Tensor:
    """`deepgemm.gemm` of torch tensors, also under `torch.compile`.

    Parameters
    ----------
    a : Tensor [..., M, K]
    b : Tensor [N, K]
        Codes: float8_e4m3fn or float8_e5m2.
    scale_a, scale_b : Tensor
    granularity : ((rows, columns), (rows, columns))
    out_dtype : torch.dtype
    bias : Tensor [N], optional

    Returns
    -------
    Tensor [..., M, N]
    """
    if torch.compiler.is_compiling():
        flat = _flat(granularity)
        return torch.ops.deepgemm.gemm(a, scale_a, b, scale_b, flat, out_dtype, bias)
    return _gemm(a, scale_a, b, scale_b, granularity, out_dtype, bias)


def quantize(
    x: Tensor, *, granularity: Pair, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[Tensor, Tensor]:
    """`deepgemm.quantize` of a torch tensor with dynamic scales, also under `torch.compile`.

    Returns
    -------
    codes : Tensor of the shape of `x`
    scale : float32 Tensor
    """
    if torch.compiler.is_compiling():
        return torch.ops.deepgemm.quantize(x, list(granularity), dtype)
    return _quantize(x, granularity, dtype)


# ---- layers ------------------------------------------------------------------------------


class Linear(torch.nn.Module):
    """y = x W^T + b with FP8 weights; activations are quantised as they come.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    granularity : ((rows, columns), (rows, columns))
        Of the activations' dynamic scales and the weights' scales.
    device : torch.device, optional
    dtype : torch.dtype, optional
        Of the bias.

    Attributes
    ----------
    weight : float8_e4m3fn Tensor [out_features, in_features]
        A buffer; None while the weights are packed.
    weight_scale : float32 Tensor
        A buffer: multipliers, one for each block of the weights' granularity.
    bias : Tensor [out_features], optional

    Notes
    -----
    `state_dict` holds weight, weight_scale and bias, packed or not. For inference: a call that
    would need a gradient raises RuntimeError.
    """

    weight: Tensor | None
    weight_scale: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        granularity: Granularity = BLOCK128,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.granularity = (tuple(granularity[0]), tuple(granularity[1]))
        scales = [
            1 if block == 0 else -(-size // block)
            for size, block in zip((out_features, in_features), self.granularity[1])
        ]
        weight = torch.zeros(out_features, in_features, device=device, dtype=torch.float8_e4m3fn)
        self.register_buffer("weight", weight)
        self.register_buffer("weight_scale", torch.ones(scales, device=device))
        zeros = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.register_buffer("bias", zeros)
        self._weights: _C.Weights | None = None
        self._number = -1

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        *,
        granularity: Granularity = BLOCK128,
        pack: bool | None = None,
    ) -> "Linear":
        """The FP8 layer of a 16- or 32-bit one, on its device.

        `pack` says whether to lay the weights out for the device; None: where it can.
        """
        weight = linear.weight.detach()
        made = cls(
            linear.in_features, linear.out_features, linear.bias is not None, granularity=granularity,
            device=weight.device, dtype=weight.dtype,
        )  # fmt: skip
        made.weight, made.weight_scale = quantize(
            weight.contiguous(), granularity=made.granularity[1]
        )
        if linear.bias is not None:
            made.bias = linear.bias.detach().clone()
        made.train(linear.training)
        if pack is not False:
            made.pack(required=pack is True)
        return made

    def pack(self, required: bool = True) -> bool:
        """Lays the weights out for their device and drops the plain ones; `unpack` undoes it.

        Returns whether they are packed. Where the device has no packed layout this raises
        UnsupportedDevice, or returns False with ``required=False``.
        """
        if self._weights is None:
            try:
                self._weights = _C.pack(
                    self.weight, self.weight_scale, self.granularity[1], (0, 0), None, None
                )
            except _C.UnsupportedDevice:
                if required:
                    raise
                return False
            self._number = next(_numbers)
            _packed[self._number] = self._weights
            self.weight = self.weight_scale = None
        return True

    def unpack(self) -> None:
        """Goes back to plain weights, exactly those that were packed."""
        if self._weights is not None:
            self.weight, self.weight_scale = self._plain()
            self._forget()

    def _plain(self) -> tuple[Tensor, Tensor]:
        assert self._weights is not None
        weight, scale = self._weights.unpack()
        return torch.utils.dlpack.from_dlpack(weight), torch.utils.dlpack.from_dlpack(scale)

    def _forget(self) -> None:
        _packed.pop(self._number, None)
        self._weights = None
        self._number = -1

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] in bfloat16, float16 or float32 -> [..., out_features] in its type."""
        if x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("deepgemm.torch.Linear has no gradient: use torch.inference_mode()")
        rows = x
        if x.dim() == 1 or not x.is_contiguous():
            # One stride for all rows: a view where there is one, and a copy otherwise.
            rows = x.reshape(-1, x.shape[-1])
            rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        plain = self._buffers  # Module finds them there, but only after it has looked elsewhere
        weight, scale, bias = plain["weight"], plain["weight_scale"], plain["bias"]
        if not torch.compiler.is_compiling():
            weights = weight if self._weights is None else self._weights
            y = _linear(rows, weights, scale, bias, self.granularity)
        elif self._weights is None:
            y = torch.ops.deepgemm.linear(rows, weight, scale, bias, _flat(self.granularity))
        else:
            y = torch.ops.deepgemm.linear_packed(
                rows, self._number, self.out_features, bias, _flat(self.granularity)
            )
        return y if rows is x else y.reshape(*x.shape[:-1], self.out_features)

    # What moves, copies or saves the layer sees plain weights; packing comes back by itself.

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear":
        packed = self._weights is not None
        self.unpack()
        plain = {name: getattr(self, name) for name in ("weight", "weight_scale")}
        super()._apply(fn, recurse)
        for name, before in plain.items():  # model.half() and the like are not meant for codes
            after = getattr(self, name)
            if after.dtype != before.dtype:
                setattr(self, name, before.to(after.device))
        if packed:
            self.pack(required=False)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._weights is not None:
            destination[prefix + "weight"], destination[prefix + "weight_scale"] = self._plain()

    def _load_from_state_dict(self, *args: Any, **keywords: Any) -> None:
        packed = self._weights is not None
        self.unpack()
        super()._load_from_state_dict(*args, **keywords)
        if packed:
            self.pack(required=False)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_buffers"] = dict(self._buffers)
        if self._weights is not None:
            state["_buffers"].update(zip(("weight", "weight_scale"), self._plain()))
        state.update(_weights=None, _number=-1, _was_packed=self._weights is not None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packed = state.pop("_was_packed", False)
        super().__setstate__(state)
        if packed:
            self.pack(required=False)

    def __del__(self) -> None:
        if getattr(self, "_number", -1) >= 0:
            self._forget()

    def extra_repr(self) -> str:
        return (
            f"{self.in_features}, {self.out_features}, bias={self.bias is not None}, "
            f"granularity={self.granularity}, packed={self._weights is not None}"
        )


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    return f".{pattern}." in f".{name}."


# Output heads and routers, as `deepgemm quantize` keeps them.
KEEP = (
    "lm_head",
    "shared_head.head",
    "classifier",
    "score",
    "eh_proj",
    r"re:(.*\.)?(gate|router|shared_expert_gate)$",
)


def convert(
    model: torch.nn.Module,
    *,
    keep: Iterable[str] = KEEP,
    only: Iterable[str] | None = None,
    granularity: Granularity = BLOCK128,
    pack: bool | None = None,
) -> list[str]:
    """Replaces a model's linear layers by FP8 ones, in place.

    Parameters
    ----------
    model : Module
    keep : patterns
        Layers to leave as they are. A plain pattern matches a layer that has it between dots:
        "mlp.gate" matches "layers.0.mlp.gate" and not "layers.0.mlp.gate_proj". One that begins with
        "re:" is a regular expression, matched from the name's first character on. The default,
        `KEEP`, has output heads and routers.
    only : patterns, optional
        Layers to replace; None: all that are not kept.
    granularity, pack
        As in `Linear.from_linear`.

    Returns
    -------
    list of str
        The names of the layers that were replaced.
    """
    keep, only = tuple(keep), None if only is None else tuple(only)
    made: dict[int, Linear] = {}  # a layer used in two places becomes one layer
    names = []
    layers = [
        (name, layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if type(layer) is torch.nn.Linear
    ]
    for name, layer in layers:
        if any(_matches(pattern, name) for pattern in keep):
            continue
        if only is not None and not any(_matches(pattern, name) for pattern in only):
            continue
        if name == "":
            raise ValueError("model is itself a linear layer: use Linear.from_linear()")
        if id(layer) not in made:
            made[id(layer)] = Linear.from_linear(layer, granularity=granularity, pack=pack)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made[id(layer)])
        names.append(name)
    return names
