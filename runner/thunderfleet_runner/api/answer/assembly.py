"""A rank's tokens become parts of an answer. Pure."""

from collections.abc import Sequence
from typing import Any

from thunderfleet_runner import protocol
from thunderfleet_runner.api.answer.forced import ForcedCalls
from thunderfleet_runner.api.answer.parts import CallArguments, CallBegin, CallEnd, End, Part, Text
from thunderfleet_runner.api.request.tools import ANY
from thunderfleet_runner.intakeprotocol import Options, ToolsParsed


class Assembly:
    """One answer. What the model writes as a tool call needs its parser, which another process has: see ``unparsed``."""

    def __init__(self, options: Options, answer_id: str) -> None:
        self._prefix = f"call_{answer_id}"
        self._calls = 0
        self._tool_text: list[str] = []
        name = "" if options.forced == ANY else options.forced
        self._forced = ForcedCalls(name, self._prefix) if options.forced else None

    def token(self, token: protocol.Token) -> list[Part]:
        """The parts that a token completes."""
        if token.kind == "tool":
            self._tool_text.append(token.text)
            return [Text("text", "", token)] if token.token != protocol.NO_TOKEN else []
        if self._forced is not None and token.kind == "text":
            return [Text("text", "", token), *self._forced.feed(token.text)]
        return [Text("reasoning" if token.kind == "reasoning" else "text", token.text, token)]

    def unparsed(self, event: protocol.Token | protocol.Done) -> str:
        """What the model has written as a tool call that is complete with this event; empty if there is none."""
        if isinstance(event, protocol.Token) and not event.ends_tool:
            return ""
        text, self._tool_text = "".join(self._tool_text), []
        return text

    def parsed(self, tools: ToolsParsed) -> list[Part]:
        """The parts of what was unparsed: calls, or text that is no call after all."""
        parts: list[Part] = [Text("text", text) for text in tools.unparsed if text]
        for call in tools.calls:
            index, self._calls = self._calls, self._calls + 1
            parts += _whole(index, f"{self._prefix}_{index}", call)
        return parts

    def end(self, done: protocol.Done) -> tuple[list[Part], End]:
        """The last parts, and the end. Call it when nothing is unparsed."""
        parts = self._forced.end() if self._forced is not None else []
        called = bool(self._calls or (self._forced is not None and self._forced.count))
        reason = "tool_calls" if called and done.finish_reason == "stop" else done.finish_reason
        return parts, End(done, "length" if reason == "length" else "tool_calls" if reason == "tool_calls" else "stop")


def _whole(index: int, identifier: str, call: dict[str, Any]) -> Sequence[Part]:
    return CallBegin(index, identifier, call["name"]), CallArguments(index, call["arguments"]), CallEnd(index)
