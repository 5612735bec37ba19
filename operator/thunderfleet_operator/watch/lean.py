"""What the cache keeps of an object: the parts that the operator reads, and each of them once in memory.

Of a thousand Macs most objects say the same: the same field names, interfaces and models, over and over.
"""

import hashlib
import json
import sys
from collections.abc import Container
from typing import Any

from thunderfleet_crds.names import ANNOTATION_HASH, ANNOTATION_REASON, ANNOTATION_SIGNATURE
from thunderfleet_crds.plan import PLAN_BYTES, PLAN_KEY
from thunderfleet_lib.kube import Json

NOTE_BYTES = 16 * 1024
"""How much of an annotation of a plan's ConfigMap is kept. The operator writes shorter ones."""
SHARED_LIMIT = 4096
"""Different lists of models that are kept to be shared."""

_ANNOTATIONS = (ANNOTATION_HASH, ANNOTATION_REASON, ANNOTATION_SIGNATURE)
_METADATA = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
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


def digest_of(models: object) -> bytes:
    """The same for equal lists of models."""
    return hashlib.sha256(json.dumps(models, default=repr).encode()).digest()


class Lean:
    """Makes the kept form of one kind's objects. An object that was given to it is not changed."""

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
            kept["status"] = _without(status, ("images", "models"))
        kept = _interned(kept)
        if isinstance(status, dict) and "models" in status:
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


def _without(part: Json, names: Container[str]) -> Json:
    return {key: value for key, value in part.items() if key not in names}


def _interned(value: Any) -> Any:
    """A copy in which equal strings are one object in memory."""
    if isinstance(value, dict):
        return {sys.intern(key): _interned(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_interned(entry) for entry in value]
    return sys.intern(value) if type(value) is str else value
