"""The result as data: the schema of ``-o json`` and ``-o yaml``."""

import json
from itertools import combinations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.vocabulary import Transport

from thunderfleet_operator.decide.placing.model import resolve
from thunderfleet_operator.decide.placing.request import request
from thunderfleet_operator.decide.weights.deployment import resolution
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.objects.pods import RankPorts
from thunderfleet_operator.observe.objects.proofs import TRUSTING
from thunderfleet_operator.placement import Fleet, Placement, RankPlacement, Speed, Unplaceable
from thunderfleet_operator.placement.rating.score import PARTS
from thunderfleet_operator.plan_cli.simulate import Planned
from thunderfleet_operator.plan_cli.weights import WeightsReport, weights_report, with_weights
from thunderfleet_operator.watch.cache import Cache


class _Report(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class LayersReport(_Report):
    """The layers of a pipeline's rank."""

    first: int = Field(description="First layer, counted from 0.")
    count: int = Field(description="Number of layers.")


class RelayReport(_Report):
    """A hop of a ring over a LAN, which the pods of both ranks carry."""

    address: str = Field(description="Address that is dialed.")
    backwards: bool = Field(
        description="True if this rank's pod opens the connection to the previous rank's pod; false if the previous rank's pod "
        "opens it."
    )


class RankReport(_Report):
    """One rank."""

    rank: int = Field(description="Number of the rank, from 0.")
    node: str = Field(description="Mac that the rank is placed on.")
    address: str = Field(description="Address of the Mac, on which gateway and control ports listen.")
    gateway_port: int = Field(description="Port of the pod's HTTP endpoint (gateway); that of rank 0 serves the model.")
    control_port: int = Field(description="Port for connections from the group's other pods.")
    memory_bytes: int = Field(description="Memory that the rank reserves.")
    free_bytes: int = Field(description="Free memory of the Mac before the group was placed.")
    layers: LayersReport | None = Field(default=None, description="Layers of the rank, in a pipeline.")
    ring_address: str | None = Field(default=None, description="Where the previous rank dials this one, in a TCP ring.")
    relay: RelayReport | None = Field(default=None, description="How pods carry that hop, if there is no cable.")
    devices: tuple[str | None, ...] = Field(
        default=(), description="Over JACCL, by rank: RDMA device of this Mac at the cable to that rank; null if there is none."
    )
    coordinator: str | None = Field(default=None, description="Address at which the rank reaches rank 0.")


class HopReport(_Report):
    """A connection between two ranks."""

    ranks: tuple[int, int] = Field(description="The two ranks: neighbors in a ring, any two in a mesh.")
    cable: str | None = Field(description="Name of the ThunderboltLink; null over a LAN.")
    speed_mbps: int = Field(description="Speed of the slower direction in Mb/s.")
    measured: bool = Field(description="Whether the speed was measured; otherwise it is estimated from the negotiated speed.")


class ScorePartReport(_Report):
    """One part of the score."""

    part: str = Field(description="Name of the part. Parts are compared in the order of this list.")
    value: int = Field(
        description="Lower is better. speed: megabits per second, negated; bandwidth: megabytes per second, negated; "
        "both with equal values for rates that are about equal. spread: bytes between the largest and the smallest free "
        "memory of its Macs. room: bytes of free memory of its Macs in sum. transport, split: 0 is the best. macs, shared: "
        "numbers."
    )
    text: str = Field(description="Human-readable value.")


class SpeedReport(_Report):
    """Predicted tokens per second of one request of the benchmark's lengths."""

    decode_tokens_per_second: float
    prefill_tokens_per_second: float
    correction_percent: int | None = Field(
        default=None,
        description="The predicted generation rate as a percentage of the uncorrected prediction: at 90, benchmarks of this "
        "fleet have lowered it by 10 %; null without a correction.",
    )
    error_percent: int | None = Field(
        default=None,
        description="Difference between the uncorrected prediction of the generation rate and the measured rate, in percent of "
        "the measured rate; negative if the prediction was too low.",
    )
    measured_decode_tokens_per_second: float | None = Field(
        default=None,
        description="Rate that the group's most recent benchmark measured; null unless the group runs in this placement.",
    )


class RunnerUpReport(_Report):
    """A possible placement with a worse score."""

    nodes: tuple[str, ...] = Field(description="Macs, by rank.")
    transport: str
    parallelism: str
    why: str = Field(description="The first criterion in which its score is worse.")
    predicted: SpeedReport | None = Field(default=None, description="Null if the rates of a Mac or the model are not known.")


class NearMissReport(_Report):
    """A rejected placement that almost fits."""

    nodes: tuple[str, ...] = Field(description="Macs considered.")
    transport: str
    parallelism: str
    message: str = Field(description="What is missing.")
    missing_bytes: int = Field(description="Missing memory; 0 if something else is missing.")


class MacReport(_Report):
    """A Mac that cannot be used."""

    node: str
    message: str = Field(description="Why the Mac cannot be used.")


class GroupReport(_Report):
    """The placement of one group, or why it has none."""

    index: int = Field(description="Number of the group, from 0.")
    placed: bool
    reason: str = Field(description="Why the placement was chosen; without a placement, a reason in CamelCase.")
    message: str = Field(default="", description="Without a placement: what is missing.")
    proven: bool = Field(description="Whether the search completed; if not, a better placement may exist.")
    kept: bool = Field(default=False, description="Whether the group keeps its current placement.")
    transport: str | None = Field(default=None, description="None, JACCL, JACCLRing or Ring.")
    parallelism: str | None = Field(default=None, description="None, Tensor or Pipeline.")
    model_path: str | None = Field(default=None, description="Folder of the model on each Mac.")
    ranks: tuple[RankReport, ...] = ()
    cables: tuple[str, ...] = Field(default=(), description="Names of the ThunderboltLinks that join the ranks.")
    hops: tuple[HopReport, ...] = Field(default=(), description="Connections between ranks.")
    score: tuple[ScorePartReport, ...] = ()
    predicted: SpeedReport | None = Field(default=None, description="Null if the rates of a Mac or the model are not known.")
    runners_up: tuple[RunnerUpReport, ...] = ()
    near_misses: tuple[NearMissReport, ...] = ()
    macs: tuple[MacReport, ...] = Field(default=(), description="Without a placement: why each Mac cannot be used.")


class PlanReport(_Report):
    """The output of ``thunderfleet-operator plan -o json``."""

    deployment: str = Field(description="namespace/name")
    model: str
    model_resolved: str = Field(description="Macs and folders that contain the model, or why none does.")
    placed: bool = Field(description="Whether every group has a placement.")
    weights: WeightsReport | None = Field(
        default=None, description="The model in the Macs' model stores; null for a folder, or if no Mac has a model store."
    )
    groups: tuple[GroupReport, ...]


def report(cache: Cache, deployment: ModelDeployment, planned: list[Planned]) -> PlanReport:
    """The report of a deployment's groups on the fleet in ``cache``."""
    index = Index(cache, lambda: TRUSTING)
    fleet, weights = with_weights(index, deployment, index.fleet)
    found = resolution(weights, resolve(index.fleet, request(deployment.spec)))
    return PlanReport(
        deployment=f"{deployment.metadata.namespace}/{deployment.metadata.name}",
        model=deployment.spec.model.repository or deployment.spec.model.path or deployment.spec.model.uri or "",
        model_resolved=found.message
        if found.found or weights.cache is not None
        else f"{found.message}{_hint(fleet, deployment)}",
        placed=all(isinstance(entry.found, Placement) for entry in planned),
        weights=weights_report(index, deployment, weights, [one.found for one in planned if isinstance(one.found, Placement)]),
        groups=tuple(map(_group, planned)),
    )


def _hint(fleet: Fleet, deployment: ModelDeployment) -> str:
    """What to do to plan a model that no Mac has; empty if it cannot be fetched."""
    if not any(mac.store for mac in fleet.macs.values()):
        return ""
    model = deployment.spec.model
    what = "REPOSITORY" if model.uri is None else f"{model.uri} --sha256 {model.sha256}"
    return (
        "; the operator would fetch it, but its sizes are not known: read them with `thunderfleet "
        f"model pull {what} --copies 0`, and create the fleet file again"
    )


def _group(entry: Planned) -> GroupReport:
    if isinstance(entry.found, Unplaceable):
        return _unplaced(entry.index, entry.found)
    found, score = entry.found, entry.found.score
    texts = score.texts() if score else {}
    return GroupReport(
        index=entry.index,
        placed=True,
        reason=found.reason,
        proven=found.proven,
        kept=found.kept,
        transport=found.transport,
        parallelism=found.split,
        model_path=found.model_path,
        ranks=tuple(_rank(entry, rank, ports) for rank, ports in zip(found.ranks, entry.ports, strict=True)),
        cables=tuple(dict.fromkeys(name for name in found.cables if name)),
        hops=_hops(found),
        score=tuple(ScorePartReport(part=name, value=getattr(score, PARTS[name]), text=text) for name, text in texts.items()),
        runners_up=tuple(
            RunnerUpReport(
                nodes=r.nodes, transport=r.transport, parallelism=r.split, why=r.why, predicted=_speed(r.predicted, None)
            )
            for r in found.runners_up
        ),
        predicted=_speed(found.predicted, entry.measured),
    )


def _speed(predicted: Speed | None, measured: float | None) -> SpeedReport | None:
    if predicted is None:
        return None
    return SpeedReport(
        decode_tokens_per_second=float(f"{predicted.decode:.3g}"),
        prefill_tokens_per_second=float(f"{predicted.prefill:.3g}"),
        correction_percent=round(100 * predicted.correction) if predicted.correction != 1 else None,
        error_percent=round(100 * (predicted.uncorrected / measured - 1)) if measured else None,
        measured_decode_tokens_per_second=measured,
    )


def _unplaced(index: int, found: Unplaceable) -> GroupReport:
    return GroupReport(
        index=index,
        placed=False,
        reason=found.reason,
        message=found.message,
        proven=found.proven,
        near_misses=tuple(
            NearMissReport(
                nodes=miss.nodes,
                transport=miss.transport,
                parallelism=miss.split,
                message=miss.message,
                missing_bytes=miss.missing_bytes,
            )
            for miss in found.near_misses
        ),
        macs=tuple(MacReport(node=entry.node, message=entry.message) for entry in found.macs),
    )


def _rank(entry: Planned, rank: RankPlacement, ports: RankPorts) -> RankReport:
    return RankReport(
        rank=rank.rank,
        node=rank.node,
        address=rank.address,
        gateway_port=ports.gateway,
        control_port=ports.control,
        memory_bytes=rank.memory_bytes,
        free_bytes=entry.free[rank.node],
        layers=LayersReport(first=rank.layers[0], count=rank.layers[1] - rank.layers[0]) if rank.layers else None,
        ring_address=rank.ring_address,
        relay=RelayReport(address=rank.relay.address, backwards=rank.relay.backwards) if rank.relay else None,
        devices=rank.devices,
        coordinator=rank.coordinator,
    )


def _hops(found: Placement) -> tuple[HopReport, ...]:
    size = len(found.ranks)
    pairs = list(combinations(range(size), 2))
    if found.transport is not Transport.JACCL:
        pairs = [(rank, (rank + 1) % size) for rank in range(size)]
    return tuple(
        HopReport(ranks=pair, cable=name or None, speed_mbps=mbps, measured=measured)
        for pair, name, (mbps, measured) in zip(pairs, found.cables, found.speeds, strict=False)
    )


def schema() -> str:
    """JSON Schema of the output of ``-o json``."""
    return json.dumps(PlanReport.model_json_schema(by_alias=True), indent=2)
