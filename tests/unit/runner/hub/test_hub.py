"""Reading models from the hub: real commands, a real HTTP server, the real huggingface_hub and model store.

The agent of the Mac is a thread here that takes staged files over, as the agent does.
"""

import contextlib
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from thunderfleet_crds.fetching import FetchResult
from thunderfleet_crds.reasons import Reason
from thunderfleet_lib.modelstore.hashing import WrongBytes
from thunderfleet_lib.modelstore.manifest import FileEntry, Manifest
from thunderfleet_lib.modelstore.store import Busy, Store
from thunderfleet_localcluster.models import hub as testhub
from thunderfleet_localcluster.models import tinymodel
from thunderfleet_localcluster.models.hub import Fault, Hub, git_sha1, sha256
from thunderfleet_runner import cli

REPOSITORY = "owner/tiny"
TOKEN = "hf_secret"
RUNNER = Path(sys.executable).with_name("thunderfleet-runner")
SECONDS = 120
LARGE = bytes(range(256)) * 40_000
FILES = {
    "config.json": b"{}",
    "empty.txt": b"",
    "model.safetensors": LARGE,
    "model.bin": b"not for mlx-lm",
    "code.py": b"evil()",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with testhub.running() as found:
        yield found


def run(hub: Hub, *arguments: str, endpoint: str | None = None) -> FetchResult:
    """The result of a command, in this process: importing MLX and huggingface_hub takes seconds."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("HF_ENDPOINT", endpoint or hub.url)
        code = cli.main(arguments)
    result = FetchResult.parse(printed.getvalue())
    assert result is not None, printed.getvalue()
    assert code == (0 if result.reason in (Reason.RESOLVED, Reason.FETCHED) else 1)
    return result


def resolve(hub: Hub, revision: str = "main", token: Path | None = None, endpoint: str | None = None) -> FetchResult:
    extra = ("--token-folder", str(token)) if token else ()
    return run(hub, "resolve", "--repository", REPOSITORY, "--revision", revision, *extra, endpoint=endpoint)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    folder = tmp_path / "token"
    folder.mkdir()
    (folder / "token").write_text(TOKEN + "\n")
    return folder


# --- resolving -----------------------------------------------------------------------------------------------------------


def test_a_model_is_sized_without_its_weights(hub: Hub, tmp_path: Path) -> None:
    tinymodel.make(tmp_path / "model", layers=2)
    commit = hub.add_folder(REPOSITORY, tmp_path / "model")
    found = resolve(hub)
    assert (found.reason, found.commit) == (Reason.RESOLVED, commit)
    assert found.model is not None
    whole = found.model.size(1)
    assert whole is not None
    local = subprocess.run([RUNNER, "size", tmp_path / "model"], capture_output=True, timeout=SECONDS, check=True)
    direct = type(found.model).model_validate_json(local.stdout)
    assert found.model.sizes == direct.sizes
    assert found.model.kv == direct.kv
    assert found.model.pipeline == direct.pipeline
    assert found.bytes == sum(path.stat().st_size for path in (tmp_path / "model").iterdir())
    # Of the weights only the header was read.
    weights = (tmp_path / "model" / "model.safetensors").stat().st_size
    large = [request for request in hub.requests if request.path.startswith("/cdn/")]
    assert [request.range for request in large] == [f"bytes=0-{min(256 * 1024, weights) - 1}"]


def gated(hub: Hub) -> None:
    hub.add(REPOSITORY, FILES, gated=True)


def private(hub: Hub) -> None:
    hub.add(REPOSITORY, FILES, private=True)


def missing(hub: Hub) -> None:
    hub.add("owner/other", FILES)


def moved(hub: Hub) -> None:
    hub.add("new/tiny", FILES)
    hub.add(REPOSITORY, FILES, moved_to="new/tiny")


def limited(hub: Hub) -> None:
    hub.add(REPOSITORY, FILES)
    hub.faults.append(Fault("/api/", 99, 429, {"Retry-After": "77"}))


def broken(hub: Hub) -> None:
    hub.add(REPOSITORY, FILES)
    hub.faults.append(Fault("/api/", 99, 500))


def nonsense(hub: Hub) -> None:
    hub.add(REPOSITORY, FILES)
    hub.faults.append(Fault("/api/", 99, 200, {"Content-Type": "text/html"}, b"<html>please log in</html>"))


def no_weights(hub: Hub) -> None:
    hub.add(REPOSITORY, {"config.json": b"{}", "pytorch_model.bin": b"x"})


def no_header(hub: Hub) -> None:
    hub.add(REPOSITORY, {"config.json": b"{}", "model.safetensors": b"\xff" * 100})


def escaping(hub: Hub) -> None:
    hub.add(REPOSITORY, {"config.json": b"{}", "..\\evil.json": b"x", "model.safetensors": LARGE})


def colliding(hub: Hub) -> None:
    hub.add(REPOSITORY, {"config.json": b"{}", "Config.json": b"x", "model.safetensors": LARGE})


def listed_wrong(hub: Hub) -> None:
    hub.add(REPOSITORY, FILES)
    hub.repositories[REPOSITORY].listed["config.json"] = {"size": -1}


@pytest.mark.parametrize(
    ("prepare", "reason", "says"),
    [
        (gated, Reason.GATED, "request access"),
        (private, Reason.REPOSITORY_NOT_FOUND, "name a Secret"),
        (missing, Reason.REPOSITORY_NOT_FOUND, "check the name"),
        (moved, Reason.REPOSITORY_MOVED, "new/tiny"),
        (limited, Reason.RATE_LIMITED, "in 77 s"),
        (broken, Reason.HUB_FAILED, "status 500"),
        (nonsense, Reason.HUB_FAILED, "does not answer as the hub does"),
        (no_weights, Reason.FILES_REFUSED, "loads no other weights"),
        (no_header, Reason.FILES_REFUSED, "no safetensors header"),
        (escaping, Reason.FILES_REFUSED, "backslash"),
        (colliding, Reason.FILES_REFUSED, "same name"),
        (listed_wrong, Reason.FILES_REFUSED, "bytes"),
    ],
)
def test_what_the_hub_refuses_has_a_reason(hub: Hub, prepare: Callable[[Hub], None], reason: Reason, says: str) -> None:
    prepare(hub)
    found = resolve(hub)
    assert found.reason == reason, found
    assert says in found.message
    assert found.retry_seconds == (77 if reason == Reason.RATE_LIMITED else None)


def test_an_unknown_revision_a_hub_that_is_away_and_a_wrong_token_have_reasons(hub: Hub, secret: Path) -> None:
    hub.add(REPOSITORY, FILES)
    assert resolve(hub, "v9").reason == Reason.REVISION_NOT_FOUND
    assert resolve(hub, endpoint="http://127.0.0.1:9").reason == Reason.HUB_UNREACHABLE
    assert resolve(hub, token=secret).reason == Reason.TOKEN_REFUSED
    (secret / "token").write_text("two words")
    assert resolve(hub, token=secret).reason == Reason.SECRET_MISSING
    (secret / "token").unlink()
    assert resolve(hub, token=secret).reason == Reason.SECRET_MISSING


def test_a_token_opens_a_gated_repository_and_goes_to_the_hub_alone(hub: Hub, secret: Path, tmp_path: Path) -> None:
    tinymodel.make(tmp_path / "model", layers=2)
    hub.add_folder(REPOSITORY, tmp_path / "model")
    hub.repositories[REPOSITORY].gated = True
    hub.tokens[TOKEN] = {REPOSITORY}
    found = resolve(hub, token=secret)
    assert found.reason == Reason.RESOLVED
    assert found.token_used
    assert {request.token for request in hub.requests if request.path.startswith("/cdn/")} == {None}
    hub.tokens[TOKEN] = set()
    assert resolve(hub, token=secret).reason == Reason.GATED


# --- downloading ---------------------------------------------------------------------------------------------------------


def entry(path: str, data: bytes) -> FileEntry:
    if path.endswith(".safetensors"):
        return FileEntry(path, len(data), sha256=sha256(data))
    return FileEntry(path, len(data), git_sha1=git_sha1(data))


def manifest(commit: str, files: dict[str, bytes]) -> Manifest:
    return Manifest(REPOSITORY, commit, tuple(entry(path, data) for path, data in files.items()))


WANTED = {path: FILES[path] for path in ("config.json", "empty.txt", "model.safetensors")}


class Mac:
    """A model store, the staging folder of a download, and what the agent does with them."""

    def __init__(self, folder: Path) -> None:
        self.store = Store(folder / "store")
        self.store.prepare()
        self.staging = self.store.layout.staged("download")
        self.staging.mkdir()

    def download(self, hub: Hub, wanted: Manifest, token: Path | None = None) -> FetchResult:
        extra = ("--token-folder", str(token)) if token else ()
        folders = ("--store", str(self.store.root), "--staging", str(self.staging))
        what = ("--repository", REPOSITORY, "--commit", wanted.commit, "--manifest", wanted.digest)
        with self.agent(wanted):
            return run(hub, "download", *what, *folders, *extra)

    @contextlib.contextmanager
    def agent(self, wanted: Manifest) -> Iterator[None]:
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.05):
                for one in self.store.missing(wanted):
                    staged = self.staging / one.blob
                    with contextlib.suppress(WrongBytes, Busy, FileNotFoundError):
                        self.store.adopt(REPOSITORY, one, staged)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def left(self) -> list[str]:
        return sorted(path.name for path in self.staging.iterdir())


@pytest.fixture
def mac(tmp_path: Path) -> Mac:
    return Mac(tmp_path)


def test_a_download_brings_exactly_the_files_of_the_model(hub: Hub, mac: Mac) -> None:
    wanted = manifest(hub.add(REPOSITORY, FILES), WANTED)
    found = mac.download(hub, wanted)
    assert (found.reason, found.bytes) == (Reason.FETCHED, sum(map(len, WANTED.values())))
    folder = mac.store.publish(wanted)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == WANTED
    # What the store has is on disk once.
    assert mac.left() == ["manifest.json"]
    before = len([request for request in hub.requests if request.method == "GET" and "/resolve/" in request.path])
    assert mac.download(hub, wanted).reason == Reason.FETCHED
    assert len([request for request in hub.requests if request.method == "GET" and "/resolve/" in request.path]) == before


@pytest.mark.parametrize("ranges", [True, False])
def test_a_cut_connection_is_continued(hub: Hub, mac: Mac, ranges: bool) -> None:
    # huggingface_hub writes 10 MiB at a time.
    part, files = constants.DOWNLOAD_CHUNK_SIZE, {**WANTED, "model.safetensors": bytes(range(256)) * 100_000}
    wanted = manifest(hub.add(REPOSITORY, files), files)
    hub.ranges = ranges
    hub.faults.append(Fault("/cdn/", 2 if ranges else 1, cut_after=part + 1000, method="GET"))
    assert mac.download(hub, wanted).reason == Reason.FETCHED
    asked = [request.range for request in hub.requests if request.path.startswith("/cdn/") and request.method == "GET"]
    assert asked == [None, f"bytes={part}-", f"bytes={2 * part}-"][: len(asked)]
    assert len(asked) == (3 if ranges else 2)


def test_the_next_pod_continues_where_one_was_killed(hub: Hub, mac: Mac) -> None:
    wanted = manifest(hub.add(REPOSITORY, FILES), WANTED)
    weights = next(one for one in wanted.files if one.path == "model.safetensors")
    (mac.staging / f"{weights.blob}.incomplete").write_bytes(LARGE[:5_000_000])
    (mac.staging / f"{'0' * 64}.incomplete").write_bytes(b"of another commit")
    assert mac.download(hub, wanted).reason == Reason.FETCHED
    assert [request.range for request in hub.requests if request.path.startswith("/cdn/")] == ["bytes=5000000-"]
    assert mac.left() == ["manifest.json"]


@pytest.mark.parametrize(("path", "file"), [("/cdn/", "model.safetensors"), ("/resolve/.*config", "config.json")])
def test_wrong_bytes_of_the_hub_are_refused(hub: Hub, mac: Mac, path: str, file: str) -> None:
    wanted = manifest(hub.add(REPOSITORY, FILES), WANTED)
    hub.faults.append(Fault(path, 1, wrong=b"??", method="GET"))
    found = mac.download(hub, wanted)
    assert found.reason == Reason.WRONG_BYTES
    assert file in found.message
    assert not mac.store.complete(wanted)
    assert mac.download(hub, wanted).reason == Reason.FETCHED


def test_files_that_changed_since_they_were_listed_are_refused(hub: Hub, mac: Mac) -> None:
    wanted = manifest(hub.add(REPOSITORY, FILES), WANTED)
    hub.repositories[REPOSITORY].commits[wanted.commit] = {**FILES, "config.json": b"{ }"}
    found = mac.download(hub, wanted)
    assert found.reason == Reason.HUB_FAILED
    assert "other files" in found.message


def test_a_revision_that_is_deleted_later_and_a_gate_that_closes_have_reasons(hub: Hub, mac: Mac, secret: Path) -> None:
    wanted = manifest(hub.add(REPOSITORY, FILES, gated=True), WANTED)
    assert mac.download(hub, wanted).reason == Reason.GATED
    hub.tokens[TOKEN] = {REPOSITORY}
    assert mac.download(hub, wanted, secret).reason == Reason.FETCHED
    hub.repositories[REPOSITORY].commits.clear()
    assert mac.download(hub, wanted, secret).reason == Reason.REVISION_NOT_FOUND


def test_a_rate_limit_in_the_middle_ends_the_pod_with_the_time_to_wait(hub: Hub, mac: Mac) -> None:
    wanted = manifest(hub.add(REPOSITORY, FILES), WANTED)
    hub.faults.append(Fault("/resolve/.*model", 99, 429, {"Retry-After": "5"}, method="HEAD"))
    found = mac.download(hub, wanted)
    assert (found.reason, found.retry_seconds) == (Reason.RATE_LIMITED, 5)
