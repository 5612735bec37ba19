"""The problems that this Mac can detect locally, each with its fix, for ``inspect --why``."""

from __future__ import annotations

from collections.abc import Iterator

from thunderfleet_crds.kinds.nodeprofile import NodeProfileStatus, ThunderboltPort
from thunderfleet_crds.kinds.thunderboltlink import generation
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.vocabulary import ConditionStatus, ConditionType
from thunderfleet_lib.rdma import rules

from thunderfleet_agent.derive.failures import fix, message
from thunderfleet_agent.derive.rdma_ready import THIS_MAC
from thunderfleet_agent.observe.collector import QUESTIONS
from thunderfleet_agent.observe.facts import Facts, Source

PROVIDES = {
    Source.THUNDERBOLT: "ports, speeds, peers, hubs",
    Source.HARDWARE: "model, chip, cores, memory",
    Source.DISPLAYS: "GPU cores",
    Source.SYSCTL: "memory, cores",
    Source.GPU_MEMORY: "GPU memory limit",
    Source.SYSTEM: "macOS",
    Source.HARDWARE_PORTS: "interfaces of ports, kinds of interfaces",
    Source.SERVICES: "service of each bridge",
    Source.INTERFACES: "addresses, link states, bridges",
    Source.RDMA_SWITCH: "whether RDMA is enabled",
    Source.RDMA_DEVICES: "RDMA devices",
    Source.RDMA_INFO: "states and GIDs of RDMA devices",
    Source.RUNTIME: "versions and backends of MLX",
}
"""What each command provides, for people; every source needs an entry."""


def as_values(status: NodeProfileStatus, facts: Facts) -> dict[str, object]:
    """For programs: ``sources`` (command, provides, answered, and if not message and fix) and ``problems`` (texts)."""
    sources = []
    for question in QUESTIONS:
        failure = facts.failures.get(question.source)
        found: dict[str, object] = {
            "command": " ".join(question.argv),
            "provides": PROVIDES[question.source],
            "answered": not failure,
        }
        sources.append(found | ({"message": failure.message, "fix": fix(question.source, failure)} if failure else {}))
    return {"sources": sources, "problems": problems(status, facts)}


def problems(status: NodeProfileStatus, facts: Facts) -> list[str]:
    """Every problem, with its fix."""
    found = [f"{message(source, failure)}: {fix(source, failure)}" for source, failure in sorted(facts.failures.items())]
    for c in status.conditions:
        if c.status is ConditionStatus.TRUE or (c.type == ConditionType.INVENTORY_COMPLETE and facts.failures):
            continue
        how = "; benchmarks run only in the deployed agent" if c.type == ConditionType.BENCHMARKS_FRESH else ""
        found.append(f"{c.type}: {c.message}{how}")
    for port in status.thunderbolt.ports if status.thunderbolt else ():
        if port.peers:
            found += [f"port {port.receptacle}: {text}" for text in port_problems(port, status)]
        elif port.connected:
            found.append(f"port {port.receptacle}: the connected device is not a computer; connect a Mac to make a link")
    for model in status.models:
        found += [f"{model.path}: {why}" for why in (model.problem, model.unsupported) if why]
    return found


def port_problems(port: ThunderboltPort, status: NodeProfileStatus) -> Iterator[str]:
    """Why RDMA does not work over this port, according to this end's observations."""
    if port.interface is None:
        yield (
            f"`networksetup -listallhardwareports` lists no port named `Thunderbolt {port.receptacle}`: "
            "run the command on this Mac and check its output"
        )
    fault = rdma_fault(port, status)
    if fault is not None:
        _, text = fault
        yield text
    for peer in port.peers:
        slowest = peer.speed_mbps or port.speed_mbps
        if slowest and generation(slowest) != "TB5":
            way = f" through {', '.join(peer.through)}" if peer.through else ""
            peer_name = peer.name or "the peer"
            needs = "RDMA needs Thunderbolt 5 Macs, cables and hubs"
            yield f"the connection to {peer_name}{way} runs at {speed_text(slowest)}: {needs}"


def rdma_fault(port: ThunderboltPort, status: NodeProfileStatus) -> tuple[Reason, str] | None:
    """Why RDMA does not work on this port, by the rules that agent, operator and runner share: the reason, and in words."""
    device = next((d for d in (status.rdma.devices if status.rdma else ()) if d.name == port.rdma_device), None)
    interface = next((i for i in (status.network.interfaces if status.network else ()) if i.name == port.interface), None)
    stack = rules.Stack(enabled=status.rdma.enabled, reported=status.rdma.state) if status.rdma else rules.Stack()
    rdma_port = rules.Port(
        device=port.rdma_device,
        interface=port.interface,
        state=device.state if device else None,
        bridge=interface.bridge if interface else None,
        mapped=device is not None and device.gid is not None,
        address=next((a.address for a in (interface.addresses if interface else ()) if ":" not in a.address), None),
    )
    reason = rules.stack_fault(stack) or rules.port_fault(rdma_port)
    return (reason, rules.explain(reason, THIS_MAC, rdma_port)) if reason else None


def speed_text(mbps: int | None) -> str:
    """``80 Gb/s``; ``-`` if unknown."""
    if not mbps:
        return "-"
    return f"{mbps / 1000:g} Gb/s" if mbps >= 1000 else f"{mbps} Mb/s"
