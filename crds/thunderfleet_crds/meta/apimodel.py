"""The base of all kinds: how values are read from and written to the API server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from thunderfleet_crds.meta.fields import UUID, Int64, Name, Time, Token

# Words of field names that the Kubernetes API conventions write in capitals, except at the beginning.
_ACRONYMS: Final = frozenset({"gid", "id", "rdma", "sha256", "uid", "uuid"})
# Pydantic copies this set for a changed copy of a value, so it must be mutable.
_NO_FIELDS: Final[set[str]] = set()


@cache
def to_api_name(name: str) -> str:
    """Name of a field in the API: ``domain_uuid`` is ``domainUUID``; a trailing underscore (``from_``) is dropped."""
    first, *rest = name.rstrip("_").split("_")
    return first + "".join(word.upper() if word in _ACRONYMS else word.capitalize() for word in rest)


class ApiModel(BaseModel):
    """An immutable value that reads objects of the API server and dumps objects for it.

    Unknown keys are ignored, so that older programs read objects of newer ones. Dumps leave out empty lists and maps: under
    server-side apply that removes them, and the writer does not claim a list that it has no entries in.
    """

    model_config = ConfigDict(
        frozen=True, alias_generator=to_api_name, populate_by_name=True, extra="ignore", use_enum_values=False
    )

    def model_post_init(self, context: Any, /) -> None:
        """Drops the set of explicitly given fields. Nothing reads it, and in a small value it is larger than the fields."""
        object.__setattr__(self, "__pydantic_fields_set__", _NO_FIELDS)

    @model_serializer(mode="wrap")
    def _without_empty_collections(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        empty = [key for key, value in dumped.items() if value in ([], {}, ())]
        if not empty:
            return dumped
        names = {to_api_name(name): name for name in type(self).model_fields}
        gone = [key for key in empty if isinstance(getattr(self, names.get(key, key), None), tuple | Mapping)]
        return {key: value for key, value in dumped.items() if key not in gone}

    def dump(self) -> dict[str, Any]:
        """The JSON object for the API server: camelCase, without fields that are unset or empty."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Self:
        """The value of an object from the API server. Raises ``pydantic.ValidationError`` when it violates the schema."""
        return cls.model_validate(data)


class OwnerReference(ApiModel):
    """A reference to the owner of an object."""

    api_version: Name
    kind: Token
    name: Name
    uid: UUID
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiModel):
    """The fields of an object's metadata that Thunderfleet reads or writes."""

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
