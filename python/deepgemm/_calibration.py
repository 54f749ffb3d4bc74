# SPDX-License-Identifier: MIT
"""Calibration: statistics of activations, and the choices of scales, smoothing and precisions.

Everything here works on the CPU; docs/calibration.md has the methods and their formulas.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from . import _C
from ._api import Array, Dtype, Pair
from ._C import Context, Tensor
from ._checkpoint import Path, _patterns


class ScaleChoice(NamedTuple):
    """How a scale is chosen from the magnitudes that it is for."""

    #: "amax": nothing clips; "percentile": that share of the magnitudes does not clip; "mse": the
    #: least squared error; "kl": the least Kullback-Leibler divergence
    method: str = "amax"
    percentile: float = 99.99  #: for "percentile": above 0, up to 100
    dtype: Dtype = "float8_e4m3fn"  #: of the codes, or "float8_e5m2"
    rounding: str = "exact"  #: or powers of two: "pow2_up", "pow2_down"


class ScaleQuality(NamedTuple):
    """What scales do to values. The rates are shares of `elements`."""

    elements: float  #: finite ones; the sum of their weights where there are weights
    clipped: float  #: beyond the largest code by more than its rounding reaches
    underflow: float  #: not zero, and become zero
    relative_error: float  #: sqrt(sum (x - x')^2 / sum x^2)
    #: what the scale was chosen from: "layer"; "siblings", for an expert that met no token;
    #: "nothing", where nobody met one and the scale is 1
    origin: str


AMAX = ScaleChoice()


def choose_scale(
    x: Array,
    *,
    granularity: Pair,
    choice: ScaleChoice = AMAX,
    column_weights: Array | None = None,
    phase: Pair = (0, 0),
    scale_dtype: Dtype = "float32",
    scale_out: Array | None = None,
    context: Context | None = None,
) -> tuple[Any, ScaleQuality]:
    """The scales of a matrix that is at hand (a weight); `quantize` applies them as ``scale=``.

    Parameters
    ----------
    x : array [..., rows, columns]
        float32, float16 or bfloat16.
    granularity, phase : (rows, columns)
        As in `quantize`.
    choice : ScaleChoice
    column_weights : float64 array [columns], optional
        Weights >= 0 of the columns' errors for "mse": with `Observed.squares` of the activations
        that meet `x`, the error of the product becomes least and not that of the weight.
    scale_dtype : {"float32", "float8_e8m0fnu"}
        Of a new result; the latter needs a rounding to powers of two.
    scale_out : array, optional
        Where the scales go.
    context : Context, optional
        A CPU context.

    Returns
    -------
    scale : array [ceil(rows / block), ceil(columns / block)]
        Positive and finite; 1 for blocks without a finite element that is not zero.
    quality : ScaleQuality
    """
    scale, quality = _C.scale_choose(
        x, granularity, phase, choice, column_weights, scale_dtype, scale_out, context
    )
    return scale, ScaleQuality(*quality)


class Observed(NamedTuple):
    """What statistics know of a layer's input."""

    layer: str
    features: int
    tokens: int
    batches: int
    non_finite: int  #: elements that were NaN or infinite
    amax: float  #: of all finite elements; 0 where there are none
    amaxes: Tensor  #: float32 [features]
    squares: Tensor  #: float64 [features]: the sum over all tokens of x^2


class Statistics:
    """Statistics of the activations that layers have met, by the layers' names.

    For each layer the exact largest magnitude and the sum of squares of each feature, histograms of
    magnitudes, and counts. Batches may come in any number and order, from any threads.

    Parameters
    ----------
    block_cols : int
        Features that share a histogram: the finest scales that can be chosen later. 1 is per
        channel; 0 has one histogram for a layer.
    bits : int
        Mantissa bits of the histograms' bins, 4 to 7; with 7 nothing is lost of bfloat16 data.

    Examples
    --------
    >>> statistics = Statistics()
    >>> statistics.observe("model.layers.0.mlp.up_proj", x)
    >>> scale, quality = statistics.choose("model.layers.0.mlp.up_proj", choice=ScaleChoice("mse"))
    """

    def __init__(self, *, block_cols: int = 128, bits: int = 5) -> None:
        self._start(_C.Statistics(block_cols, bits))

    def _start(self, held: _C.Statistics) -> None:
        self._held = held
        self._lock = threading.RLock()  # the library allows one thread at a time
        self._read = False  # by write_scales(), whose `report` may come back here

    @classmethod
    def load(cls, path: Path) -> "Statistics":
        """Those of a file that `save` or ``deepgemm calibrate`` wrote. `BadFile` says what is wrong."""
        made = cls.__new__(cls)
        made._start(_C.statistics_load(path))
        return made

    def save(self, path: Path) -> None:
        """Writes a file (safetensors); one that is there is replaced, in one step."""
        with self._lock:
            self._held.save(path)

    @property
    def block_cols(self) -> int:
        """Features that share a histogram."""
        return self._held.options()[0]

    @property
    def bits(self) -> int:
        """Mantissa bits of the histograms' bins."""
        return self._held.options()[1]

    def observe(self, layer: str, x: Array, *, context: Context | None = None) -> None:
        """Adds a batch of a layer's activations, [..., tokens, features].

        float32, float16 or bfloat16. The first batch fixes the layer's number of features; one of no
        tokens makes the layer known. NaN and infinities are counted and have no other influence.
        """
        with self._lock:
            self._check_unread()
            self._held.observe(layer, x, context)

    def merge(self, other: "Statistics") -> None:
        """Adds what `other`, which must have the same options, has met.

        Data that are split and merged give what one run over all of them gives, but for the rounding
        of the sums of squares.
        """
        if other is self:
            raise ValueError("other is these statistics themselves")
        # Always in the same order, so that two threads that merge crosswise do not wait forever.
        first, second = sorted((self, other), key=id)
        with first._lock, second._lock:
            self._check_unread()
            self._held.merge(other._held)

    def _check_unread(self) -> None:
        if self._read:
            raise RuntimeError("the statistics are in use by write_scales()")

    def __iter__(self) -> Iterator[str]:
        """The names of the layers, in order."""
        with self._lock:
            return iter(self._held.layers())

    def __len__(self) -> int:
        with self._lock:
            return len(self._held.layers())

    def __contains__(self, layer: object) -> bool:
        with self._lock:
            return layer in self._held.layers()

    def __getitem__(self, layer: str) -> Observed:
        """What is known of a layer; `NotFound` (a LookupError) where nothing is."""
        with self._lock:
            return Observed(*self._held.layer(layer))

    def choose(
        self,
        layer: str,
        *,
        granularity: Pair = (0, 0),
        choice: ScaleChoice = AMAX,
        scale_dtype: Dtype = "float32",
    ) -> tuple[Tensor, ScaleQuality]:
        """Static scales for a layer's input: one, or one for each block of features.

        `granularity` is (0, 0), or (0, columns) with a multiple of `block_cols`. A layer that met no
        token gets what `ScaleQuality.origin` says; to refuse that is the caller's choice.
        """
        with self._lock:
            scale, quality = self._held.choose(layer, granularity, choice, scale_dtype)
        return scale, ScaleQuality(*quality)

    def judge(
        self,
        layer: str,
        scale: Array,
        *,
        granularity: Pair = (0, 0),
        dtype: Dtype = "float8_e4m3fn",
    ) -> ScaleQuality:
        """What given scales would do to the values that a layer has met.

        With statistics of other data than the scales were chosen from: how much clips there.
        """
        with self._lock:
            return ScaleQuality(*self._held.judge(layer, scale, granularity, dtype))

    def histogram(self, layer: str) -> tuple[Tensor, Tensor]:
        """The occupied bins of a layer's histogram: magnitudes, ascending, and their counts.

        float32 [n] and float64 [n], all blocks together.
        """
        with self._lock:
            return self._held.histogram(layer)


class LayerScales(NamedTuple):
    """What `write_scales` chose for a layer."""

    layer: str
    shape: tuple[int, int]  #: of its weight
    input_scale: float  #: 0: the statistics do not know the layer, or there are none
    input: ScaleQuality  #: on the data that the statistics have met
    weight: ScaleQuality  #: with `weigh_columns`: each element with its column's weight
    done: int  #: elements: this layer and those before it
    total: int


def write_scales(
    checkpoint: Path,
    output: Path,
    *,
    statistics: Statistics | None = None,
    inputs: ScaleChoice = AMAX,
    weights: ScaleChoice = AMAX,
    granularity: Pair = (128, 128),
    weigh_columns: bool = False,
    strict: bool = False,
    keep: Iterable[str] = (),
    report: Callable[[LayerScales], Any] | None = None,
    context: Context | None = None,
) -> None:
    """Chooses scales for a 16-bit checkpoint's linear layers, for ``quantize_checkpoint(scales=)``.

    Parameters
    ----------
    checkpoint : path
        As for `Checkpoint`.
    output : path
        A safetensors file: "<layer>.weight_scale" [N / rows, K / columns], rounded up, and for
        layers that the statistics know "<layer>.input_scale" [1]. One that is there is replaced, in
        one step.
    statistics : Statistics, optional
        None: no scales of inputs.
    inputs, weights : ScaleChoice
    granularity : (rows, columns)
        Of the weights' scales.
    weigh_columns : bool
        Weights by what their columns meet; needs statistics.
    strict : bool
        Fail when a layer has met no token.
    keep, report, context
        As in `quantize_checkpoint`; `report` gets a `LayerScales` for each layer.
    """
    call = None
    if report is not None:
        wanted = report

        def call(layer: str, shape: Any, scale: float, input: Any, weight: Any, *rest: int) -> Any:
            pair = (ScaleQuality(*input), ScaleQuality(*weight))
            return wanted(LayerScales(layer, shape, scale, *pair, *rest))

    keep = _patterns(keep)
    arguments = (inputs, weights, granularity, weigh_columns, strict, keep, call, context)
    if statistics is None:
        return _C.scales_write(checkpoint, output, None, *arguments)
    with statistics._lock:
        statistics._read = True
        try:
            return _C.scales_write(checkpoint, output, statistics._held, *arguments)
        finally:
            statistics._read = False


class Smoothing(NamedTuple):
    """What smoothing does to the products of the sample that it was chosen on."""

    strength: float  #: 0 to 1; -1: nothing helped, all factors are 1
    error_before: float  #: |y - y'| / |y|
    error_after: float


def choose_smoothing(
    x: Array,
    weights: Sequence[Array],
    *,
    granularity: tuple[Pair, Pair],
    amaxes: Array | None = None,
    channels: Array | None = None,
    context: Context | None = None,
) -> tuple[Any, Smoothing]:
    """Factors that move outliers of the activations to the weights of the layers that meet them.

    The activations are to be divided by the factors, feature by feature, and the weights' columns
    multiplied by them (`rescale_checkpoint`): powers of two, so that nothing is rounded.

    Parameters
    ----------
    x : array [..., tokens, K]
        A sample of the activations: float32, float16 or bfloat16.
    weights : sequence of arrays [N, K]
        Of all layers that meet these activations.
    granularity : ((rows, columns), (rows, columns))
        Of the scales that the activations and the weights will have.
    amaxes : float32 array [K], optional
        Largest magnitudes of the features (`Observed.amaxes`); None: those of `x`.
    channels : int32 array [K], optional
        The channel that makes each feature, where what comes before can only scale whole channels.
        Features of one channel get one factor.
    context : Context, optional
        A CPU context.

    Returns
    -------
    factors : float32 array [K]
    smoothing : Smoothing
    """
    factors, found = _C.smooth_choose(x, tuple(weights), amaxes, channels, granularity, context)
    return factors, Smoothing(*found)


class PrecisionChoice(NamedTuple):
    """A precision for each layer, and what all together cost."""

    chosen: list[int]  #: for each layer an index into its precisions
    bytes: float
    error: float


def choose_precisions(
    costs: Sequence[Sequence[tuple[float, float]]], *, limit: float, budget: str = "bytes"
) -> PrecisionChoice:
    """Mixed precision: which layers get more bytes.

    Parameters
    ----------
    costs : sequence of sequences of (bytes, error)
        For each layer, for each precision; as many precisions for each. Infinite bytes: the layer
        cannot have that one. Errors in any measure that adds up over layers, e.g. nats.
    limit : float
        The budget. One that no choice meets is refused, and the message says what is possible.
    budget : {"bytes", "error"}
        What `limit` bounds; the other is made small.

    Returns
    -------
    PrecisionChoice
    """
    count = len(costs[0]) if costs else 1
    if any(len(layer) != count or any(len(cost) != 2 for cost in layer) for layer in costs):
        raise ValueError(f"costs must have {count} pairs (bytes, error) for each layer")
    flat = [float(number) for layer in costs for cost in layer for number in cost]
    chosen, total = _C.precision_choose(flat, count, budget, limit)
    return PrecisionChoice(chosen, *total)
