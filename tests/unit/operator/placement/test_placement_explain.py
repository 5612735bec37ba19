"""The explanation when there is no placement: near misses, and why each Mac cannot be used."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from thunderfleet_crds.vocabulary import Split, Transport
from thunderfleet_operator.placement import (
    Cable,
    Dials,
    End,
    Fleet,
    Mac,
    MacReason,
    MemoryRequest,
    ModelFacts,
    NearMiss,
    Request,
    TensorFacts,
    Unplaceable,
    plan,
)
from thunderfleet_operator.placement.cohorts import cohorts
from thunderfleet_operator.placement.explain import explanation
from thunderfleet_operator.placement.explain.fixes import fix
from thunderfleet_operator.placement.explain.miss import COST_CABLE, COST_SETTING, Miss, by_message, listed, named
from thunderfleet_operator.placement.explain.obstacles import helpful_macs
from thunderfleet_operator.placement.search.budget import StepBudget

NO_KV = MemoryRequest(context_tokens=1, concurrent_requests=1, cached_tokens=0, headroom_percent=0)
PATH = "/models/a"
GIB = 2**30
BOTH = frozenset({"ring", "jaccl"})


def model(*layers: int, path: str = PATH) -> ModelFacts:
    size = sum(layers)
    return ModelFacts(path, "org/a", bytes=size, tensor=(TensorFacts(1, (size,)),), layer_bytes=layers)


def mac(name: str, free: int, facts: ModelFacts, **more: object) -> Mac:
    values: dict[str, object] = {"backends": BOTH, "models": (facts,), **more}
    return Mac(name, f"10.0.0.{ord(name[0])}", free, **values)  # type: ignore[arg-type]


def cable(one: str, other: str, **more: object) -> Cable:
    a, b = End(one, f"1.{one}", f"to{other}"), End(other, f"2.{other}", f"to{one}")
    values: dict[str, object] = {"a": a, "b": b, "speed_mbps": 80_000, "rdma_problem": None, **more}
    return Cable(f"{one}--{other}", **values)  # type: ignore[arg-type]


def refused(fleet: Fleet, request: Request) -> Unplaceable:
    found = plan(fleet, request)
    assert isinstance(found, Unplaceable), found
    return found


def request(**more: object) -> Request:
    return Request(path=PATH, memory=NO_KV, **more)  # type: ignore[arg-type]


# --- lists ---


def test_lists_name_a_few_and_count_the_rest() -> None:
    assert named("abcdef") == "a, b, c, d, e, f" and named("abcdefgh") == "a, b, c, d, e, f and 2 more"
    assert listed(["a", "b", "c", "d"]) == "a; b; c; d" and listed(["a", "b", "c", "d", "e"]) == "a; b; c; d; and 1 more"
    assert by_message([("a", "is old"), ("b", "is new"), ("c", "is old")]) == ["each of a, c is old", "b is new"]


def test_near_misses_are_ordered_by_the_cost_of_mending_them() -> None:
    def miss(cost: int, missing: int, *nodes: str) -> Miss:
        return Miss(cost, missing, NearMiss(nodes, Transport.RING, Split.PIPELINE, ""), "NoRoom")  # type: ignore[arg-type]

    ordered = [miss(1, 9, "z", "y"), miss(2, 1, "z", "y"), miss(2, 2, "z"), miss(2, 2, "a", "b"), miss(2, 2, "a", "c")]
    assert sorted(reversed(ordered), key=lambda entry: entry.order) == ordered


# --- memory ---


def test_sizes_that_differ_read_differently() -> None:
    facts = model(15 * GIB + GIB // 5)
    found = refused(Fleet([mac("a", 15 * GIB, facts)]), request(max_nodes=1))
    assert found.message == f"{PATH} cannot be placed: a has 15.0 GiB free, the whole model needs 15.2 GiB"
    pair = model(*[15 * GIB] * 2)
    fleet = Fleet([mac("a", 15 * GIB, pair), mac("b", 15 * GIB - GIB // 5, pair)], [cable("a", "b")])
    message = refused(fleet, request(min_nodes=2, transport=Transport.RING)).near_misses[0].message
    assert message == "TCP ring of a, b: b has 14.8 GiB free, needs 15.0 GiB as one of 2 ranks (Pipeline)"


def test_memory_in_use_is_named_beside_what_is_free() -> None:
    facts = model(40 * GIB)
    busy = replace(mac("a", 20 * GIB, facts), allocatable_bytes=60 * GIB)
    assert refused(Fleet([busy]), request()).macs == (
        MacReason("a", "has 20 GiB of 60 GiB free, the whole model needs 40 GiB"),
    )


def test_each_rank_needs_its_share_even_if_the_sum_suffices() -> None:
    facts = model(8 * GIB, 8 * GIB)
    fleet = Fleet([mac("a", 14 * GIB, facts), mac("b", 4 * GIB, facts)], [cable("a", "b")])
    near = refused(fleet, request(min_nodes=2, transport=Transport.RING)).near_misses[0]
    assert near.message == "TCP ring of a, b: b has 4.0 GiB free, needs 8.0 GiB as one of 2 ranks (Pipeline)"
    assert near.missing_bytes == 4 * GIB


def test_layers_are_whole() -> None:
    facts = model(6 * GIB, 6 * GIB, 6 * GIB)
    fleet = Fleet([mac("a", 10 * GIB, facts), mac("b", 10 * GIB, facts)], [cable("a", "b")])
    near = refused(fleet, request(min_nodes=2, max_nodes=2, transport=Transport.RING)).near_misses[0]
    assert near.message == "TCP ring of a, b: a has 10 GiB free, needs 12 GiB as one of 2 ranks (Pipeline)"
    assert near.missing_bytes == 2 * GIB


def test_memory_of_connected_macs_is_named_beside_cables_between_larger_ones() -> None:
    facts = model(*[10 * GIB] * 4)
    macs = [mac(name, 20 * GIB, facts) for name in "ab"] + [mac(name, 15 * GIB, facts) for name in "cd"]
    fleet = Fleet(macs, [cable("a", "c"), cable("b", "d")])
    messages = [miss.message for miss in refused(fleet, request(transport=Transport.RING)).near_misses]
    assert messages[0].startswith("TCP ring of ") and ": no Thunderbolt cable" in messages[0]
    assert "TCP ring of a, c: c has 15 GiB free, needs 20 GiB as one of 2 ranks (Pipeline)" in messages


# --- hops ---


def test_one_cable_is_named_once_and_no_near_miss_twice() -> None:
    facts = model(5, 5)
    fleet = Fleet([mac("b", 6, facts), mac("a", 6, facts)], [cable("b", "a", connected=False)])
    found = refused(fleet, request(transport=Transport.RING))
    assert found.near_misses[0].message == "TCP ring of a, b: a ↔ b: the cable is unplugged"
    assert len(set(found.near_misses)) == len(found.near_misses)
    other = replace(facts, revision="x")
    apart = Fleet([mac("a", 6, facts, schedulable=False), mac("b", 6, facts), mac("c", 6, other)])
    near = refused(apart, request(min_nodes=3)).near_misses
    assert len(set(near)) == len(near)


@pytest.mark.parametrize(
    ("change", "transport", "problem"),
    [
        ({"connected": False}, Transport.JACCL, "a ↔ b: the cable is unplugged"),
        ({"rdma_problem": "RDMA is off on b"}, Transport.JACCL, "a ↔ b: RDMA is off on b"),
        ({"a": End("a", "1.a")}, Transport.JACCL, "a ↔ b: a has no RDMA device at its end"),
        (
            {"b": End("b", "2.b", "x", queue_pairs=0)},
            Transport.JACCL,
            "a ↔ b: RDMA device x of b has no free queue pairs (one for each RDMA connection), because other groups use them "
            "all: delete a ModelDeployment that uses b, or set spec.transport: Ring",
        ),
        (
            {"a": End("a")},
            Transport.RING,
            "a ↔ b: a has no address at its end of the cable: a kubelet that runs as root sets one, and `kubectl describe "
            "node a` shows why it has not",
        ),
    ],
)
def test_what_keeps_a_cable_from_being_used(change: dict[str, object], transport: Transport, problem: str) -> None:
    facts = model(5, 5)
    fleet = Fleet([mac("a", 6, facts), mac("b", 6, facts)], [cable("a", "b", **change)])
    near = refused(fleet, request(transport=transport)).near_misses[0]
    assert (near.transport, near.message.partition(" of a, b: ")[2]) == (transport, problem)


def test_the_fastest_connected_cable_of_a_pair_is_the_one_explained() -> None:
    facts = model(5, 5)
    slow = replace(cable("a", "b", rdma_problem="it is slow"), name="slow", speed_mbps=40_000)
    fast = cable("a", "b", rdma_problem="RDMA is off on b")
    gone = replace(cable("a", "b", connected=False), name="gone", speed_mbps=120_000)
    near = refused(
        Fleet([mac("a", 6, facts), mac("b", 6, facts)], [slow, gone, fast]), request(transport=Transport.JACCL)
    ).near_misses[0]
    assert near.message == "JACCL mesh of a, b: a ↔ b: RDMA is off on b"


# --- Macs ---


def test_why_each_eligible_mac_takes_no_rank() -> None:
    facts = model(5, 5)
    without = mac("b", 6, facts, backends=frozenset(), mlx_version="0.32")
    macs = [mac("a", 6, facts), without, mac("c", 6, facts), mac("d", 6, facts)]
    fleet = Fleet(macs, [cable("a", "b"), cable("c", "d", connected=False)])
    reasons = {entry.node: entry.message for entry in refused(fleet, request(min_nodes=2)).macs}
    assert reasons == {
        "a": "is in no set of 2 Macs with the required links and memory",
        "b": "cannot join a group: its MLX 0.32 has no backend for groups of Macs",
        "c": "has no Thunderbolt cable to another eligible Mac, and no connection to one over the LAN",
        "d": "has no Thunderbolt cable to another eligible Mac, and no connection to one over the LAN",
    }
    jaccl = {entry.node: entry.message for entry in refused(fleet, request(min_nodes=2, transport=Transport.JACCL)).macs}
    assert jaccl["c"] == "has no Thunderbolt cable to another eligible Mac"
    silent = Fleet([*macs[:1], replace(without, mlx_version=None), *macs[2:]], fleet.cables.values())
    reasons = {entry.node: entry.message for entry in refused(silent, request(min_nodes=2)).macs}
    assert reasons["b"] == (
        "cannot join a group: its agent has not published the version and backends of its MLX (the condition "
        "InventoryComplete of its NodeProfile shows why)"
    )


def test_ports_that_are_taken_are_named_for_the_ring_and_for_each_mac() -> None:
    facts = model(5, 5)
    fleet = Fleet([mac("a", 6, facts), mac("b", 6, facts), mac("c", 6, facts)], [cable("a", "b"), cable("b", "c")])
    full = {"a": "has no free ring ports", "c": "has no free ring ports"}
    found = refused(fleet, request(min_nodes=2, transport=Transport.RING, no_ring_ports=full))
    assert all("and has no free ring ports" in entry.message for entry in found.macs if entry.node in full)
    two = {"a": "has no free ring ports"}
    pair = Fleet([fleet.macs["a"], fleet.macs["b"]], [fleet.cables["a--b"]])
    found = refused(pair, request(min_nodes=2, transport=Transport.RING, no_ring_ports=two))
    assert found.near_misses[0].message == "TCP ring of a, b: a has no free ring ports"
    mesh = refused(pair, request(min_nodes=2, transport=Transport.JACCL, no_ring_ports={**two, "b": "has none either"}))
    assert (
        "the Mac of rank 0 needs a block of free ports in operator.ringPorts, and none of these Macs has one: a has no free "
        "ring ports" in mesh.near_misses[0].message
    )


def test_macs_with_other_software_or_files_are_named() -> None:
    facts = model(5, 5)
    macs = [mac("a", 6, facts, mlx_version="1"), mac("b", 6, facts, mlx_version="2", mlx_lm_version="3")]
    fleet = Fleet(macs, [cable("a", "b")])
    messages = " ".join(miss.message for miss in refused(fleet, request(min_nodes=2)).near_misses)
    assert "b runs MLX 2 with mlx-lm 3, the others MLX 1 with mlx-lm (unknown) (install the same versions on all)" in messages
    other = Fleet([mac("a", 6, facts), mac("b", 6, model(5, 4))], [cable("a", "b")])
    messages = " ".join(miss.message for miss in refused(other, request(min_nodes=2)).near_misses)
    assert "b has different files of /models/a at /models/a than the others" in messages


def test_a_mac_needs_only_a_setting_if_it_has_the_files_and_the_software() -> None:
    facts = model(5, 5)
    (cohort,) = cohorts({"a": mac("a", 9, facts)}, request())

    def costs(transport: Transport) -> dict[str, int]:
        cordoned = [
            mac("b", 9, facts, schedulable=False),
            mac("c", 9, facts, schedulable=False, backends=frozenset({"ring"})),
            mac("d", 9, facts, schedulable=False, backends=frozenset()),
            mac("e", 9, facts, schedulable=False, mlx_version="9"),
            mac("f", 9, model(5, 4), schedulable=False),
        ]
        found = helpful_macs(cordoned, request(), cohort, transport, len(cordoned))  # type: ignore[arg-type]
        return {name: obstacle.cost for name, obstacle in found.items()}

    other = {"e": COST_CABLE, "f": COST_CABLE}
    assert costs(Transport.NONE) == {"b": COST_SETTING, "c": COST_SETTING, "d": COST_SETTING, **other}
    assert costs(Transport.RING) == {"b": COST_SETTING, "c": COST_SETTING, "d": COST_CABLE, **other}
    assert costs(Transport.JACCL) == {"b": COST_SETTING, "c": COST_CABLE, "d": COST_CABLE, **other}


def test_a_mac_with_just_enough_memory_is_mended_rather_than_one_with_too_little() -> None:
    facts = model(5, 5)
    macs = [mac("a", 4, facts), mac("b", 4, facts, schedulable=False), mac("c", 10, facts, ready=False)]
    messages = [miss.message for miss in refused(Fleet(macs), request()).near_misses if miss.transport is Transport.NONE]
    assert "one Mac: c is not Ready: switch it on, or check its kubelet" in messages


def test_no_more_macs_than_there_are_refuse_a_split() -> None:
    facts = replace(model(5, 5), pipeline_refusal="no pipeline")
    found = refused(Fleet([mac("a", 4, facts), mac("b", 4, facts)], [cable("a", "b")]), request(split=Split.TENSOR))
    assert any("over 2 Macs" in miss.message for miss in found.near_misses)
    assert not any("over 3 Macs" in miss.message for miss in found.near_misses)


def test_a_reason_that_a_near_miss_gives_is_not_repeated() -> None:
    facts = model(5, 5)
    macs = [mac("a", 6, facts, schedulable=False), mac("b", 6, facts, quarantine="fault")]
    assert refused(Fleet(macs, [cable("a", "b")]), request(min_nodes=2)).message == (
        f"{PATH} cannot be placed on 2 or more Macs: JACCL mesh, JACCL ring, TCP ring of a, b: a is cordoned "
        "(kubectl uncordon a); b is quarantined until it reboots: fault"
    )


def test_a_large_fleet_names_only_macs_that_are_not_eligible() -> None:
    facts = model(5, 5)
    small = [mac(chr(97 + i), 1, facts) for i in range(7)]
    assert "is in no set" not in refused(Fleet(small), request(min_nodes=2)).message
    away = [replace(entry, quarantine=f"fault {entry.name}") for entry in (*small, mac("h", 1, facts))]
    message = refused(Fleet([*away, mac("z", 1, facts)]), request(max_nodes=1)).message
    assert message.endswith("; and 2 more reasons for other Macs"), message


def test_a_rank_0_that_is_not_reached_yet_is_waited_for() -> None:
    facts = model(5, 5)
    ends = {"a": End("a", None, "x"), "b": End("b", None, "y")}
    macs = [mac("a", 6, facts, dials=Dials()), mac("b", 6, facts, dials=Dials())]
    found = refused(Fleet(macs, [cable("a", "b", **ends)]), request(transport=Transport.JACCL))
    assert found.reason == "NotYetObserved"
    assert found.near_misses[0].message.startswith(
        "JACCL mesh of a, b: no Mac is reachable from all others yet; if this persists"
    )


# --- many cohorts ---


def own_files(count: int, free: int = 4) -> Fleet:
    """Macs on one switch, each with the model in a folder of its own: none can form a group with another."""
    names = [f"m{i:03d}" for i in range(count)]
    dials = {name: Dials.of((other, f"10.1.0.{i}") for i, other in enumerate(names) if other != name) for name in names}
    return Fleet(
        Mac(name, f"10.1.0.{i}", free, models=(model(5, 5, path=f"/{name}"),), backends=BOTH, dials=dials[name])
        for i, name in enumerate(names)
    )


@pytest.mark.parametrize("least", [1, 2])
def test_near_misses_of_many_cohorts_cost_as_much_as_those_of_a_few(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    looked = 0

    def counted(*arguments: Any) -> Miss | None:
        nonlocal looked
        looked += 1
        return fix(*arguments)

    monkeypatch.setattr("thunderfleet_operator.placement.explain.transports.fix", counted)
    counts = []
    for count in (10, 20, 40):
        looked = 0
        found = refused(own_files(count), Request(repository="org/a", memory=NO_KV, min_nodes=least))
        assert found.near_misses and len(found.macs) == count
        counts.append(looked)
    assert counts[0] == counts[1] == counts[2] > 0


def test_the_cohorts_that_lack_least_are_explained() -> None:
    fleet = own_files(10)
    fleet = fleet.changed([replace(fleet.macs["m008"], free_bytes=9)])
    found = refused(fleet, Request(repository="org/a", memory=NO_KV, max_nodes=1))
    assert found.near_misses[0].message == "m008 has 9 bytes free, the whole model needs 10 bytes"
    assert found.near_misses[0].missing_bytes == 1


def test_near_misses_end_at_a_limit_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = own_files(4)
    asked = Request(repository="org/a", memory=NO_KV, min_nodes=2)
    assert any(miss.changes for miss in refused(fleet, asked).near_misses)
    monkeypatch.setattr(explanation, "STEPS", 0)
    found = refused(fleet, asked)
    assert not any(miss.changes for miss in found.near_misses)
    assert found.message.startswith("org/a cannot be placed on 2 or more Macs: ")


def test_of_several_folders_the_one_that_needs_least_counts() -> None:
    unknown = ModelFacts("/z", "org/a", bytes=9, layer_bytes=(9,))
    for models in itertools.permutations((model(5, 5), model(4, 4, path="/b"), unknown)):
        found = refused(Fleet([mac("a", 3, models[0], models=models)]), Request(repository="org/a", memory=NO_KV))
        assert found.macs == (MacReason("a", "has 3 bytes free, the whole model needs 8 bytes"),)


def test_steps_that_a_share_leaves_are_for_those_that_follow() -> None:
    budget, given = StepBudget(100), []
    for number, share in enumerate(explanation._shares(budget, 4)):
        given.append(share.left)
        share.spend((10, 25, 40, 5)[number])
    # The third takes more than it has, which the last one cannot have back.
    assert given == [25, 30, 32, 33]
    assert budget.left == 28


@pytest.mark.parametrize(
    ("transport", "backends", "cost"),
    [
        (Transport.NONE, frozenset[str](), COST_SETTING),
        (Transport.RING, BOTH, COST_SETTING),
        (Transport.RING, frozenset({"jaccl"}), COST_CABLE),
        (Transport.JACCL, frozenset({"ring"}), COST_CABLE),
    ],
)
def test_a_cordoned_mac_costs_a_setting_if_its_mlx_has_the_backend(
    transport: Transport, backends: frozenset[str], cost: int
) -> None:
    facts = model(4)
    cordoned = mac("b", 9, facts, backends=backends, schedulable=False)
    cohort = cohorts({"a": mac("a", 9, facts)}, request())[0]
    found = helpful_macs([cordoned], request(), cohort, transport, 1)  # type: ignore[arg-type]
    assert found["b"].cost == cost
