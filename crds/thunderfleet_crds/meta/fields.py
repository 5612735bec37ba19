"""Types of fields, with the bounds that the CRD schema takes from them, and figures as strings.

Every string and list has a bound: the API server refuses CEL rules over unbounded ones.
"""

import re
from datetime import UTC, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field

from thunderfleet_crds import uris


def _to_second(value: datetime) -> datetime:
    return value.astimezone(UTC).replace(microsecond=0)


def _truncated(limit: int) -> Any:
    def truncate(value: Any) -> Any:
        return value[: limit - 1] + "…" if isinstance(value, str) and len(value) > limit else value

    return BeforeValidator(truncate)


Time = Annotated[AwareDatetime, AfterValidator(_to_second)]
"""RFC 3339 in UTC with seconds, as Kubernetes writes times."""
# Names, with the maximum length that Kubernetes allows.
Name = Annotated[str, Field(max_length=253)]
LabelValue = Annotated[str, Field(max_length=63)]
Word = Annotated[str, Field(max_length=64)]
Token = Annotated[str, Field(max_length=128)]
Path = Annotated[str, Field(max_length=1024)]
Url = Annotated[str, Field(max_length=512)]
Address = Annotated[str, Field(max_length=64)]
"""An IP address without prefix length; a link-local IPv6 address may have a zone."""
HostPort = Annotated[str, Field(max_length=96)]
"""``address:port``, IPv6 addresses in brackets."""
UUID = Annotated[str, Field(max_length=64)]
FolderUri = Annotated[
    str,
    AfterValidator(uris.check_uri),
    Field(
        max_length=uris.MAX_URI,
        json_schema_extra={"x-rule": f"self.matches('{uris.URI_PATTERN}')", "x-message": uris.URI_MESSAGE},
    ),
]
"""``https://host[:port]/folder/``, with a file SHA256SUMS."""
SECRET_NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
"""A DNS-1123 subdomain, as Kubernetes requires of names of Secrets."""
SecretName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        json_schema_extra={
            "x-rule": f"self.matches('{SECRET_NAME_PATTERN}')",
            "x-message": "the name of a Secret has lower-case letters, digits, '-' and '.', begins and ends with a letter or "
            "digit, and has no '-' or '.' beside a '.'",
        },
    ),
]
"""The name of a Secret in the namespace of the object. The API server checks the rule for new values only.

Objects of earlier versions with other names are read, because their groups may serve: no Secret can have such a name, so check
with ``is_secret_name`` before it becomes a part of a path.
"""
Sha256 = Annotated[
    str,
    AfterValidator(uris.check_sha256),
    Field(
        max_length=64, json_schema_extra={"x-rule": f"self.matches('{uris.SHA256_PATTERN}')", "x-message": uris.SHA256_MESSAGE}
    ),
]
# Messages have many sources and any length, so longer ones are truncated and not refused.
Message = Annotated[str, _truncated(4096), Field(max_length=4096)]
LongMessage = Annotated[str, _truncated(16384), Field(max_length=16384)]
ReasonText = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
"""A reason; ``reasons.Reason`` lists those of this version."""

Int64 = Annotated[int, Field(ge=0, le=2**63 - 1)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Port = Annotated[int, Field(ge=1, le=65535)]
Percent = Annotated[int, Field(ge=0, le=100)]

QUANTITY_PATTERN: Final = r"^[0-9]{1,12}(\.[0-9]{1,3})?$"
Quantity = Annotated[str, Field(max_length=16, pattern=QUANTITY_PATTERN)]
"""A human-readable decimal ("37.4"); Kubernetes APIs have no floats."""


def is_secret_name(text: str) -> bool:
    """Whether a Secret can have the name. Others, such as ``../other/keys``, could lead to another path of the API."""
    return len(text) <= 253 and re.fullmatch(SECRET_NAME_PATTERN, text) is not None


def quantity(value: float | Decimal, digits: int = 1) -> str:
    """A non-negative number as a string with that many decimals (0 to 3): ``quantity(37.42)`` is ``"37.4"``.

    Raises ``ValueError`` for other numbers (negative, NaN, infinite, 10^12 or more).
    """
    exact = Decimal(str(value))
    if not exact.is_finite() or exact < 0 or not 0 <= digits <= 3:
        raise ValueError(f"a quantity must be a finite number of at least 0 with 0 to 3 decimals, not {value!r} ({digits})")
    text = f"{exact.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN):f}" if exact < 10**15 else f"{exact:f}"
    if not re.fullmatch(QUANTITY_PATTERN, text):
        raise ValueError(f"a quantity must be less than 10^12, not {value!r}")
    return text


_BINARY_UNITS: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def binary_size(size_bytes: int) -> str:
    """Bytes as `kubectl get` shows them: ``549755813888`` is ``"512Gi"``, truncated to one decimal where needed."""
    for unit, factor in _BINARY_UNITS:
        if size_bytes >= factor:
            tenths = size_bytes * 10 // factor
            return f"{tenths // 10}{unit}" if tenths % 10 == 0 else f"{tenths // 10}.{tenths % 10}{unit}"
    return str(size_bytes)
