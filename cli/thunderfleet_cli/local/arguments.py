"""The commands of ``thunderfleet local`` and their arguments."""

import argparse
from pathlib import Path

from thunderfleet_localcluster.fleet.actions import CABLE_ACTIONS, DAMAGES, LAN_ACTIONS, RDMA_ACTIONS, SPEEDS
from thunderfleet_localcluster.fleet.actions import COMMANDS as MAC_COMMANDS
from thunderfleet_localcluster.recorded.jaccl_faults import POINTS

from thunderfleet_cli.parsers import Parsers

COMMANDS = (
    *("up", "programs", "down", "status", "kubeconfig", "token", "node", "component"),
    *("machine", "mac", "cable", "lan", "jaccl", "rdma", "command"),
)
"""The commands of ``local``."""
MACHINE_ACTIONS = ("kill-kubelet", "stop-kubelet", "start-kubelet", "freeze-kubelet", "thaw-kubelet", "off", "on")


def add(commands: Parsers) -> None:
    """Adds ``local`` and its commands."""
    local = commands.add(
        "local",
        "run a local cluster with recorded Macs on this machine",
        "Run a local Kubernetes cluster with recorded Macs: a real control plane, no VM, no containers. A recorded Mac is a "
        "process on this machine that runs a kubelet, with commands that print what those of a Mac print",
        call=_call,
    )
    below = Parsers(local, "local_command", local=True)
    _cluster_commands(below)
    _fault_commands(below)


def _call(arguments: argparse.Namespace) -> int:
    from thunderfleet_cli.local.commands import LOCAL_COMMANDS

    return LOCAL_COMMANDS[arguments.local_command](arguments)


def _cluster_commands(commands: Parsers) -> None:
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
        local=False,
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


def _fault_commands(commands: Parsers) -> None:
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
        help="pull: unplug; plug: plug in again and remove all limits; slow: apply the limits --rate and --speed; cut: block "
        "connections that the machine at END opens; move: replug END at TO",
    )
    cable.add_argument("end", metavar="END", help="one end, as machine:port")
    cable.add_argument("to", metavar="TO", nargs="?", help="move: the new port, as machine:port")
    cable.add_argument("--rate", type=int, metavar="MBPS", help="slow: rate limit in Mb/s")
    cable.add_argument("--speed", choices=SPEEDS, help="slow: negotiated speed that both ends report, in Gb/s")
    lan = commands.add(
        "lan",
        "unplug a machine from the LAN, plug it in, or give it another address; its Thunderbolt cables stay connected",
    )
    lan.add_argument("action", choices=LAN_ACTIONS, help="address: change the LAN address, as a new DHCP lease does")
    lan.add_argument("machine", metavar="MACHINE", help="machine name")
    lan.add_argument(
        "address", metavar="ADDRESS", nargs="?", help="address: a free address in the LAN, or none to remove the address"
    )
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
        help='list of failures, such as [{"at": "rtr", "errno": 96}]; [] removes all. Keys: at (the point of failure), '
        "errno, device (only this RDMA device), attempts (a list: only these attempts of the group), delaySeconds "
        "(wait this long first), hang (true: never return), fail (false: only wait). Points that fail or wait: "
        f"{', '.join(POINTS)}. Points that change data: wire and values. wire changes the data of the cable after a "
        "number of bytes: flipAfterBytes flips a bit, loseAfterBytes loses the rest, swapAfterBytes swaps two parts, "
        "repeatAfterBytes repeats one; set one of these keys. values changes the results of collectives with more "
        "than aboveBytes and fewer than belowBytes bytes; set both keys. It changes their sign or, with how: stale, "
        "returns the result of the previous collective; with aboveValue, it changes only values above that number; "
        "with peer, only messages of that rank and of collectives of all ranks",
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
