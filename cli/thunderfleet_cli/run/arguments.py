"""The command line of ``thunderfleet run``."""

import argparse
from pathlib import Path

from thunderfleet_cli.parsers import Parsers, seconds


def add(commands: Parsers) -> None:
    """Adds ``run``."""
    parser = commands.add(
        "run",
        "serve a model in any cluster, and chat with it",
        "Create a ModelDeployment, wait until it serves, and chat with it, or answer one prompt. The model keeps serving "
        "afterwards. A MODEL that is in no model folder of the Macs (the chart's value agent.modelFolders) is fetched from "
        "the Hugging Face Hub, unless the chart's value hub.enabled is false. If the model requires an API key, set "
        "$THUNDERFLEET_API_KEY. Exit code 3: the model cannot be placed now, or a group has failed and is no longer "
        "restarted. Example: `thunderfleet run mlx-community/Qwen3-30B-A3B-4bit --prompt 'Hello'`",
        call=_run,
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="organization/name, as on the Hugging Face Hub or in a model folder of the Macs; or https://host/folder/",
    )
    parser.add_argument(
        "--sha256",
        metavar="HASH",
        help="with a URI: hash of the file SHA256SUMS in the folder, as `sha256sum SHA256SUMS` prints it",
    )
    parser.add_argument(
        "--prompt", metavar="TEXT", help="answer this prompt and exit (default: standard input, or a chat at a terminal)"
    )
    parser.add_argument(
        "--name", dest="deployment", metavar="NAME", help="name of the ModelDeployment (default: derived from MODEL)"
    )
    parser.add_argument("-n", "--namespace", help="namespace of the ModelDeployment (default: that of the context)")
    parser.add_argument(
        "--timeout", type=seconds, default=1800, metavar="SECONDS", help="maximum time to wait until the model serves"
    )
    parser.add_argument(
        "--kubeconfig",
        type=Path,
        help="kubeconfig file of the cluster to use (default: $KUBECONFIG, ~/.kube/config, or a local cluster)",
    )
    parser.add_argument("--context", help="context of the kubeconfig (default: its current context)")


def _run(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.run.command import run

    return run(arguments)
