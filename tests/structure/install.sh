#!/bin/sh
# SPDX-License-Identifier: MIT
# An installed library can be found and used: by pkg-config (shared and static) and by CMake.
set -eu
source=$1 build=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/prefix
log=$scratch/log

quietly() {
    "$@" >"$log" 2>&1 || {
        echo "failed: $*"
        cat "$log"
        exit 1
    }
}

quietly cmake --install "$build" --prefix "$prefix"
libdir=$(dirname "$(find "$prefix" -name pkgconfig)")
export PKG_CONFIG_PATH="$libdir/pkgconfig" LD_LIBRARY_PATH="$libdir"

for example in "$source"/examples/*.c; do
    name=$(basename "$example" .c)
    # shellcheck disable=SC2046 # the flags are words
    quietly cc "$example" -o "$scratch/$name" $(pkg-config --cflags --libs deepgemm) -lm
    quietly "$scratch/$name"
done
# shellcheck disable=SC2046
quietly cc "$example" -o "$scratch/static" $(pkg-config --cflags deepgemm) "$libdir/libdeepgemm.a" \
    $(pkg-config --static --libs-only-l deepgemm | sed 's/-ldeepgemm//')
quietly "$scratch/static"

mkdir "$scratch/user"
cat >"$scratch/user/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.20)
project(user LANGUAGES C)
find_package(deepgemm REQUIRED)
add_executable(user $example)
target_link_libraries(user PRIVATE deepgemm::deepgemm m)
END
quietly cmake -S "$scratch/user" -B "$scratch/user/build" -DCMAKE_PREFIX_PATH="$prefix"
quietly cmake --build "$scratch/user/build"
quietly "$scratch/user/build/user"
quietly "$prefix/bin/deepgemm" --version
quietly "$prefix/bin/deepgemm" info
