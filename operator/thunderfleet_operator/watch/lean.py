"""What the cache keeps of an object: the parts that the operator reads, as compressed text.

A packed object takes a tenth of the memory of its dicts. Unpacking is rare, because the index keeps the values that are made
from objects. Lists of models, which are most of a NodeProfile and the same on most Macs, are stored once.
"""

import hashlib
import json
import sys
import zlib
from collections.abc import Container
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import PLAN_BYTES
from thunderfleet_crds.names import (
    ANNOTATION_BACKUP,
    ANNOTATION_HASH,
    ANNOTATION_PORTS,
    ANNOTATION_REASON,
    ANNOTATION_SIGNATURE,
    GROUP,
    MODELCACHE_KIND,
)
from thunderfleet_lib.csr.names import NODE_PREFIX
from thunderfleet_lib.csr.parse import REQUEST_BYTES
from thunderfleet_lib.kube import Json

NOTE_BYTES = 16 * 1024
"""How much of an annotation or a message is kept. The operator writes shorter ones."""

_ANNOTATIONS = (ANNOTATION_HASH, ANNOTATION_REASON, ANNOTATION_SIGNATURE, ANNOTATION_PORTS, ANNOTATION_BACKUP)
_METADATA = (
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip
_POD_LABELS = (f"{GROUP}/", "app.kubernetes.io/")
"""Prefixes of labels that the operator reads of pods."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NESTED = (dict, list)
GATES = 8
"""Scheduling gates of a pod that are kept."""


def _metadata(metadata: Json) -> Json:
    """What the operator reads of the metadata of any object, without labels.

    Any user who may create an object can add megabytes of labels, annotations, owners and finalizers.
    """
    found: Json = {key: metadata[key] for key in _METADATA if key in metadata}
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    if owners:
        found["ownerReferences"] = owners
    notes = metadata.get("annotations") or {}
    kept = {name: notes[name][:NOTE_BYTES] for name in _ANNOTATIONS if name in notes}
    if kept:
        found["annotations"] = kept
    return found


def plan_only(item: Json) -> Json:
    """What the operator reads of a plan's ConfigMap. Any client can label ConfigMaps of a megabyte each."""
    text, found = (item.get("data") or {}).get(PLAN_KEY), _metadata(item["metadata"])
    return {"metadata": found, "data": {PLAN_KEY: text}} if text and len(text) <= PLAN_BYTES else {"metadata": found}


def undecided_only(item: Json) -> Json:
    """What the operator reads of a certificate request; of one that is decided, or that no Node sent, only its name.

    A kubelet can send any number of requests of a megabyte each.
    """
    spec, found = item["spec"], {"metadata": _metadata(item["metadata"])}
    user = str(spec.get("username") or "")
    if (item.get("status") or {}).get("conditions") or not user.startswith(NODE_PREFIX):
        return found
    kept = {key: spec.get(key) for key in ("signerName", "username", "groups", "usages")}
    # One byte more than the parser accepts, so that it refuses a longer one.
    return {**found, "spec": {**kept, "request": str(spec.get("request") or "")[: REQUEST_BYTES + 1]}}


def pod_only(item: Json) -> Json:
    """What the operator reads of a pod. Any user who may create pods can create a thousand of a megabyte each."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    found = _metadata(metadata)
    labels = {key: value for key, value in (metadata.get("labels") or {}).items() if key.startswith(_POD_LABELS)}
    if labels:
        found["labels"] = labels
    fetches = any(owner.get("kind") == MODELCACHE_KIND for owner in found.get("ownerReferences", ()))
    about = {key: spec[key] for key in ("nodeName", "hostNetwork", "overhead") if key in spec}
    for key in ("containers", "initContainers"):
        if spec.get(key):
            about[key] = [_container(one, command=fetches) for one in spec[key]]
    if "schedulingGates" in spec:
        about["schedulingGates"] = spec["schedulingGates"][:GATES]
    if fetches and "volumes" in spec:
        about["volumes"] = spec["volumes"]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if required:
        terms = [{"matchFields": term.get("matchFields")} for term in required.get("nodeSelectorTerms") or []]
        about["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}
    reported: Json = {key: status[key] for key in ("phase", "conditions") if key in status}
    reported |= {key: status[key][:NOTE_BYTES] for key in ("message", "reason") if status.get(key)}
    if status.get("containerStatuses"):
        reported["containerStatuses"] = [
            {key: one[key] for key in ("state", "lastState", "restartCount") if key in one}
            for one in status["containerStatuses"]
        ]
    return {"metadata": found, "spec": about, "status": reported}


def _container(container: Json, *, command: bool) -> Json:
    keys = ("resources", "ports", "restartPolicy", *(("command",) if command else ()))
    return {key: container[key] for key in keys if key in container}


def digest_of(models: object) -> bytes:
    """The same for equal lists of models."""
    return hashlib.sha256(json.dumps(models, default=repr).encode()).digest()


class Models(list[Any]):
    """A list that can be referenced weakly."""

    __slots__ = ("__weakref__",)


class Lean:
    """Leaves out what nothing reads of one kind's objects. An object that was given to it is not changed."""

    def __init__(self) -> None:
        self._models: WeakValueDictionary[bytes, Models] = WeakValueDictionary()

    def __call__(self, item: Json, *, labels: bool) -> Json:
        """The object with little of its metadata (managedFields are half of an object), and without a Node's images.

        ``labels``: whether the operator reads those of this kind.
        """
        metadata = _metadata(item["metadata"])
        if labels and "labels" in item["metadata"]:
            metadata["labels"] = item["metadata"]["labels"]
        kept: Json = {**item, "metadata": metadata}
        status = item.get("status")
        if isinstance(status, dict):
            kept["status"] = _without(status, ("images",))
            if "models" in status:
                kept["status"]["models"] = self._shared(status["models"])
        return kept

    def _shared(self, models: object) -> object:
        """One object for all equal lists of models, which are most of a NodeProfile and the same on most Macs.

        Lists that no Mac has any more are not kept: one can take megabytes, and a Mac can publish another one every second.
        """
        if not isinstance(models, list):
            return models
        key = digest_of(models)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = Models(_interned(models))
        return found


class Packed(NamedTuple):
    """An object as the cache keeps it. ``models`` of a NodeProfile stay as they are, because they are shared."""

    version: int
    uid: object
    text: bytes
    models: object = None

    @classmethod
    def of(cls, item: Json) -> "Packed":
        """The packed object. ``item``: as ``Lean`` left it."""
        status, models = item.get("status"), None
        if isinstance(status, dict) and status.get("models") is not None:
            models = status["models"]
            item = {**item, "status": _without(status, ("models",))}
        text = zlib.compress(json.dumps(item, separators=(",", ":")).encode(), 1)
        return cls(version(item), item["metadata"].get("uid"), text, models)

    def unpack(self, *, interned: bool) -> Json:
        """A new copy of the object. ``interned``: equal strings of all objects are one, also in values made from them."""
        item: Json = json.loads(zlib.decompress(self.text))
        if interned:
            item = _interned(item)
        if self.models is not None:
            item["status"]["models"] = self.models
        return item


def version(item: Json) -> int:
    """The resourceVersion as a number; -1 if there is none."""
    try:
        return int(item["metadata"].get("resourceVersion") or -1)
    except ValueError:
        return -1


def _without(part: Json, names: Container[str]) -> Json:
    return {key: value for key, value in part.items() if key not in names}


def _interned(value: Any) -> Any:
    """A copy in which equal strings are one object in memory."""
    # One call for each dict and list, not for each value: a thousand Macs have half a million.
    intern = sys.intern
    if isinstance(value, dict):
        return {
            intern(key): intern(entry) if type(entry) is str else _interned(entry) if isinstance(entry, _NESTED) else entry
            for key, entry in value.items()
        }
    if isinstance(value, list):
        return [
            intern(entry) if type(entry) is str else _interned(entry) if isinstance(entry, _NESTED) else entry
            for entry in value
        ]
    return intern(value) if type(value) is str else value
