# SPDX-License-Identifier: MIT
"""The Python examples of the README and of docs/ run as they are, each in a process of its own."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = [
    pytest.param(text, id=f"{path.relative_to(ROOT)}:{i}")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    for i, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
    )
]


def test_there_are_examples():
    pages = {block.id.partition(":")[0] for block in BLOCKS}
    assert len(BLOCKS) >= 7 and {"README.md", "docs/python.md"} <= pages


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block):
    if "torch" in block and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
