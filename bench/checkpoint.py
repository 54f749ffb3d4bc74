# SPDX-License-Identifier: MIT
"""How fast a checkpoint is quantised and converted, beside what the memory and the disk can do.

    python3 bench/checkpoint.py build/deepgemm FOLDER [GIGABYTES]

Makes a BF16 checkpoint of that size (4) in FOLDER, which is removed again, and runs each command
three times. A line has the best of them: gigabytes of input a second, and the processor time of a
gigabyte, user and system, over all threads. `read` and `copy` are `cat` into nothing and `cp`, both
with the file in the page cache, as the commands have it; `copy` and the commands end when their output
is on the disk. For numbers that mean something, on an idle machine.
"""

import argparse
import json
import os
import pathlib
import shutil
import struct
import sys
import time

MATRIX = 4096  # rows and columns of each tensor


def make_checkpoint(path, gigabytes):
    """Matrices of random values, of which one in 256 is large: no two blocks have the same scale."""
    count = max(1, round(gigabytes * 1e9 / (2 * MATRIX * MATRIX)))
    size = 2 * MATRIX * MATRIX
    header = {
        f"model.layers.{i}.mlp.up_proj.weight": {
            "dtype": "BF16",
            "shape": [MATRIX, MATRIX],
            "data_offsets": [i * size, (i + 1) * size],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    # The upper byte of a BF16 value: the sign, and the exponent but for its last bit.
    upper = bytes((byte & 0x80) | (0x3B + (byte & 1) if byte > 0 else 0x3F) for byte in range(256))
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            data = bytearray(os.urandom(size))
            data[1::2] = data[1::2].translate(upper)
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return count * size


def run(arguments):
    """Seconds and processor seconds of a command, which must succeed."""
    began = time.monotonic()
    child = os.posix_spawnp(
        arguments[0],
        arguments,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    if status != 0:
        sys.exit(f"{' '.join(arguments)} failed")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tool", help="the program deepgemm")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("gigabytes", type=float, nargs="?", default=4.0)
    options = parser.parse_args()
    tool, folder, gigabytes = options.tool, options.folder, options.gigabytes
    place = folder / f"bench-checkpoint-{os.getpid()}"
    (place / "wide").mkdir(parents=True)
    try:
        wide = place / "wide" / "model.safetensors"
        total = make_checkpoint(wide, gigabytes)
        output, fp8 = place / "out", place / "fp8"
        run([tool, "quantize", str(place / "wide"), str(fp8)])
        codes = (fp8 / "model.safetensors").stat().st_size
        commands = [
            ("read 16 bits", total, ["cat", str(wide)]),
            ("copy 16 bits", total, ["sh", "-c", 'cp "$0" "$1" && sync "$1"', wide, output]),
        ]
        for layout in ("block", "channel", "tensor", "ct-mxfp8"):
            arguments = [tool, "quantize", place / "wide", output, "--format", layout]
            commands.append((f"quantize to {layout}", total, arguments))
        for layout in ("ct-block", "channel", "bf16"):
            arguments = [tool, "convert", fp8, output, "--to", layout]
            commands.append((f"convert block to {layout}", codes, arguments))
        print(f"{total / 1e9:.2f} GB of BF16, {os.cpu_count()} processors")
        print("what                       GB/s   CPU s/GB")
        for what, size, arguments in commands:
            best = None
            for _ in range(3):
                one = run([str(argument) for argument in arguments])
                best = one if best is None or one < best else best
                if output.is_dir():
                    shutil.rmtree(output)
                else:
                    output.unlink(missing_ok=True)
            print(
                f"{what:24} {size / best[0] / 1e9:6.2f}   {best[1] / size * 1e9:8.2f}", flush=True
            )
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
