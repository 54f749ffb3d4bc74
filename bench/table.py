#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the JSON of `deepgemm bench --json` as Markdown tables: bench/table.py FILE.json ..."""
import json
import sys


def number(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(result):
    peers = [p for p in result["peers"] if any(p in row["peer_us"] for row in result["rows"])]
    titles = ["recipe", "M", "N", "K", "µs", "GFLOP/s", "GB/s", "of floor"]
    titles += [f"{p} µs (x)" for p in peers]
    yield "| " + " | ".join(titles) + " |"
    yield "|---" + "|---:" * (len(titles) - 1) + "|"
    for row in result["rows"]:
        mark = "*" if row["disturbed"] else ""
        cells = [row["recipe"] + mark, str(row["m"]), str(row["n"]), str(row["k"]), number(row["us"]),
                 number(1000 * row["tflops"]), number(row["gbps"]), f"{row['floor_share']:.2f}"]
        for p in peers:
            us = row["peer_us"].get(p)
            cells.append("–" if us is None else f"{number(us)} ({us / row['us']:.2f})")
        yield "| " + " | ".join(cells) + " |"


def facts(result):
    bandwidth = sorted(row["bandwidth_gbps"] for row in result["rows"])
    yield (f"{result['chip']}, {result['isa']}, {result['threads']} threads, "
           f"{result['weights']} weights, caches {result['caches']}, {result['fill']} values; "
           f"peak {result['peak_gflops']:.0f} GFLOP/s ({result['peak']}), bandwidth "
           f"{bandwidth[0]:.0f} to {bandwidth[-1]:.0f} GB/s; "
           f"commit {result['commit']}, {result['date'][:10]}.")
    if any(row["disturbed"] for row in result["rows"]):
        yield "* other processes kept a tenth of a processor or more busy meanwhile."
    for peer, about in result["peers"].items():
        if any(peer in row["peer_us"] for row in result["rows"]):
            yield f"{peer}: {about}."


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    print(f"### {path.rsplit('/', 1)[-1].removesuffix('.json')}\n")
    print("\n".join(facts(content)) + "\n")
    print("\n".join(table(content)) + "\n")
