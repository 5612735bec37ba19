"""The models read what the CRDs allow, write what the CRDs allow, and lose nothing in between."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from thunderfleet_crds import generate
from thunderfleet_crds.exchange import group
from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeployment, Nodes, Rank, Unplaceable, duration_seconds
from thunderfleet_crds.kinds.nodeprofile import MAX_PORTS, NodeProfile, NodeProfileStatus, Reachability, domain_labels
from thunderfleet_crds.kinds.thunderboltlink import LinkEnd, Measurement, generation, link_name, ordered
from thunderfleet_crds.meta.apimodel import to_api_name
from thunderfleet_crds.meta.conditions import Condition, find_condition, set_condition
from thunderfleet_crds.meta.fields import binary_size, quantity
from thunderfleet_crds.names import API_VERSION
from thunderfleet_crds.vocabulary import (
    ConditionStatus,
    GroupPhase,
    PlacedSplit,
    PlacedTransport,
    RankPhase,
    RequestedSplit,
    RequestedTransport,
    Split,
    Transport,
)

from tests.support.generated import examples

Json = dict[str, Any]
KINDS = {kind.name: kind.model for kind in generate.KINDS}
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)

names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
ends = st.builds(LinkEnd, node=names, port=st.integers(0, MAX_PORTS))


def without_empty_collections(value: Any, node: Json) -> Any:
    """The document as a model dumps it: empty lists and maps are as good as none; empty objects are not."""
    if not isinstance(value, dict) or "properties" not in node:
        if isinstance(value, list) and "items" in node:
            return [without_empty_collections(entry, node["items"]) for entry in value]
        return value
    kept = {name: without_empty_collections(entry, node["properties"][name]) for name, entry in value.items()}
    return {name: entry for name, entry in kept.items() if entry not in ([], {}) or "properties" in node["properties"][name]}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(
    name: str,
    data: st.DataObject,
    schemas: dict[str, Json],
    documents: Callable[[Json], st.SearchStrategy[Any]],
    violations: Callable[[Any, Json, str], Iterator[str]],
) -> None:
    properties = schemas[name]["properties"]
    parts = {part: data.draw(documents(properties[part]), part) for part in ("spec", "status") if part in properties}
    document = {"metadata": {"name": "x"}, **parts}
    value = KINDS[name].load(document)
    dumped = value.dump()
    assert KINDS[name].load(dumped) == value
    for part, written in parts.items():
        assert list(violations(dumped[part], properties[part], part)) == []
        # Everything that was written is there again; only defaults may have joined it.
        assert _contains(dumped[part], without_empty_collections(written, properties[part]))


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and _contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return len(whole) == len(part) and all(_contains(one, other) for one, other in zip(whole, part, strict=True))
    return bool(whole == part)


def test_defaults_of_the_crd_and_of_the_models_are_the_same(
    schemas: dict[str, Json], defaulted: Callable[[Any, Json], Any]
) -> None:
    document = {"metadata": {"name": "x"}, "spec": {"model": {"path": "/models/tiny"}}}
    node = schemas["ModelDeployment"]
    filled = defaulted(document, node)
    assert (
        without_empty_collections(filled["spec"], node["properties"]["spec"]) == ModelDeployment.load(document).dump()["spec"]
    )
    assert filled["spec"] == {
        "model": {"path": "/models/tiny", "revision": "main", "copies": "Whole"},
        "replicas": 1,
        "nodes": {"min": 1, "selector": {}, "tolerations": []},
        "placement": {"policy": "Fewest"},
        "verify": "Full",
        "parallelism": "Auto",
        "transport": "Auto",
        "memory": {"contextTokens": 32768, "concurrentRequests": 4, "headroomPercent": 10},
        "server": {"aliases": [], "apiKeys": []},
        "suspend": False,
        "podMetadata": {"labels": {}, "annotations": {}},
        "runtime": {"fastSynch": "Disabled", "wiredLimit": "Auto", "env": []},
        "bootstrap": {"attempts": 8, "attemptTimeoutSeconds": 60, "ringWithoutRelay": False},
        "recovery": {"maxRestarts": 10, "backoffSeconds": 10, "backoffLimitSeconds": 300, "failback": "WhenIdle"},
        "benchmark": {"promptTokens": 512, "generationTokens": 128, "every": "24h"},
    }


def test_keys_of_newer_versions_are_ignored() -> None:
    document = {
        "metadata": {"name": "x", "managedFields": []},
        "spec": {"model": {"path": "/m", "adapter": "y"}, "later": True},
        "status": {"groups": [{"index": 0, "later": 1}]},
    }
    assert ModelDeployment.load(document).status.groups[0].index == 0


def test_values_are_immutable() -> None:
    profile = NodeProfile.load({"metadata": {"name": "x"}})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(profile, "metadata", profile.metadata)  # noqa: B010 - mypy knows that it is read-only


def test_values_are_copied_and_pickled_without_a_record_of_what_was_given() -> None:
    given, same = (LinkEnd.load({"node": "a", "port": 1}) for _ in range(2))
    assert given.model_fields_set is same.model_fields_set, "one set of its own takes more memory than the fields"
    changed = given.model_copy(update={"port": 2})
    assert (changed.node, changed.port, given.port) == ("a", 2, 1) and not given.model_fields_set
    for copied in (given.model_copy(), copy.copy(given), copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert copied == given == same and copied.dump() == {"node": "a", "port": 1} and hash(copied) == hash(given)


def test_dump_leaves_out_what_is_unset_or_empty() -> None:
    assert NodeProfileStatus().dump() == {}
    assert Nodes().dump() == {"min": 1}
    assert Nodes(selector={"a": "b"}).dump() == {"min": 1, "selector": {"a": "b"}}


@pytest.mark.parametrize(
    ("python", "api"),
    [
        ("memory_bytes", "memoryBytes"),
        ("gpu_memory_limit_bytes", "gpuMemoryLimitBytes"),
        ("certificate_sha256", "certificateSHA256"),
        ("peer_domain_uuid", "peerDomainUUID"),
        ("rdma_device", "rdmaDevice"),
        ("from_", "from"),
        ("class_", "class"),
        ("mlx_lm_version", "mlxLmVersion"),
        ("boot_id", "bootID"),
    ],
)
def test_names_on_the_wire(python: str, api: str) -> None:
    assert to_api_name(python) == api


def test_times_are_utc_to_the_second() -> None:
    entry = {"node": "a", "address": "10.0.0.1", "state": "Reachable", "since": "2026-11-21T13:00:00.75+01:00"}
    assert Reachability.load(entry).dump()["since"] == "2026-11-21T12:00:00Z"
    with pytest.raises(ValidationError, match="timezone"):
        Reachability.load({**entry, "since": "2026-11-21T13:00:00"})


def test_long_texts_are_cut_and_long_names_refused() -> None:
    cut = Unplaceable(message="x" * 9000).message
    assert len(cut) == 4096
    assert cut.endswith("…")
    with pytest.raises(ValidationError, match="at most 253"):
        Measurement(from_="x" * 254, to="y", transport="Socket", measured_at=NOON)


def test_python_names_are_accepted_beside_those_of_the_api() -> None:
    by_name = Measurement(from_="a", to="b", transport="Ring", measured_at=NOON)
    assert by_name == Measurement.load(by_name.dump())
    assert by_name.dump()["from"] == "a"


@pytest.mark.parametrize("phase", list(GroupPhase))
def test_a_group_reports_the_phases_that_are_its_own(phase: GroupPhase) -> None:
    own = phase not in (GroupPhase.PENDING, GroupPhase.STARTING, GroupPhase.BACKING_OFF)
    report = {"uid": "u", "index": 0, "epoch": 1, "phase": phase.value}
    with contextlib.nullcontext() if own else pytest.raises(ValidationError, match="Input should be"):
        assert group.GroupState.model_validate(report).phase is phase
    assert Group.load({"index": 0, "state": phase.value}).state is phase


@pytest.mark.parametrize("phase", list(RankPhase))
def test_a_rank_reports_the_phases_that_are_its_own(phase: RankPhase) -> None:
    own = phase not in (RankPhase.PENDING, RankPhase.STARTING)
    report = {"rank": 0, "node": "a", "phase": phase.value}
    with contextlib.nullcontext() if own else pytest.raises(ValidationError, match="Input should be"):
        assert group.RankReport.model_validate(report).phase is phase
    assert Rank.load({"rank": 0, "node": "a", "state": phase.value}).state is phase


def test_spec_asks_for_what_status_reports() -> None:
    spec, status = (set(get_args(one)) for one in (RequestedSplit, PlacedSplit))
    assert (spec | status, spec - status, status - spec) == (set(Split), {Split.AUTO}, {Split.NONE})
    spec, status = (set(get_args(one)) for one in (RequestedTransport, PlacedTransport))
    assert (spec | status, spec - status, status - spec) == (set(Transport), {Transport.AUTO}, {Transport.NONE})
    for wrong in ({"parallelism": "None"}, {"transport": "None"}):
        with pytest.raises(ValidationError, match="Input should be"):
            ModelDeployment.load({"metadata": {"name": "x"}, "spec": {"model": {"path": "/m"}, **wrong}})
    for wrong in ({"parallelism": "Auto"}, {"transport": "Auto"}):
        with pytest.raises(ValidationError, match="Input should be"):
            Group.load({"index": 0, **wrong})


def test_kinds_and_version_are_the_constants() -> None:
    for kind in generate.KINDS:
        value = kind.model.load({"metadata": {"name": "x"}, "spec": _minimal_spec(kind.name)})
        assert value.dump()["apiVersion"] == API_VERSION
        assert value.dump()["kind"] == kind.name


def _minimal_spec(kind: str) -> Json:
    specs: dict[str, Json] = {
        "ModelCache": {"repository": "o/n"},
        "ModelDeployment": {"model": {"path": "/m"}},
        "ThunderboltLink": {"a": {"node": "a", "port": 1}, "b": {"node": "b", "port": 1}},
    }
    return specs.get(kind, {})


@given(st.decimals(0, 10**11, places=4))
def test_quantities_are_what_the_schema_takes(value: Decimal) -> None:
    for digits in range(4):
        text = quantity(value, digits)
        assert abs(Decimal(text) - value) <= Decimal(1).scaleb(-digits) / 2
        assert len(text.partition(".")[2]) == digits


@pytest.mark.parametrize(
    ("value", "text"), [(37.42, "37.4"), (0, "0.0"), (1e-9, "0.0"), (819, "819.0"), (1e11, "1" + "0" * 11 + ".0")]
)
def test_quantity(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e12, 1e30])
def test_what_is_no_quantity(value: float) -> None:
    with pytest.raises(ValueError, match="a quantity must be"):
        quantity(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0"), (1023, "1023"), (1024, "1Ki"), (512 * 2**30, "512Gi"), (int(1.5 * 2**40), "1.5Ti"), (2**30 - 1, "1023.9Mi")],
)
def test_binary_size(size: int, text: str) -> None:
    assert binary_size(size) == text


def test_a_condition_moves_its_time_only_with_its_status() -> None:
    later = NOON + timedelta(hours=1)
    first = set_condition((), "Ready", False, "Waiting", "for a Mac", now=NOON, observed_generation=1)
    same = set_condition(first, "Ready", False, "Waiting", "for a Mac", now=later, observed_generation=1)
    assert same == first
    reworded = set_condition(first, "Ready", ConditionStatus.FALSE, "Forming", "two ranks", now=later)
    assert reworded[0].last_transition_time == NOON
    assert reworded[0].reason == "Forming"
    turned = set_condition(first, "Ready", True, "Serving", "", now=later)
    assert turned[0].last_transition_time == later


@given(st.permutations(["Ready", "Placed", "Degraded", "Bootstrapped"]))
def test_conditions_come_in_one_order(types: list[str]) -> None:
    conditions: tuple[Condition, ...] = ()
    for type_ in types:
        conditions = set_condition(conditions, type_, None, "Unknown", "", now=NOON)
    assert [condition.type for condition in conditions] == sorted(types)
    assert find_condition(conditions, "Ready") in conditions
    assert find_condition(conditions, "Benchmarked") is None


@given(ends, ends)
def test_either_end_derives_the_same_link(one: LinkEnd, other: LinkEnd) -> None:
    if one == other:
        with pytest.raises(ValueError, match="two different ends"):
            ordered(one, other)
        return
    spec = ordered(one, other)
    assert spec == ordered(other, one)
    assert {spec.a, spec.b} == {one, other}
    assert (spec.a.node, spec.a.port) < (spec.b.node, spec.b.port)
    assert len(link_name(spec)) <= 253


def test_link_name_and_generation() -> None:
    spec = ordered(LinkEnd(node="studio-2", port=3), LinkEnd(node="studio-1", port=1))
    assert link_name(spec) == "studio-1.tb1--studio-2.tb3"
    longest = ordered(LinkEnd(node="b" * 120, port=MAX_PORTS), LinkEnd(node="a" * 120, port=MAX_PORTS))
    assert len(link_name(longest)) <= 253
    with pytest.raises(ValidationError):
        LinkEnd(node="a", port=MAX_PORTS + 1)
    assert [generation(speed) for speed in (20_000, 40_000, 80_000, 120_000)] == ["TB4", "TB4", "TB5", "TB5"]


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400), ("1h30m", 5400), ("90s", 90), ("1h1m1s", 3661)])
def test_durations(text: str, seconds: int) -> None:
    assert duration_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "daily", "24", "-1h", "1s1h", "1h "])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a duration: .* \(expected hours, minutes and seconds such as"):
        duration_seconds(text)


def test_domain_labels_are_sorted_lower_case_keys() -> None:
    assert list(domain_labels(["B-2", "", "A-1"])) == ["domain.thunderfleet.io/a-1", "domain.thunderfleet.io/b-2"]
