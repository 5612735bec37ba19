"""Answers of ``/v1/chat/completions`` and ``/v1/completions``, whole and streamed, from the tokens of a rank."""

import json
from typing import Any

import pytest
from thunderfleet_runner import protocol
from thunderfleet_runner.api import prepare
from thunderfleet_runner.api.answer.assembly import Assembly
from thunderfleet_runner.api.answer.parts import Text
from thunderfleet_runner.api.answer.writer import Head
from thunderfleet_runner.api.openai.chat_writer import ChatWriter
from thunderfleet_runner.api.request import call as calls
from thunderfleet_runner.intakeprotocol import Endpoint, ModelLimits, ToolsParsed

LIMITS = ModelLimits(model="org/m", vocabulary=256, context_tokens=100)
CHAT: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "org/m", "prompt": "hi"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


def parse(body: Any, endpoint: Endpoint = "chat") -> calls.Call:
    return prepare.parse(endpoint, json.dumps(body).encode(), LIMITS, protocol.Sampling())


class Written:
    """The events and the whole response to one request."""

    def __init__(self, body: dict[str, Any], endpoint: Endpoint = "chat") -> None:
        options = parse(body, endpoint).options(5)
        head = Head(options, "org/m", "id-1", 5)
        self._streamed, self._whole = ChatWriter(head), ChatWriter(head)
        self._assembly = Assembly(options, "id-1")
        self.chunks = [event.data for event in self._streamed.begin()]

    def put(self, event: protocol.Token, tools: ToolsParsed | None = None) -> None:
        if self._assembly.unparsed(event):
            self._add(self._assembly.parsed(tools or ToolsParsed()))
        self._add(self._assembly.ended(event))
        self._add(self._assembly.token(event))

    def end(self, done: protocol.Done, tools: ToolsParsed | None = None) -> dict[str, Any]:
        if self._assembly.unparsed(done):
            self._add(self._assembly.parsed(tools or ToolsParsed()))
        self._add(self._assembly.ended(done))
        parts, end = self._assembly.end(done)
        self._add(parts)
        self.chunks += [event.data for event in [*self._streamed.end(0, end), *self._streamed.finish()]]
        self._whole.close(0, end)
        whole: dict[str, Any] = json.loads(self._whole.whole())
        return whole

    def _add(self, parts: Any) -> None:
        for part in parts:
            self.chunks += [event.data for event in self._streamed.part(0, part)]
            self._whole.add(0, part)


def _token(token: int, text: str, **more: Any) -> protocol.Token:
    return protocol.Token(id="x", token=token, text=text, **more)


DONE = protocol.Done(id="x", finish_reason="stop", prompt_tokens=3, cached_tokens=1, generated_tokens=2)


def test_a_whole_answer() -> None:
    written = Written(CHAT | {"return_token_ids": True})
    for token in (_token(7, "th", kind="reasoning"), _token(8, "a"), _token(protocol.NO_TOKEN, "b")):
        written.put(token)
    answer = written.end(DONE)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "ab", "reasoning_content": "th"}
    assert choice["token_ids"] == [7, 8]
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "endpoint", "whole", "chunk"),
    [
        (CHAT, "chat", "chat.completion", "chat.completion.chunk"),
        (TEXT, "completion", "text_completion", "text_completion"),
    ],
)
def test_answers_and_chunks_say_what_they_are(body: dict[str, Any], endpoint: Endpoint, whole: str, chunk: str) -> None:
    written = Written(body, endpoint)
    written.put(_token(1, "a"))
    answer = written.end(DONE)
    assert {one["object"] for one in written.chunks} == {chunk}
    assert {name: answer[name] for name in ("id", "object", "created", "model")} == {
        "id": "id-1", "object": whole, "created": 5, "model": "org/m",
    }  # fmt: skip


def test_a_stream_ends_with_reason_tools_and_usage() -> None:
    written = Written(CHAT | {"stream": True, "stream_options": {"include_usage": True}, "tools": [TOOL]})
    assert len(written.chunks) == 1
    written.put(_token(1, ""))
    assert len(written.chunks) == 1
    written.put(_token(2, "f()", kind="tool"))
    call = {"name": "f", "arguments": "{}"}
    written.put(_token(3, "", ends_tool=True), ToolsParsed(calls=(call,), unparsed=("no call",)))
    answer = written.end(DONE)
    _, more, begin, arguments, end, tail = written.chunks
    assert more["choices"][0]["delta"] == {"content": "no call"}
    (begun,) = begin["choices"][0]["delta"]["tool_calls"]
    assert (begun["index"], begun["type"], begun["function"]["name"]) == (0, "function", "f")
    assert arguments["choices"][0]["delta"]["tool_calls"] == [{"index": 0, "function": {"arguments": "{}"}}]
    assert end["choices"][0]["finish_reason"] == "tool_calls"
    assert tail["choices"] == [] and tail["usage"]["total_tokens"] == 5
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] == "no call"
    assert choice["message"]["tool_calls"] == [{"id": begun["id"], "type": "function", "function": call}]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_forced_calls_are_streamed_as_they_come(size: int) -> None:
    calls = [("f", '{"a": "}]\\"{", "b": [{}]}'), ("f", "{}")]
    text = "[" + ", ".join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls) + "]"
    written = Written(CHAT | {"tools": [TOOL], "tool_choice": "required"})
    for number, at in enumerate(range(0, len(text), size)):
        written.put(_token(number, text[at : at + size]))
    choice = written.end(DONE)["choices"][0]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    assert found == calls
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2
    named = Written(CHAT | {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}})
    for number, at in enumerate(range(0, len(calls[0][1]), size)):
        named.put(_token(number, calls[0][1][at : at + size]))
    (call,) = named.end(DONE)["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == calls[0]


@pytest.mark.parametrize("gap", ["", " ", "\n\t"])
def test_forced_calls_may_be_written_with_any_white_space(gap: str) -> None:
    objects = [f'{{"name":{gap}"f",{gap}"{key}":{gap}{{"a":1}}{gap}}}' for key in ("arguments", "parameters")]
    written = Written(CHAT | {"tools": [TOOL], "tool_choice": "required"})
    for sign in f"[{gap}{objects[0]}{gap},{objects[1]}]":
        written.put(_token(1, sign))
    message = written.end(DONE)["choices"][0]["message"]
    found = [(call["function"]["name"], call["function"]["arguments"].rstrip()) for call in message["tool_calls"]]
    assert found == [("f", '{"a":1}')] * 2 and message["content"] is None


@pytest.mark.parametrize(
    ("pieces", "shown", "unparsed"),
    [
        (["Hel", "lo {"], ["Hel", "lo {"], ""),
        (["<|py", "thing"], ["<|py", "thing"], ""),
        ([" ", '{"na', 'me": "f"}'], [], ' {"name": "f"}'),
        (["<|python_tag|>", "f.call()"], [], "<|python_tag|>f.call()"),
    ],
)
def test_text_is_held_back_only_while_it_may_become_a_call_without_marks(
    pieces: list[str], shown: list[str], unparsed: str
) -> None:
    options = parse(CHAT | {"tools": [TOOL]}).options(5).model_copy(update={"calls": "bare"})
    assembly = Assembly(options, "id-1")
    parts = [part for piece in pieces for part in assembly.token(_token(1, piece))]
    assert "".join(part.text for part in parts if isinstance(part, Text)) == "".join(shown)
    assert assembly.unparsed(DONE) == unparsed


def test_logprobs_of_both_endpoints() -> None:
    top = (protocol.TopLogprob(token=1, text="é", logprob=-0.5),)
    chat = Written(CHAT | {"logprobs": True, "top_logprobs": 1})
    chat.put(_token(1, "é", logprob=-0.5, top_logprobs=top))
    entry = chat.end(DONE)["choices"][0]["logprobs"]["content"][0]
    assert entry["bytes"] == [195, 169] and entry["top_logprobs"][0]["token"] == "é"
    text = Written(TEXT | {"logprobs": 1}, "completion")
    text.put(_token(1, "ab", logprob=-0.5, top_logprobs=top))
    text.put(_token(1, "c", logprob=-0.1))
    assert text.end(DONE)["choices"][0]["logprobs"]["text_offset"] == [0, 2]
