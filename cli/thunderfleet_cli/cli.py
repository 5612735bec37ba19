"""The ``thunderfleet`` command: its commands, exit codes and signals."""

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.paths import checked_name

from thunderfleet_cli.doctor import arguments as doctor
from thunderfleet_cli.install import arguments as install
from thunderfleet_cli.local import arguments as local
from thunderfleet_cli.model import arguments as model
from thunderfleet_cli.parsers import Parsers
from thunderfleet_cli.run import arguments as run
from thunderfleet_cli.support import arguments as support
from thunderfleet_cli.terminal import printable
from thunderfleet_cli.view import arguments as view

INTERRUPTED = 130
NOT_MOVED = {("token", word) for word in ("create", "-h", "--help")}
"""`thunderfleet token create` is another command than the earlier `thunderfleet token`."""
STATUS = "status"
"""The earlier command of this name showed a local cluster. It had these options:"""
LOCAL_OPTIONS = ("--name", "--dir")
PLUGIN = "kubectl thunderfleet"
"""How users call the program `kubectl-thunderfleet`."""


def _add_demo(commands: Parsers) -> None:
    demo = commands.add("demo", "run the demo: start a cluster, serve a model on two Macs, recover from a failure", call=_demo)
    demo.add_argument("--keep", action="store_true", help="leave the cluster running and print how to use it")


def _demo(arguments: argparse.Namespace) -> int:
    # The demo handles signals and errors itself.
    from thunderfleet_localcluster.demo import demo

    return demo.main(keep=arguments.keep)


COMMANDS: Sequence[Callable[[Parsers], None]] = (
    install.add,
    doctor.add,
    run.add,
    model.add,
    view.add,
    support.add,
    local.add,
    _add_demo,
)
"""Functions that add one or several commands with their implementations."""


def parser(program: str = "thunderfleet") -> argparse.ArgumentParser:
    """The command line of ``thunderfleet``, or of the plugin of kubectl, which has the same commands."""
    top = argparse.ArgumentParser(
        prog=program,
        description="Run models on Macs wired by Thunderbolt, with Kubernetes. Use kubectl for everything else in a cluster.",
        formatter_class=HelpFormatter,
    )
    commands = Parsers(top, "command")
    for add in COMMANDS:
        add(commands)
    return top


def moved(arguments: Sequence[str]) -> str | None:
    """The current form of a command line of an earlier version, in which the commands of ``local`` had no such prefix."""
    if not arguments or arguments[0] not in local.COMMANDS or tuple(arguments[:2]) in NOT_MOVED:
        return None
    if arguments[0] == STATUS and not any(one.partition("=")[0] in LOCAL_OPTIONS for one in arguments):
        return None
    return shlex.join(["thunderfleet", "local", *arguments])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Exit code 0: success, 1: failure, 2: invalid input, 130: interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    if (new := moved(given)) is not None:
        print(f"thunderfleet: `thunderfleet {given[0]}` is now `thunderfleet local {given[0]}`; run: {new}", file=sys.stderr)
        return 2
    parsed = parser(PLUGIN if Path(sys.argv[0]).name == "kubectl-thunderfleet" else "thunderfleet").parse_args(given)

    def interrupted(_: int, frame: FrameType | None) -> None:
        # That of asyncio.run cancels its task. An exception that is raised anywhere in its loop may leave a task without end.
        handle = signal.getsignal(signal.SIGINT)
        if not callable(handle):
            raise KeyboardInterrupt
        handle(signal.SIGINT, frame)

    # A closed terminal or SIGTERM ends `local up` like Ctrl-C, so that no process remains.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        if "name" in parsed:
            checked_name(parsed.name)
        code: int = parsed.call(parsed)
        return code
    except LocalClusterError as error:
        print(printable(f"thunderfleet: {error}"), file=sys.stderr)
        return 2 if error.usage else 1
    except KeyboardInterrupt:
        print("thunderfleet: interrupted", file=sys.stderr)
        return INTERRUPTED
    except subprocess.SubprocessError as error:
        print(printable(f"thunderfleet: {error}"), file=sys.stderr)
        return 1
