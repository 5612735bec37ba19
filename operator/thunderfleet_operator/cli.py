"""``thunderfleet-operator``: the command line."""

import argparse
import asyncio
import logging
import os
import socket
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_operator.decide.ports import PortRange, PortSettings
from thunderfleet_operator.plan_cli.arguments import add_arguments

log = logging.getLogger(__name__)


def _range(text: str) -> PortRange:
    try:
        return PortRange.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _port(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to 65535, not {text!r}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    formatter = argparse.ArgumentDefaultsHelpFormatter
    top = argparse.ArgumentParser(prog="thunderfleet-operator", description="Serves ModelDeployments on a fleet of Macs.")
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the operator", description="Runs the operator.", formatter_class=formatter)
    run.add_argument("--runner-image", default="thunderfleet/thunderfleet:0.1.0", help="image of runner pods")
    run.add_argument(
        "--runner-pull-policy",
        default="IfNotPresent",
        choices=("Always", "IfNotPresent", "Never"),
        help="imagePullPolicy of runner pods",
    )
    run.add_argument("--metrics-port", type=_port, default=9401, help="port of /metrics, /healthz and /readyz")
    run.add_argument(
        "--host",
        default=os.environ.get("HOST_IP") or "127.0.0.1",
        help="address that --metrics-port is bound on (environment HOST_IP)",
    )
    run.add_argument("--ports", type=_range, default="20000-20999", help="gateway and control ports given to runner pods")
    run.add_argument("--ring-ports", type=_range, default="21000-29999", help="ring ports given to runner pods")
    run.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "thunderfleet-system",
        help="namespace of the operator's Lease and key (environment POD_NAMESPACE)",
    )
    run.add_argument(
        "--identity",
        default=os.environ.get("POD_NAME") or socket.gethostname(),
        help="name of this replica (environment POD_NAME)",
    )
    run.add_argument(
        "--kubeconfig",
        type=Path,
        default=os.environ.get("KUBECONFIG") or None,
        help="kubeconfig file; the pod's service account when unset (environment KUBECONFIG)",
    )
    run.add_argument(
        "--log-level",
        default="info",
        type=str.lower,
        choices=("debug", "info", "warning", "error"),
        help="least level that is logged",
    )
    plan = commands.add_parser("plan", help="plan a ModelDeployment on a fleet that a file describes")
    add_arguments(plan, _range)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if arguments.command == "plan":
        # Imported here so that --help stays fast, as for run.
        from thunderfleet_operator.plan_cli import command

        return command.run(arguments)
    logging.basicConfig(
        level=arguments.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # Later than the arguments, so that --help does not wait for kopf.
    from thunderfleet_operator.app import Configuration, run
    from thunderfleet_operator.decide.deployment import Settings
    from thunderfleet_operator.decide.manifests import PodSettings

    lasting, ring = arguments.ports, arguments.ring_ports
    if lasting.first <= ring.last and ring.first <= lasting.last:
        print("thunderfleet-operator: --ports and --ring-ports must not overlap", file=sys.stderr)
        return 2
    configuration = Configuration(
        settings=Settings(
            pods=PodSettings(arguments.runner_image, arguments.runner_pull_policy),
            ports=PortSettings(lasting, ring),
        ),
        namespace=arguments.namespace,
        # A replica that was restarted under its old name is another holder of the Lease.
        identity=f"{arguments.identity}_{uuid.uuid4().hex[:8]}",
        host=arguments.host,
        metrics_port=arguments.metrics_port,
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
        # Configuration of the client: no service account, a kubeconfig that cannot be read.
        log.error("%s: %s", type(error).__name__, error)
        return 1
    return 0
