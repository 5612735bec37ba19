"""The planner's rules one by one, each by name."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thunderfleet_crds.vocabulary import PlacementPolicy, RequestedSplit, RequestedTransport, Split, Transport
from thunderfleet_operator.placement import (
    AddressKind,
    AddressKinds,
    Cable,
    Dials,
    End,
    Fleet,
    Kind,
    KVLayer,
    Mac,
    MemoryRequest,
    ModelFacts,
    Placement,
    Relay,
    Request,
    Taint,
    TensorFacts,
    Toleration,
    Unplaceable,
    better,
    plan,
)
from thunderfleet_operator.placement.memory import (
    Needs,
    kv_bytes,
    largest_remainder,
)

NO_KV = MemoryRequest(context_tokens=1, concurrent_requests=1, cached_tokens=0, headroom_percent=0)
PATH = "/models/a"
GIB = 2**30
BOTH = frozenset({"ring", "jaccl"})
LAN = AddressKind(Kind.ETHERNET, True, 10_000)
TAILSCALE = AddressKind(Kind.OTHER, False)


def model(layers: tuple[int, ...], shared: int = 0, tensor: dict[int, tuple[int, ...] | None] | None = None) -> ModelFacts:
    whole = shared + sum(layers)
    sizes = {1: (whole,)} if tensor is None else tensor
    facts = tuple(
        TensorFacts(size, bytes_ or (), None if bytes_ else "heads do not divide") for size, bytes_ in sorted(sizes.items())
    )
    return ModelFacts(PATH, "org/a", bytes=whole, tensor=facts, layer_bytes=layers, shared_bytes=shared)


def mac(name: str, free: int, facts: ModelFacts, **more: object) -> Mac:
    address = f"10.0.0.{ord(name[0])}"
    kinds = AddressKinds.of({address: LAN, f"100.64.0.{ord(name[0])}": TAILSCALE})
    return Mac(name, address, free, free, models=(facts,), **{"kinds": kinds, **more})  # type: ignore[arg-type]


def cable(one: str, other: str, speed: int = 80_000, rdma: str | None = None, **more: object) -> Cable:
    a = End(one, f"169.254.{ord(one[0])}.{ord(other[0])}", f"rdma_{one}_{other}")
    b = End(other, f"169.254.{ord(other[0])}.{ord(one[0])}", f"rdma_{other}_{one}")
    values: dict[str, object] = {"name": f"{one}--{other}", "a": a, "b": b, "speed_mbps": speed, "rdma_problem": rdma, **more}
    return Cable(**values)  # type: ignore[arg-type]


def mesh(names: str, **more: object) -> list[Cable]:
    return [cable(one, other, **more) for one, other in itertools.combinations(names, 2)]  # type: ignore[arg-type]


def placed(found: Placement | Unplaceable) -> Placement:
    assert isinstance(found, Placement), found
    return found


def refused(found: Placement | Unplaceable) -> Unplaceable:
    assert isinstance(found, Unplaceable), found
    return found


SPLITS = model((5, 5), tensor={1: (10,), 2: (5, 5)})


# --- two Macs, one cable, seen from one end ---


def test_two_macs_with_one_cable_seen_from_one_end_go_over_rdma_when_it_is_usable() -> None:
    macs = (mac("a", 6, SPLITS, backends=BOTH), mac("b", 6, SPLITS, backends=BOTH))
    found = placed(plan(Fleet(macs, [cable("a", "b")]), Request(path=PATH, memory=NO_KV)))
    assert (found.transport, found.split, found.nodes) == (Transport.JACCL, Split.TENSOR, ("a", "b"))
    assert [rank.devices for rank in found.ranks] == [(None, "rdma_a_b"), ("rdma_b_a", None)]
    assert found.ranks[1].coordinator == "10.0.0.97" and found.ranks[0].coordinator is None


@pytest.mark.parametrize("why", ["RDMA is off on b: start it in Recovery", "the cable runs at 40 Gb/s"])
def test_two_macs_with_one_cable_seen_from_one_end_go_over_the_ring_when_not(why: str) -> None:
    macs = (mac("a", 6, SPLITS, backends=BOTH), mac("b", 6, SPLITS, backends=BOTH))
    found = placed(plan(Fleet(macs, [cable("a", "b", rdma=why)]), Request(path=PATH, memory=NO_KV)))
    assert (found.transport, found.split) == (Transport.RING, Split.PIPELINE)
    assert [rank.ring_address for rank in found.ranks] == ["169.254.97.98", "169.254.98.97"]
    assert found.cables == ("a--b", "a--b"), "one cable, both ways"
    none = refused(plan(Fleet(macs, [cable("a", "b", rdma=why)]), Request(path=PATH, memory=NO_KV, transport=Transport.JACCL)))
    assert f"a ↔ b: {why}" in none.message
    assert f"JACCL mesh of a, b: a ↔ b: {why}" in [miss.message for miss in none.near_misses]


# --- transports ---


def test_rdma_between_different_builds_of_macos_is_warned_of() -> None:
    def reason(first: str, second: str, rdma: str | None = None) -> str:
        macs = (mac("a", 6, SPLITS, backends=BOTH, build=first), mac("b", 6, SPLITS, backends=BOTH, build=second))
        return placed(plan(Fleet(macs, [cable("a", "b", rdma=rdma)]), Request(path=PATH, memory=NO_KV))).reason

    warning = "; the Macs run different builds of macOS (a 25D125, b 25E230): RDMA is safer if all run the same build"
    assert reason("25D125", "25E230").endswith(warning)
    for other in (reason("25D125", "25D125"), reason("25D125", ""), reason("25D125", "25E230", rdma="it is Down")):
        assert "builds of macOS" not in other


def test_a_mixture_of_experts_over_rdma_between_generations_of_chips_is_warned_of() -> None:
    def reason(first: str, second: str, *, mixture: bool = True, rdma: str | None = None) -> str:
        facts = replace(SPLITS, mixture=mixture)
        macs = (mac("a", 6, facts, backends=BOTH, chip=first), mac("b", 6, facts, backends=BOTH, chip=second))
        return placed(plan(Fleet(macs, [cable("a", "b", rdma=rdma)]), Request(path=PATH, memory=NO_KV))).reason

    old, new = "Apple M3 Ultra", "Apple M5 Max"
    assert "; the Macs have chips of different generations (a M3, b M5): over RDMA, groups of models" in reason(old, new)
    for other in (
        reason(old, "Apple M3 Max"),
        reason(old, ""),
        reason(old, "Apple M99"),
        reason(old, new, mixture=False),
        reason(old, new, rdma="it is Down"),
    ):
        assert "generations" not in other


def test_no_rank_uses_a_backend_that_its_mlx_does_not_have() -> None:
    macs = (mac("a", 6, SPLITS, backends=BOTH), mac("b", 6, SPLITS))
    found = placed(plan(Fleet(macs, [cable("a", "b")]), Request(path=PATH, memory=NO_KV)))
    assert found.transport is Transport.RING and "the MLX of b has no jaccl backend" in found.reason
    only = (mac("a", 6, SPLITS, backends=frozenset({"jaccl"})), mac("b", 6, SPLITS, backends=BOTH))
    slow = [cable("a", "b", rdma="it is Down")]
    assert "it is Down" in refused(plan(Fleet(only, slow), Request(path=PATH, memory=NO_KV))).message


@pytest.mark.parametrize("wanted", [Transport.JACCL, Transport.JACCL_RING])
def test_no_transport_that_mlx_does_not_support(wanted: RequestedTransport) -> None:
    facts = model((1, 1))
    macs = (mac("a", 10, facts, mlx_version="0.32.4"), mac("b", 10, facts, mlx_version="0.32.4"))
    fleet = Fleet(macs, (cable("a", "b"),))
    found = refused(plan(fleet, Request(path=PATH, memory=NO_KV, transport=wanted, min_nodes=2)))
    assert found.reason == "TransportUnavailable"
    assert "of a, b: each of a, b runs an MLX without the jaccl backend (it needs macOS 26.3 or newer)" in found.message
    assert f"each of a, b cannot use {wanted}: its MLX 0.32.4 supports only ring" in found.message


@pytest.mark.parametrize("wanted", [Transport.JACCL, Transport.JACCL_RING])
def test_a_transport_that_mlx_does_not_support_does_not_matter_to_a_single_mac(wanted: RequestedTransport) -> None:
    fleet = Fleet([mac("a", 10, model((1, 1)))])
    found = placed(plan(fleet, Request(path=PATH, memory=NO_KV, transport=wanted)))
    assert (found.nodes, found.transport) == (("a",), Transport.NONE)


def test_four_macs_in_a_circle_are_a_jaccl_ring_and_all_joined_a_mesh() -> None:
    facts = model((4,) * 8, tensor={size: (-(-32 // size),) * size for size in (1, 2, 4)})
    macs = [mac(name, 9, facts, backends=BOTH) for name in "abcd"]
    circle = [cable(*pair) for pair in ("ab", "bc", "cd", "ad")]
    found = placed(plan(Fleet(macs, circle), Request(path=PATH, memory=NO_KV)))
    assert (found.transport, found.split, len(found.ranks)) == (Transport.JACCL_RING, Split.TENSOR, 4)
    assert [sum(device is not None for device in rank.devices) for rank in found.ranks] == [2, 2, 2, 2]
    found = placed(plan(Fleet(macs, mesh("abcd")), Request(path=PATH, memory=NO_KV)))
    assert found.transport is Transport.JACCL and len(set(found.cables)) == 6
    found = placed(plan(Fleet(macs, mesh("abcd")), Request(path=PATH, memory=NO_KV, transport=Transport.JACCL_RING)))
    assert found.transport is Transport.JACCL_RING


def test_a_pair_with_two_cables_uses_one_of_them_both_ways() -> None:
    macs = (mac("a", 6, SPLITS, backends=BOTH), mac("b", 6, SPLITS, backends=BOTH))
    other = replace(cable("a", "b", 120_000), name="a--b.2", a=End("a", "1", "x"), b=End("b", "2", "y"))
    found = placed(plan(Fleet(macs, [cable("a", "b"), other]), Request(path=PATH, memory=NO_KV)))
    assert [rank.devices for rank in found.ranks] == [(None, "x"), ("y", None)] and found.cables == ("a--b.2",)


def test_queue_pairs_of_a_device_are_a_budget() -> None:
    macs = (mac("a", 6, SPLITS, backends=BOTH), mac("b", 6, SPLITS, backends=BOTH))
    spent = replace(cable("a", "b"), b=End("b", "169.254.98.97", "rdma_b_a", queue_pairs=0))
    found = placed(plan(Fleet(macs, [spent]), Request(path=PATH, memory=NO_KV)))
    assert found.transport is Transport.RING
    none = refused(plan(Fleet(macs, [spent]), Request(path=PATH, memory=NO_KV, transport=Transport.JACCL)))
    assert "RDMA device rdma_b_a of b has no free queue pairs (one for each RDMA connection), because" in none.message
    # Behind a hub, one device connects to two Macs.
    facts = model((4, 4, 4), tensor={1: (12,), 2: None, 3: (4, 4, 4)})
    three = [mac(name, 5, facts, backends=BOTH) for name in "abc"]
    hub = [replace(c, a=replace(c.a, device="hub", queue_pairs=1)) if c.a.node == "a" else c for c in mesh("abc")]
    assert placed(plan(Fleet(three, hub), Request(path=PATH, memory=NO_KV))).transport is Transport.RING
    hub = [replace(c, a=replace(c.a, device="hub", queue_pairs=2)) if c.a.node == "a" else c for c in mesh("abc")]
    assert placed(plan(Fleet(three, hub), Request(path=PATH, memory=NO_KV))).transport is Transport.JACCL


# --- dials ---


def dialled(name: str, *peers: str, tailscale: bool = False, **more: object) -> dict[str, object]:
    lan = [(peer, f"10.0.0.{ord(peer)}") for peer in peers]
    return {"dials": Dials.of(lan + ([(peer, f"100.64.0.{ord(peer)}") for peer in peers] if tailscale else [])), **more}


def test_a_lan_address_comes_before_a_tailscale_one() -> None:
    macs = (mac("a", 6, SPLITS, **dialled("a", "b", tailscale=True)), mac("b", 6, SPLITS, **dialled("b", "a", tailscale=True)))
    found = placed(plan(Fleet(macs), Request(path=PATH, memory=NO_KV, ring_without_relay=True)))
    assert [rank.ring_address for rank in found.ranks] == ["10.0.0.97", "10.0.0.98"]
    assert found.ranks[1].coordinator == "10.0.0.97" and "over the LAN, unencrypted" in found.reason
    only = (
        mac("a", 6, SPLITS, dials=Dials.of([("b", "100.64.0.98")])),
        mac("b", 6, SPLITS, dials=Dials.of([("a", "100.64.0.97")])),
    )
    found = placed(plan(Fleet(only), Request(path=PATH, memory=NO_KV, ring_without_relay=True)))
    assert [rank.ring_address for rank in found.ranks] == ["100.64.0.97", "100.64.0.98"]


def test_a_cable_comes_before_the_lan_for_a_ring_and_after_it_for_jaccl() -> None:
    over = {"a": [("b", "10.0.0.98"), ("b", "169.254.98.97")], "b": [("a", "10.0.0.97"), ("a", "169.254.97.98")]}
    macs = tuple(mac(n, 6, SPLITS, backends=BOTH, dials=Dials.of(over[n])) for n in "ab")
    request = Request(path=PATH, memory=NO_KV, ring_without_relay=True)
    found = placed(plan(Fleet(macs, [cable("a", "b", rdma="it is Down")]), request))
    assert found.ranks[1].ring_address == "169.254.98.97" and found.ranks[1].coordinator == "169.254.97.98"
    found = placed(plan(Fleet(macs, [cable("a", "b")]), request))
    assert found.transport is Transport.JACCL and found.ranks[1].coordinator == "10.0.0.97"


def test_over_a_lan_the_supervisors_carry_a_ring_and_the_plan_names_the_cost() -> None:
    macs = tuple(mac(n, 6, SPLITS, **dialled(n, "ab".replace(n, ""))) for n in "ab")
    found = placed(plan(Fleet(macs), Request(path=PATH, memory=NO_KV)))
    assert [rank.relay for rank in found.ranks] == [Relay("10.0.0.97", False), Relay("10.0.0.98", False)]
    assert [rank.ring_address for rank in found.ranks] == [None, None] and found.cables == ("", "")
    assert "2 of 2 hops over the LAN relayed by the runner pods" in found.reason
    assert "encrypted (at most 4.1 Gb/s and about 0.3 ms a hop)" in found.reason
    unreached = refused(plan(Fleet([replace(entry, dials=Dials()) for entry in macs]), Request(path=PATH, memory=NO_KV)))
    assert "a ↔ b: no Thunderbolt cable, and no connection over the LAN" in unreached.message
    assert unreached.reason == "NotConnected"


def test_a_hop_that_one_end_alone_can_open_is_opened_from_there() -> None:
    macs = (mac("a", 6, SPLITS, **dialled("a", "b")), mac("b", 6, SPLITS, dials=Dials()))
    for bare in (False, True):
        found = placed(plan(Fleet(macs), Request(path=PATH, memory=NO_KV, ring_without_relay=bare)))
        # b is rank 0 because a can dial it; a opens the hop from b to a, at the same address of b.
        assert found.nodes == ("b", "a") and found.ranks[1].relay == Relay("10.0.0.98", True)
        assert found.ranks[0].relay == (None if bare else Relay("10.0.0.98", False))
        assert found.ranks[0].ring_address == ("10.0.0.98" if bare else None)
    assert "1 of 2 hops over the LAN, unencrypted and 1 of 2 hops over the LAN relayed" in found.reason


def test_cables_come_before_any_hop_over_the_lan() -> None:
    facts = model((4, 4, 4), tensor={1: (12,), 2: None, 3: None})
    macs = [mac(n, 6, facts, **dialled(n, *"abc".replace(n, ""))) for n in "abc"]
    two = [*macs, mac("d", 8, facts, **dialled("d", "e")), mac("e", 8, facts, **dialled("e", "d"))]
    found = placed(plan(Fleet(two, mesh("abc")), Request(path=PATH, memory=NO_KV)))
    assert sorted(found.nodes) == ["a", "b", "c"] and all(found.cables), "three Macs on cables, not two over the LAN"
    chain = [cable("a", "b"), cable("b", "c")]
    found = placed(plan(Fleet(macs, chain), Request(path=PATH, memory=NO_KV)))
    assert sorted(bool(name) for name in found.cables) == [False, True, True]
    assert "1 of 3 hops over the LAN relayed" in found.reason
    assert sum(rank.relay is not None for rank in found.ranks) == 1


def test_a_ring_runs_the_way_that_dials_work() -> None:
    facts = model((4, 4, 4))
    # each Mac has reached only the next: a ring works in one direction only.
    macs = (
        mac("a", 5, facts, **dialled("a", "c")),
        mac("c", 5, facts, **dialled("c", "b")),
        mac("b", 5, facts, **dialled("b", "a")),
    )
    found = placed(plan(Fleet(macs), Request(path=PATH, memory=NO_KV, ring_without_relay=True)))
    order = "".join(found.nodes)
    assert order in ("acb", "cba", "bac")
    assert all(rank.relay is None for rank in found.ranks)
    broken = (macs[0], macs[1], replace(macs[2], dials=Dials()))
    none = refused(plan(Fleet(broken), Request(path=PATH, memory=NO_KV, ring_without_relay=True)))
    assert "no connection over the LAN" in none.message


def test_a_mac_that_no_other_can_dial_is_not_rank_0() -> None:
    # No addresses on the cable: RDMA works, but only the LAN could carry the side channel.
    bare = cable("a", "b", a=End("a", None, "x"), b=End("b", None, "y"))
    macs = (mac("a", 6, SPLITS, backends=BOTH, **dialled("a", "b")), mac("b", 6, SPLITS, backends=BOTH, dials=Dials()))
    found = placed(plan(Fleet(macs, [bare]), Request(path=PATH, memory=NO_KV)))
    assert found.nodes == ("b", "a") and found.ranks[1].coordinator == "10.0.0.98"
    unreached = tuple(replace(entry, dials=Dials()) for entry in macs)
    none = refused(plan(Fleet(unreached, [bare]), Request(path=PATH, memory=NO_KV)))
    assert none.reason == "NotYetObserved" and "no Mac is reachable from all others yet" in none.message


def test_rank_0_is_the_mac_that_most_others_have_dialled() -> None:
    facts = model((3, 3, 3))
    macs = [mac("a", 4, facts, **dialled("a", "c")), mac("b", 4, facts, **dialled("b", "c")), mac("c", 4, facts, dials=Dials())]
    jaccl = [replace(entry, backends=BOTH) for entry in macs]
    found = placed(plan(Fleet(jaccl, mesh("abc")), Request(path=PATH, memory=NO_KV)))
    assert found.nodes[0] == "c", "all can dial all by cable; c alone was reached over Ethernet, which a side channel prefers"


# --- memory ---


@given(st.integers(1, 200), st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_largest_remainder(total: int, weights: list[int]) -> None:
    if total < len(weights):
        with pytest.raises(ValueError, match="need at least"):
            largest_remainder(total, weights)
        return
    shares = largest_remainder(total, weights)
    assert sum(shares) == total and min(shares) >= 1
    exact = [total * weight / max(1, sum(weights)) for weight in weights]
    if sum(weights) and min(exact) >= 1:
        assert all(abs(share - want) < 1 for share, want in zip(shares, exact, strict=True))


def test_61_layers_over_512_256_256_gb_are_31_15_15() -> None:
    assert largest_remainder(61, [512, 256, 256]) == (31, 15, 15)
    facts = model((10 * GIB,) * 61)
    macs = (mac("a", 512 * GIB, facts), mac("b", 256 * GIB, facts), mac("c", 256 * GIB, facts))
    found = placed(plan(Fleet(macs, mesh("abc", rdma="it is off")), Request(path=PATH, memory=NO_KV, min_nodes=3)))
    assert [(rank.node, rank.layers) for rank in found.ranks] == [("a", (30, 61)), ("b", (15, 30)), ("c", (0, 15))]
    assert "layers 31/15/15, in proportion to free memory" in found.reason


def test_shares_move_when_layers_are_uneven() -> None:
    facts = model((1, 1, 1, 9))
    spans = Needs(facts, NO_KV).share_layers([9, 9])
    assert spans == (((3, 4), (0, 3)), False)
    # A greedy division fails: the second rank has room only for the small layer.
    assert Needs(model((2, 1, 2, 2)), NO_KV).share_layers([4, 1, 9]) == (((2, 4), (1, 2), (0, 1)), False)
    assert Needs(model((2, 1, 2, 2)), NO_KV).share_layers([3, 1, 3]) is None


def test_kv_counts_what_the_gateway_admits() -> None:
    memory = MemoryRequest(context_tokens=100, concurrent_requests=3, cached_tokens=250)
    assert kv_bytes(KVLayer(0, 2), memory) == 2 * (3 * 100 + 250)
    assert kv_bytes(KVLayer(0, 2, window_tokens=10), memory) == 2 * (3 * 10 + 250)
    assert kv_bytes(KVLayer(7, 0), memory) == 7 * (3 + 3)
    assert kv_bytes(KVLayer(0, 2, tensor_split=True), memory, 4) == 275
    assert kv_bytes(KVLayer(0, 2), memory, 4) == 1100


def test_headroom_and_workspace_are_reserved() -> None:
    facts = ModelFacts(PATH, tensor=(TensorFacts(1, (100,)),), prefill_bytes=50)
    assert Needs(facts, MemoryRequest(1, 1, 0, 10)).tensor(1) == (165,)


def test_workspace_grows_with_the_context() -> None:
    facts = ModelFacts(
        PATH, tensor=(TensorFacts(1, (100,)),), layer_bytes=(60, 40), prefill_bytes=50, prefill_bytes_per_token=3
    )
    memory = MemoryRequest(context_tokens=20, concurrent_requests=4, cached_tokens=0, headroom_percent=0)
    needs = Needs(facts, memory)
    assert needs.tensor(1) == (100 + 50 + 3 * 20,), "one step at a time, whatever the requests"
    assert needs.span(0, 1) == 60 + 50 + 3 * 20
    need = needs.bounds(Split.PIPELINE, 2)
    assert not isinstance(need, str) and (need.least, need.together, need.even) == (40 + 110, 100 + 2 * 110, False)
    assert needs.share_layers([40 + 110, 60 + 110]) == (((1, 2), (0, 1)), True)
    assert needs.share_layers([40 + 110, 60 + 109]) is None


def test_split_follows_model_transport_and_wish() -> None:
    fleet = Fleet((mac("a", 6, SPLITS), mac("b", 6, SPLITS)), (cable("a", "b"),))
    wishes: tuple[tuple[RequestedSplit, Split], ...] = ((Split.AUTO, Split.PIPELINE), (Split.TENSOR, Split.TENSOR))
    for wanted, split in wishes:
        assert placed(plan(fleet, Request(path=PATH, memory=NO_KV, split=wanted))).split is split
    whole = model((5, 5), tensor={1: (10,), 2: None})
    fleet = Fleet((mac("a", 6, whole), mac("b", 6, whole)), (cable("a", "b"),))
    none = refused(plan(fleet, Request(path=PATH, memory=NO_KV, split=Split.TENSOR)))
    assert "heads do not divide" in none.message or any("heads do not divide" in miss.message for miss in none.near_misses)
    jaccl = Fleet((mac("a", 6, whole, backends=BOTH), mac("b", 6, whole, backends=BOTH)), (cable("a", "b"),))
    found = placed(plan(jaccl, Request(path=PATH, memory=NO_KV)))
    assert (found.transport, found.split) == (Transport.JACCL, Split.PIPELINE), "the dry run allows nothing else"
    uneven = Fleet((mac("a", 8, SPLITS, backends=BOTH), mac("b", 3, model((5, 5)), backends=BOTH)), (cable("a", "b"),))
    assert isinstance(plan(uneven, Request(path=PATH, memory=NO_KV)), Unplaceable)
    small = model((2,) * 5, tensor={1: (10,), 2: (5, 5)})
    uneven = Fleet((mac("a", 8, small, backends=BOTH), mac("b", 4, small, backends=BOTH)), (cable("a", "b"),))
    assert placed(plan(uneven, Request(path=PATH, memory=NO_KV))).split is Split.PIPELINE, "shares must be uneven"


def test_macs_with_another_mlx_or_another_model_do_not_mix() -> None:
    macs = (mac("a", 5, model((3, 3))), mac("b", 5, model((3, 2))))
    found = plan(Fleet(macs, (cable("a", "b"),)), Request(path=PATH, memory=NO_KV))
    assert isinstance(found, Unplaceable) or len(found.ranks) == 1
    macs = (mac("a", 6, SPLITS, mlx_lm_version="0.32.2"), mac("b", 6, SPLITS, mlx_lm_version="0.32.1"))
    assert isinstance(plan(Fleet(macs, (cable("a", "b"),)), Request(path=PATH, memory=NO_KV)), Unplaceable)


def test_a_repository_may_lie_elsewhere_on_every_mac() -> None:
    one, other = model((3,)), ModelFacts("/else/a", "org/a", bytes=3, tensor=(TensorFacts(1, (3,)),), layer_bytes=(3,))
    macs = (mac("a", 2, one), mac("b", 4, other))
    found = placed(plan(Fleet(macs), Request(repository="org/a", memory=NO_KV)))
    assert (found.nodes, found.model_path) == (("b",), "/else/a")


# --- eligible Macs ---


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ready": False}, "is not Ready"),
        ({"schedulable": False}, "is cordoned"),
        ({"quarantine": "StackHung"}, "is quarantined until it reboots: StackHung"),
        ({"taints": (Taint("own", "x"),)}, "taint own=x:NoSchedule"),
        ({"address": None}, "no InternalIP"),
        ({"profiled": False}, "no NodeProfile"),
        ({"models": ()}, "does not have /models/a on disk; copy it there"),
        ({"models": (ModelFacts(PATH, complete=False, problem="model-2 is missing"),)}, "model-2 is missing"),
        ({"models": (ModelFacts(PATH, sized=False),)}, "see the log of its agent"),
    ],
)
def test_who_may_not_and_why(change: dict[str, object], text: str) -> None:
    values: dict[str, object] = {"name": "a", "address": "10.0.0.1", "free_bytes": 10, "models": (model((1,)),), **change}
    found = refused(plan(Fleet((Mac(**values),)), Request(path=PATH, memory=NO_KV)))  # type: ignore[arg-type]
    assert text in found.message and "a " in found.message


def test_selector_and_tolerations() -> None:
    facts = model((1,))
    macs = (
        mac("a", 10, facts, labels={"kind": "old"}),
        mac("b", 10, facts, labels={"kind": "new"}, taints=(Taint("own", "x"),)),
        mac("c", 10, facts, labels={"kind": "new"}, taints=(Taint("own", "y", "PreferNoSchedule"),)),
    )
    request = Request(path=PATH, memory=NO_KV, selector={"kind": "new"})
    assert placed(plan(Fleet(macs), request)).nodes == ("c",)
    for toleration in (Toleration("own", value="x"), Toleration("own", exists=True), Toleration(exists=True)):
        request = Request(path=PATH, memory=NO_KV, selector={"kind": "new"}, tolerations=(toleration,), avoid={"c": "is away"})
        assert placed(plan(Fleet(macs), request)).nodes == ("b",)
    request = Request(path=PATH, memory=NO_KV, tolerations=(Toleration("own", value="z"),), avoid={"a": "x", "c": "x"})
    assert isinstance(plan(Fleet(macs), request), Unplaceable)


# --- preferences ---


def test_preferences() -> None:
    facts = model((4,))
    big, small, used = mac("a", 30, facts), mac("b", 5, facts), mac("c", 4, facts, in_use=True)
    found = placed(plan(Fleet((big, small, used)), Request(path=PATH, memory=NO_KV), runners_up=2))
    assert found.nodes == ("b",), "the smallest Mac that is not in use"
    assert [(entry.nodes, entry.why[:5]) for entry in found.runners_up] == [(("a",), "uses "), (("c",), "share")]
    facts = model((3, 3))
    macs = tuple(mac(name, 5, facts) for name in "abc")
    fleet = Fleet(macs, (cable("a", "b", 40_000), cable("b", "c", 80_000)))
    found = placed(plan(fleet, Request(path=PATH, memory=NO_KV), runners_up=1))
    assert set(found.nodes) == {"b", "c"}, "the fastest cable"
    assert "14 Gb/s" in found.runners_up[0].why
    slower = Fleet(macs, (cable("a", "b", 40_000), cable("b", "c", 80_000, ring_mbps=9_000)))
    assert set(placed(plan(slower, Request(path=PATH, memory=NO_KV))).nodes) == {"a", "b"}, "what was measured counts"


def test_macs_that_have_the_files_are_chosen_if_all_else_is_equal() -> None:
    def chosen(facts: ModelFacts, absent: str, *cables: Cable, **free: int) -> set[str]:
        macs = tuple(mac(name, free.get(name, 5), facts, absent_bytes=6 if name in absent else 0) for name in "abcd")
        return set(placed(plan(Fleet(macs, cables), Request(path=PATH, memory=NO_KV))).nodes)

    alone, two = model((4,)), model((3, 3))
    assert chosen(alone, "abd") == {"c"}
    assert chosen(alone, "abd", c=6) == {"a"}, "a larger Mac stays free"
    assert chosen(two, "ab", cable("a", "b"), cable("c", "d")) == {"c", "d"}
    assert chosen(two, "abc", cable("a", "b"), cable("c", "d")) == {"c", "d"}, "less is to be fetched"
    assert chosen(two, "ab", cable("a", "b"), cable("c", "d", 40_000)) == {"a", "b"}, "the faster cable"


@pytest.mark.parametrize(
    ("transport", "measured", "unmeasured"), [(Transport.RING, 30_000, 40_000), (Transport.JACCL, 60_000, 80_000)]
)
def test_a_measured_cable_is_compared_with_what_others_typically_carry(
    transport: RequestedTransport, measured: int, unmeasured: int
) -> None:
    facts = model((3, 3), tensor={1: (6,), 2: (3, 3)})
    macs = [mac(name, 5, facts, backends=BOTH) for name in "abc"]
    cables = [cable("a", "b", unmeasured), cable("b", "c", 80_000, ring_mbps=measured, rdma_mbps=measured)]
    assert set(placed(plan(Fleet(macs, cables), Request(path=PATH, memory=NO_KV, transport=transport))).nodes) == {"b", "c"}


def test_rates_that_hardly_differ_do_not_decide() -> None:
    facts = model((3, 3), tensor={1: (6,), 2: (3, 3)})
    ultras = [mac(name, 5, facts, backends=BOTH, memory_bandwidth=780_000 + i) for i, name in enumerate("cd")]
    minis = [mac(name, 5, facts, backends=BOTH, memory_bandwidth=250_000) for name in "ab"]
    cables = [cable("a", "b", rdma_mbps=56_000), cable("c", "d", rdma_mbps=55_000)]
    found = placed(plan(Fleet([*minis, *ultras], cables), Request(path=PATH, memory=NO_KV)))
    assert set(found.nodes) == {"c", "d"}
    more = [mac(name, 5, facts, backends=BOTH, memory_bandwidth=800_000) for name in "gh"]
    cables = [cable("c", "d", rdma_mbps=56_000), cable("g", "h", rdma_mbps=50_000)]
    found = placed(plan(Fleet([*ultras, *more], cables), Request(path=PATH, memory=NO_KV)))
    assert set(found.nodes) == {"c", "d"}, "equal memory, so the links decide"


def test_transport_comes_before_the_number_of_macs_and_one_mac_before_all() -> None:
    facts = model((4,) * 6, tensor={1: (24,), 3: (8, 8, 8)})
    three = [mac(name, 9, facts, backends=BOTH) for name in "abc"]
    two = [mac(name, 14, facts) for name in "de"]
    found = placed(plan(Fleet([*three, *two], [*mesh("abc"), cable("d", "e")]), Request(path=PATH, memory=NO_KV), runners_up=3))
    assert found.transport is Transport.JACCL and len(found.ranks) == 3
    assert any(entry.nodes in (("d", "e"), ("e", "d")) and "TCP ring" in entry.why for entry in found.runners_up)
    one = mac("f", 24, facts)
    assert placed(plan(Fleet([*three, *two, one], mesh("abc")), Request(path=PATH, memory=NO_KV))).nodes == ("f",)
    found = placed(plan(Fleet([*three, one], mesh("abc")), Request(path=PATH, memory=NO_KV, min_nodes=2)))
    assert len(found.ranks) == 3


def test_a_group_is_told_about_a_better_cable_between_its_own_macs() -> None:
    """It took the LAN or another cable while the best one was out."""
    fleet = Fleet(
        tuple(mac(name, 6, SPLITS) for name in "ab"), [cable("a", "b"), replace(cable("a", "b", 20_000), name="slow")]
    )
    request = Request(path=PATH, memory=NO_KV, current=("a", "b"))
    assert better(fleet, request, Transport.RING, ("a--b", "a--b")) is None
    assert better(fleet, request, Transport.RING) is None, "a plan of an earlier version names no cables"
    for asked in (request, replace(request, policy=PlacementPolicy.FEWEST)):
        over_lan = better(fleet, asked, Transport.RING, ("", ""))
        assert over_lan == "a, b; currently TCP ring over a LAN instead of TCP ring"
    slower = better(fleet, request, Transport.RING, ("slow", "slow"))
    assert slower is not None and slower.startswith("a, b; currently slowest hop 7 Gb/s")


def test_a_group_stays_and_a_better_placement_is_reported() -> None:
    macs = tuple(mac(name, 6, SPLITS, backends=BOTH) for name in "abcd")
    fleet = Fleet(macs, [cable("a", "b", rdma="it is Down"), cable("c", "d")])
    request = Request(path=PATH, memory=NO_KV, current=("a", "b"))
    found = placed(plan(fleet, request))
    assert found.kept and found.nodes == ("a", "b") and found.transport is Transport.RING
    assert better(fleet, request) == "c, d; currently TCP ring instead of JACCL mesh"
    assert better(fleet, replace(request, current=("c", "d"))) is None
    # Changes to other Macs make no difference.
    assert better(fleet, request, Transport.RING, ("a--b", "a--b")) == "c, d; currently TCP ring instead of JACCL mesh"
    other = fleet.changed(macs=[replace(macs[3], free_bytes=600)])
    assert placed(plan(other, request)).nodes == ("a", "b")
    assert not placed(plan(fleet, replace(request, avoid={"a": "has failed"}))).kept


# --- explanations ---


def test_an_empty_fleet() -> None:
    assert refused(plan(Fleet(), Request(path=PATH))).reason == "NoMacs"


def test_missing_memory_is_reported_in_bytes() -> None:
    facts = model((100 * GIB,) * 4)
    macs = tuple(mac(name, 128 * GIB, facts) for name in "abc")
    found = refused(plan(Fleet(macs, mesh("abc", rdma="off")), Request(path=PATH, memory=NO_KV)))
    assert found.reason == "NoRoom"
    ring = next(miss for miss in found.near_misses if miss.transport is Transport.RING)
    assert ring.message == "TCP ring of a, b, c: a has 128 GiB free, needs 200 GiB as one of 3 ranks (Pipeline)"
    assert ring.missing_bytes == 72 * GIB, "layers are whole"
    alone = next(miss for miss in found.near_misses if miss.transport is Transport.NONE)
    assert alone.message == "a has 128 GiB free, the whole model needs 400 GiB"


def test_the_best_near_miss_of_each_transport_comes_first() -> None:
    facts = model((3, 3, 3), tensor={1: (9,), 3: (3, 3, 3)})
    macs = [mac(name, 4, facts, backends=BOTH) for name in "abc"]
    cables = [cable("a", "b"), cable("b", "c", 40_000, "the cable runs at 40 Gb/s; RDMA needs Thunderbolt 5 (above 40 Gb/s)")]
    found = refused(plan(Fleet(macs, cables), Request(path=PATH, memory=NO_KV)))
    first = {miss.transport: miss.message for miss in reversed(found.near_misses)}
    assert (
        "b ↔ c: the cable runs at 40 Gb/s" in first[Transport.JACCL] and "a ↔ c: no Thunderbolt cable" in first[Transport.JACCL]
    )
    assert first[Transport.RING].endswith("a ↔ c: no Thunderbolt cable") or "c ↔ a: no Thunderbolt" in first[Transport.RING]
    assert found.reason == "NotConnected" and len(found.message) < 1500


def test_a_cable_without_addresses_is_no_ring() -> None:
    facts = model((5, 5))
    macs = (mac("a", 6, facts), mac("b", 6, facts))
    dark = cable("a", "b", b=End("b"))
    found = refused(plan(Fleet(macs, (dark,)), Request(path=PATH, memory=NO_KV, min_nodes=2)))
    assert found.reason == "NotConnected" and "b has no address at its end of the cable" in found.message
    found = refused(plan(Fleet(macs, (cable("a", "b", connected=False),)), Request(path=PATH, memory=NO_KV, min_nodes=2)))
    assert "the cable is unplugged" in found.message


def test_a_thousand_macs_are_not_all_listed() -> None:
    facts = model((5, 5))
    macs = [mac(f"m{i:04d}", 1, facts, schedulable=i % 2 == 0) for i in range(1000)]
    found = refused(plan(Fleet(macs), Request(path=PATH, memory=NO_KV)))
    assert len(found.message) < 1500 and len(found.macs) == 1000


# --- bounds ---


def all_joined(count: int, facts: ModelFacts, free: int) -> Fleet:
    names = [f"m{i:02d}" for i in range(count)]
    macs = [Mac(name, f"10.0.0.{i}", free, models=(facts,), backends=BOTH) for i, name in enumerate(names)]
    cables = [
        Cable(f"{one}--{other}", End(one, "1", f"d{other}"), End(other, "2", f"d{one}"), 80_000, rdma_problem=None)
        for one, other in itertools.combinations(names, 2)
    ]
    return Fleet(macs, cables)


def test_a_hard_graph_ends_with_the_best_found_and_says_so() -> None:
    # Uneven layers that fit in no order: every set of Macs looks equally good.
    facts = model((7, 7, 7, 7, 7, 6, 6, 6), tensor={1: (53,)})
    fleet = all_joined(64, facts, 8)
    found = refused(plan(fleet, Request(path=PATH, memory=NO_KV, max_nodes=7), max_steps=5_000))
    assert not found.proven and "the search reached its step limit" in found.message
    easy = placed(plan(all_joined(64, model((4,) * 16), 9), Request(path=PATH, memory=NO_KV)))
    assert easy.proven and len(easy.ranks) == 8 and easy.nodes == tuple(f"m{i:02d}" for i in range(8))


def test_the_best_found_before_the_limit_is_returned() -> None:
    macs = list(all_joined(24, model((4,) * 16), 9).macs.values())
    unlike = [replace(entry, free_bytes=9 + (i * 7919) % 13) for i, entry in enumerate(macs)]
    fleet = Fleet(unlike, all_joined(24, model((4,) * 16), 9).cables.values())
    found = placed(plan(fleet, Request(path=PATH, memory=NO_KV, transport=Transport.RING), max_steps=200))
    whole = placed(plan(fleet, Request(path=PATH, memory=NO_KV, transport=Transport.RING)))
    assert found.score is not None and whole.score is not None and whole.score <= found.score


WAYS = (Transport.JACCL, Transport.JACCL_RING, Transport.RING)


def _misses(found: Placement | Unplaceable) -> dict[Transport, str]:
    """The best near miss of each transport."""
    return {miss.transport: miss.message for miss in reversed(refused(found).near_misses)}


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ({"schedulable": False}, "c is cordoned (kubectl uncordon c)"),
        ({"models": ()}, "c does not have /models/a on disk; copy it there"),
        ({"ready": False}, "c is not Ready"),
        ({"mlx_version": "0.31.0"}, "c runs MLX 0.31.0 with mlx-lm (unknown), the others MLX (unknown) with mlx-lm (unknown)"),
        (None, "needs 3 Macs, 2 available: join 1 more to the cluster (docs/install.md)"),
    ],
)
def test_too_few_macs_are_reported_with_what_would_make_them_enough(what: dict[str, object] | None, text: str) -> None:
    facts = model((2,) * 4, tensor={1: (8,), 3: (3, 3, 3)})
    macs = [mac(name, 6, facts, backends=BOTH) for name in "abc"]
    fleet = Fleet([*macs[:2], *([] if what is None else [replace(macs[2], **what)])], mesh("abc"))  # type: ignore[arg-type]
    found = plan(fleet, Request(path=PATH, memory=NO_KV, min_nodes=3))
    misses = _misses(found)
    assert refused(found).reason == "NotEnoughMacs"
    assert all(text in misses[transport] for transport in WAYS), misses
    assert refused(found).message.count(text) == 1, "a problem of all transports is named once"


def test_an_ineligible_mac_is_suggested_with_its_problem_and_that_of_its_cables() -> None:
    macs = [mac("a", 6, SPLITS, backends=BOTH), mac("b", 6, SPLITS, backends=BOTH, schedulable=False)]
    macs.append(replace(mac("c", 6, SPLITS, backends=BOTH), models=()))
    misses = _misses(plan(Fleet(macs, (cable("a", "b", rdma="it is Down"),)), Request(path=PATH, memory=NO_KV)))
    assert misses[Transport.JACCL] == "JACCL mesh of a, b: b is cordoned (kubectl uncordon b); a ↔ b: it is Down"
    assert misses[Transport.RING] == "TCP ring of a, b: b is cordoned (kubectl uncordon b)"
    # No single Mac is large enough, even if uncordoned; the large one would be.
    assert "the whole model needs" in misses[Transport.NONE]
    big = mac("d", 60, SPLITS, schedulable=False)
    assert _misses(plan(Fleet([*macs, big]), Request(path=PATH, memory=NO_KV)))[Transport.NONE] == (
        "one Mac: d is cordoned (kubectl uncordon d)"
    )


def test_a_mac_that_the_selector_leaves_out_is_no_first_advice() -> None:
    macs = [mac("a", 6, SPLITS, labels={"pool": "one"}), mac("b", 60, SPLITS)]
    found = _misses(plan(Fleet(macs), Request(path=PATH, memory=NO_KV, selector={"pool": "one"}, max_nodes=1)))
    assert "the whole model needs" in found[Transport.NONE]


def test_no_mac_that_may_take_a_rank_is_a_near_miss_of_every_transport() -> None:
    macs = [mac(name, 6, SPLITS, backends=BOTH, schedulable=False) for name in "ab"]
    misses = _misses(plan(Fleet(macs, mesh("ab")), Request(path=PATH, memory=NO_KV, min_nodes=2)))
    assert all("a is cordoned" in misses[transport] and "b is cordoned" in misses[transport] for transport in WAYS)
    many = Request(path=PATH, memory=NO_KV, min_nodes=9, transport=Transport.JACCL)
    assert "supports at most 8 Macs, spec.nodes.min is 9" in refused(plan(Fleet(macs), many)).message
