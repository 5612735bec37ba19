"""Which requests of peers this Mac accepts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from thunderfleet_agent.measure.admission import (
    BUSY_SECONDS,
    IN_USE_SECONDS,
    RESERVED_SECONDS,
    Reservation,
    Situation,
    admit,
    check_budget,
)
from thunderfleet_agent.measure.schedule.probes import CableEnd, Probe, ProbeKind, Target
from thunderfleet_agent.measure.schedule.settings import MeasureSettings, Rdma
from thunderfleet_agent.measure.schedule.view import Cable, View
from thunderfleet_agent.measure.session.messages import ProbeRequest
from thunderfleet_agent.measure.session.result import ProbeRefused
from thunderfleet_crds.kinds.nodeprofile import GroupUse
from thunderfleet_crds.vocabulary import MeasurementTransport

LINK, HERE, THERE = "a.tb1--b.tb1", "10.0.0.1", "10.0.0.2"
CABLE = Cable(LINK, "b", "en2", CableEnd("rdma_en2", HERE), None)
VIEW = View("a", HERE, (), {LINK: CABLE}, {}, {HERE: "en2", "192.168.0.1": "en0"})
FREE = Situation(
    node="a", settings=MeasureSettings(), view=VIEW, groups=(), spent=(), reservation=Reservation(), busy=False, now=1000.0
)
SOCKET = ProbeRequest(kind=ProbeKind.SOCKET)
RDMA = ProbeRequest(kind=ProbeKind.RDMA, link=LINK, transport=MeasurementTransport.RDMA)


def accepted(request: ProbeRequest, situation: Situation = FREE, peer: str = "b", here: str = HERE) -> Probe:
    return admit(request, peer, here, THERE, situation)[0]


def refused(request: ProbeRequest, situation: Situation = FREE, peer: str = "b") -> tuple[str, float | None]:
    with pytest.raises(ProbeRefused) as error:
        admit(request, peer, HERE, THERE, situation)
    return str(error.value), error.value.retry_seconds


def test_a_socket_probe_is_bounded_by_where_the_connection_arrived() -> None:
    over_cable, over_lan = accepted(SOCKET), accepted(SOCKET, here="192.168.0.1")
    assert over_cable.target == Target("b", THERE, LINK) and over_lan.target == Target("b", THERE, "")
    assert over_cable.bytes > over_lan.bytes and over_cable.shared_bytes == 0 < over_lan.shared_bytes


def test_an_rdma_probe_needs_a_link_to_that_peer() -> None:
    assert accepted(RDMA).target == Target("b", "", LINK)
    assert refused(RDMA, peer="c") == (f"a has no link {LINK} to c", IN_USE_SECONDS)
    assert refused(RDMA.model_copy(update={"link": ""})) == ("a has no link (no name) to b", IN_USE_SECONDS)


def test_an_rdma_probe_needs_the_same_transport_and_a_cable_without_a_problem() -> None:
    ring = RDMA.model_copy(update={"transport": MeasurementTransport.RING})
    why = "a measures cables over RDMA, not Ring (chart value agent.measure.rdma.transport): use --transport rdma"
    assert refused(ring) == (why, None)
    both_ring = replace(FREE, settings=MeasureSettings(rdma=Rdma(transport=MeasurementTransport.RING)))
    assert accepted(ring, both_ring).kind is ProbeKind.RDMA
    broken = replace(FREE, view=replace(VIEW, cables={LINK: replace(CABLE, problem="no JACCL")}))
    assert refused(RDMA, broken) == ("a: no JACCL", None)


@pytest.mark.parametrize("kind", [ProbeKind.GPU, ProbeKind.MEMORY])
def test_a_probe_of_one_mac_is_not_requested_by_a_peer_or_a_lease(kind: ProbeKind) -> None:
    request = ProbeRequest(kind=kind)
    assert refused(request) == (f"a {kind} benchmark runs on a single Mac, without a peer", None)
    assert refused(request, peer="a") == (f"a {kind} benchmark does not need a lease", None)


def test_nothing_is_accepted_while_measuring_is_disabled() -> None:
    why, again = refused(SOCKET, replace(FREE, settings=MeasureSettings(enabled=False)))
    assert "agent.measure.enabled" in why and again == IN_USE_SECONDS


def test_a_group_blocks_the_probe() -> None:
    group = GroupUse(name="default/qwen-0", epoch=1, nodes=("a", "b"), links=(LINK,))
    assert refused(RDMA, replace(FREE, groups=(group,))) == ("a: group default/qwen-0 uses this Mac", IN_USE_SECONDS)
    assert refused(SOCKET, replace(FREE, groups=None))[1] == IN_USE_SECONDS


def test_an_interactive_request_reserves_this_mac_for_its_peer() -> None:
    interactive = SOCKET.model_copy(update={"interactive": True})
    assert admit(SOCKET, "b", HERE, THERE, FREE)[1] == Reservation()
    _, reservation = admit(interactive, "b", HERE, THERE, FREE)
    assert reservation == Reservation("b", FREE.now + RESERVED_SECONDS)
    reserved = replace(FREE, reservation=reservation)
    assert refused(SOCKET, reserved, peer="c") == ("a is reserved by `thunderfleet-agent measure`", BUSY_SECONDS)
    assert accepted(SOCKET, reserved, peer="b")
    # While this Mac takes part in a probe, its lock decides.
    assert accepted(SOCKET, replace(reserved, busy=True), peer="c")
    assert refused(SOCKET, replace(reserved, now=reservation.until - 0.001), peer="c")
    assert accepted(SOCKET, replace(reserved, now=reservation.until), peer="c")


def test_a_lease_reserves_this_mac_and_names_the_peer() -> None:
    for kind, link in ((ProbeKind.SOCKET, ""), (ProbeKind.RDMA, LINK)):
        probe, reservation = admit(ProbeRequest(kind=kind, node="b", link=link), "a", HERE, HERE, FREE)
        assert (probe.kind, probe.target) == (kind, Target("b", "", link))
        assert reservation == Reservation("a", FREE.now + RESERVED_SECONDS)


def test_a_refused_request_reserves_nothing_but_one_over_the_budget_does() -> None:
    over_lan, budget = accepted(SOCKET, here="192.168.0.1"), FREE.settings.bytes_per_minute
    full = replace(FREE, spent=((990.0, budget),))
    with pytest.raises(ProbeRefused, match="network budget for this minute") as error:
        check_budget(over_lan, full)
    assert error.value.retry_seconds == 50.0
    check_budget(over_lan, replace(full, now=1050.0))
    check_budget(over_lan, FREE)
    # A cable is not shared.
    check_budget(accepted(SOCKET), full)
