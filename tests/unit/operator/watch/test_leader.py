"""Who leads, by clocks that stop during sleep, are set forward and are set back."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_lib.clock import Moment, since_boot
from thunderfleet_lib.kube import ApiError, Part
from thunderfleet_operator.watch import leader as election
from thunderfleet_operator.watch.leader import DURATION_SECONDS, JUMP_SECONDS, STOP_AFTER_SECONDS, Identity, Leader

from tests.support.waiting import until_async

YEAR = 365 * 86400.0


class Leases:
    """A Lease on an API server in memory."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.away = False
        self.without_etcd = False

    async def request(self, method: str, path: str, *, body: Any = None, seconds: float = 0) -> dict[str, Any]:
        if self.without_etcd and not self.away:
            etcd = "[+]ping ok\n[-]etcd failed: reason withheld\nlivez check failed"
            raise ApiError(500, "HTTP500", etcd if path == "/livez" else "etcdserver: request timed out")
        if self.away:
            raise ApiError(0, "Unanswered", "no answer")
        if method == "GET":
            if self.lease is None:
                raise ApiError(404, "NotFound", "no lease")
            return self.lease
        if method == "PUT" and body["metadata"]["resourceVersion"] != str(self.version):
            raise ApiError(409, "Conflict", "changed")
        if method == "POST" and self.lease is not None:
            raise ApiError(409, "AlreadyExists", "taken")
        self.version += 1
        created = self.lease["metadata"]["creationTimestamp"] if self.lease is not None else "2026-01-01T00:00:00Z"
        metadata = {**body["metadata"], "resourceVersion": str(self.version), "creationTimestamp": created}
        self.lease = {**body, "metadata": metadata}
        return self.lease


class Machine:
    """The clocks of one machine."""

    def __init__(self) -> None:
        self.boot, self.wall = 100.0, 1_000_000.0

    def now(self) -> Moment:
        return Moment(self.boot, self.wall)

    def passes(self, seconds: float) -> None:
        self.boot += seconds
        self.wall += seconds

    def is_set(self, seconds: float) -> None:
        """The wall clock is set forward, or back."""
        self.wall += seconds


def replica(leases: Leases, name: str, machine: Machine, gained: Any = lambda: None, pod_uid: str = "") -> Leader:
    kube: Any = leases
    return Leader(kube, "ns", Identity(name, pod_uid), gained, machine.now)


async def test_one_of_two_leads_and_the_other_takes_over() -> None:
    machine, leases = Machine(), Leases()
    one, other = (replica(leases, name, machine) for name in ("one", "other"))
    assert await one._try() and not await other._try()
    assert one.leading() and not other.leading()
    for _ in range(5):
        machine.passes(3)
        assert await one._try() and not await other._try()
    machine.passes(9.5)
    assert not one.leading(), "it stops before another may begin"
    assert not await other._try()
    machine.passes(3)
    assert await other._try() and other.leading()
    assert not await one._try(), "it does not take it back"
    await other.release()
    assert not other.leading() and await one._try()
    assert leases.lease is not None and leases.lease["spec"]["leaseTransitions"] >= 2
    # The same for all replicas and all that come after them.
    assert one.first_led == other.first_led == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "pod_uid", "at_once"),
    [
        ("one", "1b4e", True),
        pytest.param("one", "77d0", False, id="another pod of this name"),
        pytest.param("one", "1b4", False, id="the beginning of its UID"),
        pytest.param("one", "", False, id="no pod"),
        pytest.param("other", "1b4e", False, id="another name"),
    ],
)
async def test_a_process_need_not_wait_for_the_lease_of_its_pods_earlier_one(name: str, pod_uid: str, at_once: bool) -> None:
    machine, leases = Machine(), Leases()
    killed = replica(leases, "one", machine, pod_uid="1b4e")
    assert await killed._try()
    restarted = replica(leases, name, machine, pod_uid=pod_uid)
    assert await restarted._try() is at_once
    assert restarted.leading() is at_once
    machine.passes(DURATION_SECONDS)
    assert await restarted._try() and restarted.leading()


async def test_outside_a_pod_no_lease_is_taken_before_it_expires() -> None:
    machine, leases = Machine(), Leases()
    assert await replica(leases, "mac", machine)._try()
    assert not await replica(leases, "mac", machine)._try()


async def test_a_leader_that_wakes_up_does_not_act_before_it_has_renewed() -> None:
    for noticed in (True, False):
        machine, leases = Machine(), Leases()
        one = replica(leases, "one", machine)
        assert await one._try() and one.leading()
        if noticed:
            machine.passes(3600)
        else:
            # A virtual machine that was stopped: only the wall clock, corrected afterwards, tells.
            machine.is_set(3600)
        assert not one.leading()
        assert await one._try() and one.leading()


async def test_a_changed_clock_takes_no_lease_away() -> None:
    holder, standby, leases = Machine(), Machine(), Leases()
    one, other = replica(leases, "one", holder), replica(leases, "other", standby)
    assert await one._try() and not await other._try()
    for step in (YEAR, -YEAR, -YEAR):
        standby.is_set(step)
        assert not await other._try()
    holder.is_set(-YEAR)
    assert one.leading()
    holder.passes(STOP_AFTER_SECONDS)
    assert not one.leading(), "a clock that was set back does not prolong the Lease"


@given(st.lists(st.tuples(st.booleans(), st.floats(-YEAR, YEAR), st.floats(0, 20), st.booleans()), max_size=30))
def test_never_do_two_lead_whatever_the_clocks(steps: list[tuple[bool, float, float, bool]]) -> None:
    async def check() -> None:
        leases, machines = Leases(), (Machine(), Machine())
        leaders = [replica(leases, name, machine) for name, machine in zip(("one", "other"), machines, strict=True)]
        for which, jump, seconds, tries in steps:
            machines[which].is_set(jump)
            for machine in machines:
                machine.passes(seconds)
            assert not all(leader.leading() for leader in leaders)
            if tries:
                await leaders[which]._try()
            assert not all(leader.leading() for leader in leaders)

    asyncio.run(check())


async def test_keys_that_a_lapse_dropped_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replica may not have noticed the lapse: it keeps the Lease, but its worker has dropped keys meanwhile."""
    monkeypatch.setattr(election, "RENEW_SECONDS", 0.01)
    machine, leases, gained = Machine(), Leases(), list[None]()
    one = replica(leases, "one", machine, lambda: gained.append(None))

    def again(before: int) -> bool:
        return one.leading() and len(gained) > before

    running = asyncio.create_task(one.run())
    await until_async(lambda: one.leading() and len(gained) == 1)
    first = one.term
    machine.passes(DURATION_SECONDS)
    await until_async(lambda: one.leading() and len(gained) == 2)
    assert one.term > first, "what was decided before the lapse is not carried out after it"
    for step in (JUMP_SECONDS + 1, -YEAR):
        before = len(gained)
        machine.is_set(step)
        await until_async(partial(again, before))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_time_since_boot_advances() -> None:
    first = since_boot()
    assert since_boot() >= first > 0
    assert Moment.now().elapsed(Moment(since_boot() - 5, 2 * YEAR)) >= 5


async def test_the_part_of_the_control_plane_that_does_not_answer_is_known_while_it_lasts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(election, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(election, "STANDBY_SECONDS", 0.01)
    machine, leases = Machine(), Leases()
    one = replica(leases, "one", machine)

    def knows(part: Part) -> bool:
        return one.silent is part

    running = asyncio.create_task(one.run())
    try:
        await until_async(one.leading)
        for etcd, away, part in ((True, False, Part.ETCD), (True, True, Part.API_SERVER)):
            leases.without_etcd, leases.away = etcd, away
            machine.passes(STOP_AFTER_SECONDS)
            await until_async(partial(knows, part))
            leases.without_etcd = leases.away = False
            await until_async(lambda: one.leading() and one.silent is None)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("leads", [True, False, None])
async def test_the_first_try_ends_whether_it_leads_or_not_or_the_api_server_is_away(leads: bool | None) -> None:
    machine, leases = Machine(), Leases()
    if leads is False:
        assert await replica(leases, "other", machine)._try()
    leases.away = leads is None
    one = replica(leases, "one", machine)
    assert not one.tried.is_set()
    running = asyncio.create_task(one.run())
    try:
        await until_async(one.tried.is_set)
        assert one.leading() is bool(leads)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
