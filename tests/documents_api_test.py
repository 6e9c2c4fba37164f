#!/usr/bin/env python3
"""/v1/documents: put once, asked by id, held, listed, expired, deleted, and there again after kill -9.

Usage: documents_api_test.py FOVEA_BINARY REPO_ROOT [unittest's arguments].
"""
import concurrent.futures
import json
import os
import pathlib
import random
import shutil
import sys
import time
import unittest

from serving import CHAT, COMPLETIONS, LONG, QUESTION, Server, ServerTest, post, texts_of

DOCUMENTS = "/v1/documents"


def report(seed, lines):
    """A text of numbered lines, one of which has the code of the door."""
    rng = random.Random(seed)
    words = "river station door record north light code keeper signal winter harbor engine".split()
    text = [f"Line {i}: the {rng.choice(words)} of the {rng.choice(words)} is {rng.choice(words)} {rng.randint(100, 999)}." for i in range(lines)]
    return "\n".join(text)


class Documents(ServerTest):
    def put(self, s, text, headers={}, **fields):
        status, _, data = s.call("POST", DOCUMENTS, {"text": text, **fields}, headers)
        self.assertEqual(status, 200, data)
        return json.loads(data)

    def listed(self, s, query="", headers={}):
        status, _, data = s.call("GET", DOCUMENTS + query, headers=headers)
        self.assertEqual(status, 200, data)
        return json.loads(data)["data"]

    def ask(self, s, document, question=QUESTION, headers={}, **body):
        status, _, data = s.call("POST", CHAT, {"messages": [{"role": "user", "content": question}], "max_tokens": 12, **body,
                                                "fovea": {"document": document, **body.get("fovea", {})}}, headers)
        self.assertEqual(status, 200, data)
        return json.loads(data)

    def test_an_answer_by_id_is_that_of_the_text(self):
        s = self.serve("--serve-method", "gsa_on_device")
        text = report(1, 150)
        d = self.put(s, text, name="a report")
        self.assertRegex(d["id"], "^doc-[0-9a-f]{32}$")
        self.assertEqual((d["object"], d["name"], d["status"], d["bytes"], d["expires_at"]),
                         ("document", "a report", "ready", len(text), None))
        self.assertEqual(d["fovea"]["computed_tokens"], d["tokens"])
        self.assertEqual(s.metric("documents_held"), 1)
        fresh = self.serve("--serve-method", "gsa_on_device")  # where nothing is cached
        for extra in [{}, {"n": 2, "temperature": 1.0, "seed": 4}, {"fovea": {"decode_method": "gsa_on_device", "budget_tokens": 256}},
                      {"response_format": {"type": "json_object"}}, {"prompt_logprobs": 0}]:
            body = {"messages": [{"role": "user", "content": text + "\n\n" + QUESTION}], "max_tokens": 12, **extra}
            got = self.ask(s, d["id"], **extra)
            want = json.loads(fresh.call("POST", CHAT, body)[2])
            self.assertEqual(got["choices"], want["choices"], extra)
            self.assertEqual(got["usage"]["prompt_tokens"], want["usage"]["prompt_tokens"])
            if "prompt_logprobs" not in extra:  # they need all of its rows
                self.assertEqual(got["usage"]["prompt_tokens_details"]["cached_tokens"], d["tokens"])
                self.assertLess(got["fovea"]["computed_tokens"], 40)
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12}
        events = s.stream(CHAT, **body, fovea={"document": d["id"]})
        self.assertEqual(texts_of(events, True)[0], self.ask(s, d["id"])["choices"][0]["message"]["content"])
        # Later turns of the conversation too.
        first = self.ask(s, d["id"])["choices"][0]["message"]
        turns = [{"role": "user", "content": QUESTION}, {"role": first["role"], "content": first["content"]},
                 {"role": "user", "content": "And the light?"}]
        got = s.ask(CHAT, messages=turns, max_tokens=12, fovea={"document": d["id"]})
        turns[0]["content"] = text + "\n\n" + QUESTION
        self.assertEqual(got["choices"], fresh.ask(CHAT, messages=turns, max_tokens=12)["choices"])
        self.assertGreaterEqual(got["usage"]["prompt_tokens_details"]["cached_tokens"], d["tokens"])

    def test_a_system_message_stands_before_it(self):
        s = self.serve()
        text, system = report(2, 60), "Answer in one word."
        d = self.put(s, text, system=system)
        self.assertNotEqual(self.put(s, text)["id"], d["id"])
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text + "\n\n" + QUESTION}]
        want = s.ask(CHAT, messages=messages, max_tokens=12)["choices"]
        self.assertEqual(self.ask(s, d["id"])["choices"], want)
        asked = [messages[0], {"role": "user", "content": QUESTION}]
        self.assertEqual(s.ask(CHAT, messages=asked, max_tokens=12, fovea={"document": d["id"]})["choices"], want)
        # Another one is asked all the same: as what it is.
        messages[0]["content"] = asked[0]["content"] = "Answer at length."
        other = s.ask(CHAT, messages=asked, max_tokens=12, fovea={"document": d["id"]})
        self.assertEqual(other["choices"], s.ask(CHAT, messages=messages, max_tokens=12)["choices"])

    def test_listed_renewed_expired_and_deleted(self):
        s = self.serve("--kv-store", self.dir + "/store", "--document-ttl", 1000)
        a = self.put(s, report(3, 20), name="a")
        self.assertAlmostEqual(a["expires_at"] - a["created_at"], 1000, delta=2)
        b = self.put(s, report(4, 20), name="b", expires_after_s=0)
        brief = self.put(s, report(5, 20))
        self.assertEqual([d["id"] for d in self.listed(s)][:1], [a["id"]])
        self.assertEqual({d["id"] for d in self.listed(s)}, {a["id"], b["id"], brief["id"]})
        self.assertEqual(json.loads(s.call("GET", f"{DOCUMENTS}/{b['id']}")[2]), b)
        self.assertEqual(self.put(s, report(3, 20), name="a2")["id"], a["id"])
        self.assertEqual(json.loads(s.call("GET", f"{DOCUMENTS}/{a['id']}")[2])["name"], "a2")
        files = pathlib.Path(self.dir, "store/documents")
        self.assertEqual({f.stem for f in files.iterdir()}, {a["id"], b["id"], brief["id"]})
        self.assertEqual({f.stat().st_mode & 0o777 for f in files.iterdir()}, {0o600})
        self.put(s, report(5, 20), expires_after_s=2)
        s.wait_until(lambda: len(self.listed(s)) == 2)
        s.wait_until(lambda: not (files / f"{brief['id']}.json").exists())
        self.assertEqual(s.call("POST", CHAT, {"messages": [{"role": "user", "content": "x"}], "fovea": {"document": brief["id"]}})[0], 404)
        s.wait_until(lambda: s.metric("documents_held") == 2)
        status, _, data = s.call("DELETE", f"{DOCUMENTS}/{a['id']}")
        self.assertEqual((status, json.loads(data)), (200, {"id": a["id"], "object": "document.deleted", "deleted": True}))
        self.assertFalse((files / f"{a['id']}.json").exists())
        for method in "GET", "DELETE":
            status, _, data = s.call(method, f"{DOCUMENTS}/{a['id']}")
            self.assertEqual((status, json.loads(data)["error"]["param"]), (404, "id"))
        s.wait_until(lambda: s.metric("documents_held") == 1)
        in_use = s.metric("kv_cache_usage_perc")
        self.assertEqual(s.call("DELETE", f"{DOCUMENTS}/{b['id']}")[0], 200)
        s.wait_until(lambda: s.metric("kv_cache_usage_perc") == 0)
        self.assertGreater(in_use, 0)

    def test_kill_and_restart_computes_nothing_again(self):
        store = self.dir + "/store"
        args = ["--kv-store", store, "--serve-method", "gsa_on_device"]
        questions = [QUESTION, "What is on line 7?", "Who is the keeper?"]
        methods = ["dense", "gsa_on_device"]
        text = report(6, 200)
        s = self.serve(*args)
        d = self.put(s, text, name="r", cache_salt="salt")
        ask = lambda s, q, m: self.ask(s, d["id"], q, cache_salt="salt", fovea={"decode_method": m, "budget_tokens": 0})
        before = {(q, m): ask(s, q, m)["choices"] for q in questions for m in methods}
        blocks = -(-d["tokens"] // 16)
        s.wait_until(lambda: s.metric("store_stored_blocks_total") >= blocks)
        s.process.kill()
        s.process.wait()
        s = self.serve(*args)
        again, = self.listed(s, "?cache_salt=salt")
        self.assertEqual((again["id"], again["status"], again["tokens"]), (d["id"], "stored", d["tokens"]))
        first = ask(s, questions[0], "dense")
        self.assertEqual(first["choices"], before[questions[0], "dense"])
        self.assertEqual(first["fovea"]["loaded_tokens"], d["tokens"])
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], d["tokens"])
        self.assertEqual(first["fovea"]["computed_tokens"], first["usage"]["prompt_tokens"] - d["tokens"])
        read = json.loads(s.call("GET", f"{DOCUMENTS}/{d['id']}")[2])["fovea"]
        self.assertEqual((read["computed_tokens"], read["loaded_tokens"]), (0, d["tokens"]))
        for (q, m), choices in before.items():
            got = ask(s, q, m)
            self.assertEqual(got["choices"], choices)
            self.assertLess(got["fovea"]["computed_tokens"], 40)
        # Without its slabs it is computed again, from its file.
        s.process.kill()
        s.process.wait()
        shutil.rmtree(store + "/slabs")
        os.mkdir(store + "/slabs")
        s = self.serve(*args)
        first = ask(s, questions[0], "dense")
        self.assertEqual(first["choices"], before[questions[0], "dense"])
        self.assertEqual(first["fovea"]["loaded_tokens"], 0)
        self.assertEqual(first["fovea"]["computed_tokens"], first["usage"]["prompt_tokens"])

    def test_many_kills_leave_whole_documents(self):
        store = self.dir + "/store"
        texts = [report(20 + i, 8) for i in range(6)]
        put = {}
        for round_ in range(4):
            s = self.serve("--kv-store", store)
            self.assertEqual({d["id"] for d in self.listed(s)} - set(put.values()), set())
            self.assertGreaterEqual({d["id"] for d in self.listed(s)}, set(put.values()))
            self.assertEqual([line for line in s.log if "left out" in line], [])
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                running = [pool.submit(s.call, "POST", DOCUMENTS, {"text": t}) for t in texts]
                time.sleep(0.02 * round_)
                s.process.kill()
                for t, r in zip(texts, running):
                    try:
                        status, _, data = r.result()
                    except OSError:
                        continue
                    except Exception as e:  # the reply's head alone
                        self.assertIn(type(e).__name__, ("RemoteDisconnected", "IncompleteRead", "BadStatusLine"))
                        continue
                    self.assertEqual(status, 200)
                    put[t] = json.loads(data)["id"]
            s.process.wait()
            for f in pathlib.Path(store, "documents").glob("*.json"):  # whole, whatever was under way
                d = json.loads(f.read_text())
                put[d["text"]] = d["id"]
        s = self.serve("--kv-store", store)
        for t, id_ in put.items():
            self.assertEqual(self.put(s, t)["id"], id_)
        self.assertFalse(list(pathlib.Path(store, "documents").glob("*.tmp")))

    def test_tenants(self):
        s = self.serve("--api-key", "a", "--api-key", "b", "--isolate-by", "key", "--kv-store", self.dir + "/store")
        key = lambda k: {"Authorization": "Bearer " + k}
        text = report(7, 60)
        a, b = self.put(s, text, key("a")), self.put(s, text, key("b"))
        self.assertNotEqual(a["id"], b["id"])
        self.assertEqual(b["fovea"]["computed_tokens"], b["tokens"], "the other's blocks were found")
        self.assertEqual([d["id"] for d in self.listed(s, headers=key("a"))], [a["id"]])
        ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "fovea": {"document": a["id"]}}
        self.assertEqual(s.call("POST", CHAT, ask, key("a"))[0], 200)
        status, _, data = s.call("POST", CHAT, ask, key("b"))
        self.assertEqual((status, json.loads(data)["error"]["param"]), (404, "fovea.document"))
        for method in "GET", "DELETE":
            self.assertEqual(s.call(method, f"{DOCUMENTS}/{a['id']}", headers=key("b"))[0], 404)
        self.assertEqual(s.call("GET", DOCUMENTS)[0], 401)
        kept = "".join(f.read_text() for f in pathlib.Path(self.dir, "store/documents").iterdir())
        self.assertNotIn('"owner":"a"', kept)
        # A salt's documents are only those of who knows it.
        salted = self.put(s, text, key("a"), cache_salt="s 1&")
        self.assertEqual(salted["fovea"]["computed_tokens"], salted["tokens"])
        self.assertEqual([d["id"] for d in self.listed(s, headers=key("a"))], [a["id"]])
        self.assertEqual([d["id"] for d in self.listed(s, "?x=1&cache_salt=s+1%26", key("a"))], [salted["id"]])
        ask["fovea"]["document"] = salted["id"]
        self.assertEqual(s.call("POST", CHAT, ask, key("a"))[0], 404)
        self.assertEqual(s.call("POST", CHAT, {**ask, "cache_salt": "s 1&"}, key("a"))[0], 200)
        s.stop()
        log = "".join(s.log)
        self.assertNotIn("s 1&", log)
        self.assertNotIn("s+1%26", log)

    def test_bounds_and_errors(self):
        s = self.serve("--max-documents", 2, "--max-prompt-size", 10000, "--max-model-len", 2048)
        ask = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
        for method, path, body, status, param in [
                ("POST", DOCUMENTS, {}, 400, "text"),
                ("POST", DOCUMENTS, {"text": ""}, 400, "text"),
                ("POST", DOCUMENTS, {"text": 5}, 400, "text"),
                ("POST", DOCUMENTS, {"text": "x" * 10001}, 400, "text"),
                ("POST", DOCUMENTS, {"text": report(8, 130)}, 400, "text"),
                ("POST", DOCUMENTS, {"text": "x", "expires_after_s": -1}, 400, "expires_after_s"),
                ("POST", DOCUMENTS, {"text": "x", "fovea": {"prefill_method": "telepathy"}}, 400, "fovea.prefill_method"),
                ("POST", CHAT, {**ask, "fovea": {"document": "doc-0"}}, 404, "fovea.document"),
                ("POST", CHAT, {**ask, "fovea": {"document": 1}}, 400, "fovea.document"),
                ("POST", COMPLETIONS, {"prompt": "x", "fovea": {"document": "doc-0"}}, 400, "fovea.document"),
                ("PUT", DOCUMENTS, {}, 405, None),
                ("POST", DOCUMENTS + "/doc-0", {}, 405, None),
                ("GET", DOCUMENTS + "/doc-0/x", None, 404, "id")]:
            got, _, data = s.call(method, path, body)
            self.assertEqual((got, json.loads(data)["error"]["param"]), (status, param), (str(body)[:80], data))
        self.assertEqual(self.listed(s), [])
        self.put(s, "one")
        self.put(s, "two")
        status, headers, data = s.call("POST", DOCUMENTS, {"text": "three"})
        self.assertEqual(status, 429)
        self.assertIn("--max-documents", data)
        self.put(s, "two")

    def test_waiting_is_a_choice_and_clients_may_leave(self):
        s = self.serve("--max-num-batched-tokens", 16)
        d = self.put(s, report(9, 400), wait=False)
        self.assertEqual(d["status"], "reading")
        status = lambda d: json.loads(s.call("GET", f"{DOCUMENTS}/{d['id']}")[2])
        self.assertEqual(status(d)["status"], "reading")
        s.wait_until(lambda: status(d)["fovea"]["computed_tokens"] > 0)
        self.assertEqual(status(d)["status"], "reading")
        # Others too, from the reply on: the step that runs takes none up before it ends.
        others = [self.put(s, report(seed, 4), wait=False) for seed in range(11, 19)]
        self.assertEqual({status(o)["status"] for o in others}, {"reading"})
        # A question waits for it, and one that leaves ends nothing that others wait for.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(self.ask, s, d["id"])
            gone = s.socket()
            gone.sendall(post(CHAT, {"messages": [{"role": "user", "content": "x"}], "fovea": {"document": d["id"]}}))
            time.sleep(0.1)
            gone.close()
            got = answer.result()
        self.assertEqual(status(d)["status"], "ready")
        self.assertLess(got["fovea"]["computed_tokens"], 40)
        s.wait_until(lambda: "reading" not in {status(o)["status"] for o in others})
        # Who waits alone and leaves has its reading ended.
        text = report(10, 400)
        gone = s.socket()
        gone.sendall(post(DOCUMENTS, {"text": text}))
        s.wait_until(lambda: s.metric("num_requests_running") == 1)
        gone.close()
        s.wait_until(lambda: s.metric("num_requests_running") == 0)
        late, = [x for x in self.listed(s) if x["id"] not in {o["id"] for o in [d, *others]}]
        self.assertEqual(late["status"], "stored")
        # Deleted while somebody waits: told so.
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(s.call, "POST", DOCUMENTS, {"text": text})
            s.wait_until(lambda: s.metric("num_requests_running") == 1)
            self.assertEqual(s.call("DELETE", f"{DOCUMENTS}/{late['id']}")[0], 200)
            status, _, data = waiting.result()
        self.assertEqual(status, 400)
        self.assertIn("deleted", data)
        s.wait_until(lambda: s.metric("num_requests_running") == 0)

    def test_held_documents_leave_room(self):
        # A cache of some 6,000 tokens: documents hold at most what a sequence of 4,096 leaves.
        s = self.serve("--kv-cache-memory", "18M", "--max-model-len", 4096)
        total = int(s.metric("kv_cache_blocks")) * 16
        self.assertTrue(5500 < total < 6500, total)
        documents = [self.put(s, report(30 + i, 36)) for i in range(6)]
        self.assertGreater(documents[0]["tokens"], 400)
        self.assertLessEqual(s.metric("documents_held") * documents[0]["tokens"], total - 4096)
        self.assertGreater(s.metric("documents_held"), 0)
        status = lambda d: json.loads(s.call("GET", f"{DOCUMENTS}/{d['id']}")[2])["status"]
        self.assertEqual((status(documents[0]), status(documents[-1])), ("stored", "ready"))  # the last ones asked for stay
        whole = s.ask(COMPLETIONS, prompt=[5] * 4000, max_tokens=90, ignore_eos=True)
        self.assertEqual(whole["usage"]["completion_tokens"], 90)
        for d in documents:
            self.assertTrue(self.ask(s, d["id"])["choices"][0]["message"]["content"])
        self.assertEqual(status(documents[0]), "stored")
        self.ask(s, documents[0]["id"])
        self.assertEqual(status(documents[0]), "ready")
        # One that is larger than that is known and asked, but not held.
        text = report(40, 150)
        d = self.put(s, text)
        self.assertGreater(d["tokens"], total - 4096)
        self.assertEqual(d["status"], "stored")
        want = s.ask(CHAT, messages=[{"role": "user", "content": text + "\n\n" + QUESTION}], max_tokens=12)["choices"]
        self.assertEqual(self.ask(s, d["id"])["choices"], want)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
