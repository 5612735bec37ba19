"""The sender of a request: the holder of an API key, or an anonymous client. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from thunderfleet_crds.exchange import routing
from thunderfleet_crds.exchange.routing import AcceptedKey

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
    """The caller. ``address``: the client's address; callers without a key take turns by it."""
    for key in sent_keys(headers):
        # While routing keys are replaced, documents have digests with different ones.
        digests = [routing.key_digest(routing_key, key) for routing_key in catalog.digest_keys]
        if any(digest in catalog.by_digest for digest in digests):
            # A key may be one of thousands of ModelDeployments.
            return catalog.kept(("caller", *digests), partial(_holder, catalog, digests), lambda holder: len(holder.grants))
    return Caller(f"address {address}")


def _holder(catalog: Catalog, digests: list[str]) -> Caller:
    """The holder of an accepted key."""
    found = [(deployment, digest) for digest in digests for deployment in catalog.accepting(digest)]
    grants = {deployment.uid: deployment.keys[digest] for deployment, digest in found}
    namespaces = frozenset(deployment.namespace for deployment, _ in found)
    return Caller(f"key {digests[0]}", next(iter(grants.values())).name, grants, namespaces)
