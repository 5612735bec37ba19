"""A rank's tokens become parts of an answer. Pure."""

from collections.abc import Sequence
from typing import Any

from thunderfleet_runner import protocol
from thunderfleet_runner.api.answer.calls import Calls
from thunderfleet_runner.api.answer.parts import CallArguments, CallBegin, CallEnd, End, Part, Text
from thunderfleet_runner.api.request.tools import ANY
from thunderfleet_runner.intakeprotocol import Options, ToolsParsed

_PYTHON_TAG = "<|python_tag|>"
"""Text that Llama 3 may write before a call without marks."""


class Assembly:
    """One answer. Tool calls in the model's own format are parsed by another process: see ``unparsed``.

    Calls in JSON are read here, piece by piece. Text that turns out not to be such a call goes to the parser when it is
    complete.
    """

    def __init__(self, options: Options, answer_id: str) -> None:
        self._prefix = f"call_{answer_id}"
        self._calls = 0
        """Number of calls so far."""
        self._pending: list[str] = []
        """Text of a call that has not been parsed yet."""
        self._parallel = options.parallel
        self._json = options.calls != "marked"
        self._bare = options.calls == "bare" and bool(options.tools) and not options.forced
        """Whether the answer is, or may become, a call without marks."""
        self._start = ""
        """The beginning of an answer that may become a call."""
        self._forced: Calls | None = None
        if options.forced == ANY:
            self._forced = Calls(self._prefix, outer=1)
        elif options.forced:
            self._forced = Calls(self._prefix, options.forced)
        self._reading: Calls | None = None
        """The call in JSON that the model is writing."""

    def token(self, token: protocol.Token) -> list[Part]:
        """The parts that a token completes."""
        return self._kept(self._completed(token))

    def _completed(self, token: protocol.Token) -> list[Part]:
        if token.kind == "reasoning":
            return [Text("reasoning", token.text, token)]
        if token.kind == "tool":
            return [*_silent(token), *self._written(token.text)]
        if self._forced is not None:
            parts = self._forced.feed(token.text)
            self._calls = self._forced.count
            return [*_silent(token), *parts]
        if self._bare and self._may_be_a_call(token.text):
            return [*_silent(token), *self._written(token.text)]
        return [*self._released(), Text("text", token.text, token)]

    def unparsed(self, event: protocol.Token | protocol.Done) -> str:
        """The text of a tool call that is complete with this event and must be parsed; empty otherwise."""
        if isinstance(event, protocol.Token) and not event.ends_tool:
            return ""
        text, self._pending = "".join(self._pending), []
        return text

    def parsed(self, tools: ToolsParsed) -> list[Part]:
        """The parts of the parsed text: calls, or text that is not a call."""
        parts: list[Part] = [Text("text", text) for text in tools.unparsed if text]
        for call in tools.calls:
            index, self._calls = self._calls, self._calls + 1
            parts += _whole(index, f"{self._prefix}_{index}", call)
        return self._kept(parts)

    def ended(self, event: protocol.Token | protocol.Done) -> list[Part]:
        """Ends a call in JSON that the model has not completed."""
        if isinstance(event, protocol.Token) and not event.ends_tool:
            return []
        reading, self._reading = self._reading, None
        return [] if reading is None else self._kept(reading.end())

    def end(self, done: protocol.Done) -> tuple[list[Part], End]:
        """The last parts, and the end. Call this when nothing has to be parsed any more."""
        parts = self._forced.end() if self._forced is not None else []
        reason = "tool_calls" if self._calls and done.finish_reason == "stop" else done.finish_reason
        return parts, End(done, "length" if reason == "length" else "tool_calls" if reason == "tool_calls" else "stop")

    def _kept(self, parts: list[Part]) -> list[Part]:
        """Removes the calls after the first, if the client allows at most one."""
        return parts if self._parallel else [part for part in parts if isinstance(part, Text) or part.index == 0]

    # --- calls that the model writes without being forced to ---

    def _written(self, text: str) -> list[Part]:
        if not self._json:
            self._pending.append(text)
            return []
        if self._reading is None:
            self._reading = Calls(self._prefix, count=self._calls)
        parts = self._reading.feed(text)
        self._calls = self._reading.count
        if not self._reading.begun:
            self._pending.append(text)
        else:
            self._pending.clear()
        return parts

    def _may_be_a_call(self, text: str) -> bool:
        if self._start.startswith(("{", _PYTHON_TAG)):
            return True
        self._start = (self._start + text).lstrip()
        if self._start.startswith(("{", _PYTHON_TAG)) or _PYTHON_TAG.startswith(self._start):
            return True
        self._bare = False
        return False

    def _released(self) -> list[Part]:
        """Text that was held back because it might have become a call."""
        text, self._pending = "".join(self._pending), []
        return [Text("text", text)] if text else []


def _silent(token: protocol.Token) -> list[Part]:
    """A token whose text is not shown, for log probabilities and ids."""
    return [Text("text", "", token)] if token.token != protocol.NO_TOKEN else []


def _whole(index: int, identifier: str, call: dict[str, Any]) -> Sequence[Part]:
    return CallBegin(index, identifier, call["name"]), CallArguments(index, call["arguments"]), CallEnd(index)
