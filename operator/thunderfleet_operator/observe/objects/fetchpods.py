"""A pod that reads from the hub for a ModelCache, as a value."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from thunderfleet_crds.names import ANNOTATION_SIGNATURE, FETCHER_NAME, LABEL_CACHE, LABEL_NAME, MODELCACHE_KIND
from thunderfleet_lib import logtext
from thunderfleet_lib.timestamps import age_seconds

from thunderfleet_operator.observe.objects.metadata import Json, parse_time
from thunderfleet_operator.observe.objects.proofs import Keyring, Proof, Purpose, Statement


class Task(StrEnum):
    """What a pod does: the command of `thunderfleet-runner`."""

    RESOLVE = "resolve"
    DOWNLOAD = "download"
    QUANTIZE = "quantize"


@dataclass(frozen=True, slots=True)
class FetchPod:
    """The parts of a pod that decisions read."""

    name: str
    namespace: str
    uid: str
    cache: str
    """``namespace/name`` of its ModelCache."""
    cache_uid: str
    task: Task
    arguments: tuple[str, ...]
    """Arguments of its command, which name what it reads."""
    node: str
    phase: str
    terminating: bool
    message: str
    """Its termination message."""
    waits: str
    """Why it has not started yet."""
    created: datetime | None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("Succeeded", "Failed")

    def waiting_seconds(self, now: datetime) -> float:
        """For how long it has not started; 0 once it has."""
        return age_seconds(self.created, now) if self.phase == "Pending" and self.created is not None else 0.0


def statement(pod: Json) -> Statement:
    """What the signature of such a pod covers."""
    metadata, spec = pod["metadata"], pod["spec"]
    return {
        "namespace": metadata.get("namespace"),
        "pod": metadata["name"],
        "cache": (_owner(pod) or {}).get("uid"),
        "command": [container.get("command") for container in spec.get("containers") or []],
        "volumes": sorted(str(volume.get("hostPath", {}).get("path")) for volume in spec.get("volumes") or []),
    }


def _owner(pod: Json) -> Json | None:
    owners = pod["metadata"].get("ownerReferences") or []
    return next((dict(one) for one in owners if one.get("controller") and one.get("kind") == MODELCACHE_KIND), None)


def cache_key(item: Json) -> str | None:
    """``namespace/name`` of the ModelCache that controls an object; None if there is none."""
    owner = _owner(item)
    return f"{item['metadata'].get('namespace')}/{owner.get('name')}" if owner else None


def read_fetch_pod(pod: Json, keys: Keyring) -> FetchPod | None:
    """The value of a pod; None if the operator has not made it for this purpose."""
    metadata, owner = pod["metadata"], _owner(pod)
    labels = metadata.get("labels") or {}
    if owner is None or labels.get(LABEL_NAME) != FETCHER_NAME or LABEL_CACHE not in labels:
        return None
    signature = (metadata.get("annotations") or {}).get(ANNOTATION_SIGNATURE)
    if keys.check(Purpose.FETCH, statement(pod), signature).proof is not Proof.VALID:
        return None
    container = (pod["spec"].get("containers") or [{}])[0]
    command = [str(word) for word in container.get("command") or []]
    if len(command) < 2 or command[1] not in tuple(Task):
        return None
    status = pod.get("status") or {}
    statuses = status.get("containerStatuses") or []
    ended: Json = next((one["state"]["terminated"] for one in statuses if "terminated" in (one.get("state") or {})), {})
    waits: Json = next((one["state"]["waiting"] for one in statuses if "waiting" in (one.get("state") or {})), {})
    return FetchPod(
        name=str(metadata["name"]),
        namespace=str(metadata.get("namespace")),
        uid=str(metadata.get("uid")),
        cache=f"{metadata.get('namespace')}/{owner.get('name')}",
        cache_uid=str(owner.get("uid")),
        task=Task(command[1]),
        arguments=tuple(command[2:]),
        node=_required_node(pod),
        phase=str(status.get("phase") or "Pending"),
        terminating=bool(metadata.get("deletionTimestamp")),
        message=logtext.messages(str(ended.get("message") or status.get("message") or "")),
        waits=" ".join(f"{waits.get('reason') or ''} {waits.get('message') or ''}".split()),
        created=parse_time(metadata.get("creationTimestamp")),
    )


def _required_node(pod: Json) -> str:
    try:
        terms = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        return str(terms[0]["matchFields"][0]["values"][0])
    except (KeyError, IndexError, TypeError):
        return ""
