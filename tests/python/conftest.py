# SPDX-License-Identifier: MIT
"""What the tests of the Python package share: the oracle, random operands, the libraries there are.

The oracle multiplies dequantised operands in double precision, by NumPy alone.
"""

import os
import resource

import hypothesis
import ml_dtypes
import numpy as np
import pytest

# "default" explores; "ci" has the same examples each time, so that what a commit changed decides, not
# luck. HYPOTHESIS_PROFILE=ci is set by .ci/run.
for name, same in (("default", False), ("ci", True)):
    hypothesis.settings.register_profile(
        name, max_examples=150, deadline=None, derandomize=same, print_blob=True
    )
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

E4M3 = ml_dtypes.float8_e4m3fn
E5M2 = ml_dtypes.float8_e5m2
E8M0 = ml_dtypes.float8_e8m0fnu
BF16 = ml_dtypes.bfloat16


def blocks(size, block, phase=0):
    """How many scales `size` rows or columns need."""
    return 1 if block == 0 else -(-(phase + size) // block) if size else 0


def expand(scale, shape, granularity, phase=(0, 0)):
    """The scale of each element of a matrix, in double precision."""
    index = [
        np.zeros(n, int) if block == 0 else (np.arange(n) + p) // block
        for n, block, p in zip(shape, granularity, phase)
    ]
    scale = np.asarray(scale).astype(np.float64)
    sizes = [blocks(n, block, p) for n, block, p in zip(shape, granularity, phase)]
    return scale.reshape(sizes)[np.ix_(*index)]


def dequantized(codes, scale, granularity, phase=(0, 0)):
    codes = np.asarray(codes)
    return codes.astype(np.float64) * expand(scale, codes.shape, granularity, phase)


def reference(a, scale_a, b, scale_b, granularity, phase_a=(0, 0), phase_b=(0, 0)):
    """The product and the sum of its terms' magnitudes, which bounds what rounding may do."""
    da = dequantized(a, scale_a, granularity[0], phase_a)
    db = dequantized(b, scale_b, granularity[1], phase_b)
    return da @ db.T, np.abs(da) @ np.abs(db).T


# Half a unit in the last place of each result type, relative, and its smallest step.
HALF_ULP = {"float32": (2**-24, 2**-150), "bfloat16": (2**-8, 2**-134), "float16": (2**-11, 2**-25)}


def assert_close(result, expected, magnitude, sum_error=1e-5):
    """Each element within `sum_error` of its terms' magnitudes plus the rounding of its type."""
    result = np.asarray(result)
    relative, step = HALF_ULP[result.dtype.name]
    limit = sum_error * magnitude + relative * np.abs(expected) * (1 + 1e-3) + step
    error = np.abs(result.astype(np.float64) - expected)
    assert result.shape == expected.shape
    assert not (error > limit).any(), f"off by {(error / limit).max():.3g} times what is allowed"


def random_codes(rng, shape, dtype=E4M3):
    """Any finite code."""
    codes = rng.integers(0, 256, shape, dtype=np.uint8).view(dtype)
    codes[~np.isfinite(codes.astype(np.float32))] = 1.0
    return codes


def random_scale(rng, shape, granularity, dtype=np.float32, phase=(0, 0)):
    sizes = [blocks(n, block, p) for n, block, p in zip(shape, granularity, phase)]
    if dtype is np.float32:
        return rng.uniform(0.25, 4.0, sizes).astype(np.float32)
    return rng.integers(120, 134, sizes, dtype=np.uint8).view(dtype)


# Calls of each function in the tests of leaks and threads; `make python-soak` says a million.
CALLS = int(os.environ.get("DEEPGEMM_CALLS", "20000"))


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def assert_no_growth(calls):
    """CALLS calls of each function leave resident memory as it was.

    A third of them may add up to 4 bytes each, or two pages: the least of three thirds counts, since
    a leak adds in each.
    """
    grown = {}
    for name, call in calls.items():
        thirds = []
        for _ in range(3):
            before = resident()
            for _ in range(CALLS // 3):
                call()
            thirds.append(resident() - before)
        grown[name] = min(thirds)
    limit = max(2 * resource.getpagesize(), 4 * CALLS // 3)
    assert max(grown.values()) <= limit, grown


@pytest.fixture
def rng():
    seed = int(os.environ.get("DEEPGEMM_SEED", "1"))
    print(f"DEEPGEMM_SEED={seed}")
    return np.random.default_rng(seed)
