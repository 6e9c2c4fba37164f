"""A running `fovea serve` for tests of it, and a client that hides nothing. Programs that use it are called with FOVEA_BINARY REPO_ROOT."""
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

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


def read_until(s, mark):
    """What comes until it has these bytes."""
    data = b""
    while mark not in data:
        more = s.recv(4096)
        assert more, data
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

    def sure_answers(self, body, gap=1e-3):
        """Texts by index of what greedy decoding answers alone, or none: where two tokens are so near to each other that the last bits
        of logits, which vary with what else is in a step, may choose between them."""
        choices = self.ask(COMPLETIONS, **body, logprobs=2)["choices"]
        near = [sorted(two.values())[-2:] for c in choices for two in c["logprobs"]["top_logprobs"] if len(two) > 1]
        return {c["index"]: c["text"] for c in choices} if all(b - a > gap for a, b in near) else None

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
        read_until(s, b"data: ")
        return s

    def metric(self, name, labels=""):
        _, _, page = self.call("GET", "/metrics")
        values = [line.rsplit(" ", 1)[1] for line in page.splitlines() if line.startswith(f"fovea:{name}") and labels in line]
        return sum(float(v) for v in values)

    def begun(self):
        """Answers whose computing has begun, so far."""
        return self.metric("num_requests_running") + self.metric("request_success_total")

    def wait_until(self, condition, seconds=120):
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


class ServerTest(unittest.TestCase):
    """Tests with a folder of their own, self.dir, and servers that end with the test."""

    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir)

    def serve(self, *args, env=None):
        s = Server(*args, env=env)
        self.addCleanup(s.stop)
        return s
