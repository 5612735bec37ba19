"""A change of the fleet begins the rounds that it concerns: those that are left out would have changed nothing."""

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thunderfleet_crds.exchange.group import GroupState
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_operator.decide.deployment import ADVICE_SECONDS
from thunderfleet_operator.observe.concerns import FLEET_KEY, Reach, concerned, reach, work_key
from thunderfleet_operator.observe.fleet.steadiness import Key
from thunderfleet_operator.observe.objects.plans import Report
from thunderfleet_operator.placement import Cable, End, Fleet, Mac, Question, WhatIsBetter
from thunderfleet_operator.reconcile import Reconciler
from thunderfleet_operator.watch.cache import DEPLOYMENTS, LINKS, NODEPROFILES, Collection

from tests.support.generated import examples
from tests.unit.operator.world import GIB, InlinePlanner, Json, World, tiny_model

PAIRS = (("s1", "s2"), ("s3", "s4"), ("s5", "s6"))
MINI = "mini"
NAMES = ("placed", "moves", "waits", "sleeps")
LIMIT = 300
RESTART = "restart"
"""Of the operator, among other events."""


class Planner(InlinePlanner):
    """Answers at once, except for advice while that is not wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.advises = True

    async def ask(self, key: str, questions: Mapping[int, Question]) -> bool:
        wanted = {
            group: question for group, question in questions.items() if self.advises or not isinstance(question, WhatIsBetter)
        }
        return await super().ask(key, wanted) and bool(wanted)


class FleetWorld(World):
    """Several ModelDeployments, whose groups are Ready as soon as their pods run, and a queue."""

    def __init__(self) -> None:
        self.keys_to_do: dict[str, None] = {}
        self.later_keys: dict[str, float] = {}
        self.rounds: list[str] = []
        self.started = False
        super().__init__()
        for a, b in PAIRS:
            for number, name in enumerate((a, b)):
                self.mac(name, f"10.0.{a[1]}.{number + 1}", 6 * GIB)
            self.cable(a, b, f"169.254.{a[1]}.1", f"169.254.{a[1]}.2")
        self.mac(MINI, "10.0.9.1", 2 * GIB)
        for number, name in enumerate(NAMES):
            spec: Json = {"model": {"repository": "org/tiny"}, "nodes": {"min": 9} if name == "waits" else {}}
            if name == "sleeps":
                spec["suspend"] = True
            meta = {"name": name, "namespace": "ns", "uid": f"uid-{number}", "generation": 1}
            self.put(DEPLOYMENTS, {"metadata": meta, "spec": spec})

    def restarted(self, client: Any = None) -> Reconciler:
        reconciler = super().restarted(client)
        planner: Any = Planner()
        self.planner, reconciler._planner, reconciler._again = planner, planner, self._again
        return reconciler

    def _again(self, key: str, seconds: float) -> None:
        if seconds > 0:
            self.later_keys[key] = seconds
        else:
            self.keys_to_do[work_key(DEPLOYMENTS, key)] = None

    def changed(self, collection: Collection, key: str, before: Json | None, after: Json | None) -> None:
        if self.started:
            self.keys_to_do |= dict.fromkeys(concerned(self.index, collection, key, before, after, self.reconciler.unplaced))

    def report(self, key: str, index: int, epoch: int) -> Report:
        item = self.cache[DEPLOYMENTS].items[key]
        pods = [pod for name, pod in self.pods().items() if name.startswith(f"{item['metadata']['name']}-{index}-e{epoch}-")]
        if not pods or any(pod.get("status", {}).get("phase") != "Running" for pod in pods):
            return Report()
        found = ModelDeployment.load(item)
        group = next((one for one in found.status.groups if one.index == index), None)
        ranks = [{"rank": rank.rank, "node": rank.node, "phase": "Serving"} for rank in group.ranks] if group else []
        state = {"uid": found.metadata.uid, "index": index, "epoch": epoch, "phase": "Ready", "ranks": ranks, "requests": 0}
        return Report(GroupState.model_validate({**state, "readySince": self.now}))

    async def work(self) -> None:
        """Rounds until no key is left; pods start and end between them."""
        for _ in range(LIMIT):
            if not self.keys_to_do:
                return
            key = next(iter(self.keys_to_do))
            del self.keys_to_do[key]
            kind, _, name = key.partition("/")
            self.rounds.append(key)
            if kind == DEPLOYMENTS.name:
                await self.reconciler.deployment(name)
                self._pods_go_on()
            elif kind == LINKS.name:
                await self.links.round(name)
            elif kind == NODEPROFILES.name:
                await self.macs.round(name)
            elif key == FLEET_KEY:
                await self.reconciler.fleet(name)
        raise AssertionError(f"rounds without an end: {self.rounds[-20:]}")

    def _pods_go_on(self) -> None:
        before = {name: copy.deepcopy(pod) for name, pod in self.pods().items()}
        self.end_pods()
        fresh = [name for name, pod in self.pods().items() if pod.get("status", {}).get("phase") != "Running"]
        if fresh:
            self.run_pods()
        for name in (*fresh, *(before.keys() - self.pods().keys())):
            deployment = name.rsplit("-", 3)[0]
            self.keys_to_do[work_key(DEPLOYMENTS, f"ns/{deployment}")] = None

    def md_of(self, name: str) -> ModelDeployment:
        return ModelDeployment.load(self.cache[DEPLOYMENTS].items[f"ns/{name}"])

    async def settle(self) -> None:
        """Rounds of everything, as after a start, until nothing is left to do."""
        self.started = True
        for name in (*NAMES, *NAMES):
            self.keys_to_do[work_key(DEPLOYMENTS, f"ns/{name}")] = None
        self.keys_to_do |= dict.fromkeys(work_key(LINKS, name) for name in self.cache[LINKS].items)
        await self.work()

    def event(self, collection: Collection, key: str, change: Callable[[Json], None]) -> None:
        """Somebody else's write."""
        before = self.cache[collection].items[key]
        self.change(collection, key, change)
        self.changed(collection, key, before, self.cache[collection].items[key])

    async def left_out(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """What the ModelDeployments write that have no round to do, each with its writes."""
        planner: Any = self.planner
        planner.advises = False
        found = []
        for name in NAMES:
            before, count = self.versions(), len(self.writes)
            await self.reconciler.deployment(f"ns/{name}")
            if self.versions() != before:
                found.append((name, self.writes[count:]))
        planner.advises = True
        return found


def cable_name(pair: int) -> str:
    a, b = PAIRS[pair]
    return f"{a}.tb1--{b}.tb1"


def _end(pair: int, end: int, **fields: Any) -> tuple[Collection, str, Callable[[Json], None]]:
    return LINKS, cable_name(pair), lambda item: item["status"]["endpoints"][end].update(fields)


def _profile(name: str, **status: Any) -> tuple[Collection, str, Callable[[Json], None]]:
    return NODEPROFILES, name, lambda item: item["status"].update(status)


MACS = st.sampled_from([name for pair in PAIRS for name in pair] + [MINI])
HARDWARE = [{"chip": "Apple M3 Ultra", "gpuCores": 60}, {"chip": "Apple M4 Max", "gpuCores": 40}]
DIAL = {"node": MINI, "address": "10.0.9.1", "state": "Reachable", "since": "2026-01-01T00:00:00Z"}
EVENTS = st.one_of(
    st.builds(
        _end,
        st.integers(0, 2),
        st.integers(0, 1),
        seesPeer=st.booleans(),
        speedMbps=st.sampled_from([20_000, 80_000]),
        address=st.sampled_from(["169.254.1.1", "169.254.7.7"]),
        flapping=st.booleans(),
    ),
    st.builds(_end, st.integers(0, 2), st.integers(0, 1), speedMbps=st.sampled_from([20_000, 80_000])),
    st.builds(
        _profile, MACS, models=st.sampled_from([[], [tiny_model()], [tiny_model(), tiny_model(GIB, "/models/org/other")]])
    ),
    st.builds(_profile, MACS, reachability=st.sampled_from([[], [DIAL], [{**DIAL, "state": "Unreachable"}]])),
    st.builds(_profile, MACS, hardware=st.sampled_from(HARDWARE)),
    st.builds(
        _profile,
        MACS,
        quarantine=st.sampled_from([None, {"reason": "WiredMemory", "bootId": "x", "since": "2026-01-01T00:00:00Z"}]),
    ),
    st.builds(
        _profile,
        MACS,
        runtime=st.sampled_from([{"mlxVersion": v, "backends": ["ring", *b]} for v in "12" for b in ([], ["jaccl"])]),
    ),
    st.builds(_profile, MACS, store=st.sampled_from([None, {"folder": "/store", "freeBytes": GIB}, {"folder": "/store"}])),
    st.sampled_from([None, RESTART]),
)


@settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(EVENTS, min_size=1, max_size=5))
def test_who_is_left_out_would_have_written_nothing(events: list[Any]) -> None:
    async def run() -> None:
        world = FleetWorld()
        await world.settle()
        assert not await world.left_out()
        for number, event in enumerate(events):
            if event in (None, RESTART):
                if event is RESTART:
                    world.restarted().begin()
                world.later(ADVICE_SECONDS + 1)
                await world.settle()
                continue
            world.event(*event)
            await world.work()
            assert await world.left_out() == [], (number, event[:2])

    asyncio.run(run())


async def test_a_start_begins_one_round_of_those_that_serve() -> None:
    """What the first cables are found to be concerns them no more than a later change of cables: they have just had a round."""
    world = FleetWorld()
    await world.settle()
    world.restarted()
    world.rounds.clear()
    world.later_keys.clear()
    world.reconciler.begin()
    world.keys_to_do |= dict.fromkeys(work_key(DEPLOYMENTS, f"ns/{name}") for name in NAMES)
    used = {rank.node for name in ("placed", "moves") for rank in world.md_of(name).status.groups[0].ranks}
    free = next(number for number, pair in enumerate(PAIRS) if not set(pair) & used)
    world.event(*_end(free, 0, speedMbps=20_000))
    await world.work()
    counted = {name: world.rounds.count(f"modeldeployments/ns/{name}") for name in ("placed", "moves")}
    assert counted == {"placed": 1, "moves": 1} and FLEET_KEY in world.rounds
    assert {"ns/placed", "ns/moves"} <= world.later_keys.keys(), "a better place is looked for later"


async def test_a_cable_of_others_begins_a_round_of_those_that_serve_later() -> None:
    world = FleetWorld()
    await world.settle()
    placed = {name: world.md_of(name).status.groups[0].ranks[0].node for name in ("placed", "moves")}
    free = next(number for number, pair in enumerate(PAIRS) if not set(pair) & set(placed.values()))
    world.rounds.clear()
    world.event(*_end(free, 0, speedMbps=20_000))
    await world.work()
    begun = {key for key in world.rounds if key.startswith(DEPLOYMENTS.name)}
    assert begun == {"modeldeployments/ns/waits"}, "which has no place"
    assert world.later_keys == {f"ns/{name}": ADVICE_SECONDS for name in ("placed", "moves", "sleeps")}


async def test_a_group_that_gets_a_place_begins_no_round_of_those_that_have_one() -> None:
    """Of 200 groups that start one after the other, each would else have a round for each that follows."""
    world = FleetWorld()
    await world.settle()
    # As while it starts.
    world.reconciler._settled.discard("ns/placed")
    for seen in (world.rounds, world.later_keys):
        seen.clear()
    meta = {"name": "late", "namespace": "ns", "uid": "uid-late", "generation": 1}
    world.put(DEPLOYMENTS, {"metadata": meta, "spec": {"model": {"repository": "org/tiny"}, "nodes": {}}})
    world.keys_to_do[work_key(DEPLOYMENTS, "ns/late")] = None
    await world.work()
    assert world.md_of("late").status.ready == "1/1" and FLEET_KEY in world.rounds
    assert {"modeldeployments/ns/placed", "modeldeployments/ns/moves"}.isdisjoint(world.rounds)
    assert world.later_keys["ns/placed"] == world.later_keys["ns/moves"] == ADVICE_SECONDS
    assert "modeldeployments/ns/waits" in world.rounds, "which has no place, and says why"


async def test_what_agents_report_beside_the_fleet_begins_no_round_of_others() -> None:
    world = FleetWorld()
    await world.settle()
    world.rounds.clear()
    world.event(*_profile(MINI, lastPanic={"time": "2026-01-01T00:00:00Z"}))
    await world.work()
    assert [key for key in world.rounds if key.startswith(DEPLOYMENTS.name)] == [] and not world.later_keys


async def test_an_interruption_of_a_cable_that_no_group_uses_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round of a ModelDeployment begins between the interruption and its end."""
    world = FleetWorld()
    await world.settle()
    used = {rank.node for name in ("placed", "moves") for rank in world.md_of(name).status.groups[0].ranks}
    free = next(number for number, pair in enumerate(PAIRS) if not set(pair) & used)
    monkeypatch.setattr(world.reconciler, "_again", lambda key, seconds: None)
    world.event(*_end(free, 0, flapping=True))
    await world.work()
    world.event(*_end(free, 0, flapping=False))
    await world.work()
    known = dict(world.reconciler._steadiness.known)
    assert known[Key(cable_name(free), False)].count == 1


MAC = Mac("a", "10.0.0.1", GIB, GIB)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"free_bytes": 1}, Reach.TAKEN),
        ({"free_bytes": 1, "in_use": True}, Reach.TAKEN),
        ({"free_bytes": 2 * GIB, "in_use": True}, Reach.UNSETTLED),
        ({"free_bytes": 1, "labels": {"a": "b"}}, Reach.UNSETTLED),
        ({"quarantine": "why"}, Reach.UNSETTLED),
        ({"ready": False}, Reach.EVERYBODY),
        ({"chip": "Apple M4 Max"}, Reach.EVERYBODY),
        ({"memory_bandwidth": 5}, Reach.EVERYBODY),
        ({"profiled": False}, Reach.EVERYBODY),
        ({"store": "/store"}, Reach.EVERYBODY),
        ({"name": "b"}, Reach.EVERYBODY),
        ({}, Reach.NOBODY),
    ],
)
def test_whom_a_change_of_a_mac_concerns(change: Json, found: Reach) -> None:
    assert reach(Fleet([MAC]), Fleet([replace(MAC, **change)]), {}, {}) is found


def test_whom_a_change_of_a_cable_concerns() -> None:
    one = Fleet([MAC], [Cable("ab", End("a"), End("b"))])
    assert reach(one, Fleet([MAC], one.cables.values()), {}, {}) is Reach.NOBODY
    assert reach(one, Fleet([MAC]), {}, {}) is reach(Fleet([MAC]), one, {}, {}) is Reach.UNSETTLED
    used = Fleet([replace(MAC, free_bytes=1)], [Cable("ab", End("a", queue_pairs=9), End("b"), in_use=True)])
    assert reach(one, used, {}, {}) is Reach.TAKEN
    assert reach(used, one, {}, {}) is Reach.UNSETTLED, "somebody has left"
    for other in (Cable("ab", End("a", queue_pairs=9), End("b", "1.1.1.1")), Cable("ab", End("a"), End("b"), connection="2")):
        assert reach(one, Fleet([MAC], [other]), {}, {}) is Reach.UNSETTLED
