"""Reads the index once for a round."""

from collections.abc import Callable, Mapping
from datetime import datetime

from thunderfleet_crds.exchange.group import GroupState, RankReport
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.names import ANNOTATION_HASH
from thunderfleet_crds.vocabulary import GroupPhase, RankPhase
from thunderfleet_lib.csr.parse import parse

from thunderfleet_operator.observe.fleet.corrections import corrections
from thunderfleet_operator.observe.fleet.steadiness import Steadiness
from thunderfleet_operator.observe.fleet.weights import WeightsFleets, needed_by, of_deployment
from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.load import NO_SIGNALS, Candidate, Signals
from thunderfleet_operator.observe.objects.metadata import annotation, owner_uid
from thunderfleet_operator.observe.objects.plans import GroupView, Report, group_views
from thunderfleet_operator.observe.objects.proofs import Proof
from thunderfleet_operator.observe.objects.requests import ObservedRequests, ReadRequest, SentRequest
from thunderfleet_operator.observe.objects.routers import Router
from thunderfleet_operator.observe.observed import (
    Advice,
    MacPlacement,
    Observed,
    ObservedCache,
    ObservedLink,
    ObservedMac,
    ServiceView,
)


def groups_of(index: Index, deployment: ModelDeployment) -> Mapping[int, GroupView]:
    """By index, every group of the spec, or that has objects left."""
    meta = deployment.metadata
    key = (str(meta.namespace), meta.name)
    return group_views(deployment, index.epochs_of.get(key, ()), index.pods_of.get(key, ()))


ANSWER_SECONDS = 10.0
"""How long a group may take to answer before its key counts as lost."""


def _report(view: GroupView, report: Report) -> Report:
    """What rank 0 reports. The operator cannot poll a group whose key it has lost, so it uses the readiness of the pods."""
    epoch = view.epoch
    if epoch is None or epoch.proven or report.state is not None:
        return report
    ready = {pod.rank for pod in view.pods if pod.ready and not pod.terminating}
    if ready != {rank.rank for rank in epoch.plan.ranks}:
        return report
    ranks = tuple(RankReport(rank=rank.rank, node=rank.node, phase=RankPhase.SERVING) for rank in epoch.plan.ranks)
    plan = epoch.plan
    state = GroupState(uid=plan.uid, index=plan.index, epoch=plan.epoch, phase=GroupPhase.READY, ranks=ranks)
    # A group from a version without signatures can be polled, but may not have answered yet.
    waiting = epoch.finding.proof is Proof.NONE and report.silent_seconds < ANSWER_SECONDS
    return Report(state, by_pods=not waiting)


def _service(index: Index, key: str) -> ServiceView | None:
    found = index.service(key)
    if found is None:
        return None
    owner = owner_uid(found)
    living = {deployment.metadata.uid for deployment in index.deployments.values() if deployment is not None}
    uid = str(found["metadata"].get("uid") or "")
    orphan = owner is not None and owner not in living
    return ServiceView(uid, annotation(found, ANNOTATION_HASH), owner, orphan, found.get("spec") or {})


def observe_deployment(
    index: Index,
    deployment: ModelDeployment,
    now: datetime,
    *,
    report: Callable[[GroupView], Report],
    draining_seconds: Callable[[GroupView], float],
    settling_seconds: Mapping[int, float],
    advice: Mapping[int, Advice],
    steadiness: Steadiness,
    fleets: WeightsFleets,
    signals: Signals = NO_SIGNALS,
    candidates: tuple[Candidate, ...] = (),
    routers: tuple[Router, ...] = (),
) -> Observed:
    """One ModelDeployment. ``report`` and ``draining_seconds`` answer for one group each; ``steadiness`` is of now.

    ``signals``: what is known of its requests. ``candidates``: ModelDeployments that could make room for it.
    """
    groups = groups_of(index, deployment)
    meta = deployment.metadata
    key = f"{meta.namespace}/{meta.name}"
    cache = of_deployment(index.caches, deployment)
    fleet, weights = fleets.of(key, steadiness.marked, index.profiles, cache, deployment.spec.model.copies)
    named = index.caches.get(key)
    return Observed(
        deployment=deployment,
        now=now,
        groups=groups,
        reports={i: _report(view, report(view)) for i, view in groups.items()},
        draining_seconds={i: draining_seconds(view) for i, view in groups.items()},
        settling_seconds=settling_seconds,
        advice=advice,
        nodes=index.live_nodes,
        profiles=index.profiles,
        fleet=fleet,
        base=steadiness.marked,
        weights=weights,
        cache_name_taken=named is not None and (cache is None or named.metadata.uid != cache.metadata.uid),
        steady_seconds=steadiness.next_seconds,
        usage=index.usage,
        taken=index.taken,
        corrections=corrections(index.deployments.values(), index.fleet),
        service=_service(index, f"{deployment.metadata.namespace}/{deployment.metadata.name}"),
        loopback=index.loopback,
        signals=signals,
        candidates=candidates,
        routers=routers,
        endpoint_slices=index.endpoint_slices,
    )


def observe_mac(index: Index, name: str, now: datetime) -> ObservedMac | None:
    """One Mac; None if it has no NodeProfile that can be read."""
    profile, node = index.profiles.get(name), index.nodes.get(name)
    if profile is None:
        return None
    running = index.running_on.get(name, frozenset())
    keys = {*index.plans_on.get(name, ()), *running}
    placements = tuple(
        MacPlacement(
            key=key,
            plan=index.plans.get(key),
            running=key in running,
            newest_epoch=index.newest_epochs.get(key[:3], -1),
            deployment=index.deployments.get(f"{key[0]}/{key[1]}"),
        )
        for key in sorted(keys)
    )
    links = index.links_of.get(name, ())
    return ObservedMac(profile, node.boot_id if node else None, now, placements, links, index.profiles)


def observe_cache(index: Index, key: str, now: datetime) -> ObservedCache | None:
    """One ModelCache; None if there is none that can be read, or if it is being deleted."""
    cache = index.caches.get(key)
    if cache is None or cache.metadata.deletion_timestamp is not None:
        return None
    needed = needed_by(index.plans.values(), cache)
    pods = index.fetch_pods_of.get(key, ())
    nodes, free = index.live_nodes, dict[str, int]()
    if cache.spec.quantize is not None:
        taken = index.taken.memory
        free = {name: max(0, node.allocatable_bytes - taken.get(name, 0)) for name, node in nodes.items()}
    return ObservedCache(cache, pods, nodes, index.profiles, needed, now, free)


def observe_link(index: Index, name: str, now: datetime, first_led: datetime | None) -> ObservedLink | None:
    """One cable; None if it has no ThunderboltLink that can be read."""
    link = index.links.get(name)
    return ObservedLink(link, now, index.nodes, index.profiles, first_led) if link is not None else None


REQUESTS_AT_ONCE = 10
"""Certificate requests of one Node that one round decides, so that a kubelet that sends thousands delays nothing else."""


def _read(sent: SentRequest) -> ReadRequest:
    try:
        return ReadRequest(sent, parse(sent.spec))
    except ValueError as error:
        return ReadRequest(sent, str(error) or "invalid certificate request")


def observe_requests(index: Index, name: str, now: datetime, api_server: frozenset[str]) -> ObservedRequests | None:
    """The certificate requests of one Node; None if its kubelet is not Thunderfleet's, or if it has no request."""
    node, sent = index.live_nodes.get(name), index.requests_of.get(name, ())
    if node is None or not node.ours or not sent:
        return None
    return ObservedRequests(
        node=node,
        requests=tuple(map(_read, sent[:REQUESTS_AT_ONCE])),
        left=len(sent[REQUESTS_AT_ONCE:]),
        addresses=index.nodes_at,
        api_server=api_server,
        now=now,
    )
