"""Who sends a request: the holder of an API key, or anybody. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from thunderfleet_crds import routing
from thunderfleet_crds.routing import AcceptedKey

from thunderfleet_router.decide.catalog import Catalog, Deployment

ANYBODY = "-"
"""The name of callers without a valid key, in logs and metrics."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller. Requests of one ``id`` share limits and turns."""

    id: str
    name: str = ANYBODY
    grants: Mapping[str, AcceptedKey] = field(default_factory=dict)
    """The key's entry in each ModelDeployment that accepts it, by UID."""
    namespaces: frozenset[str] = frozenset()
    """Namespaces with a ModelDeployment that accepts the key."""

    @property
    def known(self) -> bool:
        """Whether the caller has a valid key."""
        return bool(self.grants)

    def may_use(self, deployment: Deployment) -> bool:
        return not deployment.requires_key or deployment.uid in self.grants


def sent_keys(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The keys in the headers of a request, as the gateway reads them; at most two."""
    scheme, _, given = headers.get("Authorization", "").partition(" ")
    found = (given.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "").strip())
    return tuple(key for key in found if key and len(key) <= routing.MAX_KEY_BYTES)


def caller(catalog: Catalog, headers: Mapping[str, str], address: str) -> Caller:
    """The caller. ``address``: of the client, by which callers without a key take turns."""
    for key in sent_keys(headers):
        for routing_key in catalog.digest_keys:
            digest = routing.key_digest(routing_key, key)
            deployments = catalog.by_digest.get(digest)
            if deployments:
                grants = {deployment.uid: deployment.keys[digest] for deployment in deployments}
                name = deployments[0].keys[digest].name
                namespaces = frozenset(deployment.namespace for deployment in deployments)
                return Caller(f"key {digest}", name, grants, namespaces)
    return Caller(f"address {address}")
