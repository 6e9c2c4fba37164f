#!/usr/bin/env python3
"""Write a slab as docs/store.md describes it, and seeds of the fuzzers, independently of src/store/.

    python3 tools/make_slab_golden.py

Needs the PyPI package xxhash. Writes tests/data/store/0000000000001234.slab, tests/fuzz/slab_front/ and tests/fuzz/store_usage/;
src/store/slab_test.cpp reads the slab and writes the same.
"""
import hashlib
import pathlib
import struct

import xxhash

PAGE = 4096
NUMBER, BLOCK_TOKENS, LAST_TOKENS, FIRST_BLOCK, CREATED = 0x1234, 16, 5, 40, 1_700_000_000
PARTS = [("kv", 2, 96, False), ("codes.64.7", 1, 20, True)]  # name, units, bytes of a unit, block-major
KEYS = [hashlib.sha256(b"block %d" % i).digest() for i in range(2)]
PARENT = hashlib.sha256(b"parent").digest()


def up(x, unit=PAGE):
    return (x + unit - 1) // unit * unit


def extent(part, unit, block):
    return bytes((7 * i + 31 * block + 57 * unit + 101 * part + 3) & 255 for i in range(PARTS[part][2]))


def digest(key, part, unit, data):
    seed = struct.unpack("<Q", key[:8])[0] ^ (0x9E3779B97F4A7C15 * (1 + (part << 32) + unit) & (1 << 64) - 1)
    return xxhash.xxh3_128_digest(data, seed=seed)


def layout_digest():
    text = f"fovea layout 1\nblock_tokens {BLOCK_TOKENS}\n"
    for name, units, unit_bytes, block_major in PARTS:
        text += f"part {name} {units} {unit_bytes} {'block-major' if block_major else 'unit-major'}\n"
    return hashlib.sha256(text.encode()).digest()


def slab():
    nb = len(KEYS)
    tables, bodies = [], []
    for p, (_, units, unit_bytes, block_major) in enumerate(PARTS):
        tables.append(b"".join(digest(KEYS[b], p, u, extent(p, u, b)) for u in range(units) for b in range(nb)))
        order = [(u, b) for b in range(nb) for u in range(units)] if block_major else [(u, b) for u in range(units) for b in range(nb)]
        stride = up(unit_bytes, 8 if block_major else PAGE)
        bodies.append(b"".join(extent(p, u, b).ljust(stride, b"\0") for u, b in order))
    front_bytes = up(256 + 96 * len(PARTS) + 32 * nb)
    at, places = front_bytes, []
    for table in tables:
        places.append([at])
        at += up(len(table))
    for p, body in enumerate(bodies):
        places[p].append(at)
        at += up(len(body))
    parts = b""
    for (name, units, unit_bytes, block_major), (table_at, body_at), table, body in zip(PARTS, places, tables, bodies):
        stride = up(unit_bytes, 8 if block_major else PAGE)
        parts += name.encode().ljust(32, b"\0") + struct.pack("<4I4Q", units, unit_bytes, stride, block_major, body_at, len(body), table_at, 0)
        parts += xxhash.xxh3_128_digest(table)
    header = b"FOVEAKV1" + struct.pack("<IIQQ", 1, front_bytes, at, NUMBER) + layout_digest() + PARENT
    header += struct.pack("<4IQQ", nb, len(PARTS), BLOCK_TOKENS, LAST_TOKENS, FIRST_BLOCK, CREATED)
    assert len(header) == 128
    front = (header.ljust(256, b"\0") + parts + b"".join(KEYS)).ljust(front_bytes, b"\0")
    front = front[:128] + xxhash.xxh3_128_digest(front) + front[144:]
    return front, front + b"".join(t.ljust(up(len(t)), b"\0") for t in tables) + b"".join(b.ljust(up(len(b)), b"\0") for b in bodies)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "tests"
    front, whole = slab()
    (root / "data/store").mkdir(parents=True, exist_ok=True)
    (root / f"data/store/{NUMBER:016x}.slab").write_bytes(whole)
    for folder in ("slab_front", "store_usage"):
        (root / "fuzz" / folder).mkdir(parents=True, exist_ok=True)
    (root / "fuzz/slab_front/two_parts").write_bytes(front)
    usage = b"FVUSAGE1" + struct.pack("<4Q", 1, CREATED, NUMBER, CREATED + 9)
    (root / "fuzz/store_usage/two_slabs").write_bytes(usage + xxhash.xxh3_128_digest(usage))
    (root / "fuzz/store_usage/none").write_bytes(b"FVUSAGE1" + xxhash.xxh3_128_digest(b"FVUSAGE1"))


if __name__ == "__main__":
    main()
