#!/usr/bin/env python3
"""Write tests/data/chat_template/goldens.json: templates, contexts and what jinja2 makes of them.

Needs the PyPI package jinja2 (3.1.6). The environment is the one the transformers package compiles chat templates in:
an immutable sandbox with trim_blocks and lstrip_blocks, loop controls, a plain tojson, raise_exception, strftime_now,
and the `generation` tag. All templates here are our own (template_cases/*.jinja and template_cases/features.json).

    python3 tools/make_template_goldens.py            # write the goldens
    python3 tools/make_template_goldens.py --check    # exit 1 when they differ
"""

import argparse
import json
import pathlib
import sys
from datetime import datetime, timezone

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

ROOT = pathlib.Path(__file__).resolve().parent.parent
CASES = ROOT / "tools" / "template_cases"
GOLDENS = ROOT / "tests" / "data" / "chat_template" / "goldens.json"
NOW = 1753957872  # 2025-07-31 10:31:12 UTC: a one-digit-free day, so that padding shows in hours and minutes only


class Generation(jinja2.ext.Extension):
    """{% generation %}: prints its body, as a call block does."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            TemplateNamespace.check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        TemplateNamespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"underscore-prefixed attribute {name!r}")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.fromtimestamp(NOW, timezone.utc).replace(tzinfo=None).strftime(format)


def make_environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    env.globals["dict"] = TemplateDict()
    env.globals["namespace"] = TemplateNamespace
    return env


def render(env, source, context):
    """What the template gives: {"output": text} or {"error": text}. A raise_exception keeps its message."""
    try:
        return {"output": env.from_string(source).render(**context)}
    except jinja2.exceptions.TemplateError as error:
        raised = type(error) is jinja2.exceptions.TemplateError
        return {"error": str(error) if raised else ""}
    except Exception:  # whatever Python raises: the template fails
        return {"error": ""}


def collect():
    """(name, source, contexts) of every case."""
    chats = json.loads((CASES / "chats.json").read_text())
    for path in sorted(CASES.glob("*.jinja")):
        yield path.stem, path.read_text(), list(chats.items())
    features = json.loads((CASES / "features.json").read_text())
    for i, row in enumerate(features["cases"]):
        yield f"feature{i}", row, [("features", features["context"])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    env = make_environment()
    contexts, templates = {}, []
    for name, source, chats in collect():
        results = []
        for chat, context in chats:
            contexts[chat] = context
            results.append({"context": chat, **render(env, source, context)})
        templates.append({"name": name, "source": source, "results": results})
    goldens = {"now": NOW, "contexts": contexts, "templates": templates}
    text = json.dumps(goldens, ensure_ascii=False, indent=0, sort_keys=False) + "\n"
    if args.check:
        sys.exit(0 if GOLDENS.read_text() == text else f"{GOLDENS} differs")
    GOLDENS.write_text(text)
    outputs = [r for t in templates for r in t["results"]]
    failed = sum("error" in r for r in outputs)
    print(f"{GOLDENS}: {len(templates)} templates, {len(outputs)} renders, {failed} of them errors, {len(text)} bytes")


if __name__ == "__main__":
    main()
