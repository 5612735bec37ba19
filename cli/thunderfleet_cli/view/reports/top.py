"""``top``: current usage of Macs and groups. Pure.

CPU and memory come from metrics.k8s.io (metrics-server), GPU memory from the placements.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity
from thunderfleet_view import facts
from thunderfleet_view.facts import Json, Picture
from thunderfleet_view.problems import macs

from thunderfleet_cli.view.page import DOUBTFUL, Page
from thunderfleet_cli.view.reports.status import unread


def as_values(picture: Picture, usage: Sequence[Json] | None) -> list[dict[str, Any]]:
    """Each Mac: CPU in cores and memory in bytes (None without a source), and GPU memory that groups have reserved."""
    by_node = {facts.name(one): one.get("usage") or {} for one in usage or ()}
    reserved = _reserved(picture)
    found = []
    for node, profile in macs(picture):
        name, hardware = facts.name(node), facts.status(profile or {}).get("hardware") or {}
        used = by_node.get(name, {})
        found.append(
            {
                "name": name,
                "cpuCores": _number(used.get("cpu")),
                "cpuTotal": _number((facts.status(node).get("capacity") or {}).get("cpu")),
                "memoryBytes": _number(used.get("memory")),
                "memoryTotal": hardware.get("memoryBytes"),
                "gpuReservedBytes": reserved.get(name, 0),
                "gpuLimitBytes": hardware.get("gpuMemoryLimitBytes"),
                "groups": [facts.plain(use.get("name")) for use in facts.status(profile or {}).get("groups") or ()],
            }
        )
    return found


def show(picture: Picture, usage: Sequence[Json] | None, missing: str, page: Page) -> None:
    """A table of Macs; ``missing`` is the reason why CPU and memory are not shown."""
    rows = [
        (
            one["name"],
            _share(one["cpuCores"], one["cpuTotal"], "{:.2f}"),
            _share(one["memoryBytes"], one["memoryTotal"], ""),
            _share(one["gpuReservedBytes"], one["gpuLimitBytes"], ""),
            ",".join(one["groups"]),
        )
        for one in as_values(picture, usage)
    ]
    page.table(("MAC", "CPU", "MEMORY", "GPU RESERVED", "GROUPS"), rows)
    if missing:
        page.line(f"CPU and memory are not shown: {missing}", DOUBTFUL)
    unread(picture, page)


def _reserved(picture: Picture) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for deployment in picture.deployments:
        for group in facts.groups(deployment):
            for rank in group.get("ranks") or ():
                node = facts.plain(rank.get("node"))
                found[node] = found.get(node, 0) + int(rank.get("memoryBytes") or 0)
    return found


def _number(text: object) -> float | None:
    if text is None:
        return None
    try:
        return float(parse_quantity(str(text)))
    except ValueError:
        return None


def _share(used: float | None, total: float | None, form: str) -> str:
    """An amount with its share, such as ``1.20 (5%)`` or ``12Gi (13%)``; "-" if unknown."""
    if used is None:
        return "-"
    text = form.format(used) if form else facts.gibibytes(int(used))
    return f"{text} ({100 * used / total:.0f}%)" if total else text
