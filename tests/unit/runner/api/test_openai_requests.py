"""The gateway turns a client's body into a request or an error message, and never fails otherwise."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_runner import framing, protocol
from thunderfleet_runner.api import examine, prepare
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.http import generation
from thunderfleet_runner.api.request import call as calls
from thunderfleet_runner.api.request import constraints, refusals, sampling
from thunderfleet_runner.intakeprotocol import (
    CallFormat,
    Endpoint,
    Examine,
    Examined,
    ModelLimits,
    Prepare,
    Prepared,
    Rejected,
    Subject,
    decode_answer,
)

LIMITS = ModelLimits(model="org/m", vocabulary=256, context_tokens=100)
CHAT: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "org/m", "prompt": "hi"}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}


class Model:
    """Every prompt has the same tokens, and every format is its own grammar."""

    def __init__(self, *tokens: int, defaults: protocol.Sampling | None = None) -> None:
        self.defaults = defaults or protocol.Sampling()
        self.calls: CallFormat = "marked"
        self._prompt = protocol.Prompt.of(tokens)

    def prompt(self, call: calls.Call) -> protocol.Prompt:
        return self._prompt

    def encode(self, text: str, *, special: bool) -> list[int]:
        return [1] * len(text.split())

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join("a" for _ in tokens)

    def grammar(self, constraint: constraints.Constraint) -> str:
        return constraint.source


def parse(body: Any, endpoint: Endpoint = "chat", limits: ModelLimits = LIMITS) -> calls.Call:
    return prepare.parse(endpoint, json.dumps(body).encode(), limits, protocol.Sampling())


def refused(body: Any, endpoint: Endpoint = "chat") -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body, endpoint)
    return caught.value


FIELDS = sorted({
    "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p",
    "repetition_penalty", "repetition_context_size", "presence_penalty", "presence_context_size", "frequency_penalty",
    "frequency_context_size", "logit_bias", "logprobs", "top_logprobs", "stop", "n", "seed", "return_token_ids", "messages",
    "prompt", "tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "guided_json",
    "guided_regex", "guided_grammar", "guided_choice", "reasoning_effort", "enable_thinking", "chat_template_kwargs",
    *refusals.BOOKKEEPING, *refusals._NEUTRAL,
})  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(raw=st.binary(max_size=200), endpoint=st.sampled_from(["chat", "completion"]))
def test_no_bytes_crash_the_parser(raw: bytes, endpoint: Endpoint) -> None:
    with pytest.raises(ApiError):
        prepare.parse(endpoint, raw, LIMITS, protocol.Sampling())


@given(
    body=st.fixed_dictionaries({}, optional={n: _JSON for n in FIELDS}),
    endpoint=st.sampled_from(["chat", "completion"]),
    whole=st.booleans(),
)
def test_no_fields_crash_the_parser_and_what_passes_can_be_framed(
    body: dict[str, Any], endpoint: Endpoint, whole: bool
) -> None:
    base = CHAT if endpoint == "chat" else TEXT
    body = body | base if whole else base | body
    try:
        call = parse(body, endpoint)
    except ApiError as error:
        assert error.status in (400, 404)
        assert error.body()["error"]["message"]
        return
    question = Prepare(endpoint=endpoint, limits=LIMITS)
    answer = prepare.prepare(question, json.dumps(body).encode(), Model(1, 255))
    assert decode_answer(answer.model_dump_json().encode()) == answer
    assert isinstance(answer, Prepared) or answer.status == 400
    options = call.options(1)
    message = protocol.Generate(request=generation.request_of("x", Prepared(options=options, prompt=protocol.Prompt.of([1]))))
    (frame,) = framing.Frames().feed(protocol.encode(message))
    assert protocol.decode_to_rank(frame) == message
    assert all(0 <= token < 256 for token in options.sampling.logit_bias)
    assert options.sampling.top_k < 256
    assert options.top_logprobs < 256
    assert all(options.stop)


_BLOCK = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "tool_use", "tool_result", "thinking", "input_text", "function_call", "reasoning", "image"]
        )
    },
    optional={n: _JSON for n in ("text", "thinking", "name", "input", "id", "tool_use_id", "content", "call_id", "arguments")},
)
_TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]), "content": st.lists(_BLOCK, max_size=3) | st.text(max_size=3)}
)
OTHER_FIELDS = sorted({
    *FIELDS, "system", "stop_sequences", "thinking", "output_config", "instructions", "input", "reasoning", "text",
    "max_output_tokens", "include", "truncation", "content", "tokens", "return_token_strs",
})  # fmt: skip


@given(
    body=st.fixed_dictionaries(
        {},
        optional={
            **{n: _JSON for n in OTHER_FIELDS},
            "messages": st.lists(_TURN, max_size=3) | _JSON,
            "input": st.lists(_TURN | _BLOCK, max_size=3) | st.text(max_size=3) | _JSON,
        },
    ),
    least=st.booleans(),
)
def test_no_fields_crash_the_other_dialects(body: dict[str, Any], least: bool) -> None:
    body = body | ({"model": "org/m", "input": "hi", "messages": CHAT["messages"]} if least else {})
    raw = json.dumps(body).encode()
    endpoints: tuple[Endpoint, ...] = ("messages", "responses")
    for endpoint in endpoints:
        answer = prepare.prepare(Prepare(endpoint=endpoint, limits=LIMITS), raw, Model(1, 255))
        assert decode_answer(answer.model_dump_json().encode()) == answer
        assert isinstance(answer, Prepared) or answer.status in (400, 404)
    subjects: tuple[Subject, ...] = ("count", "tokenize", "detokenize")
    for subject in subjects:
        found = examine.examine(Examine(subject=subject, limits=LIMITS), raw, Model(1, 255))
        assert decode_answer(found.model_dump_json().encode()) == found
        assert isinstance(found, Examined) or found.status in (400, 404)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"top_k": 256}, "top_k"),
        ({"logit_bias": {"256": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"0" * 12: 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"xtc_threshold": 0.6}, "xtc_threshold"),
        ({"adapters": "x"}, "adapters"),
        ({"draft_model": "x"}, "draft_model"),
        ({"role_mapping": {}}, "role_mapping"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"x": "y" * 17000}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {f"x{n}": n for n in range(33)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs"),
        ({"reasoning_effort": "hard"}, "reasoning_effort"),
        ({"n": 17}, "n"),
        ({"n": 0}, "n"),
        ({"seed": 0.5}, "seed"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "a" * 70000}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"structured_outputs": {"xml": 1}}, "structured_outputs.xml"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "http://x"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ],
)
def test_what_would_end_a_rank_or_change_the_answer_is_refused(change: dict[str, Any], param: str) -> None:
    error = refused(CHAT | change)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    ("name", "least", "most", "beside"),
    [
        ("temperature", 0, 2, 0.01),
        ("top_p", 0, 1, 0.01),
        ("top_k", 0, 255, 2),
        ("min_p", 0, 1, 0.01),
        ("repetition_penalty", 0, 10, 0.01),
        ("repetition_context_size", 1, 4096, 1),
        ("presence_penalty", -2, 2, 0.01),
        ("presence_context_size", 1, 4096, 1),
        ("frequency_penalty", -2, 2, 0.01),
        ("frequency_context_size", 1, 4096, 1),
    ],
)
def test_ranges_include_their_ends_and_nothing_beside_them(name: str, least: int, most: int, beside: float) -> None:
    for value in (least, most):
        assert parse(CHAT | {name: value}).options(1).sampling == protocol.Sampling.model_validate({name: value})
    for outside in (least - beside, most + beside):
        error = refused(CHAT | {name: outside})
        assert (error.param, error.body()["error"]["message"].endswith(f" from {least} to {most}")) == (name, True)


def test_stops_are_sixteen_of_1024_characters_at_most() -> None:
    most = ["x" * 1024] * 16
    assert parse(CHAT | {"stop": most}).options(1).stop == tuple(most)
    for value in ("x" * 1025, [*most, "y"]):
        assert refused(CHAT | {"stop": value}).param == "stop"


def test_another_model_is_not_found() -> None:
    error = refused(CHAT | {"model": "org/other"})
    assert (error.status, error.code) == (404, "model_not_found")
    assert refused(CHAT | {"model": ""}).param == "model"
    parse({"messages": CHAT["messages"]})


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [[1], [2]], [256], [-1], [True], 5, None, list(range(101))])
def test_prompts_that_are_refused(prompt: Any) -> None:
    assert refused(TEXT | {"prompt": prompt}, "completion").param == "prompt"


def test_a_prompt_of_tokens_may_fill_the_context_with_any_token_of_the_model() -> None:
    assert len(parse(TEXT | {"prompt": [0, 255] * 50}, "completion").tokens) == LIMITS.context_tokens


def test_a_prompt_is_text_or_tokens() -> None:
    assert parse(TEXT, "completion").text == "hi"
    assert parse(TEXT | {"prompt": ["hi"]}, "completion").text == "hi"
    assert parse(TEXT | {"prompt": [1, 2]}, "completion").tokens == [1, 2]


def test_nulls_and_bookkeeping_are_dropped_and_what_has_no_effect_is_named() -> None:
    nulls = {"temperature": None, "stop": None, "xtc_threshold": None}
    call = parse(CHAT | nulls | {"user": "u", "metadata": {"a": "b"}, "verbosity": "low", "keep_alive": "5m"})
    assert call.ignored == ("keep_alive", "verbosity")
    assert call.options(1).sampling == protocol.Sampling()


def test_ignored_names_are_escaped_and_few() -> None:
    odd = parse(CHAT | {"a\r\nX-Evil: 1": 1, "é,": 1}).options(1)
    assert generation.headers(odd)["X-Thunderfleet-Ignored"] == "a%0D%0AX-Evil%3A%201, %C3%A9%2C"
    many = parse(CHAT | {f"{n:03}{'é' * 70}": 1 for n in range(500)}).options(1)
    named = generation.headers(many)["X-Thunderfleet-Ignored"]
    assert len(named) <= 1024 and named.startswith("000%C3%A9") and named.endswith(f", and {500 - named.count('%A9,')} more")


def test_the_models_own_sampling_applies_where_the_request_is_silent() -> None:
    config = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 7, "repetition_penalty": 1.0}
    own = sampling.model_defaults(config, 256)
    assert own == protocol.Sampling(temperature=0.6, top_k=20, top_p=0.95)
    call = prepare.parse("chat", json.dumps(CHAT | {"temperature": 0, "top_k": -1}).encode(), LIMITS, own)
    assert call.sampling == protocol.Sampling(temperature=0, top_p=0.95)
    assert sampling.model_defaults({"do_sample": True}, 256) == protocol.Sampling(temperature=1)
    greedy: tuple[dict[str, Any], ...] = ({}, {"do_sample": False, "temperature": 0.6}, {"temperature": "x"}, {"top_p": [1]})
    for silent in greedy:
        assert sampling.model_defaults(silent, 256) == protocol.Sampling()
    assert sampling.model_defaults({"top_k": 999}, 256).top_k == 0


def test_thoughts_go_back_to_the_template() -> None:
    for name in ("reasoning_content", "reasoning"):
        messages = [{"role": "assistant", "content": None, name: "hm"}, {"role": "user", "content": "hi"}]
        assert parse(CHAT | {"messages": messages}).messages[0] == {
            "role": "assistant", "content": "", "reasoning_content": "hm",
        }  # fmt: skip


def test_arguments_of_the_template() -> None:
    given = {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True, "x": [1]}}
    assert parse(CHAT | given).template == {"reasoning_effort": "none", "enable_thinking": True, "x": [1]}
    assert parse(CHAT | {"reasoning_effort": "none"}).template == {"reasoning_effort": "none", "enable_thinking": False}


def test_a_response_repeats_what_is_small() -> None:
    def echoed(**more: Any) -> dict[str, Any]:
        echo: dict[str, Any] = json.loads(parse({"input": "hi", **more}, "responses").options(1).echo)
        return echo

    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    assert echoed(tools=[tool], instructions="be brief")["tools"] == [tool]
    large = echoed(tools=[tool | {"description": "x" * 20_000}], instructions="be brief", temperature=1)
    assert (large["tools"], large["instructions"], large["temperature"]) == ([], None, 1)
    # tool_choice may be an object, which names one tool.
    assert len(json.dumps(echoed(tools=[tool], tool_choice={"type": "function", "name": "f", "x": "y" * 20_000}))) < 17_000


def test_a_forced_tool_is_a_format() -> None:
    parameters = {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    named = parse(CHAT | {"tools": [tool, TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}})
    assert named.constrained is not None and json.loads(named.constrained.source) == {"type": "object", **parameters}
    free = parse(CHAT | {"tools": [TOOL, tool], "tool_choice": "required", "parallel_tool_calls": False})
    assert free.constrained is not None
    form = json.loads(free.constrained.source)
    assert form["maxItems"] == 1
    arguments = form["items"]["anyOf"][1]["properties"]["arguments"]
    assert arguments["properties"]["a"]["$ref"] == "#/items/anyOf/1/properties/arguments/$defs/A"
    assert parse(CHAT | {"tools": [TOOL], "tool_choice": "none"}).tools.offered == ()


def test_messages_are_rebuilt() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}', "more": 1}, "x": 1}]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "evil": 1},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    assert parse(CHAT | {"messages": messages}).messages == [
        {"role": "system", "content": "ab"},
        {"role": "assistant", "content": "",
         "tool_calls": [{"type": "function", "id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "content": "1", "tool_call_id": "c"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model": "org/m", "temperature": NaN}',
        b'{"model": "org/m", "temperature": 1e999}',
        b'{"model": "org/m", "prompt": "\\ud800"}',
        b'{"model": ' + b"[" * 100_000,
        b'{"a": ' * 40 + b"1" + b"}" * 40,
        b'{"model": ' + b"9" * 5000 + b"}",
        b"[]",
        b"\xff",
    ],
)
def test_json_that_later_readers_would_choke_on(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        prepare.parse("completion", raw, LIMITS, protocol.Sampling())
    assert caught.value.status == 400


def test_max_tokens_are_what_fits_behind_the_prompt() -> None:
    for body, clamped in ((CHAT, False), (CHAT | {"max_tokens": -1}, False), (CHAT | {"max_tokens": 10}, False),
                          (CHAT | {"max_tokens": 11}, True), (CHAT | {"max_completion_tokens": 1 << 40}, True)):  # fmt: skip
        call = parse(body)
        assert calls.fit(call, 90, LIMITS) == 10
        assert call.options(10).clamped == clamped
    assert generation.headers(call.options(10)) == {"X-Thunderfleet-Clamped": "max_tokens=10"}
    for prompt in (100, 0):
        with pytest.raises(ApiError):
            calls.fit(parse(CHAT), prompt, LIMITS)


def test_a_model_without_a_template_has_no_chats() -> None:
    with pytest.raises(ApiError, match="/v1/completions"):
        parse(CHAT, limits=ModelLimits(model="org/m", vocabulary=256, context_tokens=100, chat_template=False))


# What other servers use when a request does not have the field, and a value that changes their answer.
@pytest.mark.parametrize(
    ("field", "without_effect", "other"),
    [
        ("add_generation_prompt", True, False),
        ("bad_words", [], ["a"]),
        ("best_of", 1, 2),
        ("continue_final_message", False, True),
        ("documents", [], [{"text": "a"}]),
        ("dry_multiplier", 0, 0.8),
        ("echo", False, True),
        ("functions", [], [{"name": "f"}]),
        ("ignore_eos", False, True),
        ("include_stop_str_in_output", False, True),
        ("length_penalty", 1.0, 0.5),
        ("logits_processors", [], ["p"]),
        ("min_tokens", 0, 1),
        ("mirostat", 0, 2),
        ("modalities", ["text"], ["text", "audio"]),
        ("prompt_logprobs", 0, 1),
        ("prompt_logprobs", False, True),
        ("repeat_penalty", 1.0, 1.1),
        ("skip_special_tokens", True, False),
        ("stop_token_ids", [], [1]),
        ("suffix", "", "b"),
        ("tfs_z", 1, 0.9),
        ("top_a", 0, 0.1),
        ("typical_p", 1, 0.9),
        ("use_beam_search", False, True),
        ("xtc_probability", 0, 0.5),
    ],
)
def test_fields_of_other_servers_are_accepted_while_they_change_nothing(field: str, without_effect: Any, other: Any) -> None:
    assert parse(CHAT | {field: without_effect}).ignored == ()
    error = refused(CHAT | {field: other})
    assert error.param == field and "is not supported here and would change the answer: leave it out" in str(error)


@pytest.mark.parametrize(
    ("field", "low", "high", "step"),
    [
        ("temperature", 0, 2, 0.001),
        ("top_p", 0, 1, 0.001),
        ("top_k", 0, 255, 2),
        ("min_p", 0, 1, 0.001),
        ("repetition_penalty", 0, 10, 0.001),
        ("repetition_context_size", 1, 4096, 1),
        ("presence_penalty", -2, 2, 0.001),
        ("presence_context_size", 1, 4096, 1),
        ("frequency_penalty", -2, 2, 0.001),
        ("frequency_context_size", 1, 4096, 1),
    ],
)
def test_numbers_are_accepted_from_their_lower_to_their_upper_bound(field: str, low: float, high: float, step: float) -> None:
    for value in (low, high):
        assert parse(CHAT | {field: value}).sampling.model_dump()[field] == value
    refused_values: tuple[object, ...] = (low - step, high + step, True, "1", [], {})
    for refused_value in refused_values:
        assert refused(CHAT | {field: refused_value}).param == field


def test_defaults_are_those_of_greedy_decoding() -> None:
    assert parse(CHAT).sampling.model_dump() == {
        "temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 0, "repetition_context_size": 20,
        "presence_penalty": 0, "presence_context_size": 20, "frequency_penalty": 0, "frequency_context_size": 20,
        "logit_bias": {}, "seed": None,
    }  # fmt: skip


def test_biases_are_numbers_for_known_tokens() -> None:
    right = {"0": -100, "255": 100, "7": 0.5}
    assert parse(CHAT | {"logit_bias": right}).sampling.logit_bias == {0: -100.0, 255: 100.0, 7: 0.5}
    wrong: list[Any] = [{"256": 1}, {"-1": 1}, {"1": 101}, {"1": -101}, {"1": True}, {"1": "1"}, {"1": None}, {"x": 1}, [], 1]
    for value in wrong:
        assert refused(CHAT | {"logit_bias": value}).param == "logit_bias"
    at_most = {str(token): 1 for token in range(1024)}
    large = ModelLimits(model="org/m", vocabulary=0, context_tokens=100)
    assert len(parse(CHAT | {"logit_bias": at_most}, limits=large).sampling.logit_bias) == 1024
    with pytest.raises(ApiError):
        parse(CHAT | {"logit_bias": at_most | {"1024": 1}}, limits=large)


def test_a_tools_description_and_parameters_are_each_checked() -> None:
    parts: tuple[dict[str, object], ...] = ({"description": 1}, {"parameters": "x"}, {"parameters": []})
    for part in parts:
        tool = {"type": "function", "function": {"name": "f", **part}}
        assert refused(CHAT | {"tools": [tool]}).param == "tools"
    whole = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    assert parse(CHAT | {"tools": [whole]}).tools.offered == [whole]


def test_a_token_beyond_the_vocabulary_is_refused_with_the_last_one() -> None:
    question = Prepare(endpoint="chat", limits=LIMITS)
    answer = prepare.prepare(question, json.dumps(CHAT).encode(), Model(1, 256))
    assert isinstance(answer, Rejected) and answer.status == 400
    assert "contains token id 256; the model has ids 0 to 255 only" in answer.message
