#!/usr/bin/env python3
"""What a server bounds: keys, sizes, time, slow readers, connections; TLS; the end.

Usage: server_limits_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments]. Needs nothing but Python and openssl's program.
"""
import concurrent.futures
import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

from serving import CHAT, COMPLETIONS, FOVEA, LONG, MODEL, ROOT, Server, post, read_all, read_until, texts_of


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
        s.wait_until(lambda: s.begun() > 0)
        self.assertEqual(s.call("POST", COMPLETIONS, {"prompt": "x", "max_tokens": 4})[0], 200)
        s.wait_until(lambda: s.metric("num_requests_running") == 0)
        s.wait_until(lambda: "too slow" in "".join(s.log))
        lazy.close()

    def test_time_is_limited(self):
        s = self.serve("--header-timeout", 1, "--idle-timeout", 1, "--body-timeout", 1, "--request-timeout", 2)
        slow = []
        for beginning in (b"", b"GET /health HTTP/1.1\r\nA: b", b"POST " + CHAT.encode() + b" HTTP/1.1\r\nContent-Length: 10\r\n\r\n{",
                          b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"):
            slow.append(s.socket(60))
            slow[-1].sendall(beginning)  # at once: its time runs already
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

        def has_room():
            try:
                return s.call("GET", "/health")[0] == 200
            except (ConnectionError, http.client.HTTPException):
                return False  # the server has not seen yet that they left

        s.wait_until(has_room)

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
        # Nor are many that come at once: of all answers in every step.
        asked = {"prompt": "x", "n": 16, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        one = s.ask(COMPLETIONS, **asked)["choices"][0]["text"]
        self.assertEqual(texts_of(s.stream(COMPLETIONS, **asked), False), dict.fromkeys(range(16), one))

    def test_keys_are_served_in_turn(self):
        s = self.serve("--api-key", "a", "--api-key", "b", "--max-num-seqs", 1)
        order = []
        first = s.socket()  # while it runs all others come
        first.sendall(post(COMPLETIONS, {"prompt": "x", "stream": True, **LONG}, "Authorization: Bearer a\r\n"))
        read_until(first, b"data: ")

        def ask(key, i):
            status, _, _ = s.call("POST", COMPLETIONS, {"prompt": f"{key} {i}", "max_tokens": 40, "ignore_eos": True},
                                  {"Authorization": "Bearer " + key})
            order.append((key, status))
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            many = [pool.submit(ask, "a", i) for i in range(12)]
            s.wait_until(lambda: s.metric("num_requests_waiting") == len(many))
            last = pool.submit(ask, "b", 0)
            s.wait_until(lambda: s.metric("num_requests_waiting") == len(many) + 1)
            first.close()
            for one in [*many, last]:
                one.result()
        self.assertEqual({status for _, status in order}, {200})
        # First come, first served would have made it the last.
        self.assertGreater(len(many) - order.index(("b", 200)), 4)

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
            s.wait_until(lambda: s.begun() == 1)
            s.process.send_signal(signal.SIGTERM)
            self.assertEqual(whole.result()["usage"]["completion_tokens"], 3000)
        self.assertEqual(s.process.wait(120), 0)
        idle.close()
        s = self.serve()
        stream = s.open_stream()
        s.process.send_signal(signal.SIGTERM)
        s.wait_until(lambda: "shutting down" in "".join(s.log))
        stream.recv(1 << 20)
        for _ in range(10):  # it goes on
            read_until(stream, b"data: ")
        s.process.send_signal(signal.SIGTERM)
        self.assertEqual(s.process.wait(120), 0)
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
        s.wait_until(lambda: s.begun() > 0)
        s.wait_until(lambda: s.metric("num_requests_running") == 0)
        s.wait_until(lambda: "too slow" in "".join(s.log))
        lazy.close()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            before = s.begun()
            whole = pool.submit(s.ask, COMPLETIONS, prompt="x", max_tokens=1000, ignore_eos=True)
            s.wait_until(lambda: s.begun() > before)
            s.process.send_signal(signal.SIGTERM)
            self.assertEqual(whole.result()["usage"]["completion_tokens"], 1000)
        self.assertEqual(s.process.wait(120), 0)

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
            with s.socket() as one:
                self.assertEqual(one.version(), version.name.replace("_", "."))
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
