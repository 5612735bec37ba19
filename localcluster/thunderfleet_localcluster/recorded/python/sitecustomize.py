"""Fits MLX to a recorded Mac, in every Python that has this folder on PYTHONPATH.

That is how it waits, a JACCL if the Mac has one, and how long it reads weights if that is simulated. It must cost nothing where
MLX is not imported (supervisors), so it only waits for ``mlx.core``; the replacements are loaded then. All code above
``mx.distributed.init`` is the shipped code.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

JACCL = os.path.join(os.path.dirname(__file__), "jaccl.json")
"""The devices of this Mac, if it has a recorded JACCL."""
DISK = os.path.join(os.path.dirname(__file__), "disk.json")
"""How long this Mac takes to read weights, if that is simulated."""


class _WhenImported:
    """Finds ``mlx.core`` as the path does, and changes it once it is there."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "mlx.core":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            importlib.import_module("recorded_ring").replace(module)
            if os.path.exists(JACCL):
                importlib.import_module("recorded_jaccl").replace(module)
            if os.path.exists(DISK):
                importlib.import_module("recorded_disk").replace(module, DISK)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _WhenImported)
