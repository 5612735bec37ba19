"""Values read from the objects of a cluster: names, conditions, groups, and which groups use which cable. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from thunderfleet_crds import names
from thunderfleet_crds.vocabulary import GroupPhase

Json = Mapping[str, Any]

CHART: Final = "thunderfleet"
"""Label app.kubernetes.io/name of the chart's pods."""
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
GIB: Final = 1 << 30


@dataclass(frozen=True, repr=False)
class Picture:
    """The objects of a cluster at one moment. They are not in its ``repr``, which asyncio makes of the result of a task.

    ``deployments``, ``pods`` and ``events`` are those of ``namespace``; None: of all namespaces. ``operators``: the operator's
    pods. ``leases``: of components of the control plane, as far as they could be read. ``kubelets``: the Leases of Nodes, by
    Node. ``agents``: pods of agents, if some of them are not ready. ``now``: the time of the API server. ``slow``: a part of
    the control plane that answers slowly, with the seconds that a small request took. ``unread``: why a kind could not be read,
    by its plural name; its objects are then missing here.
    """

    namespace: str | None = None
    nodes: Sequence[Json] = ()
    profiles: Sequence[Json] = ()
    links: Sequence[Json] = ()
    deployments: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    operators: Sequence[Json] = ()
    events: Sequence[Json] = ()
    leases: Mapping[str, Json] = field(default_factory=dict)
    kubelets: Mapping[str, Json] = field(default_factory=dict)
    agents: Sequence[Json] = ()
    now: datetime | None = None
    slow: Mapping[str, float] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Signs:
    """Objects by which programs show that they work: fields of ``Picture``. Unreadable ones are left out."""

    leases: Mapping[str, Json] = field(default_factory=dict)
    kubelets: Mapping[str, Json] = field(default_factory=dict)
    agents: Sequence[Json] = ()
    now: datetime | None = None
    slow: Mapping[str, float] = field(default_factory=dict)


def plain(value: object) -> str:
    """Untrusted text as one line, without control characters that a terminal would interpret."""
    text = str(value)
    return text if text.isprintable() else re.sub(r"\s+", " ", "".join(one if one.isprintable() else " " for one in text))


def name(item: Json) -> str:
    """metadata.name."""
    return plain(item["metadata"]["name"])


def full_name(item: Json) -> str:
    """``namespace/name``."""
    return f"{plain(item['metadata'].get('namespace') or '')}/{name(item)}"


def labels(item: Json) -> Mapping[str, str]:
    """metadata.labels."""
    return item["metadata"].get("labels") or {}


def status(item: Json) -> Json:
    """The status, which a new object does not have."""
    return item.get("status") or {}


def conditions(item: Json) -> Mapping[str, Json]:
    """Conditions by type."""
    return {str(one.get("type")): one for one in status(item).get("conditions") or ()}


def holds(item: Json, kind: str) -> bool:
    """Whether the condition is True."""
    return conditions(item).get(kind, {}).get("status") == "True"


def said(condition: Json) -> str:
    """The reason and message of a condition."""
    reason, message = plain(condition.get("reason") or ""), plain(condition.get("message") or "")
    return f"{reason}: {message}" if reason and message else reason or message


def groups(deployment: Json) -> Sequence[Json]:
    """status.groups."""
    found: Sequence[Json] = status(deployment).get("groups") or ()
    return found


def group_name(deployment: Json, group: Json) -> str:
    """The name of a group in NodeProfiles: ``namespace/deployment-index``."""
    return f"{full_name(deployment)}-{group.get('index', 0)}"


def links_of(picture: Picture, group: str) -> Sequence[str]:
    """Names of the ThunderboltLinks that a group uses, in order."""
    found = {
        plain(link)
        for profile in picture.profiles
        for use in status(profile).get("groups") or ()
        if use.get("name") == group
        for link in use.get("links") or ()
    }
    return sorted(found)


def left_by(picture: Picture) -> Mapping[str, Sequence[str]]:
    """Names of the groups that have left each ThunderboltLink because it failed, and that may go back to it."""
    found: dict[str, set[str]] = {}
    for deployment in picture.deployments:
        for group in groups(deployment):
            for link in (group.get("lostPlace") or {}).get("links") or ():
                found.setdefault(plain(link), set()).add(group_name(deployment, group))
    return {link: sorted(names) for link, names in found.items()}


def users(picture: Picture) -> Mapping[str, Sequence[str]]:
    """Names of the groups that use each ThunderboltLink."""
    found: dict[str, set[str]] = {}
    for profile in picture.profiles:
        for use in status(profile).get("groups") or ():
            for link in use.get("links") or ():
                found.setdefault(plain(link), set()).add(plain(use.get("name")))
    return {link: sorted(groups) for link, groups in found.items()}


def ready_groups(deployment: Json) -> int:
    """The number of groups that serve."""
    return sum(group.get("state") == GroupPhase.READY for group in groups(deployment))


def replicas(deployment: Json) -> int:
    """The number of groups that should exist: the decision of autoscaling, else spec.replicas; 0 while suspended."""
    spec = deployment.get("spec") or {}
    if spec.get("suspend"):
        return 0
    scaled = status(deployment).get("autoscaling") or {}
    found = scaled.get("replicas") if spec.get("autoscaling") is not None else None
    found = spec.get("replicas") if found is None else found
    return 1 if found is None else int(found)


def model(deployment: Json) -> str:
    """The repository, the path on the Macs, or the URI."""
    spec = (deployment.get("spec") or {}).get("model") or {}
    return plain(spec.get("repository") or spec.get("path") or spec.get("uri") or "")


def is_linux(node: Json) -> bool:
    """Whether a Node is not a Mac."""
    return labels(node).get(names.LABEL_OS) == "linux"


def operators_ready(picture: Picture) -> bool | None:
    """Whether an operator is ready; None if its pods could not be read."""
    if "operators" in picture.unread:
        return None
    return any(holds(pod, "Ready") for pod in picture.operators)


def gibibytes(value: object) -> str:
    """Bytes as ``96Gi``; "" if unknown."""
    return f"{int(value) / GIB:.4g}Gi" if isinstance(value, int) else ""


def parsed_time(text: object) -> datetime | None:
    """A time of the API; None if there is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def ago(text: object, now: datetime) -> str:
    """The age of a time of the API, in kubectl's format; "" without a time."""
    then = parsed_time(text)
    if then is None:
        return ""
    seconds = max(0, int((now - then).total_seconds()))
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def pods_of(picture: Picture, deployment: Json) -> Iterator[Json]:
    """The pods of a ModelDeployment's groups."""
    metadata = deployment["metadata"]
    for pod in picture.pods:
        same = pod["metadata"].get("namespace") == metadata.get("namespace")
        if same and labels(pod).get(names.LABEL_DEPLOYMENT) == metadata["name"]:
            yield pod
