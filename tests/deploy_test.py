#!/usr/bin/env python3
"""deploy/ beside the program and the repository: flags, variables, paths and packages that its files name are there. Nothing is built
or fetched.

Usage: deploy_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments].
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from serving import CHAT, FOVEA, MODEL, QUESTION, ROOT, Server

DEPLOY = ROOT / "deploy"
HELP = subprocess.run([FOVEA, "serve", "--help"], capture_output=True, text=True).stdout
FLAGS = set(re.findall(r"--[a-z][a-z-]+", HELP))
VARIABLES = set(re.findall(r"Env:(FOVEA_[A-Z_]+)", HELP))


def instructions(path):
    """(name, arguments) of each instruction of a Dockerfile."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


class Dockerfile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.all = instructions(DEPLOY / "Dockerfile")
        cls.runs = " ; ".join(rest for name, rest in cls.all if name == "RUN")

    def test_instructions_are_known_and_stages_are_named(self):
        known = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "ENV", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"}
        self.assertLessEqual({name for name, _ in self.all}, known)
        stages = set()
        for name, rest in self.all:
            if name == "FROM":
                image = rest.split()[0]
                self.assertTrue(image in stages or image == "debian:bookworm", image)
                if " AS " in rest:
                    stages.add(rest.split(" AS ")[1])
            if name == "COPY" and rest.startswith("--from="):
                self.assertIn(rest.split()[0][7:], stages)

    def test_what_it_copies_and_runs_is_in_the_repository(self):
        ignored = {line.strip("/") for line in (ROOT / ".dockerignore").read_text().split()}
        for name, rest in self.all:
            if name == "COPY" and not rest.startswith("--from="):
                source = rest.split()[0]
                self.assertTrue((ROOT / source).exists(), source)
                self.assertNotIn(source, ignored)
        for script in re.findall(r"(?<!\S)(tools/\S+\.sh)", self.runs):
            self.assertTrue((ROOT / script).exists(), script)
        presets = {p["name"] for p in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"] if not p.get("hidden")}
        for preset in re.findall(r"--preset (\S+)", self.runs):
            self.assertIn(preset, presets)
        options = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "cmake/cuda.cmake").read_text()
        for option in re.findall(r"-D(\w+)=", self.runs):
            self.assertRegex(options, rf"(option|set)\({option}\b")
        self.assertIn("--install build/release", self.runs)

    def test_the_image_has_what_the_program_links(self):
        libraries = re.findall(r"=> (/\S+)", subprocess.run(["ldd", FOVEA], capture_output=True, text=True).stdout)
        self.assertGreater(len(libraries), 10)
        installed = set(re.findall(r"\blib[a-z0-9.+-]+", self.runs))
        owners = {}
        for library in libraries:
            path = pathlib.Path(library).resolve()
            for name in (library, str(path), library.removeprefix("/usr"), "/usr" + library, str(path).removeprefix("/usr")):
                r = subprocess.run(["dpkg", "-S", name], capture_output=True, text=True)
                if r.returncode == 0:
                    owners[library] = r.stdout.split(":")[0]
                    break
        everything, more = set(installed), True  # with what they bring along
        while more:
            new = set()
            for package in everything:
                r = subprocess.run(["dpkg-query", "-W", "-f=${Depends}", package], capture_output=True, text=True)
                for clause in r.stdout.split(","):
                    new.add(re.split(r"[ :(]", clause.strip())[0])
            more = not new <= everything
            everything |= new
        base = {"libc6", "libstdc++6", "libgcc-s1", "zlib1g"}
        for library, package in owners.items():
            self.assertIn(package, everything | base, library)
        # oneDNN comes along where the distribution has none.
        self.assertLessEqual({lib for lib in libraries if lib not in owners and "onednn" not in lib}, set())

    def test_what_it_sets_are_variables_of_serve(self):
        variables = {v for name, rest in self.all if name == "ENV" for v in re.findall(r"(FOVEA_[A-Z_]+)=", rest)}
        self.assertGreater(len(variables), 3)
        self.assertLessEqual(variables, VARIABLES)
        text = (DEPLOY / "Dockerfile").read_text()
        self.assertLessEqual(set(re.findall(r"-e (FOVEA_[A-Z_]+)", text)), VARIABLES)
        values = dict(pair.split("=", 1) for name, rest in self.all if name == "ENV" for pair in rest.split())
        entry, = [json.loads(rest) for name, rest in self.all if name == "ENTRYPOINT"]
        command, = [json.loads(rest) for name, rest in self.all if name == "CMD"]
        self.assertEqual(entry, ["/opt/fovea/bin/fovea"])
        self.assertIn("--prefix /opt/fovea", self.runs)
        # The same, without a container.
        env = {**values, "FOVEA_HOST": "127.0.0.1", "FOVEA_PORT": "0", "FOVEA_MODEL": str(MODEL)}
        with tempfile.TemporaryDirectory() as tmp:
            env["FOVEA_KV_STORE"] = tmp + "/store"
            p = subprocess.Popen([FOVEA, *command], stderr=subprocess.PIPE, text=True, env=env)
            try:
                log = ""
                for line in p.stderr:
                    log += line
                    if line.startswith("fovea: ready"):
                        break
                self.assertRegex(log, r"ready: .* model default")
                port = re.search(r"http port (\d+)", log).group(1)
                check, = [rest for name, rest in self.all if name == "HEALTHCHECK"]
                self.assertEqual(subprocess.run(json.loads(check[check.index("CMD") + 4:]), env={"FOVEA_PORT": port}).returncode, 0)
            finally:
                p.terminate()
                p.wait()
                p.stderr.close()
            self.assertNotEqual(subprocess.run(json.loads(check[check.index("CMD") + 4:]), env={"FOVEA_PORT": port}, stderr=subprocess.DEVNULL).returncode, 0)


class Systemd(unittest.TestCase):
    def test_the_unit_is_sound(self):
        unit = (DEPLOY / "fovea.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.M).group(1).split()
        self.assertEqual(command[:2], ["/usr/local/bin/fovea", "serve"])
        for argument in command[2:]:
            if argument.startswith("--"):
                self.assertIn(argument, FLAGS)
        self.assertLessEqual(set(re.findall(r"FOVEA_[A-Z_]+", unit)), VARIABLES)
        for path in re.findall(r"deploy/\S+", unit):
            self.assertTrue((ROOT / path).exists(), path)
        if not shutil.which("systemd-analyze"):
            return
        with tempfile.TemporaryDirectory() as tmp:
            copy = pathlib.Path(tmp, "fovea.service")
            copy.write_text(unit.replace("/usr/local/bin/fovea", str(pathlib.Path(FOVEA).resolve())))
            r = subprocess.run(["systemd-analyze", "verify", "--man=no", str(copy)], capture_output=True, text=True)
            ours = [line for line in (r.stdout + r.stderr).splitlines() if "fovea.service" in line]
            self.assertEqual(ours, [])

    def test_its_file_of_flags_is_accepted(self):
        text = (DEPLOY / "serve.yaml").read_text()
        # What is commented out too.
        every = re.sub(r"^# (?=[a-z-]+: )", "", text, flags=re.M)
        keys = re.findall(r"^([a-z-]+):", every, re.M)
        self.assertGreater(len(keys), 8)
        for key in keys:
            self.assertIn("--" + key, FLAGS)
        with tempfile.TemporaryDirectory() as tmp:
            s = Server("--config", DEPLOY / "serve.yaml", "--kv-store", tmp + "/store", "--max-model-len", 4096)
            self.addCleanup(s.stop)
            reply = s.ask(CHAT, messages=[{"role": "user", "content": QUESTION}], max_tokens=4, fovea={"decode_method": "gsa_on_device"})
            self.assertEqual(reply["fovea"]["decode_method"], "gsa_on_device")
            # Requests are logged as JSON, each after its reply.
            s.wait_until(lambda: s.log[-1].startswith("{") and s.log[-1].endswith("}\n"))
            self.assertTrue(json.loads(s.log[-1])["request_id"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
