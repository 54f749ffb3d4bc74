#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the JSON of `deepgemm bench --json` as Markdown.

bench/table.py FILE.json ...   Files whose names differ only in "-1", "-2" and so on are rounds of
one run: of each case the table shows the round whose share of the floor is the middle one.
"""
import json
import re
import sys


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
        cells = [row["recipe"] + mark, str(row["m"]), str(row["n"]), str(row["k"]),
                 number(row["us"]), number(1000 * row["tflops"]), number(row["gbps"]),
                 number(row["bandwidth_gbps"]), f"{row['floor_share']:.2f}"]
        for p in peers:
            us = row["peer_us"].get(p)
            cells.append("–" if us is None else f"{number(us)} ({us / row['us']:.2f})")
        yield "| " + " | ".join(cells) + " |"


def facts(result, rows, peers):
    yield (f"{result['chip']}, {result['isa']}, {result['threads']} threads, "
           f"{result['weights']} weights, caches {result['caches']}, {result['fill']} values; "
           f"peak {result['peak_gflops']:.0f} GFLOP/s ({result['peak']}); "
           f"commit {result['commit']}, {result['date'][:10]}.")
    for peer in peers:
        yield f"{peer}: {result['peers'][peer]}."
    if any(row["disturbed"] for row in rows):
        yield "* other processes kept a tenth of a processor or more busy meanwhile."


runs = {}
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        name = re.sub(r"(-\d+)?\.json$", "", path.rsplit("/", 1)[-1])
        runs.setdefault(name, []).append(json.load(file))
for name, rounds in runs.items():
    chosen = list(middle_rows(rounds))
    ran = [p for p in rounds[0]["peers"] if any(p in row["peer_us"] for row in chosen)]
    print(f"### {name}\n")
    print("\n".join(facts(rounds[0], chosen, ran)) + "\n")
    print("\n".join(table(chosen, ran)) + "\n")
