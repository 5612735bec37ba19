"""Verified copies, for root, of an installation that another user can change.

There are two risks. The copied files may differ from the installed ones, so packages are compared with the RECORDs of their
wheels after they were copied. Every user can read a copy, so only files that the owner of the source can read are copied.
"""

import base64
import csv
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from thunderfleet_lib.host.privilege import ROOT, distrust

from thunderfleet_localcluster.errors import LocalClusterError

ALGORITHMS = ("sha256", "sha384", "sha512")
"""Hash algorithms that the specification of RECORD allows."""
HINT = "install thunderfleet again from its wheel, not in editable mode"


def copy_file(source: Path, target: Path, tree: Path) -> None:
    """Copy a file of ``tree``; every user can read the copy. Raises LocalClusterError if the owner of ``tree`` may not."""
    real = Path(os.path.realpath(source)) if source.is_symlink() else source
    if real is not source and not _within(real, tree) and (distrust([real]) is not None or not _public(real)):
        raise LocalClusterError(f"{source} is a link to {real}, which is not copied for root: remove the link, or {HINT}")
    # O_NOFOLLOW: fails if the resolved file has been replaced by a link meanwhile.
    with os.fdopen(os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode) or not _readable_for_owner(about, tree):
            raise LocalClusterError(f"{source} is not a file that the owner of {tree} can read: remove it, or {HINT}")
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    target.chmod(0o755 if about.st_mode & stat.S_IXUSR else 0o644)
    os.utime(target, ns=(about.st_atime_ns, about.st_mtime_ns))


def _within(path: Path, tree: Path) -> bool:
    return path.is_relative_to(os.path.realpath(tree))


def _public(path: Path) -> bool:
    """Whether every user can read a file."""
    return bool(path.stat().st_mode & stat.S_IROTH) and all(one.stat().st_mode & stat.S_IXOTH for one in path.parents)


def _readable_for_owner(about: os.stat_result, tree: Path) -> bool:
    """Whether the owner of ``tree`` can read the file. It may be a hard link to another user's file."""
    if about.st_mode & stat.S_IROTH:
        return True
    owner = tree.stat().st_uid
    return about.st_uid == owner and (owner != ROOT or distrust([tree]) is None)


def require_folder(source: Path) -> None:
    """Raises LocalClusterError if a folder is a link, which could lead anywhere, even back to itself."""
    if source.is_symlink():
        raise LocalClusterError(f"{source} is a link to a folder, which is not copied for root: remove it, or {HINT}")


def require_recorded(site: Path, records: Iterable[str] = ()) -> None:
    """Compare every file in a folder of packages with its RECORDs, and with ``records``, the texts of other RECORDs.

    Raises LocalClusterError, which names the first file that is in no RECORD or has another hash.
    """
    wanted: dict[str, set[str]] = {}
    for text in (*records, *_records(site)):
        for row in csv.reader(text.splitlines()):
            if len(row) >= 2:
                wanted.setdefault(os.path.normpath(row[0]), set()).add(row[1])
    for path in sorted(site.rglob("*")):
        if path.is_dir() or (path.name == "RECORD" and path.parent.name.endswith(".dist-info")):
            continue
        name = str(path.relative_to(site))
        if name not in wanted:
            raise LocalClusterError(f"{name} in site-packages is in the RECORD of no package: remove it, or {HINT}")
        if not any(_has_hash(path, one) for one in wanted[name]):
            raise LocalClusterError(f"{name} in site-packages differs from the RECORD of its package: {HINT}")


def _records(site: Path) -> Iterator[str]:
    for path in sorted(site.glob("*.dist-info/RECORD")):
        yield path.read_text(encoding="utf-8")


def _has_hash(path: Path, wanted: str) -> bool:
    algorithm, _, digest = wanted.partition("=")
    return algorithm in ALGORITHMS and _digest(path, algorithm) == digest.rstrip("=")


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).digest()
    return base64.urlsafe_b64encode(found).decode().rstrip("=")


def record(site: Path, paths: Iterable[Path]) -> str:
    """The text of a RECORD for ``paths`` in the folder of packages ``site``."""
    lines = [f'"{path.relative_to(site)}",sha256={_digest(path, "sha256")},{path.stat().st_size}' for path in sorted(paths)]
    return "\n".join(lines) + "\n"
