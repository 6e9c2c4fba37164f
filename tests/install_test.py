#!/usr/bin/env python3
"""Installs the build to a prefix, moves it, and builds and runs the programs of examples/ with the package that lies there.

Usage: install_test.py BUILD_DIR REPO_ROOT CXX_COMPILER. Needs CMake and what the build needs.
"""
import pathlib
import subprocess
import sys
import tempfile

BUILD, ROOT, CXX = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]


def run(*args):
    r = subprocess.run([*map(str, args)], capture_output=True, text=True, timeout=600)
    assert r.returncode == 0, f"{' '.join(map(str, args))}: exit status {r.returncode}\n{r.stdout}{r.stderr}"
    return r.stdout


def build_example(name, prefix, folder):
    run("cmake", "-S", ROOT / "examples" / name, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}", f"-DCMAKE_CXX_COMPILER={CXX}")
    run("cmake", "--build", folder)


def check_program(prefix):
    assert run(prefix / "bin/fovea", "--version").startswith("fovea ")
    assert "Qwen3" in run(prefix / "bin/fovea", "inspect", "--model", ROOT / "models/tiny-gqa")


def check_engine(prefix, folder):
    build_example("engine", prefix, folder)
    text = folder / "log.txt"
    text.write_text("Station log.\nThe pin of Olga is 48213.\nDay 1. Nobody came.")
    said = run(folder / "ask", ROOT / "models/tiny-gqa", text, "What is the pin of Olga?")
    assert "48213" in said, said


def check_kernels(prefix, folder):
    build_example("kernels", prefix, folder)
    assert "blocks read" in run(folder / "paged")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        run("cmake", "--install", BUILD, "--prefix", folder / "first")
        prefix = (folder / "first").rename(folder / "moved")
        for target in prefix.rglob("*.cmake"):
            for path in (ROOT, BUILD, folder):
                assert str(path) not in target.read_text(), f"{target.name} names {path}"
        check_program(prefix)
        check_engine(prefix, folder / "engine")
        check_kernels(prefix, folder / "kernels")
    print("installed, moved and used")


if __name__ == "__main__":
    main()
