"""Which pods must leave because of the disk, in which order, and with which message. Pure.

Texts and order are those of the Kubernetes kubelet (pkg/kubelet/eviction).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from thunderfleet_lib.quantity import parse_quantity

from thunderfleet_kubelet.pods.decide import podspec
from thunderfleet_kubelet.pressure import Met

Json = dict[str, Any]

REASON = "Evicted"
STORAGE = "ephemeral-storage"


@dataclass(frozen=True)
class Usage:
    """Bytes on disk of one pod: ``volumes``: its emptyDirs by name. ``containers``: sandbox and logs by name.

    ``logs``: the part of ``containers`` that is logs. ``unknown``: the pod has too many files to be measured in time.
    ``elsewhere``: the files of its users in folders that all users can write; measured only when the disk is too full.
    """

    volumes: Mapping[str, int] = field(default_factory=dict)
    containers: Mapping[str, int] = field(default_factory=dict)
    logs: Mapping[str, int] = field(default_factory=dict)
    unknown: bool = False
    elsewhere: int = 0

    @property
    def total(self) -> int:
        """The sum of all."""
        return sum(self.volumes.values()) + sum(self.containers.values()) + self.elsewhere


def has_limits(pod: Json) -> bool:
    """Whether the pod has any limit that ``over_limit`` checks."""
    return bool(_size_limits(pod)) or any(_limit(container) is not None for container in podspec.all_containers(pod))


def over_limit(pod: Json, usage: Usage) -> str:
    """Which limit of its spec the pod exceeds, as the message of its eviction; empty for none."""
    for volume, size in _size_limits(pod).items():
        if usage.volumes.get(volume, 0) > parse_quantity(size):
            return f'Usage of EmptyDir volume "{volume}" exceeds the limit "{size}". '
    limits = {item["name"]: _limit(item) for item in podspec.main_containers(pod)}
    known = [parse_quantity(text) for text in limits.values() if text is not None]
    if known and usage.total > sum(known):
        return f"Pod ephemeral local storage usage exceeds the total limit of containers {quantity(sum(known, Fraction()))}. "
    limits |= {item["name"]: _limit(item) for item in podspec.init_containers(pod)}
    for name, text in limits.items():
        if text is not None and usage.containers.get(name, 0) > parse_quantity(text):
            return f'Container {name} exceeded its local ephemeral storage limit "{text}". '
    return ""


def _size_limits(pod: Json) -> dict[str, str]:
    volumes = pod["spec"].get("volumes") or []
    limits = {volume["name"]: (volume.get("emptyDir") or {}).get("sizeLimit") for volume in volumes}
    return {name: str(limit) for name, limit in limits.items() if limit is not None and parse_quantity(str(limit)) > 0}


def _limit(container: Json) -> str | None:
    limit = ((container.get("resources") or {}).get("limits") or {}).get(STORAGE)
    return None if limit is None else str(limit)


def request(container: Json) -> Fraction:
    """The container's request of ephemeral storage; the limit counts as request without one, as in the API's defaults."""
    resources = container.get("resources") or {}
    asked = (resources.get("requests") or {}).get(STORAGE, (resources.get("limits") or {}).get(STORAGE, "0"))
    return parse_quantity(str(asked))


def ranked(pods: Sequence[tuple[Json, Usage]]) -> list[tuple[Json, Usage]]:
    """The pods that may be evicted, the first one first: above its request, then low priority, then much above its request.

    A pod that cannot be measured counts as much above its request: it must not escape by having many files.
    """

    def order(item: tuple[Json, Usage]) -> tuple[bool, int, bool, Fraction]:
        pod, usage = item
        excess = usage.total - sum((request(one) for one in podspec.main_containers(pod)), Fraction())
        within = excess <= 0 and not usage.unknown
        return within, int(pod["spec"].get("priority") or 0), not usage.unknown, -excess

    return sorted((item for item in pods if not podspec.is_critical(item[0])), key=order)


def pressure_message(pod: Json, usage: Usage, cause: Met) -> str:
    """The message of an eviction because the node's file system is full."""
    text = f"The node was low on resource: {cause.threshold.resource}. "
    text += f"Threshold quantity: {quantity(cause.limit)}, available: {quantity(cause.available)}. "
    for container in podspec.main_containers(pod):
        name, asked = container["name"], request(container)
        has = usage.containers.get(name, 0)
        if has > asked and cause.threshold.resource == STORAGE:
            text += f"Container {name} was using {quantity(has)}, request is {quantity(asked)}, "
            text += f"has larger consumption of {STORAGE}. "
    return text


def quantity(size: int | Fraction) -> str:
    """Bytes as a quantity in the largest binary unit without a fraction, as Kubernetes prints them."""
    number = int(size)
    for unit in ("", "Ki", "Mi", "Gi", "Ti", "Pi"):
        if number == 0 or number % 1024 or unit == "Pi":
            return f"{number}{unit}"
        number //= 1024
    return str(int(size))
