# SPDX-License-Identifier: MIT
"""The Python examples of the README and docs/python.md run as they are, each in its own process."""

import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
BLOCKS = [
    pytest.param(text, id=f"{name}:{i}")
    for name in ("README.md", "docs/python.md")
    for i, text in enumerate(
        re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL)
        if (ROOT / name).exists()
        else []
    )
]


@pytest.mark.skipif(not BLOCKS, reason="the documentation is not here")
def test_there_are_examples():
    assert len(BLOCKS) >= 5


@pytest.mark.parametrize("block", BLOCKS)
def test_example(block):
    if "torch" in block and importlib.util.find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", block],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
