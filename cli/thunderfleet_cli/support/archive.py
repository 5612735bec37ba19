"""A tar.gz archive with a size limit, readable by its owner only."""

import contextlib
import gzip
import io
import os
import tarfile
import time
from pathlib import Path
from types import TracebackType

from thunderfleet_localcluster.errors import LocalClusterError


class Archive:
    """Writes files into an archive up to ``limit`` bytes (before compression). Lists later files in ``problems``."""

    def __init__(self, path: Path, limit: int) -> None:
        self.path, self.limit = path, limit
        self.problems: list[str] = []
        self._size = 0
        self._folder = path.name.removesuffix(".tar.gz")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as error:
            raise LocalClusterError(f"{path} exists; name another file with --output", usage=True) from error
        except OSError as error:
            raise LocalClusterError(f"cannot write {path}: {error.strerror}", usage=True) from error
        self._open = contextlib.ExitStack()
        file = self._open.enter_context(os.fdopen(descriptor, "wb"))
        packed = self._open.enter_context(gzip.GzipFile(fileobj=file, mode="wb"))
        self._tar = self._open.enter_context(tarfile.TarFile(fileobj=packed, mode="w"))

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()
        if kind is not None:
            self.path.unlink(missing_ok=True)

    def add(self, name: str, text: str) -> None:
        """Add a file, unless the archive would exceed its limit."""
        data = text.encode("utf-8", "replace")
        if self._size + len(data) > self.limit:
            self.problems.append(f"{name}: the archive is limited to {self.limit >> 20} MiB")
            return
        self._size += len(data)
        self._write(name, data)

    def add_problems(self) -> None:
        """Add the list of what could not be collected."""
        self._write("problems.txt", ("\n".join(self.problems) or "none").encode() + b"\n")

    def _write(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(f"{self._folder}/{name}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(info, io.BytesIO(data))
