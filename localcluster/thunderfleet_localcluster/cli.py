"""The ``thunderfleet`` command: its arguments and exit codes."""

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from thunderfleet_lib.helpformat import HelpFormatter

from thunderfleet_localcluster import cli_commands
from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.fault_state import CABLE_ACTIONS, DAMAGES, LAN_ACTIONS, RDMA_ACTIONS, SPEEDS
from thunderfleet_localcluster.fleet.fault_state import COMMANDS as MAC_COMMANDS
from thunderfleet_localcluster.paths import DEFAULT_NAME, checked_name
from thunderfleet_localcluster.recorded.jaccl_faults import POINTS

MACHINE_ACTIONS = ("kill-kubelet", "stop-kubelet", "start-kubelet", "freeze-kubelet", "thaw-kubelet", "off", "on")
INTERRUPTED = 130


class _Parsers:
    """Adds subcommands that share the options of one cluster. ``dest``: the attribute that gets the subcommand's name."""

    def __init__(self, top: argparse.ArgumentParser, dest: str) -> None:
        self._commands = top.add_subparsers(dest=dest, required=True, metavar="COMMAND")
        self._shared = argparse.ArgumentParser(add_help=False)
        self._shared.add_argument(
            "--name", default=DEFAULT_NAME, help="cluster name; clusters with different names can coexist"
        )
        self._shared.add_argument(
            "--dir",
            type=Path,
            help="cluster folder (default: NAME below /var/lib/thunderfleet, or below ~/.local/state/thunderfleet if not root)",
        )

    def add(self, name: str, text: str, description: str = "", cluster: bool = True) -> argparse.ArgumentParser:
        """A subcommand: ``text`` for the list of commands, and a longer ``description``."""
        return self._commands.add_parser(
            name,
            help=text,
            description=(description or text[0].upper() + text[1:]) + ".",
            parents=[self._shared] if cluster else [],
            formatter_class=HelpFormatter,
        )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="thunderfleet",
        description="Run models on Macs wired by Thunderbolt, with Kubernetes. Clusters with real Macs are used with kubectl.",
        formatter_class=HelpFormatter,
    )
    commands = _Parsers(top, "command")
    local = commands.add(
        "local",
        "run a local cluster with recorded Macs on this machine",
        "Run a local Kubernetes cluster with recorded Macs: a real control plane, no VM, no containers. A recorded Mac is a "
        "process on this machine that runs a kubelet, with commands that print what those of a Mac print",
        cluster=False,
    )
    below = _Parsers(local, "local_command")
    _cluster_commands(below)
    _fault_commands(below)
    _run_command(commands)
    support = commands.add(
        "support",
        "write an archive for a support request: logs, objects and versions, no secrets",
        "Write a .tar.gz archive with logs, Kubernetes objects and versions. It contains no Secrets; tokens, keys and "
        "passwords in logs and objects are replaced by [redacted]",
    )
    support.add_argument(
        "--kubeconfig",
        type=Path,
        help="file with the cluster to collect from (default: the local cluster; if it does not run, $KUBECONFIG or "
        "~/.kube/config)",
    )
    support.add_argument("--context", help="context of the kubeconfig (default: its current context)")
    support.add_argument("-o", "--output", type=Path, help="archive to write (default: thunderfleet-support-TIME.tar.gz)")
    demo = commands.add(
        "demo", "run the demo: start a cluster, serve a model on two Macs, recover from a failure", cluster=False
    )
    demo.add_argument("--keep", action="store_true", help="leave the cluster running and print how to use it")
    return top


def _run_command(commands: _Parsers) -> None:
    run = commands.add(
        "run",
        "serve a model in any cluster, and chat with it",
        "Create a ModelDeployment, wait until it serves, and chat with it, or answer one prompt. The model keeps serving "
        "afterwards. Models are not downloaded: MODEL must already be in a model folder of the Macs (the chart's value "
        "agent.modelFolders). Exit code 3: the model cannot be placed as things are. Example: thunderfleet run "
        "mlx-community/Qwen3-30B-A3B-4bit --prompt 'Hello'",
        cluster=False,
    )
    run.add_argument("model", metavar="MODEL", help="organization/name, as in a model folder of the Macs")
    run.add_argument(
        "--prompt", metavar="TEXT", help="answer this prompt and exit (default: standard input, or a chat at a terminal)"
    )
    run.add_argument("--name", dest="deployment", metavar="NAME", help="name of the ModelDeployment (default: made from MODEL)")
    run.add_argument("-n", "--namespace", help="namespace of the ModelDeployment (default: that of the context)")
    run.add_argument(
        "--timeout", type=_seconds, default=1800, metavar="SECONDS", help="how long to wait until the model serves"
    )
    run.add_argument(
        "--kubeconfig",
        type=Path,
        help="file with the cluster to use (default: $KUBECONFIG, ~/.kube/config, or a local cluster)",
    )
    run.add_argument("--context", help="context of the kubeconfig (default: its current context)")


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 86400:
        raise ValueError(text)
    return seconds


def _cluster_commands(commands: _Parsers) -> None:
    up = commands.add(
        "up", "start a cluster and its machines", "Start a cluster and its machines, and wait until every Node is Ready"
    )
    up.add_argument(
        "fleet",
        nargs="?",
        type=Path,
        metavar="FLEET",
        help="fleet file (default: two Mac Studios, a Mac mini, two Linux machines)",
    )
    up.add_argument(
        "--network",
        choices=("auto", "namespaces", "loopback"),
        default="auto",
        help="network of the machines: network namespaces (Linux only), loopback addresses, or auto: the first that works",
    )
    up.add_argument("--foreground", action="store_true", help="stay in the foreground; Ctrl-C stops the cluster")
    up.add_argument("--no-machines", action="store_true", help="start the machines without kubelets, so that none is a Node")
    up.add_argument("--audit", action="store_true", help="write the API server's audit log")
    up.add_argument("--check", action="store_true", help="check the fleet file and exit")
    programs = commands.add(
        "programs",
        "find or build the control plane, kubectl and helm, and print their folder",
        "Print the folder of the control plane's programs, kubectl and helm: KUBEBUILDER_ASSETS if set, else the cache. "
        "Programs that are not in the cache are built",
        cluster=False,
    )
    programs.add_argument("--monitoring", action="store_true", help="print the folder of Prometheus and promtool instead")
    down = commands.add("down", "stop a cluster and remove its data, except logs and models")
    down.add_argument("--purge", action="store_true", help="remove logs and models too")
    status = commands.add("status", "show components, machines, addresses and logs")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text", help="output format")
    kubeconfig = commands.add("kubeconfig", "print the administrator's kubeconfig")
    kubeconfig.add_argument("--path", action="store_true", help="print its path instead")
    token = commands.add("token", "create a bootstrap token, valid for an hour, and print the command that joins a machine")
    token.add_argument(
        "--node",
        metavar="NODE",
        help="bind the token to this Node name, even if the Node exists (default: any name that no Node has)",
    )
    token.add_argument(
        "--inside", action="store_true", help="print the command for one of the cluster's machines instead of this machine"
    )
    node = commands.add("node", "delete a machine's Node")
    node.add_argument(
        "action",
        choices=("remove",),
        help="remove: delete the Node; stop its kubelet or switch its machine off first, since a "
        "kubelet that runs registers the Node again",
    )
    node.add_argument("node", metavar="NODE", help="Node name")
    component = commands.add("component", "kill, start, freeze or thaw a program of the control plane")
    component.add_argument(
        "action",
        choices=("off", "on", "freeze", "thaw"),
        help="off: SIGKILL; on: start it again; freeze: SIGSTOP; thaw: SIGCONT",
    )
    component.add_argument(
        "component", metavar="COMPONENT", help="etcd, kube-apiserver, kube-controller-manager or kube-scheduler"
    )


def _fault_commands(commands: _Parsers) -> None:
    machine = commands.add("machine", "switch a machine or its kubelet off or on, or run a command on a machine")
    machine.add_argument(
        "action",
        choices=(*MACHINE_ACTIONS, "exec"),
        help="kill-kubelet: SIGKILL; stop-kubelet: SIGTERM; start-kubelet: start it again; freeze-kubelet: SIGSTOP; "
        "thaw-kubelet: SIGCONT; off: cut the power; on: switch on; exec: run COMMAND",
    )
    machine.add_argument("machine", metavar="MACHINE", help="machine name")
    machine.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command for exec")
    mac = commands.add("mac", "cut the power of a Mac, or switch it on again, like `machine off` and `machine on`")
    mac.add_argument("action", choices=("off", "on"), help="off: cut the power; on: switch on")
    mac.add_argument("machine", metavar="MAC", help="machine name")
    cable = commands.add("cable", "pull, plug, slow, cut or move a Thunderbolt cable")
    cable.add_argument(
        "action",
        choices=CABLE_ACTIONS,
        help="pull: unplug; plug: plug in again and remove all limits; slow: limit as --rate and --speed say; cut: block "
        "connections that the machine at END opens; move: replug END at TO",
    )
    cable.add_argument("end", metavar="END", help="one end, as machine:port")
    cable.add_argument("to", metavar="TO", nargs="?", help="move: the new port, as machine:port")
    cable.add_argument("--rate", type=int, metavar="MBPS", help="slow: rate limit in Mbit/s")
    cable.add_argument("--speed", choices=SPEEDS, help="slow: negotiated speed that both ends report, in Gb/s")
    lan = commands.add(
        "lan",
        "unplug a machine from the LAN, plug it in, or give it another address; its Thunderbolt cables stay connected",
    )
    lan.add_argument("action", choices=LAN_ACTIONS, help="address: change the LAN address, as a new DHCP lease does")
    lan.add_argument("machine", metavar="MACHINE", help="machine name")
    lan.add_argument("address", metavar="ADDRESS", nargs="?", help="address: a free address in the LAN, or the word none")
    jaccl = commands.add(
        "jaccl",
        "make the stand-in for JACCL (MLX over RDMA) on a Mac fail or wait at chosen points",
        "Make the stand-in for JACCL (MLX over RDMA) on a Mac fail or wait at chosen points. Only for Macs with "
        "`jaccl: recorded` in the fleet file",
    )
    jaccl.add_argument("machine", metavar="MAC", help="machine name")
    jaccl.add_argument(
        "points",
        metavar="JSON",
        help='list of failures, such as [{"at": "rtr", "errno": 96}]; []: none. Keys: at (the point of '
        "failure), errno, device (only this RDMA device), attempts (a list: only these attempts of the group), delaySeconds "
        "(wait so long first), hang (true: never return), fail (false: only wait). "
        f"Points: {', '.join(POINTS)}",
    )
    rdma = commands.add("rdma", "turn a Mac's RDMA on or off, or make its stack hang until the Mac is switched off and on")
    rdma.add_argument(
        "action", choices=RDMA_ACTIONS, help="on, off: as `rdma_ctl enable` and `disable`; hang: RDMA commands do not return"
    )
    rdma.add_argument("machine", metavar="MAC", help="machine name")
    damage = commands.add("command", "make one command of a Mac fail, or repair it")
    damage.add_argument("action", choices=tuple(DAMAGES), help="; ".join(f"{name}: {what}" for name, what in DAMAGES.items()))
    damage.add_argument("machine", metavar="MAC", help="machine name")
    damage.add_argument("program", metavar="COMMAND", help=", ".join(MAC_COMMANDS))


def moved(arguments: Sequence[str]) -> str | None:
    """The new spelling of a command line of an earlier version, in which the commands of ``local`` had no such prefix."""
    if not arguments or arguments[0] not in cli_commands.LOCAL_COMMANDS:
        return None
    return shlex.join(["thunderfleet", "local", *arguments])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Exit code 0: success, 1: failure, 2: invalid input, 130: interrupted."""
    given = sys.argv[1:] if arguments is None else arguments
    if (new := moved(given)) is not None:
        print(f"thunderfleet: `thunderfleet {given[0]}` is now `thunderfleet local {given[0]}`; run: {new}", file=sys.stderr)
        return 2
    parsed = parser().parse_args(given)
    if parsed.command == "demo":
        # It handles signals and errors itself; no other command needs its modules.
        from thunderfleet_localcluster.demo import demo

        return demo.main(keep=parsed.keep)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    # A closed terminal or SIGTERM ends `up` like Ctrl-C, so that no process remains.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        if "name" in parsed:
            checked_name(parsed.name)
        if parsed.command == "local":
            return cli_commands.LOCAL_COMMANDS[parsed.local_command](parsed)
        return cli_commands.COMMANDS[parsed.command](parsed)
    except LocalClusterError as error:
        print(f"thunderfleet: {error}", file=sys.stderr)
        return 2 if error.usage else 1
    except KeyboardInterrupt:
        print("thunderfleet: interrupted", file=sys.stderr)
        return INTERRUPTED
    except subprocess.SubprocessError as error:
        print(f"thunderfleet: {error}", file=sys.stderr)
        return 1
