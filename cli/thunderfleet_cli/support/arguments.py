"""The command line of ``thunderfleet support``."""

import argparse
from pathlib import Path

from thunderfleet_cli.parsers import Parsers


def add(commands: Parsers) -> None:
    """Adds ``support``."""
    parser = commands.add(
        "support",
        "write an archive for a support request: logs, objects and versions, no secrets",
        "Write a .tar.gz archive with logs, Kubernetes objects and versions. It contains no Secrets; tokens, keys and "
        "passwords in logs and objects are replaced by [redacted]",
        call=_support,
        local=True,
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="kubeconfig file of the cluster to collect from (default: the local cluster; if it does not run, $KUBECONFIG or "
        "~/.kube/config)",
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current context)")
    parser.add_argument("-o", "--output", type=Path, help="archive to write (default: thunderfleet-support-TIME.tar.gz)")


def _support(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.support.command import support

    return support(arguments)
