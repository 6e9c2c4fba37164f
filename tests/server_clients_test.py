#!/usr/bin/env python3
"""What PyPI's clients sent in a conversation (tests/data/server, recorded by tools/clients.sh), sent again byte for byte without them:
each reply has the status, the shape and the parts that its request asked for, and a stream says what the whole reply says.

Usage: server_clients_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments]. Needs nothing but Python.
"""
import http.client
import json
import sys
import unittest

from serving import COMPLETIONS, ROOT, Server, read_until


def send(server, request):
    """Status, headers and body of what the recorded bytes get."""
    with server.socket() as s:
        s.sendall((request["head"] + request["body"]).encode())
        r = http.client.HTTPResponse(s)
        r.begin()
        return r.status, r.headers, r.read().decode()


def whole_of(server, request):
    """The reply to the same body, not streamed."""
    body = {k: v for k, v in json.loads(request["body"]).items() if k not in ("stream", "stream_options")}
    status, _, data = server.call("POST", request["head"].split()[1], body)
    assert status == 200, data
    return json.loads(data)


def gather(events, is_chat):
    """A stream's choices as a whole reply has them."""
    choices = {}
    for event in events:
        for c in event["choices"]:
            one = choices.setdefault(c["index"], {"text": "", "calls": [], "reason": None, "logprobs": []})
            delta = c["delta"] if is_chat else {"content": c["text"]}
            one["text"] += delta.get("content") or ""
            one["calls"] += [call["function"] for call in delta.get("tool_calls", [])]
            one["reason"] = c["finish_reason"] or one["reason"]
            one["logprobs"] += (c.get("logprobs") or {}).get("content", [])
    return choices


def gathered(reply, is_chat):
    choices = {}
    for c in reply["choices"]:
        said = c["message"] if is_chat else {"content": c["text"]}
        choices[c["index"]] = {"text": said["content"] or "", "reason": c["finish_reason"],
                               "calls": [call["function"] for call in said.get("tool_calls", [])],
                               "logprobs": (c.get("logprobs") or {}).get("content", [])}
    return choices


def satisfies(value, schema, root):
    """The part of JSON Schema that the recorded requests use."""
    if "$ref" in schema:
        for key in schema["$ref"].removeprefix("#/").split("/"):
            root = root[key]
        return satisfies(value, root, root)
    kinds = {"object": dict, "string": str, "boolean": bool}
    if schema.get("type") in kinds and not isinstance(value, kinds[schema["type"]]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    known = schema.get("properties", {})
    return not isinstance(value, dict) or (set(schema.get("required", [])) <= set(value) <= set(known)
                                           and all(satisfies(v, known[k], root) for k, v in value.items()))


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.s = Server("--max-num-seqs", 8)

    @classmethod
    def tearDownClass(cls):
        cls.s.stop()

    def check_choices(self, asked, reply, is_chat):
        choices = gathered(reply, is_chat)
        prompts = len(asked["prompt"]) if isinstance(asked.get("prompt"), list) else 1
        self.assertEqual(sorted(choices), list(range(prompts * asked.get("n", 1))))
        usage = reply["usage"]
        self.assertEqual(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
        self.assertGreater(usage["completion_tokens"], 0)
        functions = {t["function"]["name"]: t["function"]["parameters"] for t in asked.get("tools", [])}
        for c in choices.values():
            self.assertIn(c["reason"], ("stop", "length", "tool_calls"))
            self.assertTrue(c["text"] or c["calls"])
            if is_chat and asked.get("logprobs"):
                self.assertEqual(len(c["logprobs"]), usage["completion_tokens"])
                self.assertEqual({len(t["top_logprobs"]) for t in c["logprobs"]}, {asked["top_logprobs"]})
                self.assertEqual("".join(t["token"] for t in c["logprobs"]), c["text"])
            if asked.get("tool_choice", "auto") not in ("auto", "none"):
                self.assertEqual(c["reason"], "tool_calls")
                self.assertEqual(len(c["calls"]), 1)
            for call in c["calls"]:
                schema = functions[call["name"]]
                self.assertTrue(satisfies(json.loads(call["arguments"]), schema, schema), call)
            if (asked.get("response_format") or {}).get("type") == "json_schema":
                schema = asked["response_format"]["json_schema"]["schema"]
                self.assertTrue(satisfies(json.loads(c["text"]), schema, schema), c["text"])

    def check_stream(self, request, asked, data, is_chat):
        self.assertTrue(data.endswith("\n\ndata: [DONE]\n\n"), data[-100:])
        events = [json.loads(e.removeprefix("data: ")) for e in data.split("\n\n")[:-2] if not e.startswith(":")]
        if (asked.get("stream_options") or {}).get("include_usage"):
            self.assertEqual(events[-1]["choices"], [])
        whole = whole_of(self.s, request)
        self.assertEqual(gather(events, is_chat), gathered(whole, is_chat))
        self.check_choices(asked, whole, is_chat)

    def leave(self, request):
        with self.s.socket() as s:
            s.sendall((request["head"] + request["body"]).encode())
            read_until(s, b"data: ")
            self.assertGreater(self.s.metric("num_requests_running"), 0)
        self.s.wait_until(lambda: self.s.metric("num_requests_running") == 0)

    def replay(self, name):
        requests = [json.loads(line) for line in (ROOT / "tests/data/server" / f"{name}.jsonl").read_text().splitlines()]
        steps = {r["step"] for r in requests}
        for wanted in "chat", "stream", "n", "logprobs", "a tool", "a tool's result", "json_schema", "leaves", "chat again":
            self.assertIn(wanted, steps)
        self.assertIn(400, {r["status"] for r in requests})
        for request in requests:
            with self.subTest(request["step"]):
                asked = json.loads(request["body"] or "{}")
                if request["leaves"]:
                    self.leave(request)
                    continue
                status, headers, data = send(self.s, request)
                self.assertEqual(status, request["status"], data)
                is_chat = COMPLETIONS not in request["head"].split()[1]
                if asked.get("stream") and status == 200:
                    self.assertTrue(headers["Content-Type"].startswith("text/event-stream"))
                    self.check_stream(request, asked, data, is_chat)
                    continue
                reply = json.loads(data)
                if status != 200:
                    self.assertTrue(reply["error"]["message"] and reply["error"]["param"] and reply["error"]["type"])
                elif asked:
                    self.check_choices(asked, reply, is_chat)
                else:
                    self.assertEqual(reply["data"][0]["id"], "tiny-gqa")

    def test_openai(self):
        self.replay("openai")

    def test_langchain(self):
        self.replay("langchain")

    def test_llamaindex(self):
        self.replay("llamaindex")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
