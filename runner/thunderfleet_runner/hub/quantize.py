"""Quantizes a repository on this Mac: reads it, converts it with mlx-lm, and leaves the files for the agent.

The staging folder has: ``source`` (downloaded files, by hash), ``model`` (links to them by name), ``writing`` (files that
mlx-lm is writing), ``out`` (these files when they are complete), and at the end each file under its hash, the manifest and
``result.json``. Each step can be interrupted: the next pod continues a download, and begins a conversion again. The result is
used only when ``result.json`` exists, which names the digest of a manifest with the hash of every file.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from thunderfleet_crds.fetching import PROGRESS_FILE, FetchResult
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.weights.quantization import Quantize, kept_name
from thunderfleet_lib.modelstore import selection
from thunderfleet_lib.modelstore.layout import INCOMPLETE
from thunderfleet_lib.modelstore.manifest import (
    Conversion,
    FileEntry,
    InvalidManifest,
    Manifest,
    converted_commit,
)
from thunderfleet_lib.modelstore.store import Store, read_manifest

from thunderfleet_runner.host import preflight
from thunderfleet_runner.hub import convert, resolve
from thunderfleet_runner.hub.client import Hub
from thunderfleet_runner.hub.convert import Refused
from thunderfleet_runner.hub.download import MANIFEST, RESERVE_BYTES, Download, check
from thunderfleet_runner.hub.errors import HubFault

log = logging.getLogger(__name__)

RESULT, IDENTITY = "result.json", "identity"
SOURCE, MODEL, WRITING, OUT = "source", "model", "writing", "out"
PROGRESS_SECONDS = 1.0
BLOCK = 1024 * 1024
SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Step:
    """The current step, for users."""

    name: str
    total: int
    done: Callable[[], int]


def refusal(repository: str, quantize: Quantize, error: object) -> HubFault:
    """The fault of a repository that mlx-lm cannot quantize."""
    version = preflight.version("mlx-lm")
    return HubFault(Reason.QUANTIZATION_REFUSED, f"mlx-lm {version} cannot quantize {repository} to {quantize.text}: {error}")


class Quantization:
    """One conversion. ``source``: manifest of the commit. ``store`` is read only; ``staging`` is its own folder."""

    def __init__(self, hub: Hub, source: Manifest, quantize: Quantize, store: Store, staging: Path) -> None:
        self._hub = hub
        self._source = source
        self._quantize = quantize
        self._store = store
        self._staging = staging
        self._step = Step("Reading", source.total_bytes, self._read_bytes)

    def run(self) -> FetchResult:
        """Converts the repository, unless that has been done. Raises HubFault, OSError."""
        with contextlib.suppress(PermissionError):
            # The agent runs as another user, and removes files that it no longer needs.
            self._staging.chmod(0o777)
        self._begin()
        with self._reporting():
            found = self._earlier()
            if found is None:
                if not (self._staging / OUT).is_dir():
                    self._read()
                    self._convert()
                found = self._finish()
            self._leave(found)
        for name in (SOURCE, MODEL, WRITING, OUT):
            shutil.rmtree(self._staging / name, ignore_errors=True)
        return found

    def _begin(self) -> None:
        """Removes files of another conversion."""
        wanted = " ".join((self._source.digest, self._quantize.text, preflight.version("mlx-lm")))
        file = self._staging / IDENTITY
        if not file.is_file() or file.read_text() != wanted:
            for path in self._staging.iterdir():
                # Files of the repository are checked by their hash.
                if path.name != SOURCE:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            _write(file, wanted)

    # --- the repository --------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        folder = self._staging / SOURCE
        folder.mkdir(exist_ok=True)
        # 16-bit weights; the exact size is computed when their headers are here.
        share = (self._quantize.bits + 64 / self._quantize.group_size) / 16
        Download(self._hub, self._source, self._store, folder).fetch(int(self._source.total_bytes * share))
        model = self._staging / MODEL
        shutil.rmtree(model, ignore_errors=True)
        model.mkdir()
        for entry in self._source.files:
            target = folder / entry.blob
            if target.exists():
                check(entry, target, self._hub.endpoint)
            else:
                target = self._store.layout.blob(self._source.repository, entry.blob)
            (model / entry.path).symlink_to(target)

    def _read_bytes(self) -> int:
        done = 0
        for entry in self._source.files:
            for path in (self._staging / SOURCE / entry.blob, self._staging / SOURCE / (entry.blob + INCOMPLETE)):
                with contextlib.suppress(OSError):
                    done += min(entry.size, path.stat().st_size)
                    break
            else:
                done += entry.size if self._store.has(self._source.repository, entry) else 0
        return done

    # --- the conversion --------------------------------------------------------------------------------------------------

    def _convert(self) -> None:
        model, writing = self._staging / MODEL, self._staging / WRITING
        shutil.rmtree(writing, ignore_errors=True)
        try:
            size = convert.planned_bytes(model, self._quantize)
            free = shutil.disk_usage(self._staging).free
            if free < size + RESERVE_BYTES:
                raise HubFault(
                    Reason.DISK_FULL,
                    f"the disk has {free} bytes free, and the quantized files need {size + RESERVE_BYTES} bytes; free disk "
                    "space on this Mac",
                )
            self._step = Step("Quantizing", size, lambda: _folder_bytes(writing))
            convert.convert(model, writing, self._quantize)
        except Refused as error:
            if shutil.disk_usage(self._staging).free < SPARE_BYTES:
                # MLX does not report that the disk is full.
                raise HubFault(Reason.DISK_FULL, f"the disk became full while mlx-lm wrote the weights: {error}") from error
            raise refusal(self._source.repository, self._quantize, error) from error
        os.replace(writing, self._staging / OUT)

    def _finish(self) -> FetchResult:
        """Hashes and sizes what was converted."""
        out = self._staging / OUT
        paths = sorted(path for path in out.iterdir() if path.is_file() and selection.belongs(path.name))
        hashed = [0]
        self._step = Step("Checking", sum(path.stat().st_size for path in paths), lambda: hashed[0])
        files = tuple(_entry(path, hashed) for path in paths)
        version = preflight.version("mlx-lm")
        made = Conversion(self._source.repository, self._source.commit, self._quantize.bits, self._quantize.group_size, version)
        name = kept_name(self._source.repository, self._quantize)
        manifest = Manifest(name, converted_commit(name, files, made), files, made)
        model, weight_files, no_parts = resolve.sizes(manifest, out)
        found = FetchResult(
            reason=Reason.QUANTIZED,
            commit=manifest.commit,
            manifest=manifest.digest,
            files=len(manifest.files),
            bytes=manifest.total_bytes,
            token_used=self._hub.token is not None,
            model=model,
            weight_files=weight_files,
            no_parts=no_parts,
            mlx_lm=version,
        )
        # Both are needed: the agent reads the manifest.
        _write(self._staging / MANIFEST, manifest.canonical.decode())
        _write(self._staging / RESULT, found.text)
        return found

    def _earlier(self) -> FetchResult | None:
        """The result of an earlier pod; None if there is none, or if files of it are lost."""
        try:
            found = FetchResult.parse((self._staging / RESULT).read_text())
        except OSError:
            return None
        manifest = read_manifest(self._staging / MANIFEST, (found.manifest or "") if found is not None else "")
        if found is None or manifest is None or any(self._place(manifest, entry) is None for entry in manifest.files):
            # Some of its files may have been taken over, so the rest is not a whole model.
            shutil.rmtree(self._staging / OUT, ignore_errors=True)
            (self._staging / RESULT).unlink()
            return None
        return found

    def _place(self, manifest: Manifest, entry: FileEntry) -> Path | None:
        places = (
            self._staging / entry.blob,
            self._staging / OUT / entry.path,
            self._store.layout.blob(manifest.repository, entry.blob),
        )
        return next((path for path in places if path.is_file()), None)

    def _leave(self, found: FetchResult) -> None:
        """Gives each file its hash as its name, by which the agent takes it over."""
        manifest = read_manifest(self._staging / MANIFEST, found.manifest or "")
        if manifest is None:
            raise InvalidManifest("the manifest of the quantized files was changed")
        for entry in manifest.files:
            path = self._staging / OUT / entry.path
            if path.is_file():
                os.chmod(path, 0o644)
                os.replace(path, self._staging / entry.blob)

    # --- progress --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        stop = threading.Event()

        def report() -> None:
            while not stop.wait(PROGRESS_SECONDS):
                step = self._step
                about = {"step": step.name, "done": min(step.done(), step.total), "total": step.total}
                with contextlib.suppress(OSError):
                    _write(self._staging / PROGRESS_FILE, json.dumps(about))

        thread = threading.Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def skeleton_bytes(repository: str, folder: Path, quantize: Quantize) -> int:
    """Bytes that the weights of a model will have, from the headers of its files. Raises HubFault."""
    try:
        return convert.planned_bytes(folder, quantize)
    except Refused as error:
        raise refusal(repository, quantize, error) from error


def with_plan(found: FetchResult, quantize: Quantize, folder: Path, repository: str) -> FetchResult:
    """The result for a repository that is to be quantized. ``folder`` has its configuration and headers."""
    size = skeleton_bytes(repository, folder, quantize)
    # The unquantized repository is never placed, so its sizes are not needed.
    return replace(found, model=None, weight_files=(), no_parts="", quantized_bytes=size)


def _entry(path: Path, hashed: list[int]) -> FileEntry:
    found, size = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            found.update(block)
            size += len(block)
            hashed[0] += len(block)
        os.fsync(file.fileno())
    return FileEntry(path.name, size, sha256=found.hexdigest())


def _folder_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir())
    except OSError:
        return 0


def _write(path: Path, text: str) -> None:
    fresh = path.with_name(path.name + INCOMPLETE)
    fresh.write_text(text, encoding="utf-8")
    os.replace(fresh, path)
