"""Placement by the shape of the cabling: a full mesh of four Macs and a ring of four, joined by a hub and by a cable.

Every group answers what one process answers, and the operator decides what ``thunderfleet-operator plan`` predicts.
"""

import json
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from thunderfleet_lib.quantity import to_bytes
from thunderfleet_localcluster.models import tinymodel

from tests.support.line import Alone, Deploy, Deployment, Line, condition, on_fleet
from tests.support.suite.tiers import quick
from tests.support.waiting import until

Json = dict[str, Any]

FLEET = """
machines:
  - {name: linux-1, kind: linux}
  - {name: mesh-1, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: mesh-2, model: Mac Studio (M3 Ultra), memory: 96 GB, rdma: true, jaccl: recorded}
  - {name: mesh-3, model: Mac Studio (M4 Max), memory: 36 GB, rdma: true, jaccl: recorded}
  - {name: mesh-4, model: Mac Studio (M4 Max), memory: 36 GB, rdma: true, jaccl: recorded}
  - {name: ring-1, model: Mac mini (M4 Pro), memory: 48 GB, rdma: true, jaccl: recorded}
  - {name: ring-2, model: Mac mini (M4 Pro), memory: 48 GB, rdma: true, jaccl: recorded}
  - {name: ring-3, model: Mac mini (M4 Pro), memory: 24 GB, gpuMemoryMB: 17000, rdma: true, jaccl: recorded}
  - {name: ring-4, model: Mac mini (M4 Pro), memory: 48 GB, rdma: true, jaccl: recorded}
cables:
  - {a: "mesh-1:1", b: "mesh-2:1"}
  - {a: "mesh-1:2", b: "mesh-3:1"}
  - {a: "mesh-1:3", b: "mesh-4:1"}
  - {a: "mesh-2:2", b: "mesh-3:2"}
  - {a: "mesh-2:3", b: "mesh-4:2"}
  - {a: "mesh-3:3", b: "mesh-4:3"}
  - {a: "ring-1:1", b: "ring-2:1"}
  - {a: "ring-2:2", b: "ring-3:1"}
  - {a: "ring-3:2", b: "ring-4:1"}
  - {a: "ring-4:2", b: "ring-1:2"}
  - {a: "mesh-1:4", b: "ring-1:3", speed: 40, through: OWC Thunderbolt Hub}
  - {a: "mesh-2:4", b: "ring-2:3", seen: a}
"""
ONE_END = "mesh-2.tb4--ring-2.tb3"
MESH = ["mesh-1", "mesh-2", "mesh-3", "mesh-4"]
RING = ["ring-1", "ring-2", "ring-3", "ring-4"]
# A layer for each of eight ranks.
DEEP, DEEP_LAYERS = "thunderfleet/tiny-deep", 8
PROMPT, TOKENS = tinymodel.MESSAGES[0]["content"], 6
"""Few tokens: ranks that wait in a collective keep a core busy, and there are more ranks than cores."""
SMALL = {"memory": {"contextTokens": 2048, "cachedTokens": 4096}}
START_SECONDS = 400.0
"""For groups of more ranks than the machine has cores."""


@pytest.fixture(scope="module")
def line() -> Iterator[Line]:
    with on_fleet(FLEET, "shapes", "THUNDERFLEET_E2E_SHAPES", "operator.replicas=1", ends=1) as found:
        until(
            lambda: seen_from(found) == {ONE_END: 1} and fit_for(found) == {"Usable", "BelowThunderbolt5"},
            "every other cable is seen from both ends, and says what it is fit for",
            describe=lambda: f"{seen_from(found)} {found.kubectl('get', 'tbl')}",
        )
        for shape, macs in (("mesh", MESH), ("ring", RING)):
            found.kubectl("label", "nodes", *macs, f"shape={shape}", "--overwrite")
        found.kubectl("label", "nodes", "mesh-1", "ring-1", "pair=hub", "--overwrite")
        found.kubectl("label", "nodes", "mesh-2", "ring-2", "pair=one-end", "--overwrite")
        found.kubectl("label", "nodes", *RING[:3], "row=line", "--overwrite")
        yield found


def seen_from(line: Line) -> dict[str, int]:
    """How many ends see each cable that fewer than two see. An end that does not see the other one is listed too."""
    links = {link["metadata"]["name"]: link.get("status", {}).get("endpoints", []) for link in line.items("tbl")}
    ends = {name: sum(end.get("seesPeer", False) for end in listed) for name, listed in links.items()}
    return {name: count for name, count in ends.items() if count < 2}


def fit_for(line: Line) -> set[str]:
    """The reasons of the cables' RDMAUsable."""
    return {condition(link, "RDMAUsable").get("reason", "") for link in line.items("tbl")}


@pytest.fixture
def served(line: Line, deploy: Deploy, alone: Alone) -> Callable[..., Json]:
    """Deploys a spec after planning it offline, compares the two, and returns the group."""

    def serve(name: str, layers: int = tinymodel.LAYERS, **spec: object) -> Json:
        model = {"repository": DEEP if layers == DEEP_LAYERS else "thunderfleet/tiny-qwen2"}
        whole = {**SMALL, "model": model, **spec}
        meta = {"name": name, "namespace": "default"}
        asked = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment", "metadata": meta, "spec": whole}
        status, planned = line.plan(asked)
        assert status == 0, planned
        made = deploy(name, **whole)
        made.until(made.is_ready, "Ready", START_SECONDS)
        group: Json = made.group()
        agrees(planned["groups"][0], group)
        check_plan(made, group)
        body = {"model": model["repository"], "messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS}
        body |= {"temperature": 0, "return_token_ids": True}
        answer = line.request(f"{made.endpoint}/chat/completions", body)
        assert answer.status == 200, answer.body
        assert answer.json["choices"][0]["token_ids"] == alone(PROMPT, TOKENS, layers)
        status, again = line.plan(made.get())
        assert again["groups"][0]["reason"].startswith("kept its placement"), "the planner leaves a group that runs where it is"
        agrees(again["groups"][0], group)
        return group

    return serve


def agrees(planned: Json, group: Json) -> None:
    """The group must be as planned."""
    assert (planned["transport"], planned["parallelism"]) == (group["transport"], group["parallelism"])
    said = [(r["node"], r["memoryBytes"], r["layers"], r["address"]) for r in planned["ranks"]]
    assert said == [(r["node"], r["memoryBytes"], r.get("layers"), r["address"]) for r in group["ranks"]]


def check_plan(deployment: Deployment, group: Json) -> Json:
    """The plan in the ConfigMap, which must match status."""
    (item,) = deployment.line.items("configmaps", "-n", deployment.namespace, "-l", "thunderfleet.io/group=0")
    plan: Json = json.loads(item["data"]["plan.json"])
    assert plan["epoch"] == group["epoch"]
    assert [(r["rank"], r["node"], r["pod"], r["memoryBytes"]) for r in plan["ranks"]] == [
        (r["rank"], r["node"], r["pod"], r["memoryBytes"]) for r in group["ranks"]
    ]
    for rank, entry in zip(plan["ranks"], group["ranks"], strict=True):
        if rank.get("layers"):
            first, last = rank["layers"]
            assert entry["layers"] == {"first": first, "count": last - first}
    return plan


def nodes_of(group: Json) -> list[str]:
    return [rank["node"] for rank in group["ranks"]]


def faces(line: Line, one: str, device: str) -> str:
    """The Mac at the other end of the cable in a Mac's port with this RDMA device."""
    for link in line.items("tbl"):
        ends = link["status"]["endpoints"]
        if any(end["node"] == one and end["rdmaDevice"] == device for end in ends):
            return str(next(end["node"] for end in ends if end["node"] != one))
    raise AssertionError(f"{one} has no cable at {device}")


def devices(line: Line, group: Json) -> list[list[str | None]]:
    """The device matrix of a group; the test checks that each device connects to the right Mac."""
    (item,) = (
        c for c in line.items("configmaps", "-A") if c["metadata"]["name"] == group["ranks"][0]["pod"].rpartition("-")[0]
    )
    ranks = json.loads(item["data"]["plan.json"])["ranks"]
    for rank in ranks:
        for other, device in zip(ranks, rank["devices"], strict=True):
            assert device is None or faces(line, rank["node"], device) == other["node"]
    return [rank["devices"] for rank in ranks]


def test_one_mac_is_enough_and_the_smallest_does(served: Callable[..., Json]) -> None:
    """Reading so small a model takes no time on any of these chips, so they count as equally fast."""
    group = served("alone", nodes={"min": 1})
    assert (nodes_of(group), group["transport"]) == (["ring-3"], "None"), "big Macs stay free for big models"
    assert group["reason"].startswith("by predicted speed (policy Fewest); one Mac holds the whole model")


def test_a_full_mesh_talks_over_a_jaccl_mesh(line: Line, served: Callable[..., Json]) -> None:
    group = served("mesh", nodes={"min": 3, "selector": {"shape": "mesh"}})
    assert (group["transport"], group["parallelism"]) == ("JACCL", "Pipeline")
    assert "JACCL mesh of 3 Macs (not Tensor: mlx-lm refuses it" in group["reason"]
    matrix = devices(line, group)
    assert [[device is None for device in row] for row in matrix] == [[i == j for j in range(3)] for i in range(3)]


def test_a_ring_talks_over_a_jaccl_ring(line: Line, served: Callable[..., Json]) -> None:
    group = served("ring", nodes={"min": 4, "selector": {"shape": "ring"}})
    assert (sorted(nodes_of(group)), group["transport"]) == (RING, "JACCLRing")
    neighbors = [[(i - j) % 4 in (1, 3) for j in range(4)] for i in range(4)]
    assert [[device is not None for device in row] for row in devices(line, group)] == neighbors


@pytest.mark.parametrize("parallelism", quick(["Auto"], ["Auto", "Tensor"]))
def test_through_a_hub_two_macs_talk_over_tcp(served: Callable[..., Json], parallelism: str) -> None:
    group = served("hub", nodes={"min": 2, "selector": {"pair": "hub"}}, parallelism=parallelism)
    assert (nodes_of(group), group["transport"]) == (["mesh-1", "ring-1"], "Ring")
    assert group["parallelism"] == ("Pipeline" if parallelism == "Auto" else "Tensor")
    assert "no RDMA over mesh-1.tb4--ring-1.tb3: the cable runs at 40 Gb/s" in group["reason"]


def test_three_in_a_row_need_a_cable_for_rdma_and_say_which(line: Line, deploy: Deploy, served: Callable[..., Json]) -> None:
    in_a_row = {"min": 3, "selector": {"row": "line"}}
    refused = deploy("row", transport="JACCL", nodes=in_a_row, **SMALL)
    message = refused.until_condition("Placed", "False", "NotConnected")["message"]
    assert "ring-3 ↔ ring-1: no Thunderbolt cable" in message or "ring-1 ↔ ring-3: no Thunderbolt cable" in message
    assert "each of mesh-1, mesh-2, mesh-3, mesh-4, ring-4 does not have the label row=line" in message
    near = refused.status["unplaceable"]
    assert {(miss.get("transport"), *sorted(miss.get("nodes", []))) for miss in near} >= {("JACCL", *RING[:3])}
    status, offline = line.plan(refused.get(), of_image=True)
    assert (status, offline["groups"][0]["message"]) == (3, message)
    # The missing hop is carried over the LAN, where TCP will do.
    group = served("lan", nodes=in_a_row, parallelism="Pipeline")
    assert (sorted(nodes_of(group)), group["transport"]) == (RING[:3], "Ring")
    assert "1 of 3 hops over the LAN" in group["reason"]


@pytest.mark.soak
def test_all_eight_in_one_ring(line: Line, served: Callable[..., Json]) -> None:
    tinymodel.make(line.cluster.models / DEEP, layers=DEEP_LAYERS)

    def sized() -> bool:
        models = [item["status"].get("models", []) for item in line.items("np")]
        return all(any(m.get("sizedBy") and m.get("repository") == DEEP for m in found) for found in models)

    until(sized, "every Mac reports the size of the model")
    group = served("eight", layers=DEEP_LAYERS, nodes={"min": 8}, transport="Ring")
    assert (sorted(nodes_of(group)), group["parallelism"]) == (MESH + RING, "Pipeline")
    order = nodes_of(group)
    crossings = [(a, b) for a, b in zip(order, [*order[1:], order[0]], strict=True) if (a in MESH) != (b in MESH)]
    assert {frozenset(pair) for pair in crossings} == {frozenset(("mesh-1", "ring-1")), frozenset(("mesh-2", "ring-2"))}
    assert {rank["layers"]["count"] for rank in group["ranks"]} == {1}


def said(line: Line, kind: str) -> tuple[str, str]:
    """Status and reason of a condition of the cable that only one end sees."""
    found = condition(line.json("get", "tbl", ONE_END), kind)
    return found.get("status", ""), found.get("reason", "")


@pytest.mark.parametrize("rdma", [True, False])
def test_a_cable_seen_from_one_end_carries_a_group(line: Line, served: Callable[..., Json], rdma: bool) -> None:
    """For RDMA if possible, otherwise for TCP."""
    line.cluster.rdma("on" if rdma else "off", "ring-2")
    try:
        usable = ("True", "Usable") if rdma else ("False", "RDMADisabled")
        until(lambda: said(line, "RDMAUsable") == usable, "the cable says what it is fit for")
        assert said(line, "Symmetric") == ("False", "OneEnd")
        # For a model this small tensor parallelism is not worth it, so Auto would choose a pipeline.
        split = {"parallelism": "Tensor"} if rdma else {}
        group = served("one-end", nodes={"min": 2, "selector": {"pair": "one-end"}}, **split)
    finally:
        line.cluster.rdma("on", "ring-2")
    assert set(nodes_of(group)) == {"mesh-2", "ring-2"}
    if rdma:
        assert (group["transport"], group["parallelism"]) == ("JACCL", "Tensor")
        assert [rank["shard"] for rank in group["ranks"]] == ["1/2", "2/2"]
        assert all("jaccl" in item["status"]["runtime"]["backends"] for item in line.items("np"))
    else:
        assert (group["transport"], group["parallelism"]) == ("Ring", "Pipeline")
        assert f"no RDMA over {ONE_END}: RDMA is disabled on ring-2" in group["reason"]


def test_node_and_profile_have_the_memory_that_mlx_reports(line: Line) -> None:
    nodes = {item["metadata"]["name"]: item["status"]["allocatable"]["memory"] for item in line.items("nodes")}
    profiles = {item["metadata"]["name"]: item["status"]["hardware"]["gpuMemoryLimitBytes"] for item in line.items("np")}
    # By the rule for Macs whose MLX cannot be asked it would be 16 GiB.
    assert (nodes["ring-3"], profiles["ring-3"]) == ("17000Mi", 17000 * 2**20)
    assert {name: to_bytes(nodes[name]) for name in profiles} == profiles


def test_macs_and_cables_say_their_shape(line: Line) -> None:
    """The cabling as users see it: `kubectl get np,tbl`."""
    links = {frozenset(end["node"] for end in link["status"]["endpoints"]) for link in line.items("tbl")}
    assert {frozenset(pair) for pair in combinations(MESH, 2)} <= links
    assert len(links) == 12
    table = line.kubectl("get", "tbl").splitlines()
    assert [row.split()[0] for row in table if "BelowThunderbolt5" in row] == ["mesh-1.tb4--ring-1.tb3"]
    counts = {row.split()[0]: row for row in line.kubectl("get", "np", "--no-headers").splitlines()}
    assert sorted(counts) == MESH + RING
