"""Requests and answers between two agents, and their form on the wire. Pure.

A frame is the length of a JSON object in four bytes, and the object. The body of an answer follows its frame. Everything that
another agent sends is checked here: a request names files by hash, never by path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from thunderfleet_lib import jsonbounds
from thunderfleet_lib.modelstore.manifest import MAX_FILE_BYTES, is_blob

PREFACE = b"TFC1"
"""What a connection for copies starts with, before TLS. A TLS handshake never starts with these bytes."""
VERSION = 1
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 512 * 1024
# The chunks of this many files fit into a frame, whatever their sizes.
MAX_HAVE = 4
MAX_FILES = 256
MAX_ERROR = 300
COMPLETE = "complete"
_MAX_VALUES = 2048
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class WireError(ValueError):
    """What arrived is no valid frame, request or answer."""


class Op(StrEnum):
    """What is requested."""

    HELLO = "hello"
    """The first request: who asks."""
    MANIFEST = "manifest"
    """The manifest with this digest."""
    HAVE = "have"
    """Which chunks of these files the other Mac has."""
    LIST = "list"
    """The hashes of a file's chunks."""
    CHUNK = "chunk"
    FILES = "files"
    """Small files, whole."""


_MOST = {Op.HELLO: 0, Op.MANIFEST: 1, Op.HAVE: MAX_HAVE, Op.LIST: 1, Op.CHUNK: 1, Op.FILES: MAX_FILES}


@dataclass(frozen=True, slots=True)
class Request:
    """``blobs``: hashes of files, for MANIFEST its digest. ``index``: of the chunk. ``node``: the requesting one, in HELLO."""

    op: Op
    blobs: tuple[str, ...] = ()
    index: int = 0
    node: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """``size`` bytes follow. ``error``: why there are none. ``later``: the same request may succeed in a second.

    ``held``: for HAVE, the chunks of each file, or COMPLETE. ``sizes``: for FILES, the sizes in the order of the request, -1
    for a file that the Mac does not have. ``node``: for HELLO, who answers; for LIST, who has checked the whole file.
    """

    size: int = 0
    error: str = ""
    later: bool = False
    held: Mapping[str, str] = field(default_factory=dict)
    sizes: tuple[int, ...] = ()
    node: str = ""


def frame(value: Request | Answer) -> bytes:
    """The frame of a request or an answer."""
    whole = _request_fields(value) if isinstance(value, Request) else _answer_fields(value)
    text = json.dumps(whole, separators=(",", ":")).encode()
    if len(text) > MAX_FRAME_BYTES:
        raise WireError(f"a frame of {len(text)} bytes; at most {MAX_FRAME_BYTES} are allowed")
    return len(text).to_bytes(LENGTH_BYTES, "big") + text


def frame_length(head: bytes) -> int:
    """The length of the JSON object after these four bytes. Raises WireError."""
    found = int.from_bytes(head, "big")
    if len(head) != LENGTH_BYTES or not 2 <= found <= MAX_FRAME_BYTES:
        raise WireError(f"a frame of {found} bytes; allowed are 2 to {MAX_FRAME_BYTES}")
    return found


def request(text: bytes) -> Request:
    """The request of a frame. Raises WireError."""
    whole = _object(text, {"op", "blobs", "index", "node", "version"})
    try:
        op = Op(whole.get("op", ""))
    except ValueError:
        raise WireError(f"unknown request {str(whole.get('op'))[:40]!r}") from None
    blobs = whole.get("blobs", [])
    if not isinstance(blobs, list) or len(blobs) > _MOST[op] or (op is not Op.HELLO and not blobs):
        raise WireError(f"{op} needs 1 to {_MOST[op]} hashes")
    if not all(isinstance(blob, str) and is_blob(blob) for blob in blobs):
        raise WireError("a hash is not 40 or 64 hexadecimal digits in lower case")
    if op is Op.MANIFEST and not _DIGEST.fullmatch(blobs[0]):
        raise WireError("the digest of a manifest has 64 hexadecimal digits")
    index, node = _whole(whole.get("index", 0), 2**32), whole.get("node", "")
    if op is Op.HELLO and whole.get("version") != VERSION:
        raise WireError(f"version {str(whole.get('version'))[:20]} is not supported, only {VERSION}")
    if not isinstance(node, str) or (op is Op.HELLO and not _NODE.fullmatch(node)) or (op is not Op.HELLO and node):
        raise WireError("node is not the name of a Node")
    return Request(op, tuple(blobs), index, node)


def answer(text: bytes) -> Answer:
    """The answer of a frame. Raises WireError."""
    whole = _object(text, {"size", "error", "later", "held", "sizes", "node"})
    error, later, node = whole.get("error", ""), whole.get("later", False), whole.get("node", "")
    if not isinstance(error, str) or not isinstance(later, bool) or not isinstance(node, str):
        raise WireError("an answer has a field of a wrong type")
    if node and not _NODE.fullmatch(node):
        raise WireError("node is not the name of a Node")
    held, sizes = whole.get("held", {}), whole.get("sizes", [])
    if not isinstance(held, dict) or len(held) > MAX_HAVE:
        raise WireError("an answer has too many files")
    if not all(is_blob(blob) and isinstance(text, str) for blob, text in held.items()):
        raise WireError("an answer has an invalid list of chunks")
    if not isinstance(sizes, list) or len(sizes) > MAX_FILES:
        raise WireError("an answer has too many sizes")
    checked = tuple(_whole(size, MAX_FILE_BYTES, least=-1) for size in sizes)
    return Answer(_whole(whole.get("size", 0), MAX_FILE_BYTES), error[:MAX_ERROR], later, held, checked, node)


def _object(text: bytes, known: set[str]) -> dict[str, Any]:
    try:
        whole = jsonbounds.loads(text, values=_MAX_VALUES, depth=3)
    except (ValueError, RecursionError):
        raise WireError("a frame is not valid JSON, or has too many values") from None
    if not isinstance(whole, dict) or not set(whole) <= known:
        raise WireError("a frame is no JSON object with known fields")
    return whole


def _whole(value: object, most: int, *, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise WireError(f"a number is not between {least} and {most}")
    return value


def _request_fields(value: Request) -> dict[str, Any]:
    found: dict[str, Any] = {"op": value.op.value}
    if value.op is Op.HELLO:
        return found | {"node": value.node, "version": VERSION}
    found["blobs"] = list(value.blobs)
    if value.op is Op.CHUNK:
        found["index"] = value.index
    return found


def _answer_fields(value: Answer) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "size": value.size,
        "error": value.error[:MAX_ERROR],
        "later": value.later,
        "held": dict(value.held),
        "sizes": list(value.sizes),
        "node": value.node,
    }
    return {name: found for name, found in fields.items() if found}
