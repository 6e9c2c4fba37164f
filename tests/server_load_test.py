#!/usr/bin/env python3
"""Many clients, and some that mean no good: none gets an error, those who behave get what they get alone, memory stays flat.

Usage: server_load_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments]: small, nothing is timed.
       server_load_test.py FOVEA_BINARY REPO_ROOT --figures open|hostile|memory [REQUESTS]: in full (docs/server.md),
       figures on stdout, on two idle cores. Needs nothing but Python. All is on 127.0.0.1.
"""
import asyncio
import contextlib
import json
import pathlib
import random
import re
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from serving import COMPLETIONS, FOVEA, MODEL, ROOT, Server, post

WORDS = ("the and that with from this have they which were there been their would when time water people other first house river day year "
         "hand light night world under after place again").split()


def prompts(count, words, seed=1):
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=words)) for _ in range(count)]


def body(prompt, tokens, **more):
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}


class Stream(asyncio.Protocol):
    """A streamed completion; when its events came."""

    def __init__(self, request):
        self.request, self.data, self.at = request, bytearray(), []
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data):
        self.at += [time.perf_counter()] * data.count(b"data: {")
        self.data += data

    def connection_lost(self, error):
        if not self.over.done():
            self.over.set_result(None)

    def text(self):
        """What the stream said; an error unless it came to its end."""
        head, rest = bytes(self.data).split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200 "), head
        plain = bytearray()
        while rest:  # chunks
            size, rest = rest.split(b"\r\n", 1)
            plain += rest[:int(size, 16)]
            rest = rest[int(size, 16) + 2:]
        assert plain.endswith(b"data: [DONE]\n\n"), bytes(plain[-200:])
        events = [json.loads(e[6:]) for e in plain.decode().split("\n\n")[:-2] if not e.startswith(":")]
        return "".join(c["text"] for e in events for c in e["choices"])

    def gaps(self, begin=0.0, end=float("inf")):
        return [b - a for a, b in zip(self.at, self.at[1:]) if begin <= a and b <= end]


async def open_stream(server, prompt, tokens):
    request = post(COMPLETIONS, body(prompt, tokens, stream=True), "Connection: close\r\n")
    _, stream = await asyncio.get_running_loop().create_connection(lambda: Stream(request), "127.0.0.1", server.port)
    return stream


async def stream_all(server, asked, tokens):
    streams = await asyncio.gather(*(open_stream(server, p, tokens) for p in asked))
    await asyncio.gather(*(s.over for s in streams))
    return streams


def sure_prompts(server, count, words, tokens):
    """Prompts, and what each is answered alone; none whose answer hangs on last bits."""
    asked, alone = [], []
    for p in prompts(4 * count, words):
        if len(asked) < count and (answers := server.sure_answers(body(p, tokens), gap=1e-4)):
            asked.append(p)
            alone.append(answers[0])
    assert len(asked) == count, "too few"
    return asked, alone


def quantile(values, share):
    values = sorted(values)
    return values[int(share * (len(values) - 1))]


# ---- clients that mean no good, each kind in a process of its own: hostile(kind, port, count, seconds)

def connect(port, receive_bytes=None):
    s = socket.socket()
    if receive_bytes:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    s.connect(("127.0.0.1", port))
    return s


def hostile(kind, port, count, seconds):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    stream = post(COMPLETIONS, body("the river", 20000, stream=True))
    begin = time.monotonic()
    print("ready", flush=True)
    sys.stdin.readline()
    if kind in ("slow readers", "readers of nothing"):
        held = [connect(port, 2048) for _ in range(count)]
        for s in held:
            s.sendall(stream)
        while time.monotonic() - begin < seconds:
            time.sleep(1)
            for s in held if kind == "slow readers" else []:
                with contextlib.suppress(OSError):
                    s.recv(1, socket.MSG_DONTWAIT)
    elif kind == "slow senders":  # a header now and then: once a minute is slower than --header-timeout
        held = [connect(port) for _ in range(count)]
        for s in held:
            s.sendall(b"GET /health HTTP/1.1\r\n")
        time.sleep(seconds / 2)
        for s in held:
            with contextlib.suppress(OSError):
                s.sendall(b"A: b\r\n")
        time.sleep(seconds / 2)
    elif kind == "connections at once":
        held = [socket.socket() for _ in range(count)]
        for i, s in enumerate(held):  # of several addresses: ports would run short
            s.setblocking(False)
            s.bind((f"127.0.0.{2 + i % 4}", 0))
            with contextlib.suppress(BlockingIOError):
                s.connect(("127.0.0.1", port))
        time.sleep(seconds)
    elif kind == "clients killed":
        held = [connect(port) for _ in range(count)]
        for s in held:
            s.sendall(stream)
        print("ready", flush=True)
        sys.stdin.readline()
        for s in held:  # as when their machine is gone: a reset
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()


class Hostile:
    """One such process; it waits until it is let loose."""

    def __init__(self, kind, port, count, seconds):
        self.process = subprocess.Popen([sys.executable, __file__, FOVEA, ROOT, "--hostile", kind, str(port), str(count), str(seconds)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ready(self):
        self.process.stdout.readline()

    def end(self):
        self.process.kill()
        self.process.communicate()


async def among(server, kind, count, seconds, asked, tokens, fill=0):
    """The streams of `asked`, all running, with the hostile clients set loose when they have begun: (streams, from when on, until).
    `fill`: sequences that run beside them, hostile or not, for what runs together has a price of its own."""
    bad = Hostile(kind, server.port, count, seconds) if kind else None
    if kind in ("slow readers", "readers of nothing", "clients killed"):
        fill = max(0, fill - count)
    streams = await asyncio.gather(*(open_stream(server, p, tokens) for p in asked + prompts(fill, 48, seed=2)))
    while not all(s.at or s.over.done() for s in streams):
        await asyncio.sleep(0.02)
    if kind == "clients killed":
        bad.go()
        await asyncio.to_thread(bad.ready)
        await asyncio.sleep(1)
    else:
        await asyncio.sleep(0.5)
    begin = time.perf_counter()
    if bad:
        bad.go()
    await asyncio.sleep(seconds)
    end = time.perf_counter()
    await asyncio.gather(*(s.over for s in streams))
    if bad:
        bad.end()
    return streams[:len(asked)], begin, end


# ---- memory

def resident_mb(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


async def many_requests(server, count, connections=64):
    """Requests of every kind one after the other on connections that stay; resident MB at each tenth."""
    rng, left, sizes = random.Random(3), iter(range(count)), []

    async def one(i, reader, writer):
        kind = i % 8
        many = i % 16 == 5  # what the model costs is not what is looked at
        asked = body(" ".join(rng.choices(WORDS, k=24 if many else 1)), 4 if many else 1)
        asked.update([{}, {"stream": True}, {"n": 2}, {"logprobs": 2}, {"temperature": 5}, {"stream": True, "n": 2, "temperature": 1.0},
                      {"stop": ["a"]}, {"response_format": {"type": "json_object"}}][kind])
        writer.write(post(COMPLETIONS, asked))
        head = await reader.readuntil(b"\r\n\r\n")
        assert int(head[9:12]) == (400 if kind == 4 else 200), head
        if b"chunked" in head:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))

    async def work():
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for i in left:
            if i % (count // 10) == 0:
                sizes.append(resident_mb(server))
                print(f"  {i:,} requests: {sizes[-1]:.0f} MB", flush=True) if count > 2000 else None
            if i % 50 == 49:  # it leaves
                _, gone = await asyncio.open_connection("127.0.0.1", server.port)
                gone.write(post(COMPLETIONS, body("the river", 1000, stream=True)))
                await gone.drain()
                gone.close()
            await one(i, reader, writer)
        writer.close()
    await asyncio.gather(*(work() for _ in range(connections)))
    sizes.append(resident_mb(server))
    return sizes


class Load(unittest.TestCase):
    def serve(self, *args):
        s = Server("--log-level", "warning", "--kv-cache-dtype", "f32", *args)  # last bits stay last bits
        self.addCleanup(s.stop)
        return s

    def test_many_open_streams_each_gets_what_it_gets_alone(self):
        s = self.serve("--max-num-seqs", 16)
        asked, alone = sure_prompts(s, 20, 12, 16)
        streams = asyncio.run(stream_all(s, asked * 15, 16))
        self.assertEqual([x.text() for x in streams], alone * 15)
        s.wait_until(lambda: s.metric("num_requests_running") == 0)

    def test_clients_that_mean_no_good_change_nothing_for_others(self):
        s = self.serve("--max-num-seqs", 16, "--max-outbox-size", 4096, "--header-timeout", 1, "--max-connections", 300)
        asked, alone = sure_prompts(s, 8, 12, 400)
        for kind, count in KINDS_SMALL.items():
            with self.subTest(kind):
                streams, _, _ = asyncio.run(among(s, kind, count, 1.5, asked, 400))
                self.assertEqual([x.text() for x in streams], alone)
        s.wait_until(lambda: s.metric("num_requests_running") == 0)
        self.assertEqual(s.ask(COMPLETIONS, **body(asked[0], 400))["choices"][0]["text"], alone[0])

    def test_memory_stays_flat(self):
        s = self.serve("--max-num-seqs", 16, "--kv-cache-memory", "8M")
        sizes = asyncio.run(many_requests(s, 2000))
        self.assertLess(sizes[-1] - sizes[5], 4, sizes)  # the pool is full by then


KINDS_SMALL = {"slow readers": 8, "readers of nothing": 8, "slow senders": 100, "connections at once": 1000, "clients killed": 40}
KINDS = {"slow readers": 16, "readers of nothing": 16, "slow senders": 500, "connections at once": 10000, "clients killed": 500}


# ---- figures

def figures_open():
    """1,000 streams, of which 64 run, beside the engine alone on the same prompts."""
    asked, tokens = prompts(1000, 48), 96
    engine = ["--max-num-seqs", "64", "--numerics", "f32", "--threads", "1"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(asked) + "\n")
        file.flush()
        told = subprocess.run([FOVEA, "bench", "batch", "--model", MODEL, *engine, "--prompts", file.name, "--output-len", str(tokens),
                               "--json"], check=True, capture_output=True, text=True).stdout
    alone = {f["name"]: f["value"] for f in json.loads(told)["figures"]}
    s = Server("--log-level", "warning", "--serve-method", "dense", "--max-num-seqs", 64)
    steps, begin = s.metric("engine_steps_total"), time.perf_counter()
    streams = asyncio.run(stream_all(s, asked, tokens))
    took, steps = time.perf_counter() - begin, s.metric("engine_steps_total") - steps
    for x in streams:
        x.text()
    gaps = [g for x in streams for g in x.gaps()]
    print(f"1,000 streams, {tokens} tokens each, 64 running: 0 errors, {resident_mb(s):.0f} MB resident")
    print(f"  engine alone: {alone['in all']:.1f} s, {alone['steps']:.0f} steps, {alone['step, mean']:.2f} ms a step, full ones "
          f"{alone['full step, median']:.2f} ms")
    print(f"  served: {took:.1f} s, {steps:.0f} steps, {took / steps * 1e3:.2f} ms a step, {took / steps * 1e3 / alone['step, mean']:.3f} "
          f"times; between events {quantile(gaps, .5) * 1e3:.2f} ms (median), {quantile(gaps, .99) * 1e3:.2f} (p99)")
    s.stop()


def figures_hostile():
    """p99 between the events of 32 streams that behave, beside clients that do not; 64 sequences run in all."""
    asked, seconds = prompts(32, 48), 5
    s = Server("--log-level", "warning", "--max-num-seqs", 64, "--max-requests", 8192)
    calm = None
    for kind in [None, *KINDS]:
        streams, begin, end = asyncio.run(among(s, kind, KINDS.get(kind, 0), seconds, asked, 450, fill=32))
        texts = [x.text() for x in streams]
        p99 = quantile([g for x in streams for g in x.gaps(begin, end)], .99) * 1e3
        calm = calm or (p99, texts)
        print(f"{kind or 'nobody else'}{f' ({KINDS[kind]:,})' if kind else ''}: p99 {p99:.2f} ms, {p99 / calm[0]:.2f} times; "
              f"answers {'equal' if texts == calm[1] else 'DIFFER'}; {resident_mb(s):.0f} MB", flush=True)
        s.wait_until(lambda: s.metric("num_requests_running") == 0, 60)
    s.stop()


def figures_memory(count=100000):
    s = Server("--log-level", "warning", "--max-num-seqs", 64, "--kv-cache-memory", "64M")
    begin = time.perf_counter()
    sizes = asyncio.run(many_requests(s, count))
    print(f"{count:,} requests in {time.perf_counter() - begin:.0f} s; MB resident at each tenth: {' '.join(f'{x:.0f}' for x in sizes)}")
    s.stop()


if __name__ == "__main__":
    if sys.argv[3:4] == ["--hostile"]:
        hostile(sys.argv[4], int(sys.argv[5]), int(sys.argv[6]), float(sys.argv[7]))
    elif sys.argv[3:4] == ["--figures"]:
        {"open": figures_open, "hostile": figures_hostile, "memory": figures_memory}[sys.argv[4]](*map(int, sys.argv[5:]))
    else:
        unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
