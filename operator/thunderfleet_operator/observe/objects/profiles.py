"""NodeProfiles as values.

Most of a profile is its list of models, with sizes for each layer, and most Macs of a fleet have the same list. Equal lists are
read once and shared in memory. For a thousand Macs this takes a tenth of the time and memory.
"""

from weakref import WeakValueDictionary

from pydantic import ValidationError
from thunderfleet_crds.kinds.nodeprofile import NodeProfile, NodeProfileStatus
from thunderfleet_lib.kube import Json

from thunderfleet_operator.watch.lean import digest_of


class ProfileReader:
    """Reads NodeProfiles. Equal lists of models are the same object."""

    def __init__(self) -> None:
        self._newest: WeakValueDictionary[bytes, NodeProfileStatus] = WeakValueDictionary()
        """By the digest of its list of models, the last status that was read, while it is in use."""

    def read(self, item: Json) -> NodeProfile | None:
        """None for an object that breaks the schema of this version."""
        try:
            return self._read(item)
        except ValidationError:
            return None

    def _read(self, item: Json) -> NodeProfile:
        status = item.get("status")
        models = status.get("models") if isinstance(status, dict) else None
        if not isinstance(models, list) or not models:
            return NodeProfile.load(item)
        key = digest_of(models)
        known = self._newest.get(key)
        if known is None:
            profile = NodeProfile.load(item)
        else:
            bare = NodeProfile.load({**item, "status": {**(status or {}), "models": []}})
            profile = bare.model_copy(update={"status": bare.status.model_copy(update={"models": known.models})})
        self._newest[key] = profile.status
        return profile
