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

from thunderfleet_crds.exchange.mounts import PLAN_KEY
from thunderfleet_crds.exchange.plan import PLAN_BYTES
from thunderfleet_crds.names import ANNOTATION_HASH, ANNOTATION_REASON, ANNOTATION_SIGNATURE, GROUP, MODELCACHE_KIND
from thunderfleet_lib.csr.names import NODE_PREFIX
from thunderfleet_lib.csr.parse import REQUEST_BYTES
from thunderfleet_lib.kube import Json

NOTE_BYTES = 16 * 1024
"""How much of an annotation of a plan's ConfigMap is kept. The operator writes shorter ones."""
SHARED_LIMIT = 4096
"""Number of different lists of models that are kept for sharing."""

_ANNOTATIONS = (ANNOTATION_HASH, ANNOTATION_REASON, ANNOTATION_SIGNATURE)
_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
_POD_METADATA = ("creationTimestamp", "deletionGracePeriodSeconds")
_READ = (f"{GROUP}/", "app.kubernetes.io/")
"""Prefixes of labels and annotations that the operator reads of pods."""
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
GATES = 8
"""Scheduling gates of a pod that are kept."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def plan_only(item: Json) -> Json:
    """What the operator reads of a plan's ConfigMap. Any client can label ConfigMaps of a megabyte each."""
    metadata, text = item["metadata"], (item.get("data") or {}).get(PLAN_KEY)
    found = {key: metadata[key] for key in _METADATA if key in metadata}
    if not text or len(text) > PLAN_BYTES:
        return {"metadata": found}
    owners = [owner for owner in metadata.get("ownerReferences") or [] if owner.get("controller")]
    notes = metadata.get("annotations") or {}
    found |= {
        "ownerReferences": owners,
        "annotations": {name: notes[name][:NOTE_BYTES] for name in _ANNOTATIONS if name in notes},
    }
    return {"metadata": found, "data": {PLAN_KEY: text}}


def undecided_only(item: Json) -> Json:
    """What the operator reads of a certificate request; of one that is decided, or that no Node sent, only its name.

    A kubelet can send any number of requests of a megabyte each.
    """
    metadata, spec = item["metadata"], item["spec"]
    found: Json = {"metadata": {key: metadata[key] for key in (*_METADATA, "creationTimestamp") if key in metadata}}
    user = str(spec.get("username") or "")
    if (item.get("status") or {}).get("conditions") or not user.startswith(NODE_PREFIX):
        return found
    kept = {key: spec.get(key) for key in ("signerName", "username", "groups", "usages")}
    # One byte more than the parser accepts, so that it refuses a longer one.
    return {**found, "spec": {**kept, "request": str(spec.get("request") or "")[: REQUEST_BYTES + 1]}}


def pod_only(item: Json) -> Json:
    """What the operator reads of a pod. Any user who may create pods can create a thousand of a megabyte each."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    found: Json = {key: metadata[key] for key in (*_METADATA, *_POD_METADATA) if key in metadata}
    owners = [one for one in metadata.get("ownerReferences") or [] if one.get("controller")]
    if owners:
        found["ownerReferences"] = owners
    for name in ("labels", "annotations"):
        kept = {key: value[:NOTE_BYTES] for key, value in (metadata.get(name) or {}).items() if key.startswith(_READ)}
        if kept:
            found[name] = kept
    fetches = any(owner.get("kind") == MODELCACHE_KIND for owner in owners)
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


class Lean:
    """Leaves out what nothing reads of one kind's objects. An object that was given to it is not changed."""

    def __init__(self) -> None:
        self._models: dict[bytes, object] = {}

    def __call__(self, item: Json) -> Json:
        """The object without managedFields (half of its size), the configuration that kubectl applied, and a Node's images."""
        metadata = _without(item["metadata"], ("managedFields",))
        if _LAST_APPLIED in (metadata.get("annotations") or {}):
            metadata["annotations"] = _without(metadata["annotations"], (_LAST_APPLIED,))
        kept: Json = {**item, "metadata": metadata}
        status = item.get("status")
        if isinstance(status, dict):
            kept["status"] = _without(status, ("images",))
            if "models" in status:
                kept["status"]["models"] = self._shared(status["models"])
        return kept

    def _shared(self, models: object) -> object:
        """One object for all equal lists of models, which are most of a NodeProfile and the same on most Macs."""
        key = digest_of(models)
        if key not in self._models:
            if len(self._models) >= SHARED_LIMIT:
                self._models.clear()
            self._models[key] = _interned(models)
        return self._models[key]


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

    def unpack(self) -> Json:
        """A new copy of the object. Strings that are equal in many objects are the same, also in values made from them."""
        item: Json = _interned(json.loads(zlib.decompress(self.text)))
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
    if isinstance(value, dict):
        return {sys.intern(key): _interned(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_interned(entry) for entry in value]
    return sys.intern(value) if type(value) is str else value
