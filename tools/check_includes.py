#!/usr/bin/env python3
"""Fails on an include that points up or sideways (a folder includes only from folders of a lower number), and where a folder
other than device/ and runner/ asks whether a device is the host.

Usage: check_includes.py REPO_ROOT. Needs nothing but Python. The numbers are those of docs/map.md.
"""
import pathlib
import re
import sys

LEVELS = {
    "base": 0, "device": 1, "text": 1, "kernels": 2, "store": 2, "kv": 3, "prefetch": 4, "sparse": 4, "model": 5,
    "runner": 6, "engine": 7, "eval": 8, "bench": 8, "server": 8, "cli": 9, "python": 9,
}
# The thin programs see the public API, the harness and what every folder stands on; not the engine's inside.
THIN_MAY = {"cli": {"eval", "bench", "server", "base"}, "server": {"base"}, "python": {"base"}}
# The oracle judges the product, so the product does not include it: tests do, and what offers it as a backend (its Ops alone).
ORACLE = "kernels/ref/"
TEST = re.compile(r"_(test|cases|fuzz|test_util|test_cases|test_world)\.")
ORACLE_OPS_MAY = {"kernels", "engine", "runner"}
# What differs between the host and a device is decided where devices are run.
HOST_MAY_BE_ASKED = {"device", "runner"}
INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<(fovea/[^>]+)>)')


def check(root: pathlib.Path) -> list[str]:
    faults = []
    for path in sorted((root / "include").rglob("*.h")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            m = INCLUDE.match(line)
            if m and m.group(1):
                faults.append(f"{path.relative_to(root)}:{number}: a public header includes \"{m.group(1)}\"")
    for path in sorted((root / "src").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        folder = path.relative_to(root / "src").parts[0]
        if folder not in LEVELS:
            faults.append(f"{path.relative_to(root)}: folder {folder} has no number in {pathlib.Path(__file__).name}")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "is_host()" in line and folder not in HOST_MAY_BE_ASKED and not TEST.search(path.name):
                faults.append(f"{path.relative_to(root)}:{number}: {folder} asks is_host(): only device/ and runner/ may")
            m = INCLUDE.match(line)
            if not m or not m.group(1):
                continue
            target = m.group(1)
            where = f"{path.relative_to(root)}:{number}"
            if not (root / "src" / target).exists():
                # Highway re-includes the file itself by name; anything else must exist under src/.
                faults.append(f"{where}: \"{target}\" is not a path under src/")
                continue
            other = target.split("/")[0]
            if target.startswith(ORACLE) and not TEST.search(path.name) and "kernels/ref/" not in str(path.relative_to(root)):
                if not (target == ORACLE + "ref_ops.h" and folder in ORACLE_OPS_MAY):
                    faults.append(f"{where}: product code includes the oracle: \"{target}\"")
            if other == folder:
                continue
            if folder in THIN_MAY and other not in THIN_MAY[folder]:
                faults.append(f"{where}: {folder} may include only include/fovea and {sorted(THIN_MAY[folder])}, not \"{target}\"")
            elif LEVELS[other] >= LEVELS[folder]:
                faults.append(f"{where}: {folder} ({LEVELS[folder]}) includes {other} ({LEVELS[other]}): \"{target}\"")
    return faults


def main() -> int:
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    faults = check(root)
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults of layering")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
