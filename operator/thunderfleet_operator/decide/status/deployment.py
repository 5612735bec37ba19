"""The whole status of a ModelDeployment."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from thunderfleet_crds.exchange import group as report
from thunderfleet_crds.exchange.plan import Plan
from thunderfleet_crds.kinds.modeldeployment import (
    BenchmarkResult,
    Group,
    ModelDeployment,
    ModelDeploymentStatus,
    RouterEndpoint,
    TerminatingPod,
)
from thunderfleet_crds.meta.fields import quantity
from thunderfleet_crds.vocabulary import GroupPhase

from thunderfleet_operator.decide.manifests import served_name, serving_selector, transport
from thunderfleet_operator.decide.placing.model import Resolution
from thunderfleet_operator.decide.routing.endpoints import RouterSettings, endpoints
from thunderfleet_operator.decide.scaling.autoscaling import Scaling, staying
from thunderfleet_operator.decide.status.conditions import conditions
from thunderfleet_operator.decide.status.group import group_status
from thunderfleet_operator.decide.status.outcome import Blocked, Outcome
from thunderfleet_operator.decide.status.speed import predicted_status
from thunderfleet_operator.decide.status.unplaced import unplaceable
from thunderfleet_operator.observe.objects.pods import Pod
from thunderfleet_operator.observe.objects.routers import Router

TERMINATING_PODS = 256
"""Entries of ``status.terminatingPods``."""


def _optional_quantity(value: float | None) -> str | None:
    return None if value is None else quantity(value)


def _word(text: str | None) -> str | None:
    return text[:64] if text else None


def benchmark(measured: report.BenchmarkReport, plan: Plan) -> BenchmarkResult:
    """A group's benchmark report as ``status.benchmark``."""
    return BenchmarkResult(
        prefill_tokens_per_second=quantity(measured.prefill_tokens_per_second),
        decode_tokens_per_second=_optional_quantity(measured.decode_tokens_per_second),
        time_to_first_token_microseconds=measured.time_to_first_token_microseconds,
        peak_memory_bytes=measured.peak_memory_bytes,
        all_reduce_megabytes_per_second=_optional_quantity(measured.all_reduce_megabytes_per_second),
        all_reduce_microseconds=measured.all_reduce_microseconds,
        ran=measured.ran or None,
        prompt_tokens=measured.prompt_tokens,
        generation_tokens=measured.generation_tokens,
        group=plan.index,
        epoch=plan.epoch,
        world_size=plan.world_size,
        transport=transport(plan),
        parallelism=plan.split,
        mlx_version=_word(measured.mlx_version),
        mlx_lm_version=_word(measured.mlx_lm_version),
        measured_at=measured.measured_at,
    )


def _measured(deployment: ModelDeployment, outcomes: Sequence[Outcome]) -> BenchmarkResult | None:
    """The newest benchmark; the one in status, unless it is of another spec."""
    for outcome in outcomes:
        state = outcome.report.state
        if state and state.benchmark and outcome.view.plan:
            return benchmark(state.benchmark, outcome.view.plan)
    replaced = any(outcome.placed_now and outcome.outdated for outcome in outcomes)
    return None if replaced else deployment.status.benchmark


def _endpoint(
    deployment: ModelDeployment, serving: Sequence[Group], routers: Sequence[RouterEndpoint], routing: RouterSettings | None
) -> str | None:
    """The URL that clients use; None while no request would be answered."""
    if not serving and not deployment.wakes:
        return None
    if routing is not None and routing.url is not None:
        return routing.url
    if routers:
        return routers[0].url
    return serving[0].endpoint if serving else None


def build(
    deployment: ModelDeployment,
    outcomes: Sequence[Outcome],
    resolution: Resolution,
    terminating: Sequence[Pod],
    now: datetime,
    *,
    highest: int = 0,
    service: Blocked | None = None,
    scaling: Scaling | None = None,
    routers: Sequence[Router] = (),
    routing: RouterSettings | None = None,
    weights: Mapping[str, Any] | None = None,
    ending: int = 0,
) -> ModelDeploymentStatus:
    """The whole status. ``outcomes``: by index, every group of the spec. ``terminating``: pods of old placements.

    ``highest``: the highest epoch of any group. ``service``: why there is no Service. ``scaling``: of autoscaling.
    ``routers``: those that are ready, with their settings ``routing``; None without routers. ``weights``: fields about the
    files of the model. ``ending``: number of groups with pods that the spec no longer requires.
    """
    autoscaling = scaling.status if scaling is not None else None
    wanted = staying(deployment, scaling)
    if autoscaling is not None and autoscaling.replicas <= deployment.wanted_groups:
        # Added groups exist from the next round on; until then the conditions are about the existing ones.
        deployment = deployment.model_copy(update={"status": deployment.status.model_copy(update={"autoscaling": autoscaling})})
    measured = _measured(deployment, outcomes)
    groups = tuple(
        group_status(outcome, deployment, predicted_status(outcome.predicted, outcome.view.plan, measured))
        for outcome in outcomes
    )
    serving = [group for group in groups if group.state is GroupPhase.READY]
    near = frozenset(rank.node for group in serving for rank in group.ranks)
    found = endpoints(routers, routing, near) if routing is not None else ()
    nodes = dict.fromkeys(rank.node for group in groups for rank in group.ranks)
    transports = dict.fromkeys(group.transport.value for group in groups if group.transport)
    selector = serving_selector(deployment.metadata.name)
    return ModelDeploymentStatus(
        observed_generation=deployment.metadata.generation,
        replicas=sum(outcome.view.plan is not None for outcome in outcomes),
        ready_replicas=len(serving),
        selector=",".join(f"{key}={value}" for key, value in sorted(selector.items())),
        endpoint=_endpoint(deployment, serving, found, routing),
        endpoints=found,
        model=served_name(deployment)[-128:],
        ready=f"{len(serving)}/{wanted}",
        nodes=",".join(nodes) or None,
        transport=",".join(transports)[:64] or None,
        tokens_per_second=measured.decode_tokens_per_second if measured else None,
        highest_epoch=max(highest, deployment.status.highest_epoch or 0) or None,
        groups=groups,
        unplaceable=unplaceable(outcomes),
        terminating_pods=tuple(
            TerminatingPod(name=pod.name, uid=pod.uid, node=pod.node, since=pod.terminating)
            for pod in terminating[:TERMINATING_PODS]
        ),
        benchmark=measured,
        autoscaling=autoscaling,
        conditions=conditions(
            deployment,
            groups[:wanted],
            outcomes[:wanted],
            resolution,
            measured,
            now,
            wanted=wanted,
            service=service,
            ending=ending,
        ),
        **(weights or {}),
    )
