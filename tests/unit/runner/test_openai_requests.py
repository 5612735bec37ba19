"""The gateway turns a client's body into a request or an error message, and never fails otherwise."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_runner import framing, protocol
from thunderfleet_runner.api.errors import ApiError
from thunderfleet_runner.api.http import gateway
from thunderfleet_runner.api.openai import requests, responses
from thunderfleet_runner.intakeprotocol import Endpoint, ModelLimits, Prepare, Prepared, Rejected, ToolsParsed, decode_answer

LIMITS = ModelLimits(model="org/m", vocabulary=256, context_tokens=100)
CHAT: dict[str, Any] = {"model": "org/m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "org/m", "prompt": "hi"}


def parse(body: Any, endpoint: Endpoint = "chat", limits: ModelLimits = LIMITS) -> requests.Call:
    return requests.parse(endpoint, json.dumps(body).encode(), limits)


def refused(body: Any, endpoint: Endpoint = "chat") -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(body, endpoint)
    return caught.value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(raw=st.binary(max_size=200), endpoint=st.sampled_from(["chat", "completion"]))
def test_no_bytes_crash_the_parser(raw: bytes, endpoint: Endpoint) -> None:
    with pytest.raises(ApiError):
        requests.parse(endpoint, raw, LIMITS)


@given(
    body=st.fixed_dictionaries({}, optional={n: _JSON for n in sorted({*requests.allowed_fields("chat"), "prompt", "echo"})}),
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
    answer = requests.prepare(question, json.dumps(body).encode(), lambda _: protocol.Prompt.of([1, 255]))
    assert decode_answer(answer.model_dump_json().encode()) == answer
    assert isinstance(answer, Prepared) or answer.status == 400
    options = call.options(1)
    message = protocol.Generate(request=gateway.request_of("x", Prepared(options=options, prompt=protocol.Prompt.of([1]))))
    (frame,) = framing.Frames().feed(protocol.encode(message))
    assert protocol.decode_to_rank(frame) == message
    assert all(0 <= token < 256 for token in options.sampling.logit_bias)
    assert options.sampling.top_k < 256
    assert options.top_logprobs < 256
    assert all(options.stop)


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
        ({"chat_template_kwargs": {}}, "chat_template_kwargs"),
        ({"n": 2}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
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
        ("top_k", 0, 255, 1),
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
    assert refused({"messages": CHAT["messages"]}).param == "model"


@pytest.mark.parametrize("prompt", ["", [], ["a", "b"], [[1], [2]], [256], [-1], [True], 5, None, list(range(101))])
def test_prompts_that_are_refused(prompt: Any) -> None:
    assert refused(TEXT | {"prompt": prompt}, "completion").param == "prompt"


def test_a_prompt_of_tokens_may_fill_the_context_with_any_token_of_the_model() -> None:
    assert len(parse(TEXT | {"prompt": [0, 255] * 50}, "completion").fields["tokens"]) == LIMITS.context_tokens


def test_a_prompt_is_text_or_tokens() -> None:
    assert parse(TEXT, "completion").fields["prompt"] == "hi"
    assert parse(TEXT | {"prompt": ["hi"]}, "completion").fields["prompt"] == "hi"
    assert parse(TEXT | {"prompt": [1, 2]}, "completion").fields["tokens"] == [1, 2]


def test_nulls_and_bookkeeping_are_dropped_and_seed_is_said_to_be_ignored() -> None:
    nulls = {"temperature": None, "stop": None, "xtc_threshold": None}
    call = parse(CHAT | nulls | {"user": "u", "metadata": {"a": "b"}, "seed": 3})
    assert call.ignored == ("seed",)
    assert call.options(1).sampling == protocol.Sampling()


def test_messages_are_rebuilt() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}', "more": 1}, "x": 1}]
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "evil": 1},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    assert parse(CHAT | {"messages": messages}).fields["messages"] == [
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
        requests.parse("completion", raw, LIMITS)
    assert caught.value.status == 400


def test_max_tokens_must_fit_behind_the_prompt() -> None:
    assert requests.fit(parse(CHAT), 90, LIMITS) == 10
    assert requests.fit(parse(CHAT | {"max_tokens": 10}), 90, LIMITS) == 10
    for body, prompt in ((CHAT | {"max_tokens": 11}, 90), (CHAT, 100), (CHAT, 0)):
        with pytest.raises(ApiError):
            requests.fit(parse(body), prompt, LIMITS)


def test_a_model_without_a_template_has_no_chats() -> None:
    with pytest.raises(ApiError, match="/v1/completions"):
        parse(CHAT, limits=ModelLimits(model="org/m", vocabulary=256, context_tokens=100, chat_template=False))


def _writer(body: dict[str, Any], endpoint: Endpoint = "chat") -> responses.Writer:
    return responses.Writer(parse(body, endpoint).options(5), "org/m", "id-1", 5)


def _token(token: int, text: str, **more: Any) -> protocol.Token:
    return protocol.Token(id="x", token=token, text=text, **more)


NO_TOOLS = ToolsParsed()
DONE = protocol.Done(id="x", finish_reason="stop", prompt_tokens=3, cached_tokens=1, generated_tokens=2)


def test_a_whole_answer() -> None:
    writer = _writer(CHAT | {"return_token_ids": True})
    for token in (_token(7, "th", kind="reasoning"), _token(8, "a"), _token(protocol.NO_TOKEN, "b")):
        writer.add(token)
    answer = json.loads(writer.whole(DONE, NO_TOOLS))
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "ab", "reasoning_content": "th"}
    assert choice["token_ids"] == [7, 8]
    assert answer["usage"] == {
        "prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1},
    }  # fmt: skip


def test_a_stream_ends_with_reason_tools_and_usage() -> None:
    writer = _writer(CHAT | {"stream": True, "stream_options": {"include_usage": True}})
    assert writer.first() is not None
    assert writer.token(_token(1, "")) is None
    more, end, tail = writer.last(DONE, ToolsParsed(calls=({"name": "f", "arguments": "{}"},), unparsed=("no call",)))
    assert more["choices"][0]["delta"] == {"content": "no call"}
    assert end["choices"][0]["finish_reason"] == "tool_calls"
    assert end["choices"][0]["delta"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert tail["choices"] == [] and tail["usage"]["total_tokens"] == 5


def test_logprobs_of_both_endpoints() -> None:
    top = (protocol.TopLogprob(token=1, text="é", logprob=-0.5),)
    chat = _writer(CHAT | {"logprobs": True, "top_logprobs": 1})
    chat.add(_token(1, "é", logprob=-0.5, top_logprobs=top))
    entry = json.loads(chat.whole(DONE, NO_TOOLS))["choices"][0]["logprobs"]["content"][0]
    assert entry["bytes"] == [195, 169] and entry["top_logprobs"][0]["token"] == "é"
    text = _writer(TEXT | {"logprobs": 1}, "completion")
    text.add(_token(1, "ab", logprob=-0.5, top_logprobs=top))
    text.add(_token(1, "c", logprob=-0.1))
    assert json.loads(text.whole(DONE, NO_TOOLS))["choices"][0]["logprobs"]["text_offset"] == [0, 2]


@pytest.mark.parametrize(
    ("field", "low", "high", "step"),
    [
        ("temperature", 0, 2, 0.001),
        ("top_p", 0, 1, 0.001),
        ("top_k", 0, 255, 1),
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
        assert parse(CHAT | {field: value}).fields["sampling"][field] == value
    refused_values: tuple[object, ...] = (low - step, high + step, True, "1", [], {})
    for refused_value in refused_values:
        assert refused(CHAT | {field: refused_value}).param == field


def test_defaults_are_those_of_greedy_decoding() -> None:
    assert parse(CHAT).fields["sampling"] == {
        "temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "repetition_penalty": 0, "repetition_context_size": 20,
        "presence_penalty": 0, "presence_context_size": 20, "frequency_penalty": 0, "frequency_context_size": 20,
        "logit_bias": {},
    }  # fmt: skip


def test_biases_are_numbers_for_known_tokens() -> None:
    right = {"0": -100, "255": 100, "7": 0.5}
    assert parse(CHAT | {"logit_bias": right}).fields["sampling"]["logit_bias"] == {0: -100.0, 255: 100.0, 7: 0.5}
    wrong: list[Any] = [{"256": 1}, {"-1": 1}, {"1": 101}, {"1": -101}, {"1": True}, {"1": "1"}, {"1": None}, {"x": 1}, [], 1]
    for value in wrong:
        assert refused(CHAT | {"logit_bias": value}).param == "logit_bias"
    at_most = {str(token): 1 for token in range(1024)}
    large = ModelLimits(model="org/m", vocabulary=0, context_tokens=100)
    assert len(parse(CHAT | {"logit_bias": at_most}, limits=large).fields["sampling"]["logit_bias"]) == 1024
    with pytest.raises(ApiError):
        parse(CHAT | {"logit_bias": at_most | {"1024": 1}}, limits=large)


def test_a_tools_description_and_parameters_are_each_checked() -> None:
    parts: tuple[dict[str, object], ...] = ({"description": 1}, {"parameters": "x"}, {"parameters": []})
    for part in parts:
        tool = {"type": "function", "function": {"name": "f", **part}}
        assert refused(CHAT | {"tools": [tool]}).param == "tools"
    whole = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    assert parse(CHAT | {"tools": [whole]}).fields["tools"] == [whole]


def test_a_token_beyond_the_vocabulary_is_refused_with_the_last_one() -> None:
    question = Prepare(endpoint="chat", limits=LIMITS)
    answer = requests.prepare(question, json.dumps(CHAT).encode(), lambda _: protocol.Prompt.of([1, 256]))
    assert isinstance(answer, Rejected) and answer.status == 400
    assert "contains token id 256; the model has ids 0 to 255 only" in answer.message
