"""The fleet that the benchmark of the commands puts into etcd: whole, wired as promised, and shown without a problem."""

import json
from collections import Counter
from typing import Any

from thunderfleet_cli.view.reports import status, topology
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink, link_name
from thunderfleet_view.facts import Picture

from tests.bench.fleets import commands, written
from tests.bench.fleets.commands import RANKS, REACH, Samples, cables, objects
from tests.bench.fleets.scale import deployment
from tests.bench.fleets.written import SAMPLES, Sample

Json = dict[str, Any]
MACS, DEPLOYMENTS = 40, 9
READY = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {}}


def samples() -> Samples:
    """As the API server would make them, without what it adds."""
    one = SAMPLES[0]
    node = {"kind": "Node", "metadata": {"name": one, "labels": {"kubernetes.io/os": "darwin"}}, **READY}
    api = {"apiVersion": "thunderfleet.io/v1alpha1"}
    profile = {**api, "kind": "NodeProfile", "metadata": {"name": one}, "status": written.profile_status()}
    link = {**api, "kind": "ThunderboltLink", "metadata": {"name": "sample"}}
    macs = tuple(
        Sample(f"/registry/{kind}", json.dumps(item))
        for kind, item in (("minions", node), ("leases/kube-node-lease", {"metadata": {"name": one}}), ("profiles", profile))
    )
    pod = {"metadata": {"name": "sample", "namespace": "default"}, "spec": {}, "status": {"phase": "Running"}}
    return Samples(macs, link, deployment("sample"), pod)


def kept() -> dict[str, list[Json]]:
    """The objects by the folder of their keys."""
    found: dict[str, list[Json]] = {}
    for key, text in objects(samples(), MACS, DEPLOYMENTS):
        found.setdefault(key.split("/")[-3] if "default" in key else key.split("/")[-2], []).append(json.loads(text))
    return found


def test_there_are_three_cables_a_mac_in_six_ports() -> None:
    specs = list(cables(commands.MACS))
    ends = Counter((end.node, end.port) for spec in specs for end in (spec.a, spec.b))
    assert len({link_name(spec) for spec in specs}) == len(specs) == 3000
    assert len(ends) == 6000 and set(ends.values()) == {1}


def test_the_fleet_is_whole_valid_and_without_a_problem() -> None:
    found = kept()
    counts = {kind: len(items) for kind, items in found.items()}
    assert counts == {
        "minions": MACS, "kube-node-lease": MACS, "profiles": MACS, "thunderboltlinks": MACS * REACH,
        "modeldeployments": DEPLOYMENTS, "pods": DEPLOYMENTS * RANKS,
    }  # fmt: skip
    for item in found["thunderboltlinks"][:: MACS // 10]:
        assert len(ThunderboltLink.load(item).status.measurements) == 4
    for item in found["profiles"][:: MACS // 10]:
        NodeProfile.load(item)
    ModelDeployment.load(found["modeldeployments"][-1])
    picture = Picture(
        nodes=found["minions"], profiles=found["profiles"], links=found["thunderboltlinks"],
        deployments=found["modeldeployments"], pods=found["pods"],
    )  # fmt: skip
    shown = status.as_values(picture)
    problems = {one["problem"] for kind in ("deployments", "macs", "cables") for one in shown[kind]}
    assert problems == {""}
    assert all(one["readyReplicas"] == 1 and len(one["nodes"]) == RANKS for one in shown["deployments"])
    drawn = topology.as_values(topology.topology(picture))
    used = [cable for cable in drawn["cables"] if cable["neededBy"]]
    assert len(used) == DEPLOYMENTS * (RANKS - 1), "each group uses the cables between its Macs"
