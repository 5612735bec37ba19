"""Parses the query parameters of logs, exec and attach. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from thunderfleet_kubelet.containers.streams.logs import LogOptions

STREAMS = {"All": None, "Stdout": "stdout", "Stderr": "stderr"}
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class BadRequest(Exception):
    """A query that cannot be answered; the message names what is allowed (HTTP 400)."""


def _flag(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0", ""):
        raise BadRequest(f"{name}={text}: must be true or false")
    return text in ("true", "1")


def _count(query: Mapping[str, str], name: str, least: int) -> int | None:
    text = query.get(name)
    if text is None or text == "":
        return None
    if not re.fullmatch(r"-?\d{1,18}", text) or int(text) < least:
        raise BadRequest(f"{name}={text}: must be an integer of at least {least}")
    return int(text)


def _since(query: Mapping[str, str], now: datetime) -> datetime | None:
    """``sinceTime`` or ``now`` - ``sinceSeconds``."""
    seconds, text = _count(query, "sinceSeconds", 1), query.get("sinceTime")
    if seconds is not None and text:
        raise BadRequest("sinceSeconds and sinceTime: at most one may be set")
    if seconds is not None:
        try:
            return now - timedelta(seconds=seconds)
        except OverflowError:
            raise BadRequest(f"sinceSeconds={seconds}: too large") from None
    if not text:
        return None
    if not RFC3339.fullmatch(text):
        raise BadRequest(f"sinceTime={text}: must be RFC 3339, such as 2026-01-31T12:00:00Z")
    try:
        # Go writes nanoseconds, datetime holds microseconds.
        found = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
        # The first and the last possible date may be out of range in UTC.
        found.astimezone(UTC)
        return found
    except (ValueError, OverflowError):
        raise BadRequest(f"sinceTime={text}: not a valid time") from None


def log_options(query: Mapping[str, str], now: datetime) -> tuple[LogOptions, bool]:
    """The options of ``/containerLogs``, and whether it requests the previous attempt. Raises BadRequest."""
    since = _since(query, now)
    stream, tail = query.get("stream") or "All", _count(query, "tailLines", 0)
    if stream not in STREAMS:
        raise BadRequest(f"stream={stream}: must be one of {', '.join(STREAMS)}")
    if STREAMS[stream] is not None and tail is not None:
        raise BadRequest("tailLines: only supported with stream=All")
    options = LogOptions(
        follow=_flag(query, "follow"),
        tail=tail,
        since=since,
        timestamps=_flag(query, "timestamps"),
        limit_bytes=_count(query, "limitBytes", 1),
        stream=STREAMS[stream],
    )
    return options, _flag(query, "previous")


@dataclass(frozen=True)
class StreamOptions:
    """The streams of an exec or attach."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


def stream_options(query: Mapping[str, str]) -> StreamOptions:
    """The options of ``/exec`` and ``/attach``. Raises BadRequest."""
    options = StreamOptions(_flag(query, "input"), _flag(query, "output"), _flag(query, "error"), _flag(query, "tty"))
    if not (options.stdin or options.stdout or options.stderr):
        raise BadRequest("at least one of input, output and error must be 1")
    return options
