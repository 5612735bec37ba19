"""The command line of ``thunderfleet doctor``."""

import argparse
from pathlib import Path

from thunderfleet_cli.parsers import Parsers


def add(commands: Parsers) -> None:
    """Adds ``doctor``."""
    parser = commands.add(
        "doctor",
        "check this Mac, the other Macs of its cluster and their cables",
        "Check this Mac and, if there is a kubeconfig, all Macs and cables of the cluster. Each check is ok, a warning (it "
        "works now, but may not later), a failure, or unknown, and shows the command that repairs it, if there is one. Exit "
        "code 0: no check failed; 1: a check failed. Example: `sudo thunderfleet doctor --fix`",
        call=_doctor,
    )
    parser.add_argument(
        "--fix",
        action="store_true",
        help="make the repairs on this Mac that can be undone, print how to undo them, and print the commands for other Macs "
        "(needs root)",
    )
    parser.add_argument(
        "--gpu-memory",
        type=megabytes,
        metavar="MB",
        help="with --fix: set the memory that the GPU may wire, now and after each reboot: a number of MB, max (all that "
        "macOS can spare), or default (the limit that macOS chooses)",
    )
    parser.add_argument(
        "--no-test",
        action="store_true",
        help="show the most recent results of the agents instead of testing the cables now (a test connects over a cable, "
        "forms a group of two "
        "Macs and adds numbers)",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output format")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="kubeconfig file of the cluster to check (default: $KUBECONFIG, ~/.kube/config, or a local cluster; as root, "
        "only the one that `thunderfleet init` wrote)",
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current context)")


def _doctor(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.doctor.command import doctor

    return doctor(arguments)


def megabytes(text: str) -> str:
    """A value of ``--gpu-memory``. Raises ValueError."""
    from thunderfleet_cli.doctor import limit

    return limit.megabytes(text)
