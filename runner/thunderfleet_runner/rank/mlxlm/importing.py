"""Saves most of the time that importing transformers takes, which is most of the time that importing mlx-lm takes.

At import, transformers reads its 3,300 model files twice to find out which names it offers. With this module it reads only the
folders of the names that are used, and all folders if a name is not in the expected one. It caches the results of only 128 of
its 550 folders, so a second pass finds none of them; with this module it caches all. In each file it searches the lines for
``__all__``, which is near the end; with this module it gets only the end of the file, from that line.
"""

import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_MODULE = "transformers.utils.import_utils"
_FUNCTION = "create_import_structure_from_path"
_IN_EACH_FILE = "fetch__all__"
_OFFERED = "define_import_structure"
_OFFERING = "_LazyModule"
_FIRST = "auto"
"""The folder of AutoTokenizer."""
_CLASS = "Tokenizer"
_PREFIXES = {"transformers": "models", "transformers.models": ""}
"""Modules that offer names of all models, and how their paths to the models' modules begin."""

Structure = dict[Any, dict[str, Any]]
"""Names by module, by the packages that the module needs."""
Offered = Callable[..., Structure]


class _Keeping(importlib.abc.Loader):
    """Loads the module as usual, lets one function keep every result, and gives others less to read."""

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
            # For a file without such a line, `rfind` returns -1, and nothing is cut off.
            setattr(module, _IN_EACH_FILE, lambda content: names(content[content.rfind("\n__all__") + 1 :]))
        offered: Offered | None = getattr(module, _OFFERED, None)
        offering: Any = getattr(module, _OFFERING, None)
        if offered is not None and offering is not None:
            setattr(module, _OFFERED, _only_first(offered))
            own = {"_offering": offering, "_offered": staticmethod(offered)}
            setattr(module, _OFFERING, type(_OFFERING, (_Completing, offering), own))


def _below(*names: str) -> str:
    return ".".join(filter(None, names))


def _only_first(offered: Offered) -> Offered:
    """``offered``, which reads one folder instead of all models' folders."""

    def first(module_path: object, prefix: str | None = None) -> Structure:
        path = Path(str(module_path))
        folder = path.parent if path.is_file() else path
        if folder.parts[-2:] != ("transformers", "models"):
            return offered(module_path, prefix=prefix)
        return offered(str(folder / _FIRST), prefix=_below(prefix or "", _FIRST))

    return first


class _Completing:
    """A base of the class of modules that offer names: it reads more folders when a name is not known yet."""

    _offering: Any
    _offered: Offered

    def __init__(self, name: str, module_file: str, structure: Structure, **more: Any) -> None:
        base: Any = super()
        base.__init__(name, module_file, structure, **more)
        if name in _PREFIXES:
            self._known: Structure | None = structure
            self._more = more
            # A request for all names gets all.
            del self.__all__

    def __getattr__(self, name: str) -> Any:
        if self.__dict__.get("_known") is not None and self._new(name):
            self._read(name)
            if name in self.__dict__:
                return self.__dict__[name]
        base: Any = super()
        return base.__getattr__(name)

    def _new(self, name: str) -> bool:
        if name.startswith("_"):
            return name == "__all__"
        return not any(name in known for known in (self._objects, self._class_to_module, self._modules))

    def _read(self, name: str) -> None:
        """Reads the folder in which the name should be, or all."""
        prefix, model = _PREFIXES[self.__name__], name.removesuffix(_CLASS).lower()
        models = Path(self.__file__).parent / prefix
        if name.endswith(_CLASS) and (models / model).is_dir():
            self._learn(self._offered(str(models / model), prefix=_below(prefix, model)))
        if self._new(name):
            self._learn(self._offered(str(models) if prefix else self.__file__, prefix=prefix or None))
            self._known = None
        else:
            del self.__all__

    def _learn(self, structure: Structure) -> None:
        self._known = _joined(self._known or {}, structure)
        knows = self._offering(self.__name__, self.__file__, self._known, **self._more).__dict__
        self.__dict__.update({key: value for key, value in knows.items() if key == "__all__" or not key.startswith("__")})


def _joined(one: Mapping[Any, dict[str, Any]], other: Mapping[Any, dict[str, Any]]) -> Structure:
    return {needs: {**one.get(needs, {}), **other.get(needs, {})} for needs in {**one, **other}}


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
