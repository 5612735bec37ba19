"""Files of a layer, and their archive, which is reproducible byte for byte."""

from __future__ import annotations

import gzip
import io
import tarfile
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

Kind = Literal["file", "directory", "link"]


@dataclass(frozen=True)
class Entry:
    """A file, a directory or a symbolic link. ``owner`` is the id of its user and of its group."""

    kind: Kind
    mode: int
    content: bytes = b""
    target: str = ""
    owner: int = 0


Tree = dict[str, Entry]
"""Path without a leading slash to what is there."""

TYPES = {"file": tarfile.REGTYPE, "directory": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}


def file(content: bytes, mode: int = 0o644) -> Entry:
    """A file that root owns."""
    return Entry("file", mode, content)


def directory(mode: int = 0o755) -> Entry:
    """A directory that root owns."""
    return Entry("directory", mode)


def link(target: str) -> Entry:
    """A symbolic link."""
    return Entry("link", 0o777, target=target)


def with_parents(tree: Tree, below: Tree) -> Tree:
    """``tree`` with the directories that lead to its entries, as the layers ``below`` have them.

    Raises:
        ValueError: a path leaves the root, or passes through a symbolic link of a layer below.
    """
    found: Tree = {}
    for path, entry in tree.items():
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts:
            raise ValueError(f"{path!r} is not a path below the root")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            known = tree.get(parent) or below.get(parent) or directory()
            if known.kind != "directory":
                raise ValueError(f"{path!r} is below {parent!r}, which is no directory")
            found[parent] = known
        found[path] = entry
    return found


def archive(tree: Tree, made: int) -> bytes:
    """A tar archive, sorted by path; every entry has the time ``made`` (seconds since the Unix epoch)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in sorted(tree.items()):
            info = tarfile.TarInfo(path)
            info.type, info.mode, info.mtime = TYPES[entry.kind], entry.mode, made
            info.uid = info.gid = entry.owner
            info.linkname, info.size = entry.target, len(entry.content)
            tar.addfile(info, io.BytesIO(entry.content))
    return out.getvalue()


def compressed(content: bytes) -> bytes:
    """Compressed data, reproducible byte for byte with the same version of zlib."""
    return gzip.compress(content, compresslevel=6, mtime=0)
