"""What the operator and the routers exchange: routing keys, the routes of each ModelDeployment, and reports of demand.

Routers read no Secret with API keys. They read three things, and write nothing:

- ModelDeployments: names, limits, and the endpoints of groups.
- The Secret ``ROUTING_SECRET`` in the namespace of the release: routing keys, which only the operator and routers have, and
  the key pair for connections from routers to the operator. One name, so that a Role can name it.
- ConfigMaps with ``LABEL_ROUTES`` in that namespace, one for each ModelDeployment: a ``Routes`` document each. Tenants cannot
  write there, so these need no signature.

**API keys.** A document holds the HMAC-SHA256 of each accepted key with a routing key (``key_digest``). The routing key is the
salt: it is random, and without it guesses cannot be tested. A slow hash such as scrypt would cost 50 ms for every request,
including those of strangers; its only advantage is with short keys in the hands of a reader of the Secret, who can use every
group anyway. The digest does not depend on the ModelDeployment, so a router computes one for each routing key and looks it up.

**Groups.** A router authenticates to the gateway of a group with a credential (``group_credential``) that both derive from a
routing key. The plan of the group contains only the SHA-256 of it, so no Secret of a group needs another field.

**Demand.** Routers report their requests in flight and their waiting requests with ``POST DEMAND_PATH``, over TLS 1.3. Both
sides present the certificate in ``ROUTING_SECRET`` and trust no other certificate, as the supervisors of a group do.

Users write ``spec.server.aliases`` (at most MAX_ALIASES of ``Alias``) and ``spec.server.apiKeys`` (``ApiKey``, by the name of
the Secret's field). Fields of the Secret that have no entry there have no limits.

Pure: bytes and values in, values out.
"""

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from thunderfleet_crds.meta.apimodel import ApiModel
from thunderfleet_crds.names import GROUP, MAX_GROUPS
from thunderfleet_crds.vocabulary import KeyPriority

ROUTING_SECRET: Final = "thunderfleet-router"
"""Name of the Secret in the release's namespace. Its fields: ``TLS_CERTIFICATE`` and ``TLS_KEY`` (PEM), and one field
``key-ID`` for each routing key, whose value has ROUTING_KEY_BYTES."""
TLS_CERTIFICATE: Final = "tls.crt"
TLS_KEY: Final = "tls.key"
KEY_FIELD_PREFIX: Final = "key-"
ROUTING_KEY_BYTES: Final = 32
MAX_ROUTING_KEYS: Final = 8
"""Maximum number of routing keys. There are several while groups or documents still use an earlier one."""
OPERATOR_FIELD: Final = "operator"
"""Field of the Secret: address and port (``HostPort``) of the operator replica that leads, where routers report demand. It
changes when another one leads; a replica that does not lead answers 503."""
OPERATOR_TLS_NAME: Final = "operator.thunderfleet.io"
"""DNS name in the certificate, which both sides verify."""

LABEL_ROUTES: Final = f"{GROUP}/routes"
"""On ConfigMaps with a ``Routes`` document; the value is empty."""
ROUTES_FIELD: Final = "routes.json"
ROUTES_BYTES: Final = 256 * 1024
"""Maximum size of a document; the largest one that the bounds below allow is smaller."""

MAX_KEYS: Final = 256
"""Maximum number of API keys of a ModelDeployment that routers accept: the first ones by name."""
MAX_KEY_BYTES: Final = 4096
"""Maximum length of an API key."""
MAX_ALIASES: Final = 16

# Defaults of spec.memory, for the model of the spec and for routers, which read the spec without it.
DEFAULT_CONTEXT_TOKENS: Final = 32768
DEFAULT_CONCURRENT_REQUESTS: Final = 4
LEAST_CACHED_TOKENS: Final = 65536
"""Least capacity of the prompt cache if spec.memory sets none. Earlier versions wrote it into every ModelDeployment."""

DEMAND_PATH: Final = "/v1/demand"
DEMAND_BYTES: Final = 128 * 1024
"""Maximum size of the body of a request or response."""
MAX_DEMANDS: Final = 256
DEMAND_SECONDS: Final = 5.0
"""A router reports this often while something is in flight or waits, and at once when a request must wake a ModelDeployment,
but at most once a second. The operator answers 429 with Retry-After to a router that reports more often."""


def cache_capacity(cached_tokens: int | None, context_tokens: int) -> int:
    """Capacity of the prompt cache in tokens. ``cached_tokens``: of spec.memory; None if unset."""
    return max(LEAST_CACHED_TOKENS, context_tokens) if cached_tokens is None else cached_tokens


Id = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Alias = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$")]
"""Another name of a model for clients, such as ``gpt-4o`` or ``qwen3:30b``."""
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]


class KeyLimits(ApiModel):
    """Limits of one API key. Each router applies them to its own requests only."""

    requests_in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        default=None,
        description="Maximum number of requests of the key that wait or run at the same time, for each router. If unset, there "
        "is no maximum.",
    )
    tokens_per_minute: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = Field(
        default=None,
        description="Maximum number of tokens per minute, of prompts and answers, for each router. Tokens are counted when an "
        "answer ends, so requests that have started may exceed it. If unset, there is no maximum.",
    )
    priority: KeyPriority = Field(
        default=KeyPriority.NORMAL,
        description="Order among waiting requests: all of High come before those of Normal, and these before those of Low. "
        "Keys of the same priority take turns.",
    )


class ApiKey(KeyLimits):
    """The limits of an API key in the Secret that apiKeySecret names."""

    name: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="Name of the field of the Secret that holds the key."
    )


class _Value(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class AcceptedKey(_Value):
    """An API key that a ModelDeployment accepts. ``digest``: ``key_digest`` with the document's ``key_id``."""

    name: Annotated[str, Field(max_length=253)]
    """Name of the Secret's field, for logs."""
    digest: Hex
    limits: KeyLimits = KeyLimits()


class GroupKey(_Value):
    """A placement whose gateway accepts routers. ``key_id``: the routing key of its credential, from ``Plan.router``."""

    index: Annotated[int, Field(ge=0, lt=MAX_GROUPS)]
    epoch: Annotated[int, Field(ge=1)]
    key_id: Id


class Routes(_Value):
    """Data of a ModelDeployment that routers need in addition to the object.

    A router uses the document only for the ModelDeployment with its ``uid``. Without a document, no key is accepted for a
    ModelDeployment that requires one.
    """

    version: Literal[1] = 1
    namespace: Annotated[str, Field(max_length=253)]
    deployment: Annotated[str, Field(max_length=253)]
    uid: Annotated[str, Field(max_length=64)]
    key_id: Id
    """The routing key of the digests."""
    keys: Annotated[tuple[AcceptedKey, ...], Field(max_length=MAX_KEYS)] = ()
    groups: Annotated[tuple[GroupKey, ...], Field(max_length=MAX_GROUPS)] = ()


class Demand(_Value):
    """The requests of one router for one ModelDeployment."""

    namespace: Annotated[str, Field(max_length=253)]
    deployment: Annotated[str, Field(max_length=253)]
    uid: Annotated[str, Field(max_length=64)]
    in_flight: Number = 0
    """Requests that were sent to groups."""
    waiting: Number = 0
    """Requests that wait in the router, for a group or for a place."""
    wake: bool = False
    """Whether one of them may wake the ModelDeployment: it has a valid key, or the chart lets anonymous requests wake."""
    idle_seconds: Number = 0
    """Seconds since the router last had a request for the ModelDeployment; 0 while it has one."""


class DemandReport(_Value):
    """The body of a request to ``DEMAND_PATH``. It replaces what the same router reported before.

    The operator drops the last report of a router after 3 × DEMAND_SECONDS.
    """

    router: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the router's pod."""
    demands: Annotated[tuple[Demand, ...], Field(max_length=MAX_DEMANDS)] = ()


class Refusal(_Value):
    """Why a ModelDeployment is not woken."""

    namespace: str
    deployment: str
    message: Annotated[str, Field(max_length=1024)]
    """A sentence for clients: what is missing, and who can change it."""
    retry_after_seconds: Annotated[int, Field(ge=1, le=86400)] | None = None
    """Seconds after which it may be woken; unset if waiting does not help."""


class DemandAnswer(_Value):
    """The body of the response, with status 200."""

    refusals: Annotated[tuple[Refusal, ...], Field(max_length=MAX_DEMANDS)] = ()


def key_id(routing_key: bytes) -> str:
    """The name of a routing key. It does not reveal the key."""
    return hmac.digest(routing_key, b"thunderfleet/routing-key-id/v1", "sha256")[:8].hex()


def key_digest(routing_key: bytes, api_key: str) -> str:
    """The digest of an API key. White space around a key does not count, as for gateways."""
    return hmac.digest(_purpose(routing_key, "api-key"), api_key.strip().encode("utf-8", "surrogateescape"), "sha256").hex()


def group_credential(routing_key: bytes, namespace: str, deployment: str, uid: str, index: int, epoch: int) -> str:
    """The credential that a router sends to the gateway of a placement, as ``Authorization: Bearer``."""
    placement = json.dumps([namespace, deployment, uid, index, epoch]).encode()
    return "tf-group-" + hmac.digest(_purpose(routing_key, "group"), placement, "sha256").hex()


def credential_digest(credential: str) -> str:
    """The SHA-256 of a credential, as ``Plan.router`` contains it."""
    return hashlib.sha256(credential.encode()).hexdigest()


def routes_name(namespace: str, deployment: str) -> str:
    """Name of the ConfigMap with the document of a ModelDeployment."""
    return "thunderfleet-routes-" + hashlib.sha256(f"{namespace}/{deployment}".encode()).hexdigest()[:24]


def routing_keys(data: Mapping[str, object]) -> dict[str, bytes]:
    """The routing keys in the ``data`` of the Secret (base64), by id. Fields that hold none are left out."""
    found = {}
    for field in sorted(field for field in data if field.startswith(KEY_FIELD_PREFIX))[:MAX_ROUTING_KEYS]:
        try:
            key = base64.b64decode(str(data[field]), validate=True)
        except (binascii.Error, ValueError):
            continue
        if len(key) == ROUTING_KEY_BYTES and field == KEY_FIELD_PREFIX + key_id(key):
            found[key_id(key)] = key
    return found


def _purpose(routing_key: bytes, purpose: str) -> bytes:
    return hmac.digest(routing_key, f"thunderfleet/routing/v1/{purpose}".encode(), "sha256")
