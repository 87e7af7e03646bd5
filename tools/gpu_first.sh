#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# The first minutes on a machine with a GPU, as one command that needs nothing but this checkout and what the machine has:
#
#   tools/gpu_first.sh DIR              facts, build, smoke, drivers, tests, figures, demo, profile, sanitizer; packs the build
#   tools/gpu_first.sh DIR operators    the comparison of operators alone, over all the time there is
#   tools/gpu_first.sh DIR check        everything, as a user's `make gpu-check`
#
# DIR receives results as they come: facts.txt, table.txt, results.json, logs.txt, operators.json, built.tgz. With a
# built.tgz of an earlier call in BUILT (or in the checkout's build-gpu.tgz) nothing is built again that has not changed.
# GoogleTest's sources, if they were brought along: GOOGLETEST. SECONDS_LEFT: for everything (570). PYTHON: the
# interpreter whose torch is used. Status: that of tools/gpu_check.py.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: tools/gpu_first.sh DIR [operators|check|rehearsal]}
what=${2:-first}
python=${PYTHON:-python3}
build=build-gpu
mkdir -p "$out"
out=$(cd "$out" && pwd)

facts() {
  date -u
  nvidia-smi 2>&1 | head -20
  "$python" -c 'import sys, torch; print(sys.version); print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.is_available())' 2>&1
  for program in cmake ninja make g++ nvcc compute-sanitizer; do printf '%s: ' "$program"; command -v "$program" || echo none; done
  "$python" -c 'import sysconfig, os; h = sysconfig.get_path("include") + "/Python.h"; print(h, os.path.exists(h))'
  "$python" -m pip list 2>/dev/null | grep -iE '^(pytest|numpy|scikit-learn|matplotlib|tqdm|expecttest|pybind11|ninja) '
  nproc
  df -h . | tail -1
}
facts > "$out/facts.txt" 2>&1
tail -n +1 "$out/facts.txt"

packed=${BUILT:-build-gpu.tgz}
if [ -f "$packed" ]; then
  tar -xzf "$packed" && echo "gpu_first: unpacked $packed"
fi

googletest=()
if [ -n "${GOOGLETEST:-}" ]; then googletest=(--googletest "$GOOGLETEST"); fi
case $what in
  first) parts=(smoke drivers python figures demo profile sanitizer) ;;
  operators) parts=(operators) ;;
  rehearsal) parts=(smoke figures profile operators) ;; # what works over the fakes too
  check) parts=(smoke drivers python figures demo profile sanitizer operators suites) ;;
  *) echo "gpu_first: no such step: $what" >&2; exit 2 ;;
esac
"$python" tools/gpu_check.py --build "$build" --output "$out" --budget "${SECONDS_LEFT:-570}" --parts "${parts[@]}" \
  ${googletest[@]+"${googletest[@]}"} ${GPU_CHECK_OPTIONS:-}
status=$?

# What was built, for the next call: CMake's folder without its objects would build all again, so it goes whole where it
# is small enough, else the package alone.
if [ "$what" = first ] && [ -d "$build" ]; then
  tar -czf "$out/built.tgz" "$build" python/torch_openreg 2>/dev/null
  if [ "$(stat -c %s "$out/built.tgz")" -gt $((16 << 20)) ]; then
    tar -czf "$out/built.tgz" python/torch_openreg "$build/tests/runtime" 2>/dev/null ||
      tar -czf "$out/built.tgz" python/torch_openreg
  fi
fi
cp "$build/gpu-operators.json" "$out/operators.json" 2>/dev/null
exit $status
