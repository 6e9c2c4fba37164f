"""LangChain's ChatOpenAI."""
import asyncio
import importlib.metadata
from typing import Literal

import openai
import pydantic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def look(door: Literal["front", "back"]) -> str:
    """Look at a door."""
    return f"The code of the {door} door is 4711."


class Verdict(pydantic.BaseModel):
    """What is known of a door."""
    known: bool
    door: Literal["front", "back"]


MESSAGES = [SystemMessage("Answer briefly."), HumanMessage("What is the code of the door?")]


def converse(base_url, step):
    def model(**options):
        return ChatOpenAI(**{"base_url": base_url, "api_key": "none", "model": "tiny-gqa", "temperature": 0, "max_tokens": 12,
                             "max_retries": 0, **options})

    with step("chat"):
        whole = model().invoke(MESSAGES)
        assert whole.content and whole.usage_metadata["total_tokens"] > whole.usage_metadata["output_tokens"] > 0
    with step("stream"):
        chunks = list(model(stream_usage=True).stream(MESSAGES))
        assert "".join(c.content for c in chunks) == whole.content
        assert [c.usage_metadata for c in chunks if c.usage_metadata][-1]["output_tokens"] == whole.usage_metadata["output_tokens"]
    with step("asynchronous"):
        assert asyncio.run(model().ainvoke(MESSAGES)).content == whole.content
    with step("n"):
        assert len(model(n=2, temperature=1, seed=3).generate([MESSAGES]).generations[0]) == 2
    with step("logprobs"):
        told = model(logprobs=True, top_logprobs=2, max_tokens=4).invoke(MESSAGES).response_metadata["logprobs"]["content"]
        assert len(told) == 4 and len(told[0]["top_logprobs"]) == 2
    with step("a tool"):
        called = model(max_tokens=512).bind_tools([look], tool_choice="look").invoke(MESSAGES)
        call = called.tool_calls[0]
        assert call["name"] == "look" and call["args"]["door"] in ("front", "back"), called
    with step("a tool's result"):
        history = [*MESSAGES, called, ToolMessage(look.invoke(call["args"]), tool_call_id=call["id"])]
        assert model().bind_tools([look]).invoke(history).content
    with step("a tool, streamed"):
        total = None
        for chunk in model(max_tokens=512).bind_tools([look], tool_choice="any").stream(MESSAGES):
            total = chunk if total is None else total + chunk
        assert total.tool_calls[0]["args"] == call["args"], total
    for method in "json_schema", "function_calling":
        with step(method):
            verdict = model(max_tokens=512).with_structured_output(Verdict, method=method).invoke(MESSAGES)
            assert verdict.door in ("front", "back"), verdict
    with step("an error", status=400):
        try:
            model(temperature=5).invoke(MESSAGES)
            raise AssertionError("a temperature of 5 was accepted")
        except openai.BadRequestError as error:
            assert error.param == "temperature"
    with step("leaves", leaves=True):
        stream = model(max_tokens=100000, extra_body={"ignore_eos": True}).stream(MESSAGES)
        next(stream)
        stream.close()
    with step("chat again"):
        assert model().invoke(MESSAGES).content == whole.content
    return "langchain-openai " + importlib.metadata.version("langchain-openai")
