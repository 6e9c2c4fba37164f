#!/usr/bin/env bash
# Clients from PyPI against `fovea serve`: installs them into a folder of their own, starts the program on a free port, runs
# tools/clients.py. Needs the network. Usage: tools/clients.sh [FOVEA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/.."
fovea=${1:-build/release/bin/fovea}
work=$(mktemp -d)
trap 'kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
server=
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check openai
"$fovea" serve --model models/tiny-gqa --port 0 2> "$work/log" &
server=$!
until grep -q '^fovea: ready' "$work/log"; do
  kill -0 "$server" || { cat "$work/log"; exit 1; }
  sleep 0.1
done
port=$(sed -n 's/^fovea: ready: http port \([0-9]*\).*/\1/p' "$work/log")
"$work/venv/bin/python" tools/clients.py "http://127.0.0.1:$port/v1"
