"""Lets the official client load its parts when they are used, because importing all of it takes much time and memory.

The package ``kubernetes`` imports a client without asyncio, which uses OpenID Connect, and informers and leader election.
We use its asyncio transport, kubeconfig and quantities. The other parts become modules that load on first access.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    # Every program imports this module, and few need the twenty modules that `importlib.abc` imports.
    Loader = object

PARTS = frozenset(
    f"kubernetes.{part}"
    for part in (
        *("client", "config", "dynamic", "informer", "leaderelection", "stream", "watch"),
        *("aio.dynamic", "aio.leaderelection", "aio.stream", "aio.watch"),
    )
)
"""Modules that the packages ``kubernetes`` and ``kubernetes.aio`` import, but that our programs do not use."""

PACKAGES = frozenset(("kubernetes.utils", "kubernetes.aio.config", "kubernetes.aio.utils"))
"""Packages of which our programs use only some modules. Each package imports all of its modules, and with them PyYAML, urllib3,
pydantic and dateutil."""


class Unread(ModuleType):
    """A package whose own code runs when one of its names is used. Its modules can be imported before that."""

    def __getattr__(self, name: str) -> Any:
        loader = self.__loader__
        if isinstance(loader, Later):
            loader.read(self)
        return ModuleType.__getattribute__(self, name)


class Later(Loader):
    """Creates a module without running its code; ``real`` is its usual loader, ``unread`` its class until then."""

    def __init__(self, real: Loader, unread: type[Unread] = Unread) -> None:
        self._real, self._unread = real, unread
        # A thread that uses the package waits while another one runs its code.
        self._lock, self._reading = RLock(), False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Does not run the code yet."""
        # Only now, because the import system reads attributes of a new module, which must not run its code.
        module.__class__ = self._unread

    @property
    def reading(self) -> bool:
        """Whether its code runs."""
        return self._reading

    def read(self, module: Unread) -> None:
        """Runs the code, once. Code that fails is run again at the next use, as a failed import is."""
        with self._lock:
            # While the code runs, it uses names of the package that it has already set.
            if self._reading or type(module) is not self._unread:
                return
            self._reading = True
            try:
                self._real.exec_module(module)
                module.__class__ = ModuleType  # type: ignore[assignment]
            finally:
                self._reading = False


class _Finder:
    """Finds those parts as usual, with a loader that waits for their first use."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in PARTS and name not in PACKAGES:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            found.loader = Later(found.loader) if name in PACKAGES else LazyLoader(found.loader)
        return found


# The package imports this module before any that imports the client.
sys.meta_path.insert(0, _Finder)
