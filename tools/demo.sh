#!/usr/bin/env bash
# The demo: a station log of 32K tokens with planted facts, read once and asked dense and sparse side by side; then our own
# documentation, asked through `fovea run`. Writes demo/: the text, the sets, reading-map.html and reading-map.png.
set -euo pipefail
cd "$(dirname "$0")/.."
fovea=build/release/bin/fovea
model=models/tiny-gqa
mkdir -p demo
python3 tools/make_set.py --station --tokens "${DEMO_TOKENS:-32768}" --documents 1 --questions 6 --seed 7 \
  --out demo/station.jsonl --plain demo/station.txt
echo
"$fovea" trace --model "$model" --set demo/station.jsonl --out demo

echo
python3 tools/make_set.py --text README.md docs/*.md --tokens 6000 --documents 1 --questions 2 --seed 3 \
  --out demo/docs.jsonl --plain demo/docs.txt
questions=()
while IFS= read -r q; do questions+=(--question "$q"); done < <(python3 -c '
import json
for q in json.loads(open("demo/docs.jsonl").readline())["questions"]: print(q["question"])')
"$fovea" run --model "$model" --file demo/docs.txt "${questions[@]}" --decode-method gsa_on_device --budget-tokens 512

echo
echo "The same in a browser, with your own files: $fovea serve --model $model, then http://127.0.0.1:8000"
