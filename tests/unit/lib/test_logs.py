"""Logs: the same fields in all programs, JSON or text, bounded; and how lines of JSON are shown to people."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from thunderfleet_lib import logs, logtext

log = logging.getLogger("test.logs")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged. The root logger and the fields of the process are as before after the test."""
    found, root = io.StringIO(), logging.getLogger()
    before, level = list(root.handlers), root.level
    monkeypatch.setattr(logs, "_always", {})
    yield found
    root.handlers[:] = before
    root.setLevel(level)


def set_up(stream: io.StringIO, form: logs.Format = logs.Format.JSON) -> None:
    logs.set_up("test", "info", form, handler=logging.StreamHandler(stream))


def entries(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_record_is_one_line_with_all_fields(stream: io.StringIO) -> None:
    set_up(stream)
    logs.always(node="studio-1", deployment="qwen", rank=0)
    with logs.fields(request="r1", attempt=2):
        log.warning("two\nlines: %s", "x", extra=logs.about({"code": 503}, group=1))
    log.debug("below the level")
    (entry,) = entries(stream)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "warning",
        "program": "test",
        "logger": "test.logs",
        "message": "two\nlines: x",
        "node": "studio-1",
        "deployment": "qwen",
        "rank": 0,
        "request": "r1",
        "attempt": 2,
        "group": 1,
        "code": 503,
    }


def test_an_exception_is_part_of_its_record(stream: io.StringIO) -> None:
    set_up(stream)
    try:
        raise KeyError("odd")
    except KeyError:
        log.exception("failed")
    (entry,) = entries(stream)
    assert entry["message"] == "failed"
    assert entry["error"].splitlines()[-1] == "KeyError: 'odd'"


async def test_fields_belong_to_a_task(stream: io.StringIO) -> None:
    set_up(stream)
    both = asyncio.Barrier(2)

    async def one(request: str) -> None:
        with logs.fields(request=request):
            await both.wait()
            log.info("inside")
        log.info("after")

    async with asyncio.timeout(60):
        await asyncio.gather(one("a"), one("b"))
    found = entries(stream)
    assert sorted(entry["request"] for entry in found if entry["message"] == "inside") == ["a", "b"]
    assert [entry for entry in found if entry["message"] == "after" and "request" in entry] == []


def test_what_is_not_known_is_left_out_and_what_is_long_is_cut(stream: io.StringIO) -> None:
    set_up(stream)
    logs.always(node=None)
    log.info("x" * (logs.MAX_CHARACTERS + 1), extra=logs.about(request="r" * 1000))
    (entry,) = entries(stream)
    assert "node" not in entry
    assert len(entry["message"]) < logs.MAX_CHARACTERS + 40
    assert entry["message"].endswith(f"… ({logs.MAX_CHARACTERS + 1} characters)")
    assert len(entry["request"]) < 600


def test_a_terminal_shows_text_with_the_fields_of_the_record(stream: io.StringIO) -> None:
    set_up(stream, logs.Format.TEXT)
    logs.always(node="studio-1")
    log.info("hello", extra=logs.about({"key": "two words", "code": 200}, group=0))
    assert stream.getvalue().rstrip().endswith('INFO test.logs hello group=0 key="two words" code=200')
    assert "studio-1" not in stream.getvalue()


@pytest.mark.parametrize(("terminal", "form", "text"), [(True, "auto", True), (False, "auto", False), (True, "json", False)])
def test_auto_is_text_on_a_terminal(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, terminal: bool, form: str, text: bool
) -> None:
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.set_up("test", "INFO", logs.Format(form))
    log.info("hello")
    assert stream.getvalue().startswith("{") is not text


def test_lines_of_json_become_text(stream: io.StringIO) -> None:
    set_up(stream)
    logs.always(node="studio-1", pod="p")
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("failed", extra=logs.about(attempt=3))
    line = stream.getvalue().rstrip("\n")
    first, *rest = logtext.readable(line).splitlines()
    assert first == "ERROR failed attempt=3"
    assert rest[-1] == "ValueError: no"
    assert logtext.messages(f"plain\n{line}") == "plain\nValueError: no"


@pytest.mark.parametrize(
    "line", ["", "plain", "{", '{"time": ', '{"time": 1}', '{"time": "x", "level": ' + "[" * 100_000, "[1]"]
)
def test_other_lines_stay_as_they_are(line: str) -> None:
    assert logtext.parsed(line) is None
    assert logtext.readable(line) == line
    assert logtext.messages(line) == line
