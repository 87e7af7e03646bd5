# SPDX-License-Identifier: BSD-3-Clause
# What a checkout can do. Each target sets up what it needs (.venv, GoogleTest, the build) by itself.
#
#   make build      .venv with the pinned packages, the libraries, an editable install; UNITY=OFF: each C++ file compiled alone,
#                   which is slower for all and faster for the one that changed
#   make demo       trains a model on two openreg devices; DRIVER=cuda, DRIVER=opencl: on those of that driver, or an error
#   make test       GoogleTest and pytest, all layers; TORCH=2.15.0: with another torch, in an environment of its own
#   make quick      what a change of the runtime or of one room needs, in three minutes; ROOM=memory: and tests/python/memory
#   make lint       compiler warnings as errors (gcc and clang), headers alone, the drivers for GPUs with each version of the
#                   vendors' headers, rooms, formatting, ruff, mypy
#   make format     formats all C, C++ and Python
#   make bench      times openreg against its references
#   make docs       the documentation as a site, build-site/html; a broken link is an error
#   make acceptance prints which rows of tests/acceptance.md have a passing test
#   make demo-distributed  trains sharded in four processes of two agents, kills one, and goes on in two
#   make check-opencl  openreg-check on examples/opencl_driver, all three levels; CHECK_SECONDS=2 CHECK_ONLY=kernel
#   make fuzz       random programs against their models: the C API, tensors and dispatcher modes against the CPU, graphs against
#                   eager runs; FUZZ_SECONDS=120
#   make asan tsan  the runtime and its tests under a sanitizer
#   make sdist-check  installs the sdist with pip, in isolation, and runs the README's first program; ISOLATION=no: without
#   make clean      removes what was built
#
# By hand: slow, or needs what few machines have.
#   make nightly    test-long, valgrind, race-check, check-mutants, check-opencl, coverage, lint-headers-torch, lint-shim-clang,
#                   opinfo, opinfo-captured, and ten minutes of fuzz
#   make test-long  what `make test` leaves out: test-conformance, and the tests of Python that are marked `long`
#   make test-conformance  openreg-check on each of the drivers here, and each defect against its checks, where `make test` has a
#                   sample: after a change of openreg-check, of driver.h or of a driver
#   make valgrind   the runtime's tests under valgrind: the only check for uninitialised memory
#   make test-named the tests of Python with the device under another name; NAME=mychip, and options of pytest in NAMED
#   make race-check the tests of the runtime and of Python under OPENREG_RACES=raise
#   make check-mutants  each of the drivers with one defect against every check of openreg-check
#   make coverage   line coverage of the C code, at least 90 %
#   make mutate     plants defects in a copy of the runtime and lists those that no test finds;
#                   MUTATE="--sample 200 runtime/src/memory", MUTATE="--kinds lock --sanitize thread"
#   make library-suites other libraries' own tests on simulated devices and on the CPU, at fixed commits
#   make distributed-suite  PyTorch's own tests of torch.distributed, in two and three ranks; a failure that the list of known
#                   ones lacks, or a known one that passes, is an error; SUITE="--ways nccl --ranks 2 test_ddp_uneven_inputs"
#   make opinfo     every operator of PyTorch's databases against the CPU, aliased and staged
#   make opinfo-compiled  the same, higher-order operators and layers compiled by Inductor, against the CPU's; float32
#   make opinfo-captured  operators and layers in graphs: replays on changed inputs against eager calls, bit for bit
#   make gpu-check  everything that takes a GPU, with the machine's own torch; status 77 where there is none
#   make aarch64    the runtime and its tests for 64-bit ARM, under qemu: needs Debian's cross compilers
#   make wheel      dist/*.whl; TORCH="2.13.0 2.15.0": with a binary part for each of these versions of torch
#                   PYTHONS="3.10 3.13": and a wheel for each of these versions of Python
#   make wheel-test TORCH="2.13.0 2.15.0"   builds such a wheel, and runs the Python tests on it with each version
#   make check-torch TORCH=2.16.0   what a version changes for the shim, by its headers alone: minutes
#   make sdist      dist/*.tar.gz
SHELL := bash
PYTHON ?= python3
JOBS ?= $(shell nproc)
# Another version of torch than the pinned one has an environment and a build directory of its own.
PINNED := $(shell sed -n 's/^torch==//p' requirements-dev.txt)
OTHER := $(if $(filter 1,$(words $(TORCH))),$(filter-out $(PINNED),$(TORCH)))
VENV := .venv$(addprefix -,$(OTHER))
BUILD := build$(addprefix -,$(OTHER))
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

PACKAGES := $(VENV)/.openreg-packages
CLIENTS := $(VENV)/.openreg-clients
DOCS := $(VENV)/.openreg-docs
EDITABLE := $(VENV)/.openreg-editable
CUDA12 := build-headers/cuda12
CONFIGURE := cmake -S . -G Ninja -DPython3_EXECUTABLE=$(CURDIR)/$(VENV)/bin/python
PIP := python -m pip --disable-pip-version-check
RUNTIME_ONLY := -DOPENREG_BUILD_TORCH=OFF -DOPENREG_WERROR=ON
# What fails once fails the run: a test that passes the second time has found a race, or depends on the machine's speed.
RUN_CTEST = ctest --test-dir $(1) --output-on-failure --no-tests=error -j $(JOBS)
RUN_SANITIZED = $(call RUN_CTEST,$(1)) --output-log $(1)/tests.log && \
  ! grep -E '(Address|Leak|Thread|UndefinedBehavior)Sanitizer|: runtime error: ' $(1)/tests.log

.PHONY: help all build demo demo-distributed quick test test-long test-conformance test-named race-check library-suites distributed-suite acceptance fuzz opinfo opinfo-compiled opinfo-captured nightly check-mutants check-opencl gpu-check bench lint lint-c lint-headers lint-headers-torch lint-shim-clang lint-rooms lint-format lint-python format asan tsan valgrind aarch64 coverage mutate docs wheel wheel-test wheel-test-one check-torch sdist sdist-check clean
all: build

help:
	@sed -n '/^SHELL/q; /SPDX/d; s/^#[ ]\{0,3\}//p' Makefile

$(PACKAGES): requirements-dev.txt tools/setup
	tools/setup $(VENV) $(PYTHON) $(OTHER)
	touch $@

$(BUILD)/build.ninja: | $(PACKAGES)
	tools/googletest
	$(CONFIGURE) -B $(BUILD) $(if $(UNITY),-DOPENREG_UNITY=$(UNITY))

# What is built goes into the package of the checkout, which the virtual environment sees through an editable install.
build: $(PACKAGES) $(BUILD)/build.ninja
	cmake --build $(BUILD) --target openreg_package --parallel $(JOBS)
	cmake --install $(BUILD) --prefix python/torch_openreg > $(BUILD)/install.log
	@$(MAKE) --no-print-directory $(EDITABLE)

$(EDITABLE): pyproject.toml setup.py $(PACKAGES)
	OPENREG_BUILD_DIR=$(BUILD) $(PIP) install --quiet --no-build-isolation --no-deps -e .
	touch $@

# The driver in examples/opencl_driver is a package of its own, built against what is installed.
OPENCL := $(BUILD)/opencl
OPENCL_LIBRARY = OPENREG_DRIVER_LIBRARIES=opencl:$(CURDIR)/$(OPENCL)/libopenreg_opencl.so

BUILD_OPENCL = cmake -S examples/opencl_driver -B $(OPENCL) -Dopenreg_ROOT=$(CURDIR)/python/torch_openreg > /dev/null && \
  cmake --build $(OPENCL) --parallel $(JOBS)

demo: build
	$(if $(filter opencl,$(DRIVER)),$(BUILD_OPENCL))
	$(if $(filter opencl,$(DRIVER)),$(OPENCL_LIBRARY)) $(if $(DRIVER),OPENREG_DRIVERS=$(DRIVER)) python examples/train_digits.py

demo-distributed: build
	python examples/train_elastic.py

# Other libraries, which the tests run on the devices. They must not bring another torch. Where they can't be had their
# tests are skipped, and say so.
$(CLIENTS): requirements-clients.txt $(PACKAGES)
	$(PIP) install --quiet $(if $(OTHER),torch==$(OTHER) -r <(grep -vE '^(torchvision|triton)' $<),-r requirements-dev.txt -r $<) && touch $@ || echo "make: without the libraries of $<"

test: build $(CLIENTS)
	cmake --build $(BUILD) --parallel $(JOBS)
	$(call RUN_CTEST,$(BUILD))
	export OPENREG_BUILD_DIR=$(CURDIR)/$(BUILD); python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
	@command -v clang > /dev/null || echo "make test: left out what needs clang: apt-get install clang"
	@[ -e /usr/include/clblast_c.h ] || echo "make test: left out what needs CLBlast: apt-get install libclblast-dev"

ROOM ?= devices
quick: build
	cmake --build $(BUILD) --parallel $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(JOBS) -E 'Check(Conform|Comm)Test|fuzz'
	OPENREG_BUILD_DIR=$(CURDIR)/$(BUILD) python -m pytest -q -n $(JOBS) tests/python/$(ROOM)
	ruff check . && ruff format --check .
	git diff --name-only --diff-filter=d HEAD -- '*.c' '*.h' '*.cc' '*.cpp' | xargs -r clang-format --dry-run -Werror

test-conformance: $(BUILD)/build.ninja
	cmake --build $(BUILD) --target check_test --parallel $(JOBS)
	export OPENREG_TEST_LONG=1; $(call RUN_CTEST,$(BUILD)) --tests-regex '[./]Check[A-Z]'

test-long: build $(CLIENTS) test-conformance
	OPENREG_BUILD_DIR=$(CURDIR)/$(BUILD) OPENREG_TEST_LONG=1 python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m long

NAME ?= mychip
test-named: build $(CLIENTS)
	OPENREG_BUILD_DIR=$(CURDIR)/$(BUILD) python tools/named_tests.py $(NAME) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(NAMED)

# What CI leaves out for its time. tools/valgrind.cmake takes the programs that `make test` has built.
nightly: test-long race-check check-mutants coverage lint-headers-torch lint-shim-clang opinfo opinfo-captured $(if $(wildcard /usr/include/clblast_c.h),check-opencl)
	$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600
	ctest -S tools/valgrind.cmake,$(CURDIR)/$(BUILD) --parallel $(JOBS)

# Takes the network, and the minutes in docs/library-suites.md: other libraries' tests (tests/library_suites/suites.py). SUITES="ignite peft": these.
library-suites: build $(CLIENTS)
	$(PIP) install --quiet -r requirements-dev.txt -r requirements-clients.txt -r requirements-clients-more.txt
	OPENREG_TEST_LONG=1 python -m pytest tests/python/clients/test_large_clients.py tests/python/clients/test_deepspeed.py
	python tests/library_suites/run.py --page docs/library-suites.md $(SUITES)

distributed-suite: build
	python tests/distributed_suite/run.py $(SUITE)

# The tests under the race detector, which has nothing to say of them. Those of races plant their own.
race-check: build $(CLIENTS)
	cmake --build $(BUILD) --parallel $(JOBS)
	TEST_OPENREG_RACES=raise $(call RUN_CTEST,$(BUILD)) --label-regex runtime --exclude-regex 'Race|validated'
	OPENREG_SIM_RACES=raise python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --ignore tests/python/races

acceptance: build $(CLIENTS)
	cmake --build $(BUILD) --parallel $(JOBS)
	python tools/acceptance.py --build $(BUILD)

# With the build of `make asan` too, where there is one. Each run prints its seed; FUZZ_SEED repeats it. FUZZ_PROGRAMS=100: no
# more programs than a slow machine runs in 120 seconds, so that a fast one runs the same.
FUZZ_SECONDS ?= 120
FUZZ_SEED ?= $(shell date +%s)
FUZZ = --seed $(FUZZ_SEED) --seconds $$(( $(FUZZ_SECONDS) / 4 )) $(call FUZZ_MOST,2)
FUZZ_MOST = $(if $(FUZZ_PROGRAMS),--programs $$(( $(FUZZ_PROGRAMS) * $(1) )))

fuzz: build
	cmake --build $(BUILD) --target fuzz_runtime fuzz_crossings --parallel $(JOBS)
	$(BUILD)/tests/fuzz/fuzz_runtime $(FUZZ)
	$(BUILD)/tests/fuzz/fuzz_crossings $(FUZZ)
	$(BUILD)/tests/fuzz/fuzz_crossings --seed $(FUZZ_SEED) --seconds 30 --forks 1 $(if $(FUZZ_PROGRAMS),--programs 40)
	$(if $(wildcard build-asan/tests/fuzz/fuzz_runtime),build-asan/tests/fuzz/fuzz_runtime $(FUZZ))
	$(if $(wildcard build-asan/tests/fuzz/fuzz_crossings),build-asan/tests/fuzz/fuzz_crossings $(FUZZ))
	python tests/fuzz/tensors.py --seed $(FUZZ_SEED) --seconds $$(( $(FUZZ_SECONDS) / 2 )) $(call FUZZ_MOST,15)
	python tests/fuzz/modes.py --seed $(FUZZ_SEED) --seconds $$(( $(FUZZ_SECONDS) / 4 )) $(call FUZZ_MOST,4)
	python tests/fuzz/graphs.py --seed $(FUZZ_SEED) --seconds $$(( $(FUZZ_SECONDS) / 8 )) $(call FUZZ_MOST,4)

opinfo: build
	python tests/opinfo/run.py --jobs $(JOBS) --json opinfo.json

# Each entry is compiled twice: seconds. COMPILED="--every 5" takes every fifth.
opinfo-compiled: build
	d=$$(mktemp -d) && trap 'rm -rf "$$d"' EXIT && TORCHINDUCTOR_CACHE_DIR=$$d TORCHINDUCTOR_COMPILE_THREADS=1 \
	  python tests/opinfo/run.py --kind compiled --ways aliased --databases op hop custom module --dtypes float32 \
	  --samples 1 --jobs $(JOBS) --json opinfo-compiled.json $(COMPILED)

opinfo-captured: build
	python tests/opinfo/run.py --kind captured --databases op foreach module hop --dtypes float32 bfloat16 complex64 int64 \
	  --samples 3 --jobs $(JOBS) --json opinfo-captured.json $(CAPTURED)

# A quarter of an hour. The test of the same name meets each defect with its own checks alone.
check-mutants: $(BUILD)/build.ninja
	cmake --build $(BUILD) --target check_test --parallel $(JOBS)
	OPENREG_TEST_LONG=1 OPENREG_CHECK_MATRIX=check-mutants.txt $(BUILD)/tests/runtime/check_test --gtest_filter='CheckMutantsTest.*'

# Two devices of PoCL, each of one thread: kernels are small here. 77: no device.
CHECK_SECONDS ?= 2
check-opencl: build
	$(BUILD_OPENCL)
	POCL_DEVICES="pthread pthread" OMP_NUM_THREADS=1 \
	  python -m torch_openreg check $(OPENCL)/libopenreg_opencl.so --level 3 --seed 1 --time $(CHECK_SECONDS) $(if $(CHECK_ONLY),--only $(CHECK_ONLY))

# Sets up nothing: a machine with a GPU has the torch and the CUDA that are to be checked.
gpu-check:
	$(PYTHON) tools/gpu_check.py --build build-gpu --jobs $(JOBS) --json gpu-check.json $(if $(GOOGLETEST),--googletest $(GOOGLETEST))

bench: build
	cmake -DOPENREG_BUILD_BENCHMARKS=ON $(BUILD) > /dev/null
	cmake --build $(BUILD) --target benchmarks/all --parallel $(JOBS)
	python benchmarks/bench.py --programs $(BUILD)/benchmarks --json bench.json

lint: lint-c lint-headers lint-rooms lint-format lint-python

lint-python: $(PACKAGES)
	ruff check .
	mypy

C_FILES = git ls-files '*.c' '*.h' '*.cc' '*.cpp'

lint-format: $(PACKAGES)
	$(C_FILES) | xargs clang-format --dry-run -Werror
	ruff format --check .

format: $(PACKAGES)
	$(C_FILES) | xargs clang-format -i
	ruff format .

# Each internal header must compile alone: no source depends on the order of its includes. Those of the shim and of csrc take
# minutes: in `make nightly`. The public headers are compiled with the tests. The drivers for GPUs are compiled with the
# vendors' headers that are here, and with those of CUDA 12, which are fetched.
ALONE = xargs -n 1 -P $(JOBS) $(1) -fsyntax-only -Wall -Wextra -Wshadow -Werror -Iruntime/include $(2) /dev/null -include
lint-headers: $(PACKAGES) $(CUDA12)
	find runtime/src runtime/drivers/sim -name '*.h' | $(call ALONE,gcc -std=c11 -D_GNU_SOURCE,-Iruntime/src -x c)
	python tools/check_gpu_headers.py $(wildcard $(CUDA12)/nvidia/cuda_runtime/include)

$(CUDA12): | $(PACKAGES)
	$(PIP) install --quiet --no-deps --target $@ nvidia-cuda-runtime-cu12==12.0.146 nvidia-cuda-nvcc-cu12==12.0.140 || echo "lint: without the headers of CUDA 12"

lint-headers-torch: $(PACKAGES)
	torch=$$(python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')/include && \
	  python=$$(python -c 'import sysconfig; print(sysconfig.get_path("include"))') && \
	  find shim csrc -name '*.h' | $(call ALONE,g++ -std=c++20 -DAT_PER_OPERATOR_HEADERS,-I. -isystem $$torch \
	  -isystem $$torch/torch/csrc/api/include -isystem $$python -x c++)

# No room of the source tree depends on one above it.
lint-rooms: lint-c
	python tools/check_rooms.py $(if $(wildcard build-lint-gcc/runtime),--build build-lint-gcc,--build build-lint-clang)

lint-c: $(PACKAGES)
	for compiler in gcc clang; do \
	  command -v $$compiler > /dev/null || { echo "lint: no $$compiler here, skipped"; continue; }; \
	  CC=$$compiler $(CONFIGURE) -B build-lint-$$compiler $(RUNTIME_ONLY) -DOPENREG_BUILD_TESTS=OFF > /dev/null && \
	  cmake --build build-lint-$$compiler --parallel $(JOBS) || exit 1; \
	done

# The shim and the bindings by the other compiler, without optimisation: two minutes of a CPU.
lint-shim-clang: $(PACKAGES)
	CC=clang CXX=clang++ $(CONFIGURE) -B build-lint-shim -DOPENREG_WERROR=ON -DCMAKE_BUILD_TYPE=Debug
	cmake --build build-lint-shim --target openreg_package --parallel $(JOBS)

asan: $(PACKAGES)
	tools/googletest
	$(CONFIGURE) -B build-asan $(RUNTIME_ONLY) -DOPENREG_SANITIZE=address,undefined
	cmake --build build-asan --parallel $(JOBS)
	$(call RUN_SANITIZED,build-asan)

tsan: $(PACKAGES)
	tools/googletest
	$(CONFIGURE) -B build-tsan $(RUNTIME_ONLY) -DOPENREG_SANITIZE=thread
	cmake --build build-tsan --parallel $(JOBS)
	$(call RUN_SANITIZED,build-tsan)

valgrind: $(PACKAGES)
	tools/googletest
	$(CONFIGURE) -B build-valgrind $(RUNTIME_ONLY) -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build-valgrind --parallel $(JOBS)
	ctest -S tools/valgrind.cmake,$(CURDIR)/build-valgrind --parallel $(JOBS)

# By hand: under emulation the tests take minutes, and times mean nothing. Two tests are left out: qemu's user mode has no
# MADV_DONTFORK, and a limit of the address space is one for qemu too. GoogleTest from Debian's sources (googletest).
GOOGLETEST_SOURCES ?= /usr/src/googletest
aarch64: $(PACKAGES)
	$(CONFIGURE) -B build-aarch64 --toolchain cmake/aarch64-linux-gnu.cmake $(RUNTIME_ONLY) -DOPENREG_CUDA=OFF -DOPENREG_HIP=OFF \
	  -DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON -DFETCHCONTENT_SOURCE_DIR_GOOGLETEST=$(GOOGLETEST_SOURCES)
	cmake --build build-aarch64 --parallel $(JOBS)
	$(call RUN_CTEST,build-aarch64) -E 'SimTest\.(LittleAddressSpace|NotForkedInto)'

# A sample by hand, never in CI: a mutant takes a build and the tests.
mutate: $(PACKAGES)
	tools/googletest
	python tools/mutate.py --jobs $(JOBS) --json mutate.json $(MUTATE)

coverage: $(PACKAGES)
	tools/googletest
	$(CONFIGURE) -B build-coverage $(RUNTIME_ONLY) -DCMAKE_BUILD_TYPE=Debug -DOPENREG_COVERAGE=ON
	cmake --build build-coverage --parallel $(JOBS)
	find build-coverage -name '*.gcda' -delete
	export OPENREG_TEST_LONG=1; $(call RUN_CTEST,build-coverage)
	gcovr --root . --filter runtime/src --filter runtime/drivers --object-directory build-coverage \
	  --print-summary --fail-under-line 90

# A version other than that of .venv is fetched without what it depends on: its headers and what is linked. With
# further versions of Python the builds are others than that of `make build`.
SEVERAL := $(if $(filter-out 0 1,$(words $(TORCH))),$(TORCH))
HERE := $(if $(strip $(PYTHONS)),build-release$(addprefix -,$(OTHER)),$(BUILD))
FETCHED := $(filter-out $(PINNED),$(SEVERAL))
WHEEL_BUILDS := $(if $(SEVERAL),$(foreach version,$(SEVERAL),$(if $(filter $(PINNED),$(version)),$(HERE),build-torch/$(version)/$(HERE))),$(HERE))
empty :=
joined = $(subst $(empty) $(empty),$(1),$(strip $(2)))
PROGRAMS = $(foreach python,$(PYTHONS),$(if $(findstring /,$(python)),$(python),python$(python)))
CONFIGURE_WHEEL = $(CONFIGURE) -DOPENREG_BUILD_TESTS=OFF "-DOPENREG_PYTHONS=$(call joined,;,$(PROGRAMS))"

# The tag is that of the oldest glibc that it runs with.
wheel: $(if $(filter $(BUILD),$(WHEEL_BUILDS)),build,$(PACKAGES))
	$(if $(FETCHED),for version in $(FETCHED); do python tools/fetch_torch.py $$version && \
	  $(CONFIGURE_WHEEL) -B build-torch/$$version/$(HERE) -DOPENREG_TORCH_ROOT=$(CURDIR)/build-torch/$$version/torch || exit 1; done)
	$(if $(filter build-release%,$(WHEEL_BUILDS)),$(CONFIGURE_WHEEL) -B $(HERE))
	rm -rf build-wheel/dist
	OPENREG_BUILD_DIR=$(call joined,:,$(WHEEL_BUILDS)) $(PIP) wheel --quiet --no-build-isolation --no-deps -w build-wheel/dist .
	python tools/repair_wheel.py build-wheel/dist/*.whl --into dist

# The one file with each of its versions of torch, in that version's environment: ten minutes of two cores for each.
# WHEEL_TEST has options of pytest.
wheel-test: wheel
	for torch in $(or $(TORCH),$(PINNED)); do \
	  $(MAKE) --no-print-directory wheel-test-one TORCH=$$torch || exit 1; \
	done

# Of the build only the layers that tests load, and the CUDA driver over a fake where there are CUDA's headers: no shim.
wheel-test-one: $(CLIENTS) $(BUILD)/build.ninja
	cmake --build $(BUILD) --parallel $(JOBS) --target id_layer without_layer \
	  $$(cmake --build $(BUILD) --target help | grep -o '^fake_torch_cuda')
	python tools/wheel_test.py dist/*.whl --build $(BUILD) -n $(JOBS) --dist loadfile --no-loadscope-reorder $(WHEEL_TEST)

# Needs no environment with that torch.
check-torch:
	tools/setup .venv $(PYTHON)
	.venv/bin/python tools/check_torch.py $(TORCH) --jobs $(JOBS)

# Python 3.11 or later.
$(DOCS): requirements-docs.txt $(PACKAGES)
	$(PIP) install --quiet -r requirements-docs.txt && touch $@

docs: build $(DOCS)
	python tools/figures.py --check
	python tools/docs.py --check
	python tools/build_site.py

sdist: $(PACKAGES)
	mkdir -p dist
	PYTHONPATH=tools/pep517 python -c 'import openreg_build; print(openreg_build.build_sdist("dist"))' | tail -1

# A minute or two where ccache has the objects of `make test`, else a quarter of an hour of one core. ISOLATION=no: with
# the packages of .venv.
sdist-check: $(PACKAGES)
	python tools/sdist_check.py $(if $(filter no,$(ISOLATION)),--no-isolation)

clean:
	rm -rf build build-* dist python/*.egg-info bench.json opinfo.json opinfo-compiled.json opinfo-captured.json distributed-suite.json library-suites.json gpu-check.json demo-output
	cd python/torch_openreg && rm -rf bin include lib share _build_info.py *.so
