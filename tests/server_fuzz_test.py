#!/usr/bin/env python3
"""Bytes that are no requests, or hardly: split, cut, spliced, pipelined, badly chunked, huge. What comes back is HTTP, its status one that
such bytes deserve; the connection ends; the server lives.

Usage: server_fuzz_test.py FOVEA_BINARY REPO_ROOT [--count 3000] [--seed 1]. Needs nothing but Python. Bodies alone have a fuzzer of their
own, src/server/request_decoder_fuzz.cpp.
"""
import argparse
import asyncio
import json
import random
import re
import sys

from serving import CHAT, COMPLETIONS, Server, post

STATUSES = {100, 200, 204, 400, 401, 404, 405, 408, 411, 413, 415, 417, 429, 431, 501, 503, 505}
CHUNKED = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n".encode()
ASK = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
SEEDS = [
    *(f"{m} {p} HTTP/1.1\r\nHost: x\r\nX-Request-Id: a-1\r\n\r\n".encode() for m, p in
      [("GET", "/health"), ("HEAD", "/health"), ("GET", "/v1/models"), ("OPTIONS", CHAT), ("GET", "/version?x=1"), ("GET", "/nowhere")]),
    b"GET /health HTTP/1.0\r\n\r\n",
    post(CHAT, ASK), post(CHAT, {**ASK, "stream": True, "n": 2}), post(COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 1, "echo": True}),
    post(COMPLETIONS, {"prompt": [5, 6], "max_tokens": 1, "logprobs": 1}), post("/tokenize", {"prompt": "Straße 🚪"}),
    post("/detokenize", {"tokens": [5, 6]}), post(CHAT, ASK, "Expect: 100-continue\r\nAuthorization: Bearer x\r\n"),
    post(CHAT, {**ASK, "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}),
    CHUNKED + b"\r\n5\r\n{\"pro\r\n18;x=y\r\nmpt\": \"a\", \"max_tokens\": 1\r\n1\r\n}\r\n0\r\nA: b\r\n\r\n",
    CHUNKED + b"Trailer: A\r\n\r\n0\r\n\r\n",
]
PIECES = [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"\r\n\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n",
          b"Content-Length: 5\r\n",
          b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n", b"HTTP/9.9",
          b"HTTP/1.0", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: y\r\n",
          b"\xff\xfe", b"[" * 40, b"{" * 40, b"A: " + b"b" * 9000 + b"\r\n", b"B: c\r\n" * 500, b"\"", b"1e999", b"\\ud800", b"/" * 5000,
          b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
          b"\x16\x03\x01\x02\x00\x01\x00"]


def mutated(rng):
    """A few requests on one connection, each perhaps intact."""
    data = bytearray(b"".join(rng.choice(SEEDS) for _ in range(rng.choice([1, 1, 1, 2, 3]))))
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5, 8])):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(8)
        end = min(len(data), at + rng.choice([1, 2, 8, 64]))
        if kind == 0:
            data[at:end] = rng.randbytes(end - at)
        elif kind == 1:
            del data[at:end]
        elif kind == 2:
            data[at:at] = rng.choice(PIECES)
        elif kind == 3:
            data[at:at] = data[at:end] * rng.choice([1, 2, 100])
        elif kind == 4:
            del data[at:]  # cut
        elif kind == 5:
            data[at:at] = rng.choice(SEEDS)
        elif kind == 6 and (numbers := list(re.finditer(rb"\d+", data))):
            n = rng.choice(numbers)
            data[n.start():n.end()] = rng.choice([b"0", b"-1", b"1", b"4294967296", b"18446744073709551616", b"1.5", b"00", b"7" * 300])
        elif kind == 7 and data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def statuses(data, has_head):
    """Of the replies in these bytes, which hold nothing else; the last may be cut, for the client said that it ends."""
    found = []
    while data:
        line = re.match(rb"HTTP/1\.1 (\d{3}) [A-Za-z' -]+\r\n", data)
        assert line, data[:200]
        found.append(int(line[1]))
        head, _, data = data.partition(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        if b"Transfer-Encoding: chunked" in head:
            while data:
                size, _, data = data.partition(b"\r\n")
                count = int(size, 16)
                data = data[count + 2:]
                if count == 0:
                    break
        elif not length and found[-1] not in (100, 204):  # of HTTP/1.0: to the connection's end
            data = b""
        elif length and not (has_head and (not data or data.startswith(b"HTTP/1.1 "))):
            if found[-1] >= 400 and len(data) >= int(length[1]):
                json.loads(data[:int(length[1])])["error"]["message"]
            data = data[int(length[1]):]
    return found


async def converse(port, data, rng):
    """What comes back for these bytes, sent in pieces: until nothing more comes, and after the client's end until the server's."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    got = b""
    try:
        cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice([0, 0, 1, 3])))
        for a, b in zip([0, *cuts], [*cuts, len(data)]):
            writer.write(data[a:b])
            await writer.drain()
            await asyncio.sleep(0)
        try:
            while more := await asyncio.wait_for(reader.read(65536), 0.05):
                got += more
        except asyncio.TimeoutError:
            writer.write_eof()
            while more := await asyncio.wait_for(reader.read(65536), 60):
                got += more
    except ConnectionError:
        pass  # it had said what it says and did not wait for the rest
    finally:
        writer.close()
    return got


async def fuzz(server, count, seed):
    counts, left = {}, iter(range(count))

    async def work():
        for i in left:
            rng = random.Random(seed * 1000003 + i)
            data = mutated(rng)
            try:
                for status in statuses(await converse(server.port, data, rng), b"HEAD" in data):
                    assert status in STATUSES, status
                    counts[status] = counts.get(status, 0) + 1
            except Exception as error:
                raise AssertionError(f"case {i} of seed {seed}: {error!r}: {data[:2000]!r}") from error
    await asyncio.gather(*(work() for _ in range(48)))
    return counts


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--count", type=int, default=3000)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args(sys.argv[3:])
    server = Server("--log-level", "warning", "--max-num-seqs", 32, "--kv-cache-memory", "64M")
    try:
        counts = asyncio.run(fuzz(server, options.count, options.seed))
        server.wait_until(lambda: server.metric("num_requests_running") == 0)
        assert server.call("GET", "/health")[0] == 200 and server.process.poll() is None
    finally:
        server.stop()
    print(f"{options.count:,} connections: " + ", ".join(f"{n:,} times {status}" for status, n in sorted(counts.items())))
    assert {200, 400, 404, 413} <= set(counts), "the mutations miss what they should hit"


if __name__ == "__main__":
    main()
