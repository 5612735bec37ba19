"""What must hold once a fault is over: one process per rank, no other; one epoch's objects, no other; no port but theirs.

Pure: each takes what was seen and gives sentences, none when all is well.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tests.chaos.faults import RANK, SUPERVISOR

Json = dict[str, Any]

PORTS = range(20000, 30000)
"""The operator gives ports out of these alone."""
CABLE = "recorded_cable.py"
EPOCH = "thunderfleet.io/epoch"

# What a person or a clock is told to do, in the words of conditions.
REMEDY = re.compile(
    r"\b(wait\w*|next|again|retr\w*|run\b|restart\w*|reboot\w*|plug\w*|check\w*|until|free|add|remove|set|switch\w*|delete|"
    r"install|copy|raise|lower|forms?|starts?|seconds|kubectl)\b",
    re.IGNORECASE,
)


def objects(children: Sequence[Json], epoch: int, ranks: int) -> list[str]:
    """The children of a group that serves: its epoch's pods, one plan, one set of keys; nothing else of another epoch."""
    found = Counter[str]()
    wrong = []
    for child in children:
        labels = child["metadata"].get("labels", {})
        name = f"{child['kind']} {child['metadata']['name']}"
        if "deletionTimestamp" in child["metadata"]:
            wrong.append(f"{name} is still terminating")
        elif EPOCH in labels and labels[EPOCH] != str(epoch):
            wrong.append(f"{name} is of epoch {labels[EPOCH]}, the group is at {epoch}")
        found[child["kind"]] += EPOCH in labels
    for kind, wanted in (("Pod", ranks), ("ConfigMap", 1), ("Secret", 1)):
        if found[kind] != wanted:
            wrong.append(f"{found[kind]} of kind {kind}, {wanted} are right")
    return wrong


def processes(seen: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """``seen`` as ``Deployment.seen`` gives it. Each Mac of the group has one supervisor, one rank and at most one wire."""
    counts: dict[str, Counter[str]] = {}
    for entry in seen:
        machine, _, command = entry.partition(": ")
        count = counts.setdefault(machine, Counter())
        for word in (RANK, SUPERVISOR, CABLE):
            count[word] += word in command
    wrong = []
    for machine in sorted({*counts, *nodes}):
        count, mine = counts.get(machine, Counter[str]()), machine in nodes
        for word, wanted in ((RANK, (mine,)), (SUPERVISOR, (mine,)), (CABLE, (0, 1) if mine else (0,))):
            if count[word] not in wanted:
                wrong.append(f"{machine}: {count[word]} processes {word}, {int(wanted[-1])} right")
        if not mine and machine in counts:
            wrong.append(f"{machine}: processes of a group that is elsewhere")
    return wrong


def ports(listening: Collection[tuple[str, int]], plan: Json) -> list[str]:
    """Of the ports that the operator gives out, those that a group that serves listens on: gateway and control of each rank."""
    right = {(rank["node"], rank[port]) for rank in plan["ranks"] for port in ("gatewayPort", "controlPort")}
    seen = {(machine, port) for machine, port in listening if port in PORTS}
    extra = [f"{machine}: somebody listens on port {port}" for machine, port in sorted(seen - right)]
    return extra + [f"{machine}: nobody listens on port {port}" for machine, port in sorted(right - seen)]


def explains(status: Mapping[str, Any]) -> str:
    """What a deployment that does not serve says of it and of what is to be done; empty when it does not say."""
    by_kind = {entry["type"]: entry for entry in status.get("conditions", [])}
    told = []
    for kind, bad in (("Degraded", "True"), ("Placed", "False"), ("Bootstrapped", "False"), ("Ready", "False")):
        entry = by_kind.get(kind, {})
        if entry.get("status") == bad and REMEDY.search(entry.get("message", "")):
            told.append(f"{kind}={bad} {entry['reason']}: {entry['message']}")
    return told[0] if told else ""
