"""Sends changes to browsers. The data that waits for a slow browser is limited: a set of ids, or the whole fleet.

A message is a JSON object: ``whole`` (the page drops its data), ``put`` (entities), ``drop`` (ids), ``notes`` (sentences
about the server itself, such as that the API server is away), ``rates`` (of cables: names, with bits per second from the first
end to the second and back) and ``noRates`` (why there are none).
"""

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MAX_PENDING: Final = 1000
"""Changed entities that wait for one browser. Beyond that it gets the whole fleet again."""
GATHER_SECONDS: Final = 0.1
"""Changes that come together are sent together: at most ten messages a second."""


@dataclass(eq=False)
class Reader:
    """One browser. ``take`` waits for the next message."""

    feed: "Feed"
    whole: bool = True
    pending: dict[str, None] = field(default_factory=dict)
    noted: bool = True
    metered: bool = True
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, ids: Iterable[str]) -> None:
        """Records that entities have changed; their content is read when the browser takes it."""
        if not self.whole:
            self.pending.update(dict.fromkeys(ids))
            if len(self.pending) > MAX_PENDING:
                self.whole = True
                self.pending = {}
        self.changed.set()

    async def take(self, seconds: float) -> str | None:
        """The next message; None if nothing changes for ``seconds``."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return None
        if not self.whole:
            await asyncio.sleep(GATHER_SECONDS)
        self.changed.clear()
        ids = list(self.feed.texts) if self.whole else list(self.pending)
        message = self.feed.message(ids, whole=self.whole, noted=self.whole or self.noted, metered=self.whole or self.metered)
        self.whole, self.pending, self.noted, self.metered = False, {}, False, False
        return message


class Feed:
    """The entities as JSON texts, each encoded once for all browsers."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.notes: Sequence[str] = ()
        self._rates: tuple[dict[str, list[int]], str] = ({}, "")
        self._readers: set[Reader] = set()

    @property
    def readers(self) -> int:
        """Number of browsers."""
        return len(self._readers)

    def open(self) -> Reader:
        """Adds a browser. Its first message is the whole fleet."""
        reader = Reader(self)
        reader.changed.set()
        self._readers.add(reader)
        return reader

    def close(self, reader: Reader) -> None:
        """Drops a browser."""
        self._readers.discard(reader)

    def publish(self, changes: dict[str, dict[str, Any] | None]) -> None:
        """Changed entities by id; None for those that are gone."""
        for entity_id, entity in changes.items():
            if entity is None:
                self.texts.pop(entity_id, None)
            else:
                self.texts[entity_id] = json.dumps(entity, ensure_ascii=False, separators=(",", ":"))
        for reader in self._readers:
            reader.note(changes)

    def say(self, notes: Sequence[str]) -> None:
        """Sentences about the server itself."""
        if list(notes) == list(self.notes):
            return
        self.notes = list(notes)
        for reader in self._readers:
            reader.noted = True
            reader.changed.set()

    def meter(self, rates: dict[str, list[int]], reason: str) -> None:
        """Live rates of the cables that are not quiet, and why there are none."""
        if (rates, reason) == self._rates:
            return
        self._rates = rates, reason
        for reader in self._readers:
            reader.metered = True
            reader.changed.set()

    def message(self, ids: Iterable[str], *, whole: bool, noted: bool, metered: bool = False) -> str:
        """A message with the current content of these entities."""
        put, drop = [], []
        for entity_id in ids:
            text = self.texts.get(entity_id)
            if text is None:
                drop.append(entity_id)
            else:
                put.append(text)
        fields = [f'"put":[{",".join(put)}]', f'"drop":{json.dumps(drop)}']
        if whole:
            fields.append('"whole":true')
        if noted:
            fields.append(f'"notes":{json.dumps(self.notes)}')
        if metered:
            rates, reason = self._rates
            fields.append(f'"rates":{json.dumps(rates, separators=(",", ":"))},"noRates":{json.dumps(reason)}')
        return "{" + ",".join(fields) + "}"
