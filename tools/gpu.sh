#!/usr/bin/env bash
# What CI cannot run, on a machine with an NVIDIA GPU, in one call: the operations' and the engine's tests on the GPU,
# compute-sanitizer over cases of every kernel, answers on both devices side by side, benchmarks with their ceilings, and published
# kernels beside them. Writes bench/results/DATE-GPU.md and prints it. Some eight minutes in all.
#
# Usage: tools/gpu.sh [BIN]     BIN: a folder of built programs; default: build the release preset and take its
#   PARTS="tests sanitizer answers bench model peers"   which parts; default all
#   SET=F.jsonl   the retrieval set; default: one made of our own texts     LENGTHS=8192,32768   which of its lengths
#   CPU_DOCUMENTS=2   documents of each length that the CPU answers about; default: all
#   RESULTS=DIR   default bench/results     APPEND=1   add to today's file instead of writing it anew
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${1:-}
parts=${PARTS:-tests sanitizer answers bench model peers}
results=${RESULTS:-bench/results}
if [ -z "$bin" ]; then
  cmake --preset release -DFOVEA_CUDA=ON && cmake --build --preset release -j "$(nproc)" || exit 1
  bin=build/release/bin
fi
command -v nvidia-smi >/dev/null || { echo "tools/gpu.sh: no nvidia-smi: this machine has no NVIDIA driver"; exit 2; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export FOVEA_REQUIRE_GPU=1 scratch
# cuBLASLt comes with the toolkit or with PyTorch's packages.
for d in $(python3 -c 'import site,glob; print(*[d for p in site.getsitepackages() for d in glob.glob(p + "/nvidia/*/lib")])' 2>/dev/null); do
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$d
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
wants() { [[ " $parts " == *" $1 "* ]]; }
kernel_tests() { ls "$bin"/kernels_cuda_*test 2>/dev/null; }

# passed PROGRAM: runs a test program; a line of the table.
passed() {
  local name log
  name=$(basename "$1")
  log=$scratch/$name.log
  [[ $name == kernels_* || $name == device_cuda* || $name == gpu_* ]] || export FOVEA_TEST_DEVICE=cuda
  if timeout 300 "$1" >"$log" 2>&1; then
    echo "| $name | $(grep -c '^\[       OK' "$log") pass |"
  else
    touch "$scratch/failed"
    echo "| $name | FAILS: $(grep -E '^\[  FAILED  \]' "$log" | sort -u | head -5 | tr '\n' ' ')|"
    tail -40 "$log" >&2
  fi
}

# sanitized TOOL PROGRAM: of each of its tests up to three cases, of those that take no time without a tool: racecheck is a thousand
# times slower.
sanitized() {
  local out cases log
  log=$scratch/$(basename "$2").log
  [ -s "$log" ] || timeout 300 "$2" >"$log" 2>&1
  cases=$(python3 -c '
import re, sys
one, many = (300, 30) if sys.argv[1] == "racecheck" else (1200, 60)  # ms
tests = {}
for name, ms in re.findall(r"^\[       OK \] ([^\s,]+).*\((\d+) ms\)", sys.stdin.read(), re.M):
    tests.setdefault(re.sub(r"/[^/]*$", "", name) if name.count("/") > 1 else name, []).append((name, int(ms)))
chosen = []
for cases in tests.values():
    quick = [name for name, ms in cases if ms <= (one if len(cases) == 1 else many)]
    chosen += {quick[0], quick[len(quick) // 2], quick[-1]} if quick else []
print(":".join(sorted(chosen)))' "$1" <"$log")
  # By name where what takes no time without a tool launches too much to end with it: hundreds of kernels, thousands of rows.
  case "$1 $(basename "$2")" in
    racecheck\ *_hash_select_test) cases=HashSelectTest.EveryKernelOnce ;;
    initcheck\ *_hash_select_test) cases=HashSelectTest.EveryKernelOnce:HashSelectTest.GraphFollowsLengths:HashSelectTest.RowsInSeveralPasses ;;
    racecheck\ *_sample_test)  # of 4,097 logits: normal, flat and equal ones
      cases=SampleTest.LogitsThatAreNoNumbersDoNoHarm$(printf ':KindAndVocab/SampleOf.ChoosesAsTheReference/%s' 3 8 13) ;;
  esac
  out=$(GTEST_FILTER=$cases timeout 90 compute-sanitizer --tool "$1" --error-exitcode 9 "$2" 2>&1)
  echo "| $1 | $(basename "$2") | $(grep -c '^\[       OK' <<<"$out") of $(tr ':' '\n' <<<"$cases" | wc -l) |" \
    "$(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY|not supported' <<<"$out" | sed 's/=//g' | tail -1 | grep . || echo did not end) |"
  grep -E '^========= (Error|Warning|Uninitialized|Invalid|Race)' -A3 <<<"$out" | head -12 >&2
}
export -f passed sanitized

# answers DEVICE NAME FLAGS: a table of right answers.
answers() {
  echo; echo "$2, $1:"; echo '```'
  timeout 300 "$bin/fovea" eval --device "$1" "${@:3}" --set "$set" ${LENGTHS:+--lengths "$LENGTHS"} 2>&1
  echo '```'
}

report() {
  if [ -z "${APPEND:-}" ]; then
    echo "# $gpu"
    echo
    echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo "${COMMIT:-unknown}")," \
      "driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1), $(nproc) CPU cores"
  fi
  if wants tests; then
    echo; echo "## Tests on the GPU"; echo; echo "| Program | Tests |"; echo "|---|---|"
    { kernel_tests; ls "$bin"/device_cuda*_test "$bin"/gpu_*_test
      for t in golden quantised_engine invariants fp8_kv gsa_engine trace_mass xattention latent_engine threads soak kv_store device_offload device_small_host; do
        ls "$bin/${t}_test"
      done; } 2>/dev/null | grep -v config_test | xargs -P 4 -I{} bash -c 'passed {}' | sort
    (passed "$bin/device_kv_memory_test")  # alone: it reads how much of the device's memory is free
  fi
  if wants sanitizer && command -v compute-sanitizer >/dev/null; then
    echo; echo "## compute-sanitizer"; echo; echo "| Tool | Program | Cases | Result |"; echo "|---|---|---|---|"
    for tool in memcheck racecheck initcheck; do kernel_tests | grep -v config_test | sed "s/^/$tool /"; done |
      xargs -P 6 -L 1 bash -c 'sanitized "$0" "$1"' | sort
  fi
  if wants answers; then
    echo; echo "## Answers"
    local set=${SET:-$scratch/set.jsonl}
    [ -f "$set" ] || python3 tools/make_set.py --station --tokens 2048,8192 --documents 4 --out "$set" >/dev/null
    for device in cuda cpu; do
      local documents=${CPU_DOCUMENTS:-}
      [ $device = cuda ] && documents=
      answers $device tiny-gqa --model models/tiny-gqa --plan bench/plans/devices.yaml ${documents:+--documents "$documents"}
      answers $device tiny-dsa --model models/tiny-dsa --plan bench/plans/dsa.yaml --without-tasks absent ${documents:+--documents "$documents"}
    done
  fi
  if wants bench; then
    echo; echo "## Operations"; echo '```'
    timeout 300 "$bin/fovea" bench ops --device cuda --rounds 21 2>&1
    echo '```'
  fi
  if wants model; then
    echo; echo "## Whole decode steps, 8B shape, random weights"; echo '```'
    timeout 300 "$bin/fovea" bench decode --device cuda --model bench/shapes/llama-8b --dummy-weights --depths 4096,131072 \
      --steps 64 --budget-tokens 2048 --max-model-len 131328 --max-num-seqs 2 2>&1
    echo '```'
  fi
  if wants peers; then
    echo; echo "## Published kernels beside them"; echo '```'
    timeout 300 python3 tools/gpu_peers.py 2>&1 | grep -v -i warning
    echo '```'
  fi
}

mkdir -p "$results"
out=$results/$(date -u +%F)-$(tr ' A-Z' '-a-z' <<<"$gpu").md
report | tee ${APPEND:+-a} "$out"
[ ! -e "$scratch/failed" ]
