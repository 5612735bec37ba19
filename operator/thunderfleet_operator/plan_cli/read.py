"""Reads the fleet and the deployment from files, and checks every field that the operator reads."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from thunderfleet_crds.kinds.modelcache import ModelCache
from thunderfleet_crds.kinds.modeldeployment import ModelDeployment
from thunderfleet_crds.kinds.nodeprofile import NodeProfile
from thunderfleet_crds.kinds.thunderboltlink import ThunderboltLink
from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.names import MAX_NAME_LENGTH
from thunderfleet_lib.host import yamltext
from thunderfleet_lib.kube import Json, key_of

from thunderfleet_operator.observe.objects.metadata import epoch_number, group_index, owner_uid
from thunderfleet_operator.observe.objects.nodes import (
    allocatable_bytes,
    allocatable_pods,
    boot_id,
    internal_ip,
    is_ready,
    taints,
)
from thunderfleet_operator.observe.objects.plans import read_epoch
from thunderfleet_operator.observe.objects.pods import annotated_ports, pod_memory, pod_node, pod_ports, read_pod
from thunderfleet_operator.observe.objects.proofs import TRUSTING
from thunderfleet_operator.watch.cache import (
    CACHES,
    CONFIGMAPS,
    DEPLOYMENTS,
    LINKS,
    NODEPROFILES,
    NODES,
    PODS,
    Cache,
    Collection,
)

KINDS: dict[str, tuple[Collection, type[ApiModel] | None]] = {
    "Node": (NODES, None),
    "Pod": (PODS, None),
    "ConfigMap": (CONFIGMAPS, None),
    "NodeProfile": (NODEPROFILES, NodeProfile),
    "ThunderboltLink": (LINKS, ThunderboltLink),
    "ModelDeployment": (DEPLOYMENTS, ModelDeployment),
    "ModelCache": (CACHES, ModelCache),
}


STDIN = Path("-")
_LABEL = re.compile("[a-z]([a-z0-9-]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class BadInput(Exception):
    """A file that cannot be used. The message names the file, the object and the field."""


def _documents(path: Path, text: str) -> Iterator[Json]:
    """The objects of a file; the items of a List come one by one."""
    try:
        with yamltext.parsing():
            documents = list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yamltext.InvalidYamlError as error:
        raise BadInput(f"{path}: is not valid YAML or JSON: {error}") from None
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise BadInput(f"{path}: document {number}: must be an object, not {type(document).__name__}")
        if not str(document.get("kind", "")).endswith("List"):
            yield document
            continue
        items = document.get("items")
        if not isinstance(items, list):
            raise BadInput(f"{path}: {document.get('kind')}: items: must be a list")
        for position, item in enumerate(items):
            if not isinstance(item, dict):
                raise BadInput(f"{path}: {document['kind']}: items[{position}]: must be an object")
            yield item


def _name(path: Path, item: Json) -> str:
    """An object's name in messages. Raises ``BadInput`` if it has no kind or name."""
    kind = item.get("kind")
    if not isinstance(kind, str) or not kind:
        raise BadInput(f"{path}: an object has no kind")
    metadata = item.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise BadInput(f"{path}: {kind}: metadata.name: is required")
    return f"{kind} {metadata['name']}"


def _field(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{to_camel(part) if '_' in part else part}"
    return text.lstrip(".") or "(object)"


def _problem(error: ValidationError, *within: str) -> str:
    """The first problem, with its field. ``within``: the part of the object that was read."""
    first = error.errors()[0]
    message = first["msg"]
    if first["type"] == "extra_forbidden":
        message = "unknown field"
    if first["type"] == "literal_error":
        # Members of enumerations would print as <Transport.AUTO: 'Auto'>.
        message = "must be one of " + ", ".join(re.findall("'([^']*)'", first["ctx"]["expected"]))
    return f"{_field((*within, *first['loc']))}: {message}"


def _labels(item: Json) -> dict[str, object]:
    found = item["metadata"].get("labels") or {}
    if not isinstance(found, dict):
        raise ValueError("must be an object")
    return found


_CHILD: dict[str, Callable[[Json], object]] = {
    "metadata.labels": lambda item: (_labels(item), group_index(item), epoch_number(item)),
    "metadata.annotations": annotated_ports,
    "metadata.ownerReferences": owner_uid,
}
_READS: dict[str, dict[str, Callable[[Json], object]]] = {
    "Node": {
        "metadata.labels": _labels,
        "spec.taints": taints,
        "status.allocatable.memory": allocatable_bytes,
        "status.allocatable.pods": allocatable_pods,
        "status.conditions": is_ready,
        "status.addresses": internal_ip,
        "status.nodeInfo": boot_id,
    },
    "Pod": {
        **_CHILD,
        "spec.affinity": pod_node,
        "spec.containers[].resources.requests.memory": pod_memory,
        "spec.containers[].ports": pod_ports,
        "status": lambda item: read_pod(item, TRUSTING),
    },
    "ConfigMap": {**_CHILD, "data": lambda item: read_epoch(item, TRUSTING)},
}
"""The fields that are read, for each kind that has no pydantic model here."""


def _check(path: Path, item: Json, model: type[ApiModel] | None) -> None:
    name = _name(path, item)
    for part in ("metadata", "spec", "status"):
        if item.get(part) is not None and not isinstance(item[part], dict):
            raise BadInput(f"{path}: {name}: {part}: must be an object")
    _check_name(path, item)
    if model is not None:
        try:
            model.load(item)
        except ValidationError as error:
            raise BadInput(f"{path}: {name}: {_problem(error)}") from None
        _check_fields(path, name, item, model)
        return
    for field, read in _READS[item["kind"]].items():
        try:
            read(item)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            why = str(error) if isinstance(error, ValueError) else "does not have the type that Kubernetes defines"
            raise BadInput(f"{path}: {name}: {field}: {why}") from None


def _check_fields(path: Path, name: str, item: Json, model: type[ApiModel]) -> None:
    """Rejects fields that this version does not have: they may be misspelled, and would be ignored."""
    for part in ("spec", "status"):
        field = model.model_fields.get(part)
        if field is None or field.annotation is None or item.get(part) is None:
            continue
        try:
            TypeAdapter(field.annotation).validate_python(item[part], extra="forbid")
        except ValidationError as error:
            raise BadInput(f"{path}: {name}: {_problem(error, part)}") from None


def _check_name(path: Path, item: Json) -> None:
    """Rejects names that the API server would reject."""
    own = item["kind"] in ("ModelDeployment", "ModelCache")
    name, namespace = item["metadata"]["name"], item["metadata"].get("namespace")
    pattern, most = (_LABEL, MAX_NAME_LENGTH) if own else (_SUBDOMAIN, 253)
    if len(name) > most or not pattern.fullmatch(name):
        start = "must start with a letter" if own else "may contain dots"
        raise BadInput(
            f"{path}: {item['kind']} {name}: metadata.name: must have at most {most} characters of a-z, 0-9 and -, {start}"
        )
    if namespace is not None and not (isinstance(namespace, str) and len(namespace) <= 63 and _SUBDOMAIN.fullmatch(namespace)):
        raise BadInput(f"{path}: {item['kind']} {name}: metadata.namespace: must have at most 63 characters of a-z, 0-9 and -")


def _text(path: Path) -> str:
    try:
        return sys.stdin.read() if path == STDIN else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {error}") from None


def _bound(pod: Json) -> Json:
    """Binds runner pods that wait for the scheduler to their Mac: the file may not contain the plan that reserves it."""
    node = pod_node(pod) if owner_uid(pod) is not None else None
    return {**pod, "spec": {**pod["spec"], "nodeName": node}} if node is not None else pod


def read_fleet(path: Path, objects: Iterable[Json] | None = None) -> Cache:
    """The objects of a file that the operator reads; other kinds are ignored. Raises ``BadInput``.

    ``objects``: those of a cluster, and ``path`` is its name in messages.
    """
    cache = Cache()
    found = 0
    for number, item in enumerate(_documents(path, _text(path)) if objects is None else objects, 1):
        name = _name(path, item)
        known = KINDS.get(str(item["kind"]))
        if known is None:
            continue
        collection, model = known
        _check(path, item, model)
        if key_of(item) in cache[collection].items:
            raise BadInput(f"{path}: {name}: metadata.name: duplicate")
        # Edited objects keep their old resourceVersion, so it does not identify their content.
        item["metadata"] = {**item["metadata"], "resourceVersion": str(number)}
        item["metadata"].setdefault("uid", f"{item['kind']}/{key_of(item)}")
        cache[collection].items[key_of(item)] = _bound(item) if collection is PODS else item
        found += item["kind"] == "Node"
    if not found:
        raise BadInput(f"{path}: contains no Node; create the file with `kubectl get nodes,np,tbl,md,mc,pods -A -o yaml`")
    return cache


def read_deployment(path: Path, cache: Cache) -> ModelDeployment:
    """The only ModelDeployment of a file. Raises ``BadInput``.

    If the fleet has one of the same name, its UID and status are taken over.
    """
    found = [item for item in _documents(path, _text(path)) if _name(path, item).startswith("ModelDeployment ")]
    if len(found) != 1:
        names = ", ".join(str(item["metadata"]["name"]) for item in found) or "none"
        raise BadInput(f"{path}: must contain exactly one ModelDeployment, found {len(found)}: {names}")
    item = found[0]
    item["metadata"].setdefault("namespace", "default")
    known = cache[DEPLOYMENTS].items.get(key_of(item))
    uid = known["metadata"]["uid"] if known else "planned"
    item = {**item, "metadata": {**item["metadata"], "uid": uid}}
    if known is not None:
        item["status"] = known.get("status") or {}
    _check(path, item, ModelDeployment)
    made = ModelDeployment.load(item)
    name = f"{path}: ModelDeployment {made.metadata.name}"
    model = made.spec.model
    if [model.repository, model.path, model.uri].count(None) != 2:
        raise BadInput(f"{name}: spec.model: set exactly one of repository, path and uri")
    if (model.uri is None) != (model.sha256 is None):
        raise BadInput(f"{name}: spec.model: set sha256 with uri, and with nothing else")
    if made.spec.nodes.max is not None and made.spec.nodes.max < made.spec.nodes.min:
        raise BadInput(f"{name}: spec.nodes.max: must be at least spec.nodes.min ({made.spec.nodes.min}), or unset")
    return made
