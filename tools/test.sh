#!/usr/bin/env bash
# Builds and runs what is tested: FUZZ_SECONDS (20) of each fuzzer, every unit test under ASan and UBSan, thread pool, engine
# and soak under TSan, and all tests of the release build. Usage: tools/test.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
fuzz_seconds=${FUZZ_SECONDS:-20}

step() { printf '\n== %s\n' "$*"; }

# sanitized PRESET LABEL TARGET: builds and runs the tests of a label in a sanitizer build.
sanitized() {
  cmake --preset "$1"
  cmake --build --preset "$1" -j "$jobs" --target "$3"
  ctest --preset "$1" -j "$jobs" -L "$2"
}

step "fuzzers, $fuzz_seconds s each"
cmake --preset fuzz
cmake --build --preset fuzz -j "$jobs" --target fuzzers
for fuzzer in build/fuzz/bin/*_fuzz; do
  name=$(basename "$fuzzer" _fuzz)
  found=$(mktemp -d)  # new inputs stay out of the repository
  echo "-- $name"
  "$fuzzer" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=2048 -verbosity=0 "$found" "tests/fuzz/$name"
  rm -rf "$found"
done

step "address and undefined-behaviour sanitizers"
sanitized asan-ubsan unit asan_tests
step "thread sanitizer: thread pool, engine, soak"
sanitized tsan tsan tsan_tests

step "release"
cmake --preset release
cmake --build --preset release -j "$jobs"
ctest --preset release -j "$jobs"
echo "everything passed"
