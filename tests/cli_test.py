#!/usr/bin/env python3
"""The program as a user meets it: answers, JSON, and bad input that gets one clear line and exit code 2.

Usage: cli_test.py FOVEA_BINARY REPO_ROOT. Needs nothing but Python.
"""
import csv
import io
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = ROOT / "models/tiny-gqa"


def fovea(*args, stdin=""):
    return subprocess.run([FOVEA, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=600)


class Cli(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = pathlib.Path(tempfile.mkdtemp())
        subprocess.run([sys.executable, ROOT / "tools/make_set.py", "--station", "--tokens", "2048", "--documents", "2",
                        "--questions", "20", "--seed", "5", "--plain", cls.tmp / "log.txt", "--out", cls.tmp / "set.jsonl"],
                       check=True, capture_output=True)
        cls.questions = json.loads((cls.tmp / "set.jsonl").read_text().splitlines()[0])["questions"]

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.tmp)

    def refused(self, *args, names):
        """Exit code 2, one line of error, and the line names what is wrong."""
        r = fovea(*args)
        self.assertEqual(r.returncode, 2, r.stderr)
        lines = [line for line in r.stderr.splitlines() if line.startswith("fovea: ")]
        self.assertEqual(len(lines), 1, r.stderr)
        self.assertEqual(r.stderr.rstrip("\n").splitlines()[-1], lines[0])
        for name in names:
            self.assertIn(name, lines[0])

    def test_answers_about_a_file(self):
        q = next(q for q in self.questions if q["task"] == "kv")
        r = fovea("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", q["question"], "--decode-method",
                  "gsa_on_device", "--budget-tokens", 512, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        answer = json.loads(r.stdout)["answers"][0]
        self.assertEqual(answer["answer"], q["answer"])
        self.assertGreater(json.loads(r.stdout)["kv_memory_bytes"]["pool"], 2048 * 3072 // 2)
        self.assertEqual(answer["finish_reason"], "stop")
        self.assertLess(answer["kv_bytes_share"], 0.4)

    def test_questions_come_from_stdin(self):
        kv = [q for q in self.questions if q["task"] == "kv"][:2]
        r = fovea("run", "--model", MODEL, "--file", self.tmp / "log.txt", stdin="".join(q["question"] + "\n" for q in kv))
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout.split("\n")[:2], [q["answer"] for q in kv])

    def ask(self, question, *args):
        r = fovea("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", question, "--json", *args)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout)

    def killed(self, args, when):
        """A run with questions for minutes, killed with -9 once when(the process) returns."""
        questions = self.tmp / "questions.txt"
        questions.write_text("\n".join(q["question"] for q in self.questions) * 100 + "\n")
        with open(questions) as stdin, subprocess.Popen(
                [FOVEA, "run", "--model", MODEL, "--file", self.tmp / "log.txt", *map(str, args)],
                stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as p:
            try:
                when(p)
                self.assertIsNone(p.poll())
            finally:
                p.kill()

    def test_a_document_outlives_a_killed_process(self):
        q = next(q for q in self.questions if q["task"] == "kv")["question"]
        for method in "dense", "gsa_on_device":
            store = self.tmp / f"store-{method}"
            args = ["--kv-store", store, "--decode-method", method, "--budget-tokens", 512]
            want = self.ask(q, *args[2:])
            self.assertEqual(want["document_computed_tokens"], want["document_tokens"])
            self.assertEqual(want["document_loaded_tokens"], 0)
            # While it reads: what was complete is loaded, the rest is computed.
            self.killed(args, lambda p: self.wait_for_slabs(p, store))
            self.assertEqual(self.ask(q, *args)["answers"][0]["answer"], want["answers"][0]["answer"])
            shutil.rmtree(store)

            def answering(p):
                p.stdout.readline()
                while self.stored_blocks(store) * 16 < want["document_tokens"]:
                    self.assertIsNone(p.poll())
            self.killed(args, answering)
            got = self.ask(q, *args)
            self.assertEqual(got["document_computed_tokens"], 0)
            self.assertEqual(got["document_loaded_tokens"], want["document_tokens"])
            self.assertEqual(got["answers"][0]["answer"], want["answers"][0]["answer"])
            self.assertEqual(got["answers"][0]["kv_bytes_read"], want["answers"][0]["kv_bytes_read"])

    def wait_for_slabs(self, p, store):
        """Until a file is complete."""
        while not list(store.glob("slabs/*/*.slab")):
            self.assertIsNone(p.poll())
            time.sleep(0.01)

    def stored_blocks(self, store):
        stat = fovea("store", "stat", "--kv-store", store, "--json")
        return json.loads(stat.stdout)["blocks"] if stat.returncode == 0 else 0

    def test_a_store_has_one_writer(self):
        store = self.tmp / "store-one"
        run = ["run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", "Q?"]

        def while_it_runs(p):
            self.wait_for_slabs(p, store)
            self.refused(*run, "--kv-store", store, names=[str(store), "writing"])
        self.killed(["--kv-store", store], while_it_runs)
        (store / "FORMAT").write_text("something else\n")
        self.refused(*run, "--kv-store", store, names=[str(store), "FORMAT"])
        self.refused(*run, "--kv-store", store, "--no-prefix-caching", names=["--kv-store", "--no-prefix-caching"])

    def test_what_a_store_does_not_take_is_told(self):
        store = self.tmp / "store-small"
        r = fovea("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", "Q?", "--max-tokens", "2", "--json",
                  "--kv-store", store, "--kv-store-size", "1M")
        self.assertEqual(r.returncode, 0, r.stderr)
        told = json.loads(r.stdout)["store"]
        self.assertGreater(told["unstored_blocks"], 0)
        self.assertIn("no room", told["error"])
        self.assertIn(f"--kv-store {store}: {told['unstored_blocks']} blocks of 16 tokens were not stored", r.stderr)

    def test_sparse_answers_as_dense_does(self):
        r = fovea("eval", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--decode-method", "dense,gsa_on_device",
                  "--budget-tokens", "512", "--json", "-")
        self.assertEqual(r.returncode, 0, r.stderr)
        rows = {row["decode_method"]: row for row in json.loads(r.stdout)["rows"] if row["task"] == "all"}
        self.assertEqual(rows["dense"]["total"], 40)
        self.assertGreaterEqual(rows["dense"]["right"], 40)
        self.assertGreaterEqual(rows["gsa_on_device"]["right"], rows["dense"]["right"] - 1)
        self.assertEqual(rows["dense"]["kv_bytes_share"], 1.0)
        self.assertLess(rows["gsa_on_device"]["kv_bytes_share"], 0.35)

    def test_eval_writes_its_folder(self):
        out = self.tmp / "eval"
        spec = "gsa_on_device[hash_bits=64,local_window_sz=1]"
        r = fovea("eval", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--decode-method", "dense," + spec, "--budget-tokens", "256",
                  "--documents", 1, "--tasks", "kv,word", "--out", out, "--trace", "--trace-questions", 1, "--format", "csv")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout, (out / "eval.csv").read_text())
        rows = list(csv.DictReader(io.StringIO(r.stdout)))
        self.assertEqual({row["decode_method"] for row in rows}, {"dense", spec})
        self.assertEqual({row["task"] for row in rows}, {"all", "kv", "word"})
        sparse = next(row for row in rows if row["decode_method"] == spec and row["task"] == "all")
        self.assertLess(float(sparse["kv_bytes_share"]), 0.3)
        self.assertLess(float(sparse["low"]), float(sparse["exact"]) + 1e-9)
        self.assertTrue(0 < float(sparse["recall"]) < 1 and 0 < float(sparse["mass"]) <= 1, sparse)
        written = json.loads((out / "eval.json").read_text())
        self.assertEqual(len(written["rows"]), len(rows))
        self.assertEqual([len(layer) for layer in written["traces"][0]["mass"]], [2] * 6)
        self.assertTrue((out / "eval.png").read_bytes().startswith(b"\x89PNG"))
        for page in ("eval.html", "trace-1.html"):
            text = (out / page).read_text()
            self.assertIn(spec, text)
            self.assertNotIn("http", text)
        self.assertFalse((out / "trace-2.html").exists(), "dense has nothing to trace")

    def test_eval_runs_a_plan(self):
        plan = self.tmp / "plan.yaml"
        plan.write_text("- {}\n- decode: [gsa_on_device, 'gsa_on_device[share_heads=true]']\n  budget_tokens: 256\n"
                        "- {decode: gsa_on_device, budget_tokens: 512, block_size: 64}\n")
        r = fovea("eval", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--plan", plan, "--documents", 1, "--tasks", "kv",
                  "--format", "json")
        self.assertEqual(r.returncode, 0, r.stderr)
        runs = [(row["decode_method"], row["budget_tokens"], row["block_size"]) for row in json.loads(r.stdout)["rows"] if row["task"] == "all"]
        self.assertEqual(runs, [("dense", 0, 16), ("gsa_on_device", 256, 16), ("gsa_on_device[share_heads=true]", 256, 16),
                                ("gsa_on_device", 512, 64)])

    def test_eval_judges_prefills_too(self):
        out = self.tmp / "prefill"
        spec = "xattention[min_context=512,threshold=0.5]"
        r = fovea("eval", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--prefill-method", "dense," + spec, "--documents", 1,
                  "--tasks", "kv", "--out", out, "--trace", "--trace-questions", 1, "--agreement")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("pairs", r.stdout)
        shares = {row["prefill_method"]: row["prefill_share"] for row in json.loads((out / "eval.json").read_text())["rows"]}
        self.assertEqual(shares["dense"], 1.0)
        self.assertLess(shares[spec], 0.95)
        rows = {row["prefill_method"]: row for row in json.loads((out / "eval.json").read_text())["rows"] if row["task"] == "all"}
        self.assertEqual((rows["dense"]["agreement"], rows["dense"]["kl"]), (1.0, 0.0))
        self.assertGreater(rows[spec]["kl_p99"], 1e-6)
        self.assertIn("Agreement compares", (out / "eval.html").read_text())
        self.assertIn('"tokens_per_unit":128', (out / "trace-1.html").read_text())

    def test_perplexity_of_a_text(self):
        text = self.tmp / "text.txt"
        text.write_text((self.tmp / "log.txt").read_text()[:2000])
        args = ["eval", "--model", MODEL, "--perplexity", text]
        values = {}
        for window in (16, 256):
            r = fovea(*args, "--window", window, "--format", "json")
            self.assertEqual(r.returncode, 0, r.stderr)
            values[window] = json.loads(r.stdout)
        self.assertGreater(values[16]["perplexity"], values[256]["perplexity"])  # less to go by
        self.assertLess(values[16]["tokens"], values[256]["tokens"])
        self.assertIn("perplexity ", fovea(*args).stdout)
        self.refused(*args, "--set", self.tmp / "set.jsonl", names=["--set", "--perplexity"])
        self.refused("eval", "--model", MODEL, names=["--set", "--perplexity"])
        self.refused(*args, "--window", 1, names=["--window 1"])

    def test_decode_is_measured_on_quantised_weights(self):
        r = fovea("bench", "decode", "--model", MODEL, "--weights", "q8_0", "--depths", 64, "--steps", 2, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("weights of type q8_0, a step reads 0.012 GB", r.stdout)
        self.assertIn("weights read by a dense step at 64", r.stdout)
        step, rate = json.loads(r.stdout)["figures"][:2]
        spread = [step["spread"][k] for k in ("best", "p10", "p90")] + [step["value"]]
        self.assertEqual(sorted(spread), [spread[0], spread[1], spread[3], spread[2]])
        self.assertAlmostEqual(rate["value"] * step["value"], 1000)
        self.refused("bench", "decode", "--model", MODEL, "--weights", "q9", names=["--weights q9", "q4_k"])

    def test_eval_names_what_cannot_be(self):
        def refused(*args, names):
            self.refused("eval", "--model", MODEL, "--set", self.tmp / "set.jsonl", *args, names=names)
        refused("--decode-method", "dense,magic", names=["--decode-method", "magic", "gsa_on_device"])
        refused("--decode-method", "dense,,dense", names=["--decode-method", "dense,,dense"])
        refused("--decode-method", "gsa_on_device[hash_bits=64", names=["--decode-method", "gsa_on_device[hash_bits=64"])
        refused("--decode-method", "gsa_on_device[hash_bites=64]", names=["--decode-method", "hash_bites"])
        refused("--prefill-method", "gsa_on_device", names=["--prefill-method", "gsa_on_device", "dense"])
        refused("--decode-method", "xattention", names=["--decode-method", "xattention", "gsa_on_device"])
        refused("--decode-method", "gsa_on_device[hash_bits=63]", names=["gsa_on_device[hash_bits=63]", "63"])
        refused("--budget-tokens", "-1", names=["--budget-tokens", "-1"])
        refused("--block-size", "16,15", names=["--block-size", "15"])
        refused("--tasks", "sum", names=["--tasks", "sum", "kv"])
        refused("--without-tasks", "kv,number,word,hop,absent", names=["no question"])
        refused("--documents", "0", names=["--documents", "0"])
        refused("--documents", "none-such", names=["--documents", "none-such"])
        refused("--trace", names=["--trace", "--out"])
        refused("--plan", self.tmp / "none.yaml", names=["none.yaml"])
        refused("--plan", self.tmp / "none.yaml", "--budget-tokens", "512", names=["--plan", "--budget-tokens"])
        bad = self.tmp / "bad_plan.yaml"
        bad.write_text("- {decode: dense, budget: 7}\n")
        refused("--plan", bad, names=["bad_plan.yaml", "budget"])

    def test_specs_are_methods_everywhere(self):
        q = next(q for q in self.questions if q["task"] == "kv")
        spec = "gsa_on_device[hash_bits=256,budget_tokens=512]"
        r = fovea("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", q["question"], "--decode-method", spec, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(json.loads(r.stdout)["answers"][0]["answer"], q["answer"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--prefill-method", "gsa_on_device", names=["--prefill-method", "gsa_on_device"])

    def test_fp8_answers_with_calibrated_scales(self):
        scales, log = self.tmp / "scales.json", self.tmp / "log.txt"
        r = fovea("calibrate", "--model", MODEL, "--text", log, ROOT / "README.md", "--out", scales)
        self.assertEqual(r.returncode, 0, r.stderr)
        written = json.loads(scales.read_text())
        self.assertEqual((written["layers"], written["kv_heads"], written["margin"]), (6, 2, 2.0))
        self.assertGreater(written["tokens"], 4000)
        for q in [q for q in self.questions if q["task"] == "kv"][:2]:
            for dtype in ["fp8", "fp8_e5m2"]:
                r = fovea("run", "--model", MODEL, "--file", log, "--question", q["question"], "--kv-cache-dtype", dtype,
                          "--kv-scales", scales, "--json")
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertEqual(json.loads(r.stdout)["answers"][0]["answer"], q["answer"])
        run = ["run", "--model", MODEL, "--prompt", "x"]
        self.refused(*run, "--kv-scales", scales, names=["--kv-scales", "scales.json", "bf16"])
        fp8 = [*run, "--kv-cache-dtype", "fp8", "--kv-scales"]
        self.refused(*fp8, self.tmp / "none.json", names=["none.json"])
        del written["v_amax"]
        bad = self.tmp / "bad_scales.json"
        bad.write_text(json.dumps(written))
        self.refused(*fp8, bad, names=["bad_scales.json", "v_amax"])
        calibrate = ["calibrate", "--model", MODEL, "--out", scales, "--text"]
        self.refused(*calibrate, self.tmp / "none.txt", names=["none.txt"])
        self.refused(*calibrate, log, "--margin", 0.5, names=["--margin"])

    def test_trace_writes_its_pictures(self):
        out = self.tmp / "pictures"
        r = fovea("trace", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--out", out, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(len(json.loads(r.stdout)), 20)
        self.assertTrue((out / "reading-map.png").read_bytes().startswith(b"\x89PNG"))
        self.assertIn(self.questions[0]["question"], (out / "reading-map.html").read_text())

    def test_recorded_lists_are_simulated_and_replayed(self):
        lists = self.tmp / "lists.jsonl"
        document = json.loads((self.tmp / "set.jsonl").read_text().splitlines()[1])["id"]
        r = fovea("trace", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--document", document, "--budget-tokens", 128,
                  "--max-tokens", 4, "--lists", lists, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        shape, *rows = map(json.loads, lists.read_text().splitlines())
        self.assertEqual([shape["layers"], shape["kv_heads"], shape["block_size"], shape["k"]], [6, 2, 16, 8])
        self.assertEqual({r["question"] for r in rows}, set(range(20)))
        first = [r for r in rows if r["question"] == 0]
        self.assertEqual([r["position"] for r in first], list(range(shape["context_tokens"], first[-1]["position"] + 1)))
        answers = [r for r in first if r["answer"]]
        self.assertEqual(first[-len(answers):], answers)
        self.assertEqual([r["step"] for r in first if not r["answer"]] + [answers[0]["step"]], [0] * (len(first) - len(answers) + 1))
        for row in first:
            self.assertEqual(len(row["lists"]), 12)
            for units in row["lists"]:
                self.assertEqual(len(units), 8)
                self.assertEqual([units[0], units[-1]], [0, row["position"] // 16], "the windows")
        r = fovea("bench", "locality", "--lists", lists, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        sizes = json.loads(r.stdout)[0]["rows"]
        self.assertEqual(sizes[0]["columns"], 8)
        self.assertEqual(sizes[0]["answer"]["reads"], 96 * sum(r["answer"] for r in rows))
        misses = [s["answer"]["misses"] for s in sizes]
        self.assertEqual(misses, sorted(misses, reverse=True), "a larger pool misses no more")
        r = fovea("bench", "decode", "--model", MODEL, "--depths", 2304, "--steps", 6, "--replay", lists, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(f"reads what {len(rows)} rows read", r.stdout)
        self.refused("bench", "decode", "--model", MODEL, "--depths", 1024, "--replay", lists, names=["--depths 1024"])
        self.refused("bench", "decode", "--model", MODEL, "--budget-tokens", 64, "--replay", lists, names=["--budget-tokens"])
        self.refused("bench", "locality", "--lists", self.tmp / "set.jsonl", names=["set.jsonl:1", "format"])
        self.refused("bench", "locality", "--lists", f"{lists},{lists}", "--wider", lists, names=["--wider"])
        self.refused("trace", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--document", "none", "--out", self.tmp / "o",
                     names=["--document none"])
        self.refused("trace", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--decode-method", "dense", "--max-tokens", 1,
                     "--lists", lists, names=["--lists"])

    def test_lists_of_a_prompt_are_recorded(self):
        lists = self.tmp / "prefill-lists.jsonl"
        document = json.loads((self.tmp / "set.jsonl").read_text().splitlines()[1])["id"]
        trace = ["trace", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--document", document, "--prefill-lists", lists]
        r = fovea(*trace, "--prefill-method", "xattention[min_context=0,threshold=0.5,block_size=64]", "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        shape, *rows = map(json.loads, lists.read_text().splitlines())
        self.assertEqual([shape["layers"], shape["kv_heads"], shape["block_size"]], [6, 8, 64])
        self.assertEqual([r["position"] for r in rows], [64 * (i + 1) - 1 for i in range(len(rows))])
        for i, row in enumerate(rows):
            self.assertEqual([[units[0], units[-1]] for units in row["lists"]], [[0, i]] * 48, "sink and diagonal")
        self.assertLess(sum(map(len, rows[-1]["lists"])), 48 * len(rows), "something was left out")
        self.refused(*trace, "--prefill-method", "dense", names=["--prefill-lists"])
        self.refused("bench", "prefill", "--replay", self.tmp / "set.jsonl", names=["set.jsonl:1", "format"])

    def test_runs_are_drawn_against_depth(self):
        q = next(q for q in self.questions if q["task"] == "kv")
        r = fovea("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", q["question"], "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        runs = self.tmp / "runs.jsonl"
        line = {"series": "dense", "wanted": [q["answer"]], "memory_bytes": {"process": 3000000}, "run": json.loads(r.stdout)}
        runs.write_text(json.dumps(line) + "\n")
        out = self.tmp / "depths"
        r = fovea("bench", "page", "--runs", runs, "--out", out, "--title", "One run")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("1 of 1", r.stdout)
        self.assertIn("process 3 MB", r.stdout)
        self.assertTrue((out / "depths.png").read_bytes().startswith(b"\x89PNG"))
        self.assertIn("One run", (out / "depths.html").read_text())
        self.refused("bench", "page", "--runs", self.tmp / "log.txt", "--out", out, names=["log.txt:1"])

    def test_a_restart_is_measured(self):
        store = ["--kv-store", self.tmp / "restart"]
        r = fovea("bench", "restart", "--model", MODEL, *store, "--depths", 300, "--steps", 2, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("first token after a restart, 300 tokens", r.stdout)
        self.assertIn("the same answer", r.stdout)
        self.refused("bench", "restart", "--model", MODEL, names=["--kv-store"])
        self.refused("bench", "restart", "--model", MODEL, *store, "--depths", 255, names=["--depths 255", "256"])

    def test_a_disk_is_measured_and_left_as_it_was(self):
        folder = self.tmp / "disk"
        folder.mkdir()
        r = fovea("bench", "store", "--dir", folder, "--size", "16M", "--depths", "1,4", "--seconds", 0.001, "--rounds", 1, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        names = [f["name"] for f in json.loads(r.stdout)["figures"]]
        for part in ("page cache mmap 4 KiB depth 1", "buffered pread 1 MiB depth 4", "page cache strips through the store, verified"):
            self.assertTrue(any(part in name for name in names), part)
        self.assertEqual(list(folder.iterdir()), [])
        self.refused("bench", "store", "--dir", folder, "--depths", 65, names=["--depths 65"])
        self.refused("bench", "store", "--dir", folder, "--size", 5, names=["--size 5"])

    def test_traces_a_method_that_chooses_tokens(self):
        out = self.tmp / "tokens"
        r = fovea("trace", "--model", ROOT / "models/tiny-dsa", "--set", self.tmp / "set.jsonl", "--decode-method", "dsa",
                  "--budget-tokens", 0, "--max-tokens", 4, "--out", out, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(len(json.loads(r.stdout)), 20)
        self.assertTrue((out / "reading-map.png").read_bytes().startswith(b"\x89PNG"))

    def model_with(self, name, **files):
        """A copy of the model whose files are links, but for those given: {"chat_template.jinja": text}."""
        directory = self.tmp / name
        directory.mkdir()
        for path in MODEL.iterdir():
            (directory / path.name).symlink_to(path.resolve())
        for file, text in files.items():
            (directory / file).unlink(missing_ok=True)
            (directory / file).write_text(text)
        return directory

    def render(self, model, chat, *args):
        file = self.tmp / "chat.json"
        file.write_text(chat if isinstance(chat, str) else json.dumps(chat))
        return fovea("inspect", "--model", model, "--render", file, *args)

    def test_render_prints_the_prompt_and_its_ids(self):
        chat = [{"role": "user", "content": "Where?"}]
        prompt = "<|im_start|>user\nWhere?<|im_end|>\n<|im_start|>assistant\n"
        as_json = json.loads(self.render(MODEL, chat, "--json").stdout)
        self.assertEqual(as_json["prompt"], prompt)
        ids = " ".join(map(str, as_json["token_ids"]))
        self.assertEqual(self.render(MODEL, chat).stdout, f"{prompt}\n{ids}\n")
        without = json.loads(self.render(MODEL, {"messages": chat, "add_generation_prompt": False}, "--json").stdout)
        self.assertEqual(without["prompt"], prompt[:-len("<|im_start|>assistant\n")])

    def test_render_needs_no_weights(self):
        model = self.model_with("no-weights")
        for path in model.glob("*.safetensors"):
            path.unlink()
        self.assertEqual(self.render(model, [{"role": "user", "content": "a"}]).returncode, 0)

    def test_all_that_a_template_sees(self):
        model = self.model_with("seen", **{
            "chat_template.jinja": "{{ messages | tojson }}|{{ tools | tojson }}|{{ documents | tojson }}|{{ add_generation_prompt }}|"
                                   "{{ enable_thinking }}|{{ eos_token }}"})
        call = {"type": "function", "function": {"name": "f", "arguments": "{\"x\": [1, 2.5]}"}}
        messages = [{"role": "user", "content": [{"type": "text", "text": "é"}]}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        tools = [{"type": "function", "function": {"name": "f"}}]
        chat = {"messages": messages, "tools": tools, "documents": [{"text": "d"}], "chat_template_kwargs": {"enable_thinking": False}}
        r = self.render(model, chat, "--json")
        self.assertEqual(r.returncode, 0, r.stderr)
        seen = json.loads(r.stdout)["prompt"].split("|")
        messages[1]["tool_calls"][0]["function"]["arguments"] = {"x": [1, 2.5]}
        self.assertEqual([json.loads(text) for text in seen[:3]], [messages, tools, [{"text": "d"}]])
        self.assertEqual("|".join(seen[3:]), "True|False|<|im_end|>")

    def test_tools_choose_the_template_of_their_own(self):
        config = json.loads((MODEL / "tokenizer_config.json").read_text())
        config["chat_template"] = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
        model = self.model_with("named", **{"tokenizer_config.json": json.dumps(config)})
        messages = [{"role": "user", "content": "a"}]
        prompts = [json.loads(self.render(model, {"messages": messages, "tools": tools}, "--json").stdout)["prompt"]
                   for tools in (None, [], [{"type": "function"}])]
        self.assertEqual(prompts, ["D", "T", "T"])

    def test_template_kwargs_reach_the_template(self):
        model = self.model_with("kwargs", **{"chat_template.jinja": "{{ raise_exception('thinking is ' ~ enable_thinking) }}"})
        run = ("run", "--model", model, "--prompt", "a")
        self.refused(*run, "--template-kwargs", '{"enable_thinking": false}', names=["chat_template.jinja:1: thinking is False"])
        self.refused(*run, "--template-kwargs", "[1]", names=["--template-kwargs", "object"])
        self.refused(*run, "--template-kwargs", "{", names=["--template-kwargs", "JSON"])

    def test_render_names_what_is_wrong(self):
        for chat, names in (("{", ["chat.json", "JSON"]), ({"tools": []}, ["messages"]), ([{"content": "a"}], ["messages[0]", "role"]),
                            ({"messages": [], "toools": []}, ["toools"]), ({"messages": [], "tools": {}}, ["tools", "list"]),
                            ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}],
                             ["messages[0].tool_calls[0]", "arguments"])):
            (self.tmp / "chat.json").write_text(chat if isinstance(chat, str) else json.dumps(chat))
            self.refused("inspect", "--model", MODEL, "--render", self.tmp / "chat.json", names=names)
        self.refused("inspect", "--model", MODEL, "--render", self.tmp / "nothing.json", names=["nothing.json"])
        model = self.model_with("unsupported", **{"chat_template.jinja": "\n{% with x = 1 %}{% endwith %}"})
        (self.tmp / "chat.json").write_text("[]")
        self.refused("inspect", "--model", model, "--render", self.tmp / "chat.json", names=["chat_template.jinja:2", "with"])

    def test_the_models_own_sampling_is_the_default(self):
        # min_p 1 and the like would hide sampling; a temperature this high answers differently with every seed.
        config = {**json.loads((MODEL / "generation_config.json").read_text()), "temperature": 50.0}
        def answers(name, sampling, *args):
            model = self.model_with(name, **{"generation_config.json": json.dumps({**config, **sampling})})
            return {json.loads(fovea("run", "--model", model, "--prompt", "a", "--max-tokens", 8, "--seed", seed, "--json", *args).stdout)
                    ["answers"][0]["answer"] for seed in (1, 2, 3)}
        self.assertGreater(len(answers("sampled", {"do_sample": True})), 1)
        self.assertEqual(len(answers("greedy", {"do_sample": False})), 1)
        self.assertEqual(len(answers("unsaid", {})), 1)
        self.assertEqual(len(answers("flag", {"do_sample": True}, "--temperature", 0)), 1)

    def test_inspect_and_version(self):
        r = fovea("inspect", "--model", MODEL, "--json")
        self.assertEqual(json.loads(r.stdout)["kv_bytes_per_token"], 3072)
        self.assertRegex(fovea("--version").stdout, r"fovea \d+\.\d+\.\d+")
        for command in ("run", "eval", "bench", "trace", "inspect", "store"):
            self.assertEqual(fovea(command, "--help").returncode, 0)

    def test_a_store_is_listed_and_checked(self):
        store = self.tmp / "store"
        (store / "slabs/34").mkdir(parents=True)
        (store / "FORMAT").write_text("fovea-kv 1\n")
        slab = store / "slabs/34/0000000000001234.slab"
        shutil.copy(ROOT / "tests/data/store" / slab.name, slab)
        documents = json.loads(fovea("store", "ls", "--kv-store", store, "--json").stdout)
        self.assertEqual([(d["tokens"], d["blocks"], d["has_beginning"]) for d in documents], [(21, 2, False)])
        self.assertIn("21", fovea("store", "ls", "--kv-store", store).stdout)
        stat = json.loads(fovea("store", "stat", "--kv-store", store, "--json").stdout)
        self.assertEqual([p["name"] for p in stat["parts"]], ["codes.64.7", "kv"])
        clean = fovea("store", "verify", "--kv-store", store)
        self.assertEqual((clean.returncode, clean.stdout.splitlines()[-1][:6]), (0, "clean:"))
        bytes_ = bytearray(slab.read_bytes())
        bytes_[20000] ^= 1
        slab.write_bytes(bytes_)
        bad = fovea("store", "verify", "--kv-store", store)
        self.assertEqual((bad.returncode, bad.stdout.splitlines()[-1][:8]), (1, "damaged:"))
        self.assertIn(slab.name, bad.stdout)
        bad = fovea("store", "verify", "--kv-store", store, "--json")
        self.assertEqual((bad.returncode, json.loads(bad.stdout)["clean"]), (1, False))
        gc = json.loads(fovea("store", "gc", "--kv-store", store, "--kv-store-size", "1K", "--json").stdout)
        self.assertEqual((gc["removed_slabs"], gc["left_bytes"]), (1, 0))
        for command in ("ls", "stat", "verify", "gc"):
            self.refused("store", command, "--kv-store", self.tmp / "no-store", names=["no-store"])
            self.refused("store", command, names=["--kv-store"])
        self.refused("store", names=["subcommand"])

    def test_bad_flags(self):
        self.refused("run", "--model", MODEL, names=["--file", "--prompt"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--no-such-flag", names=["--no-such-flag"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--block-size", 15, names=["--block-size", "15"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--kv-cache-dtype", "int3", names=["--kv-cache-dtype", "int3"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--temperature", -1, names=["temperature", "-1"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--decode-method", "magic", names=["magic", "gsa_on_device"])
        self.refused("eval", "--model", MODEL, "--set", self.tmp / "set.jsonl", "--lengths", 77, names=["--lengths"])
        # Out of range, of the wrong kind, or in need of another: each names its flag and the value.
        for flag, value in (("--threads", 2000), ("--threads", "two"), ("--max-num-seqs", 0), ("--max-num-batched-tokens", 70000),
                            ("--max-model-len", -1), ("--sparse-min-context", -1), ("--sparse-extend-max-tokens", -1),
                            ("--max-step-kv-blocks", -1), ("--kv-cache-memory", "lots"), ("--swap-space", "much"), ("--numerics", "f64"),
                            ("--device", "tpu"), ("--seed", -1), ("--budget-tokens", -5), ("--top-k", -1), ("--top-p", 1.5),
                            ("--min-p", 1), ("--repetition-penalty", 0), ("--max-tokens", -1)):
            self.refused("run", "--model", MODEL, "--prompt", "x", flag, value, names=[flag.lstrip("-").replace("-", "_")
                         if flag in ("--top-k", "--top-p", "--min-p", "--repetition-penalty", "--max-tokens") else flag, str(value)])
        self.refused("run", "--model", MODEL, "--file", "f", "--prompt", "x", names=["--file", "--prompt"])
        self.refused("run", "--model", MODEL, "--prompt", "x", "--question", "y", names=["--question", "--file"])
        self.refused("trace", "--model", MODEL, "--set", self.tmp / "none.jsonl", "--out", self.tmp / "o", names=["none.jsonl"])
        self.refused("trace", "--model", MODEL, "--set", self.tmp / "set.jsonl", names=["--out"])

    @unittest.skipIf(pathlib.Path("/dev/nvidia0").exists(), "there is a GPU")
    def test_a_gpu_that_is_not_there(self):
        for what in (["run", "--model", MODEL, "--prompt", "x"], ["bench", "ops"]):
            self.refused(*what, "--device", "cuda", names=["device cuda"])

    def test_bad_files(self):
        self.refused("run", "--model", self.tmp / "none", "--prompt", "x", names=["none"])
        self.refused("run", "--model", MODEL, "--file", self.tmp / "none.txt", names=["none.txt"])
        self.refused("eval", "--model", MODEL, "--set", self.tmp / "log.txt", names=["log.txt:1"])
        config = self.tmp / "bad.yaml"
        config.write_text("ucm_sparse_config:\n  GSA_OnDevice:\n    hash_bits: 64\n    hash_planes: 128\n")
        self.refused("run", "--model", MODEL, "--prompt", "x", "--config", config, names=["bad.yaml", "hash_planes", "128"])
        odd = self.tmp / "odd.txt"
        odd.write_bytes(b"good \xff bad")
        self.refused("run", "--model", MODEL, "--file", odd, "--question", "x", names=["odd.txt", "UTF-8", "offset 5"])

    def test_bad_models(self):
        model = self.tmp / "model"
        shutil.copytree(MODEL, model)
        weights = (model / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(weights[:-1000])
        self.refused("run", "--model", model, "--prompt", "x", names=["model.safetensors"])
        (model / "model.safetensors").write_bytes(weights)
        config = json.loads((model / "config.json").read_text())
        for field, value in (("architectures", ["MambaForCausalLM"]), ("hidden_size", 385), ("head_dim", 7)):
            (model / "config.json").write_text(json.dumps({**config, field: value}))
            r = fovea("run", "--model", model, "--prompt", "x")
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertEqual(len(r.stderr.strip().splitlines()), 1, r.stderr)

    def test_what_does_not_fit_is_refused(self):
        self.refused("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", "x", "--max-model-len", 512,
                     names=["512"])
        self.refused("run", "--model", MODEL, "--file", self.tmp / "log.txt", "--question", "x", "--kv-cache-memory", "1M",
                     names=["KV blocks"])

    def test_a_longer_limit_than_the_models_is_warned_of(self):
        r = fovea("run", "--model", MODEL, "--prompt", "What is the pin of Olga?", "--max-model-len", 140000, "--max-tokens", 4)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("max_position_embeddings 131072", r.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
