"""YAML by PyYAML's parser and emitter in C, if it has them: they take a tenth of the time, which is seconds for large files."""

from collections.abc import Iterable
from typing import Any

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load(text: str) -> Any:
    """The value of one document."""
    return yaml.load(text, Loader=_LOADER)


def load_all(text: str) -> list[Any]:
    """The values of all documents; None for an empty one."""
    return list(yaml.load_all(text, Loader=_LOADER))


def dump(value: Any) -> str:
    """One document."""
    return str(yaml.dump(value, Dumper=_DUMPER))


def dump_all(values: Iterable[Any]) -> str:
    """A document for each value."""
    return str(yaml.dump_all(values, Dumper=_DUMPER))
