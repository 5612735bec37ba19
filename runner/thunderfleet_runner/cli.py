"""``thunderfleet-runner``: ``serve`` runs in a runner pod; the agent calls ``size`` and ``capabilities``.

Each command imports what it needs when it runs: ``serve`` without MLX, and ``capabilities``, which every agent calls when it
starts, without Pydantic.
"""

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_crds.exchange.mounts import API_KEY_FOLDER, KEYS_FOLDER, PLAN_FOLDER, PLAN_KEY
from thunderfleet_crds.names import MAX_WORLD_SIZE
from thunderfleet_lib import collector, logs
from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_lib.host.sandbox import mounted
from thunderfleet_lib.net import authorities

from thunderfleet_runner.hub import arguments as fetching

log = logging.getLogger(__name__)

IN_PODS = ("serve", "resolve", "download")
"""The commands that run in pods. The others are for the agent and for people."""


def _world_sizes(text: str) -> range:
    first, _, last = text.partition("-")
    try:
        sizes = range(int(first), int(last or first) + 1)
    except ValueError:
        sizes = range(0)
    if not sizes or sizes[0] < 1 or sizes[-1] > MAX_WORLD_SIZE:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of ranks; use a number such as 2, or a range such as 1-4, from 1 to {MAX_WORLD_SIZE}"
        )
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="thunderfleet-runner",
        description="Run a rank of a served model, or compute the memory that a model needs.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="minimum log level")
    logs.add_argument(parser)
    commands = parser.add_subparsers(dest="command", required=True)

    serve = commands.add_parser(
        "serve",
        help="run this pod's rank of a group",
        description="Run this pod's rank of a group: join the other ranks, load the model and serve the HTTP API, until "
        "SIGTERM.",
        formatter_class=HelpFormatter,
    )
    serve.add_argument("--plan", type=Path, default=mounted(PLAN_FOLDER) / PLAN_KEY, help="file with the group's plan")
    serve.add_argument("--keys", type=Path, default=mounted(KEYS_FOLDER), help="folder with tls.crt and tls.key")
    serve.add_argument(
        "--api-keys", type=Path, default=mounted(API_KEY_FOLDER), help="folder with the accepted API keys, if any"
    )
    serve.add_argument("--pod", default=os.environ.get("POD_NAME"), help="this pod's name ($POD_NAME)")
    serve.add_argument("--node", default=os.environ.get("NODE_NAME"), help="this node's name ($NODE_NAME)")
    serve.add_argument(
        "--state-folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "thunderfleet-runner",
        help="folder for files of this pod's main process",
    )

    serve.add_argument(
        "--jaccl-environment",
        action="store_true",
        default=os.environ.get("THUNDERFLEET_JACCL_ENVIRONMENT", "") not in ("", "0"),
        help="let JACCL exchange its connection data itself, over a port of rank 0, instead of through the runner pods; for "
        "versions of MLX in which all_gather_factory does not work. The setting of rank 0 applies to the group "
        "($THUNDERFLEET_JACCL_ENVIRONMENT)",
    )

    size = commands.add_parser(
        "size",
        help="print the memory that a model needs, for each number of ranks",
        description="Print the memory that a model needs, for each number of ranks.",
        formatter_class=HelpFormatter,
    )
    size.add_argument("path", type=Path, help="folder of the model")
    size.add_argument("--world-sizes", type=_world_sizes, default=f"1-{MAX_WORLD_SIZE}", help="number of ranks, or a range")
    size.add_argument("-o", "--output", choices=("json",), default="json", help="output format")

    for name, text in (
        (
            "resolve",
            "print the commit of a revision on the hub, or of a URI, and the memory that the model needs; download no weights",
        ),
        ("download", "download a model from the hub, or from a URI, into the model store of this Mac"),
        ("quantize", "quantize a model of the hub with mlx-lm, for the model store of this Mac"),
    ):
        hub = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", formatter_class=HelpFormatter)
        fetching.add_arguments(hub, name)

    capabilities = commands.add_parser(
        "capabilities",
        help="print the versions and backends of MLX",
        description="Print the versions of mlx and mlx-lm, and the backends that mlx supports on this machine.",
        formatter_class=HelpFormatter,
    )
    capabilities.add_argument("-o", "--output", choices=("json",), default="json", help="output format")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program. Returns its exit code: 0 success, 1 failure, 2 invalid usage or input."""
    arguments = _parser().parse_args(argv)
    logs.set_up("runner", arguments.log_level, arguments.log_format if arguments.command in IN_PODS else logs.Format.TEXT)
    match arguments.command:
        case "serve":
            with collector.paused():
                authorities.import_aiohttp()
                from thunderfleet_runner import serving

            return serving.main(arguments)
        case "size":
            with collector.paused():
                from thunderfleet_runner.sizing import command

            return command.main(arguments.path, tuple(arguments.world_sizes))
        case "resolve" | "download" | "quantize":
            from thunderfleet_runner.hub import command as fetch

            return fetch.main(arguments)
        case _:
            from thunderfleet_runner.rank import capabilities

            return capabilities.main()


if __name__ == "__main__":
    sys.exit(main())
