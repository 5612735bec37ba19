"""The result of a check, and helpers of all checks. Pure."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from thunderfleet_lib.host.hostcmd import Failure, Output, quote
from thunderfleet_lib.host.parsing import ParseError, clean, require_text, require_whole

Argv = tuple[str, ...]
Answers = Mapping[Argv, Output | Failure]
"""What each command printed, or how it failed."""

THIS_MAC = "this Mac"
LINE_CHARACTERS = 200


class State(StrEnum):
    """The result of a check."""

    OK = "ok"
    WARNING = "warning"
    """It works now, but may fail later, or works less well than it could."""
    FAILURE = "failure"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Repair:
    """Commands that repair this Mac, and those that undo them. Both need root."""

    commands: tuple[Argv, ...]
    undo: tuple[Argv, ...]


@dataclass(frozen=True)
class Check:
    """One check.

    ``subject``: ``this Mac``, or the name of a Node or cable. ``finding``: one sentence. ``fix``: a command, or several joined
    by ``&&``; empty if none helps. ``reason``: as in conditions, if the finding has one.
    """

    name: str
    state: State
    finding: str
    fix: str = ""
    reason: str = ""
    subject: str = THIS_MAC
    repair: Repair | None = None


def shown(commands: Sequence[Argv], full: Mapping[str, str]) -> str:
    """Commands for a user to type. ``full``: the paths of commands that are not in the usual PATH."""
    return " && ".join(shlex.join(["sudo", full.get(argv[0], argv[0]), *argv[1:]]) for argv in commands)


def printed(answers: Answers, argv: Argv) -> str:
    """Output of a command. Raises ParseError if the command failed, or its output is empty, not text or truncated."""
    answer, command = answers[argv], " ".join(argv)
    if isinstance(answer, Failure):
        raise ParseError(command, answer.message)
    if not answer.text.strip():
        raise ParseError(command, "printed nothing")
    require_text(command, answer.text)
    require_whole(command, answer.text)
    return answer.text


def unexpected(argv: Argv, text: str) -> ParseError:
    """The error for output that cannot be parsed: it quotes the first line."""
    line = next((line for line in text.splitlines() if line.strip()), "")
    return ParseError(" ".join(argv), f"printed unexpected output: {clean(quote(line), LINE_CHARACTERS) or 'nothing'}")
