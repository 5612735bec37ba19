"""The command lines of the commands that show a fleet."""

import argparse
import gc
from collections.abc import Callable
from pathlib import Path

from thunderfleet_cli.parsers import Parsers

MAX_TAIL = 100_000
NAME = "name of a ModelDeployment; with -A, NAMESPACE/NAME"


def add(commands: Parsers) -> None:
    """Adds ``status``, ``topology``, ``why``, ``cables``, ``top``, ``events``, ``logs``, ``plan`` and ``ui``."""
    _view(
        commands,
        "status",
        "show models, Macs and cables, and what is wrong with each",
        "Show ModelDeployments, Macs and cables, and what is wrong with each. Example: `thunderfleet status -A`",
        _status,
    )
    _view(
        commands,
        "topology",
        "draw Macs, the ranks on them and the cables between them",
        "Draw Macs, the ranks on them and the cables between them. Double lines are cables with RDMA. Example: "
        "`thunderfleet topology -o svg > fleet.svg`",
        _topology,
        formats=("text", "json", "svg"),
    )
    why = _view(
        commands,
        "why",
        "explain the state of a ModelDeployment, down to the first cause",
        "Explain the state of a ModelDeployment: its conditions, groups, ranks, pods, Macs and cables, and which of them is "
        "the cause. Exit code 0: it serves as it should; 1: it does not. Example: `thunderfleet why qwen`",
        _why,
    )
    why.add_argument("deployment", metavar="DEPLOYMENT", help=NAME)
    _view(
        commands,
        "cables",
        "list the cables that groups need and those that Macs detect",
        "List the cables: which Macs detect them, their speed and RDMA, and which groups need them. Faulty cables that "
        "groups need come first. Example: `thunderfleet cables`",
        _cables,
    )
    _view(
        commands,
        "top",
        "show the CPU and memory that Macs and ModelDeployments use",
        "Show the CPU and memory that each Mac uses, and the GPU memory that ModelDeployments reserve on it: in all "
        "namespaces, or in one if you cannot list all. CPU and memory need metrics-server. Example: `thunderfleet top`",
        _top,
        namespace="namespace to count if you cannot list all (default: that of the context)",
        every="count all namespaces; fail if you cannot list them",
    )
    events = _view(
        commands,
        "events",
        "list what happened to models, Macs and cables, in order",
        "List events of a ModelDeployment, its pods, Macs and cables by time; without DEPLOYMENT, of all. Example: "
        "`thunderfleet events qwen`",
        _events,
    )
    events.add_argument("deployment", metavar="DEPLOYMENT", nargs="?", help=f"{NAME} (default: all)")
    logs = _view(
        commands,
        "logs",
        "show the logs of all ranks of a ModelDeployment by time",
        "Show the logs of all ranks of a ModelDeployment as one log by time. The first cause of the last failure is marked "
        "with >>>. Example: `thunderfleet logs qwen --tail 50`",
        _logs,
    )
    logs.add_argument("deployment", metavar="DEPLOYMENT", help=NAME)
    logs.add_argument(
        "--tail", type=_lines, default=200, metavar="LINES", help=f"number of last lines of each rank, at most {MAX_TAIL}"
    )
    logs.add_argument("-f", "--follow", action="store_true", help="continue until the ranks end, or Ctrl-C")
    _add_plan(commands)
    page = _view(
        commands,
        "ui",
        "open a live page of Macs, cables and models",
        "Serve a live page of Macs, cables, models and their progress, for browsers on this machine, until Ctrl-C. It needs "
        "only a kubeconfig. The printed address works only once. Example: `thunderfleet ui --open`",
        _ui,
        formats=(),
        namespace="namespace of the ModelDeployments to show (default: all)",
        every="ModelDeployments of all namespaces, which is the default",
    )
    page.add_argument("--port", type=_port, default=0, help="port of 127.0.0.1 to listen on (default: a free one)")
    page.add_argument("--open", action="store_true", help="open the page in the browser of this machine")
    # For the page that the demo leaves running: it must end with its cluster.
    page.add_argument("--while-running", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)


def _add_plan(commands: Parsers) -> None:
    plan = _view(
        commands,
        "plan",
        "show where a ModelDeployment would be placed",
        "Plan a ModelDeployment as the operator would, on the cluster as it is; nothing is changed. Requires permission to "
        "list Nodes, pods and all kinds of Thunderfleet in all namespaces. Exit code 0: every group has a placement; 3: one "
        "has none. Example: `thunderfleet plan -f qwen.yaml --without studio-2`",
        _plan,
        formats=("text", "json", "yaml"),
        namespace="namespace of DEPLOYMENT (default: that of the context)",
        every=None,
    )
    which = plan.add_mutually_exclusive_group(required=True)
    which.add_argument("deployment", metavar="DEPLOYMENT", nargs="?", help="name of a ModelDeployment in the cluster")
    which.add_argument("-f", "--file", "--filename", type=Path, metavar="FILE", help="file with a ModelDeployment; - is stdin")
    plan.add_argument(
        "--what-if",
        action="append",
        default=[],
        metavar="CHANGE",
        help="plan as if this cable were plugged in, such as 'cable studio-1:1 studio-2:1 80' (Mac:port, Gb/s); may be "
        "repeated",
    )
    plan.add_argument("--without", action="append", default=[], metavar="MAC", help="plan without this Mac; may be repeated")
    plan.add_argument("--runners-up", type=int, default=3, metavar="N", help="number of next-best placements to print")


def _view(
    commands: Parsers,
    name: str,
    text: str,
    description: str,
    call: Callable[[argparse.Namespace], int],
    formats: tuple[str, ...] = ("text", "json"),
    namespace: str = "namespace of ModelDeployments (default: that of the context)",
    every: str | None = "ModelDeployments of all namespaces",
) -> argparse.ArgumentParser:
    parser = commands.add(name, text, description, call=call)
    if formats:
        parser.add_argument("-o", "--output", choices=formats, default="text", help="output format")
    parser.add_argument("-n", "--namespace", help=namespace)
    if every is not None:
        parser.add_argument("-A", "--all-namespaces", action="store_true", help=every)
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="kubeconfig file of the cluster to use (default: $KUBECONFIG, ~/.kube/config, or a local cluster)",
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current context)")
    return parser


def _lines(text: str) -> int:
    lines = int(text)
    if not 0 <= lines <= MAX_TAIL:
        raise ValueError(text)
    return lines


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def _uncollected(call: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A command that ends soon, without the collector of garbage.

    It would traverse all modules and all objects of the fleet again and again, which is a third of the command's time.
    """

    def brief(arguments: argparse.Namespace) -> int:
        before = gc.isenabled()
        gc.disable()
        try:
            return call(arguments)
        finally:
            if before:
                # What is left stays until the process ends, and is not traversed then either.
                gc.freeze()
                gc.enable()

    return brief


@_uncollected
def _status(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_status

    return show_status(arguments)


@_uncollected
def _topology(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_topology

    return show_topology(arguments)


@_uncollected
def _why(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_why

    return show_why(arguments)


@_uncollected
def _cables(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_cables

    return show_cables(arguments)


@_uncollected
def _top(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_top

    return show_top(arguments)


@_uncollected
def _events(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_events

    return show_events(arguments)


def _logs(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.command import show_logs

    return (show_logs if arguments.follow else _uncollected(show_logs))(arguments)


@_uncollected
def _plan(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.plan import show_plan

    return show_plan(arguments)


def _ui(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.view.ui import show_page

    return show_page(arguments)
