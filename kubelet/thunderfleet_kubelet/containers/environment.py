"""The environment and command line of a container: the pod's, the image's, and the few things that the kubelet adds.

No variable of the kubelet leaks in. ConfigMaps and Secrets are handed in already read, so all of this is pure.
"""

import base64
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thunderfleet_lib.quantity import parse_quantity
from thunderfleet_lib.sandbox import MOUNT_POINT_VARIABLE

from thunderfleet_kubelet.containers.images import Image
from thunderfleet_kubelet.containers.user import ConfigProblem

Json = dict[str, Any]

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_NAME = re.compile(r"[^=\0]+")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")


@dataclass(frozen=True)
class Sources:
    """What the environment is made from beside the pod. ``config_maps`` and ``secrets``: by name, in the pod's namespace; the
    value is None when there is no such object.
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


def expand(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where NAME is known and left as it is where not; ``$$`` is a plain ``$``."""
    result, at = [], 0
    while at < len(text):
        if text[at] != "$" or at + 1 == len(text):
            result.append(text[at])
            at += 1
        elif text[at + 1] == "$":
            result.append("$")
            at += 2
        elif text[at + 1] == "(" and ")" in text[at + 2 :]:
            end = text.index(")", at + 2)
            name = text[at + 2 : end]
            result.append(variables.get(name, f"$({name})"))
            at = end + 1
        else:
            result.append(text[at])
            at += 1
    return "".join(result)


def references(containers: list[Json]) -> tuple[set[str], set[str]]:
    """Names of the ConfigMaps and Secrets that the containers' environments need."""
    config_maps, secrets = set(), set()
    for container in containers:
        for source in container.get("envFrom") or []:
            if source.get("configMapRef"):
                config_maps.add(str(source["configMapRef"]["name"]))
            if source.get("secretRef"):
                secrets.add(str(source["secretRef"]["name"]))
        for variable in container.get("env") or []:
            value = variable.get("valueFrom") or {}
            if value.get("configMapKeyRef"):
                config_maps.add(str(value["configMapKeyRef"]["name"]))
            if value.get("secretKeyRef"):
                secrets.add(str(value["secretKeyRef"]["name"]))
    return config_maps, secrets


def data_of(kind: str, item: Json) -> dict[str, bytes]:
    """All keys of a ConfigMap or Secret, as bytes."""
    if kind == "Secret":
        return {key: base64.b64decode(value) for key, value in (item.get("data") or {}).items()}
    plain = {key: str(value).encode() for key, value in (item.get("data") or {}).items()}
    return plain | {key: base64.b64decode(value) for key, value in (item.get("binaryData") or {}).items()}


def field_value(pod: Json, path: str, sources: Sources) -> str:
    """The downward API's ``fieldRef``. Raises ConfigProblem for a path that it does not have."""
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
    raise ConfigProblem(f"fieldRef {path!r} is not a field of the downward API")


def _pairs(values: Mapping[str, str] | None) -> str:
    quoted = {
        key: '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        for key, value in (values or {}).items()
    }
    return "\n".join(f"{key}={quoted[key]}" for key in sorted(quoted))


def resource_value(pod: Json, container: Json, reference: Json, sources: Sources) -> str:
    """The downward API's ``resourceFieldRef``: a request or limit in units of its divisor, rounded up. A limit that is not
    set is the node's allocatable.
    """
    name = reference.get("containerName") or container["name"]
    every = (pod["spec"].get("initContainers") or []) + (pod["spec"].get("containers") or [])
    found = next((item for item in every if item["name"] == name), None)
    if found is None:
        raise ConfigProblem(f"resourceFieldRef names container {name!r}, which the pod does not have")
    kind, _, resource = str(reference["resource"]).partition(".")
    if kind not in ("limits", "requests") or not resource:
        raise ConfigProblem(f"resourceFieldRef {reference['resource']!r} is neither limits.NAME nor requests.NAME")
    resources = found.get("resources") or {}
    value = (resources.get(kind) or {}).get(resource)
    if value is None:
        value = sources.allocatable.get(resource, "0") if kind == "limits" else "0"
    divisor = parse_quantity(str(reference.get("divisor") or "1")) or parse_quantity("1")
    return str(-(-parse_quantity(str(value)) // divisor))


def _from_object(kind: str, objects: Mapping[str, Json | None], reference: Json) -> str | None:
    name, key = str(reference["name"]), str(reference["key"])
    item = objects.get(name)
    if item is None:
        if reference.get("optional"):
            return None
        raise ConfigProblem(f"{kind} {name!r} does not exist in the pod's namespace")
    value = data_of(kind, item).get(key)
    if value is None:
        if reference.get("optional"):
            return None
        raise ConfigProblem(f"{kind} {name!r} has no key {key!r}")
    return value.decode("utf-8", "surrogateescape")


def build(pod: Json, container: Json, image: Image, sandbox: Path, sources: Sources) -> dict[str, str]:
    """The whole environment of one container. Raises ConfigProblem for what is missing."""
    base = {
        "KUBERNETES_SERVICE_HOST": sources.api_server[0],
        "KUBERNETES_SERVICE_PORT": str(sources.api_server[1]),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(sources.api_server[1]),
        "HOSTNAME": sources.node_name,
        "HOME": str(sandbox),
        "TMPDIR": str(sandbox / "tmp"),
        MOUNT_POINT_VARIABLE: str(sandbox),
        "PATH": SYSTEM_PATH,
    }
    variables = base | dict(image.env)
    for source in container.get("envFrom") or []:
        for kind, key, objects in (
            ("ConfigMap", "configMapRef", sources.config_maps),
            ("Secret", "secretRef", sources.secrets),
        ):
            reference = source.get(key)
            if not reference:
                continue
            item = objects.get(str(reference["name"]))
            if item is None:
                if reference.get("optional"):
                    continue
                raise ConfigProblem(f"{kind} {reference['name']!r} does not exist in the pod's namespace")
            for name, data in data_of(kind, item).items():
                if b"\0" not in data and _NAME.fullmatch(name):
                    variables[str(source.get("prefix") or "") + name] = data.decode("utf-8", "surrogateescape")
    for variable in container.get("env") or []:
        value = _value(pod, container, variable, variables, sources)
        if value is not None:
            variables[str(variable["name"])] = value
    front = [str(folder) for folder in sources.path] + [str(image.folder / "bin")]
    variables["PATH"] = ":".join([*front, variables["PATH"]])
    if sources.python_path:
        own = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
        variables["PYTHONPATH"] = ":".join([str(folder) for folder in sources.python_path] + own)
    # The kubelet finds a container's processes by it.
    variables[MOUNT_POINT_VARIABLE] = str(sandbox)
    return variables


def _value(pod: Json, container: Json, variable: Json, known: Mapping[str, str], sources: Sources) -> str | None:
    origin: Json = variable.get("valueFrom") or {}
    if origin.get("fieldRef"):
        return field_value(pod, str(origin["fieldRef"]["fieldPath"]), sources)
    if origin.get("resourceFieldRef"):
        return resource_value(pod, container, origin["resourceFieldRef"], sources)
    if origin.get("configMapKeyRef"):
        return _from_object("ConfigMap", sources.config_maps, origin["configMapKeyRef"])
    if origin.get("secretKeyRef"):
        return _from_object("Secret", sources.secrets, origin["secretKeyRef"])
    if origin:
        raise ConfigProblem(f"variable {variable['name']!r} comes from {', '.join(origin)}, which this kubelet does not know")
    return expand(str(variable.get("value") or ""), known)


def command_line(container: Json, image: Image, variables: Mapping[str, str]) -> list[str]:
    """argv: command or the image's entrypoint, then args or, unless command is given, the image's command."""
    if container.get("command"):
        words = list(container["command"]) + list(container.get("args") or [])
    else:
        words = list(image.entrypoint) + list(container.get("args") or image.command)
    argv = [expand(str(word), variables) for word in words]
    if not argv:
        raise ConfigProblem(
            f"container {container['name']!r} has no command, and image {image.name!r} has neither entrypoint nor command"
        )
    inside = image.folder / argv[0].lstrip("/")
    if argv[0].startswith("/") and os.path.exists(inside):
        argv[0] = str(inside)
    return argv


def working_folder(container: Json, image: Image, sandbox: Path) -> Path:
    """The folder to start in: ``workingDir`` (else the image's) under the sandbox, else the sandbox itself."""
    wanted = str(container.get("workingDir") or image.working_folder or "")
    if not wanted or wanted == str(sandbox) or wanted.startswith(f"{sandbox}/"):
        return Path(wanted) if wanted else sandbox
    return sandbox / wanted.lstrip("/")
