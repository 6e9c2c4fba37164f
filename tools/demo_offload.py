#!/usr/bin/env python3
"""The demonstration of offload: a station log of 120K tokens, a KV pool for an eighth of it, the process killed with -9 while it
answers, and started again. Then beginnings of the log, 8K to all of it: dense and sparse with everything in memory, and sparse with
the small pool. Writes demo/offload: runs.jsonl, depths.png, depths.html, and prints the table. Needs nothing but Python.

  tools/demo_offload.py [--tokens 120000] [--fovea build/release/bin/fovea] [--out demo/offload] [--io direct]
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models/tiny-gqa"
BUDGET = 512           # tokens a row reads
SPARSE = f"gsa_on_device[budget_tokens={BUDGET}]"
KV_BYTES = 3072        # of a token: 6 layers, 2 KV heads of 64, K and V, bf16
RESIDENT_BYTES = 96 + 22  # of a token: codes of 64 bits in each layer and KV head; tables
COLUMN_TABLE_BYTES = 8     # of a token of the pool


class Demo:
    def __init__(self, args):
        self.args, self.out = args, args.out
        self.store = self.out / "store"
        # An eighth of the log's K and V (a little less: it comes out longer), beside what is resident of it.
        tokens = args.max_model_len
        self.pool = args.tokens * KV_BYTES // 8
        self.small = ["--max-model-len", tokens, "--kv-tokens", args.tokens * 21 // 20 + 512, "--kv-offload", "on",
                      "--kv-cache-memory", self.pool + tokens * RESIDENT_BYTES + args.tokens // 8 * COLUMN_TABLE_BYTES]

    def make_log(self):
        """The log, and questions about facts that even its shortest beginning has."""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir(parents=True)
        count = max(40, self.args.tokens // 1000)
        subprocess.run([sys.executable, ROOT / "tools/make_set.py", "--station", "--tokens", str(self.args.tokens), "--documents", "1",
                        "--questions", str(count), "--seed", "7", "--out", self.out / "set.jsonl"], check=True, stdout=subprocess.DEVNULL)
        document = json.loads((self.out / "set.jsonl").read_text().splitlines()[0])
        self.text = document["document"]
        early = sorted((q for q in document["questions"] if q["depth"] is not None), key=lambda q: q["depth"])
        self.questions = [q for q in early if q["task"] != "hop"][:5]

    def command(self, log, flags, json_out=True, store=True):
        command = [self.args.fovea, "run", "--model", MODEL, "--device", "cpu", "--file", log, *flags]
        command += ["--kv-store", self.store, "--kv-store-io", self.args.io] if store else []
        command += ["--json"] if json_out else []
        for q in self.questions:
            command += ["--question", q["question"]]
        return [str(c) for c in command]

    def cached_bytes(self):
        """Of the store's files, what the page cache holds; None where fincore is not there."""
        files = [str(f) for f in self.store.rglob("*.slab")]
        if not files or not shutil.which("fincore"):
            return None
        out = subprocess.run(["fincore", "-b", "-n", "-o", "RES", *files], capture_output=True, text=True).stdout
        return sum(map(int, out.split()))

    def record(self, series, log, flags, store=True):
        start = time.time()
        process = subprocess.Popen(self.command(log, flags, store=store), stdout=subprocess.PIPE, text=True)
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{series}: fovea run failed")
        run = json.loads(text)
        kinds = run["kv_memory_bytes"]
        memory = {"process": usage.ru_maxrss * 1024, "pool": kinds["pool"], "codes": kinds["summaries"],
                  "tables and reads ahead": kinds["tables"] + kinds["read_ahead"]}
        if kinds["host"] > 0:
            memory["host memory below"] = kinds["host"]
        if store and (cached := self.cached_bytes()) is not None:
            memory["page cache"] = cached
        line = {"series": series, "wanted": [q["answer"] for q in self.questions], "memory_bytes": memory, "run": run}
        with open(self.out / "runs.jsonl", "a") as f:
            f.write(json.dumps(line) + "\n")
        print(f"  {series}: {run['document_tokens']} tokens, {run['document_computed_tokens']} computed, "
              f"{run['document_loaded_tokens']} loaded, {time.time() - start:.1f} s", flush=True)
        return run

    def kill_while_it_answers(self, log):
        """Reads the log and dies in its first answer. The seconds from the start of the process until it answered."""
        start = time.time()
        process = subprocess.Popen(self.command(log, self.decode(SPARSE) + self.small, json_out=False), stdout=subprocess.PIPE)
        if not process.stdout.read(1):
            raise SystemExit("fovea run ended without an answer")
        seconds = time.time() - start
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        return seconds

    @staticmethod
    def decode(method):
        return ["--decode-method", method]

    def run(self):
        self.make_log()
        whole = self.out / "log.txt"
        whole.write_text(self.text)
        print(f"a log of about {self.args.tokens} tokens, a pool of {self.pool / 1e6:.0f} MB: an eighth of its K and V", flush=True)
        seconds = self.kill_while_it_answers(whole)
        print(f"  read in {seconds:.1f} s; killed with -9 in its first answer", flush=True)
        restart = f"started again: first token after {self.kill_while_it_answers(whole):.2f} s instead of {seconds:.1f} s"
        print("  " + restart, flush=True)
        self.record("sparse, an eighth in the pool", whole, self.decode(SPARSE) + self.small)
        depths = [d for d in (8192, 16384, 32768, 65536) if d < self.args.tokens]
        for depth in depths:
            log = self.out / f"log-{depth}.txt"
            log.write_text(self.beginning(depth))
            self.record("sparse, an eighth in the pool", log, self.decode(SPARSE) + self.small)
        for method, series in ((SPARSE, "sparse, all in memory"), ("dense", "dense, all in memory")):
            for depth in depths + [self.args.tokens]:
                log = whole if depth == self.args.tokens else self.out / f"log-{depth}.txt"
                self.record(series, log, self.decode(method) + ["--max-model-len", self.args.max_model_len, "--kv-offload", "off"])
        for depth in depths:  # all of it was computed before the kill
            self.record("dense, computed again", self.out / f"log-{depth}.txt",
                        self.decode("dense") + ["--max-model-len", self.args.max_model_len], store=False)
        return restart

    def beginning(self, depth):
        cut = self.text[:len(self.text) * depth // self.args.tokens]
        return cut[:cut.rindex("\n")]

    def draw(self, restart):
        subprocess.run([self.args.fovea, "bench", "page", "--runs", self.out / "runs.jsonl", "--out", self.out, "--title",
                        "A log of 120K tokens with an eighth of its K and V in memory" if self.args.tokens == 120000 else
                        f"A log of {self.args.tokens} tokens with an eighth of its K and V in memory",
                        "--subtitle", f"tiny-gqa, {BUDGET} tokens read by a sparse step, the pool stays the same at every depth; killed with "
                        f"-9 and {restart}"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=120000, help="of the log, at least 12000")
    parser.add_argument("--fovea", type=pathlib.Path, default=ROOT / "build/release/bin/fovea")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "demo/offload", help="emptied first")
    parser.add_argument("--io", default="buffered", choices=["buffered", "direct"], help="of the store's files")
    args = parser.parse_args()
    args.max_model_len = args.tokens * 21 // 20 + 4096  # the log is made by words: a few per cent longer, and its questions
    demo = Demo(args)
    restart = demo.run()
    print(flush=True)
    demo.draw(restart)
    print(f"\n{args.out}/depths.html and .png")


if __name__ == "__main__":
    main()
