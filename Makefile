# SPDX-License-Identifier: MIT
# What people type. The build itself is CMakeLists.txt; each target below sets up what it needs.
BUILD ?= build
PREFIX ?= /usr/local
SECONDS ?= 20
CALLS ?= 1000000
ASAN = -DDEEPGEMM_SANITIZE=address,undefined
# Of clang, because its OpenMP run-time library tells ThreadSanitizer what it does.
TSAN = -DDEEPGEMM_SANITIZE=thread -DDEEPGEMM_TOOL=OFF -DDEEPGEMM_EXAMPLES=OFF

.PHONY: all test python python-torch python-soak reference demo accuracy bench lint sanitize fuzz soak install clean help

all: ## build the library and the tool in build/
	@scripts/setup.sh build
	@$(call build,$(BUILD),)

test: all ## run all tests, then those that compute with each instruction set
	@scripts/setup-disassembler.sh $(BUILD) || echo "test: goes on without a disassembler of GPU code"
	@scripts/test.sh $(BUILD) all generic avx2 avx512

python: ## build the Python package and run its tests
	@scripts/setup.sh build python extension
	@scripts/test-python.sh $(BUILD)

python-torch: ## the same with PyTorch, gigabytes, whose tests are left out otherwise
	@scripts/setup.sh build python extension
	@DEEPGEMM_TORCH=ON scripts/test-python.sh $(BUILD)-torch

python-soak: ## the tests of leaks, threads and forks with CALLS=1000000 calls of each function
	@scripts/setup.sh build python extension
	@DEEPGEMM_CALLS=$(CALLS) scripts/test-python.sh $(BUILD) -k "leak or threads or fork"

reference: all ## checkpoints read by transformers, compressed-tensors, Model Optimizer; gigabytes
	@scripts/setup.sh python
	@scripts/test-reference.sh $(BUILD) $(BUILD)-torch/venv

demo: all ## a real model's layers in FP8 against 16 bits
	@scripts/setup.sh python && scripts/setup-demo.sh || echo "demo: goes on without the model"
	@scripts/setup.sh blas || echo "demo: compares with a plain loop in place of OpenBLAS"
	@$(BUILD)/deepgemm demo

accuracy: all ## methods by granularity on a real model: the tables of docs/accuracy.md
	@scripts/setup.sh python blas && scripts/setup-demo.sh
	@scripts/accuracy.sh $(BUILD)

bench: all ## time the CPU kernels against their floor, OpenBLAS and oneDNN
	@scripts/setup.sh python
	@scripts/setup-bench.sh
	@LD_LIBRARY_PATH=.venv/lib $(BUILD)/deepgemm bench

lint: all ## formatting, clang-tidy, shell scripts
	@scripts/setup.sh clang lint extension
	@scripts/lint.sh $(BUILD)

sanitize: ## all tests with address and undefined-behaviour checks, the library's with thread checks
	@scripts/setup.sh build clang
	@$(call build,$(BUILD)-asan,$(ASAN))
	@scripts/test.sh $(BUILD)-asan all
	@CC=clang; export CC; $(call build,$(BUILD)-tsan,$(TSAN))
	@scripts/test.sh $(BUILD)-tsan library

fuzz: ## fuzz every target for SECONDS=20 each
	@scripts/setup.sh build clang
	@CC=clang; export CC; $(call build,$(BUILD)-fuzz,$(ASAN) -DDEEPGEMM_FUZZ=ON \
		-DDEEPGEMM_TESTS=OFF -DDEEPGEMM_TOOL=OFF -DDEEPGEMM_EXAMPLES=OFF)
	@scripts/fuzz.sh $(BUILD)-fuzz $(SECONDS)

soak: all ## run every test of random data with ever new seeds for SECONDS=20
	@scripts/soak.sh $(BUILD) $(SECONDS)

install: all ## install into PREFIX=/usr/local
	@cmake --install $(BUILD) --prefix $(PREFIX) | grep -v '^-- Up-to-date'

clean: ## remove what was built
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz $(BUILD)-torch

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

# build FOLDER, CMAKE-ARGUMENTS, TARGETS: quiet unless it fails.
define build
mkdir -p $(1); { cmake -S . -B $(1) -G Ninja $(2) && cmake --build $(1) $(if $(3),--target $(3)); } \
	>$(1)/build.log 2>&1 </dev/null || { tail -n 40 $(1)/build.log; exit 1; }; echo "build $(1)/ is up to date"
endef
