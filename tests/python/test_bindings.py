# SPDX-License-Identifier: MIT
"""Nothing of the C library is forgotten: each function is bound, or docs/python.md says why not."""

import pathlib
import re

import deepgemm

ROOT = pathlib.Path(__file__).parents[2]


def bound_code():
    """The extension's C without its comments."""
    sources = sorted((ROOT / "python/src").glob("*.c"))
    return "\n".join(
        re.sub(r"/\*.*?\*/", "", source.read_text(), flags=re.DOTALL) for source in sources
    )


def test_every_c_function_is_bound_or_has_a_reason():
    header = (ROOT / "include/deepgemm.h").read_text()
    # Declarations behind DG_API; the inline helpers are the header's own.
    functions = set(re.findall(r"^DG_API [^;(]*?(dg_\w+)\(", header, re.MULTILINE))
    assert {"dg_gemm_run", "dg_last_error", "dg_statistics_observe"} <= functions
    called = set(re.findall(r"\b(dg_\w+)\b", bound_code())) & functions
    manual = (ROOT / "docs/python.md").read_text()
    table = manual.partition("## Not bound")[2].partition("\n## ")[0]
    excused = set(re.findall(r"^\| `(dg_\w+)` \| \w.*\|$", table, re.MULTILINE))
    assert functions - called == excused


def test_every_option_is_bound():
    """Each field of each dg_..._options is set from an argument."""
    header = re.sub(r"/\*.*?\*/", "", (ROOT / "include/deepgemm.h").read_text(), flags=re.DOTALL)
    structs = re.findall(r"typedef struct dg_\w+_options \{(.*?)\} dg_\w+;", header, re.DOTALL)
    assert len(structs) >= 4
    fields = set()
    for body in structs:
        body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)  # a function pointer's name
        for declaration in body.split(";"):
            fields |= {
                re.findall(r"\w+", part)[-1] for part in declaration.split(",") if part.strip()
            }
    fields.remove("struct_bytes")
    assert {"serial_launch", "block_cols", "report", "user", "keep_count"} <= fields
    code = bound_code()
    assert {field for field in fields if f"options.{field}" not in code} == set()


def test_the_manual_lists_every_function():
    """The table of functions in docs/python.md and `__all__` have the same names."""
    manual = (ROOT / "docs/python.md").read_text()
    table = manual.partition("## Functions")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    listed = {name.split(".")[0] for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    exported = {
        name
        for name in deepgemm.__all__
        if name[0].islower()
        or name in ("Checkpoint", "Context", "GroupedGEMM", "Groups", "Plan", "Statistics")
    }
    assert exported <= listed, exported - listed
    assert listed <= set(deepgemm.__all__), listed - set(deepgemm.__all__)
