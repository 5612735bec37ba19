"""``kubectl_complete-thunderfleet``: completes command lines of the plugin.

kubectl runs it with the words after ``kubectl thunderfleet``; the last one is to be completed and may be empty. It prints one
choice per line, with a tab and a description, and finally a directive of Cobra's shell completion.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kubernetes.aio.config.config_exception import ConfigException
from thunderfleet_crds.names import API_VERSION, MODELDEPLOYMENT_PLURAL
from thunderfleet_lib.kube import ApiError
from thunderfleet_lib.kube.kubeconfig import contexts
from thunderfleet_localcluster.errors import LocalClusterError

from thunderfleet_cli.cli import PLUGIN, parser
from thunderfleet_cli.connection import connect

FILES: Final = ":0"
"""Directive: the shell completes names of files."""
NO_FILES: Final = ":4"
NAMES_SECONDS: Final = 3.0
MAX_CHOICES: Final = 500

Lookup = Callable[[str, Mapping[str, str]], Iterable[str]]
"""The names that an argument can have, by its ``dest``, with the options before it; none if they cannot be read."""


@dataclass
class _Place:
    """The position of the last word in a command line."""

    parser: argparse.ArgumentParser
    options: dict[str, str] = field(default_factory=dict)
    positionals: int = 0
    waiting: argparse.Action | None = None
    """The option whose value comes next."""


def completed(words: Sequence[str], lookup: Lookup) -> Iterator[str]:
    """The lines to print for the words of a command line; the last word is to be completed."""
    *before, last = words or [""]
    place = _Place(parser(PLUGIN))
    for word in before:
        _step(place, word)
    name, equals, begun = last.partition("=")
    if place.waiting is not None:
        yield from _values(place.waiting, last, "", place, lookup)
    elif last.startswith("--") and equals and (option := _option(place.parser, name)) is not None:
        yield from _values(option, begun, f"{name}=", place, lookup)
    elif last.startswith("-"):
        options = {_long(action): action.help or "" for action in place.parser._actions if action.option_strings}
        yield from _lines(options, last)
        yield NO_FILES
    elif (commands := _commands(place.parser)) is not None:
        known = {choice.dest: choice.help or "" for choice in commands._choices_actions}
        yield from _lines(known, last)
        yield NO_FILES
    else:
        actions = [action for action in place.parser._actions if not action.option_strings]
        if place.positionals < len(actions):
            yield from _values(actions[place.positionals], last, "", place, lookup)
        else:
            yield NO_FILES


def _step(place: _Place, word: str) -> None:
    """Processes one word before the last one."""
    if place.waiting is not None:
        place.options[place.waiting.dest], place.waiting = word, None
        return
    if word.startswith("-"):
        name, equals, value = word.partition("=")
        option = _option(place.parser, name)
        if option is not None and option.nargs != 0:
            if equals:
                place.options[option.dest] = value
            else:
                place.waiting = option
        return
    commands = _commands(place.parser)
    if commands is None:
        place.positionals += 1
    elif word in commands.choices:
        place.parser, place.positionals = commands.choices[word], 0


def _values(action: argparse.Action, begun: str, prefix: str, place: _Place, lookup: Lookup) -> Iterator[str]:
    if action.choices is not None:
        yield from (f"{prefix}{line}" for line in _lines(dict.fromkeys(map(str, action.choices), ""), begun))
        yield NO_FILES
    elif action.type is Path:
        yield FILES
    else:
        names = lookup(action.dest, place.options)
        yield from (f"{prefix}{line}" for line in _lines(dict.fromkeys(names, ""), begun))
        yield NO_FILES


def _lines(choices: Mapping[str, str], begun: str) -> Iterator[str]:
    found = [(name, text) for name, text in choices.items() if name.startswith(begun)]
    for name, text in found[:MAX_CHOICES]:
        yield f"{name}\t{' '.join(text.split())}" if text else name


def _long(action: argparse.Action) -> str:
    return next((name for name in action.option_strings if name.startswith("--")), action.option_strings[0])


def _option(found: argparse.ArgumentParser, name: str) -> argparse.Action | None:
    return next((action for action in found._actions if name in action.option_strings), None)


def _commands(found: argparse.ArgumentParser) -> "argparse._SubParsersAction[argparse.ArgumentParser] | None":
    return next((action for action in found._actions if isinstance(action, argparse._SubParsersAction)), None)


def lookup(dest: str, options: Mapping[str, str]) -> Iterable[str]:
    """Names from the cluster or the kubeconfig; none if they cannot be read, since an error would disturb the user's typing."""
    with contextlib.suppress(LocalClusterError, ConfigException, ApiError, OSError, ValueError, TimeoutError):
        kubeconfig = Path(options["kubeconfig"]) if "kubeconfig" in options else None
        connection = connect(kubeconfig, options.get("context"), options.get("namespace"))
        if dest == "context":
            known, _ = contexts(connection.kubeconfig)
            return sorted(str(one.get("name")) for one in known)
        paths = {
            "deployment": f"/apis/{API_VERSION}/namespaces/{connection.namespace}/{MODELDEPLOYMENT_PLURAL}",
            "namespace": "/api/v1/namespaces",
            "without": "/api/v1/nodes",
        }
        if dest in paths:

            async def names() -> list[str]:
                async with asyncio.timeout(NAMES_SECONDS), await connection.kube() as kube:
                    return sorted(str(one["metadata"]["name"]) for one in (await kube.list(paths[dest]))[0])

            return asyncio.run(names())
    return ()


def main() -> int:
    """Entry point."""
    for line in completed(sys.argv[1:], lookup):
        print(line)
    return 0
