"""The command line: ``thunderfleet-router serve``."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_lib import collector, logs
from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_lib.host.descriptors import allow_descriptors
from thunderfleet_lib.host.sandbox import mounted

PORT = 4141
MAX_FLEET_ALIASES = 256


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="thunderfleet-router",
        description="Serve the models of all ModelDeployments behind one URL.",
        formatter_class=HelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="run a router",
        description="Run a router until SIGTERM. It watches ModelDeployments and sends each request to a group that serves its "
        "model. Example: thunderfleet-router serve --kubeconfig ~/.kube/config --address 127.0.0.1",
        formatter_class=HelpFormatter,
    )
    serve.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"), help="minimum log level")
    logs.add_argument(serve)
    serve.add_argument("--kubeconfig", type=Path, help="kubeconfig file (default: the service account of this pod)")
    serve.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE", "thunderfleet-system"),
        help="namespace of the release ($POD_NAMESPACE)",
    )
    serve.add_argument("--name", default=os.environ.get("POD_NAME", "router"), help="name of this router's pod ($POD_NAME)")
    serve.add_argument(
        "--address", action="append", default=[], metavar="ADDRESS",
        help="IP address to listen on ($HOST_IP, else 127.0.0.1); may be repeated",
    )  # fmt: skip
    serve.add_argument("--port", type=int, default=PORT, help="port to listen on")
    serve.add_argument("--tls", type=mounted, metavar="FOLDER", help="folder with tls.crt and tls.key; without it, plain HTTP")
    serve.add_argument(
        "--operator", metavar="URL",
        help="URL of the operator's endpoint for routers, such as https://10.0.0.5:9402 (default: the one that the operator "
        "publishes)",
    )  # fmt: skip
    serve.add_argument(
        "--aliases", type=mounted, metavar="FILE", help="JSON file that maps aliases to namespace/name of ModelDeployments"
    )
    serve.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="origin of web pages that may send requests, or * for all; may be repeated",
    )
    serve.add_argument("--page", action="store_true", help="also serve the live page")
    serve.add_argument(
        "--page-host", action="append", default=[], metavar="NAME",
        help="name or URL under which the page is served, in addition to IP addresses and $NODE_NAME; may be repeated",
    )  # fmt: skip
    serve.add_argument(
        "--anonymous-wake", action="store_true", help="let requests without an API key start models that have no groups"
    )
    serve.add_argument(
        "--hold-seconds", type=float, default=300, help="maximum time that a request waits for a group, in seconds"
    )
    serve.add_argument(
        "--drain-seconds", type=float, default=30, help="maximum time that requests continue after SIGTERM, in seconds"
    )
    return parser


def aliases_of(file: Path | None) -> dict[str, str]:
    """The fleet-wide aliases in a file. Raises OSError or ValueError."""
    if file is None:
        return {}
    found = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(found, dict) or len(found) > MAX_FLEET_ALIASES:
        raise ValueError(f"{file} must be a JSON object with at most {MAX_FLEET_ALIASES} aliases")
    for alias, target in found.items():
        if not isinstance(target, str) or target.count("/") != 1:
            raise ValueError(
                f"{file}: the alias {alias!r} must have namespace/name of a ModelDeployment as its value, not {target!r}"
            )
    return found


async def _serve(arguments: argparse.Namespace) -> int:
    with collector.paused():
        from thunderfleet_lib.kube import Kube

        from thunderfleet_router.app import Options, Router
        from thunderfleet_router.http.exchange import Settings

    log = logging.getLogger(__name__)
    allow_descriptors()
    try:
        settings = Settings(aliases_of(arguments.aliases), arguments.anonymous_wake, arguments.hold_seconds)
    except (OSError, ValueError) as error:
        log.error("%s", error)
        return 2
    options = Options(
        namespace=arguments.namespace,
        name=arguments.name,
        addresses=arguments.address or [os.environ.get("HOST_IP") or "127.0.0.1"],
        port=arguments.port,
        operator=arguments.operator,
        tls=arguments.tls,
        origins=arguments.cors_origin,
        drain_seconds=arguments.drain_seconds,
        settings=settings,
        page_hosts=[*arguments.page_host, os.environ.get("NODE_NAME", "")] if arguments.page else None,
    )
    async with await Kube.connect(arguments.kubeconfig) as kube:
        try:
            router = Router(kube, options)
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, router.ending.set)
            with contextlib.suppress(AttributeError):
                loop.add_signal_handler(signal.SIGHUP, lambda: None)
            await router.run()
        except OSError as error:
            log.error("%s", error)
            return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program. Returns its exit code: 0 success, 1 failure, 2 invalid usage or input."""
    arguments = _parser().parse_args(argv)
    logs.set_up("router", arguments.log_level, arguments.log_format)
    return asyncio.run(_serve(arguments))


if __name__ == "__main__":
    sys.exit(main())
