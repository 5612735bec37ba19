"""Saves most of the time that importing transformers takes, which is most of the time that importing mlx-lm takes.

At import, transformers reads its 3,300 model files twice. It keeps what it has read, but only for 128 of its 550 folders, so
the second pass finds nothing kept. Here it keeps all. In each file it goes through the lines for that of ``__all__``, which is
the last but few. Here it gets the end of the file, from that line.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_MODULE = "transformers.utils.import_utils"
_FUNCTION = "create_import_structure_from_path"
_IN_EACH_FILE = "fetch__all__"


class _Keeping(importlib.abc.Loader):
    """Loads the module as usual, lets one function keep every result, and gives the other one less to read."""

    def __init__(self, usual: importlib.abc.Loader) -> None:
        self._usual = usual

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        reads: Any = getattr(getattr(module, _FUNCTION, None), "__wrapped__", None)
        if reads is not None:
            setattr(module, _FUNCTION, functools.cache(reads))
        names: Any = getattr(module, _IN_EACH_FILE, None)
        if names is not None:
            # Nothing is cut from a file without such a line: the text is then not found, at -1.
            setattr(module, _IN_EACH_FILE, lambda content: names(content[content.rfind("\n__all__") + 1 :]))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds that module as usual, with the loader above."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _MODULE:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            found.loader = _Keeping(found.loader)
        return found


# The package imports this module before any that imports mlx-lm. Without effect once transformers is imported, or for a
# transformers without those functions.
if _MODULE not in sys.modules:
    sys.meta_path.insert(0, _Finder())
