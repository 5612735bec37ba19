"""``/v1/responses``: the conversation that a client sends, and the response that it gets, whole and streamed."""

import json
from typing import Any

import pytest
from thunderfleet_runner import protocol
from thunderfleet_runner.api import prepare
from thunderfleet_runner.api.answer.assembly import Assembly
from thunderfleet_runner.api.answer.writer import Event, Head
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.openai.responses_writer import ResponsesWriter
from thunderfleet_runner.api.request import call as calls
from thunderfleet_runner.intakeprotocol import ModelLimits, ToolsParsed

LIMITS = ModelLimits(model="org/m", vocabulary=256, context_tokens=100)
TOOL = {"type": "function", "name": "f", "description": "does f", "parameters": {"type": "object"}}


def parse(input_: Any, **more: Any) -> calls.Call:
    body = json.dumps({"model": "org/m", "input": input_, **more}).encode()
    return prepare.parse("responses", body, LIMITS, protocol.Sampling())


def refused(input_: Any, **more: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(input_, **more)
    return caught.value


def test_a_conversation_becomes_messages() -> None:
    conversation = [
        {"role": "developer", "content": [{"type": "input_text", "text": "be "}, {"type": "input_text", "text": "brief"}]},
        {"type": "message", "role": "user", "content": "what is it?"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "reasoning", "summary": [], "content": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I ask."}]},
        {"type": "function_call", "name": "f", "arguments": '{"a": 1}', "call_id": "c1"},
        {"type": "custom_tool_call", "name": "g", "input": "é", "call_id": "c2"},
        {"type": "function_call", "name": "h", "arguments": ""},
        {"type": "web_search_call", "id": "w"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "function_call_output", "call_id": "c3", "output": None},
    ]
    assert parse(conversation, instructions="in English").messages == [
        {"role": "system", "content": "in English"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "what is it?"},
        {
            "role": "assistant",
            "content": "I ask.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "id": "c1"},
                {"type": "function", "function": {"name": "g", "arguments": '{"input": "é"}'}, "id": "c2"},
                {"type": "function", "function": {"name": "h", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "1", "tool_call_id": "c1"},
        {"role": "tool", "content": "2", "tool_call_id": "c2"},
        {"role": "tool", "content": "", "tool_call_id": "c3"},
    ]
    assert parse("hi").messages == [{"role": "user", "content": "hi"}]


def test_text_after_calls_is_a_turn_of_its_own() -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
    found = parse([{"role": "user", "content": "go"}, call, {"role": "assistant", "content": "done"}]).messages
    assert [message["role"] for message in found] == ["user", "assistant", "assistant"]
    assert (found[1]["content"], found[2]) == ("", {"role": "assistant", "content": "done"})


ITEM = "input[0] must be a message, reasoning, function_call or function_call_output"


@pytest.mark.parametrize(
    ("input_", "param", "message"),
    [
        ("", "input", "input must be a non-empty string or a non-empty list of items"),
        ([], "input", "input must be a non-empty string or a non-empty list of items"),
        (5, "input", "input must be a non-empty string or a non-empty list of items"),
        (["hi"], "input[0]", ITEM),
        ([{"type": "computer_call"}], "input[0]", ITEM),
        ([{"type": "function_call", "name": 1}], "input[0]", ITEM),
        ([{"type": "custom_tool_call", "name": "g", "input": {}}], "input[0]", ITEM),
        ([{"type": "function_call_output", "output": "1"}], "input[0]", ITEM),
        (
            [{"type": "function_call", "name": "f", "arguments": "[]"}],
            "input[0]",
            "the arguments of input[0] must be a JSON object in a string",
        ),
        (
            [{"type": "function_call_output", "call_id": "c", "output": 1}],
            "input[0].output",
            "input[0].output must be a string or a list of text parts",
        ),
        (
            [{"type": "reasoning", "content": [{"type": "input_image", "text": "x"}]}],
            "input[0].content",
            "input[0].content must have parts of type text only: images, audio and files are not supported",
        ),
    ],
)
def test_items_that_are_refused(input_: Any, param: str, message: str) -> None:
    error = refused(input_)
    assert (error.status, error.param, str(error)) == (400, param, message)


def test_tools_that_openai_would_run_are_named_and_left_out() -> None:
    call = parse("hi", tools=[{"type": "web_search"}, TOOL, {"type": "custom", "name": "g"}])
    assert call.tools.offered == [{"type": "function", "function": {k: TOOL[k] for k in ("name", "description", "parameters")}}]
    assert call.ignored == ("tools.web_search", "tools.custom")
    assert str(refused("hi", tools=["f"])) == "tools must be a list of functions, each with a name"
    assert refused("hi", background=True).param == "background"
    assert parse("hi", background=False, include=["reasoning.encrypted_content"], max_tool_calls=3).ignored == ()


def test_effort_and_format_are_read_where_this_api_has_them() -> None:
    call = parse("hi", reasoning={"effort": "none"}, text={"format": {"type": "json_object"}}, max_output_tokens=7)
    assert call.template == {"reasoning_effort": "none", "enable_thinking": False}
    assert call.constraint is not None and call.max_tokens == 7
    assert parse("hi", reasoning={"effort": "high"}, enable_thinking=False).template == {
        "reasoning_effort": "high", "enable_thinking": False,
    }  # fmt: skip


def test_a_forced_tool_may_have_a_schema_that_is_a_reference_or_a_choice() -> None:
    for form in (
        {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object"}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object"},
    ):
        call = parse("hi", tools=[TOOL | {"parameters": form}], tool_choice={"type": "function", "name": "f"})
        assert call.constrained is not None and json.loads(call.constrained.source) == form
    call = parse("hi", tools=[{"type": "function", "name": "f"}], tool_choice="required", parallel_tool_calls=False)
    assert call.constrained is not None
    assert json.loads(call.constrained.source) == {
        "type": "array", "minItems": 1, "maxItems": 1,
        "items": {"anyOf": [{
            "type": "object",
            "properties": {"name": {"const": "f"}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }]},
    }  # fmt: skip
    free = parse("hi", tools=[TOOL], tool_choice="required").constrained
    assert free is not None and "maxItems" not in json.loads(free.source)


class Answered:
    """A response to one request, streamed and whole."""

    def __init__(self, **more: Any) -> None:
        options = parse("hi", **more).options(5)
        head = Head(options, "org/m", "id", 1_700_000_000)
        self.writer, self._whole = ResponsesWriter(head), ResponsesWriter(head)
        self._assembly = Assembly(options, "id")
        self.events: list[Event] = self.writer.begin()

    def put(self, *tokens: protocol.Token, tools: ToolsParsed | None = None) -> None:
        for token in tokens:
            if self._assembly.unparsed(token):
                self._add(self._assembly.parsed(tools or ToolsParsed()))
            self._add(self._assembly.token(token))

    def end(self, reason: str = "stop") -> dict[str, Any]:
        done = protocol.Done.model_validate(
            {"id": "x", "finish_reason": reason, "prompt_tokens": 3, "cached_tokens": 1, "generated_tokens": 4,
             "reasoning_tokens": 2}
        )  # fmt: skip
        parts, end = self._assembly.end(done)
        self._add(parts)
        self.events += [*self.writer.end(0, end), *self.writer.finish()]
        self._whole.close(0, end)
        found: dict[str, Any] = json.loads(self._whole.whole())
        return found

    def _add(self, parts: Any) -> None:
        for part in parts:
            self.events += self.writer.part(0, part)
            self._whole.add(0, part)


def token(text: str, **more: Any) -> protocol.Token:
    return protocol.Token(id="x", token=1, text=text, **more)


def test_thoughts_text_and_a_call_are_items_of_one_response() -> None:
    answered = Answered(tools=[TOOL])
    answered.put(token("hm", kind="reasoning"), token("\n"), token("I "), token("ask."), token("\n"), token("f()", kind="tool"))
    call = {"name": "f", "arguments": '{"a": 1}'}
    answered.put(token("", ends_tool=True), tools=ToolsParsed(calls=(call,)))
    whole = answered.end()
    assert [event.name for event in answered.events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.data["sequence_number"] for event in answered.events] == list(range(len(answered.events)))
    assert all(event.data["type"] == event.name for event in answered.events)
    thought, text, called = whole["output"]
    assert thought == {
        "id": "rs_id_0", "status": "completed", "type": "reasoning", "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }  # fmt: skip
    content = [{"type": "output_text", "text": "\nI ask.\n", "annotations": [], "logprobs": []}]
    assert text["content"] == content
    assert called == {
        "id": "fc_id_2", "status": "completed", "type": "function_call", "call_id": called["call_id"], "name": "f",
        "arguments": '{"a": 1}',
    }  # fmt: skip
    last = answered.events[-1].data["response"]
    assert last == whole and last["status"] == "completed" and last["created_at"] == 1_700_000_000
    assert (last["incomplete_details"], last["error"], last["model"], last["id"]) == (None, None, "org/m", "id")
    first = answered.events[0].data["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    deltas = [event.data for event in answered.events if event.name == "response.output_text.delta"]
    assert all(delta["item_id"] == "msg_id_1" and delta["output_index"] == 1 for delta in deltas)
    assert all(delta["content_index"] == 0 and delta["logprobs"] == [] for delta in deltas)
    (arguments,) = (event.data for event in answered.events if event.name == "response.function_call_arguments.done")
    assert (arguments["arguments"], arguments["name"], arguments["output_index"]) == ('{"a": 1}', "f", 2)


def test_a_response_that_meets_its_limit_is_incomplete() -> None:
    answered = Answered(max_output_tokens=4)
    answered.put(token("hm", kind="reasoning"), token("a"), token("b"))
    whole = answered.end("length")
    assert answered.events[-1].name == "response.incomplete"
    assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in whole["output"]] == ["completed", "incomplete"]
    assert whole["max_output_tokens"] == 4
    assert whole["usage"] == {
        "input_tokens": 3, "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 4,        "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 7,
    }  # fmt: skip


def test_a_stream_that_is_cut_ends_with_a_failed_response() -> None:
    answered = Answered()
    answered.put(token("a"))
    event = answered.writer.error(ApiError(503, "the group failed and is restarting"))
    assert event.name == "response.failed" and event.data["response"]["status"] == "failed"
    assert event.data["response"]["error"] == {"code": "server_error", "message": "the group failed and is restarting"}
