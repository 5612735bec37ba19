"""``status``: models, Macs and cables in three tables. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from thunderfleet_crds.vocabulary import ConditionType
from thunderfleet_view import components, facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.problems import (
    cable_problem,
    deployment_problem,
    leftover_problem,
    leftovers,
    macs,
    problem_of_mac,
    silent_machines,
    silent_macs,
)

from thunderfleet_cli.view.page import BAD, DOUBTFUL, GOOD, Cell, Page


def as_values(picture: Picture) -> dict[str, Any]:
    """Deployments, Macs and cables, with what is wrong with each ("" if nothing is).

    Of the control plane, only faulty components.
    """
    silent = silent_macs(picture)
    return {
        "deployments": [
            {
                "namespace": facts.plain(one["metadata"].get("namespace") or ""),
                "name": facts.name(one),
                "model": facts.model(one),
                "replicas": facts.replicas(one),
                "readyReplicas": facts.ready_groups(one),
                "nodes": _nodes(one),
                "transport": facts.plain(facts.status(one).get("transport") or ""),
                "tokensPerSecond": facts.status(one).get("tokensPerSecond"),
                "endpoint": facts.status(one).get("endpoint"),
                "problem": deployment_problem(one),
            }
            for one in picture.deployments
        ],
        "macs": [
            {
                "name": facts.name(node),
                "ready": facts.holds(node, "Ready"),
                "chip": _chip(profile),
                "memoryBytes": _hardware(profile).get("memoryBytes"),
                "rdma": _rdma(profile),
                "groups": [facts.plain(use.get("name")) for use in _uses(profile)],
                "problem": problem_of_mac(node, profile, silent),
            }
            for node, profile in macs(picture)
        ],
        "cables": [
            {
                "name": facts.name(link),
                "connected": facts.holds(link, ConditionType.CONNECTED),
                "speed": facts.plain(facts.status(link).get("speed") or ""),
                "rdma": facts.plain(facts.status(link).get("rdma") or ""),
                "problem": cable_problem(link),
            }
            for link in picture.links
        ],
        "controlPlane": [{"name": name, "problem": text} for name, text in _components(picture).items()],
        "notRead": dict(picture.unread),
    }


def show(picture: Picture, page: Page, now: datetime) -> None:
    """Three tables, then faulty components of the control plane, and objects that could not be read."""
    many = picture.namespace is None
    columns = ("NAME", "MODEL", "READY", "NODES", "TRANSPORT", "TOK/S", "SINCE", "PROBLEM")
    if picture.deployments:
        page.table((*(("NAMESPACE",) if many else ()), *columns), [_deployment(one, many, now) for one in picture.deployments])
    else:
        page.line(f"no ModelDeployments in {'any namespace' if many else f'namespace {picture.namespace}'}")
    if picture.nodes:
        silent = silent_macs(picture)
        page.line()
        page.table(
            ("MAC", "READY", "CHIP", "MEMORY", "GPU LIMIT", "RDMA", "GROUPS", "PROBLEM"),
            [_mac(*one, silent) for one in macs(picture)],
        )
    if picture.links:
        page.line()
        bad = [link for link in picture.links if cable_problem(link)]
        page.line(f"cables: {len(picture.links) - len(bad)} of {len(picture.links)} without a problem")
        for link in bad:
            page.cells(("  " + facts.name(link) + "  ", BAD), cable_problem(link))
    if found := _components(picture):
        page.line()
        for name, text in found.items():
            page.cells((f"{name}  ", BAD), text)
    unread(picture, page)


def _components(picture: Picture) -> Mapping[str, str]:
    """Problems of the control plane and of Nodes that run the operator."""
    return {**components.problems(picture), **silent_machines(picture), **_left(picture)}


def _left(picture: Picture) -> Mapping[str, str]:
    """Remaining pods of deleted ModelDeployments that should have ended."""
    found = {name: leftover_problem(pods, picture, overdue=True) for name, pods in leftovers(picture).items()}
    return {f"ModelDeployment {name}": text for name, text in found.items() if text}


def unread(picture: Picture, page: Page) -> None:
    """The objects that could not be read."""
    for text in dict.fromkeys(picture.unread.values()):
        page.line(f"not shown: {text}", DOUBTFUL)


def _hardware(profile: Json | None) -> Json:
    return facts.status(profile or {}).get("hardware") or {}


def _chip(profile: Json | None) -> str:
    return facts.plain(_hardware(profile).get("chip") or "").removeprefix("Apple ")


def _rdma(profile: Json | None) -> str:
    return facts.plain((facts.status(profile or {}).get("rdma") or {}).get("state") or "")


def _uses(profile: Json | None) -> Sequence[Json]:
    return facts.status(profile or {}).get("groups") or ()


def _nodes(deployment: Json) -> list[str]:
    return [facts.plain(rank.get("node")) for group in facts.groups(deployment) for rank in group.get("ranks") or ()]


def _deployment(deployment: Json, many: bool, now: datetime) -> Sequence[Cell]:
    status, problem = facts.status(deployment), deployment_problem(deployment)
    ready = facts.conditions(deployment).get(ConditionType.READY, {})
    serves = ready.get("status") == "True"
    count = f"{facts.ready_groups(deployment)}/{facts.replicas(deployment)}"
    return (
        *((facts.plain(deployment["metadata"].get("namespace") or ""),) if many else ()),
        facts.name(deployment),
        facts.model(deployment),
        (count, GOOD if serves and not problem else DOUBTFUL if serves else BAD),
        ",".join(_nodes(deployment)),
        facts.plain(status.get("transport") or ""),
        facts.plain(status.get("tokensPerSecond") or ""),
        facts.ago(ready.get("lastTransitionTime"), now),
        problem,
    )


def _mac(node: Json, profile: Json | None, silent: Mapping[str, str]) -> Sequence[Cell]:
    ready, problem = facts.holds(node, "Ready"), problem_of_mac(node, profile, silent)
    return (
        facts.name(node),
        ("yes" if ready else "no", (DOUBTFUL if problem else GOOD) if ready else BAD),
        _chip(profile),
        facts.gibibytes(_hardware(profile).get("memoryBytes")),
        facts.gibibytes(_hardware(profile).get("gpuMemoryLimitBytes")),
        _rdma(profile),
        ",".join(facts.plain(use.get("name")) for use in _uses(profile)),
        problem,
    )
