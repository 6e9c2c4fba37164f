#!/usr/bin/env bash
# Builds and runs what is tested: FUZZ_SECONDS (20) of each fuzzer, every test program under ASan and UBSan, thread pool, prefetch,
# engine and soak under TSan, kernels and whole engines in the release build (`make check` runs all of its tests).
# Usage: tools/test.sh [JOBS]
# CUDA_ARCHITECTURES: what CUDA code is compiled for (a list as CMake has it; all that are supported).
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
fuzz_seconds=${FUZZ_SECONDS:-20}

step() { printf '\n== %s\n' "$*"; }

# sanitized PRESET LABEL TARGET: builds and runs the tests of a label in a sanitizer build. Not those of the whole program, over thousands
# of tokens, which takes longer here than all others together, and fontconfig's own cache counts as a leak. Nor no_allocation_test,
# which counts calls of a heap that sanitizers replace. Random campaigns are shorter here than in the release.
sanitized() {
  cmake --preset "$1"
  cmake --build --preset "$1" -j "$jobs" --target "$3"
  ctest --preset "$1" -j "$jobs" -L "$2" -LE program -E '^no_allocation_test$'
}

step "fuzzers, $fuzz_seconds s each"
cmake --preset asan-ubsan
cmake --build --preset asan-ubsan -j "$jobs" --target fuzzers
# fuzz PROGRAM: what it prints comes in one piece, as several run at a time.
fuzz() {
  local name found out
  name=$(basename "$1" _fuzz)
  found=$(mktemp -d)  # new inputs stay out of the repository
  if out=$("$1" -max_total_time="$2" -timeout=10 -rss_limit_mb=2048 -verbosity=0 "$found" "tests/fuzz/$name" 2>&1); then
    echo "-- $name: nothing found"
  else
    echo "-- $name: FAILS"
    echo "$out"
    return 1
  fi
  rm -rf "$found"
}
export -f fuzz
printf '%s\n' build/asan-ubsan/bin/*_fuzz | xargs -P "$jobs" -I{} bash -c 'fuzz "$1" "$2"' fuzz {} "$fuzz_seconds"

step "address and undefined-behaviour sanitizers"
sanitized asan-ubsan "unit|cross" asan_tests
step "thread sanitizer: thread pool, prefetch, engine, soak"
sanitized tsan tsan tsan_tests

step "release"
cmake --preset release ${CUDA_ARCHITECTURES:+-DCMAKE_CUDA_ARCHITECTURES="$CUDA_ARCHITECTURES"}
cmake --build --preset release -j "$jobs" --target fovea release_tests
ctest --preset release -j "$jobs" -L "kernels|cross"
echo "everything passed"
