"""``logs``: the logs of all ranks as one, by time, with the first cause of the last failure marked. Pure."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thunderfleet_crds.names import LABEL_GROUP, LABEL_RANK
from thunderfleet_lib import logtext
from thunderfleet_view import facts
from thunderfleet_view.facts import Json

CAUSE = ">>>"
"""Prefix of a line that is not from a log."""


@dataclass(frozen=True)
class Source:
    """The log of a container. ``label``: how its lines begin."""

    namespace: str
    pod: str
    container: str
    label: str

    @property
    def path(self) -> str:
        """API path."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.pod}/log"


@dataclass(frozen=True, order=True)
class Line:
    """A line of a log. ``time``: RFC 3339 in UTC, as the kubelet writes it; "" for a continuation line.

    ``record``: the JSON that a program logged, if it logs JSON.
    """

    time: str
    label: str
    text: str
    record: Mapping[str, Any] = field(default_factory=dict, compare=False)
    rest: bool = False
    """Whether it is a further line of the text of the line before."""

    @property
    def cause(self) -> bool:
        """Whether the line is the first cause of a failure and not from a log."""
        return self.label.startswith(CAUSE)


def sources(pods: Iterable[Json]) -> list[Source]:
    """The containers that have started, by group and rank. No two have the same label."""
    found = []
    for pod in pods:
        labels = facts.labels(pod)
        group, rank = labels.get(LABEL_GROUP, "?"), labels.get(LABEL_RANK, "?")
        node = facts.plain((pod.get("spec") or {}).get("nodeName") or "no node")
        for container in facts.status(pod).get("containerStatuses") or ():
            if any(key in (container.get("state") or {}) for key in ("running", "terminated")):
                label = f"group {group} rank {rank} {node}"
                found.append(Source(pod["metadata"]["namespace"], pod["metadata"]["name"], str(container.get("name")), label))
    return sorted(_apart(found), key=lambda source: (source.label, source.namespace, source.pod, source.container))


def _apart(found: Sequence[Source]) -> Iterator[Source]:
    """The sources with labels of their own: a Mac may have several pods of a rank, and a pod several containers."""
    alike = Counter(source.label for source in found)
    for source in found:
        if alike[source.label] > 1:
            label = f"{source.label} {source.namespace}/{source.pod}/{source.container}"
            yield replace(source, label=facts.plain(label))
        else:
            yield source


def lines(label: str, text: str) -> Iterator[Line]:
    """The lines of a log that was requested with timestamps."""
    for raw in text.splitlines():
        yield from parsed(label, raw)


def parsed(label: str, raw: str) -> Iterator[Line]:
    """The lines of one log entry: several if it has a traceback."""
    time, _, rest = raw.partition(" ")
    stamped = len(time) >= 20 and time[10:11] == "T"
    said = rest if stamped else raw
    first, *more = logtext.readable(said).split("\n")
    yield Line(time if stamped else "", label, facts.plain(first), logtext.parsed(said) or {})
    for line in more:
        yield Line(time if stamped else "", label, facts.plain(line), rest=True)


def as_values(line: Line) -> dict[str, Any]:
    """A line as a JSON object: the logged values, or only the text."""
    named = {"time": line.time, "source": line.label, "cause": line.cause}
    return {**(line.record or {"message": line.text}), **named}


def merged(logs: Mapping[str, str], causes: Sequence[Line]) -> Iterator[Line]:
    """All lines by time, with the causes at the times at which they happened."""
    parts = [_stamped(lines(label, text)) for label, text in logs.items()]
    yield from heapq.merge(*parts, sorted(causes), key=lambda line: line.time)


def _stamped(found: Iterable[Line]) -> Iterator[Line]:
    """Gives lines without a time the time of the line before, so that they stay behind it."""
    last = ""
    for line in found:
        last = line.time or last
        yield replace(line, time=last)


def causes(deployment: Json) -> list[Line]:
    """The last failure of each group, as a line at its time."""
    found = []
    for group in facts.groups(deployment):
        failure = group.get("lastFailure")
        if failure:
            where = f"rank {failure['rank']} " if failure.get("rank") is not None else ""
            text = f"first cause: {facts.plain(failure.get('reason') or '')}: {facts.plain(failure.get('message') or '')}"
            label = f"{CAUSE} group {group.get('index', 0)} {where}{facts.plain(failure.get('node') or '')}".rstrip()
            found.append(Line(facts.plain(failure.get("time") or ""), label, text))
    return found
