"""The functions of the commands of ``thunderfleet local``. Each takes the parsed arguments and returns an exit code."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Mapping

from rich.markup import escape
from thunderfleet_controlplane.assets import CONTROL_PLANE, ETCDUTL, MONITORING
from thunderfleet_localcluster.client.addresses import offer_addresses
from thunderfleet_localcluster.client.cluster import Cluster
from thunderfleet_localcluster.client.control import end_cluster, remove, running
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.file import load_fleet
from thunderfleet_localcluster.paths import cluster_folder
from thunderfleet_localcluster.programs import find_programs
from thunderfleet_localcluster.progress import Progress

from thunderfleet_cli.local import status_view

EXEC_SECONDS = 600


def _up(arguments: argparse.Namespace) -> int:
    fleet = load_fleet(arguments.fleet)
    if arguments.check:
        print(f"{arguments.fleet or 'the default fleet'}: {len(fleet.machines)} machines, {len(fleet.cables)} cables")
        return 0
    offer_addresses(arguments.fleet, arguments.network)
    with Progress() as progress:

        def show(event: dict[str, object]) -> None:
            if event.get("state") == "network" and event["network"] == "loopback":
                progress.line(f"using loopback addresses for machines: {escape(str(event['reason']))}")
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
        progress.line(f"cluster {cluster.name} is up after {cluster.start_seconds:.1f} s")
    print(f"export KUBECONFIG={cluster.kubeconfig}")
    sys.stdout.flush()
    if not arguments.foreground:
        cluster.detach()
        return 0
    with cluster:
        return cluster.wait()


def _programs(arguments: argparse.Namespace) -> int:
    with Progress() as progress:
        if not arguments.monitoring:
            find_programs(progress.event, ETCDUTL)
        print(find_programs(progress.event, MONITORING if arguments.monitoring else CONTROL_PLANE))
    return 0


def _down(arguments: argparse.Namespace) -> int:
    folder = cluster_folder(arguments.name, arguments.dir)
    ended = end_cluster(folder)
    remove(folder, everything=arguments.purge)
    print(f"cluster {arguments.name} is stopped" if ended else f"cluster {arguments.name} was not running")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    folder = cluster_folder(arguments.name, arguments.dir)
    if not running(folder):
        if arguments.output == "json":
            print(json.dumps({"running": False, "folder": str(folder.root)}))
        else:
            print(f"cluster {arguments.name} is not running ({folder.root})")
        return 1
    cluster = _attach(arguments)
    status = cluster.status()
    if arguments.output == "json":
        print(json.dumps({"running": True, **status}, indent=2))
    else:
        status_view.show(cluster.pid, status)
    return 0


def _attach(arguments: argparse.Namespace) -> Cluster:
    return Cluster.attach(arguments.name, arguments.dir)


def _kubeconfig(arguments: argparse.Namespace) -> int:
    cluster = _attach(arguments)
    print(cluster.kubeconfig if arguments.path else cluster.kubeconfig.read_text().rstrip())
    return 0


def _token(arguments: argparse.Namespace) -> int:
    cluster = _attach(arguments)
    server = cluster.state["innerServer"] if arguments.inside else cluster.server
    token = cluster.token(arguments.node)
    print(f"thunderfleet-kubelet join --server {server} --token {token} --ca-hash {cluster.state['caHash']}")
    return 0


def _node(arguments: argparse.Namespace) -> int:
    print(_attach(arguments).kubectl("delete", "node", arguments.node).stdout.rstrip())
    return 0


def _machine(arguments: argparse.Namespace) -> int:
    if arguments.action != "exec" and arguments.argv:
        # Everything after MACHINE is the command of exec, including options.
        given = shlex.join(arguments.argv)
        raise LocalClusterError(
            f"`machine {arguments.action}` takes no command; write options before MACHINE: {given}", usage=True
        )
    cluster = _attach(arguments)
    machine = cluster.machines.get(arguments.machine)
    if machine is None:
        names = ", ".join(cluster.machines)
        raise LocalClusterError(f"unknown machine {arguments.machine!r}; machines: {names}", usage=True)
    if arguments.action != "exec":
        cluster.command(do="machine", name=machine.name, action=arguments.action)
        return 0
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    if not argv:
        raise LocalClusterError("no command; use: thunderfleet local machine exec MACHINE -- COMMAND", usage=True)
    done = machine.run(argv, seconds=EXEC_SECONDS)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def _mac(arguments: argparse.Namespace) -> int:
    arguments.argv = []
    return _machine(arguments)


def _cable(arguments: argparse.Namespace) -> int:
    if (arguments.action == "move") != (arguments.to is not None):
        raise LocalClusterError("`cable move` needs END and TO; other actions take END only", usage=True)
    _attach(arguments).cable(arguments.action, arguments.end, arguments.rate, arguments.speed, arguments.to)
    return 0


def _rdma(arguments: argparse.Namespace) -> int:
    _attach(arguments).rdma(arguments.action, arguments.machine)
    return 0


def _lan(arguments: argparse.Namespace) -> int:
    if (arguments.action == "address") != (arguments.address is not None):
        raise LocalClusterError("`lan address` needs MACHINE and ADDRESS; other actions take MACHINE only", usage=True)
    cluster = _attach(arguments)
    if arguments.action == "address":
        cluster.lan_address(arguments.machine, arguments.address)
    else:
        cluster.lan(arguments.action, arguments.machine)
    return 0


def _jaccl(arguments: argparse.Namespace) -> int:
    try:
        points = json.loads(arguments.points)
    except ValueError as error:
        raise LocalClusterError(f"invalid JSON {arguments.points!r}: {error}", usage=True) from error
    if not isinstance(points, list):
        raise LocalClusterError('points must be a JSON list such as [{"at": "rtr", "errno": 96}]', usage=True)
    _attach(arguments).jaccl(arguments.machine, points)
    return 0


def _damage(arguments: argparse.Namespace) -> int:
    _attach(arguments).damage(arguments.action, arguments.machine, arguments.program)
    return 0


def _component(arguments: argparse.Namespace) -> int:
    _attach(arguments).component(arguments.component, arguments.action)
    return 0


LOCAL_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
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
