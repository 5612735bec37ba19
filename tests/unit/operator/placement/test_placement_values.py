"""The planner's values: buckets, texts of quantities, scores, the fleet and its indexes."""

from dataclasses import replace
from itertools import chain
from typing import Literal

import pytest
from thunderfleet_crds.vocabulary import PlacedTransport, RequestedSplit, RequestedTransport, Split, Transport
from thunderfleet_operator.placement import (
    AddressKind,
    AddressKinds,
    Cable,
    Dials,
    End,
    Fleet,
    Kind,
    Mac,
    ModelFacts,
    Request,
    Score,
    Taint,
    Toleration,
)
from thunderfleet_operator.placement.eligibility import tolerates, untolerated
from thunderfleet_operator.placement.rating.buckets import LINK_STEP, MEMORY_STEP, Buckets
from thunderfleet_operator.placement.rating.preferences import LAN_RING, Stage, allowed_splits, allowed_transports, stages
from thunderfleet_operator.placement.units import distinct_gib, gbits, gib, gigabytes

GIB = 2**30


# --- texts ---


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 MiB"),
        (GIB // 10 - 1, "102.4 MiB"),
        (GIB // 10, "0.1 GiB"),
        (3 * GIB // 2, "1.5 GiB"),
        (10 * GIB - 1, "10.0 GiB"),
        (10 * GIB, "10 GiB"),
        (512 * GIB, "512 GiB"),
    ],
)
def test_bytes_as_text(size: int, text: str) -> None:
    assert gib(size) == text


def test_different_sizes_read_differently() -> None:
    assert distinct_gib(15 * GIB, 400 * GIB) == ("15 GiB", "400 GiB"), "no decimals without need"
    assert distinct_gib(15 * GIB, 15 * GIB) == ("15 GiB", "15 GiB")
    assert distinct_gib(15 * GIB + GIB // 5, 15 * GIB) == ("15.2 GiB", "15.0 GiB")
    assert distinct_gib(15 * GIB + GIB // 50, 15 * GIB) == ("15.02 GiB", "15.00 GiB")
    assert distinct_gib(15 * GIB + GIB // 500, 15 * GIB) == ("15.002 GiB", "15.000 GiB")
    assert distinct_gib(15 * GIB + 1, 15 * GIB) == (f"{15 * GIB + 1} bytes", f"{15 * GIB} bytes")


def test_rates_as_text() -> None:
    assert gbits(80_000) == "80 Gb/s" and gbits(2_500) == "2.5 Gb/s"
    assert gigabytes(546_000) == "546 GB/s"


# --- buckets ---


@pytest.mark.parametrize(
    ("rates", "step", "edges"),
    [
        ([], LINK_STEP, []),
        ([0, -1], LINK_STEP, []),
        ([55_000, 56_000], LINK_STEP, [55_000]),
        ([50_000, 52_000, 55_000, 30_000, 0], LINK_STEP, [30_000, 50_000]),
        ([8_000, 9_000], LINK_STEP, [8_000, 9_000]),
        ([8_001, 9_000], LINK_STEP, [8_001]),
        # A chain of neighbors is divided where it is thinnest.
        ([1_000, 1_100, 1_200, 1_330], LINK_STEP, [1_000, 1_330]),
        (
            [780_000, 800_000, 819_000, 546_000, 614_000, 273_000, 307_000],
            MEMORY_STEP,
            [273_000, 307_000, 546_000, 614_000, 780_000],
        ),
    ],
)
def test_rates_that_are_close_are_equal(rates: list[int], step: float, edges: list[int]) -> None:
    buckets = Buckets(rates, step)
    assert sorted({buckets.of(rate) for rate in rates if rate > 0}) == edges
    assert buckets.of(0) == buckets.of(-1) == 0


def test_the_highest_bucket_is_of_the_rates_that_are_known() -> None:
    tops = [Buckets(rates, LINK_STEP).top for rates in ([], [0, -1], [0, 1], [100, 105, 200, 210])]
    assert tops == [0, 0, 1, 200]


def test_a_rate_between_those_of_a_fleet_belongs_to_the_bucket_below() -> None:
    buckets = Buckets([100, 105, 200], LINK_STEP)
    assert [buckets.of(rate) for rate in (40, 100, 104, 150, 200, 900)] == [40, 100, 100, 100, 200, 200]


# --- preferences ---

MESH: Literal[Transport.JACCL] = Transport.JACCL
RDMA: tuple[PlacedTransport, ...] = (Transport.JACCL, Transport.JACCL_RING)


def test_transports_in_order_of_preference() -> None:
    assert allowed_transports(Request()) == (Transport.NONE, *RDMA, Transport.RING)
    wanted: tuple[RequestedTransport, ...] = (Transport.JACCL, Transport.JACCL_RING, Transport.RING)
    for transport in wanted:
        assert allowed_transports(Request(transport=transport)) == (Transport.NONE, transport)


def test_hops_over_a_lan_come_last_and_only_for_tcp() -> None:
    assert stages(Request())[-2:] == (Stage(Transport.RING, False), Stage(Transport.RING, True))
    assert [stage.rank for stage in stages(Request())] == [0, 1, 2, 3, LAN_RING] == [0, 1, 2, 3, 4]
    assert stages(Request(transport=MESH)) == (Stage(Transport.NONE, False), Stage(MESH, False))


def test_splits_in_order_of_preference() -> None:
    assert allowed_splits(Transport.NONE, Request(split=Split.TENSOR)) == (Split.NONE,)
    for transport in RDMA:
        assert allowed_splits(transport, Request()) == (Split.TENSOR, Split.PIPELINE)
    assert allowed_splits(Transport.RING, Request()) == (Split.PIPELINE, Split.TENSOR)
    wanted: tuple[RequestedSplit, ...] = (Split.TENSOR, Split.PIPELINE)
    for split in wanted:
        assert allowed_splits(MESH, Request(split=split)) == allowed_splits(Transport.RING, Request(split=split)) == (split,)


# --- scores ---

SCORE = Score(3, 2, 0, 0, -80_000, -400_000, GIB, 40 * GIB, speed_mbps=80_000, unmeasured=0, memory_bandwidth=410_000)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"transport": 4}, "TCP ring over a LAN instead of TCP ring"),
        ({"transport": 3, "macs": 3}, "needs 3 Macs instead of 2"),
        ({"split": 1}, "uses the split that is less suitable for this transport"),
        ({"shared": 2}, "shares 2 Macs and cables with other groups instead of 0"),
        ({"neg_speed": -40_000, "speed_mbps": 40_000}, "slowest hop 40 Gb/s, measured instead of 80 Gb/s, measured"),
        ({"neg_bandwidth": 0}, "slowest memory not measured instead of 410 GB/s"),
        ({"spread_bytes": 2 * GIB}, "free memory of its Macs differs by 2.0 GiB instead of 1.0 GiB"),
        ({"room_bytes": 41 * GIB}, "uses Macs with more free memory: 41 GiB instead of 40 GiB"),
        ({}, "equal score; the order of the Macs by free memory, files to fetch, then name, decides"),
    ],
)
def test_a_score_names_the_first_part_in_which_it_loses(change: dict[str, int], why: str) -> None:
    worse = replace(SCORE, **change)
    assert worse.why_worse(SCORE) == why
    assert (worse > SCORE) == bool(change)


def test_parts_of_a_score_as_text() -> None:
    assert SCORE.texts() == {
        "transport": "TCP ring",
        "macs": "2",
        "split": "preferred",
        "shared": "0 in use by others",
        "speed": "80 Gb/s, measured",
        "bandwidth": "410 GB/s",
        "spread": "1.0 GiB",
        "room": "40 GiB",
    }
    alone = replace(SCORE, transport=0)
    assert (alone.speed, alone.texts()["split"], alone.texts()["transport"]) == ("none needed", "whole", "one Mac")
    assert replace(SCORE, split=1).texts()["split"] == "fallback"
    assert replace(SCORE, unmeasured=1, speed_mbps=0).speed == "unknown (expected; hops not measured: 1)"


# --- taints ---


@pytest.mark.parametrize(
    ("toleration", "matches"),
    [
        (Toleration("own", value="x"), True),
        (Toleration("own", value="y"), False),
        (Toleration("other", value="x"), False),
        (Toleration("own", exists=True), True),
        (Toleration("other", exists=True), False),
        (Toleration("own", exists=True, effect="NoSchedule"), True),
        (Toleration("own", exists=True, effect="NoExecute"), False),
        (Toleration(exists=True), True),
        (Toleration(), False),
    ],
)
def test_tolerations_match_as_in_kubernetes(toleration: Toleration, matches: bool) -> None:
    assert tolerates(toleration, Taint("own", "x")) == matches


def test_the_first_taint_that_keeps_pods_away() -> None:
    soft, one, other = Taint("a", effect="PreferNoSchedule"), Taint("b", effect="NoSchedule"), Taint("c", effect="NoExecute")
    assert untolerated((soft,), ()) == ()
    assert next(iter(untolerated((soft, one, other), ()))) == one
    assert next(iter(untolerated((soft, one, other), (Toleration("b", exists=True),)))) == other
    assert untolerated((one, other), (Toleration("b", exists=True), Toleration("c", exists=True))) == ()


# --- the fleet ---


NO_KINDS = AddressKinds()


def mac(name: str, *dials: tuple[str, str], kinds: AddressKinds = NO_KINDS) -> Mac:
    return Mac(name, f"10.0.0.{ord(name)}", 1, dials=Dials.of(dials), kinds=kinds)


def cable(
    one: str, other: str, speed: int = 80_000, connected: bool = True, ring: int | None = None, rdma: int | None = None
) -> Cable:
    return Cable(f"{one}{other}", End(one), End(other), speed, connected, ring_mbps=ring, rdma_mbps=rdma)


def parts(fleet: Fleet, *, lan: bool = False) -> set[frozenset[str]]:
    numbers = fleet.parts(lan=lan)
    assert numbers.keys() == fleet.macs.keys()
    return {frozenset(name for name in numbers if part in numbers[name]) for part in set(chain(*numbers.values()))}


def test_dials_are_sorted_columns() -> None:
    dials = Dials.of([("c", "3"), ("b", "2"), ("b", "1"), ("b", "2")], {("b", "2"): 900, ("x", "9"): 1})
    assert (dials.nodes, dials.addresses, dials.speeds) == (("b", "b", "c"), ("1", "2", "3"), (0, 900, 0))
    assert list(dials.rows) == [("b", "1", 0), ("b", "2", 900), ("c", "3", 0)]
    assert (dials.at("a"), dials.at("b"), dials.at("c"), dials.at("d")) == ((), ("1", "2"), ("3",), ())
    assert Dials.of([("b", "1")], {("b", "1"): 0}).speeds == () == Dials.of([("b", "1")]).speeds
    assert list(Dials.of([("b", "1")]).rows) == [("b", "1", 0)]


def test_kinds_of_addresses() -> None:
    wifi = AddressKind(Kind.WIFI)
    kinds = AddressKinds.of({"1": AddressKind(Kind.ETHERNET), "2": wifi})
    other = AddressKind(Kind.OTHER)
    assert kinds.get("2", other) == wifi and kinds.get("3", other) is other
    assert AddressKinds.of({"9": wifi}).kinds is AddressKinds.of({"8": wifi}).kinds, "shared by Macs with the same interfaces"


def test_the_ends_of_a_cable() -> None:
    found = cable("a", "b")
    assert (found.end("a").node, found.end("b").node, found.other("a"), found.other("b")) == ("a", "b", "b", "a")


def test_parts_are_joined_by_connected_cables_to_known_macs_and_by_dials() -> None:
    macs = [*(mac(name) for name in "abcdf"), mac("e", ("f", "1"), ("x", "2"), ("e", "3"))]
    ring = [cable("a", "b"), cable("c", "b"), cable("a", "c"), cable("c", "d")]
    fleet = Fleet(macs, [*ring, cable("d", "e", connected=False), cable("f", "x"), cable("e", "e")])
    assert parts(fleet) == {frozenset("abc"), frozenset("cd")}
    assert parts(fleet, lan=True) == {frozenset("abc"), frozenset("cd"), frozenset("ef")}
    assert [entry.name for entry in fleet.links("e")] == ["de", "ee"] and fleet.links("z") == ()


def test_who_has_reached_a_mac_and_where() -> None:
    fleet = Fleet([mac("a", ("b", "1"), ("b", "2")), mac("c", ("b", "3"), ("a", "4")), replace(mac("d"), dials=None)])
    assert fleet.reached_by("b") == ("a", "c") and fleet.reached_by("d") == ()
    assert fleet.reached_addresses("b") == {"1", "2", "3"} and fleet.reached_addresses("c") == frozenset()


def test_upper_bounds_of_speeds() -> None:
    fleet = Fleet([], [cable("a", "b", 40_000), cable("a", "c", 10, ring=50_000), cable("b", "c", 1, rdma=60_000)])
    assert max(fleet.rates(rdma=True)) == 60_000 and not Fleet().rates(rdma=True) | Fleet().lan_rates
    kinds = AddressKinds.of({"1": AddressKind(Kind.ETHERNET, speed_mbps=1_000)})
    assert Fleet([mac("a", kinds=kinds)]).lan_rates == {1_000}
    measured = replace(mac("b"), dials=Dials.of([("a", "1")], {("a", "1"): 9_400}))
    assert Fleet([mac("a", kinds=kinds), measured]).lan_rates == {1_000, 9_400}


def test_a_changed_fleet_replaces_adds_and_removes() -> None:
    fleet = Fleet([mac("a"), mac("b"), mac("c")], [cable("a", "b"), cable("b", "c")])
    assert parts(fleet) == {frozenset("ab"), frozenset("bc")}
    apart = fleet.changed(cables=[cable("b", "c", connected=False)])
    assert parts(apart) == {frozenset("ab")} and len(apart.links("b")) == 2
    more = fleet.changed(macs=[mac("d")], cables=[cable("c", "d")])
    assert parts(more) == {frozenset("ab"), frozenset("bc"), frozenset("cd")} and [entry.name for entry in more.links("d")] == [
        "cd"
    ]
    less = fleet.changed(gone=["c", "bc"])
    assert set(less.macs) == {"a", "b"} and set(less.cables) == {"ab"} and parts(less) == {frozenset("ab")}
    assert less.links("c") == () and set(fleet.macs) == set("abc"), "the old fleet is what it was"


def test_a_changed_fleet_carries_indexes_over_only_if_they_still_hold() -> None:
    fleet = Fleet([mac("a"), mac("b", ("a", "1"))], [cable("a", "b")])
    wired, near = fleet.parts(lan=False), fleet.parts(lan=True)
    assert fleet.reached_by("a") == ("b",) and fleet.rates(rdma=False) == {28_000}
    busy = fleet.changed(macs=[replace(fleet.macs["a"], in_use=True)])
    assert busy.parts(lan=False) is wired and busy.parts(lan=True) is near
    assert busy.reached_by("a") == ("b",) and busy.macs["a"].in_use
    assert busy.rates(rdma=False) is fleet.rates(rdma=False)
    slower = fleet.changed(cables=[cable("a", "b", 40_000)])
    assert slower.parts(lan=False) is wired and slower.rates(rdma=False) == {14_000}
    silent = fleet.changed(macs=[mac("b")])
    assert silent.reached_by("a") == () and silent.parts(lan=False) is wired and silent.parts(lan=True) is not near
    assert fleet.changed(gone=["b"]).reached_by("a") == ()


def test_who_has_which_models_is_known_until_a_mac_or_its_models_change() -> None:
    same, other = (ModelFacts("/m"),), (ModelFacts("/n"),)
    fleet = Fleet([Mac("b", "1", 1, models=same), Mac("c", "1", 1, models=other), Mac("a", "1", 1, models=same)])
    assert fleet.holders == ((same, ("a", "b")), (other, ("c",)))
    b = fleet.macs["b"]
    assert fleet.changed([replace(b, free_bytes=0)]).holders is fleet.holders
    assert fleet.changed([replace(b, models=other)]).holders == ((same, ("a",)), (other, ("b", "c")))
    assert fleet.changed([Mac("d", "1", 1, models=same)]).holders == ((same, ("a", "b", "d")), (other, ("c",)))
    assert fleet.changed(gone=["c"]).holders == ((same, ("a", "b")),)
    assert Fleet().holders == ()


def test_a_part_of_a_fleet_knows_what_the_whole_has_reached() -> None:
    fleet = Fleet([mac("a"), mac("b"), mac("c", ("a", "1")), mac("d")], [cable("a", "b"), cable("b", "c")])
    part = fleet.part(["b", "a"])
    assert set(part.macs) == {"a", "b"} and set(part.cables) == {"ab"} and part.links("c") == ()
    assert part.reached_addresses("a") == {"1"} and part.reached_addresses("b") == frozenset()
    changed = part.changed([mac("b", ("a", "2"))])
    assert changed.reached_addresses("a") == {"1", "2"} and changed.reached_by("a") == ("b",)
