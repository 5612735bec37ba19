"""A kubelet that starts with the same files again starts no process to read them."""

import asyncio
import base64
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_kubelet import answers, configprocess, oneoff
from thunderfleet_kubelet.answers import FILE_BYTES, Answers
from thunderfleet_kubelet.bootstrap import certificate_process
from thunderfleet_kubelet.bootstrap.certificates import Pair, read_ahead, read_pair
from thunderfleet_kubelet.config import Config, ConfigError
from thunderfleet_kubelet.credentials import Credentials

from tests.unit.kubelet.node.test_node_app import identity as make_identity

SCRIPT = """
import argparse, asyncio, pathlib, sys
from thunderfleet_kubelet import app, cli, oneoff

asked = []
done = oneoff.done
oneoff.done = lambda module, order: (asked.append(module), done(module, order))[1]

async def run(root, identity, config, adopted):
    print(config.port, *asked)

app.run = run
sys.exit(cli.main(["run", "--root", sys.argv[1], "--config", sys.argv[2]]))
"""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modules of the processes that ran."""
    found: list[str] = []
    done = oneoff.done

    def counted(module: str, order: dict[str, Any]) -> dict[str, Any]:
        found.append(module)
        with oneoff.here(module):
            return done(module, order)

    monkeypatch.setattr(oneoff, "done", counted)
    return found


@pytest.fixture
def start(tmp_path: Path) -> Callable[[], Config]:
    """Reads the configuration as a start of the kubelet does."""

    def load() -> Config:
        kept = Answers(tmp_path / "answers.json")
        config = configprocess.load(tmp_path / "kubelet.yaml", "studio-1", kept)
        kept.save()
        return config

    (tmp_path / "kubelet.yaml").write_text("port: 10300\n")
    return load


def test_the_second_start_asks_no_process(asked: list[str], start: Callable[[], Config], tmp_path: Path) -> None:
    first = start()
    assert first.port == 10300
    assert start() == first
    assert asked == [configprocess.WORK]
    about = (tmp_path / "answers.json").stat()
    assert about.st_mode & 0o777 == 0o600


def test_a_changed_file_is_read(asked: list[str], start: Callable[[], Config], tmp_path: Path) -> None:
    start()
    (tmp_path / "kubelet.yaml").write_text("port: 10301\n")
    assert start().port == 10301
    (tmp_path / "kubelet.yaml").write_text("prot: 10301\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="prot: unknown setting"):
            start()
    assert len(asked) == 4
    (tmp_path / "kubelet.yaml").write_text("port: 10301\n")
    assert start().port == 10301
    assert len(asked) == 4, "a start that failed keeps the answers of the one before"


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "version": lambda patch: patch.setattr(answers, "kubelet_version", lambda: "v1.36.3-thunderfleet.0.9.9"),
    "Python": lambda patch: patch.setattr(sys, "version", "3.99.0"),
    "program": lambda patch: patch.setattr(answers, "_program", lambda: (("configfile.py", 1),)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_program_reads_everything_again(
    asked: list[str], start: Callable[[], Config], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    start()
    with monkeypatch.context() as patch:
        CHANGES[change](patch)
        start()
    assert len(asked) == 2


def test_the_sources_of_program_and_library_are_looked_at() -> None:
    names = {name for name, _ in answers._program()}
    assert {"configfile.py", "bootstrap/certificate_work.py", "host/yamltext.py"} <= names


def _not_unpickled(answer: dict[str, Any]) -> None:
    answer["config"] = base64.b64encode(pickle.dumps(Path("/")).replace(b"pathlib", b"pathgone")).decode()


def _of_another_class(answer: dict[str, Any]) -> None:
    answer["config"] = base64.b64encode(pickle.dumps(Path("/"))).decode()


def _without_config(answer: dict[str, Any]) -> None:
    del answer["config"]


@pytest.mark.parametrize("change", [_not_unpickled, _of_another_class, _without_config])
def test_a_kept_answer_that_cannot_be_used_is_asked_for_again(
    asked: list[str], start: Callable[[], Config], tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    first = start()
    file = tmp_path / "answers.json"
    kept = json.loads(file.read_text())
    for answer in kept.values():
        change(answer)
    file.write_text(json.dumps(kept))
    assert start() == first and start() == first
    assert len(asked) == 2


def test_a_problem_is_not_kept(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that a broken library cannot read is read again when the library is whole."""
    pairs = [(b"key", b"certificate")]
    for _ in range(2):
        monkeypatch.setattr(certificate_process, "_known", {})
        kept = Answers(tmp_path / "answers.json")
        assert "problem" in certificate_process.read(pairs, kept)[0]
        kept.save()
    assert len(asked) == 2


def _others_may_write(file: Path) -> None:
    file.chmod(0o660)


def _garbage(file: Path) -> None:
    file.write_bytes(b"\xff{")


def _deep(file: Path) -> None:
    file.write_text("[" * 100_000)


def _a_list(file: Path) -> None:
    file.write_text("[]")


def _no_answers(file: Path) -> None:
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), 7)))


def _large(file: Path) -> None:
    file.write_text(file.read_text() + " " * FILE_BYTES)


def _a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("change", [_others_may_write, _garbage, _deep, _a_list, _no_answers, _large, _a_folder])
def test_a_file_that_cannot_be_trusted_is_not_used(
    asked: list[str], start: Callable[[], Config], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    start()
    change(tmp_path / "answers.json")
    assert start().port == 10300
    assert len(asked) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_used(asked: list[str], start: Callable[[], Config], tmp_path: Path) -> None:
    start()
    os.chown(tmp_path / "answers.json", 4321, 4321)
    start()
    assert len(asked) == 2


def test_only_the_latest_answers_are_kept(asked: list[str], start: Callable[[], Config], tmp_path: Path) -> None:
    for port in range(10300, 10310):
        (tmp_path / "kubelet.yaml").write_text(f"port: {port}\n")
        start()
    assert len(json.loads((tmp_path / "answers.json").read_text())) == 1 < len(asked)


def test_a_kubelet_that_starts_again_starts_no_process(tmp_path: Path) -> None:
    """The command itself, with certificates."""
    root, config = tmp_path / "root", tmp_path / "kubelet.yaml"
    make_identity(root)
    config.write_text("port: 10300\n")
    command = [sys.executable, "-c", SCRIPT, str(root), str(config)]
    said = [subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split() for _ in range(2)]
    assert said[0][0] == "10300" and sorted(said[0][1:]) == [certificate_process.WORK, configprocess.WORK]
    assert said[1] == ["10300"]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("name", ["client", "serving"])
async def test_a_start_after_a_renewal_reads_no_certificate(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kept: bool
) -> None:
    """The certificate of the server is issued while the kubelet runs, so a Mac's first boot is always such a start.

    A kubelet that cannot keep what it says uses it all the same.
    """
    known, other = make_identity(tmp_path), make_identity(tmp_path / "other")
    issued = read_pair(other.client)
    renewed: asyncio.Queue[str | None] = asyncio.Queue()

    def started() -> None:
        monkeypatch.setattr(certificate_process, "_known", {})
        answers = Answers(known.answers)
        configprocess.load(None, "studio-1", answers)
        read_ahead((known.client, known.serving), answers)
        answers.save()

    async def obtain(*_: Any, **__: Any) -> Pair:
        assert issued is not None and issued.facts
        return issued

    async def registered() -> None:
        pass

    monkeypatch.setattr("thunderfleet_kubelet.credentials.obtain", obtain)
    started()
    if not kept:
        monkeypatch.setattr("thunderfleet_kubelet.credentials.keep_read", None)
    credentials = Credentials(
        *(known, 3600),
        addresses=lambda: (),
        registered=registered,
        client_changed=lambda _: None,
        serving_changed=lambda: None,
        expires=lambda *_: None,
        report=renewed.put_nowait,
    )
    renewer = credentials.client if name == "client" else credentials.serving
    renewer.pair = None
    task = asyncio.ensure_future(renewer.run())
    try:
        assert await asyncio.wait_for(renewed.get(), 60) is None
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await credentials.close()
    asked.clear()
    started()
    assert asked == ([] if kept else [certificate_process.WORK])
    assert len(json.loads(known.answers.read_text())) == 2
