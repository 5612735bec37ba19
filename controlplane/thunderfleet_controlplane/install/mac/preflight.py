"""Problems that prevent an installation on this Mac. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

MACOS = (14, 0)
NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RESET = "run `sudo thunderfleet reset` first"
RESTORE_FIRST = (
    "a restore was interrupted: run `sudo thunderfleet restore FILE` again to complete it, or `sudo thunderfleet restore "
    "--undo` to put back what was here"
)
INTERRUPTED = (
    "`join --control-plane` was interrupted on this Mac: run it again to complete it, or `sudo thunderfleet reset` to undo it"
)


@dataclass(frozen=True)
class Facts:
    """The facts of this machine that preflight needs. None: unknown."""

    root: bool
    macos: str | None
    """The version; empty if `sw_vers` does not print it, None if this is not a Mac."""
    launchctl: bool
    addresses: tuple[str, ...]
    """All IP addresses of this machine."""
    busy_ports: Mapping[int, str] = field(default_factory=dict)
    """Ports that another program listens on, and what needs them."""
    free_bytes: int | None = None
    """Free space where etcd's data and the programs are."""
    needed_bytes: int = 0
    """Space that building or copying the programs needs."""
    initialised: Mapping[str, object] = field(default_factory=dict)
    """The arguments of an earlier `init`; empty if there was none."""
    joined: Mapping[str, object] = field(default_factory=dict)
    """The cluster that this Mac has joined; empty if none."""
    restoring: bool = False
    """Whether a restore was interrupted, so that two control planes are here."""
    joining: bool = False
    """Whether `join --control-plane` was interrupted."""
    changeable: tuple[str, ...] = ()
    """Folders and files of an installation that other users can change, with the fix."""
    version: str = ""
    """The version that runs this command."""
    installed: str | None = ""
    """The version of the installed kubelet; empty if there is none, None if it is unknown."""
    prefix: Path | None = None
    """The folder of the Python of the installed kubelet."""


def _machine(facts: Facts) -> list[str]:
    found = []
    if not facts.root:
        found.append("this needs root: run it with sudo")
    if facts.macos is None:
        found.append("this machine is not a Mac (it has no sw_vers): use `thunderfleet local up` for recorded Macs")
    elif facts.macos and tuple(map(int, re.findall(r"\d+", facts.macos)[:2])) < MACOS:
        found.append(f"macOS {facts.macos} is too old: version {MACOS[0]} or newer is needed; update macOS")
    if facts.macos is not None and not facts.launchctl:
        found.append("/bin/launchctl, which is part of macOS, is missing: reinstall macOS")
    if facts.free_bytes is not None and facts.free_bytes < facts.needed_bytes:
        found.append(
            f"{facts.free_bytes / (1 << 30):.1f} GiB of disk are free, {facts.needed_bytes >> 30} GiB are needed: "
            "free some space"
        )
    found += [
        f"port {port} is needed by {what} and in use: end the program that listens on it"
        for port, what in facts.busy_ports.items()
    ]
    return [*found, *_version(facts), *facts.changeable]


def _version(facts: Facts) -> list[str]:
    """Another version would be started in place of the installed one, at once and without a way back."""
    if not facts.installed or facts.installed == facts.version:
        return []
    return [
        f"version {facts.installed} is installed, and this is version {facts.version}: run {facts.prefix}/bin/thunderfleet "
        "instead, or `upgrade` with this version first"
    ]


def _node_name(name: str) -> list[str]:
    if len(name) <= 63 and NODE_NAME.fullmatch(name):
        return []
    return [f"{name!r} cannot be the name of a Node: use --name with up to 63 lower-case letters, digits, '-' and '.'"]


def _address(facts: Facts, address: str | None) -> list[str]:
    found = []
    if address is None:
        found.append(
            "this Mac has no address on the interface of the default route or on bridge0: connect it to a network, or by a "
            "cable to another Mac, or use --advertise-address"
        )
    elif address not in facts.addresses:
        found.append(
            f"{address} is not an address of this Mac; it has {', '.join(facts.addresses) or 'none'}: check --advertise-address"
        )
    elif address.startswith("127.") or address == "::1":
        found.append(
            f"{address} is a loopback address, which other Macs cannot reach: use --advertise-address with another address"
        )
    return found


def init_problems(facts: Facts, name: str, address: str | None) -> list[str]:
    """Why `init` cannot install a control plane here, as sentences; empty if it can."""
    found = _machine(facts) + _node_name(name) + _address(facts, address)
    if facts.restoring:
        found.append(RESTORE_FIRST)
    if facts.joining:
        found.append(INTERRUPTED)
    known = facts.initialised.get("name")
    if known is not None and known != name:
        found.append(f"this Mac has a control plane with the Node name {known}: use --name {known}, or {RESET}")
    if facts.joined and not facts.initialised:
        found.append(f"this Mac has joined the cluster with the CA {facts.joined.get('caHash')}: {RESET}")
    return found


def join_problems(facts: Facts, name: str, ca_hash: str) -> list[str]:
    """Why `join` cannot make this Mac a Node of the cluster whose CA has this hash; empty if it can."""
    found = _machine(facts) + _node_name(name)
    if facts.joining:
        found.append(INTERRUPTED)
    elif facts.initialised:
        found.append(f"this Mac has a control plane of its own: {RESET}")
    elif facts.joined and facts.joined.get("caHash") != ca_hash:
        found.append(f"this Mac has joined another cluster, with the CA {facts.joined.get('caHash')}: {RESET}")
    return found


def member_problems(facts: Facts, name: str, address: str | None, ca_hash: str, own_hash: str | None) -> list[str]:
    """Why `join --control-plane` cannot give this Mac a control plane of that cluster; empty if it can.

    ``own_hash``: hash of the CA from an earlier run on this Mac; None if there is none.
    """
    found = _machine(facts) + _node_name(name) + _address(facts, address)
    if facts.initialised and not facts.joining:
        found.append(f"this Mac has a control plane already: {RESET}")
    elif own_hash not in (None, ca_hash):
        found.append(f"this Mac was joining another cluster, with the CA {own_hash}: {RESET}")
    known = facts.joined.get("name")
    if facts.joined and facts.joined.get("caHash") != ca_hash:
        found.append(f"this Mac has joined another cluster, with the CA {facts.joined.get('caHash')}: {RESET}")
    elif known not in (None, name):
        found.append(f"this Mac is the Node {known}: use --name {known}, or {RESET}")
    return found
