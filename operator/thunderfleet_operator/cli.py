"""``thunderfleet-operator``: the command line."""

import argparse
import asyncio
import logging
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from thunderfleet_lib import collector, logs
from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_lib.net import authorities

from thunderfleet_operator.decide.placing.ports import PortRange, PortSettings
from thunderfleet_operator.plan_cli.arguments import add_arguments

if TYPE_CHECKING:
    from thunderfleet_operator.decide.routing.endpoints import RouterSettings

log = logging.getLogger(__name__)


def _range(text: str) -> PortRange:
    try:
        return PortRange.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 1 to 65535, not {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line's parser."""
    top = argparse.ArgumentParser(prog="thunderfleet-operator", description="Serve ModelDeployments on a fleet of Macs.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator", description="Run the operator.", formatter_class=HelpFormatter)
    run.add_argument("--runner-image", default="thunderfleet/thunderfleet:0.1.0", help="image of runner pods")
    run.add_argument(
        "--runner-pull-policy",
        default="IfNotPresent",
        choices=("Always", "IfNotPresent", "Never"),
        help="imagePullPolicy of runner pods",
    )
    run.add_argument("--metrics-port", type=_port, default=9401, help="port for /metrics, /healthz and /readyz")
    run.add_argument(
        "--host",
        default=os.environ.get("HOST_IP") or "127.0.0.1",
        help="address to listen on for --metrics-port ($HOST_IP)",
    )
    run.add_argument(
        "--ports",
        type=_range,
        default="20000-20999",
        help="ports of each Mac for the HTTP endpoints of groups (gateways) and for connections among their pods, FIRST-LAST",
    )
    run.add_argument(
        "--ring-ports",
        type=_range,
        default="21000-29999",
        help="ports of each Mac for the connections that MLX opens among ranks, FIRST-LAST",
    )
    run.add_argument("--router-port", type=_port, default=None, help="port of the routers on their nodes (default: no routers)")
    run.add_argument("--router-tls", action="store_true", help="routers serve HTTPS")
    run.add_argument("--router-url", default=None, help="URL at which clients outside the cluster reach the routers")
    run.add_argument(
        "--demand-port",
        type=_port,
        default=9402,
        help="port on the address of --host at which routers report requests that wait, with TLS",
    )
    run.add_argument(
        "--hub",
        choices=("enabled", "disabled"),
        default="enabled",
        help="whether models that no Mac has are fetched from the hub",
    )
    run.add_argument(
        "--hub-endpoint", default="", metavar="URL", help="URL of the hub or of a mirror (default: the public hub)"
    )
    run.add_argument("--hub-proxy", default="", metavar="URL", help="URL of the proxy through which Macs reach the hub")
    run.add_argument(
        "--hub-no-proxy", default="", metavar="HOSTS", help="hosts that are reached without the proxy, separated by commas"
    )
    run.add_argument(
        "--uri-host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="host from which Macs may fetch models (spec.model.uri); may be repeated",
    )
    run.add_argument(
        "--uri-private-host",
        action="append",
        default=[],
        metavar="HOST[:PORT]",
        help="host of --uri-host that may have private addresses; may be repeated",
    )
    run.add_argument(
        "--uri-certificate-authorities",
        default="",
        metavar="PEM",
        help="CA certificates that are accepted for the hosts of --uri-host in addition to those that Macs trust",
    )
    run.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "thunderfleet-system",
        help="namespace of the operator's Lease and key ($POD_NAMESPACE)",
    )
    run.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME") or None,
        help="name of this replica ($POD_NAME; default: the host name)",
    )
    run.add_argument(
        "--pod-uid",
        default=os.environ.get("POD_UID", ""),
        help="UID of this replica's pod ($POD_UID): a replica immediately takes over the Lease of an earlier process of its "
        "pod",
    )
    run.add_argument(
        "--kubeconfig",
        type=Path,
        default=os.environ.get("KUBECONFIG") or None,
        help="kubeconfig file ($KUBECONFIG; default: the pod's service account)",
    )
    run.add_argument(
        "--log-level",
        default="info",
        type=str.lower,
        choices=("debug", "info", "warning", "error"),
        help="minimum log level",
    )
    logs.add_argument(run)
    plan = commands.add_parser(
        "plan", help="plan a ModelDeployment on the fleet of a file or of a cluster", formatter_class=HelpFormatter
    )
    add_arguments(plan, _range)
    return top


def _routers(arguments: argparse.Namespace) -> "RouterSettings | None":
    """The settings of routers; None if there are none."""
    from thunderfleet_operator.decide.routing.endpoints import RouterSettings

    if arguments.router_port is None:
        return None
    url = (arguments.router_url or "").rstrip("/") or None
    return RouterSettings(arguments.namespace, arguments.router_port, arguments.router_tls, url)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; the exit status."""
    arguments = parser().parse_args(argv)
    if arguments.command == "plan":
        # Imported here so that --help stays fast, as for run.
        from thunderfleet_operator.plan_cli import command

        return command.run(arguments)
    logs.set_up("operator", arguments.log_level, arguments.log_format)
    # Imported here so that --help does not wait for kopf.
    with collector.paused():
        authorities.import_aiohttp()
        from thunderfleet_operator.app import Configuration, run
        from thunderfleet_operator.decide.deployment import Settings
        from thunderfleet_operator.decide.manifests import PodSettings
        from thunderfleet_operator.decide.weights.manifests import HubSettings, UriSettings
        from thunderfleet_operator.watch.leader import Identity

    lasting, ring = arguments.ports, arguments.ring_ports
    if lasting.first <= ring.last and ring.first <= lasting.last:
        print("thunderfleet-operator: --ports and --ring-ports must not overlap", file=sys.stderr)
        return 2
    configuration = Configuration(
        settings=Settings(
            pods=PodSettings(arguments.runner_image, arguments.runner_pull_policy),
            ports=PortSettings(lasting, ring),
            routers=_routers(arguments),
            hub=HubSettings(
                arguments.hub_endpoint,
                arguments.hub_proxy,
                arguments.hub_no_proxy,
                enabled=arguments.hub == "enabled",
                uris=UriSettings(
                    tuple(arguments.uri_host), tuple(arguments.uri_private_host), arguments.uri_certificate_authorities
                ),
            ),
        ),
        namespace=arguments.namespace,
        identity=Identity(arguments.identity or socket.gethostname(), arguments.pod_uid),
        host=arguments.host,
        metrics_port=arguments.metrics_port,
        demand_port=arguments.demand_port,
        kubeconfig=arguments.kubeconfig,
    )
    try:
        asyncio.run(run(configuration))
    except (OSError, RuntimeError, ValueError) as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        return 1
    except Exception as error:
        # The client's configuration, such as a kubeconfig that cannot be read.
        log.error("%s: %s", type(error).__name__, error)
        return 1
    return 0
