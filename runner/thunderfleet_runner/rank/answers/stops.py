"""Finds stop strings in streamed text, and never releases a part of one. Pure."""

from collections.abc import Sequence


class StopFinder:
    """Takes text piece by piece and returns what may be shown."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.found = ""
        """The stop string that is complete, if one is."""

    def feed(self, text: str) -> tuple[str, bool]:
        """(the text that may be shown, whether a stop string is complete). Text from the stop string on is dropped."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            at, self.found = min(found)
            return text[:at], True
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
        """The text held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held
