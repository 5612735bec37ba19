"""What must hold once a fault is over: one process per rank, no other; one epoch's objects, no other; no port but theirs.

Pure: each takes an observation and returns one sentence per problem.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.faults import RANK, SUPERVISOR

Json = dict[str, Any]

PORTS = range(20000, 30000)
"""The operator allocates ports only from these ranges."""
CABLE = "recorded_cable.py"
EPOCH = "thunderfleet.io/epoch"

# Phrases of condition messages that say what to do or when the next try is.
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
    """``seen``: see ``Deployment.seen``. Each Mac of the group has one supervisor, one rank and at most one wire."""
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


@dataclass(frozen=True)
class Census:
    """The processes of a machine (kubelets, pods (UIDs) whose containers have a shim, all others), and pods' folders (UIDs).

    ``temporary``: by temporary folder of a container with more than a few entries, their number.
    """

    kubelets: int
    pods: tuple[str, ...]
    orphans: tuple[str, ...]
    folders: tuple[str, ...] = ()
    temporary: Mapping[str, int] = field(default_factory=dict)


TEMPORARY = 8
"""More entries in the temporary folder of a container are leftovers."""

# Runs on a machine; the argument is the kubelet's root. A shim's command names its pod's folder; descendants of a kubelet or
# a shim are accounted for.
CENSUS = """
import glob, json, os, re, sys
table = {}
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline").read().replace("\\0", " ").strip()
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        continue
    if fields[0] != "Z" and command and int(pid) != os.getpid():
        table[int(pid)] = (int(fields[1]), command)
found = {pid: re.search(r"thunderfleet_kubelet/shim .*/pods/([0-9a-f-]{36})/", command) for pid, (_, command) in table.items()}
shims = {pid: match[1] for pid, match in found.items() if match}
# The installed command, or its entry point through the checkout's Python.
kubelet = re.compile(r"/thunderfleet-kubelet |thunderfleet_kubelet\\.cli")
kubelets = [pid for pid, (parent, command) in table.items() if parent == 1 and kubelet.search(command)]
def known(pid):
    while pid in table and pid > 1:
        if pid in shims or pid in kubelets:
            return True
        pid = table[pid][0]
    return False
orphans = [f"{pid} {command[:200]}" for pid, (_, command) in table.items() if pid > 1 and not known(pid)]
pods = sys.argv[1] + "/pods"
folders = sorted(os.listdir(pods)) if os.path.isdir(pods) else []
counts = {path: len(os.listdir(path)) for path in glob.glob(pods + "/*/containers/*/sandbox/*/tmp") if os.path.isdir(path)}
temporary = {path: count for path, count in counts.items() if count > int(sys.argv[2])}
found = {"kubelets": len(kubelets), "pods": sorted(shims.values()), "orphans": orphans}
print(json.dumps({**found, "folders": folders, "temporary": temporary}))
"""


def census(text: str) -> Census:
    """What ``CENSUS`` printed."""
    found = json.loads(text)
    lists = {name: tuple(found[name]) for name in ("pods", "orphans", "folders")}
    return Census(kubelets=found["kubelets"], temporary=found["temporary"], **lists)


def accounts(censuses: Mapping[str, Census], pods: Sequence[Json]) -> list[str]:
    """Every process of a machine belongs to its only kubelet or to a pod that the API server lists there."""
    wrong = []
    for machine, census in censuses.items():
        live = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") == machine}
        if census.kubelets != 1:
            wrong.append(f"{machine}: {census.kubelets} kubelets")
        for uid, count in Counter(census.pods).items():
            if uid not in live:
                wrong.append(f"{machine}: processes of pod {uid}, which is not there any more")
            elif count > 1:
                wrong.append(f"{machine}: {count} shims of pod {uid}")
        wrong += [f"{machine}: an orphan: {command}" for command in census.orphans]
        wrong += [
            f"{machine}: the folder of pod {uid}, which is not there any more" for uid in census.folders if uid not in live
        ]
        wrong += [f"{machine}: {count} entries in {path}" for path, count in census.temporary.items()]
    return wrong


def strays(managed: Sequence[Json], namespaces: Collection[str]) -> list[str]:
    """``managed``: the operator's objects of the whole cluster. None may be outside the namespaces of its deployments."""
    return [
        f"{item['kind']} {item['metadata']['namespace']}/{item['metadata']['name']} belongs to no deployment"
        for item in managed
        if item["metadata"]["namespace"] not in namespaces
    ]


def disturbed(before: Json, after: Json) -> list[str]:
    """What a deployment that was not hit has restarted. See ``Bystander.look``."""
    return [f"the untouched group: {key} was {before[key]} and is {after[key]}" for key in before if before[key] != after[key]]


def ports(listening: Collection[tuple[str, int]], plan: Json) -> list[str]:
    """The operator's ports on which a serving group listens: gateway and control port of each rank."""
    right = {(rank["node"], rank[port]) for rank in plan["ranks"] for port in ("gatewayPort", "controlPort")}
    seen = {(machine, port) for machine, port in listening if port in PORTS}
    extra = [f"{machine}: unexpected listener on port {port}" for machine, port in sorted(seen - right)]
    return extra + [f"{machine}: no listener on port {port}" for machine, port in sorted(right - seen)]


TROUBLE = {"Degraded": "True", "Placed": "False"}
"""Conditions that say that something is wrong, not only that it takes time."""
NOT_READY = {**TROUBLE, "Bootstrapped": "False", "Ready": "False"}


def explains(status: Mapping[str, Any], kinds: Mapping[str, str] = NOT_READY) -> str:
    """The condition in which a deployment reports why it does not serve and what to do; empty when there is none.

    ``kinds``: the conditions that can report this, with the status that they then have.
    """
    by_kind = {entry["type"]: entry for entry in status.get("conditions", [])}
    found = []
    for kind, bad in kinds.items():
        entry = by_kind.get(kind, {})
        if entry.get("status") == bad and REMEDY.search(entry.get("message", "")):
            found.append(f"{kind}={bad} {entry['reason']}: {entry['message']}")
    return found[0] if found else ""
