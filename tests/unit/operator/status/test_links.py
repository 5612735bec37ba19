"""The status of a ThunderboltLink, and when the link is removed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import SUMMARY_FIELDS, ThunderboltLink
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.kube import Json
from thunderfleet_operator.act import events
from thunderfleet_operator.decide.link import LINGER_SECONDS, LinkDecision, change, decide, lingers
from thunderfleet_operator.decide.link_status import current, summary
from thunderfleet_operator.decide.status.events import Occurrence
from thunderfleet_operator.observe.objects.nodes import Node
from thunderfleet_operator.observe.observed import ObservedLink

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = frozenset("ab")
DOMAIN_A, DOMAIN_B, OTHER = (f"{digit * 8}-0000-4000-8000-000000000000" for digit in "abc")


def link(*ends: Json, conditions: list[Json] | None = None) -> ThunderboltLink:
    return ThunderboltLink.load(
        {
            "metadata": {"name": "a.tb1--b.tb2", "uid": "u"},
            "spec": {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 2}},
            "status": {"endpoints": list(ends), "conditions": conditions or []},
        }
    )


def end(node: str, **more: Any) -> Json:
    found = {"node": node, "port": 1, "interface": "en2", "rdmaDevice": "rdma_en2", "rdmaState": "Active", "seesPeer": True}
    return {**found, "speedMbps": 80000, **more}


def profile(name: str, enabled: bool = True, state: str = "Ready", bridge: str | None = None) -> NodeProfile:
    device = {"name": "rdma_en2", "interface": "en2", "state": "Active", "gid": "::ffff:10.0.0.1"}
    interface = {"name": "en2", "kind": "Thunderbolt", **({"bridge": bridge} if bridge else {})}
    return NodeProfile.load(
        {
            "metadata": {"name": name},
            "status": {
                "rdma": {"enabled": enabled, "state": state, "devices": [device]},
                "network": {"interfaces": [interface]},
            },
        }
    )


def verdicts(made: Json) -> dict[str, tuple[str, str, str]]:
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in made["conditions"]}


@pytest.mark.parametrize(
    ("found", "profiles", "reason", "mend"),
    [
        (link(end("a")), {}, "EndMissing", "spec.nodeName=b"),
        (link(end("a", speedMbps=40000), end("b")), {}, "BelowThunderbolt5", "use a Thunderbolt 5 cable"),
        (link(end("a", through=["Old Dock"], speedMbps=40000), end("b")), {}, "BelowThunderbolt5", "without Old Dock"),
        # The message names the cause, not its effect at the other end.
        (link(end("a", rdmaState="Down"), end("b", rdmaState=None)), {"b": {"enabled": False}}, "RDMADisabled", "start b in R"),
        (link(end("a"), end("b", rdmaState="Unknown")), {"b": {"state": "StackHung"}}, "StackHung", "reboot b (`sudo"),
        (link(end("a", rdmaState="Down"), end("b")), {"b": {"bridge": "bridge0"}}, "BridgeMember", "doctor --fix` on b"),
        (link(end("a", rdmaState="Down"), end("b")), {}, "PortDown", "`ibv_devinfo -v` on a"),
        (link(end("a"), end("b", rdmaDevice="rdma_en9")), {}, "NoIPv4Address", "`sudo networksetup -setmanual"),
        (link(end("a"), end("b", rdmaDevice="rdma_en9", address="10.0.0.2")), {}, "NoIPv4Address", "inet 10.0.0.2` on b"),
        (link(end("a", speedMbps=None), end("b", speedMbps=None)), {}, "SpeedUnknown", "system_profiler"),
        (link(end("a"), end("b")), {}, "Usable", "both ends"),
    ],
)  # fmt: skip
def test_every_no_says_what_mends_it(found: ThunderboltLink, profiles: dict[str, Any], reason: str, mend: str) -> None:
    known = {name: profile(name, **profiles.get(name, {})) for name in "ab"}
    status, said, message = verdicts(summary(found, known, NOW, BOTH))["RDMAUsable"]
    assert (said, status) == (reason, str(reason == "Usable")) and mend in message


@pytest.mark.parametrize(
    ("found", "ready", "connected", "symmetric"),
    [
        (link(end("a"), end("b")), "ab", "Connected", "BothEnds"),
        (link(end("a", seesPeer=False), end("b")), "ab", "Connected", "OneEnd"),
        (link(), "ab", "Unplugged", "NoEnd"),
        (link(end("a"), end("b", flapping=True)), "ab", "Flapping", "BothEnds"),
        # The report of a Mac that is gone no longer counts.
        (link(end("a")), "b", "NodeNotReady", "NoEnd"),
        (link(end("a"), end("b")), "b", "Connected", "OneEnd"),
        (link(end("a"), end("b")), "", "NodesNotReady", "NoEnd"),
    ],
)
def test_what_the_ends_say_together(found: ThunderboltLink, ready: str, connected: str, symmetric: str) -> None:
    said = verdicts(summary(found, {}, NOW, frozenset(ready)))
    assert (said["Connected"][1], said["Symmetric"][1]) == (connected, symmetric)
    assert (said["Connected"][0] == "True") == (connected == "Connected")
    assert all(message for _, _, message in said.values())
    assert (said["Symmetric"][2] == said["Connected"][2]) == (symmetric == "NoEnd"), "both say what to do"


def sees(name: str, number: int, own: str, *others: str) -> NodeProfile:
    """A profile that says which domains a port sees."""
    port = {"receptacle": number, "connected": bool(others), "domainUUID": own}
    port["peers"] = [{"domainUUID": other} for other in others]
    return NodeProfile.load({"metadata": {"name": name}, "status": {"thunderbolt": {"ports": [port]}}})


@pytest.mark.parametrize(
    ("a", "b", "ready", "connected"),
    [
        (sees("a", 1, DOMAIN_A, DOMAIN_B), sees("b", 2, DOMAIN_B, DOMAIN_A.upper()), "ab", "Connected"),
        (sees("a", 1, DOMAIN_A, DOMAIN_B), sees("b", 2, DOMAIN_B), "ab", "NothingPluggedIn"),
        # A display hides the other Mac from one of them.
        (sees("a", 1, DOMAIN_A, DOMAIN_B, OTHER), sees("b", 2, DOMAIN_B, OTHER), "ab", "Connected"),
        (sees("a", 1, DOMAIN_A), sees("b", 2, DOMAIN_B), "ab", "Unplugged"),
        # The cable leads elsewhere by now.
        (sees("a", 1, DOMAIN_A, OTHER), sees("b", 2, DOMAIN_B, OTHER), "ab", "Unplugged"),
        (sees("a", 1, DOMAIN_A, DOMAIN_B), sees("b", 3, DOMAIN_B, DOMAIN_A), "ab", "Unplugged"),
        (sees("a", 1, DOMAIN_A, DOMAIN_B), None, "ab", "Unplugged"),
        # The profile of a Mac that is not Ready is out of date: it may have been renamed.
        (sees("a", 1, DOMAIN_A, DOMAIN_B), sees("b", 2, DOMAIN_B, DOMAIN_A), "a", "NodeNotReady"),
    ],
)
def test_ends_that_somebody_removed_are_not_unplugged(
    a: NodeProfile, b: NodeProfile | None, ready: str, connected: str
) -> None:
    """An agent says in its profile that a cable was pulled before it takes its end out of the link."""
    said = verdicts(summary(link(), {"a": a, "b": b}, NOW, frozenset(ready)))
    assert said["Connected"][1] == connected
    if connected == "Connected":
        assert (said["Symmetric"][1], said["RDMAUsable"][1]) == ("NoEnd", "EndMissing")
        assert "do not report their ends" in said["Symmetric"][2] and "spec.nodeName=b" in said["Symmetric"][2]


@pytest.mark.parametrize(("reason", "listed"), [("CommandFailed", False), ("NotObserved", False), ("CommandFailed", True)])
def test_a_device_that_an_agent_could_not_read_is_not_missing(reason: str, listed: bool) -> None:
    """And one that it has listed before stays usable when a command fails once."""
    unread = profile("b")
    condition = {
        "type": "RDMAReady",
        "status": "Unknown",
        "reason": reason,
        "message": "`ibv_devices` failed",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    told = NodeProfile.load({**unread.dump(), "status": {**unread.status.dump(), "conditions": [condition]}})
    ends = link(end("a"), end("b") if listed else end("b", rdmaState=None))
    found = verdicts(summary(ends, {"a": profile("a"), "b": told}, NOW, BOTH))["RDMAUsable"]
    assert found[:2] == (("True", "Usable") if listed else ("False", reason))
    assert listed or found[2] == "b: `ibv_devices` failed"


def test_a_cable_without_reports_lingers_and_is_removed() -> None:
    assert lingers(link(end("a")), NOW) is None
    assert lingers(link(), NOW) == LINGER_SECONDS, "one that is just being made is not gone"
    pulled = link(conditions=summary(link(), {}, NOW, BOTH)["conditions"])
    assert lingers(pulled, NOW + timedelta(seconds=20)) == LINGER_SECONDS - 20
    assert lingers(pulled, NOW + timedelta(days=1)) == 0
    assert lingers(pulled, NOW - timedelta(days=365)) == 0, "written while the clock was a year ahead"
    assert lingers(pulled, NOW - timedelta(seconds=30)) == LINGER_SECONDS


def test_a_cable_that_flapped_until_it_was_pulled_lingers_too() -> None:
    flapped = summary(link(end("a", flapping=True), end("b", flapping=True)), {}, NOW, BOTH)["conditions"]
    later = NOW + timedelta(seconds=90)
    assert lingers(link(conditions=flapped), later) == LINGER_SECONDS, "nothing has been written since the last end went"
    one = summary(link(end("b", flapping=True), conditions=flapped), {}, later, BOTH)["conditions"]
    gone = summary(link(conditions=one), {}, later, BOTH)
    assert verdicts(gone)["Connected"][1] == "Unplugged"
    for found in (one, gone["conditions"]):
        assert lingers(link(conditions=found), later + timedelta(seconds=20)) == LINGER_SECONDS - 20


def test_what_is_done_for_a_cable() -> None:
    both = {name: Node(name, ready=True) for name in "ab"}

    def decided(found: ThunderboltLink, seconds: float = 0, nodes: dict[str, Node] = both) -> LinkDecision:
        return decide(ObservedLink(found, NOW + timedelta(seconds=seconds), nodes, {}))

    pulled = link(conditions=summary(link(), {}, NOW, BOTH)["conditions"])
    text = "neither a nor b has reported this cable for 60 s: the link is removed"
    assert decided(pulled, 60) == LinkDecision(delete=True, event=Occurrence(Reason.REMOVED, text))
    waits = decided(pulled, 59)
    assert (waits.delete, waits.recheck_seconds) == (False, 1)
    deleted = ThunderboltLink.load({**pulled.dump(), "metadata": {"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert decided(deleted, 60) == LinkDecision()
    # Of two deleted Nodes nothing stays, of one its end.
    assert decided(link(end("a"), end("b")), nodes={}) == LinkDecision(delete=True)
    patch = ({"op": "test", "path": "/status/endpoints/1/node", "value": "b"}, {"op": "remove", "path": "/status/endpoints/1"})
    assert decided(link(end("a"), end("b")), nodes={"a": both["a"]}) == LinkDecision(patch=patch, recheck_seconds=0.0)
    # A report is written once.
    new = decided(link(end("a"), end("b")))
    assert (new.status is not None, new.delete, new.patch, new.recheck_seconds) == (True, False, (), None)
    known = link(end("a"), end("b"))
    told = ThunderboltLink.load({**known.dump(), "status": {**known.dump()["status"], **(new.status or {})}})
    assert decided(told) == LinkDecision()


def test_events_tell_of_pulling_and_plugging_once() -> None:
    fresh = link(end("a"), end("b"))
    made = summary(fresh, {}, NOW, BOTH)
    assert change(fresh, made) == Occurrence("Connected", "the cable is connected")
    known = link(end("a"), end("b"), conditions=made["conditions"])
    assert change(known, summary(known, {}, NOW, BOTH)) is None
    pulled = link(conditions=made["conditions"])
    told = change(pulled, summary(pulled, {}, NOW, BOTH))
    assert told is not None and told.reason == "Unplugged" and told.warning
    # When it is plugged in again, one end is ahead of the other.
    unplugged = summary(pulled, {}, NOW, BOTH)["conditions"]
    half = {"b": plugged("b", False, 2)}
    made = summary(link(end("a"), conditions=unplugged), half, NOW, BOTH)
    assert verdicts(made)["Connected"][1] == "NothingPluggedIn" and change(link(end("a"), conditions=unplugged), made) is None
    known = link(end("a"), conditions=made["conditions"])
    assert change(known, summary(link(end("a"), end("b")), {}, NOW, BOTH)) == Occurrence("Connected", "the cable is connected")
    event = events.manifest(pulled, told, "me")
    assert event["metadata"]["namespace"] == "default" and event["type"] == "Warning"
    assert event["involvedObject"]["kind"] == "ThunderboltLink" and "namespace" not in event["involvedObject"]


def test_a_cable_that_the_first_operator_found_connected_is_no_event() -> None:
    """That is no change. One that was plugged in while no operator ran is a change for the next one."""
    both = {name: Node(name, ready=True) for name in "ab"}

    def event(found: ThunderboltLink, created: int | None = -1, led: datetime | None = NOW) -> Occurrence | None:
        """``created``: seconds after the first operator became the leader."""
        at = NOW + timedelta(seconds=created) if created is not None else None
        found = found.model_copy(update={"metadata": found.metadata.model_copy(update={"creation_timestamp": at})})
        return decide(ObservedLink(found, NOW + timedelta(seconds=5), both, {}, led)).event

    found, plugged_in = link(end("a"), end("b")), Occurrence("Connected", "the cable is connected")
    assert event(found) is None
    assert event(found, 0) == event(found, 1) == event(found, None) == event(found, -1, None) == plugged_in
    # Everything else is news, however old the link is.
    slow = event(measured(found, ("a", "b", "RDMA", 9_000, 5)))
    assert slow is not None and slow.reason == "Degraded"
    made = summary(found, {}, NOW, BOTH)["conditions"]
    pulled = event(link(conditions=made))
    assert pulled is not None and pulled.reason == "Unplugged"
    unplugged = summary(link(conditions=made), {}, NOW, BOTH)["conditions"]
    assert event(link(end("a"), end("b"), conditions=unplugged)) == plugged_in


# --- measurements ---


def measured(link: ThunderboltLink, *rates: tuple[str, str, str, int, int]) -> ThunderboltLink:
    """``rates``: from, to, transport, Mb/s, microseconds."""
    told = [
        {"from": f, "to": t, "transport": by, "throughputMbps": mbps, "rttMicroseconds": us, "measuredAt": NOW.isoformat()}
        for f, t, by, mbps, us in rates
    ]
    body = link.dump()
    return ThunderboltLink.load({**body, "status": {**body["status"], "measurements": told}})


def test_a_status_that_was_written_is_up_to_date() -> None:
    before = measured(link(end("a"), end("b")), ("a", "b", "RDMA", 60_000, 5), ("b", "a", "RDMA", 41_000, 6))
    made = summary(before, {"a": profile("a"), "b": profile("b")}, NOW, BOTH)
    assert set(made) == {*SUMMARY_FIELDS, "conditions"}
    written = before.dump()
    written["status"] |= made
    assert current(ThunderboltLink.load(written)) == made


@pytest.mark.parametrize(
    ("rates", "reason", "gbps", "rtt"),
    [
        # RDMA is compared with the negotiated speed, in its slower direction.
        ([("a", "b", "RDMA", 60_000, 5), ("b", "a", "RDMA", 41_000, 6)], "Connected", "60.0/41.0", "6us"),
        ([("a", "b", "RDMA", 60_000, 5), ("b", "a", "RDMA", 40_000, 6)], "Connected", "60.0/40.0", "6us"),
        ([("a", "b", "RDMA", 60_000, 5), ("b", "a", "RDMA", 39_000, 6)], "Degraded", "60.0/39.0", "6us"),
        # TCP is slower than any cable, so it shows no fault; the fastest transport counts.
        ([("a", "b", "Socket", 6_000, 40), ("b", "a", "Socket", 5_100, 60)], "Connected", "6.0/5.1", "60us"),
        ([("a", "b", "Socket", 900, 40), ("b", "a", "Ring", 800, 300)], "Degraded", "0.90/-", "40us"),
        ([("b", "a", "Socket", 400, 40), ("a", "b", "Socket", 38, 50)], "Degraded", "0.038/0.40", "50us"),
        ([("a", "b", "Socket", 900, 40), ("b", "a", "RDMA", 70_000, 5)], "Connected", "-/70.0", "5us"),
        ([], "Connected", None, None),
    ],
)
def test_a_cable_that_gives_much_less_than_it_should(
    rates: list[tuple[str, str, str, int, int]], reason: str, gbps: str | None, rtt: str | None
) -> None:
    made = summary(measured(link(end("a"), end("b")), *rates), {}, NOW, BOTH)
    status, told, message = verdicts(made)["Connected"]
    assert (status, told, made.get("gbps"), made.get("rtt")) == ("True", reason, gbps, rtt)
    if reason == "Degraded":
        worse = min(float(way) for way in (gbps or "").split("/") if way != "-")
        assert "negotiated 80 Gb/s" in message and f"{worse:g} Gb/s were measured" in message and "dock" in message


def test_a_degraded_cable_names_the_hub_in_between_and_is_an_event_once() -> None:
    found = measured(link(end("a", through=["Old Dock"]), end("b")), ("a", "b", "RDMA", 9_000, 5))
    made = summary(found, {}, NOW, BOTH)
    assert "Old Dock in between" in verdicts(made)["Connected"][2]
    told = change(found, made)
    assert told is not None and told.reason == "Degraded" and told.warning
    after = ThunderboltLink.load({**found.dump(), "status": {**found.dump()["status"], **made}})
    assert change(after, summary(after, {}, NOW, BOTH)) is None


# --- a Mac that is off ---


def behind_a_hub(up: bool | None, *peers: str, interface: str = "en2") -> NodeProfile:
    """The profile of b, with a hub at port 2."""
    port = {"receptacle": 2, "connected": True, "interface": "en2", "domainUUID": DOMAIN_B}
    port["peers"] = [{"domainUUID": peer} for peer in peers]
    interfaces = [{"name": interface, "kind": "Thunderbolt", **({} if up is None else {"up": up})}]
    network = {"interfaces": interfaces}
    return NodeProfile.load({"metadata": {"name": "b"}, "status": {"thunderbolt": {"ports": [port]}, "network": network}})


@pytest.mark.parametrize("blind", [(end("b", seesPeer=False),), ()], ids=["b reports its end", "b reports no end"])
def test_a_hub_that_was_pulled_from_a_mac_without_an_agent(blind: tuple[Json, ...]) -> None:
    """The last report of a, whose Node is Ready, still says that it sees b."""
    made = summary(link(end("a"), *blind), {"b": behind_a_hub(False)}, NOW, BOTH)
    status, reason, message = verdicts(made)["Connected"]
    assert (status, reason) == ("False", "NoCarrier")
    assert "b detects no Mac behind the hub or display at its port 2" in message and "port 1" in message
    assert "spec.nodeName=a" in message, "who should have said so"
    assert verdicts(made)["RDMAUsable"][:2] == ("False", "PortDown")
    assert verdicts(made)["Symmetric"] == ("False", "OneEnd", message)


@pytest.mark.parametrize(
    ("b", "seen", "ready"),
    [
        # A display hides a, and the network works.
        (behind_a_hub(True), False, "ab"),
        (behind_a_hub(None), False, "ab"),
        (behind_a_hub(False, interface="en3"), False, "ab"),
        # An interface that somebody has switched off is no cable that was pulled.
        (behind_a_hub(False, DOMAIN_A), True, "ab"),
        # The report of a Mac whose Node is not Ready is out of date.
        (behind_a_hub(False), False, "a"),
        (None, False, "ab"),
    ],
    ids=["a carrier", "not known", "another interface", "both see each other", "not Ready", "no profile"],
)
def test_a_display_that_hides_a_mac_is_no_pulled_cable(b: NodeProfile | None, seen: bool, ready: str) -> None:
    made = summary(link(end("a"), end("b", seesPeer=seen)), {"b": b}, NOW, frozenset(ready))
    assert verdicts(made)["Connected"][:2] == ("True", "Connected")


def plugged(name: str, connected: bool, port: int) -> NodeProfile:
    ports = [{"receptacle": port, "connected": connected}, {"receptacle": 5, "connected": not connected}]
    return NodeProfile.load({"metadata": {"name": name}, "status": {"thunderbolt": {"ports": ports}}})


def test_the_other_mac_knows_sooner_than_the_node() -> None:
    """The Node of a Mac that is off stays Ready for most of a minute with its last report; the other Mac's port is empty."""
    found = link(end("a"))
    made = summary(found, {"b": plugged("b", False, 2)}, NOW, BOTH)
    status, reason, message = verdicts(made)["Connected"]
    assert (status, reason) == ("False", "NothingPluggedIn") and "port 2 of b" in message and "a is off" in message
    # b's agent runs: its end is missing because the cable or a is.
    assert verdicts(made)["Symmetric"] == ("False", "OneEnd", message)
    # A display hides the other end, but something is plugged in.
    made = summary(link(end("a"), end("b", seesPeer=False)), {"b": plugged("b", True, 2)}, NOW, BOTH)
    assert verdicts(made)["Connected"][:2] == ("True", "Connected")
    # The report of a Mac whose Node is not Ready is out of date.
    made = summary(found, {"b": plugged("b", False, 2)}, NOW, frozenset("a"))
    assert verdicts(made)["Connected"][:2] == ("True", "Connected")
