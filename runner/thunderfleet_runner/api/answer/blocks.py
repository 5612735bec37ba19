"""An answer as a list of blocks, each of one kind, as some APIs return it. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from thunderfleet_runner.api.answer.parts import CallArguments, CallBegin, CallEnd, Part, Text


@dataclass
class Block:
    """A block so far."""

    index: int
    kind: Literal["text", "reasoning", "call"]
    id: str = ""
    name: str = ""
    """Name of the tool."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text, or a call's arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True)
class Change:
    """A block begins, gets more text, or is complete."""

    kind: Literal["open", "more", "close"]
    block: Block
    text: str = ""


class Blocks:
    """The blocks of one answer. White space between two blocks belongs to none."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._open: Block | None = None
        self._space = ""

    def feed(self, part: Part) -> list[Change]:
        """The changes of blocks that a part causes."""
        match part:
            case Text(kind=kind, text=text) if text:
                return self._text(kind, text)
            case CallBegin(id=identifier, name=name):
                return self._begin("call", identifier, name)
            case CallArguments(text=text) if text and self._open is not None:
                return self._more(self._open, text)
            case CallEnd():
                return self.close()
        return []

    def close(self) -> list[Change]:
        """Ends the block that is open, if one is."""
        block, self._open, self._space = self._open, None, ""
        return [] if block is None else [Change("close", block)]

    def _text(self, kind: Literal["text", "reasoning"], text: str) -> list[Change]:
        if self._open is not None and self._open.kind == kind:
            return self._more(self._open, text)
        text = self._space + text
        if text.isspace():
            self._space = text
            return []
        changes = self._begin(kind)
        assert self._open is not None, "a block has just begun"
        return [*changes, *self._more(self._open, text)]

    def _more(self, block: Block, text: str) -> list[Change]:
        block.pieces.append(text)
        return [Change("more", block, text)]

    def _begin(self, kind: Literal["text", "reasoning", "call"], identifier: str = "", name: str = "") -> list[Change]:
        changes = self.close()
        self._open = Block(len(self.all), kind, identifier, name)
        self.all.append(self._open)
        return [*changes, Change("open", self._open)]
