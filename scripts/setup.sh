#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs what a job needs: scripts/setup.sh build|clang|lint|python... As root on Debian or Ubuntu
# it installs the packages that are missing; otherwise it names them. Does nothing when all are there.
set -eu

missing=
need() { # need PACKAGE CHECK...: the package is missing when the check fails
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

for job in "$@"; do
    case $job in
    build)
        need gcc sh -c 'command -v cc'
        need g++ sh -c 'command -v c++'
        need libc6-dev sh -c 'echo "#include <stdio.h>" | cc -E -'
        need cmake sh -c 'command -v cmake'
        need ninja-build sh -c 'command -v ninja'
        need pkg-config sh -c 'command -v pkg-config'
        need libcjson-dev pkg-config --exists libcjson
        need libcmocka-dev pkg-config --exists cmocka
        ;;
    clang) # for sanitizers and fuzzing
        need clang sh -c 'command -v clang'
        need libomp-dev sh -c 'echo "#include <omp.h>" | clang -fopenmp -E -'
        need libclang-rt-dev sh -c \
            'echo "int main(void) { return 0; }" | clang -fsanitize=thread -x c - -o /dev/null'
        ;;
    lint)
        need clang-format sh -c 'command -v clang-format'
        need clang-tidy sh -c 'command -v clang-tidy'
        need shellcheck sh -c 'command -v shellcheck'
        ;;
    python)
        need python3-venv python3 -c 'import ensurepip, venv'
        need ca-certificates test -e /etc/ssl/certs/ca-certificates.crt
        ;;
    extension) # of CPython
        need python3-dev python3 -c \
            'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")'
        ;;
    blas)
        need libopenblas0-pthread sh -c '/sbin/ldconfig -p | grep -q libopenblas.so.0'
        ;;
    *)
        echo "scripts/setup.sh: there is no job named $job" >&2
        exit 2
        ;;
    esac
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "set-up: installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    log=$(mktemp)
    # shellcheck disable=SC2086 # the packages are words
    if apt-get -q update >"$log" 2>&1 </dev/null &&
        apt-get -qy install --no-install-recommends $missing >>"$log" 2>&1 </dev/null; then
        rm -f "$log"
        exit 0
    fi
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "set-up: the packages could not be installed" >&2
else
    echo "set-up: these packages are missing:$missing" >&2
    echo "set-up: install them with: sudo apt-get install --no-install-recommends$missing" >&2
fi
exit 1
