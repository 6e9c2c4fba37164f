#!/usr/bin/env bash
# Builds and runs everything that is tested: release, unit tests under ASan and UBSan, the engine under TSan, and
# FUZZ_SECONDS (20) of each fuzzer. Usage: tools/test.sh [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${1:-$(nproc)}
fuzz_seconds=${FUZZ_SECONDS:-20}

step() { printf '\n== %s\n' "$*"; }

step "release"
cmake --preset release
cmake --build --preset release -j "$jobs"
ctest --preset release -j "$jobs"

step "address and undefined-behaviour sanitizers: unit tests"
cmake --preset asan-ubsan
cmake --build --preset asan-ubsan -j "$jobs"
ctest --preset asan-ubsan -j "$jobs" -L unit

step "thread sanitizer: thread pool and engine"
cmake --preset tsan
cmake --build --preset tsan -j "$jobs" --target tsan_tests
ctest --preset tsan -j "$jobs" -L tsan

step "fuzzers, $fuzz_seconds s each"
cmake --preset fuzz
cmake --build --preset fuzz -j "$jobs" --target fuzzers
for fuzzer in build/fuzz/bin/*_fuzz; do
  name=$(basename "$fuzzer" _fuzz)
  found=$(mktemp -d)  # new inputs stay out of the repository
  echo "-- $name"
  "$fuzzer" -max_total_time="$fuzz_seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 -verbosity=0 \
    "$found" "tests/fuzz/$name"
  rm -rf "$found"
done

step "all tests"
ctest --preset release -N | tail -1
echo "everything passed"
