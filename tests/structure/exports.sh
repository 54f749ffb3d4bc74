#!/bin/sh
# SPDX-License-Identifier: MIT
# The shared library exports exactly the functions of the public header and needs only the libraries
# that are listed here: nothing of CUDA, no C++ (requirement G32).
set -eu
source=$1 build=$2
library=$build/libdeepgemm.so
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

nm -D --defined-only "$library" | awk '{print $3}' | sort >"$scratch/exported"
# Every function declared with DG_API: the word before its opening bracket.
grep -v '^#' "$source/include/deepgemm.h" | tr '\n' ' ' | grep -oE '\<DG_API\>[^;]*\([^;]*;' |
    sed -E 's/^DG_API ([^(]*)\(.*/\1/' | grep -oE 'dg_[a-z0-9_]+ *$' | tr -d ' ' |
    sort >"$scratch/declared"
[ -s "$scratch/declared" ] || { echo "no DG_API function was found in the header"; exit 1; }
diff -u "$scratch/declared" "$scratch/exported" || {
    echo "the header declares the lines marked -, the library exports those marked +"
    exit 1
}

readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -vxE 'lib(c|m|dl|pthread|gomp|omp|cjson)\.so(\.[0-9]+)*|ld-linux[^ ]*' >"$scratch/foreign" || true
[ ! -s "$scratch/foreign" ] || {
    echo "the library needs these too:"
    cat "$scratch/foreign"
    exit 1
}
