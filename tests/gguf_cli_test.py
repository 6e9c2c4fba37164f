#!/usr/bin/env python3
"""A model in a GGUF file as a user meets it: every command takes the file, and it answers as the directory does.

Usage: gguf_cli_test.py FOVEA_BINARY REPO_ROOT. Needs nothing but Python.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import gguf_file

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = ROOT / "models/tiny-gqa"


def fovea(*args):
    return subprocess.run([FOVEA, *map(str, args)], capture_output=True, text=True, timeout=600)


class Gguf(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tmp = pathlib.Path(tempfile.mkdtemp())
        cls.file = gguf_file.write_model(MODEL, cls.tmp / "tiny.gguf")
        cls.parts = gguf_file.write_model(MODEL, cls.tmp / "parts.gguf", parts=3)
        subprocess.run([sys.executable, ROOT / "tools/make_set.py", "--station", "--tokens", "1024", "--documents", "1", "--questions", "8",
                        "--seed", "5", "--plain", cls.tmp / "log.txt", "--out", cls.tmp / "set.jsonl"], check=True, capture_output=True)
        cls.questions = json.loads((cls.tmp / "set.jsonl").read_text().splitlines()[0])["questions"]

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.tmp)

    def ok(self, *args):
        r = fovea(*args)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def answers(self, model, *args):
        asked = [x for q in self.questions[:4] for x in ("--question", q["question"])]
        run = json.loads(self.ok("run", "--model", model, "--file", self.tmp / "log.txt", "--json", *asked, *args))
        return [a["answer"] for a in run["answers"]], run

    def test_answers_as_the_directory_does(self):
        want, _ = self.answers(MODEL)
        self.assertEqual(self.answers(self.file)[0], want)
        self.assertEqual(self.answers(self.parts)[0], want)

    def test_a_restart_finds_what_was_stored(self):
        store = ("--kv-store", self.tmp / "kv")
        first, cold = self.answers(self.file, *store)
        again, warm = self.answers(self.file, *store)
        self.assertEqual(first, again)
        self.assertEqual(cold["document_loaded_tokens"], 0)
        self.assertEqual(warm["document_computed_tokens"], 0)
        self.assertEqual(warm["document_loaded_tokens"], warm["document_tokens"])

    def test_inspect(self):
        info = json.loads(self.ok("inspect", "--model", self.file, "--json"))
        self.assertEqual([t["type"] for t in info["weight_types"]], ["bf16"])
        self.assertEqual(info["weight_types"][0]["bits"], 16)
        self.assertEqual(info["weight_bytes"], json.loads(self.ok("inspect", "--model", MODEL, "--json"))["weight_bytes"])
        self.assertTrue(info["has_tokenizer"] and info["has_chat_template"])
        self.assertIn("16.00 bits a weight: bf16 100.0 % at 16.00", self.ok("inspect", "--model", self.file))
        chat = self.tmp / "chat.json"
        chat.write_text('[{"role": "user", "content": "Hello"}]')
        self.assertEqual(self.ok("inspect", "--model", self.file, "--render", chat), self.ok("inspect", "--model", MODEL, "--render", chat))

    def test_other_commands(self):
        self.ok("eval", "--model", self.parts, "--set", self.tmp / "set.jsonl", "--tasks", "kv")
        self.ok("calibrate", "--model", self.file, "--text", self.tmp / "log.txt", "--out", self.tmp / "scales.json")

    def test_mistakes_are_one_clear_line(self):
        cut = self.tmp / "cut.gguf"
        cut.write_bytes(self.file.read_bytes()[:1_000_000])
        for model, words in ((cut, "truncated file?"), (self.tmp / "none.gguf", "there is no such file"), (self.tmp / "none", "no such directory"),
                             (self.tmp / "parts-00002-of-00003.gguf", "it is part 2 of 3; name the first part")):
            r = fovea("run", "--model", model, "--prompt", "a")
            self.assertEqual(r.returncode, 2)
            self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)
            self.assertIn(str(model), r.stderr)
            self.assertIn(words, r.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
