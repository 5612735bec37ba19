"""Lets libraries that a rank imports and hardly ever uses load when they are used, which saves a third of mlx-lm's import.

A rank reads the model from its Mac's disk, so it needs no client of the Hugging Face Hub, and with it no client for HTTP. The
intake renders the chats, so a rank needs no Jinja. Here modules that import these names get a stand-in for each function and
class, which loads the real one when it is called or looked into. The errors of the client for HTTP are real from the start,
because an ``except`` compares classes, and so are constants, whose names are in capitals.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from thunderfleet_lib.clientparts import Later, Unread

_LATER = frozenset(
    (
        *("httpx2", "huggingface_hub.hf_api", "huggingface_hub._snapshot_download"),
        # With them, PyYAML and locks of files.
        *("huggingface_hub.repocard", "huggingface_hub.utils._fixes", "huggingface_hub.utils._shared_blobs"),
        # With the second one, Jinja.
        *("huggingface_hub.utils._xet", "transformers.utils.chat_template_utils"),
    )
)
_ERRORS = {"httpx2": "httpx2._exceptions"}
"""The module with the errors of a package; it needs no other."""


class _Names(Unread):
    """A module that gives a stand-in for each of its names until one of them is used."""

    def __getattr__(self, name: str) -> Any:
        loader = self.__loader__
        if name.startswith("__") or not isinstance(loader, Later) or loader.reading:
            # The import system asks for the former, and does without.
            return ModuleType.__getattribute__(self, name)
        if self.__name__ in _ERRORS:
            found = getattr(importlib.import_module(_ERRORS[self.__name__]), name, None)
            if found is not None:
                return found
        if name.isupper():
            loader.read(self)
            return ModuleType.__getattribute__(self, name)
        return _StandIn(name, (), {"_module": self})


class _StandIn(type):
    """A class in place of a function or class. Annotations and unions may name it."""

    _module: ModuleType

    def _real(cls) -> Any:
        module = cls._module
        loader = module.__loader__
        if isinstance(loader, Later) and isinstance(module, Unread):
            loader.read(module)
        return ModuleType.__getattribute__(module, cls.__name__)

    @property
    def __wrapped__(cls) -> Any:
        """For ``inspect.signature``."""
        return cls._real()

    def __call__(cls, *words: Any, **named: Any) -> Any:
        return cls._real()(*words, **named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._real(), name)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls._real())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds these modules as usual, with that loader."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _LATER:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path, target)
        if found is not None and found.loader is not None:
            found.loader = Later(found.loader, _Names)
        return found


# The package imports this module before any that imports mlx-lm. Without effect on what is imported already.
sys.meta_path.insert(0, _Finder())
