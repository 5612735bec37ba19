"""Tool calls in JSON, read piece by piece, so that clients get the arguments while they are generated. Pure.

If the client requires a call, the answer has the arguments of the one tool that the client named, or a list of objects, each
with the name of a tool and its arguments. Some models write such objects by themselves. The name comes first.
"""

import json
from dataclasses import dataclass, field

from thunderfleet_runner.api.answer.parts import CallArguments, CallBegin, CallEnd, Part

MAX_HEAD = 4096
"""Maximum characters of an object before its arguments; longer ones are not read here."""


@dataclass
class _Depth:
    """How deep a text of JSON is nested, and whether it ends within a string."""

    level: int = 0
    quoted: bool = False
    escaped: bool = False

    def feed(self, sign: str) -> None:
        if self.quoted:
            if self.escaped:
                self.escaped = False
            elif sign == "\\":
                self.escaped = True
            elif sign == '"':
                self.quoted = False
        elif sign == '"':
            self.quoted = True
        elif sign in "[{":
            self.level += 1
        elif sign in "]}":
            self.level -= 1


@dataclass
class Calls:
    """``prefix``: of the calls' ids."""

    prefix: str
    name: str = ""
    """Name of the one tool that must be called; empty for objects."""
    outer: int = 0
    """How deep the objects are nested: 1 in a list."""
    count: int = 0
    _depth: _Depth = field(default_factory=_Depth)
    _head: str = ""
    """The text of an object so far, until its arguments begin."""
    _inside: bool = False
    """Whether the arguments of a call have begun."""
    _first: bool = False
    """Whether a call has begun."""
    _text: bool = False
    """Whether there is any text of them yet."""

    @property
    def begun(self) -> bool:
        """Whether there is a call. Then all other text of its objects belongs to calls."""
        return self._first

    def feed(self, text: str) -> list[Part]:
        """The parts that become known with ``text``."""
        return self._one(text) if self.name else self._many(text)

    def end(self) -> list[Part]:
        """The remaining parts. A call that was cut off stays incomplete."""
        if not self._inside:
            return []
        return self._close()

    def _begin(self, name: str) -> CallBegin:
        self._inside, self._text, self._first = True, False, True
        self.count += 1
        return CallBegin(self.count - 1, f"{self.prefix}_{self.count - 1}", name)

    def _close(self) -> list[Part]:
        self._inside = False
        return [CallEnd(self.count - 1)]

    def _one(self, text: str) -> list[Part]:
        parts: list[Part] = [] if self._inside or self.count else [self._begin(self.name)]
        return [*parts, CallArguments(0, text)] if text else parts

    def _many(self, text: str) -> list[Part]:
        parts: list[Part] = []
        piece = ""
        inner = self.outer + 1
        for sign in text:
            before = self._depth.level
            self._depth.feed(sign)
            if self._inside:
                # The arguments end where their object's brackets are closed.
                if before == inner and self._depth.level < inner:
                    parts += self._arguments(piece)
                    parts += self._close()
                    piece, self._head = "", ""
                elif self._text or not sign.isspace():
                    self._text = True
                    piece += sign
            elif before >= self.outer and self._depth.level >= inner and len(self._head) < MAX_HEAD:
                self._head += sign
                if sign == ":" and not self._depth.quoted and self._depth.level == inner:
                    parts += self._opened()
        return parts + self._arguments(piece)

    def _arguments(self, piece: str) -> list[Part]:
        return [CallArguments(self.count - 1, piece)] if piece else []

    def _opened(self) -> list[Part]:
        """The call whose arguments begin, if they do."""
        try:
            head = json.loads(self._head + "null}")
        except ValueError:
            return []
        if not {"arguments", "parameters"} & head.keys() or not isinstance(head.get("name"), str):
            return []
        return [self._begin(head["name"])]
