"""Which probe runs now: the pure function, the gates, the lock, and the ledger."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thunderfleet_agent.cli import _parser
from thunderfleet_agent.measure.ledger import FILE, Ledger
from thunderfleet_agent.measure.measure_cli import UNITS
from thunderfleet_agent.measure.schedule import gates, view
from thunderfleet_agent.measure.schedule.due import (
    BACKOFF,
    WINDOW_SECONDS,
    History,
    Plan,
    backoff,
    due,
    fraction,
    room,
    stale,
    when,
)
from thunderfleet_agent.measure.schedule.figures import Figures, moved, result
from thunderfleet_agent.measure.schedule.freshness import benchmarks_fresh
from thunderfleet_agent.measure.schedule.probes import (
    LOCAL,
    NEEDS,
    Key,
    Need,
    Probe,
    ProbeKind,
    Target,
    local_probes,
    rdma_probe,
    socket_probe,
)
from thunderfleet_agent.measure.schedule.settings import MeasureSettings, parse
from thunderfleet_agent.measure.session.probe_lock import MacBusy, ProbeLock
from thunderfleet_agent.measure.session.rates import rate_mbps, trips
from thunderfleet_agent.measure.worker import gpu
from thunderfleet_agent.measure.worker.child import local_measurements
from thunderfleet_agent.measure.worker.warm_up import best, is_steady
from thunderfleet_agent.metrics import _FIGURES
from thunderfleet_crds.kinds.nodeprofile import Agent, GroupUse, NodeProfile, NodeProfileStatus, Reachability
from thunderfleet_crds.kinds.thunderboltlink import LinkEnd, ThunderboltLink, ordered
from thunderfleet_crds.vocabulary import MeasurementTransport, ReachabilityState

from tests.support import yamltext
from tests.support.generated import examples

WALL = datetime(2026, 3, 1, 12, tzinfo=UTC)
GPU = Probe(Key(ProbeKind.GPU), 3600, 20)
CABLE = Probe(Key(ProbeKind.SOCKET, Target("b", "10.0.0.2", "a.tb1--b.tb1")), 300, 13, 100)
LAN = Probe(Key(ProbeKind.SOCKET, Target("b", "192.168.0.2")), 300, 13, 10)
RDMA = Probe(Key(ProbeKind.RDMA, Target("b", "", "a.tb1--b.tb1")), 21600, 80, 100)
ALL = (GPU, CABLE, LAN, RDMA)
LOCAL_FIGURES = {
    ProbeKind.GPU: Figures(flops=27 * 10**12, mlx_version="0.32.4"),
    ProbeKind.MEMORY: Figures(megabytes_per_second=702_000),
}
"""For each probe of this Mac alone, figures that it may have."""


def plan(history: dict[Key, History], now: float, closed: dict[Key, str] | None = None, **more: object) -> Plan:
    options = {"node": "a", "started": 0.0, "spread": 30.0, "now": now, **more}
    spent, budget = options.pop("spent", ()), options.pop("budget", 10**9)
    return due(ALL, history, closed or {}, spent, budget, **options)  # type: ignore[arg-type]


def test_defaults_are_those_of_the_chart() -> None:
    values = yamltext.load((Path(__file__).parents[4] / "charts/thunderfleet/values.yaml").read_text())
    chart = values["agent"]["measure"]
    assert chart == MeasureSettings().model_dump(mode="json", by_alias=True), "agent.measure of values.yaml lacks a setting"
    assert parse(json.dumps(chart)) == MeasureSettings()


def test_what_is_missing_runs_and_what_is_fresh_does_not() -> None:
    assert plan({}, 30.0).probe is not None
    fresh = {probe.key: History(measured=1000.0) for probe in ALL}
    later = plan(fresh, 1001.0)
    assert later.probe is None and 1000 + 0.9 * 300 <= later.wake <= 1300
    stale_gpu = {**fresh, GPU.key: History(measured=1000.0 - 3600)}
    assert plan(stale_gpu, 1001.0).probe == GPU


def test_macs_that_boot_together_begin_apart() -> None:
    first = sorted(when(GPU, History(), f"studio-{n}", 0.0, 30.0) for n in range(30))
    assert first[0] < 5 and first[-1] > 25 and len(set(first)) == 30
    assert plan({}, 30 * fraction("a") - 0.001).probe is None


def test_a_closed_gate_wakes_no_probe_and_stops_no_other() -> None:
    closed = {probe.key: "in use" for probe in (GPU, CABLE, RDMA)}
    assert plan({}, 30.0, closed).probe == LAN
    assert plan({}, 30.0, {probe.key: "in use" for probe in ALL}) == Plan(None, math.inf)


def test_failures_back_off_doubling_to_a_limit() -> None:
    waits = [backoff("a", GPU, failures) for failures in range(1, 12)]
    assert 22 <= waits[0] <= 30 and max(waits) <= BACKOFF.limit
    assert all(later > 1.4 * sooner for sooner, later in itertools.pairwise(waits[:6]))
    history = {probe.key: History(measured=100.0) for probe in ALL if probe != GPU}
    history[GPU.key] = History(failures=3, failed=100.0)
    found = plan(history, 101.0)
    assert found.probe is None and found.wake == 100 + backoff("a", GPU, 3)


@pytest.mark.parametrize("ttl", [10, 20, 300, 3600, 21600])
def test_a_probe_that_fails_is_tried_at_least_as_often_as_one_that_succeeds(ttl: int) -> None:
    probe = replace(RDMA, ttl=ttl)
    waits = [backoff("a", probe, failures) for failures in range(1, 40)]
    assert waits[0] <= min(30, ttl) and 0.75 * min(3600, ttl) <= waits[-1] <= min(3600, ttl)
    assert when(probe, History(measured=0.0, failures=39, failed=100.0), "a", 0.0, 0.0) <= 100.0 + ttl
    assert Ledger("a").fail(probe, "no answer", WALL, 0.0) == waits[0], "what is shown is what is waited"


histories = st.builds(
    History,
    measured=st.none() | st.floats(0, 20_000),
    failures=st.integers(0, 5),
    failed=st.floats(0, 20_000) | st.just(-math.inf),
    not_before=st.floats(0, 30_000) | st.just(-math.inf),
)


@given(
    history=st.fixed_dictionaries({}, optional={probe.key: histories for probe in ALL}),
    closed=st.sets(st.sampled_from([probe.key for probe in ALL])),
    spent=st.lists(st.tuples(st.floats(0, 20_000), st.integers(1, 200)), max_size=6),
    budget=st.integers(50, 300),
    now=st.floats(0, 30_000),
)
@settings(max_examples=examples(150))
def test_what_runs_is_open_due_and_within_the_budget(
    history: dict[Key, History],
    closed: set[Key],
    spent: list[tuple[float, int]],
    budget: int,
    now: float,
) -> None:
    shut = dict.fromkeys(closed, "in use")
    found = plan(history, now, shut, spent=spent, budget=budget)
    if found.probe is None:
        assert found.wake > now
        # At that time something changes: with the byte budget restored, a probe runs or waits for a later time.
        return
    probe = found.probe
    assert probe.key not in closed
    assert when(probe, history.get(probe.key, History()), "a", 0.0, 30.0) <= now
    minute = sum(count for at, count in spent if at > now - WINDOW_SECONDS)
    assert not probe.shared_bytes or minute + probe.shared_bytes <= budget or minute == 0


def test_a_cable_does_not_wait_for_bytes_and_no_probe_overtakes_one_that_waits() -> None:
    old = {GPU.key: History(measured=900.0), RDMA.key: History(measured=900.0)}
    full = [(1000.0, 95)]
    assert plan(old | {CABLE.key: History(measured=950.0)}, 1001.0, spent=full, budget=100).probe is None
    assert plan(old, 1001.0, spent=full, budget=100).probe == CABLE
    waits = plan(old | {CABLE.key: History(measured=950.0)}, 1001.0, spent=full, budget=100)
    assert waits.wake == 1060.0


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 100)), max_size=8), st.integers(1, 100), st.integers(1, 300))
def test_when_bytes_fit_again_they_do(spent: list[tuple[int, int]], wanted: int, budget: int) -> None:
    at = room(spent, budget, wanted, 100.0)
    assert at >= 100.0
    left = sum(count for when, count in spent if when > at - WINDOW_SECONDS)
    assert left + wanted <= budget or left == 0


# --- gates ---


def group(links: tuple[str, ...] = (), nodes: tuple[str, ...] = ("a", "b")) -> GroupUse:
    return GroupUse(name="default/qwen-0", epoch=1, nodes=nodes, links=links)


def test_until_the_groups_are_known_nothing_runs() -> None:
    assert all(gates.blocked_by(probe, None) for probe in ALL)
    assert not any(gates.blocked_by(probe, ()) for probe in ALL)


def test_a_group_closes_the_gpu_its_cables_and_the_way_to_its_members() -> None:
    other = Probe(Key(ProbeKind.SOCKET, Target("c", "10.0.1.2", "a.tb2--c.tb1")), 300, 13, 100)
    by_cable = (group(links=("a.tb1--b.tb1",)),)
    assert "default/qwen-0" in (gates.blocked_by(GPU, by_cable) or "")
    assert all(gates.blocked_by(probe, by_cable) for probe in (CABLE, LAN, RDMA))
    assert gates.blocked_by(other, by_cable) is None
    far = Probe(Key(ProbeKind.SOCKET, Target("z", "192.168.0.9")), 300, 13, 10)
    assert gates.blocked_by(far, by_cable) is None
    assert "network" in (gates.blocked_by(far, (group(),)) or "")
    assert RDMA.needs == {Need.PEER, Need.LINK, Need.GPU}
    assert CABLE.needs == {Need.PEER, Need.LINK} and LAN.needs == {Need.PEER}


def test_a_probe_of_this_mac_alone_is_known_wherever_it_is_run_shown_or_kept() -> None:
    how = "see on how to add a probe: measure/schedule/probes.py"
    assert set(LOCAL_FIGURES) == set(LOCAL), f"LOCAL_FIGURES of this file; {how}"
    assert set(local_measurements()) == set(LOCAL), f"measure/worker/child.py; {how}"
    assert set(UNITS) == set(LOCAL), f"measure/measure_cli.py; {how}"
    for kind in LOCAL:
        assert _parser().parse_args(["measure", kind.value]).what == kind, how
    shown = {figure for _, _, figure, _ in _FIGURES}
    for kind, figures_of in LOCAL_FIGURES.items():
        names = figures_of.model_dump(exclude_none=True).keys() - {"mlx_version"}
        assert names and names <= shown, f"{kind}: _FIGURES of metrics.py; {how}"
        assert figures_of.words() != "no figures", f"{kind}: Figures.words; {how}"
        without_version = figures_of.model_copy(update={"mlx_version": None})
        assert moved(Figures(), without_version), f"{kind}: moved of measure/schedule/figures.py; {how}"


def test_every_kind_of_probe_says_what_it_needs() -> None:
    assert set(NEEDS) == set(ProbeKind)
    assert all(probe.needs == {Need.GPU} for probe in local_probes(MeasureSettings()))


def test_a_probe_between_two_macs_counts_both_ways_and_only_on_the_shared_network() -> None:
    chosen = parse(
        json.dumps(
            {"sockets": {"bytes": 2**20, "cableBytes": 2**24, "seconds": 2}, "rdma": {"bytes": 2**22, "everySeconds": 50}}
        )
    )
    lan, cable, rdma = socket_probe(chosen, LAN.target), socket_probe(chosen, CABLE.target), rdma_probe(chosen, RDMA.target)
    assert [(probe.key, probe.ttl, probe.bytes, probe.shared_bytes) for probe in (lan, cable, rdma)] == [
        (LAN.key, 300, 2 * 2**20, 2 * 2**20),
        (CABLE.key, 300, 2 * 2**24, 0),
        (RDMA.key, 50, 2 * 2**22, 0),
    ]


# --- the lock ---


def test_a_mac_is_in_one_probe() -> None:
    lock = ProbeLock("b")
    with lock.granted("c"):
        with pytest.raises(MacBusy, match="with c"), lock.granted("a"):
            pass
        with pytest.raises(MacBusy), lock.asking("a"):
            pass
        with pytest.raises(MacBusy), lock.alone():
            pass
    assert lock.peer is None


def test_a_mac_that_measures_its_gpu_refuses_all_requests() -> None:
    lock = ProbeLock("b")
    with lock.alone(), pytest.raises(MacBusy, match="b is measuring its own GPU"), lock.granted("a"):
        pass


def test_who_asks_gives_way_to_a_smaller_name_only() -> None:
    lock = ProbeLock("b")
    with lock.asking("c") as hold:
        with pytest.raises(MacBusy), lock.granted("d"):
            pass
        with lock.granted("a"), pytest.raises(MacBusy, match="accepted a request from a first"):
            lock.confirm(hold)
    assert lock.peer is None
    with lock.asking("c") as hold:
        lock.confirm(hold)
        with pytest.raises(MacBusy), lock.granted("a"):
            pass
        assert lock.peer == "c"
    assert lock.peer is None


@given(st.data())
@settings(max_examples=examples(200))
def test_macs_that_request_each_other_never_deadlock_and_one_measures(data: st.DataObject) -> None:
    """Requests and answers in any order: never two probes on one Mac, no deadlock, and the first Mac by name succeeds."""
    names = ["a", "b", "c", "d", "e"][: data.draw(st.integers(2, 5))]
    locks = {name: ProbeLock(name) for name in names}
    asks, grants, measuring = {}, {}, set()
    for name in names:
        peer = data.draw(st.sampled_from([other for other in names if other != name]))
        context = locks[name].asking(peer)
        asks[name] = (peer, context, context.__enter__())
    for name in data.draw(st.permutations(names)):
        peer, context, hold = asks[name]
        grant = locks[peer].granted(name)
        try:
            grant.__enter__()
        except MacBusy:
            context.__exit__(None, None, None)
            continue
        grants[name] = grant
        try:
            locks[name].confirm(hold)
            measuring.add((name, peer))
        except MacBusy:
            # It has accepted another request in the meantime, so it withdraws its own.
            grant.__exit__(None, None, None)
            context.__exit__(None, None, None)
    busy = [name for pair in measuring for name in pair]
    assert len(busy) == len(set(busy)) and measuring
    for name, peer in measuring:
        assert locks[name].peer == peer and locks[peer].peer == name
        grants[name].__exit__(None, None, None)
        asks[name][1].__exit__(None, None, None)
    assert all(lock.peer is None for lock in locks.values())


# --- the ledger, and what is published ---


def figures(mbps: int, rtt: int = 30) -> Figures:
    return Figures(
        received_mbps=mbps, sent_mbps=mbps, rtt_microseconds=rtt, jitter_microseconds=1, transport=MeasurementTransport.SOCKET
    )


def test_a_restart_measures_nothing_that_is_fresh(tmp_path: Path) -> None:
    ledger = Ledger("a", tmp_path)
    for probe in ALL:
        ledger.record(probe.key, figures(1000), WALL, 500.0)
    again = Ledger("a", tmp_path)
    again.load(None, (), WALL + timedelta(seconds=60), 10.0)
    assert plan(again.history, 11.0).probe is None
    assert again.results[CABLE.key].figures == figures(1000)


def test_a_clock_that_jumps_does_no_harm(tmp_path: Path) -> None:
    ledger = Ledger("a", tmp_path)
    ledger.record(GPU.key, Figures(flops=10**12), WALL, 500.0)
    ahead = Ledger("a", tmp_path)
    # The clock was ahead during the measurement; the result must not stay fresh for years.
    ahead.load(None, (), WALL - timedelta(days=400), 10.0)
    assert stale(GPU, ahead.history[GPU.key], 10.0)
    # Once running, only monotonic time counts.
    assert ahead.record(GPU.key, Figures(flops=10**12), WALL - timedelta(days=400), 20.0)
    assert not stale(GPU, ahead.history[GPU.key], 30.0)


@pytest.mark.parametrize("damage", ["", "{", "[1, 2]", '{"a": 1}', "[" * 5000, '[{"kind": "gpu"}]'])
def test_a_damaged_file_costs_a_measurement_and_no_more(tmp_path: Path, damage: str) -> None:
    (tmp_path / FILE).write_text(damage)
    ledger = Ledger("a", tmp_path)
    ledger.load(None, (), WALL, 10.0)
    assert not ledger.results
    ledger.record(GPU.key, Figures(flops=1), WALL, 11.0)
    assert len(json.loads((tmp_path / FILE).read_text())) == 1


def test_status_is_written_hourly_or_when_a_figure_moves_by_a_fifth() -> None:
    ledger = Ledger("a")
    assert ledger.record(CABLE.key, figures(1000), WALL, 0.0)
    assert not ledger.record(CABLE.key, figures(1150), WALL + timedelta(minutes=5), 300.0)
    assert ledger.results[CABLE.key].figures.received_mbps == 1150
    assert ledger.measurements(CABLE.target.link)[0].throughput_mbps == 1000
    assert ledger.record(CABLE.key, figures(700), WALL + timedelta(minutes=10), 600.0)
    assert ledger.measurements(CABLE.target.link)[0].throughput_mbps == 700
    assert ledger.record(CABLE.key, figures(700), WALL + timedelta(minutes=71), 4200.0)
    assert moved(figures(10, 30), figures(10, 50)) and not moved(figures(10, 30), figures(10, 40))


def test_two_addresses_of_one_pair_are_two_results() -> None:
    ledger = Ledger("a")
    second = Key(ProbeKind.SOCKET, Target("b", "192.168.0.3"))
    ledger.record(LAN.key, figures(900), WALL, 0.0)
    ledger.record(second, figures(90), WALL, 1.0)
    facts = [
        Reachability(node="b", address=address, state=ReachabilityState.REACHABLE, since=WALL, rtt_microseconds=7)
        for address in ("192.168.0.2", "192.168.0.3", "192.168.0.4")
    ]
    said = {fact.address: (fact.received_mbps, fact.rtt_microseconds) for fact in ledger.with_figures(facts)}
    assert said == {"192.168.0.2": (900, 30), "192.168.0.3": (90, 30), "192.168.0.4": (None, 7)}


def test_what_status_says_is_read_back() -> None:
    ledger = Ledger("a")
    for kind, measured in LOCAL_FIGURES.items():
        ledger.record(Key(kind), measured, WALL, 0.0)
    ledger.record(LAN.key, figures(900), WALL, 0.0)
    ledger.record(CABLE.key, figures(38_000), WALL, 0.0)
    ledger.record(RDMA.key, figures(70_000).model_copy(update={"transport": MeasurementTransport.RDMA}), WALL, 0.0)
    found = ledger.benchmarks()
    assert found is not None and (found.tflops, found.gigabytes_per_second) == ("27.0", "702.0")
    facts = ledger.with_figures([Reachability(node="b", address="192.168.0.2", state=ReachabilityState.REACHABLE, since=WALL)])
    profile = NodeProfile.model_validate(
        {"metadata": {"name": "a"}, "status": NodeProfileStatus(benchmarks=found, reachability=facts).dump()}
    )
    link = ThunderboltLink.load(
        {
            "metadata": {"name": CABLE.target.link},
            "spec": ordered(LinkEnd(node="a", port=1), LinkEnd(node="b", port=1)).dump(),
            "status": {
                "endpoints": [{"node": "b", "port": 1, "address": "10.0.0.2"}],
                "measurements": [each.dump() for each in ledger.measurements(CABLE.target.link)],
            },
        }
    )
    again = Ledger("a")
    again.load(profile, [link], WALL + timedelta(seconds=5), 100.0)
    assert set(again.history) == {*(Key(kind) for kind in LOCAL_FIGURES), LAN.key, CABLE.key, RDMA.key}
    assert {GPU.key, Key(ProbeKind.MEMORY)} <= set(again.history)
    assert plan(again.history, 101.0).probe is None
    assert again.measurements(CABLE.target.link) == ledger.measurements(CABLE.target.link)


@pytest.mark.parametrize(
    ("flops", "megabytes", "said"), [(4 * 10**8, 1, ("0.001", "0.001")), (27_345_600_000_000, 702_345, ("27.3", "702.3"))]
)
def test_a_restart_changes_no_figure_and_none_is_shown_as_nothing(flops: int, megabytes: int, said: tuple[str, str]) -> None:
    ledger, again = Ledger("a"), Ledger("a")
    ledger.record(GPU.key, Figures(flops=flops), WALL, 0.0)
    ledger.record(Key(ProbeKind.MEMORY), Figures(megabytes_per_second=megabytes), WALL, 0.0)
    found = ledger.benchmarks()
    assert found is not None and (found.tflops, found.gigabytes_per_second) == said
    status = NodeProfileStatus(benchmarks=found).dump()
    again.load(NodeProfile.model_validate({"metadata": {"name": "a"}, "status": status}), (), WALL, 0.0)
    assert again.benchmarks() == found


# --- the condition, the view, the settings ---


def said(history: dict[Key, History], ledger: Ledger, closed: dict[Key, str], notes: tuple[str, ...] = ()) -> tuple[str, str]:
    found = benchmarks_fresh(MeasureSettings(), ALL, history, ledger.failures, closed, notes, 10_000.0)
    return found.reason, found.message


def test_the_condition_says_why_and_when_next() -> None:
    ledger = Ledger("a")
    fresh = {probe.key: History(measured=9_900.0) for probe in ALL}
    assert said(fresh, ledger, {}, ("no JACCL",)) == (
        "Fresh",
        "every benchmark has a recent result (4 of 4); RDMA is not measured: no JACCL",
    )
    assert said({}, ledger, {})[0] == "NotMeasured"
    missing = {key: value for key, value in fresh.items() if key != GPU.key}
    reason, message = said(missing, ledger, {GPU.key: "the group x has this Mac"})
    assert reason == "InUse" and "the group x has this Mac" in message
    ledger.fail(GPU, "not enough memory", WALL, 9_990.0)
    reason, message = said({**missing, GPU.key: ledger.history[GPU.key]}, ledger, {})
    assert reason == "BenchmarkFailed" and "gpu: not enough memory; next attempt at 12:00:2" in message
    assert benchmarks_fresh(MeasureSettings(enabled=False), ALL, fresh, {}, {}, (), 1.0).reason == "Disabled"


def test_addresses_on_cables_become_links_and_rdma_says_why_not() -> None:
    status = NodeProfileStatus.load(
        {
            "network": {
                "interfaces": [
                    {"name": "en0", "kind": "Ethernet", "addresses": [_address("192.168.0.1")]},
                    {"name": "en2", "kind": "Thunderbolt", "addresses": [_address("10.0.0.1")]},
                ]
            },
            "thunderbolt": {"ports": [{"receptacle": 1, "interface": "en2", "rdmaDevice": "rdma_en2"}], "links": 1},
            "runtime": {"backends": ["ring"]},
        }
    )
    facts = [
        Reachability(node="b", address=address, interface=interface, state=state, since=WALL)
        for address, interface, state in (
            ("10.0.0.2", "en2", ReachabilityState.REACHABLE),
            ("10.0.9.2", "en2", ReachabilityState.REACHABLE),
            ("192.168.0.2", "en0", ReachabilityState.REACHABLE),
            ("192.168.0.3", "en0", ReachabilityState.SUSPECT),
        )
    ]
    agents = {"b": Agent(address="192.168.0.2", port=9440, certificate_sha256="0" * 64)}
    spec = ordered(LinkEnd(node="a", port=1), LinkEnd(node="b", port=1))
    seen = view.view("a", "192.168.0.1", status, [spec], [], facts, agents, MeasureSettings())
    assert set(seen.targets) == {CABLE.target, Target("b", "10.0.9.2"), Target("b", "192.168.0.2")}
    assert seen.link_at("10.0.0.1", "b") == CABLE.target.link and not seen.link_at("10.0.0.1", "c")
    assert seen.source(CABLE.target, "10.0.0.2") == "10.0.0.1"
    wanted = view.wanted(seen, MeasureSettings())
    assert {probe.kind for probe in wanted} == {ProbeKind.GPU, ProbeKind.MEMORY, ProbeKind.SOCKET}
    assert any("has no JACCL backend" in note for note in view.notes(seen, MeasureSettings()))
    ring = parse('{"rdma": {"transport": "Ring"}}')
    assert ProbeKind.RDMA in {
        probe.kind for probe in view.wanted(view.view("a", "", status, [spec], [], facts, agents, ring), ring)
    }
    assert not view.wanted(seen, parse('{"enabled": false}'))


@pytest.mark.parametrize(
    ("transport", "runtime", "usable", "port", "problem"),
    [
        ("RDMA", None, None, {}, "the agent has not read the backends of MLX yet"),
        (
            "RDMA",
            {"backends": ["ring"], "mlxVersion": "0.31.1"},
            "True",
            {"rdmaDevice": "rdma_en2"},
            "MLX 0.31.1 on this Mac has no JACCL backend, which needs macOS 26.3 or newer on Apple silicon",
        ),
        ("RDMA", {"backends": ["jaccl"]}, None, {}, "the ThunderboltLink has no condition RDMAUsable yet"),
        ("RDMA", {"backends": ["jaccl"]}, "False", {}, "RDMA is not usable on this cable: PortDown"),
        ("RDMA", {"backends": ["jaccl"]}, "True", {}, "this end of the cable has no RDMA device"),
        ("RDMA", {"backends": ["jaccl"]}, "True", {"rdmaDevice": "rdma_en2"}, None),
        ("Ring", None, None, {"interface": None}, "this end of the cable has no IPv4 address"),
        ("Ring", None, None, {}, None),
    ],
)
def test_why_a_cable_is_not_measured_with_a_group(
    transport: str, runtime: dict[str, object] | None, usable: str | None, port: dict[str, object], problem: str | None
) -> None:
    interfaces = [{"name": "en2", "kind": "Thunderbolt", "addresses": [_address("10.0.0.1")]}]
    ports = [{"receptacle": 1, "interface": "en2", **port}]
    status = {"network": {"interfaces": interfaces}, "thunderbolt": {"ports": ports}, "runtime": runtime}
    spec = ordered(LinkEnd(node="a", port=1), LinkEnd(node="b", port=1))
    conditions = (
        [] if usable is None else [{"type": "RDMAUsable", "status": usable, "reason": "PortDown", "lastTransitionTime": WALL}]
    )
    link = ThunderboltLink.load(
        {"metadata": {"name": RDMA.target.link}, "spec": spec.dump(), "status": {"conditions": conditions}}
    )
    settings = parse(json.dumps({"rdma": {"transport": transport}}))
    facts = [Reachability(node="b", address="10.0.0.2", interface="en2", state=ReachabilityState.REACHABLE, since=WALL)]
    agents = {"b": Agent(address="192.168.0.2", port=9440, certificate_sha256="0" * 64)}
    seen = view.view("a", "192.168.0.1", NodeProfileStatus.load(status), [spec], [link], facts, agents, settings)
    assert view.notes(seen, settings) == (() if problem is None else (problem,))
    assert (RDMA.key in {probe.key for probe in view.wanted(seen, settings)}) is (problem is None)


def test_figures_are_shown_in_their_units() -> None:
    assert Figures().words() == "no figures"
    gpu = Figures(flops=27_345_600_000_000, megabytes_per_second=702_345)
    assert gpu.words() == "fp16 27345.6 GFLOPS, memory 702345 MB/s"
    link = Figures(received_mbps=40_000, sent_mbps=39_000, rtt_microseconds=12, jitter_microseconds=3, all_sum_microseconds=20)
    shown = "received 40000 Mb/s, sent 39000 Mb/s, round trip 12 µs, jitter 3 µs, all-sum 20 µs"
    assert link.words() == shown


def test_a_cable_is_dialled_at_the_agents_own_address_or_else_at_the_first_reachable_one() -> None:
    agent = Agent(address="192.168.0.2", port=9440, certificate_sha256="0" * 64)
    targets = tuple(Target("b", address) for address in ("10.0.0.2", "10.0.0.3", "192.168.0.2"))
    cable = Target("b", "", "a.tb1--b.tb1")
    found = view.View("a", "192.168.0.1", targets, {}, {"b": agent}).dial(cable)
    assert found is not None and (found.address, found.port, found.interface) == ("192.168.0.2", 9440, None)
    found = view.View("a", "192.168.0.1", targets[:2], {}, {"b": agent}).dial(cable)
    assert found is not None and found.address == "10.0.0.2"
    assert view.View("a", "192.168.0.1", (), {}, {"b": agent}).dial(cable) is None
    assert view.View("a", "192.168.0.1", targets, {}, {}).dial(cable) is None


def _address(text: str) -> dict[str, object]:
    return {"address": text, "prefixLength": 24, "class": "Private"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"gpu": {"everySeconds": 1}}', "gpu.everySeconds: .*greater than or equal to 10"),
        ('{"gpus": {}}', "gpus: Extra inputs"),
        ('{"rdma": {"transport": "Socket"}}', "RDMA or Ring"),
        ("[]", "object"),
        ("{", "JSON"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_a_sentence(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse(text)


# --- figures from samples ---


def test_a_rate_is_timed_without_start_and_burst() -> None:
    # A burst of 10 MB at once, then 1 MB every 10 ms: 800 Mb/s.
    steady = [(0.0, 10_000_000), *((0.01 * step, 1_000_000) for step in range(1, 101))]
    assert rate_mbps([steady]) == 800
    assert rate_mbps([steady, steady]) == 1600
    # A receiver that slept for 9 of 10 seconds reads 800 Mbit from its buffers; the link is not that fast.
    assert rate_mbps([steady], asked=-9.0) == 132
    assert rate_mbps([]) == rate_mbps([[]]) == rate_mbps([[(1.0, 0)]]) == 0
    # Bytes of other streams after the first one has ended do not count.
    assert rate_mbps([steady, [*steady, *((1.0 + 0.01 * step, 9_000_000) for step in range(1, 50))]]) == 1600


@pytest.mark.parametrize(
    ("arrivals", "rate"),
    [
        ([(1.0, 5)], None),
        # A buffer is emptied at 8 GB/s, which is not the rate of the link.
        ([(1.0 + step / 8000, 2**20) for step in range(8)], None),
        ([(1.0, 2**20), (1.0, 2**20)], None),
        # Some bytes at first, then none until the end.
        ([(1.0, 2**16), (2.0, 0)], 0),
        # Few bytes, but the link carries no more.
        ([(1.0 + step / 10, 1448) for step in range(11)], 1),
    ],
)
def test_what_arrives_at_once_has_no_rate(arrivals: list[tuple[float, int]], rate: int | None) -> None:
    assert rate_mbps([arrivals]) == rate


@given(st.lists(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 10**7)), max_size=20).map(sorted), max_size=4))
def test_a_rate_is_never_negative_nor_endless_nor_a_fault(streams: list[list[tuple[float, int]]]) -> None:
    rate = rate_mbps(streams)
    assert rate is None or 0 <= rate <= max(1, sum(count for each in streams for _, count in each) * 8 / 1e6 / 0.001)


def test_round_trips() -> None:
    found = trips([10e-6, 14e-6, 10e-6, 12e-6])
    assert (found.rtt, found.jitter) == (11, 3)
    with pytest.raises(ValueError, match="received 1 echoes; at least 2 are required"):
        trips([1.0])


def test_a_warm_up_ends_when_the_rate_is_steady_or_at_its_limit() -> None:
    now = 0.0

    def clock() -> float:
        return now

    def rising() -> float:
        nonlocal now
        now += max(0.5, 1.0 - now / 20)
        return 1.0

    told: list[bool] = []
    found = best(rising, clock, 100.0, best_of=3, progress=lambda rate, steady: told.append(steady))
    assert found.steady and found.rate == pytest.approx(2.0) and told.count(True) == 4
    steps = itertools.cycle((0.5, 1.0))

    def uneven() -> float:
        nonlocal now
        now += next(steps)
        return 1.0

    found = best(uneven, clock, 5.0, best_of=2)
    assert not found.steady and found.rate == pytest.approx(2.0)
    assert is_steady([1, 9, *[10] * 9, 9.9]) and not is_steady([10] * 9) and not is_steady([*[10] * 9, 9])


@pytest.mark.parametrize(
    ("noise", "bursts", "least", "most"),
    [(0.002, 0.0, 0, 2), (0.05, 0.0, 10, 10.2), (0.002, 0.3, 0, 10.2)],
    ids=["calm", "noisy", "shared"],
)
def test_under_noise_a_run_ends_in_time_and_two_of_them_agree(noise: float, bursts: float, least: float, most: float) -> None:
    """Other load only slows runs down: all of them a little, or some of them by half."""

    def one(seed: int) -> tuple[float, float]:
        chance, now = random.Random(seed), 0.0

        def work() -> float:
            nonlocal now
            slower = 1 + noise * abs(chance.gauss(0, 1)) + (chance.random() < bursts)
            now += 0.04 * slower
            return 1.0

        found = best(work, lambda: now, 5.0, until=10.0)
        assert found.steady or now >= 10
        return found.rate, now

    runs = [one(seed) for seed in range(20)]
    assert max(rate for rate, _ in runs) / min(rate for rate, _ in runs) - 1 <= 0.05
    # Steady runs end long before the limit; unsteady ones use the whole time and no more.
    assert all(least <= seconds < most for _, seconds in runs)


@pytest.mark.parametrize(
    ("free", "memory", "cache", "mib"),
    [
        (None, None, None, 256),
        (None, 2**39, None, 4096),
        (None, 2**34, None, 256),
        (None, None, 2**20, 64),
        (None, None, 64 * 2**20, 512),
        # The cache that a virtual machine reports is often that of its host.
        (None, None, 480 * 2**20, 1024),
        (None, None, 800 * 2**20, 1600),
        (2**30, 2**39, None, 512),
    ],
)
def test_the_buffer_is_larger_than_the_cache_and_a_few_passes_are_short(
    free: int | None, memory: int | None, cache: int | None, mib: int
) -> None:
    assert gpu.buffer_bytes(free, memory, cache) == mib * gpu.MIB


def test_a_buffer_that_fits_into_the_cache_measures_nothing() -> None:
    with pytest.raises(gpu.NotMeasured, match="1900 MiB of memory are free; the benchmark needs at least 1920 MiB"):
        gpu.buffer_bytes(1900 * gpu.MIB, None, 480 * gpu.MIB)


def test_results_hold_their_key() -> None:
    for probe in ALL:
        assert result(probe.key, Figures(), WALL).key == probe.key
