"""Tables and objects of ``thunderfleet model``. Pure."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from thunderfleet_crds.meta.fields import binary_size
from thunderfleet_crds.names import API_VERSION, MAX_NAME_LENGTH, MODELCACHE_KIND
from thunderfleet_crds.weights.quantization import Quantize, kept_name
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_cli.terminal import printable

Json = dict[str, Any]
HEADER = ("NAMESPACE", "NAME", "REPOSITORY", "SIZE", "COPIES", "STATUS", "USED BY", "MACS")


def name_for(repository: str) -> str:
    """A name for the ModelCache of a repository; empty if no character of it is usable."""
    text = re.sub(r"[^a-z0-9]+", "-", repository.rpartition("/")[2].lower())
    return re.sub(r"^[^a-z]+", "", text)[:MAX_NAME_LENGTH].strip("-")


def is_uri(model: str) -> bool:
    """Whether a model is named by a URI rather than by a repository."""
    return "://" in model


def source(spec: Json) -> str:
    """The repository or the URI of a ModelCache."""
    return str(spec.get("repository") or spec.get("uri") or "")


def quantization(bits: int | None, group_size: int | None) -> Quantize | None:
    """The field ``quantize`` of the spec; None without ``bits``."""
    if bits is None:
        return None
    return Quantize(bits=bits, group_size=group_size) if group_size is not None else Quantize(bits=bits)


def manifest(
    namespace: str,
    name: str,
    repository: str,
    revision: str,
    copies: int,
    secret: str | None,
    quantize: Quantize | None = None,
    sha256: str | None = None,
) -> Json:
    """The ModelCache. ``repository`` may be a URI, whose file SHA256SUMS has the hash ``sha256``."""
    spec: Json = {"repository": repository, "revision": revision, "copies": copies}
    if is_uri(repository):
        spec = {"uri": repository, "sha256": sha256, "copies": copies}
    if secret:
        spec["tokenSecret"] = secret
    if quantize is not None:
        spec["quantize"] = quantize.dump()
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": MODELCACHE_KIND, "metadata": metadata, "spec": spec}


def condition(cache: Json, name: str) -> Json:
    """A condition; empty if it is missing or for an earlier spec."""
    found: list[Json] = (cache.get("status") or {}).get("conditions") or []
    current = [one for one in found if one.get("observedGeneration") == cache["metadata"].get("generation")]
    return next((one for one in current if one["type"] == name), {})


def is_fetched(cache: Json) -> bool:
    """Whether all assigned Macs have the model."""
    return condition(cache, "Fetched").get("status") == "True"


def waits_for(cache: Json) -> str:
    """Reason and message of the first condition that is not True."""
    for name in ("Resolved", "Fetched"):
        found = condition(cache, name)
        if found.get("status") != "True":
            return f"{found.get('reason') or 'Pending'}: {found.get('message') or 'waiting for the operator'}"
    return "Fetched"


def _held(copy: Json) -> str:
    """The name of a Mac whose copy is complete, with the layers if it is a part; empty if the copy is not complete."""
    if copy.get("phase") == "Part":
        return f"{copy['node']}({copy.get('layers') or ''})"
    return str(copy["node"]) if copy.get("phase") == "Complete" else ""


def row(cache: Json) -> tuple[str, ...]:
    """One line of the table."""
    meta, status = cache["metadata"], cache.get("status") or {}
    macs = ",".join(filter(None, map(_held, status.get("macs") or [])))
    state = condition(cache, "Resolved" if condition(cache, "Resolved").get("status") != "True" else "Fetched")
    shown = [meta["namespace"], meta["name"], _repository(cache["spec"]), status.get("size"), status.get("copies")]
    return tuple(str(value or "-") for value in (*shown, state.get("reason"), _owner(cache), macs))


def _repository(spec: Json) -> str:
    """The name under which Macs keep the model."""
    wanted = spec.get("quantize")
    if spec.get("uri"):
        return str(spec["uri"])
    return kept_name(str(spec["repository"]), Quantize.load(wanted) if wanted is not None else None)


def _owner(cache: Json) -> str:
    owner = next((one for one in cache["metadata"].get("ownerReferences") or [] if one.get("controller")), None)
    return f"{owner['kind']} {owner['name']}" if owner else ""


@dataclass
class Kept:
    """A model on Macs without an assignment by a ModelCache: its users, and the text for each Mac."""

    bytes: int
    named_by: str
    groups: set[str] = field(default_factory=set)
    macs: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The column STATUS. ``Unreferenced`` models are removed when disk space is needed."""
        return "InUse" if self.groups else "Named" if self.named_by else "Unreferenced"


def unreferenced(profiles: Iterable[Json], caches: Iterable[Json], now: datetime) -> list[tuple[str, ...]]:
    """A line for each model that no ModelCache assigns to a Mac; for each Mac, how long ago the model was used."""
    asked: set[tuple[str, str]] = set()
    owners: dict[str, str] = {}
    for cache in caches:
        status = cache.get("status") or {}
        manifest = str(status.get("manifest"))
        asked |= {(manifest, one["node"]) for one in status.get("assignments") or []}
        if owner := _owner(cache):
            owners[manifest] = owner
    found: dict[tuple[str, str], Kept] = {}
    for profile in profiles:
        status, name = profile.get("status") or {}, profile["metadata"]["name"]
        for copy in status.get("copies") or []:
            if (copy["manifest"], name) in asked:
                continue
            what = (copy["repository"], copy["commit"])
            kept = found.setdefault(what, Kept(copy.get("bytes") or 0, owners.get(copy["manifest"], "")))
            groups = _groups(status, *what, copy["manifest"])
            kept.groups |= groups
            kept.macs[name] = f"{name} ({age(copy['usedAt'], now)})" if copy.get("usedAt") and not groups else name
    return [_line(*what, kept) for what, kept in sorted(found.items(), key=lambda one: one[0])]


def _line(repository: str, commit: str, kept: Kept) -> tuple[str, ...]:
    users = ", ".join(f"group {name}" for name in sorted(kept.groups)) or kept.named_by or "-"
    macs = ",".join(kept.macs[name] for name in sorted(kept.macs))
    return ("-", "-", f"{repository}@{commit[:8]}", binary_size(kept.bytes), "-", kept.state, users, macs)


def _groups(status: Json, repository: str, commit: str, digest: str) -> set[str]:
    """The groups on a Mac that serve a model of its store, or a part of it."""
    folders = f"/models--{repository.replace('/', '--')}/snapshots/{commit}", f"/.thunderfleet/parts/{digest}"
    return {str(group["name"]) for group in status.get("groups") or [] if str(group.get("modelPath") or "").endswith(folders)}


def age(used: str, now: datetime) -> str:
    """How long ago a model was used, in the largest unit."""
    seconds = age_seconds(datetime.fromisoformat(used), now)
    if math.isinf(seconds):
        return "used at an unknown time"
    hours = int(seconds // 3600)
    return f"unused {hours // 24} d" if hours >= 48 else f"unused {hours} h" if hours else "used in the last hour"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns."""
    # Also of other namespaces, and of what the agents of Macs report.
    every = [HEADER, *([printable(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in every) for column in range(len(HEADER))]
    lines = ("   ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in every)
    return "\n".join(lines)
