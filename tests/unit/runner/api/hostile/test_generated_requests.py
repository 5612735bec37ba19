"""No request ends, blocks or misleads a group: requests that crashed stock servers, and requests from Hypothesis.

They are sent a few at a time. In the same batch and afterwards, the fixed prompt must be answered as by a single process.
``HYPOTHESIS_PROFILE=fuzz`` tries many more.
"""

import asyncio
import json
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thunderfleet_localcluster.models import tinymodel

from tests.support.generated import FUZZ, examples

MODEL = "thunderfleet/tiny"
AT_ONCE = 6
EXAMPLES = (examples(10) if FUZZ else 51) // AT_ONCE
ANSWER_SECONDS = 60.0
"""Time limit of an answer."""
ENDS = ("data: [DONE]\n\n", "event: message_stop", "event: response.completed", "event: response.incomplete",
        "can no longer follow the requested format")  # fmt: skip
"""What a stream ends with. A format may become too complex on the way."""
FIXED: dict[str, Any] = {
    "model": MODEL, "temperature": 0, "max_tokens": 12, "return_token_ids": True, "messages": list(tinymodel.MESSAGES),
}  # fmt: skip

_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 600) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
_TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": st.fixed_dictionaries({"name": st.text(max_size=5)})})
_GOOD = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 255),
    "min_p": st.floats(0, 1),
    "repetition_penalty": st.floats(0, 10),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_context_size": st.integers(1, 40),
    "logit_bias": st.dictionaries(st.integers(0, 255).map(str), st.floats(-100, 100), max_size=4),
    "stop": st.lists(st.text(min_size=1, max_size=3), max_size=3),
    "seed": st.integers(0, 9),
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "response_format": st.sampled_from(
        [
            {"type": "text"},
            {"type": "json_object"},
            {
                "type": "json_schema",
                "json_schema": {
                    "schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
                },
            },
        ]
    ),
    "guided_regex": st.sampled_from(["[ab]{1,3}", ".*", "(a|b)+c", "é+", "\\n{3}"]),
}
_PROMPTS = st.text("abc é\n", min_size=1, max_size=20) | st.lists(st.integers(0, 255), min_size=1, max_size=12)
_ROLES = st.sampled_from(["user", "assistant", "system", "tool"])
_CONTENTS = st.text(max_size=9) | st.sampled_from(["nothing", "raise"])
_MESSAGES = st.lists(st.fixed_dictionaries({"role": _ROLES, "content": _CONTENTS}), min_size=1, max_size=3)
_HEAD = {"model": st.just(MODEL), "max_tokens": st.integers(1, 12)}
_PLAUSIBLE = st.fixed_dictionaries({**_HEAD, "prompt": _PROMPTS}, optional={**_GOOD, "logprobs": st.integers(0, 20)}) | (
    st.fixed_dictionaries({**_HEAD, "messages": _MESSAGES}, optional={**_GOOD, "logprobs": st.booleans()})
)
_BLOCKS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "thinking", "tool_use", "tool_result", "image"])},
        optional={name: st.text(max_size=5) | _ANY for name in ("text", "thinking", "name", "tool_use_id", "content", "input")},
    ),
    max_size=3,
)
_TURN = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": _CONTENTS | _BLOCKS})
_TURNS = st.lists(_TURN, min_size=1, max_size=3)
_FEW = st.integers(1, 12)
_ITEMS = st.lists(
    st.fixed_dictionaries(
        {"type": st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "x"])},
        optional={name: _CONTENTS | _ANY for name in ("role", "content", "summary", "name", "arguments", "call_id", "output")},
    ),
    max_size=3,
)
_CUSTOM = st.fixed_dictionaries(
    {"name": st.text(max_size=5)}, optional={"input_schema": _ANY, "type": st.text(max_size=6) | _ANY}
)
_OTHER = (
    st.fixed_dictionaries(
        {"path": st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]), "messages": _TURNS, "max_tokens": _FEW},
        optional={
            "system": _CONTENTS | _ANY, "stream": st.booleans(), "thinking": _ANY, "tool_choice": _ANY,
            "top_k": st.integers(-2, 300), "top_p": st.floats(-1, 2), "temperature": st.floats(0, 3),
            "stop_sequences": st.lists(st.text(max_size=2), max_size=3), "tools": st.lists(_CUSTOM, max_size=2),
            "output_config": _ANY,
        },
    )
    | st.fixed_dictionaries(
        {"path": st.just("/v1/responses"), "input": _CONTENTS | _TURNS | _ITEMS | _ANY, "max_output_tokens": _FEW},
        optional={
            "instructions": _CONTENTS, "stream": st.booleans(), "text": _ANY, "reasoning": _ANY, "tools": _ANY,
            "temperature": st.floats(0, 3), "top_p": st.floats(-1, 2), "tool_choice": _ANY, "metadata": _ANY,
        },
    )
    | st.fixed_dictionaries(
        {"path": st.sampled_from(["/tokenize", "/detokenize"])},
        optional={"prompt": st.text(max_size=9), "messages": _MESSAGES, "tokens": st.lists(st.integers(-1, 300), max_size=9)},
    )
    | st.fixed_dictionaries({"path": st.just("/v1/embeddings"), "input": _PROMPTS | _ANY}, optional={"dimensions": _ANY})
)  # fmt: skip
_ODD = (
    "xtc_threshold", "adapters", "role_mapping", "top_logprobs", "draft_model", "logprobs", "stream_options", "n", "echo",
    "tool_choice", "guided_json", "guided_grammar", "guided_choice", "chat_template_kwargs", "reasoning_effort",
)  # fmt: skip
_WILD = st.fixed_dictionaries(
    {**_HEAD, "prompt": _PROMPTS | _ANY}, optional={name: _GOOD.get(name, _ANY) | _ANY for name in (*_GOOD, *_ODD)}
) | st.fixed_dictionaries(
    {"model": st.just(MODEL), "messages": _MESSAGES | _ANY},
    optional={"tools": st.lists(_TOOL | _ANY, max_size=2), **{name: _GOOD.get(name, _ANY) | _ANY for name in (*_GOOD, *_ODD)}},
)

_FORCED = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"enum": [1]}}}}}
_TEXT = {"model": MODEL, "prompt": "Hello", "max_tokens": 4}
_CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
_IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x/"}}
_MESSAGE = {"path": "/v1/messages", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
_RESPONSE = {"path": "/v1/responses", "input": "hi", "max_output_tokens": 4}
KNOWN: tuple[tuple[dict[str, Any], int], ...] = (
    (_TEXT | {"prompt": ""}, 400),
    (_TEXT | {"prompt": ["a", "b"]}, 400),
    (_TEXT | {"prompt": [[1], [2]]}, 400),
    (_TEXT | {"prompt": [0]}, 200),
    (_TEXT | {"prompt": [256]}, 400),
    (_TEXT | {"prompt": "é"}, 400),
    (_TEXT | {"stop": 5}, 400),
    (_TEXT | {"stop": [""]}, 400),
    (_TEXT | {"logit_bias": {"5000": 1}}, 400),
    (_TEXT | {"logit_bias": {"255": 100}}, 200),
    (_TEXT | {"top_k": 256, "temperature": 1}, 400),
    (_TEXT | {"top_k": 255, "temperature": 1}, 200),
    (_TEXT | {"top_p": 0, "temperature": 1}, 200),
    (_TEXT | {"min_p": 1, "temperature": 1}, 200),
    (_TEXT | {"xtc_threshold": 0.6, "temperature": 1}, 400),
    (_TEXT | {"temperature": 1e-300}, 200),
    (_TEXT | {"repetition_penalty": 1e-300}, 200),
    (_TEXT | {"logprobs": 20}, 200),
    (_TEXT | {"logprobs": 256}, 400),
    (_TEXT | {"seed": 7, "stream": True}, 200),
    (_TEXT | {"adapters": "/etc"}, 400),
    (_TEXT | {"draft_model": "other/model"}, 400),
    (_TEXT | {"model": "other/model"}, 404),
    (_TEXT | {"prompt": [9] * 500, "max_tokens": 1 << 40}, 200),
    (_CHAT | {"messages": [{"role": "user", "content": "nothing"}]}, 400),
    (_CHAT | {"messages": [{"role": "user", "content": "raise"}]}, 400),
    (_CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]}, 400),
    (_CHAT | {"messages": [{"role": "user", "content": "x" * 4000}]}, 400),
    (_CHAT | {"role_mapping": {"user": ""}}, 400),
    (_CHAT | {"chat_template_kwargs": {"x": 1}}, 200),
    (_CHAT | {"chat_template_kwargs": {"messages": []}}, 400),
    (_CHAT | {"chat_template_kwargs": {"raise_exception": 1}}, 400),
    (_CHAT | {"tools": [{"type": "function", "function": {"name": "f"}}]}, 200),
    (_CHAT | {"n": 3, "seed": 1 << 62, "temperature": 1}, 200),
    (_TEXT | {"n": 1000}, 400),
    (_TEXT | {"guided_regex": "(a{1,1000}){1,1000}"}, 200),
    (_TEXT | {"guided_regex": "("}, 400),
    (_TEXT | {"guided_grammar": 'start: start start | "a"'}, 200),
    (_TEXT | {"guided_json": {"$ref": "#"}}, 400),
    (_CHAT | {"tools": [_FORCED], "tool_choice": "required"}, 200),
    (_CHAT | {"tools": [_FORCED], "tool_choice": "required", "n": 2, "temperature": 2, "stream": True}, 200),
    (_MESSAGE | {"messages": [{"role": "user", "content": ""}]}, 200),
    (_MESSAGE | {"messages": []}, 400),
    (_MESSAGE | {"messages": [{"role": "user", "content": "nothing"}]}, 400),
    (_MESSAGE | {"messages": [{"role": "user", "content": "raise"}]}, 400),
    (_MESSAGE | {"messages": [{"role": "user", "content": [_IMAGE]}]}, 400),
    (_MESSAGE | {"stop_sequences": 5}, 400),
    (_MESSAGE | {"stop_sequences": [""]}, 400),
    (_MESSAGE | {"top_k": 256, "temperature": 1}, 400),
    (_MESSAGE | {"top_k": 255, "temperature": 1, "top_p": 1e-300}, 200),
    (_MESSAGE | {"temperature": 1e-300, "stream": True}, 200),
    (_MESSAGE | {"logit_bias": {"5000": 1}}, 400),
    (_MESSAGE | {"max_tokens": 1 << 40, "stop_sequences": ["a", "e", "i", "o"]}, 200),
    (_MESSAGE | {"adapters": "/etc"}, 400),
    (_MESSAGE | {"tools": [{"name": "*"}], "tool_choice": {"type": "any"}}, 200),
    (_RESPONSE | {"input": ""}, 400),
    (_RESPONSE | {"input": []}, 400),
    (_RESPONSE | {"input": "nothing"}, 400),
    (_RESPONSE | {"input": "x" * 4000}, 400),
    (_RESPONSE | {"input": [{"type": "item_reference", "id": "x"}]}, 400),
    (_RESPONSE | {"top_k": 256, "temperature": 1}, 400),
    (_RESPONSE | {"temperature": 1e-300, "top_p": 0, "stream": True}, 200),
    (_RESPONSE | {"xtc_threshold": 0.6}, 400),
    (_RESPONSE | {"text": {"format": {"type": "json_schema", "schema": {"$ref": "#"}, "name": "x"}}}, 400),
    (_RESPONSE | {"previous_response_id": "resp_1"}, 400),
    ({"path": "/tokenize", "prompt": "x" * 4000}, 400),
    ({"path": "/detokenize", "tokens": [256]}, 400),
    ({"path": "/detokenize", "tokens": [-1]}, 400),
    ({"path": "/v1/embeddings", "input": ""}, 404),
    ({"path": "/v1/embeddings", "input": [[256]]}, 404),
)  # fmt: skip


@pytest.fixture
def odd(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with a template that renders nothing of one chat and refuses another."""
    folder = tmp_path / "odd"
    shutil.copytree(tiny, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    config["chat_template"] = (
        "{% if messages[0]['content'] == 'raise' %}{{ raise_exception('no such chat') }}{% endif %}"
        "{% if messages[0]['content'] != 'nothing' %}" + config["chat_template"] + "{% endif %}"
    )
    path.write_text(json.dumps(config))
    return folder


class Asker:
    """A client that sends arbitrary requests, and the fixed prompt beside and after them."""

    def __init__(self, client: aiohttp.ClientSession, right: list[int]) -> None:
        self._client = client
        self._right = right
        self.statuses: dict[int, int] = {}

    async def send(self, body: dict[str, Any], *, leaves: bool = False) -> int:
        """The status of the response; ``leaves``: the client disconnects after the first line."""
        path = body.get("path") or ("/v1/chat/completions" if "messages" in body else "/v1/completions")
        body = {name: value for name, value in body.items() if name != "path"}
        async with asyncio.timeout(ANSWER_SECONDS), self._client.post(path, data=json.dumps(body)) as response:
            if leaves:
                await response.content.readline()
                response.close()
            elif response.content_type == "text/event-stream":
                text = await response.text()
                assert any(end in text[-4000:] for end in ENDS), text[-4000:]
            else:
                answer = await response.json()
                assert response.status == 200 or answer["error"]["message"]
            return response.status

    async def fixed(self, **more: object) -> None:
        body = {**FIXED, **more}
        async with asyncio.timeout(ANSWER_SECONDS), self._client.post("/v1/chat/completions", json=body) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["choices"][0]["token_ids"] == self._right

    async def __call__(self, *bodies: dict[str, Any], leaves: Collection[int] = ()) -> list[int]:
        """Their statuses; the client disconnects from those whose index is in ``leaves``."""
        sent = [self.send(body, leaves=place in leaves) for place, body in enumerate(bodies)]
        try:
            beside = asyncio.ensure_future(self.fixed())
            statuses, _ = await asyncio.gather(asyncio.gather(*sent), beside)
            await self.fixed()
        except Exception:
            # The first failing request is the cause; while the group restarts, everything that Hypothesis tries fails.
            print("asked:", json.dumps(bodies), "of these left:", sorted(leaves))
            raise
        for status in statuses:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        return statuses


def _expected(body: dict[str, Any], status: int) -> bool:
    """The test model cannot compute embeddings; nothing else is missing."""
    return status in ((400, 404) if body.get("path") == "/v1/embeddings" else (200, 400))


@pytest.mark.hypothesis
async def test_no_request_ends_wedges_or_misleads_a_group(served: Callable[..., Any], odd: Path, yardstick: list[int]) -> None:
    async with served(odd, 2, "Tensor") as (group, client):
        pids = [supervisor.member.pid for supervisor, _ in group.running.values()]
        ask = Asker(client, yardstick[: FIXED["max_tokens"]])
        for first in range(0, len(KNOWN), AT_ONCE):
            known = KNOWN[first : first + AT_ONCE]
            assert await ask(*(body for body, _ in known)) == [status for _, status in known], known
        assert await ask(_TEXT | {"seed": 7, "stream": True, "max_tokens": 400}, leaves={0}) == [200]
        # A temperature below the smallest float32: still only the likeliest token.
        for little in (5e-324, 1e-46, 1e-7):
            await ask.fixed(temperature=1, top_p=little)

        loop = asyncio.get_running_loop()

        @settings(
            max_examples=EXAMPLES, database=None, deadline=None, derandomize=EXAMPLES < 100,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(
            bodies=st.tuples(*[_PLAUSIBLE] * (AT_ONCE // 2), *[_PLAUSIBLE | _WILD | _OTHER] * (AT_ONCE // 2)),
            leaves=st.sets(st.integers(0, AT_ONCE - 1)),
        )
        def explore(bodies: tuple[dict[str, Any], ...], leaves: set[int]) -> None:
            # Half are plausible: Hypothesis draws from constants of all imported modules, which depend on the tests before.
            statuses = asyncio.run_coroutine_threadsafe(ask(*bodies, leaves=leaves), loop).result(2 * ANSWER_SECONDS + 10)
            assert all(_expected(body, status) for body, status in zip(bodies, statuses, strict=True)), statuses

        ask.statuses.clear()
        # Hypothesis is synchronous, so it runs in a thread; the group runs in this one.
        await asyncio.to_thread(explore)
        assert ask.statuses[200] > AT_ONCE * EXAMPLES // 4 and ask.statuses[400] > 0, ask.statuses
        service = group.running[0][0].service
        await group.until(lambda: service.running == 0, "nothing runs any more")
        assert [supervisor.member.pid for supervisor, _ in group.running.values()] == pids
        assert group.running[0][0].state.recoveries == 0
