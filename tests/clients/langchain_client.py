"""LangChain's models for OpenAI's and Anthropic's APIs."""

import sys
from typing import Any

from checks import CITY, MODEL, WEATHER, run
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

URL, KEY = sys.argv[1:]
ROOT = URL.removesuffix("/v1")
SCHEMA = {"title": "Place", "description": "A place", **CITY}


def openai(**more: Any) -> Any:
    return ChatOpenAI(base_url=URL, api_key=KEY, model=MODEL, max_tokens=40, max_retries=0, **more)


def anthropic(**more: Any) -> Any:
    return ChatAnthropic(base_url=ROOT, api_key=KEY, model=MODEL, max_tokens=40, max_retries=0, **more)


def called(message: Any) -> bool:
    (call,) = message.tool_calls
    return bool(call["name"] == "weather" and call["args"]["city"] in ("Oslo", "Rome"))


def checks(name: str, make: Any, any_tool: str) -> dict[str, Any]:
    return {
        f"{name}: chat": lambda: make().invoke("hi").content,
        f"{name}: stream": lambda: sum(bool(chunk.content) for chunk in make().stream("hi")) > 3,
        f"{name}: tools": lambda: called(make().bind_tools([WEATHER]).invoke("hi")),
        f"{name}: forced tools": lambda: called(make().bind_tools([WEATHER], tool_choice=any_tool).invoke("hi")),
        f"{name}: usage": lambda: make().invoke("hi").usage_metadata["output_tokens"] > 0,
    }


run(
    {
        **checks("openai", openai, "required"),
        "openai: schema": lambda: openai().with_structured_output(SCHEMA, method="json_schema").invoke("hi")["city"],
        "openai: function calling": lambda: (
            openai().with_structured_output(SCHEMA, method="function_calling").invoke("hi")["city"]
        ),
        "openai: responses": lambda: openai(use_responses_api=True).invoke("hi").content,
        "openai: responses, tools": lambda: called(openai(use_responses_api=True).bind_tools([WEATHER]).invoke("hi")),
        "openai: responses, stream": lambda: (
            sum(bool(part.content) for part in openai(use_responses_api=True).stream("hi")) > 3
        ),
        **checks("anthropic", anthropic, "any"),
        "anthropic: schema": lambda: anthropic().with_structured_output(SCHEMA).invoke("hi")["city"],
    }
)
