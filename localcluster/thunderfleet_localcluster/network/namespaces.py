"""The cluster's own network: one bridge that is the LAN, a cable is a pair of interfaces. All of it inside namespaces.

``can_isolate`` finds out by trying whether this machine and user have what it takes; the answer comes with the reason,
because ``thunderfleet up`` tells why it falls back to loopback addresses.
"""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from thunderfleet_localcluster.errors import LocalClusterError
from thunderfleet_localcluster.fleet.layout import CableEnd, Layout, MachineLayout, mac_address
from thunderfleet_localcluster.machines.launchd import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    libc_call,
    mount_own_proc,
)

CLONE_NEWUSER = 0x10000000
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"
IP_SECONDS = 20
BRIDGE = "lan0"


def program(name: str) -> str | None:
    """Path of a system administrator's program, whose folder is not on every user's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{SBIN}")


def enter_namespaces() -> None:
    """Leaves the host's network, mounts, host name; children of this process get a PID namespace. Without root this takes
    a user namespace, in which the invoking user is root and nobody else exists. Must run before any thread does.
    """
    uid, gid = os.geteuid(), os.getegid()
    flags = CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS
    if uid != 0:
        flags |= CLONE_NEWUSER
    libc_call("unshare", flags)
    if uid != 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


_TRY = (
    "import sys; sys.path[:0] = [sys.argv[1]]; "
    "from thunderfleet_localcluster.network.namespaces import try_namespaces; try_namespaces()"
)


def try_namespaces() -> None:
    """Makes and drops everything that a cluster needs of the kernel; exits with a sentence when something is refused."""
    try:
        enter_namespaces()
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        mount_own_proc()
        ip_batch("link add lan0 type bridge\nlink add a0 type veth peer name b0\nlink set a0 master lan0\n")
    except (OSError, LocalClusterError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)


def can_isolate() -> str | None:
    """None when this user can have namespaces here, else the reason why not."""
    if not sys.platform.startswith("linux"):
        return "there are no network namespaces on this system"
    if program("ip") is None:
        return "the program ip (package iproute2) is not installed"
    here = str(Path(__file__).resolve().parents[2])
    try:
        tried = subprocess.run(
            [sys.executable, "-c", _TRY, here],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return "making namespaces did not end within 30 s"
    if tried.returncode == 0:
        return None
    return "namespaces are refused here: " + (tried.stderr.strip().splitlines() or [f"exit code {tried.returncode}"])[-1]


def ip_batch(commands: str) -> None:
    """Runs ``ip -batch`` in this network namespace. Raises LocalClusterError with what ip said."""
    found = program("ip")
    if found is None:
        raise LocalClusterError("the program ip (package iproute2) is not installed")
    try:
        done = subprocess.run(
            [found, "-batch", "-"], input=commands, capture_output=True, text=True, timeout=IP_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LocalClusterError(f"ip did not end within {IP_SECONDS} s:\n{commands}") from error
    if done.returncode != 0:
        raise LocalClusterError(f"ip: {done.stderr.strip()}")


def missing_aliases(layout: Layout, can_bind: Callable[[str], bool]) -> list[str]:
    """The lines that give this machine the loopback addresses that it lacks: macOS has 127.0.0.1 alone."""
    addresses = [layout.control_plane.ip, *(machine.lan.ip for machine in layout.machines)]
    addresses += [end.address.ip for machine in layout.machines for end in machine.ends if end.address]
    return [f"sudo ifconfig lo0 alias {address} up" for address in addresses if not can_bind(str(address))]


def can_bind(address: str) -> bool:
    """Whether this machine has the address."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def lan_commands(layout: Layout) -> str:
    """``ip`` commands that make the LAN with the control plane on it."""
    at = layout.control_plane
    return (
        "link set lo up\n"
        f"link add {BRIDGE} type bridge forward_delay 0\n"
        f"addr add {at.ip}/{at.prefix} dev {BRIDGE}\n"
        f"link set {BRIDGE} up\n"
    )


def lan_port(index: int) -> str:
    """The LAN's own end of the line to a machine."""
    return f"lan-{index}"


def plug_lan(index: int, machine: MachineLayout, pid: int) -> str:
    """``ip`` commands that plug the machine whose first process is ``pid`` into the LAN as en0."""
    port = lan_port(index)
    return (
        f"link add {port} type veth peer name en0 address {mac_address(machine.name, 'en0')} netns {pid}\n"
        f"link set {port} master {BRIDGE}\n"
        f"link set {port} up\n"
    )


def plug_cable(ends: Mapping[int, tuple[str, CableEnd]]) -> str:
    """``ip`` commands for one cable: process id of a machine → (its name, its end)."""
    (pid, (name, end)), (pid2, (name2, end2)) = ends.items()
    return (
        f"link add {end.interface} address {mac_address(name, end.interface)} netns {pid} type veth "
        f"peer name {end2.interface} address {mac_address(name2, end2.interface)} netns {pid2}\n"
    )


def pull_lan(index: int, plugged: bool) -> str:
    """``ip`` commands that pull a machine's plug out of the LAN (its en0 loses its carrier, and knows), or put it in again."""
    return f"link set {lan_port(index)} {'up' if plugged else 'down'}\n"


def inside_commands(machine: MachineLayout) -> str:
    """``ip`` commands inside a machine once it is plugged into the LAN."""
    return f"link set lo up\naddr add {machine.lan.ip}/{machine.lan.prefix} broadcast + dev en0\nlink set en0 up\n"


def pull_commands(end: CableEnd, plugged: bool) -> str:
    """``ip`` commands inside a machine that pull its end of a cable, or plug it in again."""
    return f"link set {end.interface} {'up' if plugged else 'down'}\n"


def rate_rule(interface: str, rate_mbps: int | None) -> list[str]:
    """Arguments of ``tc`` that slow an interface down, or let it run free again."""
    if rate_mbps is None:
        return ["qdisc", "del", "dev", interface, "root"]
    burst = max(16, min(1024, rate_mbps // 4))
    return [
        "qdisc",
        "replace",
        "dev",
        interface,
        "root",
        "tbf",
        "rate",
        f"{rate_mbps}mbit",
        "burst",
        f"{burst}kb",
        "latency",
        "50ms",
    ]


# Drops TCP connections that begin (SYN without ACK) as they come in, in the kernel's classic packet filter language: load the
# protocol, the IP protocol, skip the IP header, look at the flags.
_DROP_BEGINNINGS = "10,40 0 0 12,21 0 7 2048,48 0 0 23,21 0 5 6,177 0 0 14,80 0 0 27,84 0 0 18,21 0 1 2,6 0 0 2,6 0 0 0"


def deafen_rules(interface: str, deaf: bool) -> list[list[str]]:
    """Arguments of ``tc``, one list a call, that keep connections from beginning over an interface from outside, or let them.
    The first takes away what may not be there; it may fail.
    """
    rules = [["qdisc", "del", "dev", interface, "ingress"]]
    if deaf:
        rules.append(["qdisc", "add", "dev", interface, "ingress"])
        program = ["bpf", "direct-action", "bytecode", _DROP_BEGINNINGS]
        rules.append(["filter", "add", "dev", interface, "ingress", *program])
    return rules


def unplug_commands(end: CableEnd) -> str:
    """``ip`` commands inside a machine that take its end of a cable away, and with it the other end."""
    return f"link del {end.interface}\n"


def end_commands(end: CableEnd) -> str:
    """``ip`` commands inside a machine for its end of a cable."""
    address = f"addr add {end.address.ip}/{end.address.prefix} broadcast + dev {end.interface}\n" if end.address else ""
    return f"{address}link set {end.interface} up\n"
