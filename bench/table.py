#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the JSON of `deepgemm bench --json` as Markdown.

Of `bench --grouped`: its rows, then each family of cases as means. Files whose names differ only in
"-1", "-2" and so on are rounds of one run: of each case the table shows the round whose share of the
floor is the middle one.
"""

import argparse
import json
import math
import re


def number(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def middle_rows(rounds):
    for same_case in zip(*(result["rows"] for result in rounds)):
        yield sorted(same_case, key=lambda row: row["floor_share"])[len(rounds) // 2]


def table(rows, peers):
    titles = ["recipe", "M", "N", "K", "µs", "GFLOP/s", "GB/s", "GB/s max", "of floor"]
    titles += [f"{p} µs (x)" for p in peers]
    yield "| " + " | ".join(titles) + " |"
    yield "|---" + "|---:" * (len(titles) - 1) + "|"
    for row in rows:
        mark = "*" if row["disturbed"] else ""
        cells = [
            row["recipe"] + mark,
            str(row["m"]),
            str(row["n"]),
            str(row["k"]),
            number(row["us"]),
            number(1000 * row["tflops"]),
            number(row["gbps"]),
            number(row["bandwidth_gbps"]),
            f"{row['floor_share']:.2f}",
        ]
        for p in peers:
            us = row["peer_us"].get(p)
            cells.append("–" if us is None else f"{number(us)} ({us / row['us']:.2f})")
        yield "| " + " | ".join(cells) + " |"


def facts(result, rows, peers):
    yield (
        f"{result['chip']}, {result['isa']}, {result['threads']} threads, "
        f"{result['weights']} weights, caches {result['caches']}, {result['fill']} values; "
        f"peak {result['peak_gflops']:.0f} GFLOP/s ({result['peak']}); "
        f"commit {result['commit']}, {result['date'][:10]}."
    )
    for peer in peers:
        yield f"{peer}: {result['peers'][peer]}."
    if any(row["disturbed"] for row in rows):
        yield "* other processes kept a tenth of a processor or more busy meanwhile."


def gpu_table(rows):
    """A line for each shape, the recipes side by side: our time, and the peer's over ours."""
    shapes = list(dict.fromkeys((row["m"], row["n"], row["k"]) for row in rows))
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    found = {(row["m"], row["n"], row["k"], row["recipe"]): row for row in rows}
    yield "| M x N x K | " + " | ".join(recipes) + " | cuBLAS BF16 |"
    yield "|---" + "|---:" * (len(recipes) + 1) + "|"
    for shape in shapes:
        cells, bf16 = [], None
        for recipe in recipes:
            row = found.get((*shape, recipe))
            peer = row and row["peer_us"].get("cublaslt_fp8")
            bf16 = (row and row["peer_us"].get("cublas_bf16")) or bf16
            cells.append(
                "–"
                if row is None
                else number(row["us"]) + (f" ({peer / row['us']:.2f})" if peer else "")
            )
        cells.append("–" if bf16 is None else number(bf16))
        yield "| " + " x ".join(map(str, shape)) + " | " + " | ".join(cells) + " |"


def geometric_mean(values):
    values = list(values)
    return f"{math.exp(sum(map(math.log, values)) / len(values)):.3f}" if values else "–"


def means(result):
    rows = result["rows"]
    if len(rows) < result.get("cases", 0):
        yield f"ended early: {len(rows)} of {result['cases']} cases"
    yield (
        f"{result['chip']}, {result['regime']}, SM clock {result['sm_mhz']:.0f} MHz, "
        f"{result['peers']['cublaslt_fp8']}, commit {result['commit']}, {result['date'][:10]}"
    )
    yield ""
    yield "| recipe | cases | of floor | cuBLASLt FP8 / ours | cuBLAS BF16 / ours | host µs |"
    yield "|---|---:|---:|---:|---:|---:|"
    for recipe in dict.fromkeys(row["recipe"] for row in rows):
        mine = [row for row in rows if row["recipe"] == recipe]
        cells = [str(len(mine)), geometric_mean(row["floor_share"] for row in mine)]
        for peer in ("cublaslt_fp8", "cublas_bf16"):
            cells.append(
                geometric_mean(
                    row["peer_us"][peer] / row["us"] for row in mine if peer in row["peer_us"]
                )
            )
        cells.append(geometric_mean(row["host_us"] for row in mine))
        yield f"| {recipe} | " + " | ".join(cells) + " |"


def rows_power(sizes):
    """The power of two that is nearest to the mean of the rows in "90,7x128"."""
    items = [re.match(r"(?:(\d+)x)?(\d+)", item).groups() for item in sizes.split(",")]
    total = sum(int(count or 1) * int(rows) for count, rows in items)
    return round(math.log2(total / sum(int(count or 1) for count, _ in items) + 1))


def grouped(result):
    """Cases of one recipe, form and number of products with about as many rows are a family."""
    rows, families = result["rows"], {}
    yield f"{result['chip']}, {result['grouped']}, commit {result['commit']}, {result['date'][:10]}"
    yield ""
    yield "| case | us | GB/s of weights | of floor | busiest / mean | separate / ours | cuBLASLt / ours |"
    yield "|---" + "|---:" * 6 + "|"
    for row in rows:
        recipe, form, *shape, sizes = row["case"].split()
        families.setdefault((recipe, form, row["products"], rows_power(sizes)), []).append(row)
        cells = [
            f"{row['us']:.1f}",
            number(row["weight_gbps"]),
            f"{row['floor_share']:.2f}",
            f"{row['busiest']:.2f}",
            f"{row['separate_us'] / row['us']:.2f}",
        ]
        peer = row["peer_us"].get("cublaslt_fp8")
        cells.append(f"{peer / row['us']:.2f}" if peer else "–")
        name = " ".join([recipe, form, *shape, sizes if len(sizes) < 40 else sizes[:36] + " ..."])
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield "| family | cases | of floor | separate / ours | cuBLASLt / ours |"
    yield "|---|---:|---:|---:|---:|"
    for (recipe, form, products, _), mine in families.items():
        cells = [
            str(len(mine)),
            geometric_mean(row["floor_share"] for row in mine),
            geometric_mean(row["separate_us"] / row["us"] for row in mine),
            geometric_mean(
                row["peer_us"]["cublaslt_fp8"] / row["us"]
                for row in mine
                if "cublaslt_fp8" in row["peer_us"]
            ),
        ]
        yield f"| {recipe} {form}, {products} products | " + " | ".join(cells) + " |"


def slower(results):
    """Of a GPU's results, what takes longer than 16 bits, and one token that takes longer than 16."""
    found, compared = {}, 0
    for result in results:
        tokens = {
            (row["recipe"], row["m"], row["n"], row["k"]): row["us"] for row in result["rows"]
        }
        for row in result["rows"]:
            recipe, m, n, k = (row[key] for key in ("recipe", "m", "n", "k"))
            others = [("cuBLAS BF16", 1.05, row["peer_us"].get("cublas_bf16"))]
            if m == 1:
                others.append(("M = 16", 1.02, tokens.get((recipe, 16, n, k))))
            for name, allowed, us in others:
                compared += us is not None
                if us is not None and row["us"] > allowed * us:
                    shapes = found.setdefault((recipe, result["weights"], m, name), [])
                    shapes.append(f"{n} x {k} ({row['us'] / us:.2f})")
    yield f"{sum(map(len, found.values()))} of {compared} comparisons:"
    yield ""
    yield "| recipe | weights | M | slower than | N x K (ratio of the times) |"
    yield "| --- | --- | ---: | --- | --- |"
    for key, shapes in found.items():
        yield f"| {' | '.join(map(str, key))} | {', '.join(shapes)} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--means",
        action="store_true",
        help="of a GPU's results: only the geometric means of each recipe",
    )
    parser.add_argument(
        "--slower",
        action="store_true",
        help="of a GPU's results: only what takes longer than 16 bits (by more than "
        "5 %%), and one token that takes longer than 16 (2 %%)",
    )
    parser.add_argument("files", metavar="FILE.json", nargs="+", help="written by deepgemm bench")
    arguments = parser.parse_args()
    runs = {}
    for path in arguments.files:
        with open(path, encoding="utf-8") as file:
            name = re.sub(r"(-\d+)?\.json$", "", path.rsplit("/", 1)[-1])
            runs.setdefault(name, []).append(json.load(file))
    if arguments.slower:
        print("\n".join(slower(rounds[0] for rounds in runs.values())))
        return
    for name, rounds in runs.items():
        if "grouped" in rounds[0]:
            print("\n".join(grouped(rounds[0])))
            continue
        if "regime" in rounds[0]:
            if not arguments.means:
                print("\n".join(gpu_table(rounds[0]["rows"])) + "\n")
            print("\n".join(means(rounds[0])))
            continue
        chosen = list(middle_rows(rounds))
        ran = [p for p in rounds[0]["peers"] if any(p in row["peer_us"] for row in chosen)]
        print(f"### {name}\n")
        print("\n".join(facts(rounds[0], chosen, ran)) + "\n")
        print("\n".join(table(chosen, ran)) + "\n")


main()
