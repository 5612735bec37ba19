"""The files of a pod's volumes: what to write for ConfigMaps, Secrets, projected volumes and the downward API. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunderfleet_kubelet.containers.errors import ContainerConfigError, VolumeError
from thunderfleet_kubelet.containers.inputs.sources import Sources, data_of, field_value, resource_value

Json = dict[str, Any]

DEFAULT_MODE = 0o644
DEFAULT_TOKEN_SECONDS = 3600
TOKEN_MODE = 0o600
MAX_BYTES = 64 * 1024**2
"""Of all files that the kubelet writes for one pod. A pod may name the same ConfigMap of a megabyte thousands of times."""
ENTRY_BYTES = 4096
"""What a file, and each folder in its path, takes of the disk besides its content."""
MAX_DEPTH = 64
SUPPORTED = ("emptyDir", "hostPath", "configMap", "secret", "projected", "downwardAPI")
WRITTEN = ("configMap", "secret", "projected", "downwardAPI")
"""The kinds of volumes whose files the kubelet writes and keeps current."""


@dataclass(frozen=True)
class File:
    """One file of a written volume."""

    data: bytes
    mode: int


@dataclass(frozen=True)
class TokenRequest:
    """A token that a ``serviceAccountToken`` source needs."""

    audience: str
    seconds: int


def kind_of(volume: Json) -> str:
    """The kind of a volume: its key beside ``name``."""
    return next((key for key in volume if key != "name" and volume[key] is not None), "emptyDir")


def volumes_of(pod: Json) -> list[Json]:
    """The pod's volumes."""
    return list(pod["spec"].get("volumes") or [])


def unsupported(pod: Json) -> list[str]:
    """The volumes that this kubelet cannot mount, as ``name (kind)``."""
    return [f"{volume['name']} ({kind_of(volume)})" for volume in volumes_of(pod) if kind_of(volume) not in SUPPORTED]


@dataclass(frozen=True)
class References:
    """Names of ConfigMaps and Secrets, and tokens, that volumes need."""

    config_maps: frozenset[str]
    secrets: frozenset[str]
    tokens: frozenset[TokenRequest]


def references(pod: Json) -> References:
    """The ConfigMaps, Secrets and tokens that the pod's volumes need."""
    volumes = volumes_of(pod)
    projected = [source for volume in volumes for source in (volume.get("projected") or {}).get("sources") or []]
    config_maps = [item["configMap"]["name"] for item in [*volumes, *projected] if item.get("configMap")]
    secrets = [volume["secret"]["secretName"] for volume in volumes if volume.get("secret")]
    secrets += [source["secret"]["name"] for source in projected if source.get("secret")]
    tokens = [token_request(item["serviceAccountToken"]) for item in projected if item.get("serviceAccountToken")]
    return References(frozenset(map(str, config_maps)), frozenset(map(str, secrets)), frozenset(tokens))


def token_request(source: Json) -> TokenRequest:
    """The token of a source, with the API's defaults."""
    return TokenRequest(str(source.get("audience") or ""), int(source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS))


def plan(volume: Json, pod: Json, sources: Sources, tokens: Mapping[TokenRequest, str]) -> dict[str, File]:
    """The files of a volume whose kind is in ``WRITTEN``, by path inside the volume. Raises VolumeError."""
    kind = kind_of(volume)
    spec = volume[kind]
    mode = int(spec["defaultMode"]) if spec.get("defaultMode") is not None else DEFAULT_MODE
    try:
        if kind == "configMap":
            return _from_object("ConfigMap", str(spec["name"]), spec, sources.config_maps, mode)
        if kind == "secret":
            return _from_object("Secret", str(spec["secretName"]), spec, sources.secrets, mode)
        if kind == "downwardAPI":
            return _downward(spec, pod, sources, mode)
        files: dict[str, File] = {}
        size = 0
        for source in spec.get("sources") or []:
            more = _projected(source, pod, sources, tokens, mode)
            size += size_of(more)
            check_size(size)
            files |= more
        return files
    except ContainerConfigError as error:
        raise VolumeError(f"volume {volume['name']!r}: {error}") from error


def size_of(files: Mapping[str, File]) -> int:
    """Bytes that the files take of the disk."""
    return sum(len(file.data) + ENTRY_BYTES * (path.count("/") + 1) for path, file in files.items())


def check_size(size: int) -> None:
    """Raises ContainerConfigError for more bytes than the files of a pod may have."""
    if size > MAX_BYTES:
        raise ContainerConfigError(
            f"ConfigMaps, Secrets and other files for this pod need more than {MAX_BYTES // 1024**2} MiB of the disk; "
            "mount fewer or smaller ones, or use an emptyDir or hostPath volume for large files"
        )


def _projected(source: Json, pod: Json, sources: Sources, tokens: Mapping[TokenRequest, str], mode: int) -> dict[str, File]:
    if source.get("configMap"):
        return _from_object("ConfigMap", str(source["configMap"]["name"]), source["configMap"], sources.config_maps, mode)
    if source.get("secret"):
        return _from_object("Secret", str(source["secret"]["name"]), source["secret"], sources.secrets, mode)
    if source.get("downwardAPI"):
        return _downward(source["downwardAPI"], pod, sources, mode)
    if source.get("serviceAccountToken"):
        token = source["serviceAccountToken"]
        # Readable by its user only, regardless of defaultMode.
        return {_inside(str(token["path"])): File(tokens[token_request(token)].encode(), TOKEN_MODE)}
    raise ContainerConfigError(f"unsupported projected source {', '.join(source)}")


def _from_object(kind: str, name: str, spec: Json, objects: Mapping[str, Json | None], mode: int) -> dict[str, File]:
    item = objects.get(name)
    if item is None:
        if spec.get("optional"):
            return {}
        raise ContainerConfigError(f"{kind} {name!r} not found")
    data = data_of(kind, item)
    if not spec.get("items"):
        return {_inside(key): File(value, mode) for key, value in data.items()}
    files = {}
    for wanted in spec["items"]:
        if wanted["key"] not in data:
            if spec.get("optional"):
                continue
            raise ContainerConfigError(f"{kind} {name!r} has no key {wanted['key']!r}")
        own = int(wanted["mode"]) if wanted.get("mode") is not None else mode
        files[_inside(str(wanted["path"]))] = File(data[wanted["key"]], own)
    return files


def _downward(spec: Json, pod: Json, sources: Sources, mode: int) -> dict[str, File]:
    files = {}
    for item in spec.get("items") or []:
        if item.get("fieldRef"):
            text = field_value(pod, str(item["fieldRef"]["fieldPath"]), sources)
        else:
            text = resource_value(pod, {"name": ""}, item["resourceFieldRef"], sources)
        own = int(item["mode"]) if item.get("mode") is not None else mode
        files[_inside(str(item["path"]))] = File(text.encode(), own)
    return files


def _inside(path: str) -> str:
    parts = Path(path).parts
    if not parts or path.startswith("/") or ".." in parts or parts[0].startswith(".."):
        raise ContainerConfigError(f"path {path!r} must be relative and must not contain '..'")
    if len(parts) > MAX_DEPTH:
        raise ContainerConfigError(f"path {path[:80]!r}… has more than {MAX_DEPTH} parts")
    return path
