"""What a cable comes to, and when it is a link no more."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from thunderfleet_crds.kube import Json
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.thunderboltlink import ThunderboltLink
from thunderfleet_operator import events, linkstatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = frozenset("ab")


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
        (link(end("a", through=["Old Dock"], speedMbps=40000), end("b")), {}, "BelowThunderbolt5", "take Old Dock out"),
        # The cause is named, not what it leads to at the other end.
        (link(end("a", rdmaState="Down"), end("b", rdmaState=None)), {"b": {"enabled": False}}, "RDMADisabled", "start b in"),
        (link(end("a"), end("b", rdmaState="Unknown")), {"b": {"state": "StackHung"}}, "StackHung", "reboot it"),
        (link(end("a", rdmaState="Down"), end("b")), {"b": {"bridge": "bridge0"}}, "BridgeMember", "bridge0 deletem en2`"),
        (link(end("a", rdmaState="Down"), end("b")), {}, "PortDown", "`ibv_devinfo -v` on a"),
        (link(end("a"), end("b", rdmaDevice="rdma_en9")), {}, "NoIPv4Address", "`sudo ifconfig en2 inet"),
        (link(end("a"), end("b")), {}, "Usable", "both ends"),
    ],
)  # fmt: skip
def test_every_no_says_what_mends_it(found: ThunderboltLink, profiles: dict[str, Any], reason: str, mend: str) -> None:
    known = {name: profile(name, **profiles.get(name, {})) for name in "ab"}
    status, said, message = verdicts(linkstatus.summary(found, known, NOW, BOTH))["RDMAUsable"]
    assert (said, status) == (reason, str(reason == "Usable")) and mend in message


@pytest.mark.parametrize(
    ("found", "ready", "connected", "symmetric"),
    [
        (link(end("a"), end("b")), "ab", "Connected", "BothEnds"),
        (link(end("a", seesPeer=False), end("b")), "ab", "Connected", "OneEnd"),
        (link(), "ab", "Unplugged", "NoEnd"),
        (link(end("a"), end("b", flapping=True)), "ab", "Flapping", "BothEnds"),
        # What an end said before its Mac went away counts no more.
        (link(end("a")), "b", "NodeNotReady", "NoEnd"),
        (link(end("a"), end("b")), "b", "Connected", "OneEnd"),
        (link(end("a"), end("b")), "", "NodesNotReady", "NoEnd"),
    ],
)
def test_what_the_ends_say_together(found: ThunderboltLink, ready: str, connected: str, symmetric: str) -> None:
    said = verdicts(linkstatus.summary(found, {}, NOW, frozenset(ready)))
    assert (said["Connected"][1], said["Symmetric"][1]) == (connected, symmetric)
    assert (said["Connected"][0] == "True") == (connected == "Connected")
    assert all(message for _, _, message in said.values())


def test_a_cable_that_nobody_has_lingers_and_goes() -> None:
    assert linkstatus.lingers(link(end("a")), NOW) is None
    assert linkstatus.lingers(link(), NOW) == linkstatus.LINGER_SECONDS, "one that is just being made is not gone"
    pulled = link(conditions=linkstatus.summary(link(), {}, NOW, BOTH)["conditions"])
    assert linkstatus.lingers(pulled, NOW + timedelta(seconds=20)) == linkstatus.LINGER_SECONDS - 20
    assert linkstatus.lingers(pulled, NOW + timedelta(days=1)) == 0


def test_events_tell_of_pulling_and_plugging_once() -> None:
    fresh = link(end("a"), end("b"))
    made = linkstatus.summary(fresh, {}, NOW, BOTH)
    assert linkstatus.change(fresh, made) == ("Connected", "the cable is there", False)
    known = link(end("a"), end("b"), conditions=made["conditions"])
    assert linkstatus.change(known, linkstatus.summary(known, {}, NOW, BOTH)) is None
    pulled = link(conditions=made["conditions"])
    told = linkstatus.change(pulled, linkstatus.summary(pulled, {}, NOW, BOTH))
    assert told is not None and told[0] == "Unplugged" and told[2]
    event = events.manifest(pulled, events.Occurrence(told[0], told[1], told[2]), "me")
    assert event["metadata"]["namespace"] == "default" and event["type"] == "Warning"
    assert event["involvedObject"]["kind"] == "ThunderboltLink" and "namespace" not in event["involvedObject"]
