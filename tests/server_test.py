#!/usr/bin/env python3
"""The server as its clients meet it: replies whole and streamed, errors that name the field, clients that leave.

Usage: server_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments]. Needs nothing but Python (and curl for the examples of docs/server.md).
"""
import concurrent.futures
import gzip
import json
import random
import re
import socket
import subprocess
import sys
import time
import unittest

from serving import CHAT, COMPLETIONS, FOVEA, LONG, MODEL, QUESTION, ROOT, Server, post, read_all, texts_of


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

    def test_long_prompts_and_other_scripts_are_what_run_answers_dense_and_sparse(self):
        document = " ".join(f"Line {i}: nothing." + " The secret code of Nina is 48213." * (i == 200) for i in range(500))
        for question, method in [("Straße, 東京 🚪?", "dense"), (document + "\n\nWhat is the secret code of Nina?", "dense"),
                                 (document + "\n\nWhat is the secret code of Nina?", "gsa_on_device")]:
            own = ["--decode-method", method] + ["--budget-tokens", "128"] * (method != "dense")
            run = subprocess.run([FOVEA, "run", "--model", MODEL, "--prompt", question, "--max-tokens", "24", "--numerics", "f32",
                                  "--threads", "1", *own], capture_output=True, text=True, check=True)
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24,
                    "fovea": {"decode_method": method, "budget_tokens": 0 if method == "dense" else 128}}
            whole = self.s.ask(CHAT, **body)
            self.assertEqual(whole["choices"][0]["message"]["content"], run.stdout.removesuffix("\n"))
            self.assertEqual(texts_of(self.s.stream(CHAT, **body), True), {0: whole["choices"][0]["message"]["content"]})
            if "Nina" in question:
                self.assertIn("48213", run.stdout)
            (self.assertEqual if method == "dense" else self.assertLess)(whole["fovea"]["kv_bytes_share"], 1.0)

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
        """200 requests at once: of one to thousands of tokens, dense and sparse, one answer or two, whole, streamed or left midway. Greedy
        ones: a choice at random notices last bits, which only a cache of float32 leaves what they are."""
        s = Server("--max-num-seqs", 8, "--serve-method", "gsa_on_device", "--kv-cache-dtype", "f32")
        self.addCleanup(s.stop)
        rng = random.Random(5)
        words = "the river of a door with code and record in station north light".split()
        bodies, alone = [], []
        for _ in range(60):
            body = {"prompt": " ".join(rng.choices(words, k=rng.choice([1, 4, 20, 60, 60, 500, 2500]))), "max_tokens": rng.randint(1, 24),
                    "ignore_eos": True, "n": rng.choice([1, 1, 2]),
                    "fovea": rng.choice([{}, {"decode_method": "gsa_on_device", "budget_tokens": 128}])}
            if answers := s.sure_answers(body):
                bodies.append(body)
                alone.append(answers)
        self.assertGreater(len(bodies), 40)
        order = list(range(200))
        rng.shuffle(order)

        def one(i):
            body, kind = bodies[i % 40], i // 40
            if kind == 0:  # it leaves at its beginning, or later
                gone = s.open_stream(COMPLETIONS, **{**body, "max_tokens": 1000})
                for _ in range(i % 7):
                    gone.recv(200)
                gone.close()
            elif kind < 3:
                self.assertEqual(texts_of(s.stream(COMPLETIONS, **body), False), alone[i % 40], body)
            else:
                self.assertEqual({c["index"]: c["text"] for c in s.ask(COMPLETIONS, **body)["choices"]}, alone[i % 40], body)
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            list(pool.map(one, order))
        s.wait_until(lambda: s.metric("num_requests_running") == 0)

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


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
