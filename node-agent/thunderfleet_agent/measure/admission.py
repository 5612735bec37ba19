"""Decides whether this Mac takes part in a probe that a peer requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thunderfleet_crds.kinds.nodeprofile import GroupUse

from thunderfleet_agent.measure.schedule import gates
from thunderfleet_agent.measure.schedule.due import room
from thunderfleet_agent.measure.schedule.probes import Probe, ProbeKind, Target, rdma_probe, socket_probe
from thunderfleet_agent.measure.schedule.settings import MeasureSettings
from thunderfleet_agent.measure.schedule.view import View
from thunderfleet_agent.measure.session.messages import ProbeRequest
from thunderfleet_agent.measure.session.result import ProbeRefused

# A busy Mac can be retried soon; a Mac that a group uses, or that cannot be measured, later.
BUSY_SECONDS = 1.0
IN_USE_SECONDS = 30.0
# After an interactive request was refused because this Mac is busy, background probes are refused for this time. Otherwise, in
# a fleet that measures all the time, the interactive request might never be accepted.
RESERVED_SECONDS = 5.0


@dataclass(frozen=True)
class Reservation:
    """Until ``until`` only ``node`` is accepted, because it requested an interactive measurement."""

    node: str = ""
    until: float = 0.0


@dataclass(frozen=True)
class Situation:
    """What the decision depends on, in addition to the request. ``busy``: this Mac takes part in a probe now."""

    node: str
    settings: MeasureSettings
    view: View
    groups: Sequence[GroupUse] | None
    spent: Sequence[tuple[float, int]]
    reservation: Reservation
    busy: bool
    now: float


def admit(request: ProbeRequest, peer: str, here: str, there: str, situation: Situation) -> tuple[Probe, Reservation]:
    """The probe that ``peer`` requests from address ``there`` at ``here``, and the reservation from now on.

    A ``peer`` of this Mac's own name is an interactive measurement that requests a lease. Raises ProbeRefused.
    """
    node, settings, now = situation.node, situation.settings, situation.now
    if not settings.enabled:
        raise ProbeRefused(f"benchmarks are disabled on {node} (chart value agent.measure.enabled)", IN_USE_SECONDS)
    reserved = situation.reservation
    if not situation.busy and now < reserved.until and reserved.node != peer:
        raise ProbeRefused(f"{node} is reserved by `thunderfleet-agent measure`", BUSY_SECONDS)
    probe = _leased(request, situation) if peer == node else _requested(request, peer, here, there, situation)
    why = gates.blocked_by(probe, situation.groups)
    if why is not None:
        raise ProbeRefused(f"{node}: {why}", IN_USE_SECONDS)
    if request.interactive or peer == node:
        reserved = Reservation(peer, now + RESERVED_SECONDS)
    return probe, reserved


def check_budget(probe: Probe, situation: Situation) -> None:
    """Raises ProbeRefused if the probe's bytes do not fit into this minute."""
    fits = room(situation.spent, situation.settings.bytes_per_minute, probe.shared_bytes, situation.now)
    if probe.shared_bytes and fits > situation.now:
        raise ProbeRefused(
            f"{situation.node} has used its network budget for this minute (agent.measure.bytesPerMinute)", fits - situation.now
        )


def _leased(request: ProbeRequest, situation: Situation) -> Probe:
    if request.kind not in (ProbeKind.SOCKET, ProbeKind.RDMA):
        raise ProbeRefused(f"a {request.kind} benchmark does not need a lease")
    target = Target(request.node, "", request.link)
    return (socket_probe if request.kind is ProbeKind.SOCKET else rdma_probe)(situation.settings, target)


def _requested(request: ProbeRequest, peer: str, here: str, there: str, situation: Situation) -> Probe:
    settings, view, node = situation.settings, situation.view, situation.node
    if request.kind is ProbeKind.SOCKET:
        return socket_probe(settings, Target(peer, there, view.link_at(here, peer)))
    if request.kind is not ProbeKind.RDMA:
        raise ProbeRefused(f"a {request.kind} benchmark runs on a single Mac, without a peer")
    cable = view.cables.get(request.link)
    if cable is None or cable.peer != peer:
        raise ProbeRefused(f"{node} has no link {request.link[:120] or '(no name)'} to {peer}", IN_USE_SECONDS)
    if request.transport is not settings.rdma.transport:
        raise ProbeRefused(
            f"{node} measures cables over {settings.rdma.transport}, not {request.transport} (chart value "
            f"agent.measure.rdma.transport): use --transport {settings.rdma.transport.lower()}"
        )
    if cable.problem is not None:
        raise ProbeRefused(f"{node}: {cable.problem}")
    return rdma_probe(settings, Target(peer, "", request.link))
