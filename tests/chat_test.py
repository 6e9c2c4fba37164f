#!/usr/bin/env python3
"""`fovea chat` by a pipe and on a terminal: turns, files, commands, and an answer that Ctrl-C stops.

Usage: chat_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments].
"""
import contextlib
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time
import unittest

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = ROOT / "models/tiny-gqa"
FLAGS = ["--model", MODEL, "--numerics", "f32", "--threads", "1"]
SHORT = ["--max-tokens", "24"]
QUESTION = "What is the code of the door?"


def chat(text, *args):
    r = subprocess.run([FOVEA, "chat", *map(str, [*FLAGS, *SHORT, *args])], input=text, capture_output=True, text=True, timeout=300)
    return r.returncode, r.stdout, r.stderr


def run(prompt):
    r = subprocess.run([FOVEA, "run", *map(str, FLAGS), *SHORT, "--prompt", prompt], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return r.stdout


class Pipe(unittest.TestCase):
    def answers(self, text, *args):
        code, out, err = chat(text, *args)
        self.assertEqual(code, 0, err)
        return out, err

    def test_the_first_turn_is_what_run_answers(self):
        self.assertEqual(self.answers(QUESTION + "\n")[0], run(QUESTION))
        # Lines that go on, and blocks, are one message.
        self.assertEqual(self.answers("The river\\\nand the door.\n")[0], run("The river\nand the door."))
        self.assertEqual(self.answers('"""\nThe river\n\nand the door.\n"""\n')[0], run("The river\n\nand the door."))
        self.assertEqual(self.answers('"""\nThe river')[0], run("The river\n"))
        self.assertEqual(self.answers("//help me\n")[0], run("/help me"))

    def test_later_turns_know_the_earlier_ones(self):
        first, second = QUESTION, "And of the gate?"
        both, err = self.answers(f"{first}\n{second}\n")
        self.assertTrue(both.startswith(run(first)))
        tokens = lambda err: [int(n) for n in re.findall(r"\(of (\d+) tokens", err)]
        one, two = tokens(err)
        begun_anew, err = self.answers(f"{first}\n/clear\n{second}\n")
        self.assertEqual(tokens(err)[0], one)
        self.assertGreater(two, one + tokens(err)[1])
        self.assertEqual(begun_anew, run(first) + run(second))
        again, _ = self.answers(f"{first}\n/retry\n")
        self.assertEqual(again, run(first) * 2)
        # The retry took the place of the answer: the next turn is the same.
        self.assertEqual(self.answers(f"{first}\n/retry\n{second}\n")[0], run(first) + both)
        told, _ = self.answers(f"/system Be brief.\n{first}\n")
        self.assertEqual(told, self.answers(f"{first}\n", "--system", "Be brief.")[0])

    def test_files(self):
        with tempfile.TemporaryDirectory() as tmp:
            path = pathlib.Path(tmp, "a report.txt")
            path.write_text("\n".join(f"Line {i}: the door has the code {i * 37}." for i in range(80)))
            want = run(path.read_text() + "\n\n" + QUESTION)
            out, err = self.answers(f"/file {path}\n{QUESTION}\n")
            self.assertEqual(out, want)
            self.assertRegex(err, r"a report.txt: \d+ tokens")
            self.assertEqual(self.answers(f"{QUESTION}\n", "--file", path)[0], want)
            code, _, err = chat("", "--file", tmp + "/none")
            self.assertEqual(code, 2)
            self.assertIn("/none: cannot be opened", err)

    def test_methods_and_budgets(self):
        text = " ".join(f"Line {i}: nothing." for i in range(400)) + " " + QUESTION
        out, err = self.answers(f"{text}\n/method gsa_on_device\n/budget 128\n/retry\n/method dense\n/retry\n",
                                "--serve-method", "gsa_on_device")
        shares = [float(x) for x in re.findall(r"(?:dense|gsa_on_device) read ([0-9.]+) %", err)]
        self.assertEqual(len(shares), 3, err)
        self.assertEqual((shares[0], shares[2]), (100.0, 100.0))
        self.assertLess(shares[1], 60)

    def test_what_is_wrong_is_told_and_the_talk_goes_on(self):
        out, err = self.answers(f"/nothing\n/file\n/file /nowhere.txt\n/budget x\n/method telepathy\n/retry\n/help\n{QUESTION}\n/quit\nnever asked\n")
        self.assertEqual(out, run(QUESTION))
        for told in ("/nothing: no such command", "/file: needs PATH", "/nowhere.txt: cannot be opened", "/budget x: must be", "telepathy",
                     "/retry: nothing was answered yet", "Ctrl-C stops an answer"):
            self.assertIn(told, err)
        self.assertNotIn("never asked", out)

    def test_an_interrupt_stops_the_answer_and_not_the_program(self):
        p = subprocess.Popen([FOVEA, "chat", *map(str, FLAGS), "--max-tokens", "1000000"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, bufsize=1)
        try:
            p.stdin.write("Write the names of all rivers. \\\n" * 40 + "\n")
            p.stdin.flush()
            p.stdout.read(1)
            p.send_signal(signal.SIGINT)
            for line in p.stderr:
                if "stopped" in line or "first token" in line:
                    break
            p.stdin.write(QUESTION + "\n")
            out, err = p.communicate(timeout=120)
        finally:
            p.kill()
        self.assertEqual(p.returncode, 0, err)
        self.assertIn("first token", err)


class Terminal:
    def __init__(self, *args, env=None):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(FOVEA, [FOVEA, "chat", *map(str, [*FLAGS, *args])], {**os.environ, "TERM": "xterm", "HOME": "/nonexistent", **(env or {})})
        self.seen = ""

    def read_until(self, pattern, seconds=120):
        end = time.monotonic() + seconds
        while not (m := re.search(pattern, self.seen)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:  # the other side closed
                    assert re.search(pattern, self.seen), self.seen
                    break
        before, self.seen = self.seen[:m.end()], self.seen[m.end():]
        return before

    def gives_keys(self):
        return not termios.tcgetattr(self.fd)[3] & termios.ICANON

    def type(self, text, seconds=120):
        """At a prompt, which is shown before the terminal gives keys as they are."""
        end = time.monotonic() + seconds
        while not self.gives_keys():
            assert time.monotonic() < end, "no line is read"
            time.sleep(0.01)
        os.write(self.fd, text.encode())

    def interrupt(self):
        os.write(self.fd, b"\x03")

    def end(self, key="\x04"):
        self.type(key)
        with contextlib.suppress(OSError):
            while os.read(self.fd, 65536):  # it is over once its output was taken
                pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class OnATerminal(unittest.TestCase):
    def test_a_conversation(self):
        with tempfile.TemporaryDirectory() as tmp:
            history = tmp + "/history"
            want = run(QUESTION).strip()
            t = Terminal("--max-tokens", "24", "--history", history)
            t.read_until("Ctrl-D ends\r\n")
            t.read_until("> ")
            t.type("never asked\x03")  # what is typed is forgotten
            t.read_until(r"\n.*> ")
            t.type("Wha\x01\x0bWhat is the code of the gate?" + "\x7f" * 5 + "door?\r")  # edited: line's beginning, kill, backspace
            t.read_until(re.escape(want))
            t.read_until("first token")
            t.read_until("> ")
            t.type("\x1b[A\r")  # the line before
            t.read_until(r"first token")
            t.read_until("> ")
            t.type("Straße, 東京\\\r")
            t.read_until(r"\. ")
            t.type("und mehr\r")
            t.read_until("first token")
            t.read_until("> ")
            self.assertEqual(t.end(), 0)
            kept = pathlib.Path(history).read_text()
            self.assertEqual(kept.count("door"), 1)
            self.assertNotIn("never", kept)
            self.assertEqual(os.stat(history).st_mode & 0o777, 0o600)
            t = Terminal("--max-tokens", "24", "--history", history)
            t.read_until("> ")
            t.type("\x1b[A\x1b[A\x1b[A\r")
            t.read_until(re.escape(want))
            t.read_until("> ")
            self.assertEqual(t.end("/quit\r"), 0)

    def test_ctrl_c_stops_an_answer(self):
        # All ends are forbidden by a model that goes on: a prompt that repeats itself does.
        t = Terminal("--max-tokens", "100000", "--temperature", "2", "--top-k", "0")
        t.read_until("> ")
        for _ in range(20):
            t.type("Go on and on and on, and on, and on.\r")
            t.read_until("\n")
            t.read_until(r"\S")
            t.interrupt()
            if "stopped" in t.read_until(r"stopped|first token"):
                break
            t.read_until("> ")
            t.type("/x\r")  # an interrupt that came too late leaves one more prompt
            t.read_until("/x: ")
            t.read_until("> ")
        else:
            self.fail("every answer was over before it was stopped")
        t.read_until("> ")
        t.type("/clear\r")
        t.read_until("> ")
        t.type(QUESTION + "\r")
        t.read_until("first token")
        t.read_until("> ")
        self.assertEqual(t.end(), 0)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
