"""Lets aiohttp read the root certificates of the system when a connection needs them.

At its import, aiohttp creates two TLS contexts, each of which reads and parses all root certificates: together a
sixth of the CPU time of a kubelet's imports. Connections within a cluster do not use them, but contexts of their own.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_MODULE = "aiohttp.connector"


class _Finder:
    """Finds that module as usual, and changes the contexts that it creates when it is loaded."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        found = PathFinder.find_spec(name, path, target)
        if found is None or found.loader is None:
            return found
        execute = found.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            # Imported late, because programs without connections do without `ssl`.
            from thunderfleet_lib.net import latecontext

            latecontext.put_off(lambda: execute(module))

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


# The package imports this module before any that imports aiohttp. Without effect if aiohttp is imported already.
sys.meta_path.insert(0, _Finder)
