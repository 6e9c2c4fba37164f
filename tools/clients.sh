#!/usr/bin/env bash
# Clients from PyPI against `fovea serve`, and its page in Debian's headless Chromium: installs them into a folder of their own, starts the
# program, runs tools/clients/. What the clients send goes to tests/data/server, the page's pictures to FOLDER. Needs the network, and
# apt-get install chromium. Usage: tools/clients.sh [FOVEA_BINARY [FOLDER]]
# CLIENTS_VENV: a folder with a Python environment to keep for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
fovea=${1:-build/release/bin/fovea}
work=$(mktemp -d)
pictures=${2:-$work/page}
venv=${CLIENTS_VENV:-$work/venv}
server=
trap 'if [ "$server" ]; then kill "$server" || true; fi; rm -rf "$work"' EXIT
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q --disable-pip-version-check openai langchain-openai llama-index-llms-openai-like playwright axe-playwright-python

# serve ARGUMENTS...: starts it on a free port, with nothing that a newcomer would not give.
serve() {
  if [ "$server" ]; then kill "$server"; wait "$server" || true; fi
  "$fovea" serve --model models/tiny-gqa --port 0 "$@" 2> "$work/log" &
  server=$!
  until grep -q '^fovea: ready' "$work/log"; do
    kill -0 "$server" || { cat "$work/log"; exit 1; }
    sleep 0.1
  done
  url=http://127.0.0.1:$(sed -n 's/^fovea: ready: http port \([0-9]*\).*/\1/p' "$work/log")
}

serve
"$venv/bin/python" tools/clients/converse.py "$url" tests/data/server
began=$(date +%s.%N)
serve
SERVER_BEGAN=$began "$venv/bin/python" tools/clients/page.py "$url" "$pictures"
