#!/usr/bin/env python3
"""The server as its clients meet it: replies whole and streamed, errors that name the field, clients that leave or dawdle, the end.

Usage: server_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments]. Needs nothing but Python (and curl for the page's examples).
"""
import concurrent.futures
import gzip
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings

FOVEA, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
MODEL = ROOT / "models/tiny-gqa"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
QUESTION = "What is the code of the door?"
LONG = {"max_tokens": 100000, "ignore_eos": True}


def post(path, body, headers=""):
    """The bytes of a request."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def read_all(s):
    """What comes until the other side closes."""
    data = b""
    while more := s.recv(4096):
        data += more
    return data


class Server:
    """A running `fovea serve` on a port of its own."""

    def __init__(self, *args, env=None, tls=None):
        self.tls = tls  # of the client; none: plain HTTP
        self.process = subprocess.Popen(
            [FOVEA, "serve", "--model", MODEL, "--port", "0", "--numerics", "f32", "--threads", "1", *map(str, args)],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})})
        self.log = []
        for line in self.process.stderr:
            self.log.append(line)
            if line.startswith("fovea: listening"):
                self.port = int(re.search(r":(\d+);", line).group(1))
            if line.startswith("fovea: ready"):
                break
        else:
            raise RuntimeError("".join(self.log))
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr))
        self.reader.start()

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()

    def connect(self, timeout=120):
        if self.tls:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.tls)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def call(self, method, path, body=None, headers={}):
        """Status, headers and body of one request."""
        c = self.connect()
        c.request(method, path, body if body is None or isinstance(body, (str, bytes)) else json.dumps(body), headers)
        r = c.getresponse()
        data = r.read().decode()
        c.close()
        return r.status, r.headers, data

    def call_bytes(self, method, path):
        c = self.connect()
        c.request(method, path)
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, r.headers, data

    def ask(self, path, **body):
        status, _, data = self.call("POST", path, body)
        assert status == 200, data
        return json.loads(data)

    def stream(self, path, **body):
        status, headers, data = self.call("POST", path, {**body, "stream": True})
        assert status == 200, data
        assert headers["Content-Type"].startswith("text/event-stream"), headers
        assert data.endswith("data: [DONE]\n\n"), data[-200:]
        events = [e for e in data.split("\n\n") if e and not e.startswith(":")]
        assert all(e.startswith("data: ") for e in events)
        return [json.loads(e[6:]) for e in events[:-1]]

    def socket(self, timeout=60, receive_bytes=None):
        s = socket.socket()
        if receive_bytes:  # before it connects: the kernel would take megabytes for it
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        s.settimeout(timeout)
        s.connect(("127.0.0.1", self.port))
        return self.tls.wrap_socket(s, server_hostname="127.0.0.1") if self.tls else s

    def open_stream(self, path=CHAT, **body):
        """A socket on which a stream has begun."""
        s = self.socket()
        s.sendall(post(path, {"messages": [{"role": "user", "content": QUESTION}], "stream": True, **LONG, **body}))
        begun = b""
        while b"data: " not in begun:
            begun += s.recv(4096)
        return s

    def metric(self, name, labels=""):
        _, _, page = self.call("GET", "/metrics")
        values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(f"fovea:{name}") and labels in line]
        return sum(float(v) for v in values)

    def wait_until(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.02)


def texts_of(events, is_chat):
    texts = {}
    for e in events:
        for c in e["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + (c["delta"].get("content", "") if is_chat else c["text"])
    return texts


class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("--max-num-seqs", 8, "--serve-method", "gsa_on_device")

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def test_a_chat_is_what_run_answers_whole_and_streamed(self):
        run = subprocess.run([FOVEA, "run", "--model", MODEL, "--prompt", QUESTION, "--max-tokens", "12", "--numerics", "f32",
                              "--threads", "1"], capture_output=True, text=True)
        want = run.stdout.strip("\n")
        self.assertTrue(want)
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12}
        self.s.ask(CHAT, **body)  # warm: the next ones find its blocks
        whole = self.s.ask(CHAT, **body)
        self.assertEqual(whole["choices"][0]["message"]["content"], want)
        self.assertEqual(whole["object"], "chat.completion")
        self.assertEqual(whole["model"], "tiny-gqa")
        events = self.s.stream(CHAT, **body, stream_options={"include_usage": True})
        self.assertEqual(texts_of(events, True), {0: want})
        self.assertEqual(events[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(events[-2]["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"])
        self.assertEqual(events[-1]["choices"], [])
        for count in "prompt_tokens", "completion_tokens", "total_tokens":
            self.assertEqual(events[-1]["usage"][count], whole["usage"][count])
        self.assertEqual(whole["usage"]["total_tokens"], whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"])
        self.assertGreater(events[-1]["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(whole["fovea"]["decode_method"], "dense")
        self.assertFalse(any("usage" in e for e in self.s.stream(CHAT, **body)))

    def test_parts_of_text_are_a_text(self):
        whole = self.s.ask(CHAT, messages=[{"role": "user", "content": QUESTION}], max_tokens=12)
        parts = self.s.ask(CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}]}], max_tokens=12)
        self.assertEqual(parts["choices"], whole["choices"])

    def test_prompts_as_texts_and_ids_one_and_many(self):
        ids = json.loads(self.s.call("POST", "/tokenize", {"prompt": "Hello there"})[2])["tokens"]
        self.assertEqual(json.loads(self.s.call("POST", "/detokenize", {"tokens": ids})[2])["prompt"], "Hello there")
        one = self.s.ask(COMPLETIONS, prompt="Hello there", max_tokens=8)["choices"]
        self.assertEqual(self.s.ask(COMPLETIONS, prompt=ids, max_tokens=8)["choices"], one)
        body = {"prompt": ["Hello there", "The river"], "n": 2, "seed": 7, "temperature": 1.0, "max_tokens": 8}
        many = self.s.ask(COMPLETIONS, **body)
        self.assertEqual([c["index"] for c in many["choices"]], [0, 1, 2, 3])
        self.assertEqual(texts_of(self.s.stream(COMPLETIONS, **body), False), {c["index"]: c["text"] for c in many["choices"]})
        self.assertEqual(self.s.ask(COMPLETIONS, **body)["choices"], many["choices"])
        echo = self.s.ask(COMPLETIONS, prompt="Hello there", max_tokens=8, echo=True)["choices"][0]["text"]
        self.assertEqual(echo, "Hello there" + one[0]["text"])
        self.assertEqual(texts_of(self.s.stream(COMPLETIONS, prompt=ids, max_tokens=8, echo=True), False), {0: echo})

    def test_logprobs_penalties_and_biases(self):
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 5}
        plain = self.s.ask(CHAT, **body)["choices"][0]
        whole = self.s.ask(CHAT, **body, logprobs=True, top_logprobs=3)["choices"][0]
        self.assertEqual(whole["message"], plain["message"])
        content = whole["logprobs"]["content"]
        self.assertEqual("".join(t["token"] for t in content), plain["message"]["content"])
        for t in content:
            self.assertLessEqual(t["logprob"], 0)
            self.assertEqual(len(t["top_logprobs"]), 3)
            self.assertEqual(t["top_logprobs"][0]["token"], t["token"])  # it is greedy
            self.assertEqual(bytes(t["bytes"]).decode(), t["token"])
        streamed = [t for e in self.s.stream(CHAT, **body, logprobs=True, top_logprobs=3) for c in e["choices"]
                    for t in (c["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, content)
        scored = self.s.ask(COMPLETIONS, prompt="Hello there", max_tokens=2, logprobs=1, echo=True)["choices"][0]
        self.assertEqual("".join(scored["logprobs"]["tokens"]), scored["text"])
        self.assertIsNone(scored["logprobs"]["token_logprobs"][0])
        first = json.loads(self.s.call("POST", "/tokenize", {"prompt": plain["message"]["content"]})[2])["tokens"][0]
        banned = self.s.ask(CHAT, **body, logit_bias={str(first): -100})["choices"][0]["message"]["content"]
        self.assertNotEqual(banned, plain["message"]["content"])

    def test_stops_and_lengths(self):
        text = self.s.ask(COMPLETIONS, prompt="Hello there", max_tokens=30, ignore_eos=True)["choices"][0]
        self.assertEqual(text["finish_reason"], "length")
        stop = text["text"][4:7]
        cut = self.s.ask(COMPLETIONS, prompt="Hello there", max_tokens=30, ignore_eos=True, stop=stop)["choices"][0]
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(cut["text"], text["text"][:text["text"].index(stop)])

    def test_errors_name_the_field(self):
        ask = {"messages": [{"role": "user", "content": "x"}]}
        for path, body, status, param in [
                (CHAT, {}, 400, "messages"),
                (CHAT, {"messages": []}, 400, "messages"),
                (CHAT, {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
                (CHAT, {"messages": [{"content": "x"}]}, 400, "messages[0].role"),
                (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages[0].content[0]"),
                (CHAT, {**ask, "temperature": 3}, 400, "temperature"),
                (CHAT, {**ask, "temperature": "warm"}, 400, "temperature"),
                (CHAT, {**ask, "top_p": 0}, 400, "top_p"),
                (CHAT, {**ask, "n": 0}, 400, "n"),
                (CHAT, {**ask, "max_tokens": 0}, 400, "max_tokens"),
                (CHAT, {**ask, "max_tokens": 2**63}, 400, "max_tokens"),
                (CHAT, {**ask, "stop": [""]}, 400, "stop"),
                (CHAT, {**ask, "top_logprobs": 3}, 400, "top_logprobs"),
                (CHAT, {**ask, "logit_bias": {"a": 1}}, 400, "logit_bias"),
                (CHAT, {**ask, "model": "gpt-4"}, 404, "model"),
                (CHAT, {**ask, "stream_options": {"include_usage": True}}, 400, "stream_options"),
                (CHAT, {**ask, "fovea": {"budget_tokens": -1}}, 400, "fovea.budget_tokens"),
                (CHAT, {**ask, "fovea": {"decode_method": "telepathy"}}, 400, "fovea.decode_method"),
                (CHAT, {**ask, "stream": True, "fovea": {"decode_method": "telepathy"}}, 400, "fovea.decode_method"),
                (COMPLETIONS, {}, 400, "prompt"),
                (COMPLETIONS, {"prompt": [1, "x"]}, 400, "prompt"),
                (COMPLETIONS, {"prompt": [99999999]}, 400, "prompt"),
                (COMPLETIONS, {"prompt": "x", "best_of": 2}, 400, "best_of"),
                (COMPLETIONS, {"prompt": "x " * 200000}, 400, "prompt"),
                ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
                (CHAT, "{", 400, None), (CHAT, "[]", 400, None),
                (CHAT, "[" * 100000, 400, None), (CHAT, b'{"a": "\xff"}', 400, None)]:
            got, _, data = self.s.call("POST", path, body)
            self.assertEqual(got, status, (str(body)[:100], data))
            error = json.loads(data)["error"]
            self.assertEqual(error["param"], param, (str(body)[:100], data))
            self.assertEqual(error["code"], status)
            self.assertTrue(error["message"])

    def test_what_is_not_there(self):
        self.assertEqual(self.s.call("GET", "/nowhere")[0], 404)
        self.assertEqual(self.s.call("GET", CHAT)[0], 405)
        self.assertEqual(self.s.call("POST", "/health", "{}")[0], 405)

    def test_pages_beside_the_answers(self):
        self.assertEqual(self.s.call("GET", "/health")[0], 200)
        self.assertIn("version", json.loads(self.s.call("GET", "/version")[2]))
        models = json.loads(self.s.call("GET", "/v1/models")[2])["data"]
        self.assertEqual([m["id"] for m in models], ["tiny-gqa"])
        self.s.ask(COMPLETIONS, prompt="x", max_tokens=2)
        self.assertGreater(self.s.metric("generation_tokens_total"), 0)
        self.assertGreater(self.s.metric("time_to_first_token_seconds_count"), 0)

    def test_the_page(self):
        status, headers, data = self.s.call_bytes("GET", "/")
        self.assertEqual(status, 200)
        self.assertEqual(headers["Content-Encoding"], "gzip")
        self.assertEqual(headers["Content-Security-Policy"], "frame-ancestors 'none'")
        page = gzip.decompress(data).decode()
        self.assertTrue(page.startswith("<!doctype html>"))
        self.assertNotIn("{{", page[:page.index("<script>")])
        self.assertIn("default-src 'none'", page[:1000])
        outside = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
        self.assertFalse(re.findall(r' src=|href="(?!data:|#)', outside), "it fetches something")

    def test_tokens_and_their_texts(self):
        text = "Straße, 東京 🚪\u0301"
        reply = json.loads(self.s.call("POST", "/tokenize", {"prompt": text, "return_token_strs": True})[2])
        self.assertEqual("".join(reply["token_strs"]), text)
        self.assertEqual(len(reply["token_strs"]), len(reply["tokens"]))
        self.assertEqual(reply["count"], len(reply["tokens"]))

    def test_what_was_read_is_told(self):
        text = " ".join(f"Line {i}: nothing." for i in range(600))
        body = {"messages": [{"role": "user", "content": text + "\n\n" + QUESTION}], "max_tokens": 6, "ignore_eos": True}
        for method in "gsa_on_device", "dense":
            own = {"decode_method": method, "budget_tokens": 0 if method == "dense" else 128, "reading_map": True}
            events = self.s.stream(CHAT, **body, fovea=own)
            self.assertEqual(events[0]["fovea"]["block_tokens"], 16)
            blocks = events[0]["fovea"]["prompt_tokens"] // 16
            reads = [e["fovea"]["read"] for e in events if "read" in e.get("fovea", {})]
            self.assertEqual(reads[0], "all")  # the prompt's last row is prefill's
            self.assertGreater(len(reads), 2)
            for read in reads[1:]:
                if method == "dense":
                    self.assertEqual(read, "all")
                    continue
                ends = [end for pair in read for end in pair]
                self.assertEqual(ends, sorted(ends))
                self.assertEqual(ends[0], 0)
                self.assertLess(sum(b - a + 1 for a, b in read), blocks)
            last = [e for e in events if "kv_bytes_share" in e.get("fovea", {})]
            self.assertEqual(len(last), 1)
            (self.assertEqual if method == "dense" else self.assertLess)(last[0]["fovea"]["kv_bytes_share"], 1.0)

    def test_a_request_id_is_given_back(self):
        self.assertEqual(self.s.call("GET", "/health", headers={"X-Request-Id": "abc-1"})[1]["X-Request-Id"], "abc-1")
        self.assertRegex(self.s.call("GET", "/health", headers={"X-Request-Id": "a b"})[1]["X-Request-Id"], "^[0-9a-f]{32}$")

    def test_each_gets_what_it_gets_alone(self):
        rng = random.Random(5)
        words = "the river of a door with code and record in station north light".split()
        prompts = [" ".join(rng.choices(words, k=rng.randint(1, 60))) for _ in range(40)]
        bodies = [{"prompt": p, "max_tokens": rng.randint(1, 24), "ignore_eos": True, "seed": i,
                   "temperature": rng.choice([0, 1.0])} for i, p in enumerate(prompts)]
        alone = [self.s.ask(COMPLETIONS, **b)["choices"][0]["text"] for b in bodies]

        def one(i):
            kind = random.Random(i).random()
            if kind < 0.2:  # it leaves at once
                s = self.s.open_stream()
                s.close()
                return None
            if kind < 0.6:
                return texts_of(self.s.stream(COMPLETIONS, **bodies[i % 40]), False)[0]
            return self.s.ask(COMPLETIONS, **bodies[i % 40])["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for i, text in enumerate(pool.map(one, range(200))):
                if text is not None:
                    self.assertEqual(text, alone[i % 40])
        self.s.wait_until(lambda: self.s.metric("num_requests_running") == 0)

    def test_a_client_that_leaves_ends_its_request(self):
        before = self.s.metric("request_success_total", '"aborted"')
        streams = [self.s.open_stream() for _ in range(3)]
        self.assertEqual(self.s.metric("num_requests_running"), 3)
        for s in streams:
            s.close()
        self.s.wait_until(lambda: self.s.metric("num_requests_running") == 0)
        self.assertEqual(self.s.metric("request_success_total", '"aborted"'), before + 3)
        # One that waits for a whole reply too.
        body = json.dumps({"prompt": "x", **LONG})
        s = socket.create_connection(("127.0.0.1", self.s.port))
        s.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        self.s.wait_until(lambda: self.s.metric("num_requests_running") == 1)
        s.close()
        self.s.wait_until(lambda: self.s.metric("num_requests_running") == 0)

    def test_the_examples_of_its_page_work(self):
        page = (ROOT / "docs/server.md").read_text()
        examples = [c for block in re.findall(r"```sh\n(.*?)```", page, re.S)
                    for c in re.findall(r"^curl .*?(?=^curl|\Z)", block, re.S | re.M)]
        self.assertGreater(len(examples), 6)
        for command in examples:
            r = subprocess.run(command.replace("8000", str(self.s.port)).replace("curl ", "curl -s -S -f -m 60 ", 1), shell=True,
                               capture_output=True, text=True)
            self.assertEqual(r.returncode, 0, command + r.stderr)
            self.assertTrue(r.stdout, command)

    def test_one_connection_serves_many_requests(self):
        c = self.s.connect()
        for i in range(5):
            c.request("POST", COMPLETIONS, json.dumps({"prompt": "x", "max_tokens": 2, "stream": i % 2 == 0}))
            r = c.getresponse()
            self.assertEqual(r.status, 200)
            r.read()
            c.request("GET", "/health")
            self.assertEqual(json.loads(c.getresponse().read()), {"status": "ok"})
        c.close()

    def test_requests_that_come_early_are_answered_in_turn(self):
        s = self.s.socket()
        s.sendall(post(COMPLETIONS, {"prompt": "x", "max_tokens": 3}) + b"\r\n" +  # some clients end a body so
                  post(COMPLETIONS, {"prompt": "x", "max_tokens": 2, "stream": True}) +
                  b"GET /version HTTP/1.1\r\nConnection: close\r\n\r\n")
        data = read_all(s)
        self.assertEqual([int(line[9:12]) for line in re.findall(rb"^HTTP/1.1 .*", data, re.M)], [200] * 3)
        self.assertLess(data.index(b"completion_tokens"), data.index(b"[DONE]"))
        self.assertLess(data.index(b"[DONE]"), data.index(b'"version"'))
        s.close()
        # A client that leaves is noticed, though it had sent more.
        s = self.s.open_stream()
        s.sendall(b"GET /health HTTP/1.1\r\n")
        time.sleep(0.1)
        s.close()
        self.s.wait_until(lambda: self.s.metric("num_requests_running") == 0)

    def test_a_request_that_ends_within_itself(self):
        for begun in b"POST /v1/completions HTTP/1.1\r\nContent-Length: 10\r\n\r\n{", b"GET /health HTTP/1.1\r\nA":
            s = self.s.socket(20)
            s.sendall(begun)
            s.shutdown(socket.SHUT_WR)
            self.assertTrue(read_all(s).startswith(b"HTTP/1.1 400 "))
            s.close()

    def test_streams_never_cut_a_character(self):
        wide = 0
        for seed in range(16):
            body = {"prompt": "Straße, 東京 🚪", "max_tokens": 60, "ignore_eos": True, "temperature": 2.0, "seed": seed, "n": 2}
            whole = {c["index"]: c["text"] for c in self.s.ask(COMPLETIONS, **body)["choices"]}
            self.assertEqual(texts_of(self.s.stream(COMPLETIONS, **body), False), whole)
            wide += sum(ord(c) > 127 and c != "\ufffd" for text in whole.values() for c in text)
        self.assertGreater(wide, 10)

    def test_what_is_no_http_is_refused(self):
        for bytes_, statuses in [(b"hello\r\n\r\n", {400}), (b"GET /health HTTP/1.1\r\nA: " + b"x" * 100000, {431}),
                                 (b"POST " + CHAT.encode() + b" HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", {413})]:
            s = socket.create_connection(("127.0.0.1", self.s.port), timeout=20)
            s.sendall(bytes_)
            head = s.recv(100)
            self.assertIn(int(head.split()[1]), statuses, bytes_[:40])
            s.close()

    def test_chunked_bodies_and_http_1_0(self):
        body = json.dumps({"prompt": "x", "max_tokens": 2})
        c = self.s.connect()
        c.request("POST", COMPLETIONS, iter([body[:5].encode(), body[5:].encode()]), encode_chunked=True,
                  headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(c.getresponse().status, 200)
        c.close()
        s = socket.create_connection(("127.0.0.1", self.s.port), timeout=20)
        body = json.dumps({"prompt": "x", "max_tokens": 2, "stream": True})
        s.sendall(f"POST {COMPLETIONS} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        data = b""
        while more := s.recv(4096):
            data += more
        self.assertTrue(data.endswith(b"\n\ndata: [DONE]\n\n"), data)
        self.assertNotIn(b"chunked", data)
        s.close()


class Limits(unittest.TestCase):
    def serve(self, *args, env=None):
        s = Server(*args, env=env)
        self.addCleanup(s.stop)
        return s

    def test_keys(self):
        s = self.serve("--api-key", "secret-1", env={})
        ask = {"prompt": "x", "max_tokens": 1}
        for header, status in [({}, 401), ({"Authorization": "Bearer secret-2"}, 401), ({"Authorization": "secret-1"}, 401),
                               ({"Authorization": "Bearer secret-1"}, 200)]:
            self.assertEqual(s.call("POST", COMPLETIONS, ask, header)[0], status)
            self.assertEqual(s.call("GET", "/v1/models", headers=header)[0], status)
        self.assertEqual(s.call("GET", "/health")[0], 200)
        s.stop()
        self.assertNotIn("secret", "".join(s.log))

    def test_a_full_queue_says_when_to_come_again(self):
        s = self.serve("--max-requests", 2, "--max-num-seqs", 1)
        streams = [s.open_stream()]
        body = json.dumps({"prompt": "x", **LONG})
        waiting = socket.create_connection(("127.0.0.1", s.port))
        waiting.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        s.wait_until(lambda: s.metric("num_requests_waiting") == 1)
        status, headers, _ = s.call("POST", COMPLETIONS, {"prompt": "x"})
        self.assertEqual(status, 429)
        self.assertGreater(int(headers["Retry-After"]), 0)
        streams[0].close()
        waiting.close()
        s.wait_until(lambda: s.call("POST", COMPLETIONS, {"prompt": "x"})[0] == 200)

    def test_a_reader_that_takes_nothing_is_cut_off_and_holds_up_nobody(self):
        s = self.serve("--max-outbox-size", 4096, "--max-num-seqs", 4)
        body = json.dumps({"prompt": "x", "stream": True, "n": 3, **LONG})
        lazy = s.socket(receive_bytes=4096)
        lazy.sendall(f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        s.wait_until(lambda: s.metric("num_requests_running") > 0)
        self.assertEqual(s.call("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 4})[0], 200)
        s.wait_until(lambda: s.metric("num_requests_running") == 0, 120)
        self.assertIn("too slow", "".join(s.log))
        lazy.close()

    def test_time_is_limited(self):
        s = self.serve("--header-timeout", 1, "--idle-timeout", 1, "--body-timeout", 1, "--request-timeout", 2)
        slow = [s.socket(20) for _ in range(4)]
        slow[1].sendall(b"GET /health HTTP/1.1\r\nA: b")
        slow[2].sendall(b"POST " + CHAT.encode() + b" HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        slow[3].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual(read_all(slow[0]), b"")
        self.assertRegex(read_all(slow[1]), rb"^HTTP/1.1 408 [^\0]*Connection: close[^\0]*--header-timeout")
        self.assertRegex(read_all(slow[2]), rb"^HTTP/1.1 408 [^\0]*Connection: close[^\0]*--body-timeout")
        self.assertRegex(read_all(slow[3]), rb"^HTTP/1.1 200 [^\0]*keep-alive")
        for one in slow:
            one.close()
        self.assertEqual(s.call("POST", COMPLETIONS, {"prompt": "x", **LONG})[0], 503)
        events = s.stream(COMPLETIONS, prompt="x", **LONG)
        self.assertIn("error", events[-1])
        s.wait_until(lambda: s.metric("num_requests_running") == 0)

    def test_connections_are_limited_and_those_that_ask_nothing_keep_out_nobody(self):
        s = self.serve("--max-connections", 4, "--max-num-seqs", 4)
        held = [s.socket(20) for _ in range(12)]
        self.assertEqual(s.call("GET", "/health")[0], 200)
        for one in held[:8]:
            self.assertEqual(one.recv(1), b"")
        streams = [s.open_stream() for _ in range(4)]
        one = s.socket(20)  # all others ask something
        try:
            self.assertEqual(one.recv(1), b"")
        except ConnectionResetError:
            pass
        for open_ in [one, *held, *streams]:
            open_.close()
        s.wait_until(lambda: s.call("GET", "/health")[0] == 200)

    def test_each_limit_of_a_request_has_a_flag(self):
        s = self.serve("--max-header-size", 1000, "--max-body-size", "20K", "--max-json-depth", 5, "--max-messages", 3,
                       "--max-prompts", 2, "--max-answers", 4, "--max-prompt-size", 100, "--max-prompt-tokens", 10)
        ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        for path, body, status, param in [
                (CHAT, ask, 200, None),
                (CHAT, {"messages": ask["messages"] * 4}, 400, "messages"),
                (CHAT, {"messages": [{"role": "user", "content": "x" * 101}]}, 400, "messages"),
                (CHAT, {**ask, "n": 5}, 400, "n"),
                (CHAT, {**ask, "metadata": [[[[[[1]]]]]]}, 400, None),
                (COMPLETIONS, {"prompt": ["x"] * 3}, 400, "prompt"),
                (COMPLETIONS, {"prompt": ["x"] * 2, "n": 3}, 400, "n"),
                (COMPLETIONS, {"prompt": [5] * 11}, 400, "prompt"),
                ("/tokenize", {"prompt": "x" * 101}, 400, "prompt"),
                ("/detokenize", {"tokens": [5] * 11}, 400, "tokens"),
                (CHAT, "x" * 20481, 413, None)]:
            got, headers, data = s.call("POST", path, body)
            self.assertEqual(got, status, (str(body)[:80], data))
            if status != 200:
                self.assertEqual(json.loads(data)["error"]["param"], param, data)
        self.assertEqual(s.call("GET", "/health", headers={"A": "x" * 1000})[0], 431)
        self.assertEqual(s.call("GET", "/health", "x" * 17000)[0], 413)  # it needs none
        chunks = s.connect()
        chunks.request("POST", CHAT, iter([b"x" * 15000, b"x" * 15000]), encode_chunked=True, headers={"Transfer-Encoding": "chunked"})
        self.assertEqual(chunks.getresponse().status, 413)
        chunks.close()

    def test_limits_are_in_help_and_on_the_page(self):
        text = subprocess.run([FOVEA, "serve", "--help"], capture_output=True, text=True).stdout
        limits = re.findall(r"^\s+(--[a-z-]+)", text[text.index("\nLimits"):], re.M)
        limits = limits[:limits.index("--write-timeout") + 1]
        self.assertEqual(len(limits), 17)
        page = (ROOT / "docs/server.md").read_text()
        for flag in limits + ["--ssl-certfile", "--ssl-keyfile"]:
            self.assertIn(f"`{flag}`", page)

    def test_bodies_of_all_clients_are_limited_by_what_has_arrived(self):
        s = self.serve("--max-bodies-size", 3000)
        held = [s.socket(20) for _ in range(2)]
        for one in held:  # their declared lengths alone would be too many
            one.sendall(b"POST " + COMPLETIONS.encode() + b" HTTP/1.1\r\nContent-Length: 2900\r\n\r\n{" + b" " * 1000)
        ask = {"prompt": "x", "max_tokens": 1, "user": "u" * 1100}
        s.wait_until(lambda: s.call("POST", COMPLETIONS, ask)[0] == 503)
        status, headers, _ = s.call("POST", COMPLETIONS, ask)
        self.assertEqual(status, 503)
        self.assertGreater(int(headers["Retry-After"]), 0)
        held[0].close()
        s.wait_until(lambda: s.call("POST", COMPLETIONS, ask)[0] == 200)
        held[1].close()

    def test_one_large_event_is_no_slow_reader(self):
        s = self.serve("--max-outbox-size", 1024)
        text = "the river " * 4000
        events = s.stream(COMPLETIONS, prompt=text, echo=True, max_tokens=2, ignore_eos=True)
        self.assertTrue(texts_of(events, False)[0].startswith(text))

    def test_keys_are_served_in_turn(self):
        s = self.serve("--api-key", "a", "--api-key", "b", "--max-num-seqs", 1)
        order = []

        def ask(key, i):
            status, _, _ = s.call("POST", COMPLETIONS, {"prompt": f"{key} {i}", "max_tokens": 40, "ignore_eos": True},
                                  {"Authorization": "Bearer " + key})
            order.append((key, status))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            many = [pool.submit(ask, "a", i) for i in range(12)]
            s.wait_until(lambda: s.metric("num_requests_waiting") >= 8)
            pool.submit(ask, "b", 0).result()
            place = order.index(("b", 200))
            waiting = len(many) - place
            [m.result() for m in many]
        self.assertEqual({status for _, status in order}, {200})
        self.assertGreater(waiting, 4)  # first come, first served would have made it the last

    def test_pages_of_others_may_call_only_where_that_is_allowed(self):
        s = self.serve("--allowed-origins", "https://a.example")
        ask = {"prompt": "x", "max_tokens": 1}
        for origin, allowed in [("https://a.example", "https://a.example"), ("https://b.example", None), (None, None)]:
            given = {"Origin": origin} if origin else {}
            for method, path, body in [("POST", COMPLETIONS, ask), ("OPTIONS", COMPLETIONS, None), ("GET", "/nowhere", None)]:
                headers = s.call(method, path, body, given)[1]
                self.assertEqual(headers["Access-Control-Allow-Origin"], allowed)
                self.assertEqual(headers["Vary"], "Origin")
        injected = s.call("OPTIONS", CHAT, headers={"Access-Control-Request-Headers": "a, b"})[1]
        self.assertEqual(injected["Access-Control-Allow-Headers"], "a, b")

    def test_options_that_would_protect_nobody_are_refused(self):
        for args, told in [(("--isolate-by", "key"), "--isolate-by key: needs --api-key"), (("--api-key", ""), "--api-key: ")]:
            r = subprocess.run([FOVEA, "serve", "--model", MODEL, "--port", "0", *args], capture_output=True, text=True, timeout=60)
            self.assertEqual(r.returncode, 2)
            self.assertIn(told, r.stderr)

    def test_a_signal_drains_and_a_second_one_stops(self):
        s = self.serve("--max-num-seqs", 2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            idle = s.connect()
            idle.request("GET", "/health")
            idle.getresponse().read()
            whole = pool.submit(s.ask, COMPLETIONS, prompt="x", max_tokens=3000, ignore_eos=True)
            s.wait_until(lambda: s.metric("num_requests_running") == 1)
            s.process.send_signal(signal.SIGTERM)
            self.assertEqual(whole.result()["usage"]["completion_tokens"], 3000)
        self.assertEqual(s.process.wait(30), 0)
        idle.close()
        s = self.serve()
        stream = s.open_stream()
        s.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        self.assertIsNone(s.process.poll())
        s.process.send_signal(signal.SIGTERM)
        self.assertEqual(s.process.wait(30), 0)
        stream.close()

    def test_a_port_that_is_taken_is_told(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            r = subprocess.run([FOVEA, "serve", "--model", MODEL, "--port", str(port)], capture_output=True, text=True, timeout=60)
        self.assertEqual(r.returncode, 2)
        self.assertIn(f"--port {port}", r.stderr)


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dir = tempfile.TemporaryDirectory()
        cls.cert, cls.key = cls.dir.name + "/cert.pem", cls.dir.name + "/key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", cls.key, "-out", cls.cert],
                       check=True, capture_output=True)

    @classmethod
    def tearDownClass(cls):
        cls.dir.cleanup()

    def serve(self, *args):
        s = Server("--ssl-certfile", self.cert, "--ssl-keyfile", self.key, *args, tls=ssl.create_default_context(cafile=self.cert))
        self.addCleanup(s.stop)
        return s

    def test_all_that_plain_connections_do(self):
        s = self.serve("--max-num-seqs", 8)
        body = {"prompt": "Hello there", "max_tokens": 12}
        whole = s.ask(COMPLETIONS, **body)["choices"][0]["text"]
        self.assertEqual(texts_of(s.stream(COMPLETIONS, **body), False), {0: whole})
        ids = json.loads(s.call("POST", "/tokenize", {"prompt": "the river " * 100000})[2])  # many TLS records each way
        self.assertGreater(ids["count"], 100000)
        c = s.connect()
        for _ in range(5):  # one connection
            c.request("GET", "/health")
            self.assertEqual(json.loads(c.getresponse().read()), {"status": "ok"})
        c.close()
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for text in pool.map(lambda i: texts_of(s.stream(COMPLETIONS, **body), False)[0], range(32)):
                self.assertEqual(text, whole)
        # Clients that leave, with a goodbye and without.
        for leave in ssl.SSLSocket.unwrap, ssl.SSLSocket.close:
            streams = [s.open_stream() for _ in range(3)]
            for one in streams:
                try:
                    leave(one)
                except (ssl.SSLError, OSError):
                    pass  # what was on its way
                one.close()
            s.wait_until(lambda: s.metric("num_requests_running") == 0)

    def test_limits_and_the_end(self):
        s = self.serve("--max-num-seqs", 2, "--header-timeout", 1, "--max-outbox-size", 4096, "--max-body-size", 1000)
        silent = socket.create_connection(("127.0.0.1", s.port), timeout=20)  # no handshake
        self.assertEqual(silent.recv(1), b"")
        silent.close()
        late = s.socket(20)
        late.sendall(b"GET /health HTTP/1.1\r\nA: b")
        self.assertTrue(read_all(late).startswith(b"HTTP/1.1 408 "))
        late.close()
        for _ in range(50):  # still sending when it is refused
            self.assertEqual(s.call("POST", COMPLETIONS, {"prompt": "x" * 2000000})[0], 413)
        lazy = s.socket(receive_bytes=4096)
        lazy.sendall(post(COMPLETIONS, {"prompt": "x", "stream": True, "n": 2, **LONG}))
        s.wait_until(lambda: s.metric("num_requests_running") > 0)
        s.wait_until(lambda: s.metric("num_requests_running") == 0, 120)
        self.assertIn("too slow", "".join(s.log))
        lazy.close()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(s.ask, COMPLETIONS, prompt="x", max_tokens=1000, ignore_eos=True)
            s.wait_until(lambda: s.metric("num_requests_running") == 1)
            s.process.send_signal(signal.SIGTERM)
            self.assertEqual(whole.result()["usage"]["completion_tokens"], 1000)
        self.assertEqual(s.process.wait(30), 0)

    def test_what_is_too_old_or_no_tls(self):
        s = self.serve()
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with self.assertRaises(OSError), socket.create_connection(("127.0.0.1", s.port), timeout=20) as plain:
            old.wrap_socket(plain)
        for version in ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3:
            s.tls.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            s.tls.maximum_version = version
            self.assertEqual(s.socket().version(), version.name.replace("_", "."))
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            self.assertNotIn(b"HTTP/", read_all(plain))
        self.assertEqual(s.call("GET", "/health")[0], 200)

    def test_errors_name_the_file(self):
        other, locked = self.dir.name + "/other.pem", self.dir.name + "/locked.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-out", other], check=True,
                       capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", other, "-aes128", "-passout", "pass:secret", "-out", locked], check=True)
        for args, told in [(("--ssl-certfile", "/nowhere", "--ssl-keyfile", self.key), "--ssl-certfile /nowhere: "),
                           (("--ssl-certfile", self.cert, "--ssl-keyfile", "/nowhere"), "--ssl-keyfile /nowhere: "),
                           (("--ssl-certfile", self.cert, "--ssl-keyfile", other), f"--ssl-keyfile {other}: "),
                           (("--ssl-certfile", self.cert, "--ssl-keyfile", locked), f"--ssl-keyfile {locked}: "),
                           (("--ssl-certfile", self.cert), self.cert),
                           (("--ssl-keyfile", self.key), "--ssl-keyfile: needs --ssl-certfile")]:
            r = subprocess.run([FOVEA, "serve", "--model", MODEL, "--port", "0", *args], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True, timeout=60)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn(told, r.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
