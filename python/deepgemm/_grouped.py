# SPDX-License-Identifier: MIT
"""Grouped products: mixtures of experts, and lists of products of any shapes."""

import threading
from collections.abc import Sequence
from typing import Any

from . import _C
from ._api import BLOCK32, Array, Pair, Stream
from ._C import Context, Weights


class Plan:
    """A number of products of any shapes that one launch computes. `GroupedGEMM.prepare` makes it.

    Attributes
    ----------
    num_problems : int
    shapes : list of (m, n, k)
        The largest sizes that each problem was prepared for; the plan takes any up to the largest
        m, n and k of them all.
    """

    def __init__(self, num_problems: int, shapes: Sequence[Sequence[int]]) -> None:
        self.num_problems = int(num_problems)
        self.shapes = [tuple(int(size) for size in shape) for shape in shapes]
        if len(self.shapes) != self.num_problems:
            raise ValueError(f"num_problems is {num_problems}, but shapes has {len(self.shapes)}")
        if any(len(shape) != 3 for shape in self.shapes):
            raise ValueError("shapes must hold (m, n, k) for each problem")
        self._key: tuple[Any, ...] | None = None
        self._table: Any = None
        self._lock = threading.RLock()  # the library allows one thread at a time

    def _open(self, *key: Any) -> Any:
        """The table for operands of these types on this device, a new one when any of it changed."""
        if key != self._key:
            largest = [max((shape[i] for shape in self.shapes), default=0) for i in range(3)]
            self._table = _C.table(self.num_problems, *largest, *key)
            self._key = key
        return self._table

    def _empty(self, stream: Stream) -> None:
        """Describes no product at all, so that `run` computes none."""
        if self._table is not None:
            for i in range(self.num_problems):
                self._table.set(i)
            self._table.update(stream)

    def run(self, stream: Stream = None) -> None:
        """Enqueues the products again, as the last `GroupedGEMM.forward` described them.

        The launch does not depend on what the problems are, so a CUDA graph that captured it stays
        valid when `forward` describes others.
        """
        with self._lock:
            self._made().run(stream)

    def explain(self) -> str:
        """The kernel that computes the products, and how evenly they are dealt out."""
        with self._lock:
            return str(self._made().explain())

    def _made(self) -> Any:
        if self._table is None:
            raise RuntimeError("the plan has no operands yet: call GroupedGEMM.forward() first")
        return self._table

    def update_device(
        self,
        *,
        m: Array | None = None,
        n: Array | None = None,
        k: Array | None = None,
        a: Array | None = None,
        b: Array | None = None,
        c: Array | None = None,
        out: Array | None = None,
        bias: Array | None = None,
        scale_a: Array | None = None,
        scale_b: Array | None = None,
        scale_out: Array | None = None,
        stream: Stream = None,
    ) -> None:
        """Changes sizes (int32) and addresses (int64) from arrays in device memory.

        Each has one entry a problem; None leaves that property as it is. Nothing visits the host,
        so this can be captured in a CUDA graph; the arrays that addresses point into must be kept
        alive by the caller.
        """
        with self._lock:
            self._made().update_device(
                m, n, k, a, b, c, out, bias, scale_a, scale_b, scale_out, stream
            )


class GroupedGEMM:
    """Products of any shapes in one launch.

    Parameters
    ----------
    granularity : ((rows, columns), (rows, columns))
        What one scale of A and of B cover. The default is `BLOCK32`, 32 x 32 blocks.
    accumulation : {"precise", "fast"}
    context : Context, optional

    Examples
    --------
    >>> grouped = GroupedGEMM()
    >>> plan = grouped.prepare(num_problems=2, shapes=[(64, 96, 128), (5, 96, 256)])
    >>> grouped.forward(plan=plan, a_list=..., b_list=..., scales_a=..., scales_b=..., out_list=...)
    """

    def __init__(
        self,
        *,
        granularity: tuple[Pair, Pair] = BLOCK32,
        accumulation: str = "precise",
        context: Context | None = None,
    ) -> None:
        self.granularity = granularity
        self.accumulation = accumulation
        self.context = context

    def prepare(self, num_problems: int, shapes: Sequence[Sequence[int]]) -> Plan:
        """A plan for `num_problems` products of at most these shapes, a list of (m, n, k)."""
        return Plan(num_problems, shapes)

    def forward(
        self,
        *,
        plan: Plan,
        a_list: Sequence[Array],
        b_list: Sequence[Array | Weights],
        scales_a: Sequence[Array],
        scales_b: Sequence[Array | None],
        out_list: Sequence[Array],
        bias_list: Sequence[Array | None] | None = None,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: Stream = None,
    ) -> Sequence[Array]:
        """out[i] = alpha * (scales_a[i] . a[i])(scales_b[i] . b[i])^T + beta * out[i] + bias[i].

        Parameters
        ----------
        plan : Plan
            It keeps the arrays until the next call.
        a_list, b_list, scales_a, scales_b, out_list, bias_list : sequences
            Arrays as for `gemm`, all of the same types, at most `plan.num_problems` of them. No
            output may overlap what another problem reads or writes.
        alpha, beta : float
        stream : optional

        Returns
        -------
        sequence of arrays
            `out_list`. On a GPU the work is enqueued, not finished.
        """
        count = len(a_list)
        bias_list = [None] * count if bias_list is None else bias_list
        lists = (b_list, scales_a, scales_b, out_list, bias_list)
        if count > plan.num_problems or any(len(one) != count for one in lists):
            raise ValueError(
                f"a_list has {count} arrays, the others {[len(one) for one in lists]}: expected the "
                f"same number, at most {plan.num_problems}"
            )
        if count == 0:
            with plan._lock:
                plan._empty(stream)
            return out_list
        a, b, out = (_describe(one[0]) for one in (a_list, b_list, out_list))
        types = (a.dtype, b.dtype, out.dtype, "float32", "float32")
        with plan._lock:
            table = plan._open(*types, self.granularity, self.accumulation, a.device, self.context)
            for i in range(count):
                found = table.set(
                    i, a_list[i], b_list[i], scales_a[i], scales_b[i], out_list[i],
                    out_list[i] if beta else None, bias_list[i], None, None, self.granularity, (0, 0),
                    (0, 0), (0, 0), None, alpha, beta, self.accumulation, self.context, stream,
                )  # fmt: skip
            for i in range(count, plan.num_problems):
                table.set(i)
            stream = found if stream is None else stream
            table.update(stream)
            table.run(stream)
        return out_list


def _describe(array: Any) -> Any:
    """Something with a dtype and a device, by their names."""
    return array if isinstance(array, Weights) else _C.tensor(array, None)
