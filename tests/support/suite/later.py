"""Libraries that few tests use and that take seconds to import, as every worker would when it collects the tests."""

import importlib
from typing import Any


class Later:
    """A module that is imported when one of its names is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest looks for such names, also `_mock_name`, in whatever is in a file of tests.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
