#!/usr/bin/env python3
"""Clients that people use, unchanged, against a server: tools/clients.sh starts it and installs them.

Usage: clients.py BASE_URL
"""
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "What is the code of the door?"}]


def refused(kind, param, **body):
    try:
        client.chat.completions.create(model=model, messages=messages, **body)
    except kind as error:
        assert error.param == param, error
    else:
        raise AssertionError(f"{param} was accepted")


whole = client.chat.completions.create(model=model, messages=messages, max_tokens=12)
text = whole.choices[0].message.content
assert text and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
assert whole.usage.prompt_tokens_details.cached_tokens >= 0

chunks = list(client.chat.completions.create(model=model, messages=messages, max_tokens=12, stream=True,
                                             stream_options={"include_usage": True}))
assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
with client.chat.completions.stream(model=model, messages=messages, max_tokens=12) as stream:
    for _ in stream:
        pass
    assert stream.get_final_completion().choices[0].message.content == text

two = client.chat.completions.create(model=model, messages=messages, max_tokens=8, n=2, temperature=1.0, seed=3)
assert [c.index for c in two.choices] == [0, 1]
logprobs = client.chat.completions.create(model=model, messages=messages, max_tokens=4, logprobs=True, top_logprobs=2)
assert len(logprobs.choices[0].logprobs.content) == logprobs.usage.completion_tokens
assert len(logprobs.choices[0].logprobs.content[0].top_logprobs) == 2
tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
called = client.chat.completions.create(model=model, messages=messages, max_tokens=8, tools=tools)
assert called.choices[0].finish_reason in ("stop", "length", "tool_calls")
extra = client.chat.completions.create(model=model, messages=messages, max_tokens=4,
                                       extra_body={"top_k": 1, "ignore_eos": True, "fovea": {"decode_method": "dense"}})
assert extra.fovea["decode_method"] == "dense" and extra.usage.completion_tokens == 4

line = client.completions.create(model=model, prompt=["The river", "A door"], max_tokens=4, logprobs=1, echo=True)
assert line.choices[0].text.startswith("The river") and line.choices[1].text.startswith("A door")
assert "".join(line.choices[0].logprobs.tokens) == line.choices[0].text

refused(openai.BadRequestError, "temperature", temperature=5)
refused(openai.BadRequestError, "n", n=0)
try:
    client.chat.completions.create(model="another", messages=messages)
    raise AssertionError("another model was accepted")
except openai.NotFoundError as error:
    assert error.param == "model"
gone = client.chat.completions.create(model=model, messages=messages, max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
next(iter(gone))
gone.close()
assert client.chat.completions.create(model=model, messages=messages, max_tokens=12).choices[0].message.content == text
print(f"openai {openai.__version__}: chat, streams, n, logprobs, tools, completions, errors, a client that leaves: as expected")
