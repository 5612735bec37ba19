"""What the agent would publish, as a page for people: the same values as on the cluster, each "no" with what mends it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from thunderfleet_crds.fields import binary_size
from thunderfleet_crds.nodeprofile import Interface, Model, NodeProfileStatus, ThunderboltPort
from thunderfleet_crds.thunderboltlink import generation
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType, RDMADeviceState
from thunderfleet_lib.hostcmd import Failure, FailureKind

from thunderfleet_agent.derive.profile import Profile
from thunderfleet_agent.observe.collector import QUESTIONS
from thunderfleet_agent.observe.facts import Facts, Source

NONE = "-"
# Columns that a condition's message gets.
WIDTH = 70


# What each source feeds, for people.
FEEDS = {
    Source.THUNDERBOLT: "ports, speeds, peers, hubs",
    Source.HARDWARE: "model, chip, cores, memory",
    Source.DISPLAYS: "GPU cores",
    Source.SYSCTL: "memory, cores, the GPU's limit",
    Source.SYSTEM: "macOS",
    Source.HARDWARE_PORTS: "which interface a port is, kinds of interfaces",
    Source.SERVICES: "which service keeps a bridge",
    Source.INTERFACES: "addresses, link states, bridges",
    Source.RDMA_SWITCH: "RDMA's switch",
    Source.RDMA_DEVICES: "RDMA devices",
    Source.RDMA_INFO: "their states and GIDs",
    Source.RUNTIME: "versions and backends of mlx",
}


def page(node: str, profile: Profile, facts: Facts | None = None) -> str:
    """The whole page, without a newline at its end; with ``facts`` also what they came from, the reasons and remedies."""
    status = profile.status
    parts = [
        _machine(node, status),
        _titled("Thunderbolt", _ports(status) or ["no Thunderbolt port is known"]),
        _titled("Network", _interfaces(status) or ["no interface is known"]),
        _titled("Models", _models(status.models) or ["none found (--model-folder says where to look)"]),
        _titled("Conditions", _conditions(status)),
    ]
    if facts is not None:
        parts.append(_titled("Where from", _sources(facts)))
        # Not broken into lines: people copy commands from here.
        parts.append(_titled("Why not", reasons(status, facts) or ["nothing stands in the way"]))
    return "\n\n".join(parts)


def why(status: NodeProfileStatus, facts: Facts) -> dict[str, object]:
    """The same for programs: ``sources`` (command, feeds, answered, message) and ``reasons``, one text each."""
    sources = []
    for question in QUESTIONS:
        failure = facts.failures.get(question.source)
        found: dict[str, object] = {
            "command": " ".join(question.argv),
            "feeds": FEEDS[question.source],
            "answered": not failure,
        }
        sources.append(found | ({"message": failure.message, "mend": remedy(question.source, failure)} if failure else {}))
    return {"sources": sources, "reasons": reasons(status, facts)}


def remedy(source: Source, failure: Failure) -> str:
    """What somebody does about a command that does not answer."""
    rdma = source in (Source.RDMA_SWITCH, Source.RDMA_DEVICES, Source.RDMA_INFO)
    if source is Source.MODELS:
        return "give the agent's user the right to read these folders"
    if failure.kind is FailureKind.ABSENT:
        if source is Source.RUNTIME:
            return "it comes with Thunderfleet: run the agent from its image, or put the image's bin folder on PATH"
        return (
            "macOS 26.2 or newer has it: update this Mac" if rdma else "macOS has it: put /usr/sbin, /usr/bin and /sbin on PATH"
        )
    if failure.kind is FailureKind.TIMED_OUT:
        return "the RDMA stack is dead: reboot this Mac" if rdma else "run it on this Mac; a reboot ends what hangs"
    return "run it on this Mac and see what it says"


def _sources(facts: Facts) -> list[str]:
    rows = [("COMMAND", "SAYS", "ANSWERED")]
    for question in QUESTIONS:
        failure = facts.failures.get(question.source)
        rows.append((" ".join(question.argv), FEEDS[question.source], f"no: {failure.message}" if failure else "yes"))
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, three spaces between, nothing after the last."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _wrapped(text: str, width: int) -> list[str]:
    """The text on as many lines as it needs; those that follow are indented. Words (commands, paths) stay whole."""
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _titled(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _machine(node: str, status: NodeProfileStatus) -> str:
    hardware, system, runtime = status.hardware, status.os, status.runtime
    lines = []
    if hardware:
        chip = hardware.chip or "unknown chip"
        cores = f"{hardware.cpu_cores or '?'} CPU and {hardware.gpu_cores or '?'} GPU cores"
        lines.append(("machine", f"{chip} ({hardware.model_identifier or 'model unknown'}), {cores}"))
        if hardware.memory_bytes and hardware.gpu_memory_limit_bytes:
            gpu = binary_size(hardware.gpu_memory_limit_bytes)
            lines.append(("memory", f"{hardware.memory}, of which the GPU may use {gpu}"))
    else:
        lines.append(("machine", "unknown"))
    lines.append(("macOS", f"{system.version} ({system.build or 'build unknown'})" if system else "unknown"))
    if runtime:
        versions = f"mlx {runtime.mlx_version or '?'}, mlx-lm {runtime.mlx_lm_version or '?'}"
        lines.append(("runtime", f"{versions}, backends: {', '.join(runtime.backends) or 'none'}"))
    else:
        lines.append(("runtime", "unknown"))
    rdma = status.rdma
    switch = {True: "on", False: "off", None: "unknown"}[rdma.enabled if rdma else None]
    lines.append(("RDMA", f"{rdma.state if rdma and rdma.state else 'unknown'} (switch {switch})"))
    width = max(len(label) for label, _ in lines)
    return _titled(node, (f"{label.ljust(width)}  {text}" for label, text in lines))


def speed(mbps: int | None) -> str:
    """``80 Gb/s``."""
    if not mbps:
        return NONE
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"


def _ports(status: NodeProfileStatus) -> list[str]:
    devices = {device.name: device for device in (status.rdma.devices if status.rdma else ())}
    rows = [("PORT", "INTERFACE", "SPEED", "TB", "RDMA DEVICE", "STATE", "SEES", "THROUGH", "PEER'S DOMAIN")]
    for port in status.thunderbolt.ports if status.thunderbolt else ():
        device = devices.get(port.rdma_device or "")
        head = (
            str(port.receptacle),
            port.interface or NONE,
            speed(port.speed_mbps) if port.connected else "idle",
            generation(port.speed_mbps) if port.speed_mbps else NONE,
            port.rdma_device or NONE,
            device.state.value if device else NONE,
        )
        if not port.peers:
            rows.append((*head, "a device" if port.connected else NONE, NONE, NONE))
        for peer in port.peers:
            rows.append((*head, peer.name or "a Mac", ", ".join(peer.through) or NONE, peer.domain_uuid))
    return table(rows) if len(rows) > 1 else []


def _interfaces(status: NodeProfileStatus) -> list[str]:
    rows = [("INTERFACE", "KIND", "UP", "SPEED", "BRIDGE", "ADDRESSES")]
    for interface in status.network.interfaces if status.network else ():
        rows.append(
            (
                interface.name,
                interface.kind.value,
                "yes" if interface.up else "no",
                speed(interface.speed_mbps),
                interface.bridge or NONE,
                _addresses(interface),
            )
        )
    return table(rows) if len(rows) > 1 else []


def _addresses(interface: Interface) -> str:
    return ", ".join(f"{a.address}/{a.prefix_length} {a.class_.value}" for a in interface.addresses) or NONE


def _models(models: Sequence[Model]) -> list[str]:
    rows = [("REPOSITORY", "ARCHITECTURE", "SIZE", "COMPLETE", "SIZED BY", "PATH")]
    for model in models:
        rows.append(
            (
                model.repository or NONE,
                model.architecture or NONE,
                binary_size(model.bytes),
                "yes" if model.complete else "no",
                model.sized_by.value if model.sized_by else NONE,
                model.path,
            )
        )
    return table(rows) if len(rows) > 1 else []


def _conditions(status: NodeProfileStatus) -> list[str]:
    rows = [("CONDITION", "STATUS", "REASON", "MESSAGE")]
    for c in status.conditions:
        first, *more = _wrapped(c.message, WIDTH) or [""]
        rows.append((c.type, c.status.value, c.reason, first))
        rows += [("", "", "", line) for line in more]
    return table(rows)


def reasons(status: NodeProfileStatus, facts: Facts) -> list[str]:
    """Every "no" that this Mac alone can see, with its remedy."""
    lines = [f"{failure}: {remedy(source, failure)}" for source, failure in sorted(facts.failures.items())]
    for c in status.conditions:
        if c.status is ConditionStatus.TRUE or (c.type == ConditionType.INVENTORY_COMPLETE and facts.failures):
            continue
        mend = (
            "; the agent measures by itself once it runs beside a cluster" if c.type == ConditionType.BENCHMARKS_FRESH else ""
        )
        lines.append(f"{c.type}: {c.message}{mend}")
    for port in status.thunderbolt.ports if status.thunderbolt else ():
        if port.peers:
            lines += [f"port {port.receptacle}: {reason}" for reason in port_reasons(port, status)]
        elif port.connected:
            lines.append(
                f"port {port.receptacle}: what is connected is no computer, so it makes no link: plug in a Mac, or let it be"
            )
    lines += [f"{model.path}: {model.problem}" for model in status.models if model.problem]
    return lines


def port_reasons(port: ThunderboltPort, status: NodeProfileStatus) -> list[str]:
    """Why RDMA cannot run over this port, as far as its own end knows: rule 5 of discovery."""
    found = []
    device = next((d for d in (status.rdma.devices if status.rdma else ()) if d.name == port.rdma_device), None)
    interface = next((i for i in (status.network.interfaces if status.network else ()) if i.name == port.interface), None)
    if port.interface is None:
        found.append("no network interface is known for it: `networksetup -listallhardwareports` names none `Thunderbolt N`")
    if interface and interface.bridge:
        mend = f"`sudo ifconfig {interface.bridge} deletem {interface.name}`"
        found.append(f"{interface.name} is a member of {interface.bridge}, so it has no address of its own: {mend}")
    if status.rdma and status.rdma.enabled is False:
        found.append("RDMA is switched off: `rdma_ctl enable` in Recovery, then restart")
    elif device is None:
        found.append(
            "it has no RDMA device: only Macs with Thunderbolt 5 have them, on macOS 26.2 or newer with RDMA switched on"
        )
    elif device.state is RDMADeviceState.UNKNOWN:
        found.append(f"the state of {device.name} is unknown: `ibv_devinfo -v` says nothing of it: run it on this Mac")
    elif device.state is not RDMADeviceState.ACTIVE:
        found.append(f"{device.name} is {device.state.value}: the other end's RDMA must be on, over a Thunderbolt 5 cable")
    elif device.gid is None and not (interface and interface.bridge):
        address = next((a.address for a in (interface.addresses if interface else ()) if ":" not in a.address), None)
        mend = f"`sudo ifconfig {port.interface} inet 10.0.0.1/30`, and 10.0.0.2/30 at the other end"
        why = f"because {port.interface} has no IPv4 address"
        if address is not None:
            mend = f"see what `ibv_devinfo -v` says, else set it anew: `sudo ifconfig {port.interface} inet {address}`"
            why = f"though {port.interface} has {address}"
        found.append(f"{device.name} has no IPv4-mapped GID, {why}: {mend}")
    for peer in port.peers:
        slow = peer.speed_mbps or port.speed_mbps
        if slow and generation(slow) != "TB5":
            way = f" (through {', '.join(peer.through)})" if peer.through else ""
            name = peer.name or "the peer"
            found.append(
                f"the way to {name}{way} runs at {speed(slow)}: RDMA needs Thunderbolt 5 all the way: another cable or hub"
            )
    return found
