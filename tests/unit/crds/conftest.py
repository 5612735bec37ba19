"""Reads the CRDs as the API server does: which documents their schemas allow, and which defaults they fill in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import strategies as st
from thunderfleet_crds import generate

Json = dict[str, Any]


def _nodes(node: Json, path: str) -> Iterator[tuple[str, Json]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from _nodes(child, f"{path}.{name}")
    if "items" in node:
        yield from _nodes(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from _nodes(node["additionalProperties"], f"{path}.*")


def _text(node: Json, path: str) -> st.SearchStrategy[str]:
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if node.get("format") == "date-time":
        times = st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1))
        return times.map(lambda time: time.strftime("%Y-%m-%dT%H:%M:%SZ"))
    # What a CEL rule says of a string is not in the schema; these are strings that the rules of `spec` allow.
    if path.endswith(".every"):
        return st.sampled_from(["24h", "1h30m", "90s"])
    if path.endswith(".uri"):
        return st.sampled_from(["https://a/", "https://models.example.com:8443/qwen/8b/"])
    if path.endswith(".sha256"):
        return st.text("0123456789abcdef", min_size=64, max_size=64)
    if "pattern" in node:
        pattern: str = node["pattern"]
        matching = st.from_regex(pattern, fullmatch=True)
        return matching.filter(lambda text: len(text) <= node["maxLength"])
    return st.text(min_size=node.get("minLength", 0), max_size=min(node["maxLength"], 12))


def _later(node: Json, path: str) -> st.SearchStrategy[Any]:
    # Deferred, since a strategy with the whole schema in it is too large for Hypothesis to name.
    return st.deferred(lambda: _documents(node, path))


def _documents(node: Json, path: str = "") -> st.SearchStrategy[Any]:
    match node["type"]:
        case "string":
            return _text(node, path)
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(node["minimum"], node.get("maximum", 2**63 - 1))
        case "array":
            entries = _documents(node["items"], f"{path}[]")
            keys = node.get("x-kubernetes-list-map-keys")
            if not keys:
                return st.lists(entries, max_size=2)

            def key_of(entry: Json) -> tuple[Any, ...]:
                return tuple(entry[key] for key in keys)

            return st.lists(entries, max_size=2, unique_by=key_of)
        case "object" if "additionalProperties" in node:
            return st.dictionaries(st.text("abc/", max_size=5), _documents(node["additionalProperties"]), max_size=2)
        case "object":
            required = node.get("required", ())
            children = {name: _later(child, f"{path}.{name}") for name, child in node.get("properties", {}).items()}
            return st.fixed_dictionaries(
                {name: child for name, child in children.items() if name in required},
                optional={name: child for name, child in children.items() if name not in required},
            )
        case other:
            raise AssertionError(f"{path}: {other}")


def _violations(value: Any, node: Json, path: str) -> Iterator[str]:
    types = {"string": str, "boolean": bool, "integer": int, "array": list, "object": dict}
    if type(value) is not types[node["type"]]:
        yield f"{path}: {value!r} is no {node['type']}"
        return
    if isinstance(value, str) and len(value) > node.get("maxLength", 2**31):
        yield f"{path}: too long"
    if "enum" in node and value not in node["enum"]:
        yield f"{path}: {value!r} is none of {node['enum']}"
    if isinstance(value, int) and not node.get("minimum", value) <= value <= node.get("maximum", value):
        yield f"{path}: {value} is out of bounds"
    if isinstance(value, list):
        if len(value) > node["maxItems"]:
            yield f"{path}: too many"
        for index, entry in enumerate(value):
            yield from _violations(entry, node["items"], f"{path}[{index}]")
    if isinstance(value, dict) and "properties" in node:
        yield from _violations_of_an_object(value, node, path)


def _violations_of_an_object(value: Json, node: Json, path: str) -> Iterator[str]:
    yield from (f"{path}.{name}: missing" for name in node.get("required", ()) if name not in value)
    for name, entry in value.items():
        if name not in node["properties"]:
            yield f"{path}.{name}: unknown"
        else:
            yield from _violations(entry, node["properties"][name], f"{path}.{name}")


def _defaulted(value: Any, node: Json) -> Any:
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in node.get("properties", {}).items():
        if name not in filled and "default" in child:
            filled[name] = child["default"]
        if name in filled:
            filled[name] = _defaulted(filled[name], child)
    return filled


@pytest.fixture(scope="session")
def schemas() -> dict[str, Json]:
    """The structural schema of each kind, by its name."""
    return {kind.name: generate.schema(kind.model) for kind in generate.KINDS}


@pytest.fixture(scope="session")
def nodes() -> Callable[[Json, str], Iterator[tuple[str, Json]]]:
    """Every node of a schema with its path."""
    return _nodes


@pytest.fixture(scope="session")
def documents() -> Callable[[Json], st.SearchStrategy[Any]]:
    """A strategy for the documents that a schema allows. Made once: that takes longer than most of its documents."""
    made: dict[int, tuple[Json, st.SearchStrategy[Any]]] = {}

    def strategy(node: Json) -> st.SearchStrategy[Any]:
        # With the schema, whose identity must not become that of another.
        if id(node) not in made:
            made[id(node)] = node, _documents(node)
        return made[id(node)][1]

    return strategy


@pytest.fixture(scope="session")
def violations() -> Callable[[Any, Json, str], Iterator[str]]:
    """Violations of a schema in a document, as sentences."""
    return _violations


@pytest.fixture(scope="session")
def defaulted() -> Callable[[Any, Json], Any]:
    """A document with the schema's defaults, as the API server fills them in."""
    return _defaulted
