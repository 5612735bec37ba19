"""Finds the models on this Mac's disk, checks that they are complete, and gets their sizes for placement.

Completeness is read from the index and the headers of the safetensors files, without MLX. Sizes come from
``thunderfleet-runner size``, a dry run of mlx-lm in a child process with a time limit, so that a model that crashes mlx-lm
affects its own entry only. A folder that has not changed is not sized again, also not by the next process of this agent.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from thunderfleet_crds.kinds.nodeprofile import Model
from thunderfleet_crds.vocabulary import SizedBy
from thunderfleet_lib import jsonbounds
from thunderfleet_lib.host.hostcmd import Failure, Host, quote
from thunderfleet_lib.host.parsing import clean

from thunderfleet_agent.observe.kept_sizes import KeptSizes

log = logging.getLogger(__name__)

RUNNER = "thunderfleet-runner"
SIZE_SECONDS = 300.0
# A model that could not be sized is tried again after this time, or when its folder changes.
RETRY_SECONDS = 300.0
MAX_DEPTH = 4
MAX_MODELS = 64
MAX_FILES = 4096
# The limit of the safetensors format itself.
MAX_HEADER_BYTES = 100_000_000
MAX_JSON_BYTES = 64 * 2**20
# About 200,000 tensors.
MAX_JSON_VALUES = 2_000_000
MAX_JSON_DEPTH = 32
MAX_PATH = 1024

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS = "model*.safetensors"

# The fields that `thunderfleet-runner size` fills; the agent fills path, repository and bytes.
SIZE_FIELDS = frozenset(
    (
        "architecture",
        "quantized",
        "bits",
        "layers",
        "contextLengthTokens",
        "prefillWorkspaceBytes",
        "prefillWorkspaceBytesPerToken",
        "sizes",
        "pipeline",
        "kv",
        "sizedBy",
        "activeBytes",
        "experts",
        "unsupported",
    )
)


_PART = re.compile(r"-\d{5}-of-(\d{5})\.safetensors$")


def hub_caches(environment: Mapping[str, str], home: Path) -> list[Path]:
    """The folder of the Hugging Face cache, from its variables or by default; empty if it does not exist."""
    if named := environment.get("HF_HUB_CACHE"):
        found = Path(named)
    elif named := environment.get("HF_HOME"):
        found = Path(named) / "hub"
    else:
        found = home / ".cache" / "huggingface" / "hub"
    return [found] if found.is_absolute() and _is_folder(found) else []


@dataclass(frozen=True)
class Folder:
    """A folder with a model; repository and revision follow from its path."""

    path: Path
    repository: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Contents:
    """The contents of a model's folder. ``fingerprint`` changes when a file is added, removed or written."""

    fingerprint: str
    bytes: int
    architecture: str | None = None
    problem: str | None = None


def find(roots: Sequence[Path]) -> tuple[list[Folder], list[str]]:
    """The model folders below the roots, by path, and what could not be read. A root that does not exist is empty."""
    folders: dict[Path, Folder] = {}
    problems: list[str] = []
    for root in roots:
        absolute = Path(os.path.abspath(root))
        for folder in _below(absolute, absolute, 0, problems):
            if len(str(folder.path)) > MAX_PATH:
                problems.append(f"{str(folder.path)[:200]}…: the path is longer than {MAX_PATH} characters")
            else:
                folders.setdefault(folder.path, folder)
    found = [folders[path] for path in sorted(folders)]
    if len(found) > MAX_MODELS:
        problems.append(f"found {len(found)} models; only the first {MAX_MODELS} by path are published")
    return found[:MAX_MODELS], problems


def _below(root: Path, folder: Path, depth: int, problems: list[str]) -> Iterator[Folder]:
    try:
        entries = sorted(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{folder}: {error.strerror or error}")
        return
    if any(entry.name == CONFIG for entry in entries):
        relative = folder.relative_to(root).as_posix()
        yield Folder(folder, clean(relative if relative != "." else folder.name, 253))
        return
    for entry in entries:
        if entry.name.startswith(".") or not _is_folder(entry):
            continue
        if entry.name.startswith("models--"):
            yield from _hub_repository(entry, problems)
        elif depth < MAX_DEPTH:
            yield from _below(root, entry, depth + 1, problems)


def _hub_repository(folder: Path, problems: list[str]) -> Iterator[Folder]:
    """The Hugging Face cache keeps ``models--<org>--<name>/snapshots/<revision>/``."""
    repository = clean(folder.name.removeprefix("models--").replace("--", "/", 1), 253)
    try:
        snapshots = sorted((folder / "snapshots").iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(f"{folder}: {error.strerror or error}")
        return
    for snapshot in snapshots:
        # A download that has no configuration yet is an incomplete model.
        if (
            not snapshot.name.startswith(".")
            and _is_folder(snapshot)
            and ((snapshot / CONFIG).is_file() or _download_started(snapshot))
        ):
            yield Folder(snapshot, repository, clean(snapshot.name, 128))


def _download_started(snapshot: Path) -> bool:
    try:
        return any(entry.match(WEIGHTS) or entry.name in (CONFIG, INDEX) for entry in snapshot.iterdir())
    except OSError:
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False


def listing(path: Path) -> tuple[str, int]:
    """A digest of the folder's files, their sizes and times, and the sum of the sizes in bytes. Raises OSError."""
    total, digest = 0, hashlib.sha256()
    for file in _files(path):
        if file.is_file():
            found = file.stat()
            total += found.st_size
            digest.update(f"{file.name}\0{found.st_size}\0{found.st_mtime_ns}\n".encode("utf-8", "replace"))
        elif file.is_symlink():
            digest.update(f"{file.name}\0broken\n".encode("utf-8", "replace"))
    return digest.hexdigest(), total


def _fingerprint(path: Path) -> str | None:
    try:
        return listing(path)[0]
    except OSError:
        return None


def _files(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))[:MAX_FILES]


def look(path: Path) -> Contents:
    """Reads the list of files, the configuration, and the headers of the weights. Damage is reported as ``problem``."""
    try:
        fingerprint, total = listing(path)
        files = _files(path)
    except OSError as error:
        return Contents("", 0, problem=f"{path}: {error.strerror or error}")
    return Contents(fingerprint, total, _architecture(path), _problem(path, files))


def _architecture(path: Path) -> str | None:
    try:
        return clean(_json_object(path / CONFIG).get("model_type"), 128)
    except (OSError, ValueError):
        return None


def _problem(path: Path, files: Sequence[Path]) -> str | None:
    """Why the model is incomplete; None if it is complete."""
    try:
        _json_object(path / CONFIG)
        weights = {file.name: file for file in files if file.match(WEIGHTS)}
        expected = (_indexed(path / INDEX) if (path / INDEX).exists() else {}) or _numbered(weights)
        if not weights and not expected:
            return f"no weights: the folder has no {WEIGHTS}"
        return _missing(expected, weights)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror or error}"
    except ValueError as error:
        return str(error)


def _indexed(index: Path) -> dict[str, set[str]]:
    """The weight files of the index, with their tensors."""
    expected: dict[str, set[str]] = {}
    for tensor, name in _weight_map(index).items():
        expected.setdefault(name, set()).add(tensor)
    return expected


def _numbered(weights: Iterable[str]) -> dict[str, set[str]]:
    """Without an index, the file names give the number of files: ``…-00001-of-00004.safetensors``."""
    for name in weights:
        if part := _PART.search(name):
            count = min(int(part.group(1)), MAX_FILES)
            return {f"{name[: part.start()]}-{n:05}-of-{count:05}.safetensors": set() for n in range(1, count + 1)}
    return {name: set() for name in weights}


def _missing(expected: Mapping[str, set[str]], weights: Mapping[str, Path]) -> str | None:
    missing = sorted(name for name in expected if name not in weights)
    if missing:
        return f"{len(missing)} of {len(expected)} weight files are missing: {quote(', '.join(missing))}"
    for name in sorted(expected):
        absent = sorted(expected[name] - tensors(weights[name]))
        if absent:
            return f"{name} does not contain {len(absent)} of the tensors that the index lists, such as {quote(absent[0])}"
    return None


def _weight_map(index: Path) -> dict[str, str]:
    mapping = _json_object(index).get("weight_map")
    if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
        raise ValueError(f"{INDEX} has no weight_map")
    return mapping


def tensors(file: Path) -> set[str]:
    """The names of the tensors in a safetensors file.

    Raises ValueError if the file is shorter than its header declares or not a safetensors file, OSError if it cannot be read.
    """
    size = _regular_size(file)
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
            raise ValueError(f"{file.name} is truncated or not a safetensors file ({size} bytes)")
        try:
            header = jsonbounds.loads(stream.read(length), values=MAX_JSON_VALUES, depth=MAX_JSON_DEPTH)
        except ValueError:
            raise ValueError(f"{file.name} has a header that is not valid JSON") from None
    if not isinstance(header, dict):
        raise ValueError(f"{file.name} has a header that is not a JSON object")
    names, end = set(), 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(isinstance(offset, int) for offset in offsets)):
            raise ValueError(f"{file.name} has a tensor without data_offsets")
        end = max(end, offsets[1])
        names.add(name)
    if size < 8 + length + end:
        raise ValueError(f"{file.name} has {size} of {8 + length + end} bytes: the download is incomplete")
    return names


def _regular_size(file: Path) -> int:
    """Raises ValueError for anything but a regular file: opening a pipe would wait for a writer."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{quote(file.name)} is not a regular file")
    return found.st_size


def _json_object(file: Path) -> dict[str, Any]:
    if _regular_size(file) > MAX_JSON_BYTES:
        raise ValueError(f"{file.name} is larger than {MAX_JSON_BYTES // 2**20} MiB")
    try:
        value = jsonbounds.loads(file.read_bytes(), values=MAX_JSON_VALUES, depth=MAX_JSON_DEPTH, constants=True)
    except ValueError:
        raise ValueError(f"{file.name} is not valid JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return value


@dataclass(frozen=True)
class Known:
    """A model as found last. ``tried`` is the last attempt to size it in monotonic seconds, None without one."""

    fingerprint: str
    model: Model
    tried: float | None = None

    def due(self, now: float) -> bool:
        """Whether to size it now: it is complete, not sized, and was not tried recently."""
        if not self.model.complete or self.model.sized_by is not None:
            return False
        return self.tried is None or now - self.tried >= RETRY_SECONDS


class Library:
    """The models of this Mac: ``scan`` reads the disk, ``size_next`` sizes one model. ``kept``: sizes of an earlier process."""

    def __init__(
        self,
        host: Host,
        roots: Sequence[Path],
        clock: Callable[[], float] = time.monotonic,
        kept: KeptSizes | None = None,
    ) -> None:
        self.roots = tuple(roots)
        self.problems: tuple[str, ...] = ()
        self._host = host
        self._clock = clock
        self._kept = kept or KeptSizes(None, "")
        self._known: dict[str, Known] = {}

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(self._known[path].model for path in sorted(self._known))

    def scan(self) -> None:
        """Reads the disk (blocking: run it in a thread). A model that has not changed keeps its sizes."""
        folders, problems = find(self.roots)
        known: dict[str, Known] = {}
        for folder in folders:
            path = str(folder.path)
            before = self._known.get(path)
            if before is not None and before.model.complete and before.fingerprint == _fingerprint(folder.path):
                known[path] = before
                continue
            contents = look(folder.path)
            known[path] = Known(
                contents.fingerprint,
                Model(
                    path=path,
                    repository=folder.repository,
                    revision=folder.revision,
                    bytes=contents.bytes,
                    complete=contents.problem is None,
                    problem=contents.problem,
                    architecture=contents.architecture,
                ),
            )
        self._known, self.problems = known, tuple(problems)

    async def size_next(self) -> bool:
        """Computes the sizes of one model that is due. Returns False if none is due."""
        now = self._clock()
        path = next((path for path in sorted(self._known) if self._known[path].due(now)), None)
        if path is None:
            return False
        known = self._known[path]
        text = self._kept.of(path, known.fingerprint)
        model = sized(known.model, text) if text is not None else None
        if model is None or model.sized_by is None:
            model = await self._computed(path, known)
        self._known[path] = replace(known, model=model, tried=self._clock())
        return True

    async def _computed(self, path: str, known: Known) -> Model:
        answer = await self._host.run((RUNNER, "size", path, "-o", "json"), SIZE_SECONDS)
        if isinstance(answer, Failure):
            model = known.model.model_copy(update={"problem": f"cannot compute memory sizes: {answer}"})
        else:
            model = sized(known.model, answer.text)
            if model.sized_by is SizedBy.MLX:
                # Sizes from the files alone are replaced by better ones, if the next process can compute them.
                self._kept.keep(path, known.fingerprint, answer.text, self._known)
        if model.sized_by is None:
            log.warning("%s: %s", path, model.problem)
        return model


def sized(model: Model, text: str) -> Model:
    """The model with the output of ``thunderfleet-runner size -o json``, or with a problem if that is invalid."""
    try:
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        facts = {key: value for key, value in values.items() if key in SIZE_FIELDS and value is not None}
        found = Model.load({**model.dump(), **facts})
    except (ValueError, RecursionError, ValidationError) as error:
        why = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        return model.model_copy(
            update={"problem": f"cannot compute memory sizes: `{RUNNER} size` printed invalid output: {quote(why)}"}
        )
    if found.sized_by is None:
        return model.model_copy(update={"problem": f"cannot compute memory sizes: `{RUNNER} size` printed no sizedBy"})
    return found.model_copy(update={"problem": None})
