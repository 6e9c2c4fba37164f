#!/usr/bin/env bash
# What CI cannot run, on a machine with an NVIDIA GPU, in one call: the operations' and the engine's tests on the GPU,
# compute-sanitizer over the small ones, the retrieval set on CPU and GPU side by side, benchmarks with their ceilings, and
# PyTorch's attention beside them. Writes bench/results/DATE-GPU.md and prints it.
#
# Usage: tools/gpu.sh [BIN]     BIN: a folder of built programs; default: build the release preset and take its
#   PARTS="tests sanitizer retrieval bench model peers"   which parts; default all
#   SET=F.jsonl   the retrieval set; default: one made of our own texts     RESULTS=DIR   default bench/results
set -uo pipefail
cd "$(dirname "$0")/.."
bin=${1:-}
parts=${PARTS:-tests sanitizer retrieval bench model peers}
results=${RESULTS:-bench/results}
if [ -z "$bin" ]; then
  cmake --preset release -DFOVEA_CUDA=ON && cmake --build --preset release -j "$(nproc)" || exit 1
  bin=build/release/bin
fi
command -v nvidia-smi >/dev/null || { echo "tools/gpu.sh: no nvidia-smi: this machine has no NVIDIA driver"; exit 2; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
export FOVEA_REQUIRE_GPU=1
# cuBLASLt comes with the toolkit or with PyTorch's packages.
for d in $(python3 -c 'import site,glob; print(*[d for p in site.getsitepackages() for d in glob.glob(p + "/nvidia/*/lib")])' 2>/dev/null); do
  LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:$d
done
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
wants() { [[ " $parts " == *" $1 "* ]]; }

# passed PROGRAM [ARGS]: runs a test program; a line of the table.
passed() {
  local name log
  name=$(basename "$1")
  log=$scratch/$name$(date +%N).log
  if timeout 600 "$@" >"$log" 2>&1; then
    echo "| $name ${2:-} | $(grep -c '^\[       OK' "$log") tests pass |"
  else
    failed=1
    echo "| $name ${2:-} | FAILS: $(grep -E '^\[  FAILED  \]' "$log" | sort -u | head -5 | tr '\n' ' ')|"
    tail -40 "$log" >&2
  fi
}

report() {
  echo "# $gpu"
  echo
  echo "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo "${COMMIT:-unknown}"), driver $(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -1), $(nproc) CPU cores"
  if wants tests; then
    echo; echo "## Tests on the GPU"; echo; echo "| Program | Result |"; echo "|---|---|"
    for t in "$bin"/kernels_cuda_*_test "$bin"/kernels_cuda_*test "$bin"/device_cuda*_test "$bin"/gpu_*_test; do [ -x "$t" ] && echo "$t"; done | sort -u |
      while read -r t; do passed "$t"; done
    for t in golden_test invariants_test gsa_engine_test trace_mass_test xattention_test latent_engine_test threads_test soak_test kv_store_test \
      device_kv_memory_test device_offload_test device_small_host_test; do
      [ -x "$bin/$t" ] && FOVEA_TEST_DEVICE=cuda passed "$bin/$t"
    done
  fi
  if wants sanitizer && command -v compute-sanitizer >/dev/null; then
    echo; echo "## compute-sanitizer"; echo; echo "| Tool | Program | Result |"; echo "|---|---|---|"
    # A few cases of each kernel: the tools are a hundred times slower than the tests.
    local some='*edges*:*growing*:*padded_rows*:*list_kv_16*:*dim_bf16_192:*AllBf16*:*Embed*:*Silu*:*KeepsTheSet*:*TokensBeyondTheLength*:*/0:*/1'
    for tool in memcheck racecheck; do
      for t in "$bin"/kernels_cuda_*test; do
        [ -x "$t" ] && [[ $t != *config_test ]] || continue
        local out
        out=$(GTEST_FILTER=$some timeout 30 compute-sanitizer --tool $tool --error-exitcode 9 "$t" 2>&1)
        echo "| $tool | $(basename "$t"), $(grep -c '^\[       OK' <<<"$out") tests | $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' <<<"$out" | tail -1 | sed 's/=//g') |"
        grep -E '^========= (Error|Warning): ' -A3 <<<"$out" | head -12 >&2
      done
    done
  fi
  if wants retrieval; then
    echo; echo "## Retrieval, tiny-gqa"
    local set=${SET:-$scratch/set.jsonl}
    [ -f "$set" ] || python3 tools/make_set.py --station --tokens 2048,8192 --documents 4 --out "$set" >/dev/null
    for device in cuda cpu; do
      echo; echo "$device:"; echo '```'
      timeout 600 "$bin/fovea" eval --model models/tiny-gqa --device $device --set "$set" --decode-method dense,gsa_on_device --budget-tokens 512 ${LENGTHS:+--lengths $LENGTHS} 2>&1
      echo '```'
    done
  fi
  if wants bench; then
    echo; echo "## Operations"; echo '```'
    timeout 600 "$bin/fovea" bench ops --device cuda --rounds 21 2>&1
    echo '```'
  fi
  if wants model; then
    echo; echo "## Whole decode steps, 8B shape, random weights"; echo '```'
    timeout 600 "$bin/fovea" bench decode --device cuda --model bench/shapes/llama-8b --dummy-weights --depths 4096,131072 \
      --steps 64 --budget-tokens 2048 --max-model-len 131328 --max-num-seqs 2 2>&1
    echo '```'
  fi
  if wants peers; then
    echo; echo "## PyTorch beside it"; echo '```'
    timeout 300 python3 tools/gpu_peers.py 2>&1
    echo '```'
  fi
}

mkdir -p "$results"
out=$results/$(date -u +%F)-$(tr ' A-Z' '-a-z' <<<"$gpu").md
report | tee "$out"
exit $failed
