"""The command line: ``thunderfleet-agent run``, ``inspect`` and ``measure``."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

from thunderfleet_lib import collector, logs
from thunderfleet_lib.helpformat import HelpFormatter
from thunderfleet_lib.net import authorities

LISTEN_PORT = 9440
METRICS_PORT = 9441


def main(argv: list[str] | None = None) -> int:
    """Returns 0 if it succeeded, 1 if it failed, 2 for wrong usage."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["measure-child"]:
        from thunderfleet_agent.measure.worker.child import main as measure

        measure(json.loads(words[1]))
    arguments = _parser().parse_args(words)
    # Only the agent itself runs in a cluster; the other commands are for people.
    logs.set_up("agent", arguments.log_level, getattr(arguments, "log_format", logs.Format.TEXT))
    commands = {"inspect": _inspect, "run": _run, "measure": _measure}
    try:
        return asyncio.run(commands[arguments.command](arguments))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="thunderfleet-agent",
        description="Publish the NodeProfile of this Mac and its end of each ThunderboltLink.",
        formatter_class=HelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    inspect = commands.add_parser(
        "inspect",
        parents=[_models(), _common("warning")],
        help="print what the agent would publish",
        description="Observe this Mac once and print what the agent would publish. Needs no cluster. In a cluster, the agent "
        "runs as another user and publishes only models in the folders of the chart's value agent.modelFolders.",
        formatter_class=HelpFormatter,
    )
    inspect.add_argument("-o", "--output", default="table", choices=("table", "json", "yaml"), help="output format")
    inspect.add_argument("--why", action="store_true", help="also print the source of each fact and the fix for each problem")
    inspect.add_argument("--no-size", action="store_true", help="do not compute the memory sizes of models, which starts MLX")

    run = commands.add_parser(
        "run",
        parents=[_models(), _common("info")],
        help="run the agent",
        description="Publish this Mac's NodeProfile and its ends of ThunderboltLinks, and update them until SIGTERM.",
        formatter_class=HelpFormatter,
    )
    logs.add_argument(run)
    run.add_argument("--host-ip", default=os.environ.get("HOST_IP"), help="address to listen on ($HOST_IP)", metavar="IP")
    run.add_argument(
        "--listen-port", type=_port, default=LISTEN_PORT, metavar="PORT", help="TLS port for other agents; 0 picks a free one"
    )
    run.add_argument(
        "--metrics-port",
        type=_port,
        default=METRICS_PORT,
        metavar="PORT",
        help="port of /metrics and /healthz; 0 picks a free one",
    )
    run.add_argument(
        "--interval",
        type=_seconds,
        default=10,
        metavar="SECONDS",
        help="interval between observations of network interfaces and RDMA",
    )
    run.add_argument(
        "--thunderbolt-interval",
        type=_seconds,
        default=30,
        metavar="SECONDS",
        help="interval between observations of Thunderbolt ports",
    )
    run.add_argument(
        "--models-interval", type=_seconds, default=60, metavar="SECONDS", help="interval between scans of the model folders"
    )
    run.add_argument(
        "--model-store",
        type=_folder,
        metavar="PATH",
        help="folder for models that are fetched from the hub or from other Macs; absolute; without it, none is fetched",
    )
    run.add_argument(
        "--copy-network-rate",
        type=_rate,
        default=62.5e6,
        metavar="BYTES",
        help="maximum rate of copies from other Macs over networks, in bytes per second; cables that no group uses have no "
        "limit",
    )
    run.add_argument(
        "--copy-used-cable-rate",
        type=_rate,
        default=25e6,
        metavar="BYTES",
        help="maximum rate of copies from other Macs over cables that a group uses, in bytes per second",
    )
    run.add_argument(
        "--reach-interval",
        type=_seconds,
        default=20,
        metavar="SECONDS",
        help="interval between connection attempts to agents of Macs with a cable to this one; for other Macs, it is six "
        "times as long",
    )
    run.add_argument(
        "--state-folder",
        metavar="PATH",
        help="folder for the certificate and measurements; without it, both are new after every start",
    )
    run.add_argument("--kubeconfig", type=Path, metavar="FILE", help="kubeconfig to use instead of the pod's service account")
    run.add_argument(
        "--measure",
        default="{}",
        metavar="JSON",
        help="benchmarks, their intervals and limits, as in the chart value agent.measure",
    )

    measure = commands.add_parser(
        "measure",
        parents=[_common("warning")],
        help="measure the GPU, its memory or a link now",
        description="Run benchmarks once and print the results. `link PEER` measures every cable and address to that Mac. It "
        "needs the certificate of the running agent, so run it in the agent's pod.",
        formatter_class=HelpFormatter,
    )
    measure.add_argument(
        "what", nargs="?", default="all", choices=("all", "gpu", "memory", "link"), help="what to measure; all: gpu and memory"
    )
    measure.add_argument("peer", nargs="?", metavar="PEER", help="name of the other Mac's Node (only with link)")
    measure.add_argument("-o", "--output", default="text", choices=("text", "json"), help="output format")
    measure.add_argument(
        "--transport",
        type=str.lower,
        default="rdma",
        choices=("rdma", "ring"),
        help="transport over cables (only with link); must be the chart value agent.measure.rdma.transport",
    )
    measure.add_argument(
        "--test",
        action="store_true",
        help="only test that each cable to PEER works: connect over it, and add numbers with one process on each Mac (only "
        "with link)",
    )
    measure.add_argument("--host-ip", default=os.environ.get("HOST_IP"), metavar="IP", help="address of this Mac ($HOST_IP)")
    measure.add_argument("--state-folder", default="/state", metavar="PATH", help="state folder of the running agent")
    measure.add_argument(
        "--kubeconfig", type=Path, metavar="FILE", help="kubeconfig to use instead of the pod's service account"
    )
    return parser


def _models() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--model-folder",
        type=_folder,
        action="append",
        default=[],
        metavar="PATH",
        help="folder with models as PATH/ORG/NAME, or a Hugging Face cache; absolute; may be repeated. The Hugging Face cache "
        "of this user ($HF_HUB_CACHE, $HF_HOME) is always read",
    )
    return parser


def _common(log_level: str) -> argparse.ArgumentParser:
    """A new parser each time: subcommands that shared one would share its defaults."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(
        "--node-name", default=os.environ.get("NODE_NAME"), help="name of this Mac's Node ($NODE_NAME)", metavar="NAME"
    )
    parser.add_argument(
        "--log-level", default=log_level, choices=("debug", "info", "warning", "error"), help="minimum log level"
    )
    return parser


def _folder(text: str) -> Path:
    path = Path(text)
    if not path.is_absolute():
        raise argparse.ArgumentTypeError(f"must be an absolute path, not {text!r}")
    return path


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"must be 1 to 86400 seconds, not {text!r}")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1e6 <= value <= 1e12:
        raise argparse.ArgumentTypeError(f"must be 1e6 to 1e12 bytes per second, not {text!r}")
    return value


async def _inspect(arguments: argparse.Namespace) -> int:
    from thunderfleet_crds.kinds.nodeprofile import NodeProfile
    from thunderfleet_crds.meta.apimodel import ObjectMeta
    from thunderfleet_lib.host.hostcmd import Host

    from thunderfleet_agent.derive.profile import profile
    from thunderfleet_agent.observe.collector import Collector

    node = arguments.node_name or socket.gethostname()
    from thunderfleet_agent.observe.models import hub_caches

    collector = Collector(Host(), [*arguments.model_folder, *hub_caches(os.environ, Path.home())])
    await asyncio.gather(collector.fast(), collector.slow(), collector.runtime(), collector.scan_models())
    while not arguments.no_size and await collector.size_model():
        pass
    found = profile(collector.facts, datetime.now(UTC))
    if arguments.output == "table":
        from thunderfleet_agent.inspection.page import page

        print(page(node, found, collector.facts if arguments.why else None))
        return 0
    whole = NodeProfile(metadata=ObjectMeta(name=node, labels=found.labels), status=found.status).dump()
    if arguments.why:
        from thunderfleet_agent.inspection.problems import as_values

        whole["why"] = as_values(found.status, collector.facts)
    if arguments.output == "json":
        print(json.dumps(whole, indent=2))
    else:
        import yaml

        print(yaml.safe_dump(whole, sort_keys=False, allow_unicode=True), end="")
    return 0


async def _run(arguments: argparse.Namespace) -> int:
    with collector.paused():
        authorities.import_aiohttp()
        from thunderfleet_lib.host.sandbox import mounted

        from thunderfleet_agent.agent import run
        from thunderfleet_agent.copies.controller import Limits
        from thunderfleet_agent.measure.schedule import settings
        from thunderfleet_agent.observe.models import hub_caches
        from thunderfleet_agent.rounds import AgentSettings

    if not arguments.node_name or not arguments.host_ip:
        print("thunderfleet-agent run: set --node-name and --host-ip (or $NODE_NAME and $HOST_IP)", file=sys.stderr)
        return 2
    logs.always(node=arguments.node_name)
    try:
        measure = settings.parse(arguments.measure)
    except ValueError as error:
        print(f"thunderfleet-agent run: --measure: {error}", file=sys.stderr)
        return 2
    store = (arguments.model_store,) if arguments.model_store else ()
    return await run(
        AgentSettings(
            measure=measure,
            node=arguments.node_name,
            host_ip=arguments.host_ip,
            listen_port=arguments.listen_port,
            metrics_port=arguments.metrics_port,
            model_folders=(*dict.fromkeys((*arguments.model_folder, *store, *hub_caches(os.environ, Path.home()))),),
            model_store=arguments.model_store,
            copy_limits=Limits(arguments.copy_network_rate, arguments.copy_used_cable_rate),
            fast_seconds=arguments.interval,
            slow_seconds=arguments.thunderbolt_interval,
            models_seconds=arguments.models_interval,
            reach_seconds=arguments.reach_interval,
            state=mounted(arguments.state_folder) if arguments.state_folder else None,
            kubeconfig=arguments.kubeconfig,
        )
    )


async def _measure(arguments: argparse.Namespace) -> int:
    from thunderfleet_crds.vocabulary import MeasurementTransport
    from thunderfleet_lib.host.sandbox import mounted

    from thunderfleet_agent.measure import measure_cli
    from thunderfleet_agent.measure.schedule.settings import MeasureSettings, Rdma

    if arguments.test and arguments.what != "link":
        print("thunderfleet-agent measure: --test is allowed only with link", file=sys.stderr)
        return 2
    if (arguments.what == "link") != (arguments.peer is not None):
        print("thunderfleet-agent measure: PEER is required with link, and not allowed with gpu and memory", file=sys.stderr)
        return 2
    transport = {"rdma": MeasurementTransport.RDMA, "ring": MeasurementTransport.RING}[arguments.transport]
    state = mounted(arguments.state_folder)
    own = measure_cli.LocalAgent(
        arguments.node_name, arguments.host_ip, state if state.is_dir() else None, arguments.kubeconfig
    )
    usual = MeasureSettings(rdma=Rdma(transport=transport))
    settings = measure_cli.settings_for_test(transport) if arguments.test else usual
    return await measure_cli.run(arguments.what, arguments.peer, own, settings, arguments.output, only_cables=arguments.test)
