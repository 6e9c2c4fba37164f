"""LlamaIndex's client of servers like OpenAI's."""
import asyncio
import importlib.metadata
from typing import Literal

import openai
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def look(door: Literal["front", "back"]) -> str:
    """Look at a door."""
    return f"The code of the {door} door is 4711."


class Verdict(pydantic.BaseModel):
    """What is known of a door."""
    known: bool
    door: Literal["front", "back"]


QUESTION = "What is the code of the door?"
MESSAGES = [ChatMessage(role="system", content="Answer briefly."), ChatMessage(role="user", content=QUESTION)]


def converse(base_url, step):
    def model(**options):
        return OpenAILike(**{"api_base": base_url, "api_key": "none", "model": "tiny-gqa", "temperature": 0, "max_tokens": 12,
                             "max_retries": 0, "is_chat_model": True, "is_function_calling_model": True, "context_window": 32768,
                             **options})

    with step("chat"):
        whole = model().chat(MESSAGES)
        assert whole.message.content
    with step("stream"):
        assert "".join(r.delta for r in model().stream_chat(MESSAGES)) == whole.message.content
    with step("asynchronous"):
        assert asyncio.run(model().achat(MESSAGES)).message.content == whole.message.content
    with step("completions"):
        line = model(is_chat_model=False).complete("The river").text
        assert line
    with step("completions, streamed"):
        assert "".join(r.delta for r in model(is_chat_model=False).stream_complete("The river")) == line
    with step("n"):
        assert len(model(temperature=1, additional_kwargs={"n": 2, "seed": 3}).chat(MESSAGES).raw.choices) == 2
    with step("logprobs"):
        told = model(max_tokens=4, logprobs=True, top_logprobs=2).chat(MESSAGES)
        assert len(told.logprobs) == 4 and len(told.logprobs[0]) == 2, told.logprobs
    with step("a tool"):
        llm, tool = model(max_tokens=512), FunctionTool.from_defaults(look)
        called = llm.chat_with_tools([tool], chat_history=MESSAGES, tool_required=True)
        call = llm.get_tool_calls_from_response(called)[0]
        assert call.tool_name == "look" and call.tool_kwargs["door"] in ("front", "back"), called
    with step("a tool's result"):
        result = ChatMessage(role="tool", content=look(**call.tool_kwargs), additional_kwargs={"tool_call_id": call.tool_id})
        assert model().chat([*MESSAGES, called.message, result]).message.content
    with step("json_schema"):
        verdict = model(max_tokens=512, should_use_structured_outputs=True).structured_predict(Verdict, PromptTemplate(QUESTION))
        assert verdict.door in ("front", "back"), verdict
    with step("an error", status=400):
        try:
            model(additional_kwargs={"top_p": 0}).chat(MESSAGES)
            raise AssertionError("a top_p of 0 was accepted")
        except openai.BadRequestError as error:
            assert error.param == "top_p"
    with step("leaves", leaves=True):
        stream = model(max_tokens=100000, additional_kwargs={"extra_body": {"ignore_eos": True}}).stream_chat(MESSAGES)
        next(stream)
        stream.close()
    with step("chat again"):
        assert model().chat(MESSAGES).message.content == whole.message.content
    return "llama-index-llms-openai-like " + importlib.metadata.version("llama-index-llms-openai-like")
