# SPDX-License-Identifier: MIT
"""The public functions: names, defaults and documentation for those of the extension."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _C
from ._C import Context, Tensor, Weights

Array = Any  # an array of any library: see `deepgemm.tensor`
Dtype = Any  # "float8_e4m3fn", torch.bfloat16, numpy.float32, ...
Stream = Any  # None, an integer handle, torch.cuda.Stream, cupy.cuda.Stream
Pair = Sequence[int]

# Granularities of (A, B), each (rows, columns) that one scale covers.
TENSOR = ((0, 0), (0, 0))  #: one scale each: static per-tensor checkpoints
TOKEN_CHANNEL = ((1, 0), (1, 0))  #: one a row: dynamic per-token, per-channel checkpoints
BLOCK128 = ((1, 128), (128, 128))  #: DeepSeek-style checkpoints
BLOCK32 = ((32, 32), (32, 32))  #: the native block format
MX = ((1, 32), (1, 32))  #: OCP MX checkpoints, with scales of type float8_e8m0fnu


class Groups(NamedTuple):
    """How the products of G groups (experts) share the operands of one `gemm`.

    How large each group is stands in `sizes`, in device memory that the host never reads: a call may
    be captured in a CUDA graph once and replayed with other sizes.

    ============  =================  ===================  =============  ==================
    grouping      sizes              a                    b              out (and c)
    ============  =================  ===================  =============  ==================
    "by_end"      end rows [G]       [M, K]               [G, N, K]      [M, N]
    "by_row"      group of row [M]   [M, K]               [G, N, K]      [M, N]
    "masked"      rows in use [G]    [G, R, K]            [G, N, K]      [G, R, N]
    "k_columns"   K of each [G]      [M, all K]           [N, all K]     [G, M, N]
    "k_blocks"    K of each [G]      [M * all K], flat    [N * all K]    [G, M, N], given
    ============  =================  ===================  =============  ==================

    Scales have the shapes of their operands, divided by the granularity; `bias` is [G, N]. In place
    of `b` "by_end", "by_row" and "masked" take a sequence of G packed `Weights`. Rows of `out` that
    belong to no group are left as they are: undefined in a new array.
    """

    grouping: str
    #: int32. "by_end": group g begins at the end of group g - 1 rounded up to a multiple of
    #: `alignment`. "by_row": the rows of a group are one run; a value outside 0..G-1 makes a padding
    #: row. "k_blocks": each group's part of `a` is a contiguous [M, K of the group], one behind
    #: another, and sizes are multiples of 16. "k_columns": on a GPU groups begin at multiples of 16,
    #: else all are left alone. In both, where scales change along K, each group begins with a column
    #: of scales of its own.
    sizes: Array
    alignment: int = 1  #: "by_end": the multiple of rows at which groups begin
    padding: str = "untouched"  #: or "zero": what becomes of rows that belong to no group
    #: "by_end" and "by_row", int32: row r of the products is row gather[r] of `a`
    gather: Array | None = None
    scatter: Array | None = (
        None  #: int32: its result is row scatter[r] of `out`, which is given then
    )
    expected_rows: int = 0  #: a typical group's rows, a hint for the time it takes


_RUN, _PREPARE, _EXPLAIN, _WORKSPACE = range(4)


def gemm(
    a: Array,
    b: Array | Weights | Sequence[Weights],
    scale_a: Array,
    scale_b: Array | None = None,
    *,
    granularity: tuple[Pair, Pair],
    out: Array | None = None,
    out_dtype: Dtype = "bfloat16",
    bias: Array | None = None,
    c: Array | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    scale_out: Array | None = None,
    out_granularity: Pair = (0, 0),
    phase_a: Pair = (0, 0),
    phase_b: Pair = (0, 0),
    accumulation: str = "precise",
    groups: Groups | None = None,
    b_is_constant: bool = False,
    workspace: Array | None = None,
    context: Context | None = None,
    stream: Stream = None,
    _mode: int = _RUN,
) -> Any:
    """D = alpha * (scale_a . A)(scale_b . B)^T + beta * C + bias.

    Parameters
    ----------
    a : array [..., M, K]
        Codes of activations, float8_e4m3fn or float8_e5m2, contiguous along K. Leading dimensions
        are rows too.
    b : array [N, K] or Weights
        Codes of weights, contiguous along K, or weights that `pack` laid out; these bring their
        scales along.
    scale_a, scale_b : array
        Multipliers, float32 or float8_e8m0fnu, of shape [ceil(M / rows), ceil(K / columns)] and
        [ceil(N / rows), ceil(K / columns)] for their granularity (rows, columns), with any strides.
        One dimension suffices where the granularity leaves only one; the count is checked.
    granularity : ((rows, columns), (rows, columns))
        What one scale of A and one of B cover; 0 means all. The module has names for those in use:
        `BLOCK128`, `TOKEN_CHANNEL`, `TENSOR`, `BLOCK32`, `MX`. Never guessed from shapes.
    out : array [..., M, N], optional
        Where the result goes: float32, bfloat16, float16 or FP8. Exactly its elements are written.
        None makes a new one of type `out_dtype` in the library of `a`.
    out_dtype : dtype
        For a new `out`.
    bias : array [N], optional
        float32, bfloat16 or float16.
    c : array [..., M, N], optional
        Read when `beta` is not 0; may be `out` itself.
    scale_out : array, optional
        For FP8 results only, and needed there: code = round(value / scale_out).
    out_granularity, phase_a, phase_b : (rows, columns)
        The granularity of `scale_out`; the place inside its first block at which A or B begins.
    accumulation : {"precise", "fast"}
        FP32, promoted at least each 128 of K; or the device's own where that is faster.
    groups : Groups, optional
        Many products (experts) in one call: says how they share the operands, and their shapes.
    b_is_constant : bool
        A promise that all work that writes `b` and `scale_b` has ended: has been waited for when
        this call is made or, where it is captured, when the graph is replayed. A GPU may then read
        them before earlier work in the stream has ended, which takes less time for few tokens. Where
        the promise is broken, old values may be read. Packed weights need none; groups ignore it.
    workspace : array, optional
        Scratch memory, at least `workspace_bytes` long and 256-byte aligned.
    context : Context, optional
        None: the default one of the operands' device.
    stream : optional
        The CUDA stream. None: the current stream of the arrays' library.

    Returns
    -------
    array [..., M, N]
        `out`, or the new array. On a GPU the work is enqueued, not finished.

    Raises
    ------
    Error
        The subclass says what kind of argument was refused; the message names it, its value and
        what is needed. Nothing has been written then.
    """
    return _C.gemm(
        a, b, scale_a, scale_b, out, c, bias, scale_out, workspace,
        granularity, phase_a, phase_b, out_granularity, out_dtype, alpha, beta, accumulation,
        context, stream, groups, b_is_constant, _mode,
    )  # fmt: skip


def forward(
    *,
    A_q: Array,
    B_q: Array | Weights,
    scale_a: Array,
    scale_b: Array | None = None,
    out_dtype: Dtype = "float16",
    granularity: tuple[Pair, Pair] = BLOCK32,
    out: Array | None = None,
    bias: Array | None = None,
    context: Context | None = None,
    stream: Stream = None,
) -> Any:
    """A product of quantised operands: `gemm` with the names of a forward pass.

    Parameters
    ----------
    A_q : array [M, K]
        Codes of activations.
    B_q : array [N, K] or Weights
        Codes of weights.
    scale_a, scale_b : array [M / 32, K / 32] and [N / 32, K / 32]
        With the default granularity. Ragged edges have a scale of their own.
    out_dtype : dtype
        Of the result.
    granularity : ((rows, columns), (rows, columns))
        The default is `BLOCK32`, a scale for each 32 x 32 block of either operand, whatever the
        shapes of the scales are: scales of another granularity are refused unless it is given.
    out, bias, context, stream
        As in `gemm`.

    Returns
    -------
    array [M, N]
    """
    return gemm(
        A_q, B_q, scale_a, scale_b, granularity=granularity, out=out, out_dtype=out_dtype, bias=bias,
        context=context, stream=stream,
    )  # fmt: skip


def linear(
    x: Array,
    b: Array | Weights,
    scale_b: Array | None = None,
    *,
    granularity: tuple[Pair, Pair],
    bias: Array | None = None,
    out: Array | None = None,
    out_dtype: Dtype = None,
    dtype: Dtype = "float8_e4m3fn",
    context: Context | None = None,
) -> Any:
    """x B^T + bias, with activations that are quantised as they come: `quantize`, then `gemm`.

    Parameters
    ----------
    x : array [..., M, K]
        float32, float16 or bfloat16.
    b : array [N, K] or Weights
        Codes of weights, or packed weights.
    scale_b : array
        The scales of `b`; None for packed weights, which hold theirs.
    granularity : ((rows, columns), (rows, columns))
        Of the activations' dynamic scales and of `scale_b`.
    bias : array [N], optional
    out, out_dtype : optional
        As in `gemm`; the type of a new result is that of `x` unless given.
    dtype : {"float8_e4m3fn", "float8_e5m2"}
        Of the activations' codes.
    context : Context, optional

    Returns
    -------
    array [..., M, N]
        On a GPU the work is enqueued on the current stream of x's library.
    """
    return _C.linear(x, b, scale_b, bias, out, out_dtype, granularity, dtype, context)


def prepare(a: Array, b: Any, scale_a: Array, scale_b: Any = None, **options: Any) -> None:
    """Does now what a first `gemm` of these arguments would do once.

    Loads kernels and grows workspaces, so that later calls of this shape or a smaller M never
    allocate and can be captured in a CUDA graph. The arguments are those of `gemm`; nothing is
    computed.
    """
    gemm(a, b, scale_a, scale_b, _mode=_PREPARE, **options)


def explain(a: Array, b: Any, scale_a: Array, scale_b: Any = None, **options: Any) -> str:
    """The kernel that `gemm` would choose for these arguments, and why each better one was refused.

    With `groups` whose sizes are on the CPU, wherever the operands are: also how evenly the work is
    dealt out.
    """
    return str(gemm(a, b, scale_a, scale_b, _mode=_EXPLAIN, **options))


def workspace_bytes(a: Array, b: Any, scale_a: Array, scale_b: Any = None, **options: Any) -> int:
    """Bytes of scratch memory that `gemm` needs for these arguments; may be 0."""
    return int(gemm(a, b, scale_a, scale_b, _mode=_WORKSPACE, **options))


def quantize(
    x: Array,
    *,
    granularity: Pair,
    dtype: Dtype = "float8_e4m3fn",
    scale: Array | None = None,
    scale_dtype: Dtype = "float32",
    rounding: str = "exact",
    overflow: str = "saturate",
    amax_floor: float = 0.0,
    phase: Pair = (0, 0),
    out: Array | None = None,
    scale_out: Array | None = None,
    counts: bool = False,
    context: Context | None = None,
    stream: Stream = None,
) -> tuple[Any, ...]:
    """Codes and scales of a matrix: codes = round(x / scale).

    Parameters
    ----------
    x : array [..., rows, columns]
        float32, float16 or bfloat16, contiguous along its last dimension.
    granularity : (rows, columns)
        What one scale covers; 0 means all: (0, 0) per tensor, (1, 0) per row, (1, 128), (128, 128).
    dtype : {"float8_e4m3fn", "float8_e5m2"}
        Of the codes.
    scale : array, optional
        Given scales, positive and finite. None computes them: the largest finite magnitude of a
        block over the largest code; 1 for a block of zeros.
    scale_dtype : {"float32", "float8_e8m0fnu"}
        Of computed scales; the latter needs a rounding to powers of two.
    rounding : {"exact", "pow2_up", "pow2_down"}
        Of computed scales.
    overflow : {"saturate", "ieee"}
        What becomes of values beyond the largest code.
    amax_floor : float
        Replaces a smaller magnitude of a block.
    phase : (rows, columns)
        The place inside its first block at which `x` begins.
    out, scale_out : array, optional
        Where codes and computed scales go.
    counts : bool
        Also return an int64 array [3]: elements that saturated, that underflowed to zero, and that
        were NaN or infinite.
    context, stream
        As in `gemm`.

    Returns
    -------
    codes : array of the shape of `x`
    scale : array
        [..., rows, ceil(columns / block)] for granularities of one row, otherwise
        [ceil(rows / block), ceil(columns / block)] with all leading dimensions taken as rows.
    counts : array [3]
        With ``counts=True`` only.
    """
    return _C.quantize(
        x, granularity, phase, dtype, scale, scale_dtype, rounding, overflow, amax_floor, out,
        scale_out, counts, context, stream,
    )  # fmt: skip


def dequantize(
    codes: Array,
    scale: Array,
    *,
    granularity: Pair,
    dtype: Dtype = "float32",
    phase: Pair = (0, 0),
    out: Array | None = None,
    context: Context | None = None,
    stream: Stream = None,
) -> Any:
    """scale * code, rounded to float32 and then to `dtype` (float32, float16 or bfloat16).

    `codes` [..., rows, columns], `scale`, `granularity` and `phase` are those of `quantize`.
    """
    return _C.dequantize(codes, scale, granularity, phase, dtype, out, context, stream)


def pack(
    b: Array,
    scale_b: Array,
    *,
    granularity: Pair,
    phase: Pair = (0, 0),
    context: Context | None = None,
    stream: Stream = None,
) -> Weights:
    """Lays weights and their scales out for their device, once, so that `gemm` streams them.

    Parameters
    ----------
    b : array [N, K]
        Codes.
    scale_b : array
        Their scales.
    granularity, phase : (rows, columns)
        Of `scale_b`.
    context, stream
        As in `gemm`.

    Returns
    -------
    Weights
        To be given to `gemm` in place of `b`. It owns a copy: `b` and `scale_b` are not kept.
    """
    return _C.pack(b, scale_b, granularity, phase, context, stream)


def tensor(data: Array, dtype: Dtype = None) -> Tensor:
    """A typed view of an array's memory, without a copy.

    Libraries without FP8 types keep codes as bytes: ``tensor(bytes, "float8_e4m3fn")`` says what
    they are. Scales that are powers of two: ``tensor(bytes, "float8_e8m0fnu")``.

    Parameters
    ----------
    data : array
        Of any library; it is kept alive.
    dtype : dtype, optional
        Of the same size as the elements of `data`. None: theirs.
    """
    return _C.tensor(data, dtype)


def empty(shape: Sequence[int], dtype: Dtype, device: Any = "cpu") -> Tensor:
    """A new tensor, 256-byte aligned, contents undefined."""
    return _C.empty(shape, dtype, device)


def copy(x: Array, device: Any) -> Tensor:
    """A copy of a contiguous array on a device: for those who have no library that does it.

    ``copy(x, "cuda")`` brings an array to a GPU, ``copy(y, "cpu").numpy()`` a result back. It has
    arrived when the call returns.
    """
    return _C.copy(x, device)


def convert(x: Array, dtype: Dtype, *, overflow: str = "saturate") -> Any:
    """`x` in another floating-point type, on the CPU; `x` must be contiguous.

    Rounds to nearest, ties to even; NaN stays NaN. `overflow` is for FP8 targets. A conversion to
    float8_e8m0fnu must be exact, or `UnsupportedScale` is raised.
    """
    return _C.convert(x, dtype, overflow)


class Comparison(NamedTuple):
    """How far a result lies from its reference; the sums behind it are in double precision.

    Where a finite reference became NaN or infinite (`spoiled`), the errors are infinity, `snr_db`
    is -infinity and `cosine` 0, so that no limit is passed.
    """

    relative_error: float  #: ||result - reference|| / ||reference||
    snr_db: float  #: -20 log10(relative_error)
    cosine: float
    max_error: float
    mean_error: float
    finite: int  #: pairs of which both are finite
    reference_nan: int
    reference_inf: int
    result_nan: int
    result_inf: int
    spoiled: int  #: pairs whose reference is finite and whose result is not


def compare(reference: Array, result: Array) -> Comparison:
    """Compares two matrices [..., rows, columns] of the same shape, on the CPU.

    float32, float16 and bfloat16 in any mix.
    """
    return Comparison(**_C.compare(reference, result))


class Kernel(NamedTuple):
    """A row of the kernel table."""

    name: str  #: as in messages, profiles and ``Context(kernel=...)``
    backend: str  #: "cpu" or "cuda"
    architecture: str
    tile_m: int
    tile_n: int
    tile_k: int
    grouped: bool  #: for grouped products and tables alone; those of the CPU do all calls


def kernels() -> list[Kernel]:
    """All GEMM kernels of this build. `Context.why_not` says whether one can run."""
    return [Kernel(*row) for row in _C.kernels()]
