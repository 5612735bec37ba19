"""Sources of variables and volumes: ConfigMaps, Secrets and the downward API. Pure."""

import base64
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunderfleet_lib.quantity import parse_quantity

from thunderfleet_kubelet.containers.errors import ContainerConfigError

Json = dict[str, Any]

_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


@dataclass(frozen=True)
class Sources:
    """The node's facts and the objects that a pod refers to.

    ``config_maps`` and ``secrets``: by name, in the pod's namespace; None for one that does not exist. ``api_server``: (host,
    port). ``path``: folders in front of PATH; ``python_path``: PYTHONPATH.
    """

    node_name: str = ""
    host_ip: str = ""
    host_ips: tuple[str, ...] = ()
    api_server: tuple[str, int] = ("", 0)
    path: tuple[Path, ...] = ()
    python_path: tuple[Path, ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    config_maps: Mapping[str, Json | None] = field(default_factory=dict)
    secrets: Mapping[str, Json | None] = field(default_factory=dict)


def data_of(kind: str, item: Json) -> dict[str, bytes]:
    """All keys of a ConfigMap or Secret, as bytes."""
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    plain = {key: str(value).encode() for key, value in (item.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}


def value_of(kind: str, item: Json, key: str) -> bytes | None:
    """One key of a ConfigMap or Secret; None without it."""
    parts = ("data", "binaryData") if kind == "ConfigMap" else ("data",)
    only = {part: {key: item[part][key]} for part in parts if key in (item.get(part) or {})}
    return data_of(kind, only).get(key)


def field_value(pod: Json, path: str, sources: Sources) -> str:
    """The value of a ``fieldRef``. Raises ContainerConfigError for an unsupported field path."""
    metadata, spec = pod["metadata"], pod["spec"]
    simple: dict[str, Callable[[], str]] = {
        "metadata.name": lambda: str(metadata["name"]),
        "metadata.namespace": lambda: str(metadata["namespace"]),
        "metadata.uid": lambda: str(metadata["uid"]),
        "metadata.labels": lambda: _pairs(metadata.get("labels")),
        "metadata.annotations": lambda: _pairs(metadata.get("annotations")),
        "spec.nodeName": lambda: str(spec.get("nodeName") or sources.node_name),
        "spec.serviceAccountName": lambda: str(spec.get("serviceAccountName") or "default"),
        "status.hostIP": lambda: sources.host_ip,
        "status.hostIPs": lambda: ",".join(sources.host_ips),
        "status.podIP": lambda: sources.host_ip,
        "status.podIPs": lambda: ",".join(sources.host_ips),
    }
    if path in simple:
        return simple[path]()
    match = _SUBSCRIPT.match(path)
    if match:
        return str((metadata.get(match[1]) or {}).get(match[2], ""))
    raise ContainerConfigError(f"unsupported fieldRef path {path!r}")


def _pairs(values: Mapping[str, str] | None) -> str:
    quoted = {
        key: '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for key, value in (values or {}).items()
    }
    return "\n".join(f"{key}={quoted[key]}" for key in sorted(quoted))


def resource_value(pod: Json, container: Json, reference: Json, sources: Sources) -> str:
    """The value of a ``resourceFieldRef``: a request or limit, divided by its divisor and rounded up.

    An unset limit is the node's allocatable. Raises ContainerConfigError.
    """
    name = reference.get("containerName") or container["name"]
    every = (pod["spec"].get("initContainers") or []) + (pod["spec"].get("containers") or [])
    found = next((item for item in every if item["name"] == name), None)
    if found is None:
        raise ContainerConfigError(f"resourceFieldRef: container {name!r} not found in the pod")
    kind, _, resource = str(reference["resource"]).partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ContainerConfigError(f"resourceFieldRef {reference['resource']!r} must be limits.NAME or requests.NAME")
    resources = found.get("resources") or {}
    value = (resources.get(kind) or {}).get(resource)
    if value is None:
        value = sources.allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = parse_quantity(str(reference.get("divisor") or "1")) or parse_quantity("1")
    return str(-(-parse_quantity(str(value)) // divisor))
