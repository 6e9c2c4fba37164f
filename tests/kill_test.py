#!/usr/bin/env python3
"""fovea run with a store, killed with -9 at random moments: the store is clean, its space is right, and answers stay the same.

Usage: kill_test.py FOVEA_BINARY REPO_ROOT. FOVEA_KILLS: how often (20). Needs nothing but Python.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
KILLS = int(os.environ.get("FOVEA_KILLS", "20"))
QUOTA = 9 << 20  # of three documents of 3 to 4 MiB, so that some always have to go


def fovea(*args):
    return subprocess.run([FOVEA, *map(str, args)], capture_output=True, text=True, timeout=600)


def document(folder, seed):
    text, questions = folder / f"log-{seed}.txt", folder / f"set-{seed}.jsonl"
    subprocess.run([sys.executable, ROOT / "tools/make_set.py", "--station", "--tokens", "1200", "--documents", "1", "--questions", "2",
                    "--seed", str(seed), "--plain", text, "--out", questions], check=True, capture_output=True)
    question = json.loads(questions.read_text().splitlines()[0])["questions"][0]["question"]
    return ["run", "--model", ROOT / "models/tiny-gqa", "--file", text, "--question", question, "--json"]


def answer(args):
    r = fovea(*args)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout)


def check(store, what):
    r = fovea("store", "verify", "--kv-store", store)
    assert r.returncode == 0 and r.stdout.splitlines()[-1].startswith("clean: "), f"{what}: {r.stdout}{r.stderr}"
    assert not (store / "bad").exists(), what
    stat = json.loads(fovea("store", "stat", "--kv-store", store, "--json").stdout)
    on_disk = sum(f.stat().st_size for f in store.glob("slabs/*/*.slab"))
    assert on_disk == stat["bytes"] <= QUOTA, f"{what}: {on_disk} bytes in files, {stat['bytes']} counted"


def main():
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        store = folder / "kv"
        runs = [document(folder, seed) for seed in (1, 2, 3)]
        start = time.monotonic()
        wanted = [answer(run)["answers"][0]["answer"] for run in runs]
        whole_s = (time.monotonic() - start) / len(runs)
        loaded = 0
        for kill in range(KILLS):
            i = kill % len(runs)
            args = [*runs[i], "--kv-store", store, "--kv-store-size", QUOTA, "--kv-store-sync", rng.choice(("interval", "none", "slab"))]
            with subprocess.Popen([FOVEA, *map(str, args)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
                time.sleep(rng.uniform(0, 1.2 * whole_s))
                p.kill()
            if (store / "FORMAT").exists():
                check(store, f"after kill {kill}")
            got = answer(args)
            assert got["answers"][0]["answer"] == wanted[i], f"after kill {kill}: {got['answers'][0]['answer']}, not {wanted[i]}"
            assert got["document_computed_tokens"] + got["document_loaded_tokens"] == got["document_tokens"], f"kill {kill}"
            loaded += got["document_loaded_tokens"]
            check(store, f"after the run that followed kill {kill}")
            assert not list((store / "tmp").iterdir()), f"kill {kill}"
        assert loaded > 0
        print(f"{KILLS} kills: clean stores, equal answers, {loaded} tokens loaded")


main()
