#!/usr/bin/env python3
"""What `fovea serve` is told: flags, variables, --config; and what its requests may ask: formats, tools, logprobs of prompts. Its
metrics beside the dashboard that shows them.

Usage: server_options_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments].
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from serving import CHAT, COMPLETIONS, FOVEA, MODEL, QUESTION, ROOT, Server, ServerTest, texts_of

HELP = subprocess.run([FOVEA, "serve", "--help"], capture_output=True, text=True).stdout
# An option's line begins with its names.
FLAGS = [re.sub(r"\{\w+\}", "", names) for names in re.findall(r"^  (--\S+)", HELP, re.M)]
PAGE = (ROOT / "docs/server.md").read_text()


def refused(*args, env=None):
    r = subprocess.run([FOVEA, "serve", *map(str, args)], capture_output=True, text=True, timeout=60, env=env)
    assert r.returncode == 2, r.stderr
    return r.stderr.strip().split("\n")[-1]


class Flags(ServerTest):
    def config(self, text):
        path = self.dir + "/serve.yaml"
        pathlib.Path(path).write_text(text)
        return path

    def test_every_flag_has_a_variable_and_stands_on_the_page(self):
        self.assertGreater(len(FLAGS), 60)
        for names in FLAGS:
            first = names.split(",")[0]
            variable = "FOVEA_" + first[2:].upper().replace("-", "_")
            self.assertIn(f"(Env:{variable})", re.sub(r"\s+", "", HELP), first)
            for name in names.split(","):
                self.assertIn(f"`{name}`", PAGE)

    def test_flags_by_vllms_names(self):
        names = ",".join(FLAGS).split(",")
        for name in ("host", "port", "served-model-name", "api-key", "max-model-len", "max-num-seqs", "max-num-batched-tokens",
                     "kv-cache-dtype", "enable-prefix-caching", "no-enable-prefix-caching", "log-level", "uvicorn-log-level",
                     "ssl-keyfile", "ssl-certfile", "allowed-origins", "root-path", "config", "enable-log-requests"):
            self.assertIn("--" + name, names)

    def test_a_file_the_environment_and_the_command_line(self):
        path = self.config("""
# a comment
served-model-name: [first, second]
max-messages: 3
max-prompts: 2
max-answers: 7
no-enable-prefix-caching: true
ucm_sparse_config:
  GSA_OnDevice: {hash_bits: 64}
decode-method: gsa_on_device
""")
        s = self.serve("--config", path, "--max-messages", 5, env={"FOVEA_MAX_PROMPTS": "4"})
        models = json.loads(s.call("GET", "/v1/models")[2])["data"]
        self.assertEqual([m["id"] for m in models], ["first", "second"])
        self.assertIn("gsa_on_device", models[0]["fovea"]["decode_methods"])
        chat = lambda n: s.call("POST", CHAT, {"messages": [{"role": "user", "content": "x"}] * n, "max_tokens": 1})[0]
        self.assertEqual((chat(5), chat(6)), (200, 400))  # the command line's
        texts = lambda count, **more: s.call("POST", COMPLETIONS, {"prompt": ["x"] * count, "max_tokens": 1, **more})[0]
        self.assertEqual((texts(4), texts(5)), (200, 400))  # the environment's
        self.assertEqual((texts(1, n=7), texts(1, n=8)), (200, 400))  # the file's
        long = " ".join(["the river"] * 40)
        for _ in range(2):
            self.assertEqual(s.ask(COMPLETIONS, prompt=long, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        s = self.serve(env={"FOVEA_ENABLE_PREFIX_CACHING": "true", "FOVEA_CONFIG": path})
        for _ in range(2):
            cached = s.ask(COMPLETIONS, prompt=long, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 0)

    def test_a_file_may_say_it_all(self):
        path = self.config(f"model: {MODEL}\nhost: nowhere.invalid\n")
        self.assertIn("--host nowhere.invalid", refused("--config", path))
        self.assertIn("--model is required", refused("--config", self.config("port: 0\n")))
        self.assertIn("--model is required", refused())

    def test_errors_name_the_file_and_the_key(self):
        for text, told in [("prot: 1", "prot: is no flag"), ("port: [1, 2]", "port: takes one value"), ("port: high", "port: "),
                           ("port: {a: 1}", "port: must be a plain value"), ("max-messages: 0", "max-messages: "),
                           ("max-body-size: many", "max-body-size: "), ("isolate-by: tenant", "isolate-by: "),
                           ("enable-prefix-caching: perhaps", "enable-prefix-caching: must be true or false"), ("config: x", "config: is no flag"),
                           ("api-key: [a, {b: c}]", "api-key: an entry is no plain value"), ("- a", "the top is not a map"), ("a: [", "not YAML"),
                           ("ucm_sparse_config: {Telepathy: {}}", "ucm_sparse_config.Telepathy")]:
            path = self.config(text)
            error = refused("--model", MODEL, "--config", path)
            self.assertTrue(error.startswith("fovea: " + path + ": "), error)
            self.assertIn(told, error)
        self.assertIn("/nowhere.yaml", refused("--model", MODEL, "--config", "/nowhere.yaml"))

    def test_keys_in_the_environment_are_not_shown(self):
        r = subprocess.run([FOVEA, "serve", "--help"], capture_output=True, text=True, env={"FOVEA_API_KEY": "secret-1"})
        self.assertNotIn("secret-1", r.stdout)

    def test_prompts_are_logged_where_that_is_asked_for(self):
        for args, logged in [((), False), (("--enable-log-requests",), True), (("--enable-log-requests", "--log-format", "json"), True)]:
            s = self.serve(*args)
            s.ask(CHAT, messages=[{"role": "user", "content": "a secret question"}], max_tokens=1)
            s.stop()
            log = "".join(s.log)
            self.assertEqual("a secret question" in log, logged, log)
            if "json" in args:
                lines = [json.loads(line) for line in s.log if line.startswith("{")]
                self.assertEqual([line for line in lines if "prompt" in line][0]["request_id"], lines[-1]["request_id"])
        self.assertIn("--enable-log-requests", refused("--model", MODEL, "--enable-log-requests", "--log-level", "warning"))


class Tenants(unittest.TestCase):
    def test_prefixes_are_found_by_those_who_may(self):
        with tempfile.TemporaryDirectory() as tmp:
            args = ["--api-key", "key-one", "--api-key", "key-two", "--kv-store", tmp + "/store"]
            prompt = " ".join(f"line {i} of the report" for i in range(60))

            def found(s, key, **more):
                status, _, data = s.call("POST", COMPLETIONS, {"prompt": prompt, "max_tokens": 1, **more}, {"Authorization": "Bearer key-" + key})
                self.assertEqual(status, 200, data)
                return json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
            s = Server(*args, "--isolate-by", "key")
            self.addCleanup(s.stop)
            asked = [("one", {}), ("two", {}), ("one", {"cache_salt": "a"}), ("one", {"cache_salt": "b"}), ("two", {"cache_salt": "a"}),
                     ("one", {"cache_salt": "x" * 512})]
            for key, more in asked:
                self.assertFalse(found(s, key, **more), (key, more))
                self.assertTrue(found(s, key, **more), (key, more))
            tokens = json.loads(s.call("POST", "/tokenize", {"prompt": prompt}, {"Authorization": "Bearer key-one"})[2])["count"]
            s.wait_until(lambda: s.metric("store_stored_blocks_total") >= len(asked) * (tokens // 16))
            s.stop()
            # In the store they are apart too. Without the flag one key is as good as another, but not as they were.
            s = Server(*args, "--isolate-by", "key")
            self.addCleanup(s.stop)
            self.assertTrue(found(s, "two"))
            self.assertFalse(found(s, "two", cache_salt="b"))
            s.stop()
            s = Server(*args)
            self.addCleanup(s.stop)
            self.assertFalse(found(s, "one"))
            self.assertTrue(found(s, "two"))
            self.assertFalse(found(s, "one", cache_salt="a"))
            self.assertTrue(found(s, "two", cache_salt="a"))
            s.stop()
            self.assertEqual([f for f in pathlib.Path(tmp).rglob("*") if f.is_file() and b"key-one" in f.read_bytes()], [])


class Requests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("--max-num-seqs", 8)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def chat(self, **body):
        return self.s.ask(CHAT, **{"messages": [{"role": "user", "content": QUESTION}], **body})

    def test_answers_in_a_format(self):
        schema = {"type": "object", "properties": {"code": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["door", "gate"]}},
                  "required": ["code", "kind"], "additionalProperties": False}
        json_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        for path, ask in (CHAT, {"messages": [{"role": "user", "content": QUESTION}]}), (COMPLETIONS, {"prompt": QUESTION}):
            for extra in {}, {"temperature": 1.5, "seed": 3, "n": 2}:
                body = {**ask, **extra, "max_tokens": 200, "response_format": json_schema}
                whole = self.s.ask(path, **body)
                texts = {c["index"]: c["message"]["content"] if path == CHAT else c["text"] for c in whole["choices"]}
                for c in whole["choices"]:
                    self.assertEqual(c["finish_reason"], "stop")
                    value = json.loads(texts[c["index"]])
                    self.assertEqual(set(value), {"code", "kind"})
                    self.assertIsInstance(value["code"], int)
                    self.assertIn(value["kind"], ["door", "gate"])
                self.assertEqual(texts_of(self.s.stream(path, **body), path == CHAT), texts)
        for seed in range(4):
            c = self.chat(response_format={"type": "json_object"}, temperature=1.0, seed=seed, max_tokens=3000)["choices"][0]
            if c["finish_reason"] == "stop":
                self.assertIsInstance(json.loads(c["message"]["content"]), dict)
            else:
                self.assertTrue(c["message"]["content"].lstrip().startswith("{"))
        self.assertEqual(self.chat(max_tokens=8, response_format={"type": "text"})["choices"], self.chat(max_tokens=8)["choices"])

    def test_tools_that_must_be_called(self):
        tools = [{"type": "function", "function": {"name": "look", "parameters": {
            "type": "object", "properties": {"at": {"enum": ["door", "river"]}}, "required": ["at"], "additionalProperties": False}}},
                 {"type": "function", "function": {"name": "wait"}}]
        for choice, names in ("required", ["look", "wait"]), ({"type": "function", "function": {"name": "look"}}, ["look"]):
            for seed in range(3):
                body = {"tools": tools, "tool_choice": choice, "max_tokens": 400, "temperature": 1.0, "seed": seed}
                c = self.chat(**body)["choices"][0]
                if c["finish_reason"] == "length":  # its arguments may be any object
                    continue
                self.assertEqual(c["finish_reason"], "tool_calls")
                self.assertIsNone(c["message"]["content"])
                call, = c["message"]["tool_calls"]
                self.assertIn(call["function"]["name"], names)
                if call["function"]["name"] == "look":
                    self.assertIn(json.loads(call["function"]["arguments"])["at"], ["door", "river"])
                events = self.s.stream(CHAT, messages=[{"role": "user", "content": QUESTION}], **body)
                sent = [t for e in events for x in e["choices"] for t in x["delta"].get("tool_calls", [])]
                self.assertEqual([t["function"] for t in sent], [call["function"]])
                self.assertEqual(events[-1]["choices"][0]["finish_reason"], "tool_calls")
                self.assertEqual(texts_of(events, True)[0], "")

    def test_logprobs_of_prompts(self):
        whole = self.s.ask(COMPLETIONS, prompt="The river is wide", max_tokens=3, prompt_logprobs=2, n=2)
        ids = json.loads(self.s.call("POST", "/tokenize", {"prompt": "The river is wide"})[2])["tokens"]
        for c in whole["choices"]:
            self.assertIsNone(c["logprobs"])
            self.assertEqual(len(c["prompt_logprobs"]), len(ids))
            self.assertIsNone(c["prompt_logprobs"][0])
            for token, one in list(zip(ids, c["prompt_logprobs"]))[1:]:
                self.assertIn(str(token), one)
                self.assertGreaterEqual(len(one), 2)
                self.assertEqual(sorted(v["rank"] for v in one.values())[:2], [1, 2])
                for v in one.values():
                    self.assertLessEqual(v["logprob"], 0)
        # The same as an echo has them.
        echo = self.s.ask(COMPLETIONS, prompt="The river is wide", max_tokens=0, echo=True, logprobs=1)["choices"][0]
        self.assertEqual(echo["text"], "The river is wide")
        want = [None] + [c[str(t)]["logprob"] for t, c in zip(ids[1:], whole["choices"][0]["prompt_logprobs"][1:])]
        self.assertEqual(echo["logprobs"]["token_logprobs"], want)
        both = self.s.ask(COMPLETIONS, prompt="The river is wide", max_tokens=2, echo=True, logprobs=1, n=2)["choices"]
        self.assertEqual([c["logprobs"]["tokens"] for c in both], [both[0]["logprobs"]["tokens"]] * 2)
        self.assertEqual(len(both[0]["logprobs"]["tokens"]), len(ids) + 2)
        chat = self.chat(max_tokens=2, prompt_logprobs=0)
        self.assertEqual(len(chat["prompt_logprobs"]), chat["usage"]["prompt_tokens"])
        self.assertEqual(chat["choices"], self.chat(max_tokens=2)["choices"])
        for path, ask in (CHAT, {"messages": [{"role": "user", "content": QUESTION}]}), (COMPLETIONS, {"prompt": "The river is wide"}):
            want = self.s.ask(path, **ask, max_tokens=2, prompt_logprobs=1)
            events = self.s.stream(path, **ask, max_tokens=2, prompt_logprobs=1)
            where = (lambda r: r) if path == CHAT else (lambda r: r["choices"][0])
            told = [where(e)["prompt_logprobs"] for e in events if e["choices"] and "prompt_logprobs" in where(e)]
            self.assertEqual(told, [where(want)["prompt_logprobs"]])

    def test_each_field_of_sampling_does_something(self):
        # What none of them changes, beside what each does: answers of one seed.
        base = {"prompt": "The river is the river is the", "max_tokens": 24, "temperature": 1.0, "seed": 11, "ignore_eos": True}
        text = lambda **more: self.s.ask(COMPLETIONS, **{**base, **more})["choices"][0]["text"]
        plain = text()
        self.assertEqual(text(), plain)
        for change in ({"temperature": 0}, {"seed": 12}, {"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.999}, {"repetition_penalty": 2.0},
                       {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"stop": plain[3:6]}, {"max_tokens": 5}):
            self.assertNotEqual(text(**change), plain, change)
        greedy = text(temperature=0)
        for same in {"top_k": 1}, {"top_p": 0.0001}, {"min_p": 0.999}:
            self.assertEqual(text(**same), greedy, same)
        ids = json.loads(self.s.call("POST", "/tokenize", {"prompt": greedy})[2])["tokens"]
        cut = self.s.ask(COMPLETIONS, **{**base, "temperature": 0, "stop_token_ids": [ids[2]]})
        self.assertLessEqual(cut["usage"]["completion_tokens"], 3)
        self.assertEqual(cut["choices"][0]["finish_reason"], "stop")
        held = self.s.ask(COMPLETIONS, **{**base, "temperature": 0, "stop_token_ids": [ids[2]], "min_tokens": 10})
        self.assertGreaterEqual(held["usage"]["completion_tokens"], 10)

    def test_errors_name_the_field(self):
        ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        tool = {"type": "function", "function": {"name": "f"}}
        for body, param in [
                ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, "response_format"),
                ({"response_format": {"type": "xml"}}, "response_format.type"),
                ({"response_format": {"type": "json_object"}, "min_tokens": 2}, "min_tokens"),
                ({"tools": [{}]}, "tools[0].function.name"), ({"tools": [tool], "tool_choice": "perhaps"}, "tool_choice"),
                ({"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
                ({"tool_choice": "required"}, "tool_choice"),
                ({"tools": [tool], "tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
                ({"prompt_logprobs": 21}, "prompt_logprobs"), ({"min_p": 1.5}, "min_p"), ({"top_k": -2}, "top_k"),
                ({"repetition_penalty": 0}, "repetition_penalty"), ({"frequency_penalty": 2.5}, "frequency_penalty"),
                ({"presence_penalty": -2.5}, "presence_penalty"), ({"min_tokens": -1}, "min_tokens"), ({"seed": 0.5}, "seed"),
                ({"stop_token_ids": ["a"]}, "stop_token_ids"), ({"ignore_eos": 1}, "ignore_eos"), ({"cache_salt": 5}, "cache_salt"),
                ({"chat_template_kwargs": []}, "chat_template_kwargs"), ({"logit_bias": {"999999": 1}}, "logit_bias"),
                ({"max_completion_tokens": 0}, "max_completion_tokens"), ({"top_logprobs": 21, "logprobs": True}, "top_logprobs")]:
            status, _, data = self.s.call("POST", CHAT, {**ask, **body})
            self.assertEqual(status, 400, (body, data))
            self.assertEqual(json.loads(data)["error"]["param"], param, (body, data))


class Dashboard(unittest.TestCase):
    def test_it_shows_what_there_is(self):
        s = Server()
        self.addCleanup(s.stop)
        s.ask(COMPLETIONS, prompt="x", max_tokens=3)
        page = s.call("GET", "/metrics")[2]
        families = dict(re.findall(r"^# TYPE (fovea:\S+) (\S+)", page, re.M))
        labels = {}
        for name, inner in re.findall(r"^(fovea:\w+)\{(.*?)\} ", page, re.M):
            labels.setdefault(name, set()).update(re.findall(r'(\w+)="', inner))
        board = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
        asked = [t["expr"] for p in board["panels"] for t in p.get("targets", [])]
        asked += [v["query"] for v in board["templating"]["list"] if v["type"] == "query"]
        self.assertGreater(len(asked), 30)
        shown = set()
        for expression in asked:
            names = re.findall(r"fovea:\w+", expression)
            self.assertTrue(names, expression)
            for name in names:
                family = re.sub(r"_(bucket|sum|count)$", "", name)
                kind = families.get(name) or families.get(family)
                self.assertIsNotNone(kind, name)
                if name not in families:
                    self.assertEqual(kind, "histogram", name)
                shown.add(name if name in families else family)
                # A counter only says something as a rate.
                if kind in ("counter", "histogram"):
                    self.assertRegex(expression, r"rate\(" + name, expression)
            for label in re.findall(r"by \(([\w, ]+)\)", expression):
                for one in label.replace(" ", "").split(","):
                    self.assertIn(one, set().union(*(labels[n] for n in names)), expression)
        ids = [p["id"] for p in board["panels"]]
        self.assertEqual(len(set(ids)), len(ids))
        grid = set()
        for p in board["panels"]:
            g = p["gridPos"]
            cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
            self.assertFalse(cells & grid, p["title"])
            grid |= cells
        # Names that dashboards and alerts for vLLM look for, with another prefix.
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total",
                     "prompt_tokens_total", "generation_tokens_total", "request_success_total", "time_to_first_token_seconds",
                     "inter_token_latency_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds", "request_inference_time_seconds",
                     "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens", "request_generation_tokens",
                     "num_preemptions_total"):
            self.assertIn("fovea:" + name, families)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
