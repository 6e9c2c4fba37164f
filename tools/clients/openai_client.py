"""OpenAI's own package, as its users call it."""
from typing import Literal

import openai
import pydantic

MESSAGES = [{"role": "user", "content": "What is the code of the door?"}]
TOOLS = [{"type": "function", "function": {
    "name": "look", "description": "Look at a door",
    "parameters": {"type": "object", "properties": {"door": {"type": "string", "enum": ["front", "back"]}}, "required": ["door"],
                   "additionalProperties": False}}}]


class Verdict(pydantic.BaseModel):
    known: bool
    door: Literal["front", "back"]


def refused(kind, param, call):
    try:
        call()
    except kind as error:
        assert error.param == param, error
    else:
        raise AssertionError(f"{param} was accepted")


def converse(base_url, step):
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    with step("models"):
        model = client.models.list().data[0].id

    def ask(**body):
        return client.chat.completions.create(**{"model": model, "messages": MESSAGES, "max_tokens": 12, **body})

    with step("chat"):
        whole = ask()
        text = whole.choices[0].message.content
        assert text and whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
        assert whole.usage.prompt_tokens_details.cached_tokens >= 0
    with step("stream"):
        chunks = list(ask(stream=True, stream_options={"include_usage": True}))
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    with step("stream helper"):
        with client.chat.completions.stream(model=model, messages=MESSAGES, max_tokens=12) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.content == text
    with step("n"):
        two = ask(n=2, temperature=1.0, seed=3)
        assert [c.index for c in two.choices] == [0, 1]
    with step("logprobs"):
        told = ask(max_tokens=4, logprobs=True, top_logprobs=2)
        assert len(told.choices[0].logprobs.content) == told.usage.completion_tokens
        assert len(told.choices[0].logprobs.content[0].top_logprobs) == 2
    with step("tools"):
        assert ask(tools=TOOLS).choices[0].finish_reason in ("stop", "length", "tool_calls")
    with step("a tool"):
        one = ask(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "look"}}, max_tokens=512).choices[0]
        assert one.finish_reason == "tool_calls" and one.message.content is None, one
        call = one.message.tool_calls[0]
        assert call.function.name == "look"
        pydantic.TypeAdapter(dict[Literal["door"], Literal["front", "back"]]).validate_json(call.function.arguments)
    with step("a tool's result"):
        result = {"role": "tool", "tool_call_id": call.id, "content": "It is 4711."}
        assert ask(messages=[*MESSAGES, one.message.model_dump(exclude_none=True), result], tools=TOOLS).choices[0].message.content
    with step("a tool, streamed"):
        with client.chat.completions.stream(model=model, messages=MESSAGES, max_tokens=512, tools=TOOLS, tool_choice="required") as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == call.function.arguments
    with step("json_schema"):
        parsed = client.chat.completions.parse(model=model, messages=MESSAGES, max_tokens=512, response_format=Verdict)
        assert parsed.choices[0].message.parsed.door in ("front", "back")
    with step("json_schema, streamed"):
        with client.chat.completions.stream(model=model, messages=MESSAGES, max_tokens=512, response_format=Verdict) as stream:
            for _ in stream:
                pass
            assert stream.get_final_completion().choices[0].message.parsed == parsed.choices[0].message.parsed
    with step("names of vLLM and ours"):
        extra = ask(max_tokens=4, extra_body={"top_k": 1, "ignore_eos": True, "fovea": {"decode_method": "dense"}})
        assert extra.fovea["decode_method"] == "dense" and extra.usage.completion_tokens == 4
    with step("completions"):
        line = client.completions.create(model=model, prompt=["The river", "A door"], max_tokens=4, logprobs=1, echo=True)
        assert line.choices[0].text.startswith("The river") and line.choices[1].text.startswith("A door")
        assert "".join(line.choices[0].logprobs.tokens) == line.choices[0].text
    with step("completions, streamed"):
        pieces = list(client.completions.create(model=model, prompt="The river", max_tokens=4, stream=True))
        assert line.choices[0].text == "The river" + "".join(p.choices[0].text for p in pieces)
    with step("an error: temperature", status=400):
        refused(openai.BadRequestError, "temperature", lambda: ask(temperature=5))
    with step("an error: n", status=400):
        refused(openai.BadRequestError, "n", lambda: ask(n=0))
    with step("an error: model", status=404):
        refused(openai.NotFoundError, "model", lambda: ask(model="another"))
    with step("leaves", leaves=True):
        gone = ask(max_tokens=100000, stream=True, extra_body={"ignore_eos": True})
        next(iter(gone))
        gone.close()
    with step("chat again"):
        assert ask().choices[0].message.content == text
    return f"openai {openai.__version__}"
