"""Unpacks the layers of one image into one folder. A process of its own, which its parent can kill: ``python -m …unpack``.

Containers run on the host's file system, so what an image may have is decided here: folders, files and links that stay inside.
Owners and modes are not those of the archive: everything belongs to the kubelet's user, everyone can read it, and programs can
be executed. Layers come from strangers; no name of theirs is used before it is checked, and nothing is written through a link
that leads out.
"""

import json
import os
import posixpath
import shutil
import signal
import sys
import tarfile
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from thunderfleet_kubelet.images.layer import MAX_READ, Budget, Layer, UnpackError

WHITEOUT, OPAQUE, AUFS = ".wh.", ".wh..wh..opq", ".wh..wh."
MAX_ENTRIES = 1_000_000
MAX_PATH, MAX_NAME, MAX_DEPTH = 4096, 255, 128
MAX_NAMES = 128 * 1024**2
"""How many characters all paths may have together: they are in memory, in up to four bytes each."""
MAX_KNOWN = 4096
"""How many folders are cached: their names are in memory once more, each in a text of its own."""
MAX_TIME = 2**33
ENTRY_SECONDS = 0.0005
"""CPU time to read the headers of an image: ``unpacking.HEADER_SECONDS``, and this much more for each entry. Some versions of
tarfile search a header of a megabyte in the square of its length, for an hour."""
MAX_GLOBAL = 64
"""How many global extended headers count at once; tarfile keeps them, and copies them for every entry."""
BLOCK = 4096
"""What an entry takes of the disk besides its content: an inode, and most of a block for a small file."""
ROOM_STEP = 16 * 1024**2
"""Number of bytes after which the free space is checked."""
PARENT_SECONDS = 1.0
"""How often it is checked whether the kubelet runs."""
SPECIAL = 0o6000
"""setuid and setgid."""
EXECUTABLE = 0o111


@dataclass
class Tree:
    """The folder that the layers fill. ``root``: absolute, without links. ``spare``: bytes that stay free on its disk."""

    root: str
    budget: Budget
    spare: int = 0
    seconds: float | None = None
    """CPU time that is left for headers, after which the process is killed; None: no limit."""
    unchecked: int = ROOM_STEP
    """Bytes that were written since the free space was checked."""
    characters: int = 0
    """Of the paths that the layers have made."""
    names: dict[str, dict[str, str]] = field(default_factory=dict)
    """What is in each folder: names without case and composition, as APFS compares them, to the names in the archive."""
    fresh: set[str] = field(default_factory=set)
    """The paths that the layer in hand has made."""
    links: set[str] = field(default_factory=set)
    folders: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Real paths of folders that were looked up since the last link or removal."""

    @contextmanager
    def reading_headers(self) -> Iterator[None]:
        """Counts CPU time. The system kills the process by SIGPROF, because the library that reads them is not interrupted."""
        if self.seconds is None:
            yield
            return
        signal.setitimer(signal.ITIMER_PROF, self.seconds)
        try:
            yield
        finally:
            self.seconds = max(signal.setitimer(signal.ITIMER_PROF, 0)[0], ENTRY_SECONDS) + ENTRY_SECONDS

    def inside(self, path: str) -> bool:
        """Whether a real path is in the tree."""
        return path == self.root or path.startswith(f"{self.root}/")

    def folder(self, parts: tuple[str, ...]) -> str:
        """The real path of a folder, which is made if it is missing. Raises UnpackError."""
        known = self.folders.get(parts)
        if known is not None:
            return known
        here = self.root
        for part in parts:
            here = self._step(here, part)
        if len(self.folders) >= MAX_KNOWN:
            self.folders.clear()
        self.folders[parts] = here
        return here

    def _step(self, here: str, part: str) -> str:
        path = self.claim(here, part)
        if os.path.islink(path):
            path = os.path.realpath(path)
            if not self.inside(path):
                raise UnpackError(f"{part!r} is a link that leads out of the image")
        if os.path.isdir(path):
            # What this layer puts there must outlive an opaque folder above it.
            self.made(path)
            return path
        if os.path.lexists(path):
            raise UnpackError(f"{part!r} is not a folder, although the image has files in it")
        # It has no entry of its own.
        self.count()
        self.make(path)
        return path

    def make(self, path: str) -> None:
        """Makes a folder at a real path. Raises UnpackError: links lead from one deep folder to another, and to new names."""
        folder, _, name = path.rpartition("/")
        self.claim(folder, name)
        if path.count("/") - self.root.count("/") > MAX_DEPTH:
            raise UnpackError(f"{name!r} is more than {MAX_DEPTH} folders deep")
        os.mkdir(path, 0o755)
        self.names[path] = {}
        self.made(path)

    def count(self) -> None:
        """Counts something that is about to be made. Raises UnpackError if it is too much, or the disk is too full for it."""
        self.budget.entries -= 1
        if self.budget.entries < 0:
            raise UnpackError(f"the image has more than {MAX_ENTRIES} entries")
        self.write(BLOCK)

    def made(self, path: str) -> None:
        """Notes that the layer in hand has ``path``. Raises UnpackError if all paths together are too long."""
        if path in self.fresh:
            return
        self.characters += len(path) - len(self.root)
        if self.characters > MAX_NAMES:
            raise UnpackError(f"the paths of the image have more than {MAX_NAMES} characters together")
        self.fresh.add(path)

    def write(self, size: int) -> None:
        """Counts bytes that are about to be written. Raises UnpackError if the disk is too full for them."""
        self.unchecked += size
        if self.unchecked < ROOM_STEP:
            return
        self.unchecked = 0
        disk = os.statvfs(self.root)
        if disk.f_bavail * disk.f_frsize < self.spare + ROOM_STEP:
            raise UnpackError("the disk is full")

    def claim(self, folder: str, name: str) -> str:
        """The path of ``name`` in ``folder``. Raises UnpackError if another name there is the same on a Mac's disk."""
        same = unicodedata.normalize("NFD", name).casefold()
        known = self.names.setdefault(folder, {}).setdefault(same, name)
        if known != name:
            raise UnpackError(f"{name!r} and {known!r} are the same name on a Mac's disk")
        return f"{folder}/{name}"

    def remove(self, path: str) -> None:
        """Deletes whatever is there."""
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
            self.names.pop(path, None)
        elif os.path.lexists(path):
            os.unlink(path)
        folder, _, name = path.rpartition("/")
        self.names.get(folder, {}).pop(unicodedata.normalize("NFD", name).casefold(), None)
        self.folders.clear()
        self.links.discard(path)

    def clear(self, folder: str) -> None:
        """Deletes what lower layers have put into a folder."""
        for entry in list(os.scandir(folder)):
            if entry.path not in self.fresh:
                self.remove(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                self.clear(entry.path)

    def check_links(self) -> None:
        """Raises UnpackError if a link leads out, now that everything is in its place."""
        for link in self.links:
            if os.path.islink(link) and not self.inside(os.path.realpath(link)):
                raise UnpackError(f"{link[len(self.root) + 1 :]!r} is a link that leads out of the image")


def unpack(
    layers: Sequence[tuple[Path, str, str]], target: Path, budget: Budget, spare: int = 0, seconds: float | None = None
) -> None:
    """Unpacks ``layers`` (file, compression, digest of the content), the lowest first. Raises UnpackError and OSError.

    ``spare``: bytes that stay free on the disk. ``seconds``: of CPU for headers, after which this process is killed.
    """
    tree = Tree(os.path.realpath(target), budget, spare, seconds)
    for number, (file, compression, digest) in enumerate(layers):
        tree.fresh = set()
        tree.folders.clear()
        try:
            _unpack_layer(tree, file, compression, digest)
        except UnpackError as error:
            raise UnpackError(f"layer {number}: {error}") from None
    tree.check_links()


def _unpack_layer(tree: Tree, file: Path, compression: str, digest: str) -> None:
    with Layer(file, compression, tree.budget) as layer:
        layer.expect_header()
        with tree.reading_headers():
            # It reads the first one.
            opened = tarfile.TarFile(fileobj=cast(Any, layer), encoding="utf-8", errors="surrogateescape")
        with opened as archive:
            while (member := _next(tree, archive)) is not None:
                layer.expect_content()
                tree.count()
                if len(archive.pax_headers) > MAX_GLOBAL:
                    raise UnpackError(f"the archive has more than {MAX_GLOBAL} global headers")
                _entry(tree, archive, member)
                # The archive keeps every entry otherwise.
                cast(Any, archive).members.clear()
                layer.expect_header()
        layer.expect_content()
        if layer.finish() != digest:
            raise UnpackError("its content does not have the digest in the image's configuration")


def _next(tree: Tree, archive: tarfile.TarFile) -> tarfile.TarInfo | None:
    with tree.reading_headers():
        return archive.next()


def _entry(tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    parts = _parts(member.name)
    if not parts:
        return
    folder, name = tree.folder(parts[:-1]), parts[-1]
    if name.startswith(WHITEOUT):
        _white_out(tree, folder, name)
        return
    if member.isdir():
        _make_folder(tree, folder, name)
        return
    _check(member)
    path = tree.claim(folder, name)
    if os.path.lexists(path):
        tree.remove(path)
        tree.claim(folder, name)
    if member.isreg():
        _write(tree, archive, member, path)
    elif member.issym():
        _link(tree, folder, path, member)
    else:
        _hard_link(tree, path, member)
    tree.made(path)


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or ".." in parts:
        raise UnpackError(f"{name[:200]!r} leads out of the image")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        raise UnpackError(f"{name[:200]!r} is not UTF-8") from None
    if "\0" in name or len(parts) > MAX_DEPTH or sum(sizes) + len(sizes) > MAX_PATH or max(sizes, default=0) > MAX_NAME:
        raise UnpackError(f"{name[:200]!r} is not a usable path")
    return parts


def _check(member: tarfile.TarInfo) -> None:
    if not (member.isreg() or member.issym() or member.islnk()):
        kind = "device" if member.ischr() or member.isblk() else "pipe" if member.isfifo() else "entry of an unknown type"
        raise UnpackError(f"{member.name!r} is a {kind}; images may contain only folders, files and links")
    if member.sparse is not None or member.size < 0:
        raise UnpackError(f"{member.name!r} is a sparse file, which is not supported")
    if member.isreg() and member.mode & SPECIAL:
        raise UnpackError(f"{member.name!r} is setuid or setgid; remove the bit in the image")


def _white_out(tree: Tree, folder: str, name: str) -> None:
    if name == OPAQUE:
        tree.clear(folder)
        return
    if name.startswith(AUFS):
        return
    hidden = name.removeprefix(WHITEOUT)
    if hidden in ("", ".", ".."):
        raise UnpackError(f"{name!r} hides nothing")
    path = f"{folder}/{hidden}"
    if path not in tree.fresh:
        tree.remove(path)
    elif os.path.isdir(path) and not os.path.islink(path):
        tree.clear(path)


def _make_folder(tree: Tree, folder: str, name: str) -> None:
    path = tree.claim(folder, name)
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path):
            tree.remove(path)
        tree.make(path)
    tree.made(path)


def _write(tree: Tree, archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    source = archive.extractfile(member)
    if source is None:
        raise UnpackError(f"{member.name!r} has no content")
    mode = 0o755 if member.mode & EXECUTABLE else 0o644
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        left = member.size
        while left:
            block = source.read(min(left, MAX_READ // 4))
            if not block:
                raise UnpackError(f"{member.name!r} breaks off")
            tree.write(len(block))
            file.write(block)
            left -= len(block)
        file.flush()
        # Python compares it with what its compiled modules were made from.
        when = min(max(0, int(member.mtime)), MAX_TIME)
        os.utime(descriptor, (when, when))


def _link(tree: Tree, folder: str, path: str, member: tarfile.TarInfo) -> None:
    target = member.linkname
    try:
        usable = 0 < len(target.encode()) <= MAX_PATH // 4 and "\0" not in target
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UnpackError(f"{member.name!r} is a link to an unusable path")
    if target.startswith("/"):
        # In a container, the image is the root. Here, only relative links stay inside.
        target = posixpath.relpath(tree.root + posixpath.normpath("/" + target.lstrip("/")), folder)
    if not tree.inside(os.path.realpath(os.path.join(folder, target))):
        raise UnpackError(f"{member.name!r} is a link that leads out of the image, to {member.linkname[:200]!r}")
    os.symlink(target, path)
    tree.links.add(path)
    tree.folders.clear()


def _hard_link(tree: Tree, path: str, member: tarfile.TarInfo) -> None:
    parts = _parts(member.linkname)
    if not parts:
        raise UnpackError(f"{member.name!r} is a hard link to the image itself")
    source = f"{tree.folder(parts[:-1])}/{parts[-1]}"
    if os.path.islink(source) or not os.path.isfile(source):
        raise UnpackError(f"{member.name!r} is a hard link to {member.linkname[:200]!r}, which is not a file of the image")
    os.link(source, path, follow_symlinks=False)


def sync(root: str) -> None:
    """Waits until all files and folders below ``root`` are on the disk: an image counts as complete from its name on.

    A pass of its own, after the system has written most of them, costs less than a wait after each file.
    """
    for here, _, names in os.walk(root):
        for path in (*(os.path.join(here, name) for name in names), here):
            if not os.path.islink(path):
                _sync(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_with(parent: int) -> None:
    """Ends this process when its parent has ended: the next kubelet deletes what it writes."""
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


def main() -> int:
    """Reads what to do from the standard input, and writes what went wrong to the standard output."""
    os.umask(0o022)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    order: dict[str, Any] = json.load(sys.stdin)
    layers = [(Path(file), compression, digest) for file, compression, digest in order["layers"]]
    problem = ""
    try:
        budget = Budget(int(order["bytes"]), MAX_ENTRIES)
        unpack(layers, Path(order["target"]), budget, int(order["spare"]), float(order["headerSeconds"]))
        sync(order["target"])
    except UnpackError as error:
        problem = str(error)
    except OSError as error:
        problem = error.strerror or str(error)
    except Exception as error:
        # Whatever a broken archive causes in the libraries that read it.
        problem = f"the layer is damaged ({type(error).__name__})"
    json.dump({"problem": problem}, sys.stdout)
    return 1 if problem else 0


if __name__ == "__main__":
    threading.Thread(target=_end_with, args=(int(sys.argv[1]),), daemon=True).start()
    sys.exit(main())
