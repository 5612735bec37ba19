"""``thunderfleet-agent inspect``: what the agent would publish, as human-readable text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from thunderfleet_crds.kinds.nodeprofile import Interface, Model, NodeProfileStatus
from thunderfleet_crds.kinds.thunderboltlink import generation
from thunderfleet_crds.meta.fields import binary_size

from thunderfleet_agent.derive.profile import Profile
from thunderfleet_agent.inspection.problems import PROVIDES, problems, speed_text
from thunderfleet_agent.observe.collector import QUESTIONS
from thunderfleet_agent.observe.facts import Facts

NONE = "-"
# The width of the message column of conditions.
WIDTH = 70


def page(node: str, profile: Profile, facts: Facts | None = None) -> str:
    """The page, without a final newline; with ``facts`` also the sources, the problems and their fixes."""
    status = profile.status
    parts = [
        _machine(node, status),
        _titled("Thunderbolt", _ports(status) or ["no Thunderbolt ports"]),
        _titled("Network", _interfaces(status) or ["no interfaces"]),
        _titled("Models", _models(status.models) or ["none found; add a folder with --model-folder"]),
        _titled("Conditions", _conditions(status)),
    ]
    if facts is not None:
        parts.append(_titled("Sources", _sources(facts)))
        # Not wrapped, because people copy commands from here.
        parts.append(_titled("Problems", problems(status, facts) or ["none"]))
    return "\n\n".join(parts)


def _sources(facts: Facts) -> list[str]:
    rows = [("COMMAND", "PROVIDES", "ANSWERED")]
    for question in QUESTIONS:
        failure = facts.failures.get(question.source)
        rows.append((" ".join(question.argv), PROVIDES[question.source], f"no: {failure.message}" if failure else "yes"))
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell, separated by three spaces."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _wrapped(text: str, width: int) -> list[str]:
    """The text on several lines, indented after the first. Words (commands, paths) are not broken."""
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
    enabled = {True: "enabled", False: "disabled", None: "unknown"}[rdma.enabled if rdma else None]
    lines.append(("RDMA", f"{rdma.state if rdma and rdma.state else 'unknown'} (rdma_ctl: {enabled})"))
    width = max(len(label) for label, _ in lines)
    return _titled(node, (f"{label.ljust(width)}  {text}" for label, text in lines))


def _ports(status: NodeProfileStatus) -> list[str]:
    devices = {device.name: device for device in (status.rdma.devices if status.rdma else ())}
    rows = [("PORT", "INTERFACE", "SPEED", "TB", "RDMA DEVICE", "STATE", "SEES", "THROUGH", "PEER'S DOMAIN")]
    for port in status.thunderbolt.ports if status.thunderbolt else ():
        device = devices.get(port.rdma_device or "")
        head = (
            str(port.receptacle),
            port.interface or NONE,
            speed_text(port.speed_mbps) if port.connected else "idle",
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
                speed_text(interface.speed_mbps),
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
