"""Checks of the Macs and cables of a cluster, from their conditions. Pure.

A condition's message describes what is wrong and what to do; it is shown as it is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from thunderfleet_crds.exchange.nodes import has_gpu_memory
from thunderfleet_crds.names import RESOURCE_GPU_MEMORY
from thunderfleet_crds.reasons import WITHOUT_RDMA, Reason
from thunderfleet_crds.vocabulary import ConditionType

from thunderfleet_cli.doctor.checks.cabletests import Tried
from thunderfleet_cli.doctor.checks.check import Check, State
from thunderfleet_cli.doctor.checks.selftest import self_test

Json = Mapping[str, Any]

LINUX = "linux"
OUR_KUBELET = "-thunderfleet."
"""Part of the version that Thunderfleet's kubelet reports."""
# The other problems follow from the first one: an unplugged cable cannot carry RDMA.
LINK_CONDITIONS = (ConditionType.CONNECTED, ConditionType.SYMMETRIC, ConditionType.RDMA_USABLE)
PROFILE_CONDITIONS = (
    ConditionType.INVENTORY_COMPLETE,
    ConditionType.RDMA_READY,
    ConditionType.BRIDGE_FREE,
    ConditionType.CLOCK_SYNCHRONIZED,
    ConditionType.QUARANTINED,
    ConditionType.BENCHMARKS_FRESH,
)
MILD = (ConditionType.INVENTORY_COMPLETE, ConditionType.SYMMETRIC)

_COMMAND = re.compile(r"`(sudo [^`]+)`")


@dataclass(frozen=True)
class Objects:
    """The objects of a cluster, as the API server returned them."""

    nodes: Sequence[Json]
    profiles: Sequence[Json]
    links: Sequence[Json]
    tried: Mapping[str, Tried] = field(default_factory=dict)
    """Results of new tests, by cable."""


def testable(objects: Objects) -> list[Json]:
    """The cables whose ends detect each other, so that a test gives more than their condition."""
    return [one for one in objects.links if (_conditions(one).get(ConditionType.CONNECTED) or {}).get("status") == "True"]


def checks(objects: Objects) -> list[Check]:
    """The checks of every Mac and every cable."""
    found: list[Check] = []
    profiles = {_name(profile): profile for profile in objects.profiles}
    for node in objects.nodes:
        found += _node(node, profiles.get(_name(node)))
    for link in objects.links:
        found += _link(link, profiles, objects.tried.get(_name(link)))
    return found


def _name(item: Json) -> str:
    return str(item["metadata"]["name"])


def _conditions(item: Json) -> dict[str, Json]:
    return {str(one.get("type")): one for one in (item.get("status") or {}).get("conditions") or ()}


def _node(node: Json, profile: Json | None) -> Iterator[Check]:
    name = _name(node)
    ready = _conditions(node).get("Ready")
    if ready is None or ready.get("status") != "True":
        text = str((ready or {}).get("message") or "the kubelet has not reported yet").rstrip(".")
        if ready is None or ready.get("status") != "False":
            # If the kubelet reports False, its message has the cause.
            text = f"{text}: check that the machine is on and that its kubelet runs"
        yield Check("Ready", State.FAILURE, text, reason=str((ready or {}).get("reason") or ""), subject=name)
        return
    if (node["metadata"].get("labels") or {}).get("kubernetes.io/os") == LINUX:
        return
    yield from _gpu_memory(node)
    if profile is None:
        finding = "no agent reports on this Mac: check with `kubectl get pods -A -o wide` that one runs there"
        yield Check("agent", State.UNKNOWN, finding, subject=name)
        return
    conditions = _conditions(profile)
    for kind in PROFILE_CONDITIONS:
        if kind in conditions:
            check = _condition(name, kind, conditions[kind], good="False" if kind is ConditionType.QUARANTINED else "True")
            # The commands are for this Mac. Commands in the message of a cable are for the end that the message names.
            yield check if check.state is State.OK else replace(check, fix=" && ".join(_COMMAND.findall(check.finding)))


def _gpu_memory(node: Json) -> Iterator[Check]:
    """A warning about a kubelet that is too old to publish GPU memory as a resource."""
    status = node.get("status") or {}
    version = str((status.get("nodeInfo") or {}).get("kubeletVersion") or "")
    if OUR_KUBELET in version and not has_gpu_memory(node):
        finding = (
            f"pods cannot request {RESOURCE_GPU_MEMORY}, because the kubelet ({version}) is too old, so quotas do not "
            "count the models on this Mac: upgrade thunderfleet there"
        )
        yield Check("gpu-memory", State.WARNING, finding, subject=_name(node))


def _link(link: Json, profiles: Mapping[str, Json], tried: Tried | None) -> Iterator[Check]:
    conditions = _conditions(link)
    for kind in LINK_CONDITIONS:
        if kind not in conditions:
            yield Check(
                kind,
                State.UNKNOWN,
                "the operator has not reported on this cable yet: if that persists, check with `kubectl get pods -A` that it "
                "runs",
                subject=_name(link),
            )
            return
        check = _condition(_name(link), kind, conditions[kind], good="True")
        yield check
        if kind is ConditionType.CONNECTED and check.state is State.FAILURE:
            return
    yield from self_test(link, conditions, profiles, tried)


def _condition(subject: str, kind: ConditionType, condition: Json, good: str) -> Check:
    reason, status = str(condition.get("reason") or ""), condition.get("status")
    message = str(condition.get("message") or reason)
    if status == good:
        state = State.WARNING if reason == Reason.CABLE_DEGRADED else State.OK
    elif status == "Unknown" or (kind is ConditionType.BENCHMARKS_FRESH and reason != Reason.BENCHMARK_FAILED):
        state = State.UNKNOWN
    else:
        state = State.WARNING if kind in MILD or reason in WITHOUT_RDMA else State.FAILURE
    return Check(kind, state, message, "", reason, subject)
