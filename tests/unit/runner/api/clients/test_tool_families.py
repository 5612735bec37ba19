"""Tool calls of the families of models that people serve, as their published chat templates write them.

Real tokenizers are not to be had here: the test model's gets the marks of each family and a template that has them. What the
model writes is fed to rank 0's code in pieces, and goes through the parser and the writer as in a group.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from mlx_lm import server
from mlx_lm.generate import make_text_state_machine
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_runner import protocol
from thunderfleet_runner.api.answer.assembly import Assembly
from thunderfleet_runner.api.answer.writer import Head
from thunderfleet_runner.api.openai.chat_writer import ChatWriter
from thunderfleet_runner.intakeprotocol import Options, ToolsParsed
from thunderfleet_runner.rank import mlxlm
from thunderfleet_runner.rank.answers.answer import Answer

TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "time", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip
OSLO = ("weather", {"city": "Oslo"})
TIME: tuple[str, dict[str, Any]] = ("time", {})
DS = "<｜tool▁calls▁begin｜>"
KIMI = "<|tool_call_begin|>functions.{}<|tool_call_argument_begin|>{}<|tool_call_end|>"

# Family: (a part of its template, its tokens, what it writes, the text around the calls, the calls).
FAMILIES: dict[str, tuple[str, tuple[str, ...], str, str, list[tuple[str, dict[str, Any]]]]] = {
    "Qwen 2.5 and 3, Hermes": (
        "<tool_call> tool_call.name", (),
        'Well.<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        "Well.\n", [OSLO, TIME],
    ),
    "Qwen 3 Coder": (
        "<tool_call>\\n<function=", (),
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", "", [OSLO],
    ),
    "Mistral": ("[TOOL_CALLS]", (), '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}', "", [OSLO]),
    "Mistral, older": (
        "[TOOL_CALLS]", (),
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "time", "arguments": {}}]',
        "", [OSLO, TIME],
    ),
    "GLM": (
        "<arg_key>", (), "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</tool_call>", "", [OSLO],
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|>", (),
        "<|tool_calls_section_begin|>" + KIMI.format("weather:0", '{"city": "Oslo"}') + KIMI.format("time:1", "{}")
        + "<|tool_calls_section_end|>",
        "", [OSLO, TIME],
    ),
    "MiniMax": (
        "<minimax:tool_call>", (),
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        "", [OSLO],
    ),
    "FunctionGemma": (
        "<start_function_call>", (),
        "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>", "", [OSLO],
    ),
    "Gemma 4": ("<|tool_call> <tool_call|>", (), '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|>', "", [OSLO]),
    "DeepSeek V3 and R1": (
        DS, (),
        f"Well.{DS}<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n" + '{"city": "Oslo"}' + "\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Well.", [OSLO, TIME],
    ),
    "DeepSeek V3.1": (
        DS, (),
        f"{DS}<｜tool▁call▁begin｜>weather<｜tool▁sep｜>" + '{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "", [OSLO],
    ),
    "DeepSeek V3.2": (
        "", ("｜DSML｜",),
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" string="true">Oslo'
        '</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="time">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "", [OSLO, TIME],
    ),
    "Llama 3": (
        '"name", "parameters"', ("<|python_tag|>",), '{"name": "weather", "parameters": {"city": "Oslo"}}', "", [OSLO],
    ),
    "Llama 3, two calls": (
        '"name", "parameters"', ("<|python_tag|>",),
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}; {"name": "time", "parameters": {}}',
        "", [OSLO, TIME],
    ),
    "gpt-oss": (
        "", ("<|channel|>", "<|constrain|>", "<|call|>", "<|message|>", "<|end|>"),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Well.<|end|>"
        '<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        "Well.", [OSLO],
    ),
    "gpt-oss, the recipient first": (
        "", ("<|channel|>", "<|constrain|>", "<|call|>", "<|message|>", "<|end|>"),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.time<|channel|>commentary json"
        "<|message|>{}<|call|>",
        "", [TIME],
    ),
}  # fmt: skip
PLAIN: dict[str, tuple[str, str]] = {
    "Llama 3": ("No call.", "No call."),
    "Llama 3, two calls": ('{"a": [1]}', '{"a": [1]}'),
    "gpt-oss": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is {sun}.", "It is {sun}.",
    ),
    "Qwen 2.5 and 3, Hermes": ('<tool_call>\n{"name": "weather"}\n</tool_call>', '\n{"name": "weather"}\n'),
    "DeepSeek V3 and R1": ("{}", "{}"),
}  # fmt: skip


def _tokenizer(folder: Path, template: str, tokens: tuple[str, ...]) -> Any:
    tinymodel.make(folder, layers=1)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    kind = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": 300 + at, "content": word, **kind} for at, word in enumerate(tokens)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] += "{# " + template + " #}"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return mlxlm.load_tokenizer(folder, json.loads((folder / "config.json").read_text()))


def _written(tokenizer: Any, text: str, size: int, *, parallel: bool = True) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The message, and the deltas of the stream, when the model writes a text in pieces of ``size`` characters."""
    options = Options(
        endpoint="chat", max_tokens=99, calls=mlxlm.call_format(tokenizer), tools=json.dumps(TOOLS), parallel=parallel
    )
    events: list[Any] = []
    request = protocol.Request(id="x", prompt=protocol.Prompt.of([1]), max_tokens=99)
    answer = Answer(request, lambda *messages: events.extend(messages), str, True)
    context = server.GenerationContext(
        has_tool_calling=True, has_thinking=False, tool_parser=None, text_sm=make_text_state_machine(tokenizer),
        initial_state=tokenizer.response_initial_state or "normal", prompt=[1],
    )  # fmt: skip
    answer.put(context)
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for number, piece in enumerate(pieces):
        answer.put(server.Response(piece, number, 0.0, "stop" if number == len(pieces) - 1 else None, ()))
    head = Head(options, "m", "id", 5)
    streamed, whole, assembly = ChatWriter(head), ChatWriter(head), Assembly(options, "id")
    deltas: list[dict[str, Any]] = []
    for event in events:
        parts: list[Any] = []
        if found := assembly.unparsed(event):
            calls, unparsed = mlxlm.parse_tools(tokenizer.tool_parser, TOOLS, (found,))
            parts += assembly.parsed(ToolsParsed(calls=tuple(calls), unparsed=tuple(unparsed)))
        parts += assembly.ended(event)
        if isinstance(event, protocol.Token):
            parts += assembly.token(event)
        else:
            last, end = assembly.end(event)
            parts += last
            whole.close(0, end)
        for part in parts:
            whole.add(0, part)
            deltas += [chunk.data["choices"][0]["delta"] for chunk in streamed.part(0, part)]
    message: dict[str, Any] = json.loads(whole.whole())["choices"][0]["message"]
    return message, deltas


def _calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_of_each_family(tmp_path: Path, family: str, size: int) -> None:
    template, tokens, text, around, calls = FAMILIES[family]
    message, deltas = _written(_tokenizer(tmp_path, template, tokens), text, size)
    assert _calls(message) == calls
    assert (message["content"] or "").strip() == around.strip()
    assert message.get("reasoning_content", "") == ("Hm." if "analysis" in text else "")
    streamed = [entry for delta in deltas for entry in delta.get("tool_calls", ())]
    for index, (name, arguments) in enumerate(calls):
        mine = [entry["function"] for entry in streamed if entry["index"] == index]
        assert [function["name"] for function in mine if "name" in function] == [name]
        assert json.loads("".join(function["arguments"] for function in mine)) == arguments
    if size == 1 and family.startswith(("Qwen 2.5", "Llama")):
        # Calls in JSON are streamed as they come.
        assert len(streamed) > 2 * len(calls)


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("family", PLAIN)
def test_text_that_is_no_call_stays_text(tmp_path: Path, family: str, size: int) -> None:
    template, tokens, *_ = FAMILIES[family]
    text, shown = PLAIN[family]
    message, deltas = _written(_tokenizer(tmp_path, template, tokens), text, size)
    assert message["content"] == shown and "tool_calls" not in message
    assert "".join(delta.get("content", "") for delta in deltas) == shown


@pytest.mark.parametrize("family", ["Qwen 2.5 and 3, Hermes", "Kimi K2", "Llama 3, two calls"])
def test_a_client_that_wants_one_call_gets_the_first(tmp_path: Path, family: str) -> None:
    template, tokens, text, _, calls = FAMILIES[family]
    message, deltas = _written(_tokenizer(tmp_path, template, tokens), text, 3, parallel=False)
    assert len(calls) == 2 and _calls(message) == calls[:1]
    assert {entry["index"] for delta in deltas for entry in delta.get("tool_calls", ())} == {0}


def test_bad_calls_are_refused() -> None:
    bad = (
        (mlxlm.families.deepseek, "none"), (mlxlm.families.deepseek_dsml, "none"), (mlxlm.families.llama, '{"name": 5}'),
        (mlxlm.families.llama, "[1]"), (mlxlm.families.harmony, "weather"), (mlxlm.families.harmony, "weather<|message|>[1]"),
    )  # fmt: skip
    for parser, text in bad:
        assert mlxlm.parse_tools(parser, TOOLS, (text,)) == ([], [text])
