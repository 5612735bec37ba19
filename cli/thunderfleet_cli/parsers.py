"""Argument parsers of commands and their subcommands, all of the same form."""

import argparse
from collections.abc import Callable
from pathlib import Path

from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_localcluster.paths import DEFAULT_NAME


def seconds(text: str) -> float:
    """A time limit of at most a day. Raises ValueError."""
    found = float(text)
    if not 0 < found <= 86400:
        raise ValueError(text)
    return found


class Parsers:
    """Adds the subcommands of ``top``.

    ``dest``: the attribute that gets the command's name. ``local``: whether a command has the options that name a local
    cluster, unless it sets another default.
    """

    def __init__(self, top: argparse.ArgumentParser, dest: str, local: bool = False) -> None:
        self._local = local
        self._commands = top.add_subparsers(dest=dest, required=True, metavar="COMMAND")
        self._options = argparse.ArgumentParser(add_help=False)
        self._options.add_argument(
            "--name", default=DEFAULT_NAME, help="cluster name; clusters with different names can coexist"
        )
        self._options.add_argument(
            "--dir",
            type=Path,
            help="cluster folder (default: NAME below /var/lib/thunderfleet, or below ~/.local/state/thunderfleet if not root)",
        )

    def add(
        self,
        name: str,
        text: str,
        description: str = "",
        *,
        call: Callable[[argparse.Namespace], int] | None = None,
        local: bool | None = None,
    ) -> argparse.ArgumentParser:
        """A command: ``text`` for the list of commands, and a longer ``description``.

        ``call`` gets the parsed arguments, returns the exit code and may raise LocalClusterError; None if a parent command
        has it. It imports the implementation. ``local``: with the options that name a local cluster.
        """
        parser = self._commands.add_parser(
            name,
            help=text,
            description=(description or text[0].upper() + text[1:]) + ".",
            parents=[self._options] if (self._local if local is None else local) else [],
            formatter_class=HelpFormatter,
        )
        if call is not None:
            parser.set_defaults(call=call)
        return parser
