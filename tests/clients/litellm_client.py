"""LiteLLM as a client."""

import sys
from typing import Any

from checks import CITY, MODEL, WEATHER, run

URL, KEY = sys.argv[1:]
ASK = [{"role": "user", "content": "hi"}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY, "strict": True}}


def library() -> Any:
    # Its price list would come from the network.
    import os

    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    litellm.telemetry = False
    return litellm


LITELLM = library()


def asked(provider: str, **more: Any) -> Any:
    base = URL.removesuffix("/v1") if provider == "anthropic" else URL
    return LITELLM.completion(
        model=f"{provider}/{MODEL}", api_base=base, api_key=KEY, messages=ASK, max_tokens=40, num_retries=0, **more
    )


def text(answer: Any) -> Any:
    return answer.choices[0].message.content


def called(answer: Any) -> bool:
    (call,) = answer.choices[0].message.tool_calls
    return bool(call.function.name == "weather" and '"city"' in call.function.arguments)


def streamed(answer: Any) -> bool:
    return sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in answer) > 3


def checks(provider: str) -> dict[str, Any]:
    return {
        f"{provider}: chat": lambda: text(asked(provider)),
        f"{provider}: stream": lambda: streamed(asked(provider, stream=True)),
        f"{provider}: tools": lambda: called(asked(provider, tools=[WEATHER])),
        f"{provider}: forced tools": lambda: called(asked(provider, tools=[WEATHER], tool_choice="required")),
        f"{provider}: usage": lambda: asked(provider).usage.completion_tokens > 0,
    }


run(
    {
        **checks("openai"),
        **checks("hosted_vllm"),
        **checks("anthropic"),
        "openai: schema": lambda: "city" in text(asked("openai", response_format=FORMAT)),
        "hosted_vllm: schema": lambda: "city" in text(asked("hosted_vllm", response_format=FORMAT)),
        "openai: text": lambda: LITELLM.text_completion(
            model=f"text-completion-openai/{MODEL}", api_base=URL, api_key=KEY, prompt="hi ", max_tokens=9
        ).choices[0].text,
        "openai: responses": lambda: LITELLM.responses(
            model=f"openai/{MODEL}", api_base=URL, api_key=KEY, input="hi", max_output_tokens=9
        ).output,
    }
)  # fmt: skip
