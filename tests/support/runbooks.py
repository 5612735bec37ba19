"""The commands that the documentation and the alerts name, and the parts of a page that alerts link to."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TROUBLESHOOT: Final = ROOT / "docs" / "troubleshoot.md"
ALERTS: Final = ROOT / "charts" / "thunderfleet" / "templates" / "alerts.yaml"
PROGRAMS: Final = ("kubectl", "thunderfleet", "thunderfleet-agent", "thunderfleet-kubelet", "thunderfleet-operator")
LABELS: Final = {
    "name": "NAME",
    "deployment": "NAME",
    "namespace": "NAMESPACE",
    "node": "NODE",
}
"""What stands for the labels of an alert, as in the pages."""
WITH_VALUE: Final = ("-n", "-o", "-l")
NESTED: Final = ("model", "local", "token")
"""Commands of ``thunderfleet`` that have commands."""
_CODE: Final = re.compile(r"`([^`\n]+)`|^\$ (.+)$", re.MULTILINE)
_WORD: Final = re.compile(r"^[a-z][a-z-]*$")


@dataclass(frozen=True)
class Command:
    """A command: the program, and the words after it. ``text``: as it is written."""

    program: str
    words: tuple[str, ...]
    text: str

    @property
    def mentioned(self) -> bool:
        """Whether it only names a command (``kubectl logs``), and leaves it to the reader what to add."""
        return all(_WORD.match(word) for word in self.words)


def command(text: str) -> Command | None:
    """The first command of a pipe, without ``sudo``; None if it is no program of ours and not kubectl."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return None
    if words[:1] == ["sudo"]:
        words = words[1:]
    if not words or words[0] not in PROGRAMS:
        return None
    end = next((at for at, word in enumerate(words) if word in ("|", ">", "\\")), len(words))
    program, *rest = words[:end]
    if program == "kubectl" and rest[:1] == ["thunderfleet"]:
        program, *rest = rest
    return Command(program, tuple(rest), text)


def of_page(page: str) -> list[Command]:
    """The commands in a page: in backquotes, or after a prompt."""
    return [found for one, other in _CODE.findall(page) if (found := command(one or other)) is not None]


def of_alerts(template: str) -> list[Command]:
    """The commands in the annotations of alerts. They stand in sentences, so each ends where no argument follows."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: LABELS.get(found[1], found[0]), template)
    text = re.sub(r'\{\{ include "thunderfleet\.namespace" \. \}\}', "thunderfleet-system", text)
    return [
        made
        for found in re.finditer(r"(?<![\w./-])(?:kubectl thunderfleet|kubectl|thunderfleet) (?!\{)", text)
        if (made := command(" ".join([found[0].strip(), *_arguments(found[0].split(), text[found.end() :].split())])))
    ]


def _arguments(program: list[str], words: list[str]) -> list[str]:
    """The words that are a part of the command: its subcommand, options with their values, and what they are about."""
    names = 2 if program == ["kubectl"] or words[0] in NESTED else 1
    found: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        plain = word.rstrip(".,;:)`")
        if plain.startswith("{"):
            break
        if not (word.startswith("-") or before in WITH_VALUE or plain.isupper()):
            names -= 1
            if names < 0:
                break
        found.append(plain)
        if plain != word:
            break
    return found


def sections(page: str) -> dict[str, str]:
    """The parts of a page by the anchor of their heading, as GitHub makes it."""
    parts = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return {anchor(heading): text for heading, text in zip(parts[::2], parts[1::2], strict=True)}


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
