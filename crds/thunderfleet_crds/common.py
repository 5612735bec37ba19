"""What all kinds share: names, bounds, conditions, and how values look on the wire.

One place, because the API server, the operator, the agents and the runners must agree on every letter of it. The types
carry their bounds (maxLength, maximum, pattern) since the CRD schema is generated from them, and CEL is refused by the API
server where a string or a list has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated, Any, Final, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
)

from thunderfleet_crds.vocabulary import ConditionStatus

GROUP: Final = "thunderfleet.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "thunderfleet"

NODEPROFILE_KIND: Final = "NodeProfile"
THUNDERBOLTLINK_KIND: Final = "ThunderboltLink"
MODELDEPLOYMENT_KIND: Final = "ModelDeployment"
NODEPROFILE_PLURAL: Final = "nodeprofiles"
THUNDERBOLTLINK_PLURAL: Final = "thunderboltlinks"
MODELDEPLOYMENT_PLURAL: Final = "modeldeployments"

# Labels of children (pods, Services, ConfigMaps, Secrets): the operator finds by them what it owns.
LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_GROUP: Final = f"{GROUP}/group"
LABEL_EPOCH: Final = f"{GROUP}/epoch"
LABEL_RANK: Final = f"{GROUP}/rank"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_NAME: Final = "app.kubernetes.io/name"
MANAGED_BY: Final = "thunderfleet-operator"
RUNNER_NAME: Final = "thunderfleet-runner"
# On a NodeProfile, one a connected port: `domain.thunderfleet.io/<uuid>: ""`. One selective list finds the peer.
LABEL_DOMAIN_PREFIX: Final = f"domain.{GROUP}/"
# On a Node, set by its kubelet: which chip a Mac has, for node selectors.
LABEL_CHIP: Final = f"{GROUP}/chip"
LABEL_OS: Final = "kubernetes.io/os"

# On pods and plans: what the object was made from, so that an equal one is left alone.
ANNOTATION_HASH: Final = f"{GROUP}/hash"
ANNOTATION_PORTS: Final = f"{GROUP}/ports"

TAINT_MACOS: Final = f"{GROUP}/macos"
RUNTIME_CLASS: Final = "macos"

MAX_GROUPS: Final = 64
MAX_RANKS: Final = 64
MAX_NAME_LENGTH: Final = 40
# In bytes, as Kubernetes counts; `thunderfleet-agent-` and a hash of the node's name stay below it.
MAX_FIELD_MANAGER_BYTES: Final = 128


# The words of a field's name that Kubernetes' conventions write in capitals (unless they begin the name).
_ACRONYMS: Final = frozenset({"gid", "id", "rdma", "sha256", "uid", "uuid"})


def to_api_name(name: str) -> str:
    """The field's name on the wire: ``domain_uuid`` is ``domainUUID``; a trailing underscore (``from_``) is dropped."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.upper() if word in _ACRONYMS else word.capitalize() for word in rest)


class ApiModel(BaseModel):
    """An immutable value that reads what the API server sends and dumps what it is sent.

    Unknown keys are ignored, so an older program reads what a newer one wrote. Empty lists and maps are left out of dumps:
    under server-side apply that is the same as removing them, and a writer never claims a list that it has nothing in.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_api_name, populate_by_name=True, extra="ignore", use_enum_values=False
    )

    @model_serializer(mode="wrap")
    def _without_empty_collections(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        names = {to_api_name(name): name for name in type(self).model_fields}
        return {
            key: value
            for key, value in dumped.items()
            if not (value in ([], {}, ()) and isinstance(getattr(self, names.get(key, key), None), tuple | Mapping))
        }

    def dump(self) -> dict[str, Any]:
        """The JSON object that the API server takes: camelCase, without what is unset or empty."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """The value of an object from the API server. Raises ``pydantic.ValidationError`` when it breaks the schema."""
        return cls.model_validate(data)


def _to_second(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(microsecond=0)


def _shortened(limit: int) -> Any:
    def shorten(value: Any) -> Any:
        return value[: limit - 1] + "…" if isinstance(value, str) and len(value) > limit else value

    return BeforeValidator(shorten)


# RFC 3339 in UTC to the second, as Kubernetes writes its own times.
Time = Annotated[AwareDatetime, AfterValidator(_to_second)]
# Names, by the length that Kubernetes allows for them.
Name = Annotated[str, Field(max_length=253)]
LabelValue = Annotated[str, Field(max_length=63)]
Word = Annotated[str, Field(max_length=64)]
Token = Annotated[str, Field(max_length=128)]
Path = Annotated[str, Field(max_length=1024)]
Url = Annotated[str, Field(max_length=512)]
# An IP address without prefix length; a link-local IPv6 address may name its zone.
Address = Annotated[str, Field(max_length=64)]
# `address:port`, IPv6 addresses in brackets.
HostPort = Annotated[str, Field(max_length=96)]
UUID = Annotated[str, Field(max_length=64)]
# Texts for people come from anywhere and have any length: too long ones are cut, not refused.
Message = Annotated[str, _shortened(4096), Field(max_length=4096)]
LongMessage = Annotated[str, _shortened(16384), Field(max_length=16384)]
Reason = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]

Int64 = Annotated[int, Field(ge=0, le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Percent = Annotated[int, Field(ge=0, le=100)]

QUANTITY_PATTERN: Final = r"^[0-9]{1,12}(\.[0-9]{1,3})?$"
# A decimal that people read ("37.4"); the API has no floats.
Quantity = Annotated[str, Field(max_length=16, pattern=QUANTITY_PATTERN)]


def quantity(value: float | Decimal, digits: int = 1) -> str:
    """A non-negative figure as a quantity string with that many decimals (0 to 3): ``quantity(37.42)`` is ``"37.4"``.

    Raises ``ValueError`` for what is no such figure (negative, NaN, infinite, 10^12 or more).
    """
    exact = Decimal(str(value))
    if not exact.is_finite() or exact < 0 or not 0 <= digits <= 3:
        raise ValueError(f"a quantity is a finite figure of at least 0 with 0 to 3 decimals, not {value!r} ({digits})")
    text = f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN):f}" if exact < 10**15 else f"{exact:f}"
    if not re.fullmatch(QUANTITY_PATTERN, text):
        raise ValueError(f"a quantity is below 10^12, not {value!r}")
    return text


_BINARY_UNITS: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def binary_size(size_bytes: int) -> str:
    """Bytes as people read them in `kubectl get`: ``549755813888`` is ``"512Gi"``, cut to one decimal where needed."""
    for unit, factor in _BINARY_UNITS:
        if size_bytes >= factor:
            tenths = size_bytes * 10 // factor
            return f"{tenths // 10}{unit}" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}{unit}"
    return str(size_bytes)


class OwnerReference(ApiModel):
    """The object that this one goes with."""

    api_version: Name
    kind: Token
    name: Name
    uid: UUID
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiModel):
    """The part of an object's metadata that Thunderfleet reads or writes."""

    name: Name
    namespace: Name | None = None
    uid: UUID | None = None
    resource_version: Token | None = None
    generation: Int64 | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()


class Condition(ApiModel):
    """One observed aspect of the object, as Kubernetes' own conditions."""

    type: Annotated[str, Field(max_length=316)] = Field(description="Which aspect this is, in CamelCase.")
    status: ConditionStatus = Field(description="Whether it holds: True, False or Unknown.")
    observed_generation: Int64 | None = Field(default=None, description="The metadata.generation that this was observed for.")
    last_transition_time: Time = Field(description="When status last changed.")
    reason: Reason = Field(description="Why, as one word in CamelCase.")
    message: Message = Field(default="", description="Why, for people, and what to do next.")


def find_condition(conditions: Iterable[Condition], type_: str) -> Condition | None:
    """The condition of that type, if there is one."""
    return next((condition for condition in conditions if condition.type == type_), None)


def set_condition(
    conditions: Iterable[Condition],
    type_: str,
    status: ConditionStatus | bool | None,
    reason: str,
    message: str,
    *,
    now: datetime,
    observed_generation: int | None = None,
) -> tuple[Condition, ...]:
    """The conditions with that one set (a bool, or None for Unknown): sorted by type, so equal input gives equal output.

    ``lastTransitionTime`` moves only when status changes; so a condition that stays writes nothing.
    """
    if not isinstance(status, ConditionStatus):
        status = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}[status]
    before = {condition.type: condition for condition in conditions}
    old = before.get(type_)
    before[type_] = Condition(
        type=type_,
        status=status,
        observed_generation=observed_generation,
        last_transition_time=old.last_transition_time if old and old.status is status else now,
        reason=reason,
        message=message,
    )
    return tuple(before[key] for key in sorted(before))
