"""Metrics of ModelDeployments, cables and Macs: what is exported of an object, and that only the leader exports it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.conditions import Condition
from thunderfleet_crds.names import ANNOTATION_BACKUP
from thunderfleet_crds.vocabulary import ConditionStatus
from thunderfleet_operator.metrics import Metrics
from thunderfleet_operator.object_metrics import ObjectMetrics, Objects
from thunderfleet_operator.observe.objects.nodes import Node, read_node

from tests.support.generated import examples

Json = dict[str, Any]

TIME = "2026-03-01T12:00:00Z"
SECONDS = 1772366400.0
API = {"apiVersion": "thunderfleet.io/v1alpha1"}
LINK = "studio-1.tb1--studio-2.tb1"


def condition(kind: str, status: str, reason: str) -> Json:
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": TIME}


def deployment(ready: str = "False") -> ModelDeployment:
    failure = {"class": "Retry", "reason": "PeerLost", "node": "studio-2", "link": LINK, "time": TIME}
    ranks = [{"rank": 0, "node": "studio-1", "memoryBytes": 100}, {"rank": 1, "node": "studio-2", "memoryBytes": 200}]
    group = {"index": 0, "state": "BackingOff", "restarts": 3, "ranks": ranks, "lastFailure": failure}
    found = [condition("Ready", ready, "BackingOff"), condition("Verified", "Unknown", "NotVerified")]
    scaled = {"replicas": 2, "lastScaleTime": TIME}
    status = {
        "groups": [group],
        "conditions": found,
        "benchmark": {"decodeTokensPerSecond": "21.9"},
        "autoscaling": scaled,
    }
    autoscaling = {"minReplicas": 0, "maxReplicas": 4}
    spec = {
        "model": {"repository": "nobody/tiny"},
        "replicas": 2,
        "recovery": {"maxRestarts": 10},
        "autoscaling": autoscaling,
    }
    metadata = {"name": "chat", "namespace": "team"}
    return ModelDeployment.load({**API, "kind": "ModelDeployment", "metadata": metadata, "spec": spec, "status": status})


def link() -> ThunderboltLink:
    ends = [
        {"node": f"studio-{at}", "port": 1, "speedMbps": speed, "flapping": at == 2} for at, speed in ((1, 80000), (2, 40000))
    ]
    measured = {"from": "studio-1", "to": "studio-2", "transport": "Socket", "throughputMbps": 8, "measuredAt": TIME}
    status = {"endpoints": ends, "measurements": [measured], "conditions": [condition("Connected", "True", "Connected")]}
    spec = {"a": {"node": "studio-1", "port": 1}, "b": {"node": "studio-2", "port": 1}}
    return ThunderboltLink.load({**API, "kind": "ThunderboltLink", "metadata": {"name": LINK}, "spec": spec, "status": status})


def profile() -> NodeProfile:
    status = {
        "hardware": {"gpuMemoryLimitBytes": 1000},
        "groups": [{"name": "team/chat-0", "epoch": 1, "links": [LINK]}],
        "conditions": [condition("Quarantined", "True", "StackHung")],
        "lastPanic": {"time": TIME},
    }
    return NodeProfile.load({**API, "kind": "NodeProfile", "metadata": {"name": "studio-1"}, "status": status})


def registry(objects: Objects, leading: bool = True) -> CollectorRegistry:
    found = CollectorRegistry()
    found.register(ObjectMetrics(lambda: objects, lambda: leading))
    return found


OF = {"namespace": "team", "name": "chat"}
GROUP = {**OF, "group": "0"}


@pytest.mark.parametrize(
    ("metric", "labels", "value"),
    [
        ("modeldeployment_condition", {**OF, "type": "Ready", "reason": "BackingOff"}, 0),
        ("modeldeployment_condition", {**OF, "type": "Verified", "reason": "NotVerified"}, -1),
        ("modeldeployment_replicas", OF, 2),
        ("modeldeployment_ready_replicas", OF, 0),
        ("modeldeployment_not_ready_timestamp_seconds", OF, SECONDS),
        ("modeldeployment_benchmark_tokens_per_second", OF, 21.9),
        ("modeldeployment_autoscaling_min_replicas", OF, 0),
        ("modeldeployment_autoscaling_max_replicas", OF, 4),
        ("modeldeployment_autoscaling_needed_replicas", OF, 7),
        ("modeldeployment_autoscaling_last_scale_timestamp_seconds", OF, SECONDS),
        ("modeldeployment_group_state", {**GROUP, "state": "BackingOff"}, 1),
        ("modeldeployment_group_restarts", GROUP, 3),
        ("modeldeployment_group_max_restarts", GROUP, 10),
        (
            "modeldeployment_group_last_failure_timestamp_seconds",
            {**GROUP, "reason": "PeerLost", "node": "studio-2", "link": LINK},
            SECONDS,
        ),
        ("thunderboltlink_condition", {"name": LINK, "type": "Connected", "reason": "Connected"}, 1),
        ("thunderboltlink_groups", {"name": LINK}, 1),
        ("thunderboltlink_negotiated_bytes_per_second", {"name": LINK}, 5e9),
        (
            "thunderboltlink_measured_bytes_per_second",
            {"name": LINK, "from": "studio-1", "to": "studio-2", "transport": "Socket"},
            1e6,
        ),
        ("thunderboltlink_flapping", {"name": LINK}, 1),
        ("mac_condition", {"node": "studio-1", "type": "Quarantined", "reason": "StackHung"}, 1),
        ("mac_ready", {"node": "studio-1"}, 1),
        ("mac_pressure", {"node": "studio-1", "type": "DiskPressure"}, 1),
        ("mac_pressure", {"node": "studio-1", "type": "PIDPressure"}, 0),
        ("mac_pressure", {"node": "studio-1", "type": "DescriptorsExhausted"}, 1),
        ("mac_gpu_memory_limit_bytes", {"node": "studio-1"}, 1000),
        ("mac_gpu_memory_reserved_bytes", {"node": "studio-1"}, 100),
        ("mac_groups", {"node": "studio-1"}, 1),
        ("mac_last_panic_timestamp_seconds", {"node": "studio-1"}, SECONDS),
        ("control_plane_backup_timestamp_seconds", {"node": "studio-1"}, SECONDS),
    ],
)
def test_each_object_is_shown(metric: str, labels: dict[str, str], value: float) -> None:
    saved = datetime.fromtimestamp(SECONDS, UTC)
    pressed = [
        condition("DiskPressure", "True", "Full"),
        condition("PIDPressure", "Unknown", "?"),
        condition("DescriptorsExhausted", "True", "KubeletHasFewDescriptors"),
        condition("Ready", "True", ""),
    ]
    pressures = read_node({"metadata": {"name": "studio-1"}, "status": {"conditions": pressed}}).pressures
    own: Json = {"labels": {"kubernetes.io/os": "darwin"}, "ours": True, "control_plane": True}
    mac = Node("studio-1", ready=True, saved=saved, pressures=pressures, **own)
    objects = Objects([deployment()], [link()], [profile()], [mac], {"team/chat": 7})
    assert registry(objects).get_sample_value(f"thunderfleet_{metric}", labels) == value


def test_what_is_needed_is_absent_while_nobody_knows_and_autoscaling_is_absent_without_it() -> None:
    text = generate_latest(registry(Objects([deployment()]))).decode()
    assert "autoscaling_max_replicas{" in text and "autoscaling_needed_replicas{" not in text
    fixed = deployment()
    fixed = fixed.model_copy(update={"spec": fixed.spec.model_copy(update={"autoscaling": None})})
    assert "autoscaling_max_replicas{" not in generate_latest(registry(Objects([fixed], needed={"team/chat": 1}))).decode()


def test_a_deployment_that_is_ready_is_not_down() -> None:
    found = registry(Objects([deployment("True")]))
    assert found.get_sample_value("thunderfleet_modeldeployment_not_ready_timestamp_seconds", OF) is None


def test_what_cannot_be_read_and_what_is_no_mac_is_left_out() -> None:
    linux = Node("box", ready=True, labels={"kubernetes.io/os": "linux"})
    text = generate_latest(registry(Objects([None], [None], [None], [linux]))).decode()
    assert not [line for line in text.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(
    ("annotations", "saved"),
    [
        ({ANNOTATION_BACKUP: "2026-03-02T00:00:00Z"}, datetime(2026, 3, 2, tzinfo=UTC)),
        ({ANNOTATION_BACKUP: "2026-03-02T00:00:00"}, None),
        ({ANNOTATION_BACKUP: "x"}, None),
        (None, None),
    ],
)
def test_a_node_says_when_its_control_plane_was_saved(annotations: dict[str, str] | None, saved: datetime | None) -> None:
    node = read_node({"metadata": {"name": "a", "annotations": annotations, "creationTimestamp": "2026-03-01T00:00:00Z"}})
    assert (node.created, node.saved) == (datetime(2026, 3, 1, tzinfo=UTC), saved)


def control_plane(name: str, day: int, saved: int | None = None) -> Node:
    """A Mac that has joined, and was saved, on a day of March."""
    last = None if saved is None else datetime(2026, 3, saved, tzinfo=UTC)
    created, mac = datetime(2026, 3, day, tzinfo=UTC), {"kubernetes.io/os": "darwin"}
    return Node(name, ready=True, labels=mac, ours=True, control_plane=True, created=created, saved=last)


@pytest.mark.parametrize(
    ("planes", "latest"),
    [
        ([control_plane("a", 1)], 1),
        ([control_plane("a", 1), control_plane("b", 20)], 1),
        ([control_plane("b", 20), control_plane("a", 1, saved=8)], 8),
        ([control_plane("a", 1, saved=8), control_plane("b", 2, saved=9), control_plane("c", 20)], 9),
    ],
)
def test_a_control_plane_that_joins_is_no_backup(planes: list[Node], latest: int) -> None:
    """The alert compares the latest of all times with the limit."""
    found = registry(Objects(nodes=planes)).get_sample_value
    times = [found("thunderfleet_control_plane_backup_timestamp_seconds", {"node": plane.name}) for plane in planes]
    assert max(time or 0 for time in times) == datetime(2026, 3, latest, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("other", [{"ours": False}, {"control_plane": False}, {"labels": {"kubernetes.io/os": "linux"}}])
def test_only_control_planes_of_thunderfleet_have_a_time_of_their_backup(other: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"labels": {"kubernetes.io/os": "darwin"}, "ours": True, "control_plane": True}
    node = Node("a", ready=True, saved=datetime.now(UTC), **{**usual, **other})
    found = registry(Objects(nodes=[node])).get_sample_value
    assert found("thunderfleet_control_plane_backup_timestamp_seconds", {"node": "a"}) is None


def test_a_replica_that_does_not_lead_shows_nothing() -> None:
    text = generate_latest(registry(Objects([deployment()], [link()], [profile()]), leading=False)).decode()
    assert "# TYPE thunderfleet_mac_ready gauge" in text
    assert not [line for line in text.splitlines() if not line.startswith("#")]


# --- the page --------------------------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from('ab\\"\n {},é'), max_size=4)
CONDITIONS = st.builds(
    Condition.model_construct,
    type=TEXTS,
    reason=TEXTS,
    status=st.sampled_from(list(ConditionStatus)),
    message=st.just(""),
    last_transition_time=st.just(datetime(2026, 3, 1, tzinfo=UTC)),
)


@st.composite
def fleets(draw: st.DrawFn) -> Objects:
    """A few objects of the same names, each in any state."""
    made = deployment(draw(st.sampled_from(["True", "False"])))
    group = made.status.groups[0].model_copy(update={"ranks": made.status.groups[0].ranks[: draw(st.integers(0, 2))]})
    conditions = (*made.status.conditions, *draw(st.lists(CONDITIONS, max_size=2)))
    status = made.status.model_copy(update={"groups": (group,) * draw(st.integers(0, 1)), "conditions": conditions})
    shown = profile()
    used = shown.status.model_copy(update={"groups": shown.status.groups * draw(st.integers(0, 1))})
    cable = link()
    ends = cable.status.model_copy(update={"conditions": tuple(draw(st.lists(CONDITIONS, max_size=2)))})
    planes = [control_plane(name, draw(st.integers(1, 3)), draw(st.sampled_from([None, 5]))) for name in ("studio-1", "b")]
    return Objects(
        draw(st.sampled_from([[], [made.model_copy(update={"status": status})]])),
        draw(st.sampled_from([[], [cable.model_copy(update={"status": ends})], [None]])),
        draw(st.sampled_from([[], [shown.model_copy(update={"status": used})]])),
        planes[: draw(st.integers(0, 2))],
        draw(st.sampled_from([{}, {"team/chat": 1}, {"team/chat": 2}])),
    )


def mixed(parts: tuple[Objects, Objects, Objects, Objects]) -> Objects:
    return Objects(parts[0].deployments, parts[1].links, parts[2].profiles, parts[3].nodes, parts[1].needed)


@settings(max_examples=examples(30), deadline=None)
@given(st.data())
def test_every_page_is_what_the_objects_are_now(data: st.DataObject) -> None:
    """Objects come, change one without the others, and go; each page is as prometheus-client writes the same families."""
    variants = data.draw(st.lists(fleets(), min_size=1, max_size=3))
    one = st.sampled_from(variants)
    now = Objects()
    leading = True
    shown = ObjectMetrics(lambda: now, lambda: leading)
    expected = CollectorRegistry()
    expected.register(ObjectMetrics(lambda: now, lambda: leading))
    for _ in range(4):
        now = mixed(data.draw(st.tuples(one, one, one, one)))
        leading = data.draw(st.booleans())
        assert shown.page() == generate_latest(expected)


def test_what_has_not_changed_is_rendered_once() -> None:
    """A page for a thousand Macs would else keep the operator from its work for a third of a second."""
    now = Objects([deployment()], [link()], [profile()], [control_plane("a", 1)])
    shown = ObjectMetrics(lambda: now, lambda: True)
    first = shown.page()
    rendered = {key: lines for key, (_, lines) in shown._kept.items()}
    assert len(rendered) == 4 and shown.page() == first
    assert all(shown._kept[key][1] is lines for key, lines in rendered.items())
    now = Objects([deployment("True")], now.links, now.profiles, now.nodes)
    assert shown.page() != first
    assert [key[0] for key, lines in rendered.items() if shown._kept[key][1] is not lines] == ["deployment"]
    now = Objects()
    shown.page()
    assert not shown._kept


@pytest.mark.parametrize("transport", ["JACCL", "JACCLRing", "Ring", "None"])
def test_placements_are_shown_from_0_on(transport: str) -> None:
    shown = Metrics().registry.get_sample_value
    assert shown("thunderfleet_operator_placements_total", {"transport": transport}) == 0
    assert shown("thunderfleet_operator_placements_total", {"transport": "Auto"}) is None, "no placement has it"


def test_no_name_is_also_that_of_another_metric() -> None:
    Metrics().registry.register(ObjectMetrics(Objects, lambda: False))
