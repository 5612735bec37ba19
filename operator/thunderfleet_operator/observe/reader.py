"""Reads the index once for a round."""

from collections.abc import Callable, Mapping
from datetime import datetime

from thunderfleet_crds.modeldeployment import ModelDeployment
from thunderfleet_crds.names import ANNOTATION_HASH

from thunderfleet_operator.observe.index import Index
from thunderfleet_operator.observe.observed import Advice, MacPlacement, Observed, ObservedLink, ObservedMac
from thunderfleet_operator.observe.plans import GroupView, Report, group_views


def groups_of(index: Index, deployment: ModelDeployment) -> Mapping[int, GroupView]:
    """By index, every group that the spec asks for or that has objects left."""
    meta = deployment.metadata
    key = (str(meta.namespace), meta.name)
    return group_views(deployment, index.epochs_of.get(key, ()), index.pods_of.get(key, ()))


def observe_deployment(
    index: Index,
    deployment: ModelDeployment,
    now: datetime,
    *,
    report: Callable[[GroupView], Report],
    draining_seconds: Callable[[GroupView], float],
    advice: Mapping[int, Advice],
) -> Observed:
    """One ModelDeployment. ``report`` and ``draining_seconds`` answer for one group each."""
    groups = groups_of(index, deployment)
    service = index.service(f"{deployment.metadata.namespace}/{deployment.metadata.name}")
    annotations = (service["metadata"].get("annotations") or {}) if service else {}
    return Observed(
        deployment=deployment,
        now=now,
        groups=groups,
        reports={i: report(view) for i, view in groups.items()},
        draining_seconds={i: draining_seconds(view) for i, view in groups.items()},
        advice=advice,
        nodes=index.live_nodes,
        profiles=index.profiles,
        fleet=index.fleet,
        usage=index.usage,
        taken=index.taken,
        service_hash=annotations.get(ANNOTATION_HASH),
        loopback=index.loopback,
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


def observe_link(index: Index, name: str, now: datetime) -> ObservedLink | None:
    """One cable; None if it has no ThunderboltLink that can be read."""
    link = index.links.get(name)
    return ObservedLink(link, now, index.nodes, index.profiles) if link is not None else None
