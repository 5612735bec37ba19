"""Texts of others for a terminal, which would interpret control characters in them: logs, conditions, errors of servers."""


def printable(text: str) -> str:
    """``text`` without control characters, except line breaks and tabs."""
    return text if text.isprintable() else "".join(one for one in text if one in "\n\t" or one.isprintable())
