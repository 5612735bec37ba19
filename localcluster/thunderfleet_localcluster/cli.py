"""The ``thunderfleet`` command: local clusters up and down, and what one asks of them."""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from thunderfleet_localcluster.client.cluster import Cluster, end_cluster, remove, running
from thunderfleet_localcluster.controlplane.assets import CONTROL_PLANE, MONITORING, find_assets
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.fault_state import CABLE_ACTIONS, DAMAGES, LAN_ACTIONS, RDMA_ACTIONS, SPEEDS
from thunderfleet_localcluster.fleet.fault_state import COMMANDS as COMMAND_NAMES
from thunderfleet_localcluster.fleet.file import load_fleet
from thunderfleet_localcluster.paths import DEFAULT_NAME, ClusterFolder, checked_name
from thunderfleet_localcluster.progress import Progress

MACHINE_ACTIONS = ("kill-kubelet", "stop-kubelet", "start-kubelet", "freeze-kubelet", "thaw-kubelet", "off", "on")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--name", default=DEFAULT_NAME, help="name of the cluster; several can run side by side")
    shared.add_argument(
        "--dir", type=Path, help="the cluster's folder (default: below the system's or the user's state folder)"
    )
    top = argparse.ArgumentParser(
        prog="thunderfleet",
        description="Kubernetes on this machine with recorded Macs to join it: a real control plane, no VM, no containers.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name, help=text, description=text, parents=[shared], formatter_class=argparse.ArgumentDefaultsHelpFormatter
        )

    up = command("up", "start a cluster and its machines; returns when every Node is Ready")
    up.add_argument(
        "fleet", nargs="?", type=Path, metavar="FLEET", help="fleet file (default: two Studios, a mini, two Linux machines)"
    )
    up.add_argument("--network", choices=("auto", "namespaces", "loopback"), default="auto", help="how machines get addresses")
    up.add_argument("--foreground", action="store_true", help="stay; Ctrl-C takes everything down")
    up.add_argument("--no-machines", action="store_true", help="start machines without kubelets")
    up.add_argument("--audit", action="store_true", help="write the API server's audit log")
    up.add_argument("--check", action="store_true", help="only check the fleet file")
    programs = commands.add_parser(
        "programs",
        help="find or build the control plane, kubectl and helm, and print their folder",
        description="Finds the programs in KUBEBUILDER_ASSETS, else in the cache, else builds them there once.",
    )
    programs.add_argument("--monitoring", action="store_true", help="Prometheus and promtool instead")
    down = command("down", "end a cluster and remove its data; logs and models stay")
    down.add_argument("--purge", action="store_true", help="remove logs and models too")
    status = command("status", "show what runs, and where")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text", help="form of the output")
    kubeconfig = command("kubeconfig", "print the administrator's kubeconfig")
    kubeconfig.add_argument("--path", action="store_true", help="print its path instead")
    token = command("token", "make a bootstrap token, valid for an hour, and print the line that joins a machine")
    token.add_argument("--inside", action="store_true", help="with the API server's address in the cluster's own network")
    node = command("node", "what a node cannot do for itself")
    node.add_argument("action", choices=("remove",), help="remove: delete the Node, so that its name can be used again")
    node.add_argument("node", metavar="NODE", help="name of the Node")
    machine = command("machine", "switch a machine or its kubelet, or run a command on it")
    machine.add_argument("action", choices=(*MACHINE_ACTIONS, "exec"), help="what to do")
    machine.add_argument("machine", metavar="MACHINE", help="name of the machine")
    machine.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="for exec: the command")
    mac = command("mac", "switch a Mac off as if its plug were pulled, or on again")
    mac.add_argument("action", choices=("off", "on"), help="what to do")
    mac.add_argument("machine", metavar="MAC", help="name of the Mac")
    cable = command("cable", "pull, plug, slow, cut or move a Thunderbolt cable")
    cable.add_argument(
        "action",
        choices=CABLE_ACTIONS,
        help="plug: whole and fast again; cut: what END's machine begins no longer arrives; move: END's plug into the port TO",
    )
    cable.add_argument("end", metavar="END", help="one end, as machine:port")
    cable.add_argument("to", metavar="TO", nargs="?", help="move: the port for the plug, as machine:port")
    cable.add_argument("--rate", type=int, metavar="MBPS", help="slow: the kernel lets no more Mbit/s through")
    cable.add_argument("--speed", choices=SPEEDS, help="slow: what both ends say was negotiated, in Gb/s")
    lan = command("lan", "unplug a machine from the LAN, or plug it in again; its Thunderbolt cables stay")
    lan.add_argument("action", choices=LAN_ACTIONS, help="what to do")
    lan.add_argument("machine", metavar="MACHINE", help="name of the machine")
    jaccl = command("jaccl", "tell a Mac's recorded JACCL where to fail or to be slow")
    jaccl.add_argument("machine", metavar="MAC", help="name of the Mac")
    jaccl.add_argument("points", metavar="JSON", help='such as [{"at": "rtr", "errno": 96}]; []: nowhere any more')
    rdma = command("rdma", "switch a Mac's RDMA, or let its stack hang (until the Mac is switched off and on)")
    rdma.add_argument("action", choices=RDMA_ACTIONS, help="what to do")
    rdma.add_argument("machine", metavar="MAC", help="name of the Mac")
    damage = command("command", "damage one command of a Mac, or mend it")
    damage.add_argument("action", choices=tuple(DAMAGES), help="; ".join(f"{name}: {what}" for name, what in DAMAGES.items()))
    damage.add_argument("machine", metavar="MAC", help="name of the Mac")
    damage.add_argument("program", metavar="COMMAND", help=", ".join(COMMAND_NAMES))
    component = command("component", "kill, start, freeze or thaw a program of the control plane")
    component.add_argument("action", choices=("off", "on", "freeze", "thaw"), help="off: SIGKILL, freeze: SIGSTOP")
    component.add_argument(
        "component", metavar="COMPONENT", help="etcd, kube-apiserver, kube-controller-manager or kube-scheduler"
    )
    commands.add_parser("demo", help="the whole line, from nothing to tokens", add_help=False)
    return top


def _up(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.fleet)
    if arguments.check:
        print(f"{arguments.fleet or 'the default fleet'}: {len(fleet.machines)} machines, {len(fleet.cables)} cables")
        return 0
    with Progress() as progress:

        def show(event: dict[str, object]) -> None:
            if event.get("state") == "network" and event["network"] == "loopback":
                progress.line(f"machines get loopback addresses: {escape(str(event['reason']))}")
            else:
                progress.event(event)

        cluster = Cluster.start(
            arguments.fleet,
            name=arguments.name,
            directory=arguments.dir,
            network=arguments.network,
            on_event=show,
            audit=arguments.audit,
            join=not arguments.no_machines,
        )
        progress.line(f"cluster {cluster.name} is up after {cluster.began_seconds:.1f} s")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    sys.stdout.flush()
    if not arguments.foreground:
        cluster.detach()
        return 0
    with cluster:
        return cluster.wait()


def _programs(arguments: argparse.Namespace) -> int:
    with Progress() as progress:
        print(find_assets(progress.event, MONITORING if arguments.monitoring else CONTROL_PLANE))
    return 0


def _down(arguments: argparse.Namespace) -> int:
    folder = ClusterFolder.of(arguments.name, arguments.dir)
    ended = end_cluster(folder)
    remove(folder, everything=arguments.purge)
    print(f"cluster {arguments.name} is down" if ended else f"no cluster {arguments.name} was up")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    folder = ClusterFolder.of(arguments.name, arguments.dir)
    if not running(folder):
        if arguments.output == "json":
            print(json.dumps({"running": False, "folder": str(folder.root)}))
        else:
            print(f"cluster {arguments.name} is not up ({folder.root})")
        return 1
    cluster = Cluster.attach(arguments.name, arguments.dir)
    status = cluster.status()
    if arguments.output == "json":
        print(json.dumps({"running": True, **status}, indent=2))
        return 0
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 240
    state = cluster.state
    for key, value in (
        ("cluster", cluster.name),
        ("keeper", f"process {cluster.pid}"),
        ("network", f"{state['network']}" + (f" ({state['reason']})" if state["reason"] else "")),
        ("kubeconfig", state["kubeconfig"]),
        ("API server", f"{state['server']} (inside: {state['innerServer']})"),
        ("HTTP proxy", f"{state['proxy']} (http_proxy={state['proxy']} curl http://ADDRESS:PORT/ from this machine)"),
        ("models", state["models"]),
        ("logs", state["logs"]),
    ):
        console.print(f"[bold]{key:<11}[/bold] {escape(str(value))}")
    components = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("COMPONENT", "STATE", "LOG"):
        components.add_column(column, no_wrap=True)
    for item in status["components"]:
        components.add_row(item["name"], "running" if item["pid"] else f"ended ({item['end']})", item["log"])
    console.print(components)
    for item in status["components"]:
        if item["tail"]:
            console.print(escape(f"{item['name']} ended ({item['end']}); the last lines of {item['log']}:\n{item['tail']}"))
    machines = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("MACHINE", "MODEL", "ADDRESS", "POWER", "KUBELET", "NODE", "CABLES"):
        machines.add_column(column, no_wrap=True)
    facts = {item["name"]: item for item in state["machines"]}
    for item in status["machines"]:
        fact = facts[item["name"]]
        cables = ", ".join(f"{cable['port']}→{cable['peer']}:{cable['peerPort']}" for cable in fact["cables"])
        kubelet = "running" if item["kubelet"] else f"ended ({item['end']})" if item["end"] else "none"
        power = "on" if item["on"] else "off"
        machines.add_row(item["name"], fact["model"] or "Linux", fact["address"], power, kubelet, item["node"], cables)
    console.print(machines)
    return 0


def _kubeconfig(arguments: argparse.Namespace) -> int:
    cluster = Cluster.attach(arguments.name, arguments.dir)
    print(cluster.kubeconfig if arguments.path else cluster.kubeconfig.read_text().rstrip())
    return 0


def _token(arguments: argparse.Namespace) -> int:
    cluster = Cluster.attach(arguments.name, arguments.dir)
    server = cluster.state["innerServer"] if arguments.inside else cluster.server
    print(f"thunderfleet-kubelet join --server {server} --token {cluster.token()} --ca-hash {cluster.state['caHash']}")
    return 0


def _node(arguments: argparse.Namespace) -> int:
    cluster = Cluster.attach(arguments.name, arguments.dir)
    print(cluster.kubectl("delete", "node", arguments.node).stdout.rstrip())
    return 0


def _machine(arguments: argparse.Namespace) -> int:
    cluster = Cluster.attach(arguments.name, arguments.dir)
    machine = cluster.machines.get(arguments.machine)
    if machine is None:
        raise LocalClusterError(f"no machine is named {arguments.machine}; machines: {', '.join(cluster.machines)}", usage=True)
    if arguments.action != "exec":
        cluster.order(do="machine", name=machine.name, action=arguments.action)
        return 0
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise LocalClusterError("say what to run: thunderfleet machine exec MACHINE -- COMMAND", usage=True)
    done = machine.run(argv, seconds=600)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _mac(arguments: argparse.Namespace) -> int:
    arguments.argv = []
    return _machine(arguments)


def _cable(arguments: argparse.Namespace) -> int:
    if (arguments.action == "move") != (arguments.to is not None):
        raise LocalClusterError(
            "thunderfleet cable move END TO says where a plug goes; other actions take END alone", usage=True
        )
    Cluster.attach(arguments.name, arguments.dir).cable(
        arguments.action, arguments.end, arguments.rate, arguments.speed, arguments.to
    )
    return 0


def _rdma(arguments: argparse.Namespace) -> int:
    Cluster.attach(arguments.name, arguments.dir).rdma(arguments.action, arguments.machine)
    return 0


def _lan(arguments: argparse.Namespace) -> int:
    Cluster.attach(arguments.name, arguments.dir).lan(arguments.action, arguments.machine)
    return 0


def _jaccl(arguments: argparse.Namespace) -> int:
    try:
        points = json.loads(arguments.points)
    except ValueError as error:
        raise LocalClusterError(f"{arguments.points!r} is not JSON: {error}", usage=True) from error
    if not isinstance(points, list):
        raise LocalClusterError('the points are a JSON list such as [{"at": "rtr", "errno": 96}]', usage=True)
    Cluster.attach(arguments.name, arguments.dir).jaccl(arguments.machine, points)
    return 0


def _damage(arguments: argparse.Namespace) -> int:
    Cluster.attach(arguments.name, arguments.dir).damage(arguments.action, arguments.machine, arguments.program)
    return 0


def _component(arguments: argparse.Namespace) -> int:
    Cluster.attach(arguments.name, arguments.dir).component(arguments.component, arguments.action)
    return 0


COMMANDS = {
    "up": _up,
    "programs": _programs,
    "down": _down,
    "status": _status,
    "kubeconfig": _kubeconfig,
    "token": _token,
    "node": _node,
    "machine": _machine,
    "mac": _mac,
    "cable": _cable,
    "lan": _lan,
    "jaccl": _jaccl,
    "rdma": _rdma,
    "command": _damage,
    "component": _component,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of ``thunderfleet``. Exit code 0: done, 1: failed, 2: bad input, 130: interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["demo"]:
        # The demo has its own command line, and is not needed for anything else.
        from thunderfleet_localcluster.demo import demo

        return int(demo.main(given[1:]))
    parsed = parser().parse_args(given)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # A closed terminal or a polite kill ends `up` like Ctrl-C does: nothing is left behind.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        if "name" in parsed:
            checked_name(parsed.name)
        return COMMANDS[parsed.command](parsed)
    except LocalClusterError as error:
        print(f"thunderfleet: {error}", file=sys.stderr)
        return 2 if error.usage else 1
    except KeyboardInterrupt:
        print("thunderfleet: interrupted", file=sys.stderr)
        return 130
    except subprocess.SubprocessError as error:
        print(f"thunderfleet: {error}", file=sys.stderr)
        return 1
