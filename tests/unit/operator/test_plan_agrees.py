"""``plan`` on files says what the operator decides about the same objects, for random fleets."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from thunderfleet_crds.modeldeployment import Group, ModelDeployment
from thunderfleet_operator.cli import main
from thunderfleet_operator.watch.cache import DEPLOYMENTS, LINKS, NODEPROFILES, NODES

from tests.unit.operator.world import World, tiny_model

Json = dict[str, Any]
GIB = 2**30
WHEN = "2026-01-01T00:00:00Z"
CHIPS = (("Apple M3 Ultra", 80), ("Apple M4 Max", 40), ("Apple M4 Pro", 20))
KINDS = {
    "nodes": "Node",
    "nodeprofiles": "NodeProfile",
    "thunderboltlinks": "ThunderboltLink",
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "modeldeployments": "ModelDeployment",
}


def model(dice: random.Random) -> Json:
    found = tiny_model(dice.choice((4, 8, 16)) * GIB)
    if dice.random() < 0.8:
        found["activeBytes"] = found["bytes"]
    return found


def ports(count: int) -> Json:
    """What a Mac says of its Thunderbolt ports, all of which can do RDMA."""
    numbers = range(1, count + 1)
    return {
        "thunderbolt": {
            "ports": [
                {"receptacle": n, "interface": f"en{n}", "rdmaDevice": f"rdma_en{n}", "connected": True, "speedMbps": 80_000}
                for n in numbers
            ]
        },
        "rdma": {
            "enabled": True,
            "state": "Ready",
            "devices": [
                {"name": f"rdma_en{n}", "interface": f"en{n}", "state": "Active", "gid": f"::ffff:169.254.{n}.1"}
                for n in numbers
            ],
        },
    }


def add_macs(world: World, dice: random.Random, facts: Json) -> list[str]:
    names = [f"mac-{n}" for n in range(dice.randint(1, 6))]
    kinds = dice.sample(CHIPS, dice.randint(1, 2))
    for number, name in enumerate(names):
        world.mac(name, f"10.0.0.{number + 1}", dice.choice((3, 6, 6, 12, 24)) * GIB, model=facts, ready=dice.random() < 0.95)
        chip, cores = dice.choice(kinds)
        able = ["ring", "jaccl"] if dice.random() < 0.8 else ["ring"]

        def tell(item: Json, chip: str = chip, cores: int = cores, able: list[str] = able) -> None:
            item["status"] |= {"hardware": {"chip": chip, "gpuCores": cores}, **ports(len(names))}
            item["status"]["runtime"]["backends"] = able

        if dice.random() < 0.9:
            world.change(NODEPROFILES, name, tell)
        if dice.random() < 0.1:
            world.change(NODES, name, lambda item: item["spec"].update(unschedulable=True))
    return names


def add_cables(world: World, dice: random.Random, names: list[str]) -> list[str]:
    found = []
    chance = dice.choice((0.3, 0.8, 1.0))
    for i, one in enumerate(names):
        for j in range(i + 1, len(names)):
            if dice.random() > chance:
                continue
            other, a, b = names[j], j, i + 1
            name, speed = f"{one}.tb{a}--{other}.tb{b}", dice.choice((40_000, 80_000, 80_000))
            ends = [
                {
                    "node": node, "port": port, "interface": f"en{port}", "rdmaDevice": f"rdma_en{port}", "rdmaState": "Active",
                    "address": f"169.254.{10 * i + j}.{number}", "speedMbps": speed, "seesPeer": True,
                }
                for number, (node, port) in enumerate(((one, a), (other, b)), 1)
            ]  # fmt: skip
            spec = {"a": {"node": one, "port": a}, "b": {"node": other, "port": b}}
            world.put(LINKS, {"metadata": {"name": name}, "spec": spec, "status": {"endpoints": ends}})
            found.append(name)
    return found


def spec_of(dice: random.Random) -> Json:
    spec: Json = {"model": {"repository": "org/tiny"}, "replicas": dice.choice((1, 1, 2))}
    if dice.random() < 0.4:
        spec["nodes"] = {"min": dice.choice((1, 2, 3))}
    if dice.random() < 0.3:
        spec["placement"] = {"policy": "Fastest"}
    if dice.random() < 0.2:
        spec["transport"] = dice.choice(("Ring", "JACCL"))
    if dice.random() < 0.2:
        spec["parallelism"] = dice.choice(("Tensor", "Pipeline"))
    return spec


def put(world: World, name: str, spec: Json) -> None:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "generation": 1}
    world.put(DEPLOYMENTS, {"metadata": meta, "spec": spec})


def read(world: World, name: str) -> ModelDeployment:
    return ModelDeployment.load(world.cache[DEPLOYMENTS].items[f"ns/{name}"])


async def settled(world: World, name: str) -> None:
    """Until nothing that the operator waits for can change its decision."""
    for _ in range(3):
        await world.reconciler.deployment(f"ns/{name}")
        world.later(20)
    await world.reconciler.deployment(f"ns/{name}")


def benchmark(world: World, name: str, rate: float) -> None:
    """Its first group was measured where it runs."""
    group = read(world, name).status.groups[0]
    measured = {"group": 0, "epoch": group.epoch, "promptTokens": 512, "generationTokens": 128, "measuredAt": WHEN}
    told = {**measured, "decodeTokensPerSecond": f"{rate:.1f}"}
    world.change(DEPLOYMENTS, f"ns/{name}", lambda item: item["status"].update(benchmark=told))


def written(world: World, folder: Path, *, plans: bool) -> Path:
    """The objects as kubectl prints them. ``plans``: with the ConfigMaps."""
    items = []
    for path, item in world.objects.items():
        kind = next((name for part, name in KINDS.items() if f"/{part}/" in path), None)
        if kind is not None and (plans or kind != "ConfigMap"):
            version = "v1" if kind in ("Node", "Pod", "ConfigMap") else "thunderfleet.io/v1alpha1"
            items.append({"apiVersion": version, **json.loads(json.dumps(item, default=str)), "kind": kind})
    found = folder / "fleet.yaml"
    found.write_text(yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": items}))
    return found


def said(group: Mapping[str, Any]) -> Json:
    """What ``plan`` says of a group, as far as the status says it too."""
    if not group["placed"]:
        return {"message": group["message"]}
    return {
        "ranks": [(rank["node"], rank["memoryBytes"], rank["layers"]) for rank in group["ranks"]],
        "transport": group["transport"],
        "parallelism": group["parallelism"],
        "reason": group["reason"],
        "rate": float(f"{group['predicted']['decodeTokensPerSecond']:.2g}") if group["predicted"] else None,
        "correction": group["predicted"]["correctionPercent"] if group["predicted"] else None,
    }


def decided(group: Group) -> Json:
    """The same of the status."""
    if not group.ranks:
        return {"message": group.message}
    found, speed = group.dump(), group.predicted
    return {
        "ranks": [(rank["node"], rank["memoryBytes"], rank.get("layers")) for rank in found["ranks"]],
        "transport": group.transport,
        "parallelism": group.parallelism,
        "reason": group.reason,
        "rate": float(f"{float(speed.decode_tokens_per_second or 0):.2g}") if speed is not None else None,
        "correction": speed.correction_percent if speed is not None else None,
    }


@pytest.mark.parametrize("seed", range(40))
async def test_the_offline_planner_says_what_the_operator_decides(seed: int, tmp_path: Path, capsys: Any) -> None:
    dice, world = random.Random(seed), World()
    names = add_macs(world, dice, model(dice))
    for cable in add_cables(world, dice, names):
        await world.links.round(cable)
    if dice.random() < 0.6:
        put(world, "other", {**spec_of(dice), "replicas": 1})
        await settled(world, "other")
        if read(world, "other").status.groups[0].ranks:
            benchmark(world, "other", dice.choice((5.0, 20.0, 60.0)))
    spec = spec_of(dice)
    fleet, deployment = written(world, tmp_path, plans=dice.random() < 0.5), tmp_path / "md.yaml"
    head: Json = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment"}
    deployment.write_text(yaml.safe_dump({**head, "metadata": {"name": "md", "namespace": "ns"}, "spec": spec}))
    status = main(["plan", "--fleet", str(fleet), "--deployment", str(deployment), "-o", "json"])
    planned = json.loads(capsys.readouterr().out)
    put(world, "md", spec)
    await settled(world, "md")
    groups = read(world, "md").status.groups
    assert [said(group) for group in planned["groups"]] == [decided(group) for group in groups]
    assert (status == 0) == planned["placed"] == all(group.ranks for group in groups)
