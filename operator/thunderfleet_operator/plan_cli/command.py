"""``thunderfleet-operator plan``: the planner on files, without a cluster. How people ask "what would happen if".

The fleet is what ``kubectl get nodes,np,tbl,md,pods -A -o yaml`` prints, edited at will; with ``configmaps`` in the list the
queue pairs and cables that other groups use are read from their plans, else worked out from the statuses of the deployments.
Reading is apart from deciding: the decision is the operator's own (``places.choose``).
"""

import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from thunderfleet_crds.common import ANNOTATION_PORTS, LABEL_GROUP, ApiModel
from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.nodeprofile import NodeProfile
from thunderfleet_crds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.vocabulary import Transport
from thunderfleet_lib.kube import Json, key_of
from thunderfleet_lib.quantity import to_bytes

from thunderfleet_operator.decide import port_aware_placement
from thunderfleet_operator.decide.model import resolve
from thunderfleet_operator.decide.ports import PortSettings
from thunderfleet_operator.observe import snapshot
from thunderfleet_operator.observe.fleet import Fleets, taints
from thunderfleet_operator.observe.snapshot import Parsed, RankPorts, Taken
from thunderfleet_operator.placement import Fleet, Placement, Unplaceable
from thunderfleet_operator.placement.graph.hops import rdma_hops, ring_hops
from thunderfleet_operator.placement.score import LABELS, PARTS
from thunderfleet_operator.placement.units import gbits, gib
from thunderfleet_operator.watch.cache import CONFIGMAPS, DEPLOYMENTS, LINKS, NODEPROFILES, NODES, PODS, Cache, Collection

KINDS: dict[str, tuple[Collection, type[ApiModel] | None]] = {
    "Node": (NODES, None),
    "Pod": (PODS, None),
    "ConfigMap": (CONFIGMAPS, None),
    "NodeProfile": (NODEPROFILES, NodeProfile),
    "ThunderboltLink": (LINKS, ThunderboltLink),
    "ModelDeployment": (DEPLOYMENTS, ModelDeployment),
}


class BadInput(Exception):
    """A file that cannot be used; names the file, the object and the field."""


# --- reading ---------------------------------------------------------------------------------------------------------


def _documents(path: Path, text: str) -> Iterator[Json]:
    try:
        documents = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        at = f" line {where.line + 1}" if where else ""
        raise BadInput(f"{path}:{at} is neither YAML nor JSON: {getattr(error, 'problem', None) or error}") from None
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise BadInput(f"{path}: document {number} is not an object, but {type(document).__name__}")
        if not str(document.get("kind", "")).endswith("List"):
            yield document
            continue
        items = document.get("items")
        if not isinstance(items, list):
            raise BadInput(f"{path}: {document.get('kind')}: items: must be a list")
        for position, item in enumerate(items):
            if not isinstance(item, dict):
                raise BadInput(f"{path}: {document['kind']}: items[{position}]: must be an object")
            yield item


def _name(path: Path, item: Json) -> str:
    """How messages call an object; checks what every object has."""
    kind = item.get("kind")
    if not isinstance(kind, str) or not kind:
        raise BadInput(f"{path}: an object has no kind")
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise BadInput(f"{path}: a {kind}: metadata.name: is missing")
    return f"{kind} {metadata['name']}"


def _field(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{to_camel(part) if '_' in part else part}"
    return text.lstrip(".") or "(the whole)"


def _labels(item: Json) -> dict[str, object]:
    found = item["metadata"].get("labels") or {}
    if not isinstance(found, dict):
        raise ValueError("must be an object")
    return found


def _annotations(item: Json) -> object:
    told = (item["metadata"].get("annotations") or {}).get(ANNOTATION_PORTS)
    ports: Any = json.loads(told) if told else {"gateway": 0, "control": 0}
    return int(ports["gateway"]), int(ports["control"]), [int(port) for port in ports.get("ring") or ()]


_CHILD: dict[str, Callable[[Json], object]] = {
    "metadata.labels": lambda item: (_labels(item), snapshot.group_index(item), snapshot.epoch_number(item)),
    "metadata.annotations": _annotations,
    "metadata.ownerReferences": snapshot.owner_uid,
}
_READS: dict[str, dict[str, Callable[[Json], object]]] = {
    "Node": {
        "metadata.labels": _labels,
        "spec.taints": taints,
        "status.allocatable.memory": lambda item: to_bytes(
            str(((item.get("status") or {}).get("allocatable") or {}).get("memory") or 0)
        ),
        "status.conditions": snapshot.is_ready,
        "status.addresses": snapshot.internal_ip,
        "status.nodeInfo": lambda item: ((item.get("status") or {}).get("nodeInfo") or {}).get("bootID"),
    },
    "Pod": {
        **_CHILD,
        "spec.affinity": snapshot.pod_node,
        "spec.containers[].resources.requests.memory": snapshot.pod_memory,
        "spec.containers[].ports": snapshot.pod_ports,
        "status": snapshot.pod_view,
    },
    "ConfigMap": {**_CHILD, "data": snapshot.read_epoch},
}
"""What is read of objects that have no model of ours, by field."""


def _check(path: Path, item: Json, model: type[ApiModel] | None) -> None:
    name = _name(path, item)
    for part in ("metadata", "spec", "status"):
        if item.get(part) is not None and not isinstance(item[part], dict):
            raise BadInput(f"{path}: {name}: {part}: must be an object")
    if model is not None:
        try:
            model.load(item)
        except ValidationError as error:
            first = error.errors()[0]
            raise BadInput(f"{path}: {name}: {_field(first['loc'])}: {first['msg']}") from None
        return
    for field, read in _READS[item["kind"]].items():
        try:
            read(item)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            why = str(error) if isinstance(error, ValueError) else "is not what Kubernetes has there"
            raise BadInput(f"{path}: {name}: {field}: {why}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None


def read_fleet(path: Path) -> Cache:
    """The objects of a file, as the operator keeps them; kinds that do not matter are left out. Raises ``BadInput``."""
    cache = Cache()
    found = 0
    for number, item in enumerate(_documents(path, _text(path)), 1):
        name = _name(path, item)
        known = KINDS.get(str(item["kind"]))
        if known is None:
            continue
        collection, model = known
        _check(path, item, model)
        if key_of(item) in cache[collection].items:
            raise BadInput(f"{path}: {name}: metadata.name: stands there twice")
        # Edited objects keep their old versions, so order and versions of the file say nothing.
        item["metadata"] = {**item["metadata"], "resourceVersion": str(number)}
        item["metadata"].setdefault("uid", f"{item['kind']}/{key_of(item)}")
        cache[collection].items[key_of(item)] = item
        found += item["kind"] == "Node"
    if not found:
        raise BadInput(f"{path}: has no Node: print it with `kubectl get nodes,np,tbl,md,pods -A -o yaml`")
    return cache


def read_deployment(path: Path, cache: Cache) -> ModelDeployment:
    """The one ModelDeployment of a file, with the identity and status of the one of that name in the fleet, if there is one.
    Raises ``BadInput``.
    """
    found = [item for item in _documents(path, _text(path)) if _name(path, item).startswith("ModelDeployment ")]
    if len(found) != 1:
        names = ", ".join(str(item["metadata"]["name"]) for item in found) or "none"
        raise BadInput(f"{path}: must hold exactly one ModelDeployment, holds {len(found)}: {names}")
    item = found[0]
    item["metadata"].setdefault("namespace", "default")
    known = cache[DEPLOYMENTS].items.get(key_of(item))
    uid = known["metadata"]["uid"] if known else "planned"
    item = {**item, "metadata": {**item["metadata"], "uid": uid}}
    if known is not None:
        item["status"] = known.get("status") or {}
    _check(path, item, ModelDeployment)
    made = ModelDeployment.load(item)
    name = f"{path}: ModelDeployment {made.metadata.name}"
    if (made.spec.model.repository is None) == (made.spec.model.path is None):
        raise BadInput(f"{name}: spec.model: names exactly one of repository and path")
    if made.spec.nodes.max is not None and made.spec.nodes.max < made.spec.nodes.min:
        raise BadInput(f"{name}: spec.nodes.max: is at least nodes.min ({made.spec.nodes.min}), or unset for no bound")
    return made


# --- deciding --------------------------------------------------------------------------------------------------------


def _told_use(cache: Cache, fleet: Fleet, used: Taken, uid: str | None, own: Container[int]) -> Taken:
    """With the cables and queue pairs of groups whose plans are not in the file: theirs are the best cables of their pairs.
    Groups ``own`` of deployment ``uid`` do not count.
    """
    planned = {
        (snapshot.owner_uid(item), (item["metadata"].get("labels") or {}).get(LABEL_GROUP)) for item in cache[CONFIGMAPS]
    }
    addresses, queue_pairs = set(used.addresses), dict(used.queue_pairs)
    for item in cache[DEPLOYMENTS]:
        md = ModelDeployment.load(item)
        for group in md.status.groups:
            if (md.metadata.uid == uid and group.index in own) or (md.metadata.uid, str(group.index)) in planned:
                continue
            nodes = [rank.node for rank in sorted(group.ranks, key=lambda rank: rank.rank) if rank.node in fleet.macs]
            if len(nodes) < 2:
                continue
            pairs = list(combinations(nodes, 2))
            if group.transport is not Transport.JACCL:
                pairs = [(node, nodes[(i + 1) % len(nodes)]) for i, node in enumerate(nodes)]
            for one, other in pairs:
                rdma = group.transport in (Transport.JACCL, Transport.JACCL_RING)
                hop = (rdma_hops(fleet, one) if rdma else ring_hops(fleet, one, lan=False)).get(other)
                for end in (hop.cable.a, hop.cable.b) if hop and hop.cable else ():
                    if rdma and end.device:
                        queue_pairs[end.node, end.device] = queue_pairs.get((end.node, end.device), 0) + 1
                    elif end.address:
                        addresses.add((end.node, end.address))
    return replace(used, addresses=frozenset(addresses), queue_pairs=queue_pairs)


@dataclass(frozen=True, slots=True)
class Decided:
    """One group: its place with ports, or why it has none."""

    index: int
    found: Placement | Unplaceable
    free: Mapping[str, int]
    """Bytes by Mac, before this group took its part."""
    ports: tuple[RankPorts, ...] = ()


def decide(cache: Cache, deployment: ModelDeployment, settings: PortSettings, runners_up: int) -> list[Decided]:
    """All groups, one after the other: each takes room from those after it. What another deployment holds stays."""
    parsed, decided, left = Parsed(), list[Decided](), Cache()
    for name, store in cache.stores.items():
        left.stores[name].items.update(store.items)
    uid, settled = deployment.metadata.uid, set[int]()
    for index in range(deployment.spec.replicas):
        # Groups of this deployment that run: those before this one hold what was decided, those after it what they have.
        used = snapshot.taken(left, uid, index)
        bare = Fleets().fleet(left, parsed, used)
        used = _told_use(left, bare, used, uid, settled | {index})
        fleet = Fleets().fleet(left, parsed, used)
        for earlier in decided:
            if isinstance(earlier.found, Placement):
                fleet, used = _with(fleet, used, earlier.found, earlier.ports)
        free = {name: mac.free_bytes for name, mac in fleet.macs.items()}
        before = next((group for group in deployment.status.groups if group.index == index), None)
        current = tuple(rank.node for rank in sorted(before.ranks, key=lambda rank: rank.rank)) if before else ()
        kept = _kept_ports(left, deployment, index)
        found = port_aware_placement.choose(
            fleet, deployment, used, settings, current=current, kept=kept, runners_up=runners_up
        )
        if isinstance(found, Unplaceable):
            decided.append(Decided(index, found, free))
            continue
        decided.append(Decided(index, found[0], free, tuple(found[1])))
        settled.add(index)
        for collection in (PODS, CONFIGMAPS):
            for item in snapshot.children(left[collection], deployment):
                if snapshot.group_index(item) == index:
                    left[collection].forget(key_of(item))
    return decided


def _kept_ports(cache: Cache, deployment: ModelDeployment, index: int) -> dict[str, RankPorts]:
    """The ports that a group which runs has: the operator lets it keep them."""
    view = snapshot.groups(cache, deployment)[index]
    pods = [pod for pod in snapshot.children(cache[PODS], deployment) if snapshot.group_index(pod) == index]
    return snapshot.kept_ports(view, pods)


def _with(fleet: Fleet, used: Taken, made: Placement, ports: tuple[RankPorts, ...]) -> tuple[Fleet, Taken]:
    """The fleet with one more group on it."""
    macs = []
    held = dict(used.ports)
    for rank, taken in zip(made.ranks, ports, strict=True):
        mac = fleet.macs[rank.node]
        macs.append(replace(mac, free_bytes=max(0, mac.free_bytes - rank.memory_bytes), in_use=True))
        held[rank.node] = held.get(rank.node, frozenset()) | taken.all
    faced: dict[tuple[str, str], int] = {}
    for rank in made.ranks:
        for device in rank.devices:
            if device is not None:
                faced[rank.node, device] = faced.get((rank.node, device), 0) + 1
    cables = []
    for cable in {c.name: c for rank in made.ranks for c in fleet.links(rank.node)}.values():
        a, b = (
            replace(end, queue_pairs=max(0, end.queue_pairs - faced.get((end.node, end.device or ""), 0)))
            for end in (cable.a, cable.b)
        )
        cables.append(replace(cable, a=a, b=b, in_use=cable.in_use or cable.name in made.cables))
    return fleet.changed(macs, cables), replace(used, ports=held)


# --- telling ---------------------------------------------------------------------------------------------------------


class _Told(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class LayersTold(_Told):
    first: int = Field(description="First layer, counted from 0.")
    count: int = Field(description="Number of layers.")


class RelayTold(_Told):
    address: str = Field(description="Where one supervisor dials the other.")
    backwards: bool = Field(description="Whether the rank that the hop leads to is the one whose supervisor dials.")


class RankTold(_Told):
    rank: int = Field(description="Number of the rank, from 0.")
    node: str = Field(description="Mac that it is placed on.")
    address: str = Field(description="The Mac's own address: gateway and control listen on it.")
    gateway_port: int = Field(description="Port of the OpenAI-compatible API.")
    control_port: int = Field(description="Port that supervisors talk over.")
    memory_bytes: int = Field(description="What is reserved for it.")
    free_bytes: int = Field(description="What was free on that Mac before.")
    layers: LayersTold | None = Field(default=None, description="Its layers, in a pipeline.")
    ring_address: str | None = Field(default=None, description="Where the rank before it dials it, in a TCP ring.")
    relay: RelayTold | None = Field(default=None, description="How that hop is relayed by supervisors, where no cable joins.")
    devices: tuple[str | None, ...] = Field(default=(), description="RDMA device that faces each rank, over JACCL.")
    coordinator: str | None = Field(default=None, description="Where it reaches rank 0.")


class HopTold(_Told):
    ranks: tuple[int, int] = Field(description="Who is joined: in a ring a rank and the next, in a mesh every two.")
    cable: str | None = Field(description="The ThunderboltLink; null over a LAN.")
    speed_mbps: int = Field(description="Its speed, the worse way.")
    measured: bool = Field(description="Whether that was measured; else it is what was negotiated.")


class ScorePartTold(_Told):
    part: str = Field(description="Name of the part; parts are compared in the order of this list.")
    value: int = Field(description="Less is better (speed is negative Mbit/s, spread and room are bytes).")
    text: str = Field(description="For people.")


class RunnerUpTold(_Told):
    nodes: tuple[str, ...] = Field(description="Macs, by rank.")
    transport: str
    parallelism: str
    why: str = Field(description="Why it lost.")


class NearMissTold(_Told):
    nodes: tuple[str, ...] = Field(description="Macs considered.")
    transport: str
    parallelism: str
    message: str = Field(description="What it lacks.")
    missing_bytes: int = Field(description="Memory that is missing, when that is it.")


class MacTold(_Told):
    node: str
    message: str = Field(description="Why it takes no rank.")


class GroupTold(_Told):
    index: int = Field(description="Number of the group, from 0.")
    placed: bool
    reason: str = Field(description="Why so; for a group without a place one word in CamelCase.")
    message: str = Field(default="", description="For a group without a place: what is missing.")
    proven: bool = Field(description="Whether nothing was left out of the search.")
    kept: bool = Field(default=False, description="Whether it stays where it is.")
    transport: str | None = Field(default=None, description="None, JACCL, JACCLRing or Ring.")
    parallelism: str | None = Field(default=None, description="None, Tensor or Pipeline.")
    model_path: str | None = Field(default=None, description="Folder of the model on each Mac.")
    ranks: tuple[RankTold, ...] = ()
    cables: tuple[str, ...] = Field(default=(), description="ThunderboltLinks that join the ranks.")
    hops: tuple[HopTold, ...] = Field(default=(), description="How ranks are joined, and how fast.")
    score: tuple[ScorePartTold, ...] = ()
    runners_up: tuple[RunnerUpTold, ...] = ()
    near_misses: tuple[NearMissTold, ...] = ()
    macs: tuple[MacTold, ...] = Field(default=(), description="For a group without a place: every Mac, and what it lacks.")


class PlanTold(_Told):
    """What ``thunderfleet-operator plan -o json`` prints."""

    deployment: str = Field(description="namespace/name")
    model: str
    model_resolved: str = Field(description="Where the model was found, or not.")
    placed: bool = Field(description="Whether every group has a place.")
    groups: tuple[GroupTold, ...]


def tell(cache: Cache, deployment: ModelDeployment, decided: list[Decided]) -> PlanTold:
    whole = Fleets().fleet(cache, Parsed(), snapshot.taken(cache))
    return PlanTold(
        deployment=f"{deployment.metadata.namespace}/{deployment.metadata.name}",
        model=deployment.spec.model.repository or deployment.spec.model.path or "",
        model_resolved=resolve(whole, snapshot.request(deployment.spec)).message,
        placed=all(isinstance(entry.found, Placement) for entry in decided),
        groups=tuple(map(_group, decided)),
    )


def _group(entry: Decided) -> GroupTold:
    found = entry.found
    if isinstance(found, Unplaceable):
        return GroupTold(
            index=entry.index,
            placed=False,
            reason=found.reason,
            message=found.message,
            proven=found.proven,
            near_misses=tuple(
                NearMissTold(
                    nodes=miss.nodes,
                    transport=miss.transport.value,
                    parallelism=miss.split.value,
                    message=miss.message,
                    missing_bytes=miss.missing_bytes if miss.missing_bytes < 1 << 62 else 0,
                )
                for miss in found.near_misses
            ),
            macs=tuple(MacTold(node=lack.node, message=lack.message) for lack in found.lacks),
        )
    ranks = tuple(
        RankTold(
            rank=rank.rank,
            node=rank.node,
            address=rank.address,
            gateway_port=ports.gateway,
            control_port=ports.control,
            memory_bytes=rank.memory_bytes,
            free_bytes=entry.free[rank.node],
            layers=LayersTold(first=rank.layers[0], count=rank.layers[1] - rank.layers[0]) if rank.layers else None,
            ring_address=rank.ring_address,
            relay=RelayTold(address=rank.relay.address, backwards=rank.relay.backwards) if rank.relay else None,
            devices=rank.devices,
            coordinator=rank.coordinator,
        )
        for rank, ports in zip(found.ranks, entry.ports, strict=True)
    )
    score = found.score
    texts = score.texts() if score else {}
    return GroupTold(
        index=entry.index,
        placed=True,
        reason=found.reason,
        proven=found.proven,
        kept=found.kept,
        transport=found.transport.value,
        parallelism=found.split.value,
        model_path=found.model_path,
        ranks=ranks,
        cables=tuple(dict.fromkeys(name for name in found.cables if name)),
        hops=_hops(found),
        score=tuple(ScorePartTold(part=name, value=getattr(score, PARTS[name]), text=text) for name, text in texts.items()),
        runners_up=tuple(
            RunnerUpTold(nodes=r.nodes, transport=r.transport.value, parallelism=r.split.value, why=r.why)
            for r in found.runners_up
        ),
    )


def _hops(found: Placement) -> tuple[HopTold, ...]:
    size = len(found.ranks)
    pairs = list(combinations(range(size), 2))
    if found.transport is not Transport.JACCL:
        pairs = [(rank, (rank + 1) % size) for rank in range(size)]
    return tuple(
        HopTold(ranks=pair, cable=name or None, speed_mbps=mbps, measured=measured)
        for pair, name, (mbps, measured) in zip(pairs, found.cables, found.speeds, strict=False)
    )


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Rows under their heads; columns of which nothing is told are left out."""
    told = [i for i in range(len(rows[0])) if any(row[i] not in ("", "-") for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in told}
    return ["    " + "  ".join(row[i].ljust(widths[i]) for i in told).rstrip() for row in rows]


def _label(transport: str | None) -> str:
    return next((label for value, label in LABELS.items() if value.value == transport), "")


def _rank_rows(group: GroupTold) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("RANK", "MAC", "LAYERS", "MEMORY", "OF FREE", "SERVES AT", "RING ADDRESS", "REACHES RANK 0 AT", "RDMA DEVICES BY RANK")
    ]
    for rank in group.ranks:
        layers = f"{rank.layers.first}-{rank.layers.first + rank.layers.count - 1}" if rank.layers else "all"
        if group.parallelism == "Tensor":
            layers = f"{rank.rank + 1}/{len(group.ranks)} of each"
        rows.append(
            (
                str(rank.rank),
                rank.node,
                layers,
                gib(rank.memory_bytes),
                gib(rank.free_bytes),
                # Clients talk to rank 0.
                f"{rank.address}:{rank.gateway_port}" if rank.rank == 0 else "-",
                f"relay {rank.relay.address}" if rank.relay else rank.ring_address or "-",
                rank.coordinator or "-",
                ",".join(device or "-" for device in rank.devices) or "-",
            )
        )
    return rows


def _hop_rows(group: GroupTold) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("RANKS", "CABLE", "SPEED", "")]
    both = group.transport == Transport.JACCL.value or len(group.ranks) == 2
    for hop in group.hops:
        speed = gbits(hop.speed_mbps) if hop.speed_mbps else "unknown"
        known = "measured" if hop.measured else "as negotiated, not measured"
        between = f"{min(hop.ranks)} ↔ {max(hop.ranks)}" if both else f"{hop.ranks[0]} → {hop.ranks[1]}"
        rows.append((between, hop.cable or "none: over the LAN", speed, known))
    return list(dict.fromkeys(rows))


def _unplaced(group: GroupTold) -> list[str]:
    lines = [f"group {group.index}: no place ({group.reason})"]
    lines += ["  what nearly works:"] if group.near_misses else []
    lines += [f"    {miss.message}" for miss in group.near_misses]
    lines += ["  Macs:", *_columns([("MAC", "LACKS"), *((mac.node, mac.message) for mac in group.macs)])]
    if not group.proven:
        lines.append("  the search was ended at its limit: a place may exist")
    return lines


def table(told: PlanTold) -> str:
    """For people."""
    lines = [f"{told.deployment}: {told.model}", told.model_resolved]
    for group in told.groups:
        lines.append("")
        if not group.placed:
            lines += _unplaced(group)
            continue
        stays = " (stays where it is)" if group.kept else ""
        lines.append(f"group {group.index}: {_label(group.transport)}, {group.parallelism}{stays}")
        lines.append(f"  {group.reason}" + ("" if group.proven else "; not proven best: the search was ended at its limit"))
        lines += ["  ranks:", *_columns(_rank_rows(group))]
        if group.hops:
            lines += ["  cables:", *_columns(_hop_rows(group))]
        lines += ["  score, compared from the top:", *_columns([("PART", "VALUE"), *((p.part, p.text) for p in group.score)])]
        losers = [(", ".join(r.nodes), _label(r.transport), r.parallelism, r.why) for r in group.runners_up]
        lines += ["  runners-up:", *_columns([("MACS", "TRANSPORT", "SPLIT", "WHY IT LOST"), *losers])] if losers else []
        lines += [] if losers else ["  runners-up: none"]
    return "\n".join(lines)


def render(told: PlanTold, form: str) -> str:
    """``table``, ``json`` or ``yaml``."""
    if form == "table":
        return table(told)
    body: Any = told.model_dump(mode="json", by_alias=True)
    return json.dumps(body, indent=2) if form == "json" else yaml.safe_dump(body, sort_keys=False, allow_unicode=True).rstrip()


def schema() -> str:
    """JSON Schema of what ``-o json`` prints."""
    return json.dumps(PlanTold.model_json_schema(by_alias=True), indent=2)


def run(fleet: Path, deployment: Path, form: str, settings: PortSettings, runners_up: int) -> tuple[int, str]:
    """Exit status and what to print. Raises ``BadInput``."""
    cache = read_fleet(fleet)
    wanted = read_deployment(deployment, cache)
    told = tell(cache, wanted, decide(cache, wanted, settings, runners_up))
    return (0 if told.placed else 3), render(told, form)
