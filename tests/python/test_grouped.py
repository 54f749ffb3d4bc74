# SPDX-License-Identifier: MIT
"""Grouped products against one oracle product a group, with what must stay untouched."""

import sys
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import deepgemm
from conftest import E4M3, assert_close, random_codes, random_scale, reference
from deepgemm import Groups

G128 = deepgemm.BLOCK128
WGRAD = ((1, 128), (1, 128))


def experts(rng, count, n, k):
    b = random_codes(rng, (count, n, k))
    scale_b = np.stack([random_scale(rng, (n, k), G128[1]) for _ in range(count)])
    return b, scale_b


seeds = st.integers(0, 2**32 - 1)
counts = st.integers(1, 5)


@given(
    seeds, counts, st.integers(1, 70), st.integers(1, 300), st.sampled_from([1, 4, 16]), st.data()
)
def test_by_end(seed, count, n, k, alignment, data):
    rng = np.random.default_rng(seed)
    b, scale_b = experts(rng, count, n, k)
    begins, ends, row = [], [], 0
    for _ in range(count):
        row = -(-row // alignment) * alignment
        begins.append(row)
        row += data.draw(st.integers(0, 20))
        ends.append(row)
    rows = -(-row // alignment) * alignment + 3
    a = random_codes(rng, (rows, k))
    scale_a = random_scale(rng, a.shape, G128[0])
    used = np.zeros(rows, bool)
    for begin, end in zip(begins, ends):
        used[begin:end] = True
    a.view(np.uint8)[~used], scale_a[~used] = 0x7F, np.nan  # padding has no influence
    for padding in ("untouched", "zero"):
        out = np.full((rows, n), 77, np.float32)
        deepgemm.gemm(
            a,
            b,
            scale_a,
            scale_b,
            granularity=G128,
            out=out,
            groups=Groups("by_end", np.array(ends, np.int32), alignment=alignment, padding=padding),
        )
        assert (out[~used] == (0 if padding == "zero" else 77)).all()
        for g in range(count):
            part = slice(begins[g], ends[g])
            expected = reference(a[part], scale_a[part], b[g], scale_b[g], G128)
            assert_close(out[part], *expected)


@given(seeds, counts, st.integers(1, 40), st.integers(1, 200), st.integers(0, 30), st.booleans())
def test_by_row_with_gather_and_scatter(seed, count, n, k, rows, packed):
    """Tokens gathered into a run for each expert, runs in any order, and back to their places."""
    rng = np.random.default_rng(seed)
    b, scale_b = experts(rng, count, n, k)
    tokens = 20
    a = random_codes(rng, (tokens, k))
    scale_a = random_scale(rng, a.shape, G128[0])
    group = np.full(rows, -1, np.int32)
    cuts = np.sort(rng.integers(0, rows + 1, 2 * count))
    for g, first in zip(rng.permutation(count), range(0, 2 * count, 2)):
        group[cuts[first] : cuts[first + 1]] = g  # one run, padding rows around it
    gather = rng.integers(0, tokens, rows).astype(np.int32)
    scatter = rng.permutation(rows + 4)[:rows].astype(np.int32)
    out = np.full((rows + 4, n), 77, np.float32)
    weights = [deepgemm.pack(b[g], scale_b[g], granularity=(128, 128)) for g in range(count)]
    deepgemm.gemm(
        a,
        weights if packed else b,
        scale_a,
        None if packed else scale_b,
        granularity=G128,
        out=out,
        groups=Groups("by_row", group, gather=gather, scatter=scatter),
    )
    written = np.zeros(rows + 4, bool)
    for r in range(rows):
        if group[r] >= 0:
            one = slice(gather[r], gather[r] + 1)
            expected = reference(a[one], scale_a[one], b[group[r]], scale_b[group[r]], G128)
            assert_close(out[scatter[r] : scatter[r] + 1], *expected)
            written[scatter[r]] = True
    assert (out[~written] == 77).all()


@given(seeds, counts, st.integers(1, 20), st.integers(1, 50), st.integers(1, 260))
def test_masked(seed, count, most, n, k):
    rng = np.random.default_rng(seed)
    b, scale_b = experts(rng, count, n, k)
    a = random_codes(rng, (count, most, k))
    scale_a = random_scale(rng, (count * most, k), G128[0]).reshape(count, most, -1)
    used = rng.integers(0, most + 1, count).astype(np.int32)
    bias = rng.standard_normal((count, n)).astype(np.float32)
    out = np.full((count, most, n), 77, np.float32)
    deepgemm.gemm(
        a,
        b,
        scale_a,
        scale_b,
        granularity=G128,
        out=out,
        bias=bias,
        groups=Groups("masked", used, expected_rows=int(used.mean())),
    )
    for g in range(count):
        expected, magnitude = reference(
            a[g, : used[g]], scale_a[g, : used[g]], b[g], scale_b[g], G128
        )
        expected = expected + bias[g].astype(np.float64)
        assert_close(out[g, : used[g]], expected, magnitude + np.abs(bias[g]))
        assert (out[g, used[g] :] == 77).all()


@given(seeds, counts, st.integers(1, 40), st.integers(1, 40), st.booleans(), st.booleans())
def test_groups_along_k(seed, count, m, n, blocks, accumulate):
    """Weight gradients: FP32, in place or not, with groups of K = 0."""
    rng = np.random.default_rng(seed)
    sizes = (rng.integers(0, 3, count) * 128).astype(np.int32)
    total = int(sizes.sum())
    a, b = random_codes(rng, (m, total)), random_codes(rng, (n, total))
    scale_a = random_scale(rng, a.shape, WGRAD[0]).reshape(m, -1)
    scale_b = np.asfortranarray(random_scale(rng, b.shape, WGRAD[1]).reshape(n, -1))
    out = np.full((count, m, n), 7, np.float32)
    ends = np.cumsum(sizes)
    parts = [slice(end - size, end) for end, size in zip(ends, sizes)]
    given_a, given_b = a, b
    if blocks:
        given_a = np.concatenate([a[:, p].reshape(-1) for p in parts])
        given_b = np.concatenate([b[:, p].reshape(-1) for p in parts])
    deepgemm.gemm(
        given_a,
        given_b,
        scale_a,
        scale_b,
        granularity=WGRAD,
        out=out,
        c=out if accumulate else None,
        beta=float(accumulate),
        groups=Groups("k_blocks" if blocks else "k_columns", sizes),
    )
    for g, part in enumerate(parts):
        scales = slice(part.start // 128, part.stop // 128)
        expected, magnitude = reference(
            a[:, part], scale_a[:, scales], b[:, part], scale_b[:, scales], WGRAD
        )
        start = 7.0 if accumulate else 0.0
        assert_close(out[g], expected + start, magnitude + start)


def test_new_results(rng):
    b, scale_b = experts(rng, 3, 64, 128)
    a = random_codes(rng, (10, 128))
    scale_a = random_scale(rng, a.shape, G128[0])
    groups = Groups("by_end", np.array([2, 2, 9], np.int32), padding="zero")
    options = {"granularity": G128, "groups": groups}
    out = deepgemm.gemm(a, b, scale_a, scale_b, out_dtype="float16", **options)
    assert out.shape == (10, 64) and out.dtype == np.float16 and (out[9] == 0).all()
    masked = Groups("masked", np.array([1, 0, 10], np.int32), padding="zero")
    deep = deepgemm.gemm(
        a[None][[0, 0, 0]], b, scale_a[None][[0, 0, 0]], scale_b, granularity=G128, groups=masked
    )
    assert deep.shape == (3, 10, 64) and (deep[1] == 0).all()
    assert deepgemm.prepare(a, b, scale_a, scale_b, **options) is None
    text = deepgemm.explain(a, b, scale_a, scale_b, **options)
    assert "kernel " in text and "balance " in text
    with pytest.raises(deepgemm.InvalidArgument, match="the context's"):
        deepgemm.workspace_bytes(a, b, scale_a, scale_b, **options)
    with pytest.raises(deepgemm.InvalidArgument, match="workspace is given"):
        deepgemm.gemm(a, b, scale_a, scale_b, workspace=np.zeros(9, np.uint8), **options)
    with pytest.raises(TypeError, match="expected a deepgemm.Groups"):
        deepgemm.gemm(a, b, scale_a, scale_b, granularity=G128, groups="by_end")


def change(**fields):
    """Other fields of the groups."""
    return lambda call: {"groups": call["groups"]._replace(**fields)}


ROWS = np.arange(10, dtype=np.int32)
BAD = {
    "two runs of a group": (
        change(grouping="by_row", sizes=np.array([0, 1, 0] + [2] * 7, np.int32)),
        deepgemm.InvalidArgument, "one run"),
    "sizes of another type": (
        change(sizes=np.array([2, 2, 9])), deepgemm.InvalidArgument, "int32.*int64"),
    "too few sizes": (
        change(sizes=np.array([2, 2], np.int32)), deepgemm.InvalidArgument, "expected 3"),
    "no sizes": (change(sizes=None), deepgemm.InvalidArgument, "sizes"),
    "grouping": (change(grouping="none"), ValueError, "by_end"),
    "alignment": (change(alignment=0), deepgemm.InvalidArgument, "alignment is 0"),
    "padding": (change(padding="ones"), ValueError, "untouched"),
    "experts' scales": (
        lambda o: {"scale_b": o["scale_b"][:2]}, deepgemm.InvalidArgument, "scale_b has 2 groups"),
    "scatter without out": (
        lambda o: {**change(scatter=ROWS)(o), "out": None}, deepgemm.InvalidArgument, "out is None"),
    "weights of another kind": (
        lambda o: {"b": ["x"], "scale_b": None}, TypeError, r"b\[0\] is a"),
    "no weights": (lambda o: {"b": [], "scale_b": None}, deepgemm.InvalidArgument, "0 packed"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refusals(rng, case):
    wrong, error, text = BAD[case]
    b, scale_b = experts(rng, 3, 64, 128)
    a = random_codes(rng, (10, 128))
    out = np.full((10, 64), 77, np.float32)
    good = {
        "a": a, "b": b, "scale_a": random_scale(rng, a.shape, G128[0]), "scale_b": scale_b,
        "groups": Groups("by_end", np.array([2, 2, 9], np.int32)), "granularity": G128, "out": out,
    }  # fmt: skip
    with pytest.raises(error, match=text):
        deepgemm.gemm(**{**good, **wrong(good)})
    assert (out == 77).all()
    assert deepgemm.gemm(**good) is out


def problems(rng, shapes, granularity=deepgemm.BLOCK32):
    a = [random_codes(rng, (m, k)) for m, _, k in shapes]
    b = [random_codes(rng, (n, k)) for _, n, k in shapes]
    return {
        "a_list": a,
        "b_list": b,
        "scales_a": [random_scale(rng, x.shape, granularity[0]) for x in a],
        "scales_b": [random_scale(rng, x.shape, granularity[1]) for x in b],
    }


def check(given, out, granularity=deepgemm.BLOCK32):
    for i, result in enumerate(out):
        expected = reference(
            given["a_list"][i], given["scales_a"][i], given["b_list"][i], given["scales_b"][i],
            granularity,
        )  # fmt: skip
        assert_close(result, *expected)


def test_plan_as_in_the_article(rng):
    shapes = [(64, 96, 128), (5, 96, 256), (0, 33, 64), (7, 1, 32), (1, 2, 3), (9, 9, 9), (40, 8, 0),
              (2, 64, 96)]  # fmt: skip
    grouped = deepgemm.GroupedGEMM()
    plan = grouped.prepare(num_problems=8, shapes=shapes)
    given = problems(rng, shapes)
    out = [np.full((m, n), 77, np.float32) for m, n, _ in shapes]
    assert grouped.forward(plan=plan, **given, out_list=out) is out
    check(given, out)
    # Other shapes and fewer problems, in the same plan.
    shapes = [(3, 20, 40), (33, 5, 256)]
    given = problems(rng, shapes)
    out = [np.full((m, n), 77, np.float32) for m, n, _ in shapes]
    grouped.forward(plan=plan, **given, out_list=out)
    check(given, out)
    # The same again, by the plan alone: it keeps its operands.
    copies = [x.copy() for x in out]
    for x in out:
        x[:] = 77
    plan.run()
    assert all((x == y).all() for x, y in zip(out, copies))
    # Sizes from an array.
    m = np.array([1, 30, 0, 0, 0, 0, 0, 0], np.int32)
    for x in out:
        x[:] = 77
    plan.update_device(m=m)
    plan.run()
    assert (out[0][:1] == copies[0][:1]).all() and (out[0][1:] == 77).all()
    assert (out[1][30:] == 77).all()
    assert "kernel " in plan.explain()
    # Another result type makes the plan anew.
    half = [np.full(x.shape, 77, np.float16) for x in out]
    grouped.forward(plan=plan, **given, out_list=half)
    assert all(
        np.isclose(x, y, rtol=2e-3).all() | ~np.isfinite(x).all() for x, y in zip(half, copies)
    )


def test_plan_options_and_refusals(rng):
    granularity = deepgemm.TOKEN_CHANNEL
    grouped = deepgemm.GroupedGEMM(granularity=granularity)
    plan = grouped.prepare(2, [(4, 8, 16), (2, 8, 16)])
    with pytest.raises(RuntimeError, match="no operands"):
        plan.run()
    with pytest.raises(RuntimeError, match="no operands"):
        plan.explain()
    given = problems(rng, [(4, 8, 16), (2, 8, 16)], granularity)
    out = [np.full((m, 8), 7, np.float32) for m in (4, 2)]
    weights = [
        deepgemm.pack(b, s, granularity=(1, 0)) for b, s in zip(given["b_list"], given["scales_b"])
    ]
    packed = {**given, "b_list": weights, "scales_b": [None, None]}
    grouped.forward(plan=plan, **packed, out_list=out, beta=1.0)
    check(given, [x - 7 for x in out], granularity)
    with pytest.raises(deepgemm.InvalidArgument, match="5, 8, 16"):
        large = problems(rng, [(5, 8, 16)], granularity)
        grouped.forward(plan=plan, **large, out_list=[np.zeros((5, 8), np.float32)])
    with pytest.raises(ValueError, match="at most 2"):
        grouped.forward(plan=plan, **given, out_list=out[:1])
    with pytest.raises(ValueError, match="num_problems is 3"):
        grouped.prepare(3, [(1, 1, 1)])
    with pytest.raises(deepgemm.InvalidArgument, match="3 elements: expected 2"):
        plan.update_device(m=np.zeros(3, np.int32))
    assert np.zeros(1, E4M3).nbytes == 1


def test_a_forward_of_nothing_empties_the_plan(rng):
    grouped = deepgemm.GroupedGEMM()
    plan = grouped.prepare(2, [(8, 64, 128)] * 2)
    nothing = {name: [] for name in ("a_list", "b_list", "scales_a", "scales_b", "out_list")}
    assert grouped.forward(plan=plan, **nothing) == []
    given = problems(rng, [(8, 64, 128)] * 2)
    out = [np.zeros((8, 64), np.float32) for _ in range(2)]
    held = given["a_list"][0]
    before = sys.getrefcount(held)
    grouped.forward(plan=plan, **given, out_list=out)
    grouped.forward(plan=plan, **nothing)
    assert sys.getrefcount(held) == before
    for x in out:
        x[:] = 77
    plan.run()
    assert all((x == 77).all() for x in out)


def test_a_refused_forward_leaves_the_plan_as_it_was(rng):
    """Also the arrays that it reads, of which nobody else may have kept one."""
    grouped = deepgemm.GroupedGEMM()
    plan = grouped.prepare(2, [(8, 64, 128)] * 2)
    given = problems(rng, [(8, 64, 128)] * 2)
    out = [np.zeros((8, 64), np.float32) for _ in range(2)]
    held = [x for one in given.values() for x in one]
    before = [sys.getrefcount(x) for x in held]
    grouped.forward(plan=plan, **given, out_list=out)
    expected = [x.copy() for x in out]
    during = [sys.getrefcount(x) for x in held]
    assert all(after > count for after, count in zip(during, before))
    wrong = problems(rng, [(8, 64, 128)] * 2)
    wrong["b_list"][1] = wrong["b_list"][1][:, :100]
    others = [np.full((8, 64), 77, np.float32) for _ in range(2)]
    with pytest.raises(deepgemm.InvalidArgument, match="same K"):
        grouped.forward(plan=plan, **wrong, out_list=others)
    assert all((x == 77).all() for x in others)
    assert all(sys.getrefcount(x) > count for x, count in zip(held, before))
    for x in out:
        x[:] = 0
    plan.run()
    assert all((x == y).all() for x, y in zip(out, expected))
    grouped.forward(plan=plan, **given, out_list=out)
    del plan
    assert [sys.getrefcount(x) for x in held] == before


def test_a_plan_in_many_threads(rng):
    """Each forward() of one plan gives its own results, though others come between."""
    plan = deepgemm.GroupedGEMM().prepare(2, [(8, 64, 128)] * 2)
    cases, outs = [], []
    for _ in range(4):
        cases.append(problems(rng, [(8, 64, 128)] * 2))
        outs.append([np.zeros((8, 64), np.float32) for _ in range(2)])

    def work(index):
        for _ in range(20):
            deepgemm.GroupedGEMM().forward(plan=plan, **cases[index], out_list=outs[index])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for case, out in zip(cases, outs):
        check(case, out)


def test_a_plan_follows_what_it_is_for(rng):
    """Another context or accumulation makes the table anew."""
    given = problems(rng, [(8, 64, 128)])
    plan = deepgemm.GroupedGEMM().prepare(1, [(8, 64, 128)])
    made = set()
    for context in (None, deepgemm.Context(threads=1), deepgemm.Context(isa="generic")):
        grouped = deepgemm.GroupedGEMM(context=context)
        out = [np.zeros((8, 64), np.float32)]
        grouped.forward(plan=plan, **given, out_list=out)
        check(given, out)
        made.add(plan._table)
    assert len(made) == 3 and "generic" in plan.explain()
