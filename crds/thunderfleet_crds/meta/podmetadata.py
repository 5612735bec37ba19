"""Labels and annotations that users put on the pods of a group, and those with which Kueue admits its pods together."""

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import Field, JsonValue

from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.meta.fields import LabelValue

MAX_ENTRIES: Final = 16
ANNOTATION_LENGTH: Final = 1024

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
POD_GROUP_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
POD_GROUP_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
POD_GROUP_RETRIABLE: Final = "kueue.x-k8s.io/retriable-in-group"
"""With "false", Kueue gives the quota back once all pods of the group have ended: a new placement is another group."""

_KEY_RULE: Final = r"self.all(k, k.matches('^([A-Za-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$'))"
_KEY_MESSAGE: Final = "keys must have the form prefix/name or name; a name has at most 63 letters, digits, '.', '_' and '-'"
_RESERVED: Final = (
    r"!k.matches('^([A-Za-z0-9.-]+[.])?(thunderfleet[.]io|kubernetes[.]io|k8s[.]io)/') && !k.startsWith('prometheus.io/')"
)
_RESERVED_RULE: Final = (
    f"self.all(k, {_RESERVED} && k != '{POD_GROUP_LABEL}' && k != '{POD_GROUP_COUNT}' && k != '{POD_GROUP_RETRIABLE}')"
)
_RESERVED_MESSAGE: Final = (
    "the prefixes thunderfleet.io, kubernetes.io, k8s.io (and their subdomains) and prometheus.io are reserved, and the "
    "operator sets Kueue's pod-group-name, pod-group-total-count and retriable-in-group itself"
)
_RULES: Final[list[JsonValue]] = [
    {"rule": _KEY_RULE, "message": _KEY_MESSAGE},
    {"rule": _RESERVED_RULE, "message": _RESERVED_MESSAGE},
]
_VALUE_RULE: Final[JsonValue] = {
    "rule": r"self.all(k, self[k].matches('^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$'))",
    "message": "values of labels must be empty, or begin and end with a letter or digit, with '.', '_' and '-' in between",
}


class PodMetadata(ApiModel):
    """Metadata of the pods of groups."""

    labels: Annotated[Mapping[str, LabelValue], Field(max_length=MAX_ENTRIES)] = Field(
        default={},
        description="Labels of the pods. With kueue.x-k8s.io/queue-name, the pods of a group are a pod group of Kueue, which "
        "admits them together.",
        json_schema_extra={"x-rules": [*_RULES, _VALUE_RULE]},
    )
    annotations: Annotated[Mapping[str, Annotated[str, Field(max_length=ANNOTATION_LENGTH)]], Field(max_length=MAX_ENTRIES)] = (
        Field(default={}, description="Annotations of the pods.", json_schema_extra={"x-rules": _RULES})
    )


def pod_group(labels: Mapping[str, str], name: str, pods: int) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations with which Kueue admits the ``pods`` of a placement together; none without a queue."""
    if not labels.get(QUEUE_LABEL):
        return {}, {}
    return {POD_GROUP_LABEL: name}, {POD_GROUP_COUNT: str(pods), POD_GROUP_RETRIABLE: "false"}
