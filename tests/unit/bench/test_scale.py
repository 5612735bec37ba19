"""The fleet that the benchmark of scale simulates, and what it takes for a fault."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from thunderfleet_agent.publish.publisher import LINKS
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.thunderboltlink import link_name

from tests.bench.fleets import scale
from tests.bench.fleets.scale import DEPLOYED, SIZES, Fleet, Seen, _taken_twice, percentile
from tests.bench.fleets.written import MAC_BYTES, RING, Sample, address, cable, endpoint, mac_name
from tests.unit.operator.values import plan


def placed(epoch: int, memory: int, port: int, node: str = "a") -> Plan:
    made = plan(epoch)
    rank = made.ranks[0].model_copy(
        update={"node": node, "memory_bytes": memory, "control_port": port, "gateway_port": port + 1}
    )
    return made.model_copy(update={"ranks": (rank,)})


def test_the_cables_of_a_ring_are_its_macs_two_ports() -> None:
    ports = [
        (end.node, end.port) for number in range(2 * RING) for spec in [cable(number, 2 * RING)] for end in (spec.a, spec.b)
    ]
    assert sorted(ports) == [(mac_name(number), port) for number in range(2 * RING) for port in (1, 2)]
    assert link_name(cable(RING - 1, 2 * RING)) == "mac-00000.tb2--mac-00003.tb1", "it closes the ring"
    with pytest.raises(ValueError, match="no Mac"):
        cable(2 * RING, 2 * RING)


def test_no_two_macs_have_an_address_in_common() -> None:
    macs = max(size.macs for size in SIZES)
    nodes = [address(number + 1) for number in range(macs)]
    ends = [endpoint(number, port).address for number in range(macs) for port in (1, 2)]
    assert len({*nodes, address(0)}) == macs + 1 and len(set(ends)) == 2 * macs


def test_a_copy_of_a_sample_differs_in_what_is_named() -> None:
    text = json.dumps(
        {"metadata": {"name": "sample-a", "uid": "1", "managedFields": "k:sample-a"}, "status": {"at": "10.64.0.1"}}
    )
    key, value = Sample("/registry/x", text).copy("mac-00007", [("sample-a", "mac-00007"), ('10.64.0.1"', '10.64.0.57"')])
    item = json.loads(value)
    assert key == "/registry/x/mac-00007" and item["metadata"].pop("uid") != "1"
    assert item == {"metadata": {"name": "mac-00007", "managedFields": "k:mac-00007"}, "status": {"at": "10.64.0.57"}}


def test_what_two_groups_took_is_found() -> None:
    half = MAC_BYTES // 2
    assert _taken_twice([placed(1, half, 10), placed(2, half, 20)]) == []
    assert _taken_twice([placed(1, half, 10), placed(2, half + 1, 20)]) == ["memory of a"]
    assert _taken_twice([placed(1, 1, 10), placed(2, 1, 11), placed(3, 1, 11, "b")]) == ["port 11 of a"]


def test_percentiles_are_samples() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert (percentile(samples, 50), percentile(samples, 99), percentile(samples, 100)) == (50, 99, 100)
    assert percentile([3.0], 99) == 3


# --- when the operator has nothing left to write ---------------------------------------------------------------------

Json = dict[str, Any]


def versioned(version: str) -> Json:
    return {"metadata": {"name": "a", "resourceVersion": version}}


class Watched:
    """A collection whose watches end when it is told to; stands in for ``Kube``."""

    def __init__(self) -> None:
        self.version = "1"
        self.lists = 0
        self.again = asyncio.Event()
        """Set once it has been listed twice."""
        self.events: asyncio.Queue[tuple[str, Json] | None] = asyncio.Queue()

    async def list(self, _: str) -> tuple[list[Json], str]:
        self.lists += 1
        if self.lists == 2:
            self.again.set()
        return [versioned(self.version)], self.version

    async def watch(self, _: str, __: str) -> AsyncIterator[tuple[str, Json]]:
        while (event := await self.events.get()) is not None:
            yield event


async def test_bookmarks_and_lists_of_the_same_are_no_changes() -> None:
    kube: Any = Watched()
    seen = Seen(kube, LINKS)
    task = asyncio.create_task(seen.run())
    await seen.until(lambda items: "a" in items, "listed")
    first = seen.changed_at
    kube.events.put_nowait(("BOOKMARK", versioned("9")))
    kube.events.put_nowait(None)
    await kube.again.wait()
    await seen.until(lambda items: "a" in items, "listed")
    assert seen.changed_at == first
    kube.version = "2"
    kube.events.put_nowait(None)
    await seen.until(lambda items: items["a"]["metadata"]["resourceVersion"] == "2", "listed again")
    assert (second := seen.changed_at) > first, "a change that only a list shows"
    kube.events.put_nowait(("DELETED", versioned("3")))
    await seen.until(lambda items: not items, "deleted")
    assert seen.changed_at > second
    task.cancel()


class Writing:
    """An operator whose count of writes moves so many times more."""

    def __init__(self, moves: int) -> None:
        self.moves, self.count = moves, 0

    def check(self) -> None:
        return

    async def writes(self) -> Counter[str]:
        if self.count < self.moves:
            self.count += 1
        return Counter(writes=self.count)


async def test_the_operator_is_done_when_nothing_changes_and_it_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SETTLE_SECONDS", 0.01)
    kube: Any = Watched()
    operator: Any = Writing(5)
    seen = {path: Seen(kube, path) for path in (LINKS, DEPLOYED)}
    fleet = Fleet(kube, SIZES[0], operator, seen, lambda text: None)
    seen[DEPLOYED].changed_at += 0.02
    assert await fleet._done() == seen[DEPLOYED].changed_at, "the last change of any collection"
    assert operator.count == 5, "and no write follows that changes nothing"
    operator.moves = 10**9
    monkeypatch.setattr(scale, "WAIT_SECONDS", 0.2)
    with pytest.raises(scale.NotInTime, match="still writes"):
        await fleet._done()
