#!/bin/sh
# SPDX-License-Identifier: MIT
# The machine code of the GPU kernels, where the build has them and a disassembler is installed
# (scripts/setup-disassembler.sh): every product is made by the FP8 instruction of the tensor cores
# with the formats of the kernel's name, and nothing uses local memory, which is where spilled
# registers go. (The build refuses spills too, by the compiler's own report.)
# machine_code.sh SOURCE BUILD
set -eu
source=$1
build=$2
[ -d "$build/cubins" ] || { echo "no GPU kernels in this build"; exit 77; }
for folder in "$source"/.venv/lib/python3*/site-packages/nvidia/cu*/bin; do
    PATH=$PATH:$folder
done
if ! command -v cuobjdump >/dev/null || ! command -v nvdisasm >/dev/null; then
    echo "no disassembler: scripts/setup-disassembler.sh installs one"
    exit 77
fi
code=$(mktemp)
trap 'rm -f "$code"' EXIT
kernels=0
for cubin in "$build"/cubins/*.cubin; do
    name=$(basename "$cubin" .cubin)
    cuobjdump -sass "$cubin" >"$code"
    if grep -E '\b(LDL|STL)\b' "$code" >/dev/null; then
        echo "$name uses local memory"
        exit 1
    fi
    kernels=$((kernels + 1))
    case $name in
    gemm_*) ;;
    *) continue ;;
    esac
    formats=$(echo "$name" | grep -oE 'e[45]m[23]' | tr '[:lower:]' '[:upper:]' | sort -u | tr '\n' ' ')
    used=$(grep -oE 'QGMMA\.[0-9x]+\.F32\.E[45]M[23]\.E[45]M[23]' "$code" |
        grep -oE 'E[45]M[23]' | sort -u | tr '\n' ' ')
    if [ -z "$used" ] || [ "$formats" != "$used" ]; then
        echo "$name should multiply $formats on the tensor cores, and multiplies ${used:-nothing}"
        exit 1
    fi
done
echo "$kernels files of kernels: no local memory, the right instructions in each GEMM"
[ "$kernels" -gt 0 ]
