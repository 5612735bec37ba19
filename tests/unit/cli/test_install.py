"""``thunderfleet join`` reads its line where other users cannot."""

import argparse
import io
import os
from pathlib import Path
from typing import Any

import pytest
from thunderfleet_cli.cli import parser
from thunderfleet_cli.install import command as install
from thunderfleet_controlplane.install.errors import InstallError
from thunderfleet_controlplane.install.joinline import LIMIT, JoinLine

LINE = JoinLine(("192.168.1.7",), 6443, "abcdef.0123456789abcdef", "sha256:" + "0" * 64)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `join` is called with; nothing is installed."""
    calls: list[Any] = []
    monkeypatch.setattr("thunderfleet_controlplane.install.join.join", lambda mac, wanted: calls.append(wanted))
    return calls


def join(*words: str) -> None:
    given: argparse.Namespace = parser().parse_args(["join", *words])
    mac: Any = None
    install._join(given, mac)


def test_the_line_comes_from_standard_input(joined: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"  {LINE.encode()}\nmore\n"))
    join("-")
    assert [wanted.line for wanted in joined] == [LINE]


def test_the_line_comes_from_a_file(joined: list[Any], tmp_path: Path) -> None:
    (tmp_path / "line").write_text(LINE.encode() + "\n")
    join("--token-file", str(tmp_path / "line"), "--name", "studio-2")
    assert [(wanted.line, wanted.name) for wanted in joined] == [(LINE, "studio-2")]


def test_the_line_is_an_argument(joined: list[Any]) -> None:
    join(LINE.encode())
    assert [wanted.line for wanted in joined] == [LINE]


@pytest.mark.parametrize("words", [[], ["-", "--token-file", "x"]])
def test_one_line_is_needed(words: list[str], joined: list[Any]) -> None:
    with pytest.raises(InstallError, match="give the join line that"):
        join(*words)
    assert joined == []


def test_what_is_no_line_is_refused_without_being_shown(
    joined: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may have been told to read a file that its caller cannot."""
    (tmp_path / "secret").write_text("root:password\n")
    with pytest.raises(InstallError) as raised:
        join("--token-file", str(tmp_path / "secret"))
    assert "password" not in str(raised.value)
    (tmp_path / "binary").write_bytes(os.urandom(64) + b"\xff")
    for name in ("missing", "binary"):
        with pytest.raises(InstallError):
            join("--token-file", str(tmp_path / name))
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE.encode() + "A" * LIMIT))
    with pytest.raises(InstallError):
        join("-")
    assert joined == []
