"""The command line of ``thunderfleet model``."""

import argparse
from pathlib import Path

from thunderfleet_crds.vocabulary import BITS, GROUP_SIZES, listed

from thunderfleet_cli.parsers import Parsers, seconds


def add(commands: Parsers) -> None:
    """Adds ``model`` with its commands."""
    top = commands.add("model", "fetch models from the hub or from a URI to the disks of Macs, and list and remove them")
    parsers = Parsers(top, "model_command")
    fetch = parsers.add(
        "pull",
        "fetch a model from the hub or from a URI, and keep it on Macs",
        "Create a ModelCache and show its progress until the Macs have the model. Exit code 3: the model was not fetched. "
        "Either you must fix the fault that is shown, or nothing more has arrived: for 5 minutes after another fault, for 30 "
        "minutes without a fault. The operator tries again in any case. "
        "Example: `thunderfleet model pull mlx-community/Qwen3-30B-A3B-4bit --copies 2`",
        call=_pull,
    )
    fetch.add_argument("model", metavar="MODEL", help="repository on the hub, as organization/name, or https://host/folder/")
    fetch.add_argument(
        "--sha256",
        metavar="HASH",
        help="with a URI: hash of the file SHA256SUMS in the folder, as `sha256sum SHA256SUMS` prints it",
    )
    fetch.add_argument("--revision", default="main", help="branch, tag or commit")
    fetch.add_argument(
        "--copies",
        type=int,
        default=1,
        metavar="N",
        help="number of Macs that keep the model; 0: only read its sizes, for `thunderfleet-operator plan`",
    )
    fetch.add_argument(
        "--quantize", type=int, choices=BITS, metavar="BITS", help=f"quantize the weights to {listed(BITS)} bits"
    )
    fetch.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        metavar="N",
        help=f"with --quantize: number of weights that share a scale, {listed(GROUP_SIZES)} (default: 64)",
    )
    fetch.add_argument("--token-secret", metavar="SECRET", help="Secret whose key token has a token of the hub")
    fetch.add_argument("--no-wait", action="store_true", help="return when the ModelCache exists")
    fetch.add_argument(
        "--timeout", type=seconds, default=86400, metavar="SECONDS", help="maximum time to wait until the Macs have the model"
    )
    shown = parsers.add(
        "list",
        "list models, and which Macs have them",
        "List ModelCaches, and models on Macs that no ModelCache keeps: what uses each, and how long ago each Mac last "
        "used it. "
        "Models with the status Unreferenced are removed when disk space is needed. Example: `thunderfleet model list -A`",
        call=_list,
    )
    shown.add_argument("-A", "--all-namespaces", action="store_true", help="list all namespaces")
    shown.add_argument("-o", "--output", choices=("table", "json"), default="table", help="output format")
    gone = parsers.add(
        "remove",
        "delete a ModelCache, so that Macs may delete its files",
        "Delete a ModelCache. Macs remove the files when they need the disk space for other models. "
        "Example: `thunderfleet model remove mlx-community/Qwen3-30B-A3B-4bit`",
        call=_remove,
    )
    gone.add_argument("model", metavar="MODEL", help="repository, URI, or name of the ModelCache")
    for parser in (fetch, shown, gone):
        _cluster(parser)


def _cluster(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--namespace", help="namespace of the ModelCache (default: that of the context)")
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="kubeconfig file of the cluster to use (default: $KUBECONFIG, ~/.kube/config, or a local cluster)",
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current context)")


def _pull(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.model.command import pull

    return pull(arguments)


def _list(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.model.command import list_models

    return list_models(arguments)


def _remove(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.model.command import remove

    return remove(arguments)
