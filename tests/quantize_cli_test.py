#!/usr/bin/env python3
"""fovea quantize as a user meets it: the file it writes answers, and mistakes are one clear line.

Usage: quantize_cli_test.py FOVEA_BINARY REPO_ROOT. Needs nothing but Python.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = ROOT / "models/tiny-gqa"
TYPES = {"q8_0": ["q8_0"], "q4_0": ["q4_0", "q8_0"], "q4_k_m": ["q4_k", "q5_0", "q6_k", "q8_0"], "q6_k": ["q6_k", "q8_0"], "f16": ["f16"],
         "bf16": ["bf16"], "f32": ["f32"]}


def fovea(*args):
    return subprocess.run([FOVEA, *map(str, args)], capture_output=True, text=True, timeout=600)


class Quantize(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = pathlib.Path(tempfile.mkdtemp())
        subprocess.run([sys.executable, ROOT / "tools/make_set.py", "--station", "--tokens", "1024", "--documents", "1", "--questions", "8",
                        "--seed", "5", "--plain", cls.tmp / "log.txt", "--out", cls.tmp / "set.jsonl"], check=True, capture_output=True)
        cls.questions = json.loads((cls.tmp / "set.jsonl").read_text().splitlines()[0])["questions"][:4]
        cls.files = {}
        for kind in TYPES:
            cls.files[kind] = cls.tmp / f"{kind}.gguf"
            r = fovea("quantize", "--model", MODEL, "--type", kind, "--out", cls.files[kind])
            assert r.returncode == 0 and r.stdout == "", r.stderr
            assert f"{cls.files[kind]}: 11.6 M parameters in " in r.stderr.splitlines()[-1], r.stderr

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.tmp)

    def ok(self, *args):
        r = fovea(*args)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def test_types_and_sizes(self):
        for kind, types in TYPES.items():
            info = json.loads(self.ok("inspect", "--model", self.files[kind], "--json"))
            self.assertEqual(sorted(t["type"] for t in info["weight_types"]), types)
            self.assertTrue(info["has_tokenizer"] and info["has_chat_template"])
        sizes = [self.files[k].stat().st_size for k in ("q4_0", "q4_k_m", "q6_k", "q8_0", "f16", "f32")]
        self.assertEqual(sizes, sorted(sizes))

    def test_answers(self):
        asked = [x for q in self.questions for x in ("--question", q["question"])]
        for kind in TYPES:
            run = json.loads(self.ok("run", "--model", self.files[kind], "--file", self.tmp / "log.txt", "--json", *asked))
            right = sum(a["answer"] == q["answer"] for a, q in zip(run["answers"], self.questions))
            self.assertGreaterEqual(right, 3 if kind.startswith("q4") else 4, kind)

    def test_a_file_is_as_good_a_source(self):
        again = self.tmp / "again.gguf"
        self.ok("quantize", "--model", self.files["bf16"], "--type", "q8_0", "--out", again)
        asked = ("run", "--file", self.tmp / "log.txt", "--question", self.questions[0]["question"], "--json", "--model")
        self.assertEqual(json.loads(self.ok(*asked, again))["answers"][0]["answer"],
                         json.loads(self.ok(*asked, self.files["q8_0"]))["answers"][0]["answer"])
        self.assertEqual(again.stat().st_size, self.files["q8_0"].stat().st_size)

    def test_what_stands_in_is_said(self):
        r = fovea("quantize", "--model", MODEL, "--type", "q4_k_m", "--out", self.files["q4_k_m"], "--force")
        self.assertEqual(r.returncode, 0)
        self.assertIn("note: rows of 384 are no whole blocks of q4_k: q5_0 instead, in 28 of the matrices", r.stderr)

    def test_mistakes_are_one_clear_line(self):
        out = self.tmp / "new.gguf"
        for args, words in (((MODEL, "q8_0", self.files["q8_0"]), "it is there already"),
                            ((self.files["q8_0"], "q4_0", out), "is quantised already"),
                            ((ROOT / "models/tiny-dsa", "q8_0", out), "cannot become a GGUF file"),
                            ((self.tmp / "none", "q8_0", out), "none"),
                            ((MODEL, "q9_0", out), "q9_0"),
                            ((MODEL, "q8_0", self.tmp / "no/where.gguf"), "No such file")):
            model, kind, to = args
            r = fovea("quantize", "--model", model, "--type", kind, "--out", to)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
            self.assertIn(words, r.stderr)
        self.assertFalse(out.exists())
        self.assertEqual(list(self.tmp.glob("*.new-*")), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
