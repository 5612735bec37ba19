"""NodeProfiles as values that share equal models."""

import copy
from typing import Any

from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_operator.observe.fleet.builder import FleetBuilder
from thunderfleet_operator.observe.fleet.usage import Taken
from thunderfleet_operator.observe.objects.nodes import read_node
from thunderfleet_operator.observe.objects.profiles import ProfileReader

MODEL = {"path": "/m", "bytes": 5, "complete": True, "pipeline": {"layerBytes": [1, 2]}, "kv": [{"bytesPerToken": 4}]}


def profile(name: str, models: list[Any], **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"models": copy.deepcopy(models), **status}}


def test_equal_models_are_one_value_and_the_rest_is_as_read_alone() -> None:
    reader = ProfileReader()
    items = [profile("a", [MODEL]), profile("b", [MODEL], runtime={"mlxVersion": "1"}), profile("c", [{**MODEL, "bytes": 6}])]
    a, b, c = (reader.read(item) for item in items)
    assert a is not None and b is not None and c is not None
    assert a.status.models is b.status.models and a.status.models != c.status.models
    assert [a, b, c] == [NodeProfile.load(item) for item in items]
    assert b.dump() == NodeProfile.load(items[1]).dump()


def test_profiles_without_models_and_invalid_ones() -> None:
    reader = ProfileReader()
    assert reader.read({"metadata": {"name": "a"}}) == NodeProfile.load({"metadata": {"name": "a"}})
    assert reader.read(profile("a", [])) is not None
    for _ in range(2):
        assert reader.read(profile("a", [{**MODEL, "bytes": "many"}])) is None
    assert reader.read(profile("a", [MODEL])) is not None
    assert reader.read(profile("b", [MODEL], runtime=7)) is None, "invalid beside models that are known"
    assert reader.read({"metadata": {"name": "a"}, "status": {"models": "x"}}) is None


def test_macs_with_the_same_models_share_their_facts() -> None:
    reader, builder = ProfileReader(), FleetBuilder()
    profiles = {name: reader.read(profile(name, [MODEL], runtime={"backends": []})) for name in "ab"}
    nodes = {
        name: read_node({"metadata": {"name": name, "labels": {"kubernetes.io/os": "darwin"}}, "spec": {}, "status": {}})
        for name in "ab"
    }
    fleet = builder.fleet(nodes, profiles, {}, Taken())
    assert [(mac.chip, mac.gpu_cores) for mac in fleet.macs.values()] == [("", 0)] * 2, (
        "the profiles say nothing of the hardware"
    )
    assert fleet.macs["a"].models is fleet.macs["b"].models and fleet.macs["a"].models[0].layer_bytes == (1, 2)


def test_the_facts_of_models_that_no_mac_has_any_more_are_dropped() -> None:
    """One list can take megabytes, and a Mac can publish another one every second."""
    reader, builder = ProfileReader(), FleetBuilder()
    nodes = {"a": read_node({"metadata": {"name": "a", "labels": {"kubernetes.io/os": "darwin"}}, "spec": {}, "status": {}})}
    for number in range(3):
        other = profile("a", [{**MODEL, "bytes": number}])
        fleet = builder.fleet(nodes, {"a": reader.read(other)}, {}, Taken())
        assert fleet.macs["a"].models[0].bytes == number and len(builder._facts) == 1
    other = profile("a", [{**MODEL, "bytes": 2}], runtime={"backends": ["ring"]})
    fleet = builder.fleet(nodes, {"a": reader.read(other)}, {}, Taken())
    assert fleet.macs["a"].backends == {"ring"} and len(builder._facts) == 1
    assert not builder.fleet({}, {}, {}, Taken()).macs and not builder._facts
