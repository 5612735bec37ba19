"""The environment and command line of a container, from the image, the pod and the kubelet. Pure.

None of the kubelet's own variables leak in.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from thunderfleet_lib.host.sandbox import MOUNT_POINT_VARIABLE

from thunderfleet_kubelet.containers.errors import ContainerConfigError
from thunderfleet_kubelet.containers.inputs.images import Image
from thunderfleet_kubelet.containers.inputs.sources import Sources, data_of, field_value, resource_value, value_of

Json = dict[str, Any]

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
USER_NAME = "pod"
MAX_CHARACTERS = 2 * 1024**2
"""Of all variables of a container together, and of its command line: the system starts no program with more."""
_NAME = re.compile(r"[^=\0]+")
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))", re.DOTALL)


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replaces ``$(NAME)`` where NAME is known and ``$$`` by ``$``; everything else stays.

    Raises ContainerConfigError: a variable may refer to another one a thousand times, which may refer to a third one.
    """
    left = MAX_CHARACTERS

    def value(found: re.Match[str]) -> str:
        nonlocal left
        one = "$" if found[1] is None else variables.get(found[1], found[0])
        left -= len(one)
        _check(left)
        return one

    return _REFERENCE.sub(value, text)


def _check(left: int) -> None:
    if left < 0:
        raise ContainerConfigError(
            f"variables or arguments have more than {MAX_CHARACTERS} characters together, with which no program can start; "
            "use a volume for large values"
        )


def _bounded(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The pairs. Raises ContainerConfigError as soon as they are too much together."""
    left = MAX_CHARACTERS
    for name, value in pairs:
        left -= len(name) + len(value)
        _check(left)
        yield name, value


def references(containers: list[Json]) -> tuple[set[str], set[str]]:
    """Names of the ConfigMaps and Secrets that the containers' variables refer to."""
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


def _object(kind: str, objects: Mapping[str, Json | None], reference: Json) -> Json | None:
    """The object that an ``envFrom`` or ``valueFrom`` names; None for an optional one that does not exist."""
    item = objects.get(str(reference["name"]))
    if item is not None or reference.get("optional"):
        return item
    raise ContainerConfigError(f"{kind} {reference['name']!r} not found in the pod's namespace")


def _key(kind: str, objects: Mapping[str, Json | None], reference: Json) -> str | None:
    item, key = _object(kind, objects, reference), str(reference["key"])
    value = None if item is None else value_of(kind, item, key)
    if value is not None:
        return value.decode("utf-8", "surrogateescape")
    if reference.get("optional"):
        return None
    raise ContainerConfigError(f"{kind} {reference['name']!r} has no key {key!r}")


def _env_from(container: Json, sources: Sources) -> Iterator[tuple[str, str]]:
    # A container may name the same large object thousands of times, each with another prefix.
    known: dict[tuple[str, str], dict[str, bytes]] = {}
    for source in container.get("envFrom") or []:
        for kind, key, objects in (
            ("ConfigMap", "configMapRef", sources.config_maps),
            ("Secret", "secretRef", sources.secrets),
        ):
            item = _object(kind, objects, source[key]) if source.get(key) else None
            if item is None:
                continue
            place = (kind, str(source[key]["name"]))
            if place not in known:
                known[place] = data_of(kind, item)
            for name, data in known[place].items():
                if b"\0" not in data and _NAME.fullmatch(name):
                    yield str(source.get("prefix") or "") + name, data.decode("utf-8", "surrogateescape")


def build(pod: Json, container: Json, image: Image, sandbox: Path, sources: Sources) -> dict[str, str]:
    """All environment variables of a container. Raises ContainerConfigError."""
    variables = {
        "KUBERNETES_SERVICE_HOST": sources.api_server[0],
        "KUBERNETES_SERVICE_PORT": str(sources.api_server[1]),
        "KUBERNETES_SERVICE_PORT_HTTPS": str(sources.api_server[1]),
        "HOSTNAME": sources.node_name,
        "HOME": str(sandbox),
        "TMPDIR": str(sandbox / "tmp"),
        # A pod's user has no account, and programs that look up its name fail (getpass.getuser in Python).
        "USER": USER_NAME,
        "LOGNAME": USER_NAME,
        MOUNT_POINT_VARIABLE: str(sandbox),
        "PATH": SYSTEM_PATH,
    }
    own = _env(pod, container, variables, sources)
    for name, value in _bounded(chain(image.env, _env_from(container, sources), own)):
        variables[name] = value
    front = [str(folder) for folder in sources.path] + [str(image.folder / "bin")]
    variables["PATH"] = ":".join([*front, variables["PATH"]])
    if sources.python_path:
        last = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
        variables["PYTHONPATH"] = ":".join([str(folder) for folder in sources.python_path] + last)
    # The kubelet finds the container's processes by this variable, so the pod cannot change it.
    variables[MOUNT_POINT_VARIABLE] = str(sandbox)
    return variables


def _env(pod: Json, container: Json, known: Mapping[str, str], sources: Sources) -> Iterator[tuple[str, str]]:
    """The variables that the spec has one by one. ``known``: with those before each of them, to which it may refer."""
    for variable in container.get("env") or []:
        value = _value(pod, container, variable, known, sources)
        if value is not None:
            yield str(variable["name"]), value


def _value(pod: Json, container: Json, variable: Json, known: Mapping[str, str], sources: Sources) -> str | None:
    origin: Json = variable.get("valueFrom") or {}
    if origin.get("fieldRef"):
        return field_value(pod, str(origin["fieldRef"]["fieldPath"]), sources)
    if origin.get("resourceFieldRef"):
        return resource_value(pod, container, origin["resourceFieldRef"], sources)
    if origin.get("configMapKeyRef"):
        return _key("ConfigMap", sources.config_maps, origin["configMapKeyRef"])
    if origin.get("secretKeyRef"):
        return _key("Secret", sources.secrets, origin["secretKeyRef"])
    if origin:
        raise ContainerConfigError(f"variable {variable['name']!r}: unsupported valueFrom {', '.join(origin)}")
    return expand(str(variable.get("value") or ""), known)


def command_line(container: Json, image: Image, variables: Mapping[str, str]) -> list[str]:
    """The command or the image's entrypoint, then args or, without a command, the image's own. Raises ContainerConfigError."""
    if container.get("command"):
        words = list(container["command"]) + list(container.get("args") or [])
    else:
        words = list(image.entrypoint) + list(container.get("args") or image.command)
    if not words:
        raise ContainerConfigError(
            f"container {container['name']!r} has no command, and image {image.name!r} has neither entrypoint nor command"
        )
    return [word for _, word in _bounded(("", expand(str(word), variables)) for word in words)]


def working_folder(container: Json, image: Image, sandbox: Path) -> Path:
    """The working folder: ``workingDir`` or the image's, below the sandbox; the sandbox itself without either.

    As in a container, ``..`` leads no further up than its root: the kubelet, often root, makes this folder.
    """
    wanted = str(container.get("workingDir") or image.working_folder or "")
    if wanted == str(sandbox) or wanted.startswith(f"{sandbox}/"):
        wanted = wanted[len(str(sandbox)) :]
    return sandbox / posixpath.normpath(f"/{wanted}").lstrip("/")
