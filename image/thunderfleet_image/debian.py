"""The files of a Debian package, without documentation. Scripts of packages do not run."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

from thunderfleet_image.errors import ImageError
from thunderfleet_image.tree import Entry, Tree, directory, file, link

SECONDS = 60.0
LEFT_OUT = (
    "usr/share/man/",
    "usr/share/lintian/",
    "usr/share/bug/",
    "usr/share/info/",
    "usr/share/locale/",
    "usr/share/pixmaps/",
)
DOCUMENTATION = "usr/share/doc/"
COPYRIGHT = "copyright"
STATUS = "var/lib/dpkg/status.d"
"""Folder in which image scanners look for Debian's packages in images without dpkg."""
CERTIFICATES = "usr/share/ca-certificates/"


def contents(deb: Path, name: str) -> Tree:
    """The files that ``deb`` installs, and its control file.

    Raises:
        ImageError: dpkg-deb is missing or refuses the file.
    """
    tree = unpacked(_dpkg_deb("--fsys-tarfile", deb))
    tree[f"{STATUS}/{name}"] = file(_dpkg_deb("--field", deb))
    return tree


def unpacked(archive: bytes) -> Tree:
    """The entries of the archive of a package; hard links become files."""
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = str(PurePosixPath(member.name))
            if path == "." or left_out(path):
                continue
            tree[path] = _entry(tar, member)
    return tree


def left_out(path: str) -> bool:
    """Whether an image does not need this file. Licenses are kept."""
    if path.startswith(DOCUMENTATION):
        below = PurePosixPath(path).relative_to(DOCUMENTATION).parts
        return len(below) > 1 and below[1:] != (COPYRIGHT,)
    return f"{path}/".startswith(LEFT_OUT)


def _entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    if member.isdir():
        return directory(member.mode)
    if member.issym():
        return link(member.linkname)
    content = tar.extractfile(member)
    if content is None:
        raise ImageError(f"{member.name} is not a file, a directory or a link, and cannot be in the image")
    # Removes set-user-ID bits: no program in the image may gain rights.
    return file(content.read(), member.mode & 0o755)


def bundle(tree: Tree) -> bytes:
    """All CA certificates in one file, as ``update-ca-certificates`` writes it."""
    parts = [entry.content for path, entry in sorted(tree.items()) if path.startswith(CERTIFICATES) and path.endswith(".crt")]
    return b"".join(part if part.endswith(b"\n") else part + b"\n" for part in parts)


def _dpkg_deb(action: str, deb: Path) -> bytes:
    try:
        done = subprocess.run(["dpkg-deb", action, str(deb)], capture_output=True, timeout=SECONDS, check=False)
    except FileNotFoundError as error:
        raise ImageError("dpkg-deb is missing: build the image on Debian or Ubuntu, or install dpkg") from error
    if done.returncode:
        raise ImageError(f"dpkg-deb {action} {deb}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout
