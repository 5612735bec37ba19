"""Times as the API writes them (``metav1.Time``): RFC 3339 in UTC, whole seconds."""

from datetime import UTC, datetime


def format_time(seconds: float) -> str:
    """Formats seconds since the epoch; fractions are cut off."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> float:
    """Seconds since the epoch of an RFC 3339 time. Raises ValueError."""
    return datetime.fromisoformat(text).timestamp()
