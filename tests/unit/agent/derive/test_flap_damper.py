"""A flapping cable keeps its last state; a pulled one does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_agent.derive.flap_damper import CALM_SECONDS, CHANGES, WINDOW_SECONDS, FlapDamper
from thunderfleet_agent.observe.facts import Facts
from thunderfleet_agent.observe.parsers.thunderbolt import Peer, Port, Thunderbolt
from thunderfleet_lib.macnet.parse import Interface
from thunderfleet_lib.rdma.parse import DeviceInfo

UP = frozenset({"UP"})
PEER = Peer("906F61D4-D2D0-4D64-838B-635F8E2EF46D", "Mac Studio")


def facts(plugged: bool) -> Facts:
    port = Port(1, connected=plugged, speed_mbps=80000 if plugged else None, peers=(PEER,) if plugged else ())
    other = Port(2, connected=True, peers=(PEER,))
    return Facts(
        thunderbolt=Thunderbolt((port, other)),
        hardware_ports={"en2": "Thunderbolt 1", "en3": "Thunderbolt 2"},
        interfaces=(Interface("en2", UP, active=plugged), Interface("en3", UP, active=True)),
        rdma_info=(DeviceInfo("rdma_en2", "PORT_ACTIVE" if plugged else "PORT_DOWN"),),
    )


def test_pulled_once_is_pulled() -> None:
    damper = FlapDamper()
    for second, plugged in enumerate((True, True, False, False)):
        damper.see(facts(plugged), second)
        assert damper.held(facts(plugged)) == facts(plugged) and not damper.flapping


def test_coming_and_going_is_held_as_last_seen_until_it_is_calm() -> None:
    damper, now = FlapDamper(), 0.0
    damper.see(facts(True), now)
    for change in range(CHANGES):
        now += 3
        damper.see(facts(change % 2 == 1), now)
    assert damper.flapping == {1}
    for plugged in (False, True, False):
        now += 3
        damper.see(facts(plugged), now)
        assert damper.held(facts(plugged)) == facts(True)
    assert damper.calm_at() == now + CALM_SECONDS
    damper.see(facts(False), now + CALM_SECONDS - 1)
    assert damper.flapping == {1}
    damper.see(facts(False), now + CALM_SECONDS)
    assert not damper.flapping and damper.held(facts(False)) == facts(False)
    assert damper.calm_at() == float("inf")
    # Earlier changes do not count again.
    damper.see(facts(True), now + CALM_SECONDS + 1)
    assert not damper.flapping


def test_seldom_is_not_flapping() -> None:
    damper = FlapDamper()
    for change in range(4 * CHANGES):
        damper.see(facts(change % 2 == 1), change * WINDOW_SECONDS / (CHANGES - 2))
        assert not damper.flapping


def test_nothing_known_is_no_change() -> None:
    damper = FlapDamper()
    damper.see(facts(True), 0)
    for second in range(20):
        damper.see(replace(facts(True), thunderbolt=None), second)
    assert damper.held(Facts()) == Facts() and not damper.flapping


@given(st.lists(st.tuples(st.booleans(), st.floats(0.5, 30)), max_size=200))
def test_few_changes_are_published_however_often_it_flaps(steps: list[tuple[bool, float]]) -> None:
    damper, now, published, last = FlapDamper(), 0.0, [], None
    for plugged, wait in steps:
        now += wait
        damper.see(facts(plugged), now)
        held: Any = damper.held(facts(plugged))
        if held != last:
            published.append(now)
        last = held
    # Between two stable states there are at most three changes: until it is noticed, the hold, and its end.
    most = (CHANGES + 2) * (1 + now / CALM_SECONDS)
    assert len(published) <= most
