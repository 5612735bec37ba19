"""Lets the official client load its parts when they are used, because importing it is much of a program's start.

The package ``kubernetes`` imports a client without asyncio, which uses OpenID Connect, and informers and leader election.
We use its asyncio transport, kubeconfig and quantities. The other parts become modules that load on first access.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

PARTS = frozenset(
    f"kubernetes.{part}"
    for part in (
        *("client", "config", "dynamic", "informer", "leaderelection", "stream", "watch"),
        *("aio.dynamic", "aio.leaderelection", "aio.stream", "aio.watch"),
    )
)
"""What the packages ``kubernetes`` and ``kubernetes.aio`` import and our programs do not use."""


class _Finder:
    """Finds those parts as usual, with a loader that waits for their first use."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name in PARTS else None
        if found is not None and found.loader is not None:
            found.loader = LazyLoader(found.loader)
        return found


# The package imports this module before any that imports the client.
sys.meta_path.insert(0, _Finder)
