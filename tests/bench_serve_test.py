#!/usr/bin/env python3
"""`fovea bench serve` against `fovea serve`, and against a server that cuts, stalls, refuses and talks nonsense: errors are counted
by kind, and nothing else is lost.

Usage: bench_serve_test.py FOVEA_BINARY REPO_ROOT. Needs nothing but Python.
"""
import collections
import http.server
import json
import pathlib
import re
import subprocess
import sys
import threading
import unittest

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])


def bench(port, *args):
    r = subprocess.run([FOVEA, "bench", "serve", "--url", f"http://127.0.0.1:{port}", "--json", *map(str, args)],
                       capture_output=True, text=True, timeout=300)
    return r, json.loads(r.stdout) if r.stdout else None


def event(text, **more):
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}, **more}]}).encode() + b"\n\n"


WHOLE = event("a") + event("b", finish_reason="stop")
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5}}\n\n'
DONE = b"data: [DONE]\n\n"
# Bodies of streams, and what a reply with each counts as.
STREAMS = [
    (WHOLE + USAGE + DONE, None),
    (b": comment\r\n\r\nevent: x\r\n" + (WHOLE + DONE).replace(b"\n", b"\r\n"), None),
    (WHOLE, None),  # no [DONE], but the answer ended
    (event("a"), "cut"),
    (b"", "cut"),
    (event("a") + b"data: {\"choices\": [{\n\n", "malformed event"),
    (b"data: []\n\n", "malformed event"),
    (b"data: {\"choices\": 7}\n\n", "malformed event"),
    (b"data: {\"choices\": [7, null, {\"delta\": []}], \"usage\": -1}\n\n", "cut"),
    (b"data: \xff\xfe\n\n", "malformed event"),
    (b"data: " + b"[" * 100000 + b"\n\n", "malformed event"),
    (event("a") + b'data: {"error": {"message": "out of room"}}\n\n', "error event"),
    (DONE, "no answer"),
]
OTHERS = ["HTTP 429", "HTTP 500", "no event stream", "bad HTTP", "timeout", "cut"]


class Fake(http.server.BaseHTTPRequestHandler):
    """The first two requests are those by which the bench measures words; then each kind of reply in turn."""
    protocol_version = "HTTP/1.1"
    lock, asked, seen = threading.Lock(), 0, []

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.whole(200, b'{"data": [{"id": "fake"}]}')

    def whole(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(0, len(body), 7000):  # cuts events anywhere
            part = body[i:i + 7000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Fake.lock:
            n = Fake.asked
            Fake.asked += 1
            Fake.seen.append((self.headers["Authorization"], body))
        self.close_connection = True
        try:
            self.answer(n)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, n):
        if n < 2:
            usage = {"prompt_tokens": [10 + 16 * 2, 10 + 144 * 2][n], "completion_tokens": 1}
            return self.stream(WHOLE + b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n" + DONE)
        n = (n - 2) % (len(STREAMS) + len(OTHERS))
        if n < len(STREAMS):
            return self.stream(STREAMS[n][0])
        kind = OTHERS[n - len(STREAMS)]
        if kind.startswith("HTTP"):
            self.whole(int(kind[5:]), b'{"error": {"message": "no"}}')
        elif kind == "no event stream":
            self.whole(200, b"{}")
        elif kind == "bad HTTP":
            self.wfile.write(b"HTTP/9.9 banana\r\n\r\n")
        elif kind == "timeout":
            self.rfile.read()  # until the client leaves
        else:
            self.connection.shutdown(2)


class Listener(http.server.ThreadingHTTPServer):
    request_queue_size = 256


class BenchServe(unittest.TestCase):
    def test_every_kind_of_failure_is_counted(self):
        server = Listener(("127.0.0.1", 0), Fake)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        turns = 5
        kinds = [kind for _, kind in STREAMS] + OTHERS
        want = {k: n * turns for k, n in collections.Counter(kinds).items()}
        whole = want.pop(None)
        r, figures = bench(server.server_address[1], "--num-prompts", turns * len(kinds), "--max-concurrency", 16, "--timeout", 8,
                           "--input-len", 50, "--prefix-tokens", 20, "--num-prefixes", 2, "--api-key", "sesame", "--request-rate",
                           1000, "--extra-body", '{"top_k": 3}')
        server.shutdown()
        server.server_close()
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(figures["errors"], want)
        self.assertEqual((figures["completed"], figures["failed"]), (whole, sum(want.values())))
        self.assertLessEqual(figures["max_concurrent_requests"], 16)
        # Of the three whole kinds one tells 9 and 5 tokens, the others have two events each.
        self.assertEqual((figures["total_input_tokens"], figures["total_output_tokens"]), (9 * turns, (5 + 2 + 2) * turns))
        self.assertTrue(all(key == "Bearer sesame" and b["top_k"] == 3 and b["model"] == "fake" for key, b in Fake.seen))
        # Two tokens a word and ten for the template: 10 words of one of two prefixes, and 20 of its own.
        prompts = [b["messages"][0]["content"].split() for _, b in Fake.seen[2:]]
        self.assertEqual({len(p) for p in prompts}, {30})
        self.assertEqual(len({tuple(p[:10]) for p in prompts}), 2)
        self.assertEqual(len({tuple(p) for p in prompts}), len(prompts))

    def test_a_real_server(self):
        server = subprocess.Popen([FOVEA, "serve", "--model", ROOT / "models/tiny-gqa", "--port", "0", "--log-level", "warning"],
                                  stderr=subprocess.PIPE, text=True)
        try:
            for line in server.stderr:
                if m := re.search(r"listening.*:(\d+);", line):
                    port = m.group(1)
                if line.startswith("fovea: ready"):
                    break
            for endpoint in "chat", "completions":
                r, figures = bench(port, "--endpoint", endpoint, "--num-prompts", 24, "--input-len", 120, "--output-len", 40,
                                   "--ignore-eos", "--prefix-tokens", 64)
                self.assertEqual(r.returncode, 0, r.stderr)
                self.assertEqual((figures["completed"], figures["errors"]), (24, {}), r.stdout)
                self.assertEqual(figures["total_output_tokens"], 24 * 40)
                self.assertEqual(figures["max_concurrent_requests"], 24)
                self.assertLess(abs(figures["total_input_tokens"] / 24 - 184), 30)
                for name in "ttft", "tpot", "e2el":
                    p = [figures[f"{k}_{name}_ms"] for k in ("p50", "p90", "p99")]
                    self.assertEqual(p, sorted(p))
                    self.assertGreater(p[0], 0)
                self.assertGreaterEqual(figures["p99_e2el_ms"], figures["p99_ttft_ms"])
        finally:
            server.kill()
            server.wait()
            server.stderr.close()

    def test_what_cannot_work_is_one_line(self):
        for args, name in ((["--url", "ftp://x"], "--url"), (["--url", "http://127.0.0.1:1"], "--url"),
                           (["--url", "http://127.0.0.1:1", "--extra-body", "[]"], "--extra-body"),
                           (["--num-prompts", "0"], "--num-prompts")):
            r = subprocess.run([FOVEA, "bench", "serve", *args], capture_output=True, text=True, timeout=60)
            self.assertEqual(r.returncode, 2, (args, r.stderr))
            self.assertIn(name, r.stderr)
            self.assertEqual(len(r.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:], verbosity=2)
