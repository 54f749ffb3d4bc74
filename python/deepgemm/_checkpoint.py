# SPDX-License-Identifier: MIT
"""Checkpoints: reading them, and writing FP8 ones that servers load."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from os import PathLike
from typing import Any, NamedTuple

from . import _C
from ._api import Array, Dtype
from ._C import Context, Tensor

Path = str | bytes | PathLike[Any]


class StoredTensor(NamedTuple):
    """What a checkpoint says of a tensor."""

    name: str
    stored_type: str  #: as the file spells it: "BF16", "F8_E4M3", "I64"
    dtype: str | None  #: None where the library computes with no such type
    shape: tuple[int, ...]
    nbytes: int
    file: str  #: without its folder


class StoredWeight(NamedTuple):
    """A weight matrix and its scales, copies in memory."""

    weight: Tensor  #: [N, K]
    scale: Tensor | None  #: float32, or None where the weight has none
    granularity: tuple[int, int]  #: (rows, columns) that one scale covers; 0: all


class ScaleRecord(NamedTuple):
    """A scale of a checkpoint, or its absence."""

    role: str  #: what it belongs to: "weight", "input", "keys", "values" or "nothing"
    state: str  #: "loaded", "defaulted" (1 is right), "unused", "missing" or "wrong"
    layer: str  #: the module
    name: str | None  #: None where there is none
    stored_type: str | None
    granularity: tuple[int, int]  #: (rows, columns) that one covers; of weights' scales
    smallest: float  #: values, where it is loaded
    largest: float
    problem: str | None  #: a sentence for missing and wrong ones


class Checkpoint:
    """A model's tensors on disk.

    Parameters
    ----------
    path : path
        A .safetensors file, an index (....safetensors.index.json), or a folder that holds one of
        the two. All headers are checked: what is listed can be read.

    Raises
    ------
    NotFound
        A file, a shard or a tensor that the index names is missing; the message lists them.
    BadFile
        A malformed file.
    """

    def __init__(self, path: Path) -> None:
        self._open = _C.Checkpoint(path)

    def __iter__(self) -> Iterator[StoredTensor]:
        """All tensors, in the order of the files."""
        return (StoredTensor(*row) for row in self._open.tensors())

    def read(self, name: str, dtype: Dtype = None) -> Tensor:
        """A copy of the tensor of that name, converted to `dtype` (saturating) if given."""
        return self._open.read(name, dtype)

    def weight(
        self, name: str, *, expert: int | None = None, unscaled_is_one: bool = False
    ) -> StoredWeight:
        """The weight "....weight" and its scales, by any of the names in use.

        All scales are multipliers, whatever their name says. With `expert` the weight is that
        expert's matrix of a fused one [experts, N, K]. An FP8 weight without scales is refused
        (BadFile) unless `unscaled_is_one`.
        """
        return StoredWeight(*self._open.weight(name, expert, unscaled_is_one))

    def scales(self) -> list[ScaleRecord]:
        """An account of every scale that is there or should be. All their values are read."""
        records: list[ScaleRecord] = []
        self._open.scales(lambda *fields: records.append(ScaleRecord(*fields)))
        return records


class TensorReport(NamedTuple):
    """What became of a tensor while a checkpoint was written."""

    name: str
    kept_because: str | None  #: None: it was not kept as it was
    action: str  #: "kept", "quantized", "repacked", "requantized" or "widened"
    stored_type: str  #: before
    bytes_before: int
    bytes_after: int
    relative_error: float  #: of the worst part where several layers are one tensor
    saturated: int
    underflow: int
    non_finite: int
    done: int  #: elements: this tensor and those before it
    total: int
    resumed: bool  #: an earlier run had done it
    #: Where parts of a fused weight (gate, up) share one scale: the largest value of the largest
    #: part over that of the smallest. Otherwise 0.
    part_ratio: float


Report = Callable[[TensorReport], Any]


def _patterns(keep: Iterable[str]) -> tuple[str, ...]:
    if isinstance(keep, str):  # whose characters would be patterns that match nothing
        raise TypeError(f"keep is {keep!r}: expected a sequence of patterns, [{keep!r}]")
    return tuple(keep)


def _write(converting: bool, input: Path, output: Path, format: str, keep: Iterable[str],
           replace: bool, report: Report | None, scales: Path | None, fusion: str, strict: bool,
           unscaled_is_one: bool, context: Context | None) -> dict[str, int]:  # fmt: skip
    patterns = _patterns(keep)
    call = None if report is None else lambda *fields: report(TensorReport(*fields))
    matches = _C.checkpoint_write(
        converting, input, output, format, patterns, replace, call, scales, fusion, strict,
        unscaled_is_one, context,
    )  # fmt: skip
    return dict(zip(patterns, matches))


def quantize_checkpoint(
    input: Path,
    output: Path,
    *,
    format: str = "block",
    keep: Iterable[str] = (),
    replace: bool = False,
    report: Report | None = None,
    scales: Path | None = None,
    fusion: str = "as_it_is",
    context: Context | None = None,
) -> dict[str, int]:
    """Quantises a checkpoint's linear layers to FP8, as ``deepgemm quantize`` does.

    Parameters
    ----------
    input : path
        As for `Checkpoint`; 16- or 32-bit.
    output : path
        A folder that does not exist or is empty, unless `replace`. It appears in one step when all
        is on disk.
    format : str
        "block" (128 x 128, as DeepSeek's), "channel" (compressed-tensors) and others:
        docs/checkpoints.md lists them.
    keep : patterns
        Layers to leave in 16 bits, beside the embeddings, norms, heads and routers that always stay.
        "mlp.gate" matches a name that has it between dots; "re:..." is a POSIX regular expression.
    replace : bool
        An `output` that is a checkpoint already is replaced, in one step.
    report : callable, optional
        Called with a `TensorReport` for each tensor when it is done. False stops: `Cancelled`. An
        exception stops too, and comes out of this call.
    scales : path, optional
        A safetensors file with scales from calibration.
    fusion : {"as_it_is", "split", "fused"}
        Whether layers that a server multiplies as one are one weight in the output.
    context : Context, optional
        A CPU context: its threads do the work.

    Returns
    -------
    dict
        How many tensors each pattern of `keep` matched.
    """
    return _write(
        False, input, output, format, keep, replace, report, scales, fusion, False, False, context
    )


def convert_checkpoint(
    input: Path,
    output: Path,
    *,
    format: str,
    replace: bool = False,
    report: Report | None = None,
    fusion: str = "as_it_is",
    strict: bool = False,
    unscaled_is_one: bool = False,
    context: Context | None = None,
) -> None:
    """Writes an FP8 checkpoint in another format; no value changes wherever that can express it.

    Parameters
    ----------
    format : str
        As in `quantize_checkpoint`, or "bf16".
    strict : bool
        Fail unless every scale of the input is loaded.
    unscaled_is_one : bool
        Take 1 for the scale of FP8 codes without one.
    input, output, replace, report, fusion, context
        As in `quantize_checkpoint`.
    """
    _write(
        True, input, output, format, (), replace, report, None, fusion, strict, unscaled_is_one,
        context,
    )  # fmt: skip


def rescale_checkpoint(
    input: Path,
    output: Path,
    factors: Mapping[str, tuple[Array | None, Array | None]],
    *,
    replace: bool = False,
    context: Context | None = None,
) -> int:
    """Writes a 16-bit checkpoint with some of its tensors multiplied; everything else is copied.

    For folding what `choose_smoothing` finds into a model: 1 / factor into the rows that make a
    feature (the norm's, the layer's before), the factor into the columns that take it.

    Parameters
    ----------
    input, output, replace, context
        As in `quantize_checkpoint`.
    factors : mapping of names to (rows, columns)
        Of float32, float16 or bfloat16 vectors and matrices: float32 arrays [rows] and [columns],
        None for 1. Element (r, c) becomes itself * rows[r] * columns[c].

    Returns
    -------
    int
        Elements whose products are not exact in their tensor's type: 0 for powers of two, unless a
        value leaves the type's range.
    """
    names = tuple(factors)
    flat = tuple(array for name in names for array in factors[name])
    if len(flat) != 2 * len(names):
        raise ValueError("factors must have a pair (rows, columns) for each tensor")
    return _C.checkpoint_rescale(input, output, names, flat, replace, context)
