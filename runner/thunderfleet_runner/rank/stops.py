"""Finds stop strings in text that comes in pieces, and never shows a part of one."""

from collections.abc import Sequence


class StopFinder:
    """Feed it text; it gives back what can be shown. ``stops`` are non-empty strings."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """(what can be shown, whether a stop string is complete). Text from the stop string on is dropped."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        keep = next(
            (
                length
                for length in range(min(self._longest - 1, len(text)), 0, -1)
                if any(stop.startswith(text[-length:]) for stop in self._stops)
            ),
            0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back, when no more comes."""
        held, self._held = self._held, ""
        return held
