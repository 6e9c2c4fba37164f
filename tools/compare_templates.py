#!/usr/bin/env python3
"""Compare the chat template interpreter with jinja2 over a folder of templates.

Every *.jinja under DIR is rendered on 30 conversations (system, tools, tool calls, several turns, documents, thinking, content as
a list of parts ...) by jinja2, set up as the transformers package does it, and by `fovea inspect --render`. Both failing counts
as equal. A template that Fovea refuses by name (a construct that it does not support) is listed as refused; any other
difference is an error. Needs the PyPI package jinja2.

    python3 tools/compare_templates.py --fovea build/bin/fovea DIR
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timezone

from make_template_goldens import make_environment

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function("get_weather", "The weather of a city.", {
    "city": {"type": "string", "description": "The city, e.g. \"Zürich\""},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, ["city"])
BOOK = function("book", "Books a table <now> & here.", {
    "people": {"type": "integer", "minimum": 1, "maximum": 20},
    "when": {"type": "object", "properties": {"date": {"type": "string"}, "time": {"type": ["string", "null"]}}},
    "tags": {"type": "array", "items": {"type": "string"}},
    "price": {"type": "number", "default": 12.5},
    "terrace": {"type": "boolean"}}, ["people", "when"])
NOTHING = function("ping", "Answers.", {}, [])

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
HELLO = {"role": "user", "content": "Hello, who are you?"}
ANSWER = {"role": "assistant", "content": "I am an assistant."}
THANKS = {"role": "user", "content": "Thanks! And what is 2 + 2?"}
FOUR = {"role": "assistant", "content": "It is 4."}


def call(name, arguments, key="1"):
    return {"id": f"call_{key:0>5}", "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made, content=""):
    return {"role": "assistant", "content": content, "tool_calls": list(made)}


def result(content, name="get_weather", key="1"):
    return {"role": "tool", "name": name, "tool_call_id": f"call_{key:0>5}", "content": content}


def parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


ASK = {"role": "user", "content": "What is the weather in Bern?"}
BERN = call("get_weather", {"city": "Bern"})
THINK = {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nIt is 4."}
REASONED = {"role": "assistant", "content": "It is 4.", "reasoning_content": "Two and two."}
DOCUMENTS = [{"title": "A", "text": "First text."}, {"title": "B", "text": "Second \"text\"."}]
TURNS = [SYSTEM, HELLO, ANSWER, THANKS, FOUR, {"role": "user", "content": "Bye."}]
TOOL_TURN = [ASK, calls(BERN), result('{"degrees": 21.5}')]


def chat(messages, *, prompt=True, tools=None, documents=None, **kwargs):
    return {"messages": messages, "tools": tools, "documents": documents, "add_generation_prompt": prompt,
            "chat_template_kwargs": kwargs}


def conversations():
    """The 30 conversations, by name."""
    many = [WEATHER, BOOK, NOTHING]
    book = call("book", {"people": 4, "when": {"date": "2025-01-02", "time": None}, "tags": ["a", "ü"], "price": 1e-7,
                         "terrace": True}, "2")
    return {
        "user": chat([HELLO]),
        "user without prompt": chat([HELLO], prompt=False),
        "system": chat([SYSTEM, HELLO]),
        "two turns": chat([HELLO, ANSWER, THANKS]),
        "three turns with system": chat(TURNS),
        "ends with the assistant": chat([SYSTEM, HELLO, ANSWER], prompt=False),
        "unicode": chat([{"role": "user", "content": "日本語 é 😀 \"quotes\" <tags> & 'more'\n\n"}]),
        "spaces": chat([{"role": "system", "content": "  s \n"}, {"role": "user", "content": " \t x\n"}]),
        "empty": chat([{"role": "user", "content": ""}]),
        "no messages": chat([]),
        "two users": chat([HELLO, THANKS]),
        "assistant first": chat([ANSWER, HELLO]),
        "late system": chat([HELLO, SYSTEM, THANKS]),
        "developer": chat([{"role": "developer", "content": "Be short."}, HELLO]),
        "content parts": chat([{"role": "user", "content": parts("One.", "Two.")}]),
        "content parts, all": chat([{"role": "system", "content": parts("S.")}, {"role": "user", "content": parts("U.")},
                                    {"role": "assistant", "content": parts("A.")}, {"role": "user", "content": parts("V.")}]),
        "tools": chat([HELLO], tools=[WEATHER]),
        "many tools with system": chat([SYSTEM, HELLO], tools=many),
        "tool call": chat([ASK, calls(BERN)], tools=[WEATHER], prompt=False),
        "tool result": chat(TOOL_TURN, tools=[WEATHER]),
        "tool result, system": chat([SYSTEM, *TOOL_TURN], tools=many),
        "tool answer and more": chat([*TOOL_TURN, {"role": "assistant", "content": "21.5 degrees."}, THANKS], tools=many),
        "two calls": chat([ASK, calls(BERN, book, content="Both."), result("21"), result("ok", "book", "2")], tools=many),
        "no arguments": chat([ASK, calls(call("ping", {})), result("pong", "ping")], tools=[NOTHING]),
        "content is null": chat([ASK, calls(BERN, content=None), result("21")], tools=[WEATHER]),
        "documents": chat([HELLO], documents=DOCUMENTS),
        "thinking on": chat([SYSTEM, HELLO], enable_thinking=True),
        "thinking off": chat([SYSTEM, HELLO], enable_thinking=False),
        "thinking in the past": chat([HELLO, THINK, THANKS]),
        "reasoning and tools": chat([HELLO, REASONED, ASK, calls(BERN), result("21")], tools=[WEATHER], enable_thinking=True),
    }


def context_of(chat_input):
    """What the template sees, as Fovea and the engines around transformers build it."""
    messages = []
    for message in chat_input["messages"]:
        reasoning = next((message[n] for n in ("reasoning_content", "thinking", "reasoning") if message.get(n)), None)
        messages.append(message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning})
    rest = {name: chat_input[name] for name in ("tools", "documents", "add_generation_prompt")}
    return {**TOKENS, **chat_input["chat_template_kwargs"], "messages": messages, **rest}


def by_jinja2(env, source, contexts):
    """The prompt of every context; None where it fails."""
    try:
        template = env.from_string(source)
    except Exception:  # whatever Python raises: the template fails
        return [None] * len(contexts)
    prompts = []
    for context in contexts:
        try:
            prompts.append(template.render(**context))
        except Exception:
            prompts.append(None)
    return prompts


def by_fovea(fovea, model, chat_input):
    """The prompt and no error, or None and the error."""
    (model / "chat.json").write_text(json.dumps(chat_input))
    command = [fovea, "inspect", "--model", model, "--render", model / "chat.json", "--json"]
    r = subprocess.run(command, capture_output=True, text=True)
    if r.returncode not in (0, 2):
        sys.exit(f"fovea ended with {r.returncode}: {r.stderr}")
    return (json.loads(r.stdout)["prompt"], "") if r.returncode == 0 else (None, r.stderr.strip())


def compare(env, args, model, path, chats):
    """(equal renders, differences, refusals) of one template."""
    with open(path, newline="") as file:
        source = file.read()
    (model / "chat_template.jinja").write_bytes(source.encode())
    equal, differences, refusals = 0, [], []
    for (name, chat_input), wanted in zip(chats.items(), by_jinja2(env, source, [context_of(c) for c in chats.values()])):
        prompt, error = by_fovea(args.fovea, model, chat_input)
        if prompt != wanted and "strftime_now" in source:  # the clock ticked between the two
            wanted = by_jinja2(env, source, [context_of(chat_input)])[0]
            prompt, error = by_fovea(args.fovea, model, chat_input)
        if prompt == wanted:
            equal += 1
        elif "not supported" in error:
            refusals.append(error)
        else:
            differences.append(f"{name}: {error or 'another prompt'}")
    return equal, differences, refusals


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--fovea", type=pathlib.Path, default=ROOT / "build/release/bin/fovea")
    args = parser.parse_args()
    env, chats = make_environment(), conversations()
    env.globals["strftime_now"] = lambda form: datetime.now(timezone.utc).strftime(form)
    paths = sorted(args.folder.rglob("*.jinja"))
    renders, refused, different = 0, [], []
    with tempfile.TemporaryDirectory() as temporary:
        model = pathlib.Path(temporary)
        shutil.copy(ROOT / "models/tiny-gqa/tokenizer.json", model)
        (model / "special_tokens_map.json").write_text(json.dumps(TOKENS))
        for path in paths:
            equal, differences, refusals = compare(env, args, model, path, chats)
            renders += equal
            refused += [f"{path.relative_to(args.folder)}: {refusals[0]}"] if refusals else []
            different += [f"{path.relative_to(args.folder)}: {text}" for text in differences]
            if not refusals and not differences:
                print(f"equal      {path.relative_to(args.folder)}")
    for text in refused:
        print(f"refused    {text}")
    for text in different:
        print(f"DIFFERENT  {text}")
    print(f"{len(paths)} templates x {len(chats)} conversations: {renders} renders equal, {len(refused)} templates refused "
          f"by name, {len(different)} renders differ")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
