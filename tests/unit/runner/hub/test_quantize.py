"""Quantizing a repository: the real command, mlx-lm, model store and a real HTTP server. The agent's part is its own test."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.reasons import Reason
from thunderfleet_crds.weights.quantization import Quantize, kept_name
from thunderfleet_lib.modelstore.manifest import Manifest, load
from thunderfleet_lib.modelstore.store import Store
from thunderfleet_localcluster.models import hub as testhub
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.models.hub import Hub
from thunderfleet_runner import cli
from thunderfleet_runner.hub import convert, quantize, resolve
from thunderfleet_runner.hub.convert import Refused

REPOSITORY = "owner/tiny"
FOUR = Quantize(bits=4, group_size=32)
SECONDS = 300


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("original") / "model"
    tinymodel.make(folder, layers=2)
    return folder


@pytest.fixture(scope="module")
def expected(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mlx-lm itself writes."""
    folder = tmp_path_factory.mktemp("expected") / "model"
    command = [sys.executable, "-m", "mlx_lm", "convert", "--hf-path", str(original), "--mlx-path", str(folder)]
    command += ["-q", "--q-bits", str(FOUR.bits), "--q-group-size", str(FOUR.group_size)]
    # The setting is written into tokenizer_config.json.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, capture_output=True, timeout=SECONDS, env=environment)
    return folder


@pytest.fixture
def hub() -> Iterator[Hub]:
    with testhub.running() as found:
        yield found


class Pod:
    """A Mac with a store, and the pods of a ModelCache on it."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.store = hub, Store(folder / "store")
        self.store.prepare()
        self.staging = self.store.layout.staged("uid")
        self.staging.mkdir()

    def run(self, *words: str) -> FetchResult:
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
            patch.setenv("HF_ENDPOINT", self.hub.url)
            cli.main(words)
        result = FetchResult.parse(printed.getvalue())
        assert result is not None, printed.getvalue()
        return result

    def resolve(self, how: Quantize = FOUR) -> FetchResult:
        more = ("--bits", str(how.bits), "--group-size", str(how.group_size))
        return self.run("resolve", "--repository", REPOSITORY, "--revision", "main", *more)

    def quantize(self, source: FetchResult, how: Quantize = FOUR) -> FetchResult:
        what = ("--repository", REPOSITORY, "--commit", str(source.commit), "--manifest", str(source.manifest))
        more = ("--bits", str(how.bits), "--group-size", str(how.group_size))
        places = ("--store", str(self.store.root), "--staging", str(self.staging))
        return self.run("quantize", *what, *more, *places)

    @property
    def manifest(self) -> Manifest:
        return load((self.staging / "manifest.json").read_bytes())


@pytest.fixture
def pod(hub: Hub, tmp_path: Path) -> Pod:
    return Pod(hub, tmp_path)


def test_the_result_is_what_mlx_lm_writes(hub: Hub, pod: Pod, original: Path, expected: Path) -> None:
    commit = hub.add_folder(REPOSITORY, original)
    found = pod.resolve()
    assert (found.reason, found.commit, found.model) == (Reason.RESOLVED, commit, None)
    # Computed from the headers alone, before anything was downloaded.
    weights = (expected / "model.safetensors").stat().st_size
    assert 0.9 * weights < found.quantized_bytes < weights
    made = pod.quantize(found)
    assert made.reason == Reason.QUANTIZED, made.message
    manifest = pod.manifest
    assert (made.manifest, made.commit) == (manifest.digest, manifest.commit)
    assert manifest.repository == kept_name(REPOSITORY, FOUR) == "owner/tiny_4bit_g32"
    conversion = manifest.conversion
    assert conversion is not None
    assert (conversion.repository, conversion.commit, conversion.bits, conversion.group_size) == (REPOSITORY, commit, 4, 32)
    files = {entry.path: (pod.staging / entry.blob).read_bytes() for entry in manifest.files}
    assert files == {path.name: path.read_bytes() for path in expected.iterdir() if path.name in files}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= files.keys()
    assert made.model is not None and made.model.bits == 4 and made.model.quantized
    whole = made.model.size(1)
    assert whole is not None and whole.tensor_bytes_per_rank[0] == found.quantized_bytes
    # Nothing of the repository is left.
    assert not any((pod.staging / name).exists() for name in ("source", "model", "writing", "out"))


@pytest.fixture(scope="module")
def sized() -> dict[str, Any]:
    """The sizes of each manifest, which a child computes in seconds."""
    return {}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, expected: Path, sized: dict[str, Any]) -> list[Quantize]:
    """In place of mlx-lm, which takes seconds: what it writes for FOUR. The conversions that were asked for."""
    asked = []
    sizes = resolve.sizes

    def known_sizes(manifest: Manifest, folder: Path) -> Any:
        if manifest.digest not in sized:
            sized[manifest.digest] = sizes(manifest, folder)
        return sized[manifest.digest]

    def convert_quickly(folder: Path, target: Path, how: Quantize) -> None:
        assert (folder / "model.safetensors").stat().st_size > 0
        asked.append(how)
        shutil.copytree(expected, target)

    monkeypatch.setattr(resolve, "sizes", known_sizes)
    monkeypatch.setattr(convert, "planned_bytes", lambda folder, how: 100_000)
    monkeypatch.setattr(convert, "convert", convert_quickly)
    return asked


class Killed(BaseException):
    """A pod is killed here."""


def kill(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("where", "again"),
    [
        ("convert.convert", True),
        ("resolve.sizes", False),
        ("Quantization._leave", False),
    ],
)
def test_a_killed_pod_is_continued(
    hub: Hub, pod: Pod, original: Path, expected: Path, quick: list[Quantize], where: str, again: bool
) -> None:
    hub.add_folder(REPOSITORY, original)
    source = pod.resolve()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        owner: object = quantize
        *path, name = where.split(".")
        for step in path:
            owner = getattr(owner, step)
        patch.setattr(owner, name, kill)
        pod.quantize(source)
    if again:
        # What mlx-lm wrote until then does not count.
        (pod.staging / "writing").mkdir(exist_ok=True)
        (pod.staging / "writing" / "model.safetensors").write_bytes(b"half")
    asked, quick[:] = len(hub.requests), []
    made = pod.quantize(source)
    assert made.reason == Reason.QUANTIZED, made.message
    assert len(quick) == int(again)
    assert not [request for request in hub.requests[asked:] if request.path.startswith("/cdn/")], "read again"
    entry = next(entry for entry in pod.manifest.files if entry.path == "model.safetensors")
    assert (pod.staging / entry.blob).read_bytes() == (expected / "model.safetensors").read_bytes()
    # Once more, after the end: the same result.
    assert pod.quantize(source) == made
    # Of a file that is lost, nothing is known: the model is converted again.
    (pod.staging / entry.blob).unlink()
    assert pod.quantize(source) == made
    assert (pod.staging / entry.blob).is_file() and len(quick) == int(again) + 1


def test_a_file_that_is_lost_while_the_pod_gives_it_away_is_made_again(
    hub: Hub, pod: Pod, original: Path, quick: list[Quantize], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_folder(REPOSITORY, original)
    source = pod.resolve()
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(quantize.Quantization, "_leave", kill)
        pod.quantize(source)
    made = FetchResult.parse((pod.staging / quantize.RESULT).read_text())
    assert made is not None
    # Given away and lost, such as by an agent that found its disk damaged.
    (pod.staging / quantize.OUT / "tokenizer_config.json").unlink()
    assert pod.quantize(source) == made
    assert all((pod.staging / entry.blob).is_file() for entry in pod.manifest.files) and len(quick) == 2


def test_another_spec_begins_again(hub: Hub, pod: Pod, original: Path, quick: list[Quantize]) -> None:
    hub.add_folder(REPOSITORY, original)
    source = pod.resolve()
    first = pod.quantize(source)
    second = pod.quantize(source, Quantize(bits=8, group_size=32))
    assert second.reason == Reason.QUANTIZED and [how.bits for how in quick] == [4, 8]
    assert second.manifest != first.manifest and pod.manifest.repository == "owner/tiny_8bit_g32"


def unknown(config: dict[str, object]) -> None:
    config["model_type"] = "nothing_known"


def quantized(config: dict[str, object]) -> None:
    config["quantization"] = {"group_size": 64, "bits": 4}


def code(config: dict[str, object]) -> None:
    config["model_file"] = "model.py"


@pytest.mark.parametrize(
    ("change", "how", "text"),
    [
        (unknown, FOUR, "nothing_known not supported"),
        (quantized, FOUR, "quantized already"),
        (code, FOUR, "custom module"),
        (None, Quantize(bits=4, group_size=128), "multiple of groupSize 128"),
    ],
)
def test_what_mlx_lm_cannot_quantize_is_refused_before_it_is_read(
    hub: Hub,
    pod: Pod,
    tmp_path: Path,
    change: Callable[[dict[str, object]], None] | None,
    how: Quantize,
    text: str,
) -> None:
    folder = tmp_path / "model"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tinymodel, "INTERMEDIATE", 64)
        tinymodel.make(folder, layers=1)
    config = json.loads((folder / "config.json").read_text())
    if change is not None:
        change(config)
    (folder / "config.json").write_text(json.dumps(config))
    hub.add_folder(REPOSITORY, folder)
    found = pod.resolve(how)
    assert found.reason == Reason.QUANTIZATION_REFUSED, found
    assert text in found.message and REPOSITORY in found.message


def test_a_full_disk_is_found_before_anything_is_read(hub: Hub, pod: Pod, original: Path, quick: list[Quantize]) -> None:
    hub.add_folder(REPOSITORY, original)
    source = pod.resolve()
    with pytest.MonkeyPatch.context() as patch:
        usage = type("Usage", (), {"free": 0})
        patch.setattr("shutil.disk_usage", lambda path: usage)
        assert pod.quantize(source).reason == Reason.DISK_FULL
    assert not [request for request in hub.requests if request.path.startswith("/cdn/") and "-" not in str(request.range)]


def test_a_child_that_dies_is_no_refusal(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="exit code"):
        patch.setattr("sys.executable", "/bin/false")
        convert.planned_bytes(tmp_path, FOUR)
    with pytest.raises((Refused, OSError)):
        convert.planned_bytes(tmp_path, FOUR)
