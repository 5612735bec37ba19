"""``plan`` on files says what the operator decides about the same objects, for random fleets."""

import json
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.kinds.modeldeployment import Group, ModelDeployment
from thunderfleet_crds.vocabulary import GroupPhase
from thunderfleet_operator.cli import main
from thunderfleet_operator.decide.status.verdict import MESSAGE_LENGTH
from thunderfleet_operator.plan_cli import command
from thunderfleet_operator.watch.cache import DEPLOYMENTS, LINKS, NODEPROFILES, NODES

from tests.support import yamltext
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


TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def files(dice: random.Random, facts: Json) -> list[Json]:
    """The models on a Mac: mostly the one that all have."""
    others: tuple[list[Json], ...] = (
        [],
        [facts | {"complete": False, "problem": "a file is missing"}],
        [facts | {"path": "/elsewhere/tiny"}],
    )
    return [facts] if dice.random() < 0.85 else dice.choice(others)


def add_macs(world: World, dice: random.Random, facts: Json) -> list[str]:
    names = [f"mac-{n}" for n in range(dice.randint(1, 6))]
    kinds = dice.sample(CHIPS, dice.randint(1, 2))
    for number, name in enumerate(names):
        world.mac(name, f"10.0.0.{number + 1}", dice.choice((3, 6, 6, 12, 24)) * GIB, model=facts, ready=dice.random() < 0.95)
        chip, cores = dice.choice(kinds)
        able = ["ring", "jaccl"] if dice.random() < 0.8 else ["ring"]

        models, version = files(dice, facts), dice.choice(("0.32.4",) * 9 + ("0.33.0",))

        def tell(item: Json, chip: str = chip, cores: int = cores, able: list[str] = able) -> None:
            item["status"] |= {"hardware": {"chip": chip, "gpuCores": cores}, **ports(len(names))}
            item["status"]["runtime"]["backends"] = able

        def hold(item: Json, models: list[Json] = models, version: str = version) -> None:
            item["status"]["models"] = models
            item["status"]["runtime"]["mlxVersion"] = version

        if dice.random() < 0.9:
            world.change(NODEPROFILES, name, tell)
        world.change(NODEPROFILES, name, hold)
        if dice.random() < 0.1:
            world.change(NODES, name, lambda item: item["spec"].update(unschedulable=True))
        if dice.random() < 0.1:
            world.change(NODES, name, lambda item: item["spec"]["taints"].append(TAINT))
        if dice.random() < 0.3:
            world.change(NODES, name, lambda item: item["metadata"]["labels"].update(room="b"))
    return names


def add_cables(world: World, dice: random.Random, names: list[str]) -> list[str]:
    found = []
    chance = dice.choice((0.3, 0.8, 1.0))
    for i, one in enumerate(names):
        for j in range(i + 1, len(names)):
            if dice.random() > chance:
                continue
            other, a, b = names[j], j, i + 1
            found.append(plug_in(world, (one, a), (other, b), dice.choice((40_000, 80_000, 80_000)), 10 * i + j))
            if dice.random() < 0.15:
                # The other end detects nothing, or neither does, or the device is down, or it has no address.
                changes: Json = dice.choice(({"seesPeer": False}, {"rdmaState": "Down"}, {"address": None}))
                both = dice.random() < 0.5
                world.change(LINKS, found[-1], partial(harm, changes=changes, both=both))
    return found


def add_dials(world: World, dice: random.Random, names: list[str]) -> None:
    """What the agents have reached over the LAN and over cables, and what not."""
    at = {name: f"10.0.0.{number}" for number, name in enumerate(names, 1)}
    ends: list[tuple[str, str]] = []
    for link in world.cache[LINKS].items.values():
        ends += [(end["node"], end["address"]) for end in link["status"]["endpoints"] if "address" in end]
    for name in names:
        rows = []
        for node, address in [*at.items(), *ends]:
            if node != name and dice.random() < 0.6:
                state = "Reachable" if dice.random() < 0.8 else "Unreachable"
                rows.append({"node": node, "address": address, "state": state, "since": WHEN})
        lan = {"address": at[name], "prefixLength": 24, "class": "Private"}
        told = {"network": {"interfaces": [{"name": "en0", "kind": "Ethernet", "addresses": [lan]}]}, "reachability": rows}
        world.change(NODEPROFILES, name, lambda item, told=told: item["status"].update(told))  # type: ignore[misc]


def harm(item: Json, *, changes: Json, both: bool) -> None:
    ends = item["status"]["endpoints"]
    for end in ends if both else ends[:1]:
        end.update(changes)
        for name in [name for name, value in end.items() if value is None]:
            del end[name]


def plug_in(world: World, one: tuple[str, int], other: tuple[str, int], speed: int, network: int) -> str:
    """A new cable between two ports."""
    name = f"{one[0]}.tb{one[1]}--{other[0]}.tb{other[1]}"
    ends = [
        {
            "node": node, "port": port, "interface": f"en{port}", "rdmaDevice": f"rdma_en{port}", "rdmaState": "Active",
            "address": f"169.254.{network}.{number}", "speedMbps": speed, "seesPeer": True,
        }
        for number, (node, port) in enumerate((one, other), 1)
    ]  # fmt: skip
    spec = {side: {"node": node, "port": port} for side, (node, port) in zip("ab", (one, other), strict=True)}
    world.put(LINKS, {"metadata": {"name": name}, "spec": spec, "status": {"endpoints": ends}})
    return name


def spec_of(dice: random.Random) -> Json:
    spec: Json = {"model": {"repository": "org/tiny"}, "replicas": dice.choice((1, 1, 2))}
    nodes: Json = {}
    if dice.random() < 0.4:
        nodes["min"] = dice.choice((1, 2, 3))
    if dice.random() < 0.2:
        nodes["tolerations"] = [{"key": "team", "operator": dice.choice(("Exists", "Equal")), "effect": "NoSchedule"}]
        if nodes["tolerations"][0]["operator"] == "Equal":
            nodes["tolerations"][0]["value"] = dice.choice("ab")
    if dice.random() < 0.1:
        nodes["selector"] = {"room": "b"}
    if nodes:
        spec["nodes"] = nodes
    if dice.random() < 0.5:
        spec["placement"] = {"policy": dice.choice(("Fastest", "Fewest"))}
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
        world.end_pods()
        world.later(20)
    await world.reconciler.deployment(f"ns/{name}")


async def serves(world: World, name: str) -> None:
    """Its groups are Ready."""
    world.run_pods()
    for group in read(world, name).status.groups:
        if group.ranks:
            world.say("Ready", group.epoch, group.index)
    await world.reconciler.deployment(f"ns/{name}")


Disturbance = Callable[[World, random.Random, str], None]
"""Of a Mac."""


def cordon(world: World, dice: random.Random, name: str) -> None:
    world.change(NODES, name, lambda item: item["spec"].update(unschedulable=True))


def taint(world: World, dice: random.Random, name: str) -> None:
    world.change(NODES, name, lambda item: item["spec"]["taints"].append(TAINT))


def silence(world: World, dice: random.Random, name: str) -> None:
    """Its kubelet and its agent are silent; what the agent has said is out of date."""
    world.change(NODES, name, lambda item: item["status"]["conditions"][0].update(status="Unknown"))


def delete(world: World, dice: random.Random, name: str) -> None:
    if len(world.cache[NODES].items) > 1:
        world.remove(NODES, name)


def lose_profile(world: World, dice: random.Random, name: str) -> None:
    world.remove(NODEPROFILES, name)


def lose_files(world: World, dice: random.Random, name: str) -> None:
    world.change(NODEPROFILES, name, lambda item: item["status"].update(models=[]))


def readdress(world: World, dice: random.Random, name: str) -> None:
    world.change(NODES, name, lambda item: item["status"]["addresses"][0].update(address="10.9.9.9"))


def quarantine(world: World, dice: random.Random, name: str) -> None:
    held = {"bootID": "boot", "since": WHEN, "reason": "WiredMemoryStranded", "evidence": "group ns/other-0: it was so"}
    world.change(NODES, name, lambda item: item["status"].update(nodeInfo={"bootID": "boot"}))
    world.change(NODEPROFILES, name, lambda item: item["status"].update(quarantine=held))


def shrink(world: World, dice: random.Random, name: str) -> None:
    """Another pod takes its memory."""
    world.change(NODES, name, lambda item: item["status"]["allocatable"].update(memory=str(GIB)))


ON_MACS: tuple[Disturbance, ...] = (
    cordon, taint, silence, delete, lose_profile, lose_files, readdress, quarantine, shrink
)  # fmt: skip


def unplug(world: World, dice: random.Random, link: str) -> None:
    world.change(LINKS, link, partial(harm, changes={"seesPeer": False}, both=True))


def fail_rdma(world: World, dice: random.Random, link: str) -> None:
    world.change(LINKS, link, partial(harm, changes={"rdmaState": "Down"}, both=dice.random() < 0.5))


async def disturb(world: World, dice: random.Random, names: list[str]) -> None:
    """Changes one Mac or cable."""
    links = list(world.cache[LINKS].items)
    if links and dice.random() < 0.4:
        link = dice.choice(links)
        dice.choice((unplug, fail_rdma))(world, dice, link)
        await world.links.round(link)
        return
    name = dice.choice(names)
    if name in world.cache[NODES].items and name in world.cache[NODEPROFILES].items:
        dice.choice(ON_MACS)(world, dice, name)
    for link in links:
        if name in link:
            await world.links.round(link)


def corrupt(world: World, dice: random.Random) -> None:
    """A cable corrupted data of a group that has ended, as its status records."""
    links = list(world.cache[LINKS].items)
    known = read(world, "md").status.groups
    if not links or not known:
        return
    name = dice.choice(links)
    connection = world.index.fleet.cables[name].connection
    entry = {"name": name, "epoch": 1, "connection": connection, "since": world.now.isoformat()}
    world.change(DEPLOYMENTS, "ns/md", lambda item: item["status"]["groups"][0].update(avoidedLinks=[entry]))


def fail(world: World, dice: random.Random) -> None:
    """Its first group has failed on one of its Macs, and backs off."""
    group = read(world, "md").status.groups[0]
    node = dice.choice(group.ranks).node
    fault = dice.choice(("Replan", "Retry", "Bug"))
    failure = {"class": fault, "reason": "RankFailed", "message": "it ended", "node": node, "rank": 0, "time": WHEN}
    until = (world.now + timedelta(seconds=10)).isoformat()

    def tell(item: Json) -> None:
        item["status"]["groups"][0].update(state="BackingOff", lastFailure=failure, nextRestartTime=until)

    world.reports.clear()
    world.change(DEPLOYMENTS, "ns/md", tell)


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
    found.write_text(yamltext.dump({"kind": "List", "apiVersion": "v1", "items": items}))
    return found


def said(group: Mapping[str, Any]) -> Json:
    """What ``plan`` says of a group, as far as the status says it too."""
    if not group["placed"]:
        return {"message": group["message"][:MESSAGE_LENGTH]}
    return {
        "ranks": [(rank["node"], rank["memoryBytes"], rank["layers"]) for rank in group["ranks"]],
        "transport": group["transport"],
        "parallelism": group["parallelism"],
        "reason": group["reason"],
        "rate": float(f"{group['predicted']['decodeTokensPerSecond']:.2g}") if group["predicted"] else None,
        "correction": group["predicted"]["correctionPercent"] if group["predicted"] else None,
    }


def placed(group: Group) -> bool:
    """Whether it has a placement that has not failed."""
    return bool(group.ranks) and group.state is not GroupPhase.BACKING_OFF


def decided(group: Group) -> Json:
    """The same of the status."""
    if not placed(group):
        # While it backs off, the condition Placed has the message.
        return {"message": group.message} if not group.ranks else {}
    found, speed = group.dump(), group.predicted
    return {
        "ranks": [(rank["node"], rank["memoryBytes"], rank.get("layers")) for rank in found["ranks"]],
        "transport": group.transport,
        "parallelism": group.parallelism,
        "reason": group.reason,
        "rate": float(f"{float(speed.decode_tokens_per_second or 0):.2g}") if speed is not None else None,
        "correction": speed.correction_percent if speed is not None else None,
    }


def supposed(world: World, dice: random.Random, names: list[str]) -> list[str]:
    """Changes the fleet, and says it as arguments of ``plan``."""
    kind, able = dice.random(), [name for name in names if has_ports(world, name)]
    if kind < 0.2 and len(names) > 1:
        gone = dice.choice(names)
        return ["--without", gone]
    if kind < 0.5 and len(able) > 1:
        one, other = sorted(dice.sample(able, 2))
        a, b, speed = dice.randint(1, len(names)), dice.randint(1, len(names)), dice.choice((40, 80))
        return ["--what-if", f"cable {one}:{a} {other}:{b} {speed}"]
    return []


def has_ports(world: World, name: str) -> bool:
    return "thunderbolt" in world.cache[NODEPROFILES].items[name]["status"]


async def happens(world: World, arguments: list[str]) -> None:
    """What ``plan`` is to suppose."""
    if arguments[:1] == ["--without"]:
        gone = arguments[1]
        world.remove(NODES, gone)
        world.remove(NODEPROFILES, gone)
        for key, link in list(world.cache[LINKS].items.items()):
            if gone in (link["spec"]["a"]["node"], link["spec"]["b"]["node"]):
                world.remove(LINKS, key)
    if arguments[:1] == ["--what-if"]:
        _, *ends, gbps = arguments[1].split()
        (one, a), (other, b) = ((node, int(port)) for node, _, port in (end.partition(":") for end in ends))
        for key, link in list(world.cache[LINKS].items.items()):
            if {(end["node"], end["port"]) for end in link["spec"].values()} & {(one, a), (other, b)}:
                world.remove(LINKS, key)
        await world.links.round(plug_in(world, (one, a), (other, b), int(gbps) * 1000, 99))


def planned(world: World, folder: Path, spec: Json, dice: random.Random, more: list[str], capsys: Any) -> tuple[int, Json]:
    """Exit status and output of ``plan``."""
    fleet, deployment = written(world, folder, plans=dice.random() < 0.5), folder / "md.yaml"
    head: Json = {"apiVersion": "thunderfleet.io/v1alpha1", "kind": "ModelDeployment"}
    deployment.write_text(yamltext.dump({**head, "metadata": {"name": "md", "namespace": "ns"}, "spec": spec}))
    capsys.readouterr()
    status = main(["plan", "--fleet", str(fleet), "--deployment", str(deployment), "-o", "json", *more])
    output = capsys.readouterr()
    assert not output.err, output.err
    return status, json.loads(output.out)


async def happens_to_it(world: World, dice: random.Random, names: list[str]) -> None:
    """While the ModelDeployment runs, Macs and cables change."""
    if dice.random() < 0.6:
        await serves(world, "md")
    placed = any(group.ranks for group in read(world, "md").status.groups[:1])
    if placed and dice.random() < 0.2:
        fail(world, dice)
    elif dice.random() < 0.2:
        corrupt(world, dice)
    for _ in range(dice.choice((0, 1, 2))):
        await disturb(world, dice, names)


async def agrees(seed: int, folder: Path, capsys: Any) -> None:
    """Compares what ``plan`` says of a random fleet with what the operator does there."""
    dice, world = random.Random(seed), World()
    names = add_macs(world, dice, model(dice))
    cables = add_cables(world, dice, names)
    if dice.random() < 0.5:
        add_dials(world, dice, names)
    for cable in cables:
        await world.links.round(cable)
    if dice.random() < 0.6:
        put(world, "other", {**spec_of(dice), "replicas": 1})
        await settled(world, "other")
        if read(world, "other").status.groups[0].ranks:
            benchmark(world, "other", dice.choice((5.0, 20.0, 60.0)))
    spec = spec_of(dice)
    runs = dice.random() < 0.5
    if runs:
        # It keeps its groups, and gets one more.
        put(world, "md", spec)
        await settled(world, "md")
        spec = spec | {"replicas": spec["replicas"] + dice.choice((0, 1))}
        await happens_to_it(world, dice, names)
    before = {group.index: group.epoch for group in read(world, "md").status.groups} if runs else {}
    more = [] if runs else supposed(world, dice, names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "now", lambda: world.now)
        status, found = planned(world, folder, spec, dice, more, capsys)
    await happens(world, more)
    if runs:
        world.change(DEPLOYMENTS, "ns/md", lambda item: item["spec"].update(spec))
    else:
        put(world, "md", spec)
    await settled(world, "md")
    groups = read(world, "md").status.groups
    # Of several groups that leave their Macs, the next one may be placed before the pods of the one before it have ended.
    uncertain = [group.index for group in groups if group.epoch > before.get(group.index, group.epoch)][1:]
    for one, other in zip(found["groups"], groups, strict=True):
        if uncertain and other.index >= uncertain[0]:
            break
        mine, theirs = said(one), decided(other)
        mine = {} if not theirs and not one["placed"] else mine
        if one["kept"]:
            # The status says by what it was chosen then.
            mine["reason"], theirs["reason"] = (entry["reason"].partition("; ")[2] for entry in (mine, theirs))
        assert mine == theirs
    assert (status == 0) == found["placed"]
    assert uncertain or found["placed"] == all(map(placed, groups))


# In 1805, a cable of a group that backs off is pulled, and the file does not have the group's plan.
@pytest.mark.parametrize("seed", [*range(60), 1805])
async def test_the_offline_planner_says_what_the_operator_decides(seed: int, tmp_path: Path, capsys: Any) -> None:
    await agrees(seed, tmp_path, capsys)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
async def test_the_offline_planner_says_it_of_many_fleets(part: int, tmp_path: Path, capsys: Any) -> None:
    for seed in range(1000 + part, 2000, 20):
        await agrees(seed, tmp_path, capsys)
